//! `init`, `import`, `export` and `db stats` as people use them.

use crate::common::{
    MAINNET_600, TestFolder, checked_backends, fails_saying, keys, mainnet, mainnet_blocks, retrie,
    succeeds, test_chain, words,
};
use retrie_backends::BackendDescriptor;
use retrie_pipeline::testkit::{TestRules, write_blocks};
use retrie_state_testkit::sample;
use serde_json::Value;

const IMPORT_KEYS: [&str; 9] = [
    "blocks",
    "gas",
    "known_blocks",
    "reorgs",
    "roots_checked",
    "seconds",
    "side_blocks",
    "tip",
    "txs",
];

/// Checks the shape that `import --json` promises; returns number and hash of the tip.
fn tip(report: &Value) -> (u64, &str) {
    let mut found = keys(report);
    // Present on a machine whose limit was measured.
    found.retain(|key| *key != "of_limit");
    assert_eq!(found, IMPORT_KEYS);
    for count in ["blocks", "txs", "gas", "roots_checked"] {
        assert!(report[count].is_u64(), "{count}: {report}");
    }
    assert!(report["seconds"].is_f64());
    assert_eq!(keys(&report["tip"]), ["hash", "number", "stateRoot"]);
    (report["tip"]["number"].as_u64().unwrap(), report["tip"]["hash"].as_str().unwrap())
}

#[test]
fn exported_chain_is_what_was_imported_on_every_backend() {
    let rules = [TestRules::Frontier, TestRules::Byzantium, TestRules::Prague];
    for (rules, backend) in rules.into_iter().zip(["mpt", "raw", "raw --referee mpt"]) {
        let (scene, blocks) = TestFolder::with_chain(rules, 8);
        let head = blocks[7].header.hash_slow().to_string();
        let more = format!("--state-backend {backend} --json {}", scene.at("report.json"));
        let printed = succeeds(&mut scene.import("chain.rlp", &more));
        assert!(printed.contains("imported 8 blocks") && printed.contains(&head), "{printed}");
        let report = scene.json("report.json");
        assert_eq!(tip(&report), (8, &*head));
        assert_eq!(report["blocks"], 8);
        let transactions: usize = blocks.iter().map(|block| block.body.transactions.len()).sum();
        assert_eq!(report["txs"], transactions);
        assert_eq!(report["gas"], blocks.iter().map(|block| block.header.gas_used).sum::<u64>());
        assert_eq!(report["roots_checked"], if backend == "raw" { 0 } else { 8 });
        assert_eq!(report["tip"]["stateRoot"], blocks[7].header.state_root.to_string());

        // The whole chain with genesis, a range of it, and a gzipped file.
        let export = |args: &str, file: &str| {
            let mut command = retrie(["export", "--datadir", &scene.at("data")]);
            succeeds(command.args(words(args)).arg(scene.at(file)));
            std::fs::read(scene.path(file)).unwrap()
        };
        let whole = export("", "whole.rlp");
        let original = std::fs::read(scene.path("chain.rlp")).unwrap();
        assert!(whole.ends_with(&original));
        assert_eq!(export("--from 1", "part.rlp"), original);
        export("--from 3 --to 8", "end.rlp.gz");
        export("--from 0 --to 2", "begin.rlp");

        // Imported again, from two files, into another datadir.
        let again = scene.import("begin.rlp end.rlp.gz", &more);
        let args: Vec<_> = again.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect();
        let elsewhere: Vec<_> =
            args.iter().map(|arg| arg.replace(&scene.at("data"), &scene.at("other"))).collect();
        succeeds(&mut retrie(&elsewhere));
        assert_eq!(tip(&scene.json("report.json")), (8, &*head));
        let mut command = retrie(["export", "--datadir", &scene.at("other"), &scene.at("2.rlp")]);
        succeeds(&mut command);
        assert_eq!(std::fs::read(scene.path("2.rlp")).unwrap(), whole);
    }
}

#[test]
fn one_root_is_checked_for_many_blocks_where_the_backend_allows_it() {
    for (backend, roots) in [("mpt", 6), ("prefix", 20), ("raw --referee mpt", 6), ("raw", 0)] {
        let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
        let more = format!(
            "--state-backend {backend} --retention 5 --check-roots batch --json {}",
            scene.at("report.json")
        );
        succeeds(&mut scene.import("chain.rlp", &more));
        let report = scene.json("report.json");
        assert_eq!((tip(&report).0, &report["blocks"]), (20, &Value::from(20)), "{backend}");
        assert_eq!(report["roots_checked"], roots, "{backend}");
        let verified = succeeds(&mut retrie(["db", "verify", "--datadir", &scene.at("data")]));
        assert!(verified.contains("nothing is wrong"), "{backend}: {verified}");
    }
}

#[test]
fn init_creates_once_and_stats_tell_what_is_there() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 5);
    let init = || {
        let mut command = retrie(["init", "--chain", &scene.at("genesis.json")]);
        command.args(["--datadir", &scene.at("data")]);
        command
    };
    let printed = succeeds(&mut init());
    let genesis = blocks[0].header.parent_hash.to_string();
    assert!(printed.contains(&genesis) && printed.contains("at block #0"), "{printed}");
    succeeds(&mut scene.import("chain.rlp", ""));
    let printed = succeeds(&mut init());
    assert!(printed.contains("at block #5"), "an existing datadir is left as it is: {printed}");

    let stats = ["db", "stats", "--datadir", &scene.at("data")];
    let printed = succeeds(&mut retrie(stats));
    assert!(printed.contains("backend mpt (state root header)"), "{printed}");
    assert!(printed.contains(&blocks[4].header.state_root.to_string()), "{printed}");
    succeeds(retrie(stats).args(["--json", &scene.at("stats.json")]));
    let stats = scene.json("stats.json");
    assert_eq!(stats["chain_id"], 7331);
    assert_eq!(
        (stats["backend"].as_str(), stats["state_root"].as_str()),
        (Some("mpt"), Some("header"))
    );
    assert_eq!(stats["state"]["block"], 5);
    let tables = stats["tables"].as_array().unwrap();
    let headers = tables.iter().find(|table| table["name"] == "Headers").unwrap();
    assert_eq!(headers["rows"], 6);
}

#[test]
fn backends_with_a_history_of_their_own_read_all_of_it() {
    let has_history = |one: &&BackendDescriptor| (one.small)().extensions().history.is_some();
    for backend in retrie_backends::all().filter(has_history).map(|one| one.name) {
        let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
        let more = format!("--retention 3 --state-backend {backend}");
        succeeds(&mut scene.import("chain.rlp", &more));
        let printed = succeeds(&mut retrie(["db", "stats", "--datadir", &scene.at("data")]));
        assert!(printed.contains("states can be read from block 0 on"), "{backend}: {printed}");
    }
}

/// A commit prunes only blocks that were durable before it, so there are several imports.
#[test]
fn pruning_flags_bound_what_is_kept_of_the_past() {
    let last = "--prune.state-history.distance 6 --prune.receipts.distance 8";
    let none = "--prune.account-history.distance 6 --prune.receipts.full";
    for (flags, first_readable, receipts_of) in [
        ("", 0, 20),
        ("--full", 0, 20),
        (last, 14, 9),
        (none, 14, 4),
        ("--prune.state-history.full --prune.receipts.before 15", 20, 6),
    ] {
        let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 20);
        for to in [10, 15, 20] {
            let more = format!("--retention 3 --state-backend raw --to {to} {flags}");
            succeeds(&mut scene.import("chain.rlp", &more));
        }
        let stats = ["db", "stats", "--datadir", &scene.at("data")];
        let printed = succeeds(retrie(stats).args(["--json", &scene.at("stats.json")]));
        let readable = format!("states can be read from block {first_readable} on");
        assert!(printed.contains(&readable), "{flags}: {printed}");
        let stats = scene.json("stats.json");
        assert_eq!(stats["state"]["first_readable"], first_readable, "{flags}");
        let tables = stats["tables"].as_array().unwrap();
        let receipts = tables.iter().find(|table| table["name"] == "Receipts").unwrap();
        let kept = &blocks[blocks.len() - receipts_of..];
        let expected: usize = kept.iter().map(|block| block.body.transactions.len()).sum();
        assert_eq!(receipts["rows"], expected, "{flags}");
        let mut verify = retrie(["db", "verify", "--chain", &scene.at("genesis.json")]);
        let printed = succeeds(verify.args(["--datadir", &scene.at("data")]));
        assert!(printed.contains("nothing is wrong"), "{flags}: {printed}");
    }
}

#[test]
fn bodies_and_lookup_of_old_blocks_go_as_the_flags_say() {
    // Blocks that keep their bodies (without genesis), their receipts, their rows in the lookup
    // table.
    for (rules, flags, bodies, receipts, lookup) in [
        (TestRules::Byzantium, "--prune.bodies.distance 8", 9, 9, 9),
        (TestRules::Byzantium, "--prune.bodies.distance 2", 8, 8, 8),
        (TestRules::Byzantium, "--prune.bodies.before 15 --prune.receipts.full", 8, 4, 8),
        (TestRules::Cancun, "--prune.bodies.pre-merge --full", 20, 20, 20),
        (TestRules::Byzantium, "--prune.transaction-lookup.full", 20, 20, 4),
        (TestRules::Byzantium, "--prune.transaction-lookup.before 15", 20, 20, 6),
    ] {
        let (scene, blocks) = TestFolder::with_chain(rules, 20);
        for to in [10, 20] {
            let more = format!("--retention 3 --state-backend raw --to {to} {flags}");
            succeeds(&mut scene.import("chain.rlp", &more));
        }
        let mut stats = retrie(["db", "stats", "--datadir", &scene.at("data")]);
        succeeds(stats.args(["--json", &scene.at("stats.json")]));
        let stats = scene.json("stats.json");
        let rows = |name: &str| {
            let tables = stats["tables"].as_array().unwrap();
            let table = tables.iter().find(|table| table["name"] == name).unwrap();
            table["rows"].as_u64().unwrap() as usize
        };
        let transactions = |last: usize| -> usize {
            blocks[20 - last..].iter().map(|block| block.body.transactions.len()).sum()
        };
        assert_eq!(rows("Headers"), 21, "{flags}");
        assert_eq!(rows("Bodies"), bodies + 1, "{flags}");
        assert_eq!(rows("Transactions"), transactions(bodies), "{flags}");
        assert_eq!(rows("Receipts"), transactions(receipts), "{flags}");
        assert_eq!(rows("TxLookup"), transactions(lookup), "{flags}");
        let mut verify = retrie(["db", "verify", "--chain", &scene.at("genesis.json")]);
        let printed = succeeds(verify.args(["--datadir", &scene.at("data")]));
        assert!(printed.contains("nothing is wrong"), "{flags}: {printed}");
        let mut export = retrie(["export", "--from", "5", "--datadir", &scene.at("data")]);
        export.arg(scene.at("out.rlp"));
        if bodies == 20 {
            succeeds(&mut export);
        } else {
            fails_saying(&mut export, &["the body of block 5 is not kept"]);
        }
    }
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 2);
    let merge = "--prune.bodies.pre-merge";
    fails_saying(&mut scene.import("chain.rlp", merge), &["--prune.bodies.before"]);
}

#[test]
fn json_on_stdout_stands_alone() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 2);
    let printed = succeeds(&mut scene.import("chain.rlp", "--json -"));
    assert_eq!(tip(&serde_json::from_str(&printed).unwrap()).0, 2);
    let mut stats = retrie(["db", "stats", "--json", "-", "--datadir", &scene.at("data")]);
    serde_json::from_str::<Value>(&succeeds(&mut stats)).unwrap();
}

#[test]
fn side_chain_of_a_file_wins_by_total_difficulty() {
    let scene = TestFolder::new();
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let trunk = *chain.branch(genesis, 3, 12, 0).last().unwrap();
    let slow = *chain.branch(trunk, 8, 1000, 1).last().unwrap();
    let fast = *chain.branch(trunk, 7, 5, 2).last().unwrap();
    let file =
        [chain.path(genesis, trunk), chain.path(trunk, slow), chain.path(trunk, fast)].concat();
    scene.write("genesis.json", &chain.genesis_json);
    write_blocks(&scene.path("fork.rlp"), &file);
    let json = format!("--json {}", scene.at("report.json"));
    let printed = succeeds(&mut scene.import("fork.rlp", &json));
    assert!(printed.contains("1 blocks reorged the chain"), "{printed}");
    let report = scene.json("report.json");
    assert_eq!(tip(&report), (10, &*fast.to_string()));
    assert_eq!((&report["reorgs"], &report["blocks"]), (&1.into(), &18.into()));
    // Only canonical blocks are exported.
    let exported = scene.at("out.rlp");
    succeeds(&mut retrie(["export", "--from", "1", "--datadir", &scene.at("data"), &exported]));
    write_blocks(&scene.path("expected.rlp"), &chain.path(genesis, fast));
    let [exported, expected] =
        ["out.rlp", "expected.rlp"].map(|name| std::fs::read(scene.path(name)).unwrap());
    assert_eq!(exported, expected);
}

#[test]
fn first_mainnet_blocks_import_on_every_backend() {
    let Some(mainnet) = mainnet() else { return };
    let era1 = mainnet_blocks(&mainnet)[0].to_str().unwrap().to_owned();
    let mut all = checked_backends();
    all.push("raw".into());
    for (n, backend) in all.into_iter().enumerate() {
        let checked = if backend == "raw" { 0 } else { 600 };
        let scene = TestFolder::new();
        let json = scene.at("report.json");
        let line = format!(
            "import --chain mainnet --state-backend {backend} --datadir {} --to 600 --json {json} {era1}",
            scene.at("data")
        );
        succeeds(&mut retrie(words(&line)));
        let report = scene.json("report.json");
        assert_eq!(tip(&report), (600, MAINNET_600));
        assert_eq!(
            (&report["blocks"], &report["txs"], &report["roots_checked"]),
            (&600.into(), &0.into(), &checked.into())
        );
        // A folder: the import continues where it stopped.
        let line = line.replace("--to 600", "--from 601 --to 900");
        succeeds(&mut retrie(words(&line)));
        assert_eq!(tip(&scene.json("report.json")).0, 900);
        // The rest of the file.
        if !sample::takes(n, 9) {
            continue;
        }
        let mut beyond = retrie(words(&line.replace("--to 900", "--to 9000")));
        fails_saying(&mut beyond, &["the files end at block 8191", "9000"]);
        assert_eq!(scene.head("data").0, 8191);
    }
}

/// A pipe was once opened three times: the data read was lost, and the last open never returned.
#[cfg(unix)]
#[test]
fn blocks_come_from_pipes() {
    use std::{io::Write, process::Stdio};
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 8);
    let rlp = std::fs::read(scene.path("chain.rlp")).unwrap();
    let import = |path: &str, data: &str, bytes: &[u8]| {
        let mut command = retrie(["import", "--quiet", "--chain", &scene.at("genesis.json")]);
        command.args(["--datadir", &scene.at(data), path]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A process that ended early does not read the pipe.
        let _ = child.stdin.take().unwrap().write_all(bytes);
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (data, bytes) in [("plain", rlp.clone()), ("gzipped", crate::common::gzip(&rlp))] {
        assert_eq!(import("/dev/stdin", data, &bytes), (Some(0), String::new()), "{data}");
        assert_eq!(scene.head(data).0, 8);
    }
    // A pipe works under any file name and with any writer.
    let fifo = scene.at("blocks.rlp");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let writer = std::thread::spawn({
        let (fifo, rlp) = (fifo.clone(), rlp.clone());
        move || std::fs::write(fifo, rlp).unwrap()
    });
    assert_eq!(import(&fifo, "named", b""), (Some(0), String::new()));
    writer.join().unwrap();
    assert_eq!(scene.head("named").0, 8);
    for (bytes, what) in [
        (&b""[..], "contains no block"),
        (b"e2\0\0\0\0\0\0", "into a file first"),
        (b"{}", "into a file first"),
        (&rlp[..rlp.len() - 1], "the data ends inside a block"),
    ] {
        let (code, error) = import("/dev/stdin", "bad", bytes);
        assert_eq!(code, Some(1));
        assert!(error.contains("/dev/stdin") && error.contains(what), "{error}");
    }
    assert_eq!(scene.head("bad").0, 7, "what came before the damage is kept");
    fails_saying(retrie(["replay", "/dev/stdin"]).stdin(Stdio::piped()), &["a pipe"]);
}
