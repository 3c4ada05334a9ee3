//! `bench limit`, and results beside the limit that it has found.

use crate::common::{TestFolder, keys, retrie, succeeds, words};
use serde_json::Value;
use std::process::Command;

const HINT: &str = "run `retrie bench limit` to see";

/// The smallest probes, without real blocks.
fn limit(scene: &TestFolder, more: &str) -> Command {
    let line = "bench limit --rounds 1 --round-ms 1 --blocks 1 --txs 4 --file 1MB --state-cache";
    let mut command = retrie(words(line));
    command.arg(scene.at("cache")).args(words(more)).env("RETRIE_DATA", scene.at("no-data"));
    command
}

fn state_race(scene: &TestFolder) -> Command {
    let line = "bench state --keys 500,1k --pairs 200 --commit-every 50 --slices 2 \
                --backends raw,mpt --state-cache";
    let mut command = retrie(words(line));
    command.args([&scene.at("cache"), "--json", &scene.at("report.json")]);
    command
}

#[test]
fn results_stand_beside_the_limit_once_it_is_measured() {
    let scene = TestFolder::new();
    let before = succeeds(&mut state_race(&scene));
    assert_eq!(before.matches(HINT).count(), 1, "once in a process: {before}");
    assert!(!before.contains("of the limit:"), "{before}");
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["of_limit"].is_null()), "{report}");

    let json = scene.at("limit.json");
    let printed = succeeds(&mut limit(&scene, &format!("--json {json}")));
    for probe in [
        "recover a sender",
        "execute a transaction: transfers=1",
        "execute a transaction: kvstore=1, 50 % reads",
        "execute a transaction: swaps=1, own contracts",
        "hash a branch of 532 bytes",
        "look up a key in memory",
        "read a random page of 4096 bytes",
        "append rows to our database, commit",
        "cache/limit.json",
        "RETRIE_DATA names no folder",
    ] {
        assert!(printed.contains(probe), "{probe} is not in: {printed}");
    }
    let limits = scene.json("limit.json");
    assert_eq!(
        keys(&limits),
        ["branch_hash", "disk", "execution", "leaf_hash", "lookup", "sender"]
    );
    assert!(limits["sender"]["alone"].as_f64().unwrap() > 0.0, "{limits}");
    let kept = scene.json("cache/limit.json");
    assert!(kept["machines"].as_object().unwrap().values().any(|of| *of == limits), "{kept}");

    let after = succeeds(&mut state_race(&scene));
    assert!(after.contains("| of the limit\n"), "a column: {after}");
    assert!(after.contains("any store ") && after.contains("Ethereum's trie "), "{after}");
    assert!(!after.contains(HINT), "{after}");
    let report = scene.json("report.json");
    for result in report["results"].as_array().unwrap() {
        assert!(result["of_limit"].as_f64().unwrap() > 0.0, "{result}");
    }
}

#[test]
fn damaged_limit_is_reported_and_stops_nothing() {
    let scene = TestFolder::new();
    std::fs::create_dir(scene.path("cache")).unwrap();
    scene.write("cache/limit.json", "{\"format\": 1, \"machines\": [");
    let output = state_race(&scene).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("limit.json is damaged"), "{stderr}");
    let of_limit: &Value = &scene.json("report.json")["results"][0]["of_limit"];
    assert!(of_limit.is_null());
    succeeds(&mut limit(&scene, ""));
    assert!(succeeds(&mut state_race(&scene)).contains("of the limit"));
}
