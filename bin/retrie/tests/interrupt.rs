//! Imports that are stopped, or killed at any moment, and go on.

mod common;

use common::{
    MAINNET_20999, Scene, fails, mainnet, mainnet_blocks, retrie, signal, succeeds, test_chain,
};
use retrie_pipeline::testkit::{Rules, write_blocks};
use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Starts a command, waits until it goes on, and sends a signal. `None` if it had ended before.
fn interrupted(command: &mut Command, wait: impl FnOnce(), name: &str) -> Option<Output> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait();
    if child.try_wait().unwrap().is_some() {
        return None;
    }
    signal(&child, name);
    Some(child.wait_with_output().unwrap())
}

/// Waits until the state of a scene is beyond a block.
fn beyond(scene: &Scene, block: u64) {
    let begin = Instant::now();
    while scene.head_beside("data").is_none_or(|number| number <= block) {
        assert!(begin.elapsed() < Duration::from_secs(60), "no progress beyond block {block}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn mainnet_import(scene: &Scene, more: &[&str]) -> Option<Command> {
    let mut command = retrie(["import", "--datadir", &scene.at("data")]);
    command.args(more).args(mainnet_blocks(&mainnet()?));
    Some(command)
}

#[test]
fn stopped_import_ends_at_a_block_and_goes_on() {
    let scene = Scene::new();
    let report = scene.at("report.json");
    let mut number = 0;
    for name in ["INT", "TERM"] {
        let Some(mut command) = mainnet_import(&scene, &["--json", &report]) else { return };
        let output = interrupted(&mut command, || beyond(&scene, number), name);
        let output = output.expect("20,999 blocks take longer than a few commits");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("stopping at the next block"), "{stderr}");
        let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        number = scene.json("report.json")["tip"]["number"].as_u64().unwrap();
        assert_eq!(errors.len(), 1, "{stderr}");
        assert!(errors[0].contains(&format!("stopped at block {number}")), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert!(0 < number && number < 20_999, "{number}");
        assert_eq!(scene.head("data").0, number, "what was reported is durable");
    }
    succeeds(&mut mainnet_import(&scene, &["--json", &report]).unwrap());
    assert_eq!(scene.json("report.json")["tip"]["hash"], MAINNET_20999);
}

#[test]
fn killed_import_goes_on_to_the_same_root() {
    let scene = Scene::new();
    let mut head = 0;
    // Without syncing too: only the machine can lose what a process has handed over.
    for (milliseconds, sync) in [(3, "durable"), (170, "none"), (110, "durable"), (40, "none")] {
        let more = ["--state-backend", "raw", "--referee", "mpt", "--db.sync-mode", sync];
        let Some(mut command) = mainnet_import(&scene, &more) else { return };
        let wait = || {
            beyond(&scene, head);
            std::thread::sleep(Duration::from_millis(milliseconds));
        };
        if let Some(output) = interrupted(&mut command, wait, "KILL") {
            assert_eq!(output.status.signal(), Some(9));
        }
        let (number, _) = scene.head("data");
        assert!(number > head, "a commit was lost: {number} after {head}");
        head = number;
    }
    let report = scene.at("report.json");
    let more = ["--state-backend", "raw", "--referee", "mpt", "--json", &report];
    succeeds(&mut mainnet_import(&scene, &more).unwrap());
    let report = scene.json("report.json");
    assert_eq!(report["tip"]["hash"], MAINNET_20999);
    assert_eq!(report["roots_checked"].as_u64().unwrap() + head, 20_999);
}

/// Two branches that overtake each other, so that some kill falls into a reorg.
#[test]
fn killed_reorgs_end_on_the_heaviest_branch() {
    let mut chain = test_chain(Rules::Byzantium);
    let genesis = chain.genesis();
    let trunk = *chain.branch(genesis, 20, 12, 0).last().unwrap();
    let [mut left, mut right] = [trunk, trunk];
    let mut file = chain.path(genesis, trunk);
    for round in 0..10 {
        // Each time three more blocks than the other side had.
        let count = if round == 0 { 2 } else { 4 };
        let left_tip = *chain.branch(left, count, 12, 1).last().unwrap();
        let right_tip = *chain.branch(right, 4, 12, 2).last().unwrap();
        file.extend(chain.path(left, left_tip));
        file.extend(chain.path(right, right_tip));
        (left, right) = (left_tip, right_tip);
    }
    let winner = [left, right].into_iter().max_by_key(|tip| chain.total_difficulty(*tip)).unwrap();
    let root = chain.block(winner).header.state_root.to_string();
    let number = chain.block(winner).header.number;

    let scene = Scene::new();
    scene.write("genesis.json", &chain.genesis_json);
    write_blocks(&scene.path("chain.rlp"), &file);
    let mut whole = scene.import("chain.rlp", "");
    let begin = Instant::now();
    succeeds(&mut whole);
    let took = begin.elapsed();
    assert_eq!(scene.head("data"), (number, root.clone()));
    let mut killed = 0;
    for part in [1, 3, 5, 7, 9, 11] {
        std::fs::remove_dir_all(scene.path("data")).unwrap();
        for after in [part, 12 - part] {
            let mut command = scene.import("chain.rlp", "--db.sync-mode none");
            let wait = || std::thread::sleep(took * after / 12);
            let output = interrupted(&mut command, wait, "KILL");
            killed += u32::from(output.is_some());
        }
        succeeds(&mut scene.import("chain.rlp", ""));
        assert_eq!(scene.head("data"), (number, root.clone()), "killed at {part}/12");
    }
    assert!(killed > 3, "only {killed} of 12 imports were still running");
}

#[test]
fn two_imports_at_once_exclude_each_other() {
    let scene = Scene::new();
    let Some(mut first) = mainnet_import(&scene, &[]) else { return };
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    beyond(&scene, 0);
    let line = fails(&mut mainnet_import(&scene, &[]).unwrap());
    assert!(line.contains(&format!("process {}", first.id())), "{line}");
    signal(&first, "INT");
    assert_eq!(first.wait().unwrap().code(), Some(1));
}
