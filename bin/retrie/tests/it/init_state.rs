//! `dump-state` and `init-state`: a chain that starts in the middle, on every backend.

use crate::common::{
    TestFolder, backends, checked_backends, fails_saying, gunzip, retrie, succeeds, test_chain,
    words,
};
use alloy_primitives::{Bytes, TxKind};
use retrie_chainspec::primitives::Block;
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_DIFFICULTY, TestCall, TestRules, write_blocks};
use retrie_state_testkit::sample;
use std::process::Command;

/// The backend of a command line that has Ethereum's roots.
fn root_of(line: &str) -> Option<&str> {
    let has_root = |word: &&str| retrie_backends::with_ethereum_root().any(|b| b.name == *word);
    words(line).into_iter().find(has_root)
}

/// The block of `BLOCKS` that the chains start from.
const AT: u64 = 16;
const BLOCKS: u64 = 24;

/// A chain on `backend` in `data` up to block `AT`, with its state and headers in files.
fn dumped(rules: TestRules, backend: &str) -> (TestFolder, Vec<Block>) {
    let (scene, blocks) = TestFolder::with_chain(rules, BLOCKS);
    succeeds(&mut scene.import("chain.rlp", &format!("--state-backend {backend} --to {AT}")));
    succeeds(&mut dump(&scene, "data", "state.jsonl", "--header headers.rlp"));
    (scene, blocks)
}

/// A command on a datadir of the test; arguments with a dot are files in the test folder.
fn on(scene: &TestFolder, data: &str, line: &str) -> Command {
    let file = |word: &str| match word.contains('.') && !word.starts_with("--") {
        true => scene.at(word),
        false => word.to_owned(),
    };
    let mut command = retrie(words(line).into_iter().map(file));
    command.args(["--chain", &scene.at("genesis.json"), "--datadir", &scene.at(data)]);
    command
}

fn dump(scene: &TestFolder, data: &str, file: &str, more: &str) -> Command {
    on(scene, data, &format!("dump-state {file} {more}"))
}

fn init(scene: &TestFolder, data: &str, more: &str) -> Command {
    on(scene, data, &format!("init-state state.jsonl {more}"))
}

fn hash(blocks: &[Block], number: u64) -> String {
    blocks[number as usize - 1].header.hash_slow().to_string()
}

#[test]
fn every_backend_goes_on_from_the_state_of_every_other() {
    let (all, checked) = (backends(), checked_backends());
    let rules = [TestRules::Prague, TestRules::Byzantium, TestRules::Cancun].into_iter().cycle();
    for (n, (from, rules)) in sample::of(all.iter().zip(rules).enumerate().collect(), 3) {
        // The same backend and another one, with and without a check.
        let other = |places: usize| (n + places) % all.len();
        let targets = [from, [&all[other(1)], &checked[other(3)]][n % 2]];
        let (scene, blocks) = dumped(rules, from);
        let (mut headers, mut more) = ("headers.rlp", String::new());
        if rules == TestRules::Byzantium {
            // The total difficulty is needed: the headers do not reach down to genesis.
            headers = "few.rlp";
            let few: Vec<_> =
                blocks[7..AT as usize].iter().map(|b| alloy_rlp::encode(&b.header)).collect();
            scene.write(headers, few.concat());
            let difficulty = |block: &Block| block.header.difficulty.to::<u64>();
            let total =
                GENESIS_DIFFICULTY + blocks[..AT as usize].iter().map(difficulty).sum::<u64>();
            fails_saying(&mut init(&scene, "new", "--header few.rlp"), &["--total-difficulty"]);
            let low = format!("--header few.rlp --total-difficulty {GENESIS_DIFFICULTY}");
            fails_saying(&mut init(&scene, "new", &low), &["does not fit"]);
            more = format!("--total-difficulty {total}");
        }
        let head = blocks[BLOCKS as usize - 1].header.state_root.to_string();
        succeeds(&mut scene.import("chain.rlp", &format!("--state-backend {from}")));
        succeeds(&mut dump(&scene, "data", "end.jsonl", ""));
        let end = std::fs::read(scene.path("end.jsonl")).unwrap();
        for (n, to) in targets.iter().enumerate() {
            let data = format!("data-{n}");
            let trusted = format!(
                "--header {headers} --header-hash {} --state-backend {to} {more}",
                hash(&blocks, AT)
            );
            let printed = succeeds(&mut init(&scene, &data, &trusted));
            assert!(printed.contains(&format!("begins at block {AT}")), "{printed}");
            let is_checked = root_of(to).is_some();
            assert_eq!(printed.contains("has the root of the header"), is_checked, "{printed}");
            assert_eq!(printed.contains("was not checked"), !is_checked, "{printed}");
            assert_eq!(scene.head(&data).0, AT);
            let mut again = dump(&scene, &data, "again.jsonl", "");
            succeeds(&mut again);
            let [first, again] =
                ["state.jsonl", "again.jsonl"].map(|file| std::fs::read(scene.path(file)).unwrap());
            assert_eq!(first, again, "{from} to {to}");

            let mut import = on(&scene, &data, "import chain.rlp --json report.json");
            import.args(words(&format!("--from {} --state-backend {to}", AT + 1)));
            succeeds(&mut import);
            let report = scene.json("report.json");
            assert_eq!(report["blocks"], BLOCKS - AT);
            assert_eq!(report["tip"]["stateRoot"], head);
            assert_eq!(report["roots_checked"], if is_checked { BLOCKS - AT } else { 0 });
            succeeds(&mut dump(&scene, &data, "again.jsonl.gz", ""));
            assert_eq!(gunzip(&scene.path("again.jsonl.gz")), end, "{from} to {to}");
            let printed = succeeds(&mut on(&scene, &data, "db verify"));
            assert!(printed.contains("nothing is wrong"), "{to}: {printed}");
            let printed = succeeds(&mut on(&scene, &data, "re-execute"));
            assert!(printed.contains("executed 8 blocks again"), "{to}: {printed}");
            let below = on(&scene, &data, "stage unwind --to 12");
            fails_saying(&mut { below }, &["started from the state after block 16", "block 12"]);
            succeeds(&mut on(&scene, &data, "stage unwind --to 16"));
            assert_eq!(scene.head(&data).0, AT);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing_behind() {
    let (scene, blocks) = dumped(TestRules::Prague, "mpt");
    let state = String::from_utf8(std::fs::read(scene.path("state.jsonl")).unwrap()).unwrap();
    let headers = std::fs::read(scene.path("headers.rlp")).unwrap();
    succeeds(&mut dump(&scene, "data", "state-15.jsonl", "--block 15 --header headers-15.rlp"));
    fails_saying(&mut dump(&scene, "data", "no.jsonl", "--block 17"), &["block 17 is not there"]);
    let trusted = "--header headers.rlp";
    let refused = |more: &str, what: &[&str]| {
        fails_saying(&mut init(&scene, "new", more), what);
        assert!(!scene.path("new").join("db").exists(), "{more}");
    };
    refused("", &["give the header of its block (--header)"]);
    refused("--header headers-15.rlp", &["block 15", "state of another block"]);
    let other = format!("{trusted} --header-hash {}", hash(&blocks, 15));
    refused(&other, &[&hash(&blocks, AT), &hash(&blocks, 15), "--header-hash"]);
    scene.write("cut.rlp", &headers[..headers.len() - 1]);
    refused("--header cut.rlp", &["cut.rlp", "block index 16"]);
    // The second-last header is missing.
    let length = |number: u64| alloy_rlp::encode(&blocks[number as usize - 1].header).len();
    let (last, gap) = (length(AT), length(AT - 1));
    let (before, after) = (headers.len() - last - gap, headers.len() - last);
    scene.write("gap.rlp", [&headers[..before], &headers[after..]].concat());
    refused("--header gap.rlp", &["header 16", "not the child", "#14"]);
    // Headers of another chain that reach down to its genesis.
    let elsewhere = TestRules::Cancun.genesis_json();
    let genesis = std::fs::read(scene.path("genesis.json")).unwrap();
    scene.write("genesis.json", elsewhere);
    refused(trusted, &["block"]);
    scene.write("genesis.json", &genesis);
    let native = format!("{trusted} --state-backend lvmt --state-root native");
    refused(&native, &["lvmt", "import its blocks"]);

    let lines: Vec<_> = state.lines().collect();
    let damaged = |line: usize, with: String| {
        let mut lines = lines.clone();
        lines[line] = &with;
        scene.write("state.jsonl", lines.join("\n"));
    };
    damaged(3, lines[3].replace('}', ""));
    refused(trusted, &["state.jsonl, line 4"]);
    damaged(4, lines[4].replace("\"address\"", "\"key\""));
    refused(trusted, &["state.jsonl, line 5", "has no `address`", "--cache.preimages"]);
    for wrong in [
        lines[2].replace("\"balance\":\"0x", "\"balance\":\"0x1"),
        // One account is missing.
        lines[1].into(),
    ] {
        damaged(2, wrong);
        for backend in sample::of(checked_backends(), 3) {
            let flags = format!("{trusted} --state-backend {backend}");
            let by = format!("by backend {}", root_of(&backend).unwrap());
            refused(&flags, &["block 16", "state root is", &by]);
        }
        let unchecked = format!("{trusted} --state-backend raw");
        let printed = succeeds(&mut init(&scene, "unchecked", &unchecked));
        assert!(printed.contains("the dump is trusted"), "{printed}");
        std::fs::remove_dir_all(scene.path("unchecked")).unwrap();
    }
    scene.write(
        "state.jsonl",
        format!("{state}{}\n", lines[2].replace("\"nonce\":", "\"nonce\":1")),
    );
    refused(&format!("{trusted} --state-backend raw"), &["same key and other values"]);

    scene.write("state.jsonl", &state);
    succeeds(&mut init(&scene, "new", trusted));
    assert_eq!(scene.head("new").0, AT);
    fails_saying(&mut init(&scene, "new", trusted), &["already holds a chain", "#16"]);
    // A leftover of a killed process.
    let db = DatabaseEnv::create(scene.path("killed"), &OpenOptions::default()).unwrap();
    let new = DatabaseEnv::open(scene.path("new"), &OpenOptions::read_only()).unwrap();
    db.init_metadata(&new.metadata().unwrap()).unwrap();
    drop((db, new));
    succeeds(&mut init(&scene, "killed", trusted));
    assert_eq!(scene.head("killed"), scene.head("new"));
}

#[test]
fn hashes_of_ancestors_are_known_or_missed_but_never_zero() {
    let scene = TestFolder::new();
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let at = *chain.branch(genesis, 12, 12, 0).last().unwrap();
    // The contract stores BLOCKHASH(NUMBER - 5) in its slot 0.
    let input = Bytes::from_static(&[0x60, 5, 0x43, 0x03, 0x40, 0x5f, 0x55, 0x00]);
    let call = TestCall { from: 3, to: TxKind::Create, value: 0, input };
    let tip = chain.extend(at, BlockPlan::new([call]));
    let contract = chain.next_contract(at, 3);
    scene.write("genesis.json", &chain.genesis_json);
    write_blocks(&scene.path("chain.rlp"), &chain.path(genesis, tip));
    succeeds(&mut scene.import("chain.rlp", "--to 12"));
    succeeds(&mut dump(&scene, "data", "state.jsonl", "--header headers.rlp"));
    let one = alloy_primitives::hex::encode_prefixed(alloy_rlp::encode(&chain.block(at).header));
    scene.write("one.hex", one);
    succeeds(&mut on(&scene, "data", "export --from 5 --to 12 blocks.rlp"));

    succeeds(&mut init(&scene, "short", "--header one.hex"));
    fails_saying(
        &mut on(&scene, "short", "import chain.rlp --from 13"),
        &["block 13", "hash of ancestor block 8 is not known"],
    );
    assert_eq!(scene.head("short").0, 12);
    fails_saying(
        &mut on(&scene, "short", "import chain.rlp --from 3"),
        &["started from the state after block 12", "block 3"],
    );
    for (data, header) in [("long", "headers.rlp"), ("blocks", "blocks.rlp")] {
        succeeds(&mut init(&scene, data, &format!("--header {header}")));
        succeeds(&mut on(&scene, data, "import chain.rlp --from 13"));
        succeeds(&mut dump(&scene, data, "end.jsonl", ""));
        let end = std::fs::read_to_string(scene.path("end.jsonl")).unwrap();
        let found = end.lines().find(|line| line.contains(&format!("{contract:#x}"))).unwrap();
        let asked = &chain.path(genesis, tip)[7].header;
        assert!(found.contains(&asked.hash_slow().to_string()), "{found}");
        let printed = succeeds(&mut on(&scene, data, "db verify"));
        assert!(printed.contains("nothing is wrong"), "{printed}");
    }
    // A file of headers is not a block file, and the error says so.
    fails_saying(
        &mut on(&scene, "long", "export --from 8 out.rlp"),
        &["the body of block 8 is not kept", "from block 13 on"],
    );
    succeeds(&mut on(&scene, "blocks", "export --from 5 --to 12 out.rlp"));
    let [out, blocks] =
        ["out.rlp", "blocks.rlp"].map(|file| std::fs::read(scene.path(file)).unwrap());
    assert_eq!(out, blocks);
}

#[test]
fn genesis_needs_no_header() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 4);
    succeeds(&mut on(&scene, "data", "init"));
    succeeds(&mut dump(&scene, "data", "state.jsonl", ""));
    let native = "mpt --state-root native".to_owned();
    for backend in sample::of([checked_backends(), vec!["raw".into(), native]].concat(), 3) {
        let data = backend.replace(' ', "");
        let flags = format!("--state-backend {backend}");
        let printed = succeeds(&mut init(&scene, &data, &flags));
        assert!(printed.contains("begins at block 0"), "{printed}");
        succeeds(&mut on(&scene, &data, &format!("import chain.rlp {flags}")));
        assert_eq!(scene.head(&data).0, 4);
        succeeds(&mut on(&scene, &data, "db verify"));
        let printed = succeeds(&mut on(&scene, &data, "re-execute"));
        assert!(printed.contains("executed 4 blocks"), "{printed}");
    }
}
