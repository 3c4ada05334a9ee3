//! `prefix` on the command line: its history, which can be changed at any time, and its layout,
//! which cannot.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use retrie_pipeline::testkit::TestRules;
use std::process::Command;

fn on_data(scene: &TestFolder, line: &str) -> Command {
    let mut command = retrie(words(line));
    command.args(["--chain", &scene.at("genesis.json"), "--datadir", &scene.at("data")]);
    command
}

/// Executes the blocks above `block` again, which starts from its state.
fn from_state_of(scene: &TestFolder, block: u64) -> Command {
    on_data(scene, &format!("re-execute --from {}", block + 1))
}

#[test]
fn history_is_kept_as_the_flag_of_the_day_says() {
    let (scene, _) = TestFolder::with_chain(TestRules::Cancun, 60);
    let import = |keep: &str, to: u64| {
        let flags = format!("--state-backend prefix --prefix.keep-history {keep} --retention 3");
        succeeds(&mut scene.import("chain.rlp", &format!("{flags} --to {to}")));
    };
    import("all", 20);
    succeeds(&mut from_state_of(&scene, 0));
    // With a shorter history, the error names the lost state, and a longer one does not bring it
    // back.
    import("10", 30);
    succeeds(&mut from_state_of(&scene, 20));
    fails_saying(&mut from_state_of(&scene, 10), &["10", "blocks 20 to 30"]);
    import("all", 50);
    succeeds(&mut from_state_of(&scene, 20));
    fails_saying(&mut from_state_of(&scene, 19), &["blocks 20 to 50"]);
    // The history covers at least the retention window.
    import("0", 60);
    succeeds(&mut from_state_of(&scene, 57));
    fails_saying(&mut from_state_of(&scene, 56), &["blocks 57 to 60"]);
    succeeds(&mut on_data(&scene, "db verify"));
}

#[test]
fn a_datadir_keeps_its_layout() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
    let import =
        |flags: &str| scene.import("chain.rlp", &format!("--state-backend prefix {flags}"));
    succeeds(&mut import("--prefix.order hash --prefix.pad 64 --to 10"));
    fails_saying(&mut import("--prefix.order path"), &["hash,pad=64", "path,pad=64"]);
    succeeds(&mut import(""));
    succeeds(&mut on_data(&scene, "db verify"));
    assert_eq!(scene.head("data").0, 20);
}
