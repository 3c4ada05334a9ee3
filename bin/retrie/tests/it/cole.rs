//! `cole` on the command line: its flags, which are stored in the datadir, and its files, which `db
//! verify` reads.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use retrie_pipeline::{state_folder, testkit::TestRules};
use std::{collections::BTreeMap, process::Command};

/// Small limits, so that a flush or merge happens every few blocks.
const SMALL: &str = "--cole.memory-pairs 40 --cole.size-ratio 2";

fn on_data(scene: &TestFolder, line: &str) -> Command {
    let mut command = retrie(words(line));
    command.args(["--chain", &scene.at("genesis.json"), "--datadir", &scene.at("data")]);
    command
}

/// The files of the state, by name.
fn files(scene: &TestFolder) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(state_folder(&scene.path("data"), false)).unwrap();
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

/// The output of `db verify`, and its findings.
fn verify(scene: &TestFolder) -> (Option<i32>, Vec<String>) {
    let mut command = on_data(scene, "db verify");
    let code = command.args(["--json", &scene.at("verify.json")]).output().unwrap().status.code();
    let report = scene.json("verify.json");
    let findings = report["findings"].as_array().unwrap();
    (code, findings.iter().map(|line| line.as_str().unwrap().to_owned()).collect())
}

#[test]
fn damaged_and_missing_files_are_named_and_nothing_else_is_touched() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 60);
    // Without undo and running merges, all files belong to the durable tip.
    let flags = format!("--state-backend cole-sync {SMALL} --retention 0");
    succeeds(&mut scene.import("chain.rlp", &flags));
    assert_eq!(verify(&scene), (Some(0), Vec::new()));
    let whole = files(&scene);
    let named = scene.json("verify.json")["states"][0]["files"].as_u64().unwrap();
    assert_eq!(named, whole.len() as u64);
    assert!(whole.len() >= 8 && whole.len().is_multiple_of(4), "{:?}", whole.keys());
    let folder = state_folder(&scene.path("data"), false);
    for (name, bytes) in &whole {
        let path = folder.join(name);
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 0x10;
        let cut = &bytes[..bytes.len() - 1];
        for content in [Some(&damaged[..]), Some(cut), None] {
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let before = files(&scene);
            let (code, findings) = verify(&scene);
            assert_eq!(code, Some(1), "{name}: {findings:?}");
            assert!(findings.iter().any(|line| line.contains(name)), "{name}: {findings:?}");
            assert!(files(&scene) == before, "{name}: the check has changed files");
        }
        // A failed import without the file changes no files either.
        let before = files(&scene);
        fails_saying(&mut scene.import("chain.rlp", "--state-backend cole"), &[name]);
        assert!(files(&scene) == before, "{name}: opening has changed files");
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(verify(&scene), (Some(0), Vec::new()));
}

#[test]
fn merges_under_way_are_found_again() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Prague, 80);
    let import = |to: u64| {
        let flags = format!("--state-backend cole {SMALL} --retention 4 --to {to}");
        scene.import("chain.rlp", &flags)
    };
    let mut roots = Vec::new();
    for to in (5..=80).step_by(5) {
        succeeds(&mut import(to));
        assert_eq!(verify(&scene), (Some(0), Vec::new()), "block {to}");
        roots.push(scene.head("data"));
    }
    // The same as after an uninterrupted import.
    std::fs::remove_dir_all(scene.path("data")).unwrap();
    succeeds(&mut import(80));
    assert_eq!(roots.last(), Some(&scene.head("data")));
    assert_eq!(roots.last().map(|(number, _)| *number), Some(blocks.len() as u64));
}

#[test]
fn parameters_are_settled_when_a_datadir_is_made() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
    let import = |flags: &str| scene.import("chain.rlp", &format!("--state-backend {flags}"));
    for (flag, says) in [
        ("--cole.size-ratio 1", "2 to 64"),
        ("--cole.fanout 65", "2 to 64"),
        ("--cole.epsilon 33", "1 to 32"),
        ("--cole.memory-pairs 0", "1 to 2^32"),
    ] {
        fails_saying(&mut import(&format!("cole {flag}")), &["cole", says]);
        assert!(!scene.path("data").exists(), "{flag}");
    }
    succeeds(&mut import(&format!("cole {SMALL}")));
    let head = scene.head("data");
    // Reopened without flags, and with other flags.
    for flags in ["", "--cole.memory-pairs 7 --cole.async-merge false"] {
        succeeds(&mut on_data(&scene, "stage unwind --to 10"));
        let output = import(&format!("cole {flags}")).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(stderr.contains("these are ignored"), !flags.is_empty(), "{stderr}");
        assert_eq!(scene.head("data"), head, "{flags}");
    }
    fails_saying(&mut import("raw"), &["backend cole, not raw"]);
    // The datadir of `cole-sync` is one of `cole`, and the same command reopens it.
    std::fs::remove_dir_all(scene.path("data")).unwrap();
    for backend in ["cole-sync", "cole-sync", "cole"] {
        let output = import(&format!("{backend} {SMALL}")).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(!stderr.contains("ignored"), "{stderr}");
    }
}

/// Every block's state is readable without flat history, and blocks execute on it.
#[test]
fn every_block_is_executed_again_on_the_states_that_cole_keeps() {
    let (scene, _) = TestFolder::with_chain(TestRules::Cancun, 50);
    for backend in ["cole", "cole-sync"] {
        let flags = format!("--state-backend {backend} {SMALL} --retention 3");
        succeeds(&mut scene.import("chain.rlp", &flags));
        let printed = succeeds(&mut on_data(&scene, "re-execute"));
        assert!(printed.contains("executed 50 blocks again"), "{printed}");
        std::fs::remove_dir_all(scene.path("data")).unwrap();
    }
}
