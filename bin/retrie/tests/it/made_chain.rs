//! Generated chains on the command line: `replay` without a path, and `bench make-chain`.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use retrie_state_testkit::sample;
use serde_json::Value;
use std::process::Command;

/// Replays the built-in chain with more arguments, and writes `report.json`.
fn replay(scene: &TestFolder, more: &str) -> Command {
    let mut command = retrie(["replay", "--json", &scene.at("report.json"), "--sync", "none"]);
    command.args(words(more));
    command
}

/// Generates a small chain into the test's folder `made`.
fn make_chain(scene: &TestFolder, more: &str) -> Command {
    let mut command = retrie(["bench", "make-chain", "--txs", "20"]);
    command.args(words(more)).arg(scene.at("made"));
    command
}

#[test]
fn replay_without_path_runs_the_built_in_chain_on_every_backend() {
    let scene = TestFolder::new();
    let printed = succeeds(&mut replay(&scene, "--to 12"));
    assert!(printed.contains("built-in chain") && printed.contains("retrie download"), "{printed}");
    assert!(printed.contains("TPS") && !printed.contains("FAILED"), "{printed}");
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|one| one["backend"].as_str().unwrap()).collect();
    assert_eq!(names, retrie_backends::names(), "each under its own name, once");
    for name in retrie_backends::names() {
        let rows = printed.lines().filter(|line| line.split_whitespace().next() == Some(name));
        assert_eq!(rows.count(), 1, "one row of {name}: {printed}");
    }
    for result in results {
        assert_eq!((&result["ok"], &result["blocks"]), (&true.into(), &12.into()));
        assert_eq!(result["txs"], results[0]["txs"]);
        assert!(result["tps"].as_f64().unwrap() > 0.0);
    }
    let root = |report: &Value, backend: &str| -> String {
        let results = report["results"].as_array().unwrap();
        let one = results.iter().find(|one| one["backend"] == backend).unwrap();
        one["root"].as_str().unwrap().to_owned()
    };
    let header_root = root(&report, "mpt");

    // A part of the chain, on another backend: the blocks before it run, but are not measured.
    let whole = results[0]["txs"].as_u64().unwrap();
    succeeds(&mut replay(&scene, "--state-backend mpt --from 8 --to 12"));
    let report = scene.json("report.json");
    let part = &report["results"][0];
    assert_eq!((&part["from"], &part["to"], &part["blocks"]), (&8.into(), &12.into(), &5.into()));
    assert!(part["txs"].as_u64().unwrap() < whole);
    assert_eq!(root(&report, "mpt"), header_root);

    // A padded state has another root, which is in no header.
    succeeds(&mut replay(
        &scene,
        "--pad-accounts 1k --state-cache none --state-backend mpt,raw --from 3 --to 12",
    ));
    let report = scene.json("report.json");
    assert_eq!(report["results"][0]["ok"], true);
    assert_ne!(root(&report, "mpt"), header_root);
}

#[test]
fn made_chain_is_imported_to_the_head_it_was_made_with() {
    let scene = TestFolder::new();
    let printed = succeeds(&mut make_chain(&scene, "--blocks 15 --seed 9"));
    let after = |text: &str, word: &str| -> String {
        let rest = text.split(word).nth(1).unwrap_or_else(|| panic!("{text}"));
        rest.trim_start().chars().take_while(|c| c.is_ascii_alphanumeric()).collect()
    };
    let (head, root) = (after(&printed, "; head"), after(&printed, "state root"));
    for (index, more) in
        ["", "--state-backend raw --referee mpt", "--state-backend raw"].into_iter().enumerate()
    {
        let mut import = retrie(["import", "--chain", &scene.at("made/genesis.json")]);
        import.args(["--datadir", &scene.at(&format!("data{index}")), "--json", "-"]);
        import.args(words(more)).arg(scene.at("made/chain.rlp"));
        let report: Value = serde_json::from_str(&succeeds(&mut import)).unwrap();
        assert_eq!(report["blocks"], 15);
        assert_eq!(report["tip"]["hash"], *head, "{more}");
        assert_eq!(report["tip"]["stateRoot"], *root, "{more}");
        let checked = if more == "--state-backend raw" { 0 } else { 15 };
        assert_eq!(report["roots_checked"], checked, "{more}");
    }
    let again = ["chain.rlp", "genesis.json"].map(|name| {
        let line = fails_saying(&mut make_chain(&scene, "--blocks 15"), &["exists already"]);
        std::fs::remove_file(scene.path("made").join(name)).unwrap();
        line
    });
    assert!(again[0].contains("genesis.json") && again[1].contains("genesis.json"), "{again:?}");
    // The same recipe gives the same bytes, another seed does not.
    let bytes = |more: &str| {
        succeeds(&mut make_chain(&scene, more));
        let bytes = std::fs::read(scene.path("made/chain.rlp")).unwrap();
        std::fs::remove_dir_all(scene.path("made")).unwrap();
        bytes
    };
    let first = bytes("--blocks 5 --seed 9");
    assert_eq!(first, bytes("--blocks 5 --seed 9"));
    assert_ne!(first, bytes("--blocks 5 --seed 10"));
}

/// Regression: tests had short chains or preloaded states, so they missed that `lmpt` could not add
/// block 2,001 of any new chain, the first block that needs a merge of many keys. This chain is
/// longer than twice the interval of any store's background work, and every store runs with default
/// flags.
#[test]
fn an_ordinary_chain_of_2100_blocks_is_imported_into_every_store() {
    let scene = TestFolder::new();
    let mut make = retrie(words("bench make-chain --blocks 2100 --gas-target 60000"));
    let printed = succeeds(make.arg(scene.at("made")));
    let names = retrie_backends::names();
    let is_taken = |(n, name): &(usize, &str)| *name == "lmpt" || sample::takes(*n, 4);
    for (_, name) in names.into_iter().enumerate().filter(is_taken) {
        let (genesis, chain) = (scene.at("made/genesis.json"), scene.at("made/chain.rlp"));
        let data = scene.at(name);
        let mut import = retrie(["import", "--chain", &genesis, "--datadir", &data, "--json", "-"]);
        import.args(["--state-backend", name, &chain]);
        let report: Value = serde_json::from_str(&succeeds(&mut import)).unwrap();
        assert_eq!(report["tip"]["number"], 2100, "{name}");
        let head = report["tip"]["hash"].as_str().unwrap();
        assert!(printed.contains(head), "{name}: {head}, not that of {printed}");
        // Rebuilds the root from the values.
        let found = succeeds(&mut retrie(["db", "verify", "--datadir", &data]));
        assert!(found.contains("nothing is wrong"), "{name}: {found}");
        std::fs::remove_dir_all(data).unwrap();
    }
}

/// The import follows side branches and reorgs back: the result is the chain without them.
#[test]
fn a_chain_with_side_branches_is_the_chain_without_them() {
    let scene = TestFolder::new();
    succeeds(&mut make_chain(&scene, "--blocks 40 --side-branches 5"));
    let import = |file: &str, backend: &str| -> Value {
        let mut import =
            retrie(["import", "--chain", &scene.at("made/genesis.json"), "--json", "-"]);
        import.args(["--datadir", &scene.at(&format!("{backend}-{file}"))]);
        import.args(["--state-backend", backend]).arg(scene.at(&format!("made/{file}.rlp")));
        serde_json::from_str(&succeeds(&mut import)).unwrap()
    };
    for backend in ["mpt", "lmpt"] {
        let (straight, branched) = (import("chain", backend), import("branches", backend));
        assert_eq!(straight["tip"], branched["tip"], "{backend}");
        assert_eq!(straight["reorgs"], 0);
        assert!(branched["reorgs"].as_u64().unwrap() > 2, "{branched}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let scene = TestFolder::new();
    for (more, says) in [
        ("--blocks 0", "--blocks"),
        ("--mix transfers=0", "mix is empty"),
        ("--accounts 0", "accounts"),
    ] {
        fails_saying(&mut make_chain(&scene, more), &[says]);
        assert!(!scene.path("made").exists());
    }
    let refused_by_clap = |command: &mut Command, says: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(says), "{stderr}");
    };
    refused_by_clap(&mut make_chain(&scene, "--mix swap=1"), "swap");
    refused_by_clap(&mut make_chain(&scene, "--gas-target 1000000"), "--txs");
    refused_by_clap(&mut replay(&scene, "--chain sepolia"), "PATH");
    let mut high = retrie(["bench", "make-chain", "--gas-target", "2000000000", &scene.at("made")]);
    fails_saying(&mut high, &["gas target", "1 billion"]);
    fails_saying(&mut replay(&scene, "--from 9 --to 8"), &["9 to 8", "built-in chain"]);
}
