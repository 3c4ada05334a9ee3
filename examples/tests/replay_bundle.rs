//! The example that replays bundles, as a user runs it.

use std::process::Command;

fn run(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_replay-bundle")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_made_bundle_is_replayed_on_both_backends() {
    let (ok, out, err) = run(&[]);
    assert!(ok, "{err}");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    for (line, name) in lines.iter().zip(["mpt", "hash-chain"]) {
        assert!(line.starts_with(&format!("{name}: block 1 (prestate), ")), "{line}");
        assert!(
            !line.contains(" 0 transactions") && line.ends_with(": as its header says"),
            "{line}"
        );
    }
}

#[test]
fn a_path_without_bundles_is_one_clear_error() {
    let (ok, _, err) = run(&["/no/such/bundle.json.gz"]);
    assert!(!ok && err.contains("/no/such/bundle.json.gz"), "{err}");
}
