//! `retrie db migrate`: copies a chain to another backend; stopped, killed, and continued.

use crate::common::{TestFolder, fails_saying, retrie, signal, succeeds, test_chain, words};
use retrie_backends::{BackendDescriptor, all};
use retrie_chainspec::primitives::Block;
use retrie_pipeline::testkit::{TestRules, write_blocks};
use retrie_state_testkit::sample;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Flags that make a backend small.
fn small(backend: &BackendDescriptor) -> Vec<String> {
    let one = |(flag, value): &(&str, &str)| match *value {
        "" => format!("--{flag}"),
        value => format!("--{flag}={value}"),
    };
    backend.small_flags.iter().map(one).collect()
}

fn on(scene: &TestFolder, data: &str, line: &str) -> Command {
    let mut command = retrie(words(line));
    command.args(["--datadir", &scene.at(data)]);
    command
}

fn migrate(scene: &TestFolder, from: &str, to: &str, new: &str, more: &str) -> Command {
    let mut command = on(scene, from, "db migrate");
    command.args(["--to", to, &scene.at(new)]).args(words(more));
    command
}

fn stats(scene: &TestFolder, data: &str) -> Value {
    serde_json::from_str(&succeeds(&mut on(scene, data, "db stats --json -"))).unwrap()
}

fn verify(scene: &TestFolder, data: &str) {
    let printed = succeeds(&mut on(scene, data, "db verify"));
    assert!(printed.contains("nothing is wrong"), "{printed}");
}

fn chain_of(blocks: u64, file: &str) -> (TestFolder, Vec<Block>) {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Cancun, blocks);
    write_blocks(&scene.path(file), &blocks[..blocks.len() - 4]);
    (scene, blocks)
}

#[test]
fn chain_moves_to_another_backend_and_grows_there() {
    let (scene, blocks) = chain_of(20, "most.rlp");
    succeeds(&mut scene.import("most.rlp", "--state-backend raw --referee mpt"));
    let root = blocks[15].header.state_root.to_string();
    for (to, more, is_native) in [
        ("mpt", "", true),
        ("mpt", "--history", true),
        ("cole", "--history --cole.memory-pairs 40 --cole.size-ratio 2", false),
        ("lvmt", "--lvmt.insecure-dev", false),
    ] {
        let new = format!("{to}{}", more.contains("history"));
        let printed = succeeds(&mut migrate(&scene, "data", to, &new, more));
        let from = if more.contains("history") { 0 } else { 16 };
        assert!(printed.contains(&format!("states from block {from} to block #16")), "{printed}");
        // Checked by the new backend, or by the referee taken over from the old datadir.
        assert!(!printed.contains("0 state roots checked"), "{printed}");
        verify(&scene, &new);
        let found = stats(&scene, &new);
        assert_eq!(found["backend"], to);
        assert_eq!(found["state"]["block"], 16);
        if is_native {
            assert_eq!(found["state"]["root"], root.as_str());
        }
        let referee =
            found["tables"].as_array().unwrap().iter().any(|table| {
                table["name"].as_str().unwrap().contains("Referee") && table["rows"] != 0
            });
        assert_eq!(referee, !is_native, "{to}");
        let again = ["already holds a chain", "#16"];
        fails_saying(&mut migrate(&scene, "data", to, &new, more), &again);
        let mut import = on(&scene, &new, &format!("import --state-backend {to}"));
        import.args(if is_native { &[][..] } else { &["--referee", "mpt"] });
        succeeds(import.arg(scene.at("chain.rlp")));
        assert_eq!(scene.head(&new).0, 20);
        verify(&scene, &new);
        let below = on(&scene, &new, "stage unwind --to 12");
        if from == 0 {
            succeeds(&mut { below });
        } else {
            fails_saying(&mut { below }, &["started from the state after block 16", "block 12"]);
        }
    }
    // The referee can be dropped.
    succeeds(&mut migrate(&scene, "data", "raw", "alone", "--referee none"));
    let mut import = on(&scene, "alone", "import --state-backend raw");
    succeeds(import.arg(scene.at("chain.rlp")));
    verify(&scene, "alone");
}

#[test]
fn what_cannot_be_moved_is_refused_and_leaves_nothing_behind() {
    let (scene, _) = chain_of(10, "most.rlp");
    fails_saying(&mut migrate(&scene, "data", "mpt", "new", ""), &["there is no database"]);
    succeeds(&mut scene.import("most.rlp", "--state-backend raw"));
    let refused = |to: &str, more: &str, what: &[&str]| {
        fails_saying(&mut migrate(&scene, "data", to, "new", more), what);
        assert!(!scene.path("new").join("db").exists(), "{to} {more}");
    };
    refused("trie", "", &["no backend is called `trie`"]);
    refused("lvmt", "--state-root header", &["lvmt", "does not compute Ethereum's state roots"]);
    refused("lvmt", "--state-root native", &["genesis", "same roots"]);
    refused("mpt", "--referee raw", &["cannot be the referee"]);
    fails_saying(&mut migrate(&scene, "data", "mpt", "data", ""), &["data"]);
    assert_eq!(scene.head("data").0, 6);
}

/// Hashed keys become plain by their preimages, kept or from a file; dumps have the keys that are
/// known.
#[test]
fn keys_are_hashed_and_made_plain_again() {
    let (scene, _) = chain_of(12, "most.rlp");
    let file = |name: &str| scene.at(name);
    let import = |data: &str, more: &str| {
        let mut command = on(&scene, data, &format!("import --state-backend mpt {more}"));
        command.args(["--chain", &file("genesis.json"), &file("most.rlp")]);
        command
    };
    succeeds(&mut import("data", ""));
    succeeds(&mut import("kept", "--state.keys hashed --state.preimages"));
    fails_saying(&mut import("none", "--state.preimages"), &["plain", "--state.keys hashed"]);
    assert!(!scene.path("none").join("db").exists());

    let dump = |data: &str, name: &str| {
        let mut command = on(&scene, data, "dump-state");
        succeeds(command.arg(file(name)));
        let text = std::fs::read_to_string(file(name)).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let lines = dump("data", "plain.jsonl");
    // The order of slots within an account is that of the store's keys.
    let parsed = |lines: &[String]| -> Vec<Value> {
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(parsed(&dump("kept", "kept.jsonl")), parsed(&lines));

    // To hashed keys without preimages, and the state's file of them.
    let keys = "--keys hashed";
    succeeds(&mut migrate(&scene, "data", "lvmt", "bare", &format!("{keys} --lvmt.insecure-dev")));
    let hashed = dump("bare", "bare.jsonl").join("\n");
    assert!(hashed.contains("\"key\":\"0x") && hashed.contains("\"storageByHash\":{\"0x"));
    assert!(!hashed.contains("\"address\""), "{hashed}");
    let export = |data: &str, name: &str| {
        let mut command = on(&scene, data, "db preimages export");
        command.arg(file(name));
        command
    };
    let back = |more: &str| migrate(&scene, "bare", "prefix", "back", more);
    let counted = format!("preimages of {} accounts and ", lines.len() - 1);
    fails_saying(&mut export("bare", "bare.pre"), &[&counted, "preimages import"]);
    fails_saying(&mut back("--keys plain"), &[&counted, "slots", "--history"]);
    assert!(!scene.path("back").join("db").exists() && !scene.path("bare.pre").exists());
    let printed = succeeds(&mut export("data", "state.pre"));
    assert!(printed.contains("plain keys") && printed.contains("keccak-256 0x"), "{printed}");
    succeeds(&mut export("kept", "same.pre"));
    let bytes = std::fs::read(file("state.pre")).unwrap();
    assert_eq!(std::fs::read(file("same.pre")).unwrap(), bytes);

    let read = |data: &str, name: &str| {
        let mut command = on(&scene, data, "db preimages import");
        command.arg(file(name));
        command
    };
    std::fs::write(file("cut.pre"), &bytes[..bytes.len() - 1]).unwrap();
    fails_saying(&mut read("bare", "cut.pre"), &["cut.pre, account ", "at byte", "is kept"]);
    fails_saying(&mut read("data", "state.pre"), &["are plain"]);
    let printed = succeeds(&mut read("bare", "state.pre"));
    assert!(printed.contains("all preimages of the state after block #8"), "{printed}");
    let printed = succeeds(&mut back("--keys plain"));
    assert!(printed.contains("backend prefix"), "{printed}");
    verify(&scene, "bare");
    verify(&scene, "back");
    assert_eq!(dump("back", "back.jsonl"), lines);
    assert_eq!(stats(&scene, "back")["state"]["root"], stats(&scene, "data")["state"]["root"]);
}

/// The contents of a datadir, independent of the way they were written.
#[derive(Debug, PartialEq)]
struct MigratedContents {
    state: [Value; 4],
    rows: BTreeMap<String, u64>,
}

impl MigratedContents {
    fn of(scene: &TestFolder, data: &str, backend: &[String]) -> Self {
        // `init` opens the datadir to write and folds all pending rows.
        succeeds(on(scene, data, "init").args(backend));
        let stats = stats(scene, data);
        let rows = stats["tables"].as_array().unwrap().iter().map(|table| {
            (table["name"].as_str().unwrap().to_owned(), table["rows"].as_u64().unwrap())
        });
        let state = ["block", "root", "live_keys", "first_retained"];
        Self { state: state.map(|name| stats["state"][name].clone()), rows: rows.collect() }
    }
}

/// Kills a migration repeatedly, at random moments.
fn kill_until_done(
    scene: &TestFolder,
    line: &dyn Fn() -> Command,
    took: Duration,
    seed: u64,
) -> u32 {
    let (mut kills, mut random) = (0, seed);
    for attempt in 0_u32.. {
        assert!(attempt < 60, "it does not come to its end");
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        // Each kill comes later, so that the migration ends.
        let part = f64::from((random >> 40) as u32) / f64::from(1 << 24);
        let after = took.mul_f64(part * (1.0 + f64::from(attempt) / 4.0));
        let log = scene.path("last.log");
        let stderr = std::fs::File::create(&log).unwrap();
        let fold_bytes = [1 << 10, 1 << 16, 64 << 20][(random >> 20) as usize % 3];
        let mut command = line();
        command.env("RETRIE_FOLD_BYTES", fold_bytes.to_string());
        let mut child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        std::thread::sleep(after);
        if child.try_wait().unwrap().is_none() {
            signal(&child, "KILL");
        }
        let status = child.wait().unwrap();
        if status.signal() != Some(9) {
            let said = std::fs::read_to_string(&log).unwrap();
            assert_eq!(status.code(), Some(0), "{command:?}\n{said}");
            return kills;
        }
        kills += 1;
        // An unfinished datadir is refused, unless the kill came after the last commit.
        let output = on(scene, "new", "db stats --quiet").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            fails_saying(&mut line(), &["already holds a chain"]);
            return kills;
        }
        let young = ["is not whole", "there is no database", "not initialised", "it has no table"];
        assert!(young.iter().any(|what| said.contains(what)), "{said}");
        if said.contains("is not whole") {
            let mut import = on(scene, "new", "import --state-backend mpt");
            fails_saying(import.arg(scene.at("chain.rlp")), &["is not whole", "db migrate"]);
        }
    }
    kills
}

#[test]
fn killed_migrations_end_as_if_nothing_had_happened() {
    let (scene, _) = chain_of(120, "most.rlp");
    succeeds(&mut scene.import("chain.rlp", "--state-backend mpt"));
    for (n, to) in all().enumerate() {
        for history in [false, true] {
            if !sample::takes(n + usize::from(history), 3) {
                continue;
            }
            let mut more = small(to);
            more.extend(history.then(|| "--history".to_owned()));
            let line = |new: &str| {
                let mut command = migrate(&scene, "data", to.name, new, "");
                command.args(&more);
                command
            };
            let begin = Instant::now();
            succeeds(&mut line("whole"));
            let took = begin.elapsed();
            let kills = kill_until_done(&scene, &|| line("new"), took, 1 + 2 * n as u64);
            println!("{} history {history}: {kills} kills, {took:?}", to.name);
            let mut backend = vec!["--state-backend".to_owned(), to.name.to_owned()];
            backend.extend(small(to));
            let [whole, new] =
                ["whole", "new"].map(|data| MigratedContents::of(&scene, data, &backend));
            assert_eq!(new, whole, "{} history {history}", to.name);
            verify(&scene, "new");
            for data in ["whole", "new"] {
                std::fs::remove_dir_all(scene.path(data)).unwrap();
            }
        }
    }
}

#[test]
fn stopped_migration_ends_at_a_block_and_goes_on() {
    let scene = TestFolder::new();
    let mut chain = test_chain(TestRules::Prague);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, 200, 12, 0).last().unwrap();
    scene.write("genesis.json", &chain.genesis_json);
    write_blocks(&scene.path("chain.rlp"), &chain.path(genesis, tip));
    succeeds(&mut scene.import("chain.rlp", "--state-backend raw"));
    let begin = Instant::now();
    succeeds(&mut migrate(&scene, "data", "mpt", "whole", "--history"));
    let took = begin.elapsed();
    let mut stops = 0;
    for part in [0.3, 0.5, 0.6, 0.8, 0.9] {
        let mut command = migrate(&scene, "data", "mpt", "new", "--history --quiet");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(took.mul_f64(part));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        signal(&child, "INT");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            break;
        }
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("not whole yet: run the same command again"), "{said}");
        stops += 1;
    }
    println!("{stops} stops");
    let new = migrate(&scene, "data", "mpt", "new", "--history").output().unwrap();
    let said = String::from_utf8_lossy(&new.stderr).into_owned();
    assert!(new.status.success() || said.contains("already holds a chain"), "{said}");
    assert_eq!(scene.head("new"), scene.head("whole"));
    verify(&scene, "new");
}
