//! Imports that are stopped and continued. For kills see `kill_loop.rs`.

use crate::common::{
    MAINNET_20999, TestFolder, fails, mainnet, mainnet_blocks, retrie, signal, succeeds,
};
use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Starts a command, calls `wait`, and sends a signal. `None` if the command had ended before.
fn interrupted(command: &mut Command, wait: impl FnOnce(), name: &str) -> Option<Output> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait();
    if child.try_wait().unwrap().is_some() {
        return None;
    }
    signal(&child, name);
    Some(child.wait_with_output().unwrap())
}

/// Waits until the state is beyond a block.
fn beyond(scene: &TestFolder, block: u64) {
    let begin = Instant::now();
    while scene.head_beside("data").is_none_or(|number| number <= block) {
        assert!(begin.elapsed() < Duration::from_secs(60), "no progress beyond block {block}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn mainnet_import(scene: &TestFolder, more: &[&str]) -> Option<Command> {
    let mut command = retrie(["import", "--datadir", &scene.at("data")]);
    command.args(more).args(mainnet_blocks(&mainnet()?));
    Some(command)
}

#[test]
fn stopped_import_ends_at_a_block_and_goes_on() {
    let scene = TestFolder::new();
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
fn two_imports_at_once_exclude_each_other() {
    let scene = TestFolder::new();
    let Some(mut first) = mainnet_import(&scene, &[]) else { return };
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    beyond(&scene, 0);
    let line = fails(&mut mainnet_import(&scene, &[]).unwrap());
    assert!(line.contains(&format!("process {}", first.id())), "{line}");
    signal(&first, "INT");
    assert_eq!(first.wait().unwrap().code(), Some(1));
}
