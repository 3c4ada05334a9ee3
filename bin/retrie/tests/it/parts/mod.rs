//! Replays in parts, and their reports merged: the same as the whole run.

use crate::{
    common::{TestFolder, fails_saying, gunzip, gzip, mainnet, retrie, succeeds, words},
    replay::{bundle, replay, results},
};
use retrie_pipeline::testkit::TestRules;
use serde_json::{Value, json};
use std::path::Path;

/// Runs all parts of a replay, each into a report of its own; returns their paths.
fn replay_parts(
    scene: &TestFolder,
    name: &str,
    count: u32,
    more: &str,
    paths: &[String],
) -> Vec<String> {
    let part = |index| {
        let json = scene.at(&format!("{name}-{index}.json"));
        let part = format!("{index}/{count}");
        let mut command = retrie(["replay", "--json", &json, "--sync", "none", "--part", &part]);
        succeeds(command.args(words(more)).args(paths));
        json
    };
    (1..=count).map(part).collect()
}

fn merge(scene: &TestFolder, reports: &[String]) -> std::process::Command {
    let mut command = retrie(["bench", "merge", "--json", &scene.at("merged.json")]);
    command.args(reports);
    command
}

/// The fields of a result that are the same on every machine.
fn facts(result: &Value) -> Value {
    let names =
        ["backend", "chain", "from", "to", "blocks", "txs", "gas", "ok", "failures", "root"];
    let mut facts: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), result[name].clone())).collect();
    let mut bundles = result["bundles"].clone();
    for bundle in bundles.as_array_mut().into_iter().flatten() {
        bundle.as_object_mut().unwrap().remove("seconds");
    }
    facts.insert("bundles".into(), bundles);
    facts.into()
}

/// Compares the results of `merged.json` with `report.json`, and sums with the parts.
fn is_the_whole_run(scene: &TestFolder, parts: &[String]) -> Value {
    let (whole, merged) = (scene.json("report.json"), scene.json("merged.json"));
    let facts_of = |report: &Value| {
        report["results"].as_array().unwrap().iter().map(facts).collect::<Vec<_>>()
    };
    assert_eq!(facts_of(&merged), facts_of(&whole));
    let parts: Vec<Value> = parts
        .iter()
        .map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
        .collect();
    for (place, result) in merged["results"].as_array().unwrap().iter().enumerate() {
        let seconds: f64 =
            parts.iter().map(|part| part["results"][place]["seconds"].as_f64().unwrap()).sum();
        assert!((result["seconds"].as_f64().unwrap() - seconds).abs() < 1e-9);
        let tps = result["txs"].as_f64().unwrap() / seconds;
        assert!((result["tps"].as_f64().unwrap() - tps).abs() <= tps * 1e-9);
        // Means weighted by keys: caches that outlive a block save a single process some reads.
        for (name, mean) in result["amplification"].as_object().unwrap() {
            let by = if name.starts_with("write") { "key_writes" } else { "key_reads" };
            let (mut sum, mut weight) = (0.0, 0.0);
            for part in &parts {
                let part = &part["results"][place];
                let keys = part["part"][by].as_f64().unwrap();
                sum += keys * part["amplification"][name].as_f64().unwrap();
                weight += keys;
            }
            let difference = mean.as_f64().unwrap() - if weight > 0.0 { sum / weight } else { 0.0 };
            assert!(difference.abs() <= mean.as_f64().unwrap() * 1e-9, "{name}: {mean}, {parts:?}");
        }
    }
    assert_eq!(merged["complete"], true);
    merged
}

#[test]
fn merged_parts_of_real_bundles_are_the_whole_run() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let paths = ["witness", "prestate"].map(|name| mainnet.join(name).to_str().unwrap().to_owned());
    // 12 bundles; two block numbers are in both folders. The split falls between two bundles of one
    // number.
    let more = "--state-backend mpt,raw --blocks 46147..2690000";
    succeeds(&mut replay(&scene, more, &paths));
    let parts = replay_parts(&scene, "part", 4, more, &paths);
    let page = scene.at("merged.html");
    let printed = succeeds(merge(&scene, &parts).args(["--report", &page]));
    assert!(printed.contains("4 of 4 parts") && printed.contains("TPS of a machine"), "{printed}");
    let merged = is_the_whole_run(&scene, &parts);
    assert_eq!(merged["results"][0]["blocks"], 12);
    assert_eq!(merged["merged"]["missing"], json!([]));
    assert_eq!(merged["merged"]["spread"][0]["machines"][0]["parts"], 4);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Merged from 4 of 4 parts") && page.contains("data-backend=\"mpt\""));
    // A repeated part and another order change nothing.
    let again = replay_parts(&scene, "again", 4, more, &paths);
    let mixed = [&again[3], &parts[0], &again[1], &parts[3], &parts[2]].map(String::clone);
    let printed = succeeds(&mut merge(&scene, &mixed));
    assert!(printed.contains("counted once: 4/4"), "{printed}");
    is_the_whole_run(&scene, &[&parts[0], &again[1], &parts[2], &again[3]].map(String::clone));
    // A missing part is named; the other parts are written.
    let line = fails_saying(&mut merge(&scene, &parts[..2]), &["parts are missing: 3/4, 4/4"]);
    assert!(!line.contains("checks"), "{line}");
    let merged = scene.json("merged.json");
    assert_eq!(
        (&merged["complete"], &merged["merged"]["missing"]),
        (&json!(false), &json!(["3/4", "4/4"]))
    );
    // Parts of another run are refused.
    let other = replay_parts(&scene, "other", 1, "--state-backend mpt --blocks 1..2", &paths);
    let mixed = [parts[0].clone(), other[0].clone()];
    fails_saying(
        &mut merge(&scene, &mixed),
        &["other-1.json", "does not belong to", "part-1.json"],
    );
    fails_saying(
        &mut merge(&scene, &[scene.at("report.json")]),
        &["report.json", "not the report of a part"],
    );
}

#[test]
fn parts_beyond_the_bundles_are_empty_and_merge() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let paths = ["witness/1", "witness/1150001"].map(|name| bundle(&mainnet, name));
    succeeds(&mut replay(&scene, "--state-backend mpt", &paths));
    let parts = replay_parts(&scene, "part", 3, "--state-backend mpt", &paths);
    let empty = scene.json("part-1.json");
    assert_eq!((&empty["complete"], &empty["part"]["covered"]), (&json!(true), &json!("nothing")));
    assert_eq!(
        (&empty["results"][0]["blocks"], &empty["results"][0]["ok"]),
        (&json!(0), &json!(true))
    );
    succeeds(&mut merge(&scene, &parts));
    is_the_whole_run(&scene, &parts);
    // A page without results is still a page.
    let page = scene.at("empty.html");
    let printed = succeeds(
        replay(&scene, "--state-backend mpt --part 1/3", &paths).args(["--report", &page]),
    );
    assert!(printed.contains("part 1/3 of 2 bundles: nothing"), "{printed}");
    assert!(Path::new(&page).exists());
    for (flags, says) in [
        ("--part 0/3", "there is no part 0/3"),
        ("--part 4/3", "there is no part 4/3"),
        ("--part x", "`x` is not a part such as 3/8"),
        ("--blocks 9..8", "blocks 9..8 are none"),
        ("--blocks 1..2 --from 1", "cannot be used with"),
    ] {
        let output = replay(&scene, flags, &paths).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8(output.stderr).unwrap().contains(says), "{flags}");
    }
}

#[test]
fn merged_parts_of_a_chain_are_the_whole_run() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 7);
    // The roots of `bavl` depend on the whole history.
    let chain = format!("--chain {} --state-backend mpt,bavl,raw", scene.at("genesis.json"));
    let file = [scene.at("chain.rlp")];
    succeeds(&mut replay(&scene, &chain, &file));
    let blocks_given = format!("{chain} --blocks 0..=7");
    let parts = replay_parts(&scene, "part", 3, &blocks_given, &file);
    succeeds(&mut merge(&scene, &parts));
    is_the_whole_run(&scene, &parts);
    let more = format!("{chain} --part 1/3");
    fails_saying(&mut replay(&scene, &more, &file), &["chain.rlp", "give --blocks FROM..TO"]);
    // An invalid block: its part and all later parts fail at it, and the merged report names it
    // once.
    let mut wrong = blocks;
    wrong[3].header.gas_used -= 1;
    retrie_pipeline::testkit::write_blocks(&scene.path("wrong.rlp"), &wrong);
    let wrong = [scene.at("wrong.rlp")];
    fails_saying(&mut replay(&scene, &chain, &wrong), &["block 4 ("]);
    let mut parts = Vec::new();
    for index in 1..=3 {
        let json = scene.at(&format!("wrong-{index}.json"));
        let part = format!("{index}/3");
        let mut command = retrie(["replay", "--sync", "none", "--json", &json, "--part", &part]);
        let ended = command.args(words(&blocks_given)).args(&wrong).output().unwrap();
        assert_eq!(ended.status.success(), index == 1);
        parts.push(json);
    }
    let line = fails_saying(&mut merge(&scene, &parts), &["not all checks held", "block 4 ("]);
    assert!(!line.contains("missing"), "{line}");
    let merged = is_the_whole_run(&scene, &parts);
    for result in merged["results"].as_array().unwrap() {
        assert_eq!(result["part"]["failed_blocks"], json!([4]));
    }
}

#[test]
fn parts_of_the_built_in_chain_are_the_whole_run() {
    let scene = TestFolder::new();
    let more = "--state-backend mpt --blocks 1..7";
    succeeds(&mut replay(&scene, more, &[]));
    let parts = replay_parts(&scene, "part", 2, more, &[]);
    succeeds(&mut merge(&scene, &parts));
    is_the_whole_run(&scene, &parts);
}

#[test]
fn a_bundle_that_cannot_be_executed_does_not_keep_the_others_from_it() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let path = bundle(&mainnet, "witness/1150001");
    let mut lacking: Value = serde_json::from_slice(&gunzip(Path::new(&path))).unwrap();
    // Too few nodes for the witness, and for the plain state made from it.
    lacking["state"].as_array_mut().unwrap().truncate(3);
    lacking.as_object_mut().unwrap().remove("pre");
    let broken = scene.write("1150001.json.gz", gzip(lacking.to_string().as_bytes()));
    let paths = [bundle(&mainnet, "witness/1150000"), broken, bundle(&mainnet, "witness/1920000")];
    let more = "--state-backend mpt,raw";
    fails_saying(&mut replay(&scene, more, &paths), &["1150001.json.gz", "block 1150001"]);
    for result in results(&scene.json("report.json"), true) {
        assert_eq!((&result["ok"], &result["blocks"]), (&false.into(), &2.into()));
        let failures = result["failures"].as_array().unwrap();
        assert!(failures.len() == 1 && failures[0].as_str().unwrap().contains("block 1150001"));
    }
    let mut reports = Vec::new();
    for index in 1..=2 {
        let json = scene.at(&format!("part-{index}.json"));
        let part = format!("{index}/2");
        let mut command = retrie(["replay", "--sync", "none", "--json", &json, "--part", &part]);
        let ended = command.args(words(more)).args(&paths).output().unwrap();
        assert_eq!(ended.status.success(), index == 1);
        reports.push(json);
    }
    let mut merge = merge(&scene, &reports);
    fails_saying(&mut merge, &["not all checks held", "block 1150001"]);
    let merged = is_the_whole_run(&scene, &reports);
    for result in merged["results"].as_array().unwrap() {
        assert_eq!(result["part"]["failed_blocks"], json!([1_150_001]));
    }
}
