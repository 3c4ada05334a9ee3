//! `bench witness`: its report, its page, and stores without witnesses.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use std::process::Command;

fn witness(scene: &TestFolder, more: &str) -> Command {
    let line = "bench witness --accounts 300 --signers 20 --blocks 2 --warmup 1 --txs 6 --calls 2";
    let mut command = retrie(words(line));
    command.args(["--state-cache", "none", "--json", &scene.at("report.json")]).args(words(more));
    command
}

#[test]
fn witnesses_of_stores_stand_beside_those_of_mpt() {
    let scene = TestFolder::new();
    let page = scene.at("page.html");
    let printed = succeeds(&mut witness(&scene, &format!("--backends mpt,bavl --report {page}")));
    for part in ["2 made blocks", "KiB zstd", "of mpt", "bavl"] {
        assert!(printed.contains(part), "{part} is not in: {printed}");
    }
    let report = scene.json("report.json");
    assert_eq!(report["complete"], true);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for (result, name) in results.iter().zip(["mpt", "bavl"]) {
        assert_eq!((&result["backend"], &result["workload"]), (&name.into(), &"witness".into()));
        let measures = &result["measures"];
        assert_eq!(measures["blocks with a witness"], 2.0);
        assert_eq!(measures["calls"], 4.0);
        for measure in ["witness KiB", "zstd KiB", "make ms", "verify ms", "call bytes"] {
            assert!(measures[measure].as_f64() > Some(0.0), "{name}: {measure}: {measures}");
        }
        let most = measures["witness KiB most"].as_f64();
        assert!(most >= measures["witness KiB"].as_f64(), "{measures}");
    }
    assert_eq!(results[0]["measures"]["witness times mpt"], 1.0);
    assert_eq!(report["witnesses"][1]["blocks"].as_array().unwrap().len(), 2);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("Block witnesses") && html.contains("witness KiB most"), "{html}");

    let reason = ["cole", "a checkpoint", "--backends"];
    fails_saying(&mut witness(&scene, "--backends mpt,cole"), &reason);
}
