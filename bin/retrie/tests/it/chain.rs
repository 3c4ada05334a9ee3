//! Which chain a command works on: a dumped genesis file gives the same chain, and a datadir stores
//! its chain.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use retrie_db::{ChainRead, DatabaseEnv, OpenOptions};
use retrie_pipeline::testkit::TestRules;
use std::path::Path;

/// A command on the test's datadir, without the flag `--chain`.
fn on(scene: &TestFolder, line: &str) -> std::process::Command {
    let words = words(line);
    let flags = words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len());
    let (command, flags) = words.split_at(flags);
    let mut command = retrie(command);
    command.args(["--datadir", &scene.at("data")]).args(flags);
    command
}

/// A datadir in the format of an earlier version.
fn forget_chain(datadir: &Path) {
    let db = DatabaseEnv::open(datadir, &OpenOptions::default()).unwrap();
    let mut txn = db.begin_write().unwrap();
    assert!(txn.delete_note("chain").unwrap());
    txn.commit().unwrap();
}

#[test]
fn a_dumped_genesis_is_the_same_chain() {
    for name in ["mainnet", "sepolia", "holesky", "hoodi", "dev"] {
        let scene = TestFolder::new();
        let json = succeeds(&mut retrie(["dump-genesis", "--chain", name]));
        let file = scene.write("genesis.json", &json);
        let init = |chain: &str, data: &str| {
            let out =
                succeeds(&mut retrie(["init", "--chain", chain, "--datadir", &scene.at(data)]));
            let (_, hash) = out.split_once("(genesis ").unwrap();
            hash.split_once(')').unwrap().0.to_owned()
        };
        assert_eq!(init(&file, "read"), init(name, "known"), "{name}");
        let again = succeeds(&mut retrie(["dump-genesis", "--chain", &file]));
        assert_eq!(again, json, "{name}");
        // The file is that network's genesis, so the network's name opens the datadir too.
        succeeds(&mut retrie(["init", "--chain", name, "--datadir", &scene.at("read")]));
    }
}

#[test]
fn a_datadir_knows_the_chain_of_a_genesis_file() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 6);
    succeeds(&mut scene.import("chain.rlp", "--to 5"));
    let genesis = std::fs::read(scene.path("genesis.json")).unwrap();
    std::fs::remove_file(scene.path("genesis.json")).unwrap();
    let (chain, dump, blocks) = (scene.at("chain.rlp"), scene.at("dump"), scene.at("blocks"));
    let again = |line: &str| succeeds(&mut on(&scene, line));
    assert!(again("db verify").contains("nothing is wrong"));
    again("db stats");
    again(&format!("export --to 5 {blocks}"));
    again(&format!("dump-state --block 5 {dump}"));
    again("re-execute");
    again("stage unwind --to 4");
    assert!(again("init").contains("at block #4 "));
    again(&format!("import --from 0 {chain}"));
    assert_eq!(scene.head("data").0, 6);

    // Every command refuses another chain.
    let data = scene.at("data");
    for line in [
        "db verify",
        "db stats",
        "init",
        "re-execute",
        "stage unwind --to 4",
        &format!("export --to 5 {blocks}"),
        &format!("dump-state --block 5 {dump}"),
        &format!("import --from 0 {chain}"),
    ] {
        let mut other = on(&scene, line);
        other.args(["--chain", "sepolia"]);
        fails_saying(&mut other, &[&data, "not chain 11155111", "leave out --chain"]);
    }
    assert_eq!(scene.head("data").0, 6);

    // An earlier version stored no chain: commands that need its rules ask for it.
    forget_chain(&scene.path("data"));
    again("db stats");
    for line in ["db verify", "re-execute", "stage unwind --to 4", "init"] {
        fails_saying(&mut on(&scene, line), &[&data, "earlier version", "--chain"]);
    }
    let file = scene.write("again.json", genesis);
    succeeds(on(&scene, "db verify").args(["--chain", &file]));
    fails_saying(&mut on(&scene, "db verify"), &["--chain"]);
    succeeds(on(&scene, "stage unwind --to 5").args(["--chain", &file]));
    assert!(again("db verify").contains("nothing is wrong"), "kept from then on");
}

#[test]
fn a_later_file_of_the_same_genesis_brings_its_forks() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 2);
    succeeds(&mut scene.import("chain.rlp", ""));
    let genesis = std::fs::read_to_string(scene.path("genesis.json")).unwrap();
    assert!(!genesis.contains("osakaTime"));
    let later = genesis.replace("\"pragueTime\"", "\"osakaTime\":4102444800,\"pragueTime\"");
    let later = scene.write("later.json", later);
    let kept = || {
        let db = DatabaseEnv::open(scene.path("data"), &OpenOptions::read_only()).unwrap();
        db.begin_read().unwrap().spec().unwrap().to_genesis_json().unwrap()
    };
    assert!(!kept().contains("osakaTime"));
    succeeds(&mut on(&scene, &format!("init --chain {later}")));
    assert!(kept().contains("\"osakaTime\": 4102444800"));
    succeeds(&mut on(&scene, "init"));
    assert!(kept().contains("osakaTime"));
}

#[test]
fn a_datadir_of_a_known_network_is_found_by_its_genesis_block() {
    let scene = TestFolder::new();
    succeeds(&mut on(&scene, "init --chain hoodi"));
    for _ in 0..2 {
        let out = succeeds(&mut on(&scene, "db verify"));
        assert!(out.contains("nothing is wrong"), "{out}");
        let again = on(&scene, "init").output().unwrap();
        assert!(String::from_utf8(again.stdout).unwrap().contains("chain hoodi"));
        forget_chain(&scene.path("data"));
    }
    fails_saying(&mut on(&scene, "db stats --chain dev"), &["holds chain 560048"]);
}

#[test]
fn a_chain_with_roots_of_its_own_is_kept_as_its_file_has_it() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 1);
    let genesis = scene.at("genesis.json");
    let native = "--state-backend cole --state-root native";
    succeeds(&mut on(&scene, &format!("init --chain {genesis} {native}")));
    std::fs::remove_file(&genesis).unwrap();
    let out = succeeds(&mut on(&scene, "db verify"));
    assert!(out.contains("nothing is wrong"), "{out}");
    succeeds(&mut on(&scene, &format!("init {native}")));
    fails_saying(&mut on(&scene, "db verify --chain dev"), &["not chain 1337"]);
    let db = DatabaseEnv::open(scene.path("data"), &OpenOptions::read_only()).unwrap();
    let read = db.begin_read().unwrap();
    let (spec, genesis) = (read.spec().unwrap(), read.metadata().unwrap().unwrap().genesis);
    assert_ne!(spec.genesis_hash(), genesis, "the identity has the native root");
}
