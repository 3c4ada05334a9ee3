//! `replay` of real bundles and chains.

use crate::common::{
    TestFolder, fails_saying, gunzip, gzip, keys, mainnet, mainnet_blocks, retrie, succeeds, words,
};
use retrie_pipeline::testkit::TestRules;
use serde_json::{Value, json};
use std::path::Path;

const RESULT_KEYS: [&str; 18] = [
    "amplification",
    "backend",
    "blocks",
    "breakdown",
    "chain",
    "disk_bytes",
    "failures",
    "from",
    "gas",
    "mgas_per_s",
    "ok",
    "peak_rss_bytes",
    "root",
    "seconds",
    "to",
    "tps",
    "txs",
    "bundles",
];

/// Checks the shape that `replay --json` promises; returns its results.
pub(crate) fn results(report: &Value, bundles: bool) -> &[Value] {
    assert_eq!(keys(report), ["command", "complete", "machine", "results", "version"]);
    let results = report["results"].as_array().unwrap();
    for result in results {
        let mut expected = RESULT_KEYS.to_vec();
        if !bundles {
            expected.retain(|key| *key != "bundles");
        }
        expected.sort_unstable();
        let mut found = keys(result);
        // Present on a machine whose limit was measured.
        found.retain(|key| *key != "of_limit");
        assert_eq!(found, expected);
        let breakdown = &result["breakdown"];
        assert_eq!(keys(breakdown), ["authentication", "execution", "other", "storage_io"]);
        let seconds: f64 =
            breakdown.as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum();
        assert!(seconds >= result["seconds"].as_f64().unwrap() * 0.99, "{result}");
        assert_eq!(
            keys(&result["amplification"]),
            ["read_bytes_per_op", "reads_per_op", "write_bytes_per_op", "writes_per_op"]
        );
        assert!(result["disk_bytes"].is_u64() && result["peak_rss_bytes"].as_u64().unwrap() > 0);
    }
    results
}

pub(crate) fn bundle(mainnet: &Path, name: &str) -> String {
    mainnet.join(format!("{name}.json.gz")).to_str().unwrap().to_owned()
}

/// Replays `paths` with more arguments; returns the command and the path of its report.
pub(crate) fn replay(scene: &TestFolder, more: &str, paths: &[String]) -> std::process::Command {
    let mut command = retrie(["replay", "--json", &scene.at("report.json"), "--sync", "none"]);
    command.args(words(more)).args(paths);
    command
}

#[test]
fn real_bundles_pass_every_check_on_every_backend() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let paths = [
        "witness/1",
        "witness/1150001",
        "witness/21429992",
        "prestate/46147",
        "prestate/2688148",
        "prestate/19910734",
    ]
    .map(|name| bundle(&mainnet, name));
    let pad = "--pad-accounts 2k --pad-slots 3k --state-cache none --cole.memory-pairs 500";
    for (pad, backends) in [("", "mpt,raw"), (pad, "lvmt,raw,cole,mpt")] {
        let more = format!("--state-backend {backends} {pad}");
        let printed = succeeds(&mut replay(&scene, &more, &paths));
        assert!(!printed.contains("BAD"), "{printed}");
        let report = scene.json("report.json");
        let results = results(&report, true);
        let names: Vec<_> =
            results.iter().map(|result| result["backend"].as_str().unwrap()).collect();
        assert_eq!(names.join(","), backends);
        for result in results {
            assert_eq!(result["ok"], true);
            assert_eq!(result["failures"], json!([]));
            assert_eq!((&result["blocks"], &result["chain"]), (&6.into(), &"mainnet".into()));
            assert_eq!((&result["from"], &result["to"]), (&1.into(), &21_429_992.into()));
            let bundles = result["bundles"].as_array().unwrap();
            let gas: u64 = bundles.iter().map(|bundle| bundle["gas"].as_u64().unwrap()).sum();
            assert_eq!(result["gas"], gas);
            for bundle in bundles {
                let rooted = bundle["kind"] == "witness" && result["backend"] == "mpt";
                assert_eq!(bundle["root_ok"], if rooted { json!(true) } else { Value::Null });
            }
        }
    }
    // A range of a folder.
    let folder = vec![mainnet.join("witness").to_str().unwrap().to_owned()];
    succeeds(&mut replay(&scene, "--from 1150000 --to 1150001", &folder));
    assert_eq!(results(&scene.json("report.json"), true)[0]["blocks"], 2);
    fails_saying(&mut replay(&scene, "--from 5 --to 6", &folder), &["no bundle", "5"]);
    let mixed = [paths[0].clone(), mainnet_blocks(&mainnet)[0].to_str().unwrap().to_owned()];
    fails_saying(&mut replay(&scene, "", &mixed), &["either bundles or block files"]);
}

#[test]
fn what_a_block_reads_is_proven_by_every_store_with_proofs() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let paths = ["witness/1150001", "prestate/19910734"].map(|name| bundle(&mainnet, name));
    let flags = "--pad-accounts 2k --pad-slots 3k --state-cache none --cole.memory-pairs 500";
    let backends = "mpt,raw,prefix,lvmt,cole,bavl,pbt";
    let shard = "--lvmt.proof-shard all";
    let more = format!("--state-backend {backends} {flags} {shard} --witness");
    let printed = succeeds(&mut replay(&scene, &more, &paths));
    assert!(printed.contains("proofs of what each block reads"), "{printed}");
    let report = scene.json("report.json");
    let mut keys = None;
    for result in results(&report, true) {
        let witnesses: Vec<_> =
            result["bundles"].as_array().unwrap().iter().map(|one| &one["witness"]).collect();
        if result["backend"] == "raw" {
            assert!(witnesses.iter().all(|witness| witness.is_null()));
            continue;
        }
        for witness in &witnesses {
            let bytes = |name: &str| witness[name].as_u64().unwrap();
            assert!(bytes("proof_bytes") > bytes("keys"), "{witness}");
            assert!(bytes("code_bytes") > 0 || bytes("keys") < 20, "{witness}");
            let of_code = witness["code_proof"]["proof_bytes"].as_u64();
            assert_eq!(of_code.is_some(), result["backend"] == "pbt", "{witness}");
            assert!(of_code.is_none_or(|bytes_of_code| bytes_of_code >= bytes("proof_bytes")));
        }
        // All stores prove the same keys.
        let read: Vec<_> = witnesses.iter().map(|witness| witness["keys"].clone()).collect();
        assert_eq!(*keys.get_or_insert_with(|| read.clone()), read);
    }
    let blocks = vec![mainnet_blocks(&mainnet)[0].to_str().unwrap().to_owned()];
    fails_saying(&mut replay(&scene, "--witness", &blocks), &["bundles"]);
}

#[test]
fn damaged_bundles_name_file_and_cause() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let path = bundle(&mainnet, "witness/1150001");
    let text = gunzip(Path::new(&path));
    let whole: Value = serde_json::from_slice(&text).unwrap();
    let mut number = 0;
    let mut refused = |bytes: &[u8], backend: &str, says: &[&str]| {
        number += 1;
        let name = format!("{number}.json.gz");
        let file = vec![scene.write(&name, bytes)];
        let more = format!("--state-backend {backend}");
        fails_saying(&mut replay(&scene, &more, &file), &[&[&*name], says].concat())
    };
    let packed = gzip(&text);
    refused(&packed[..packed.len() / 2], "mpt", &[]);
    refused(&gzip(&text[..text.len() / 2]), "mpt", &[]);
    refused(&gzip(b"{}"), "mpt", &["bundle"]);
    refused(b"[", "mpt", &[]);
    // One node less: found when the block reads it.
    for backend in ["mpt", "raw"] {
        let mut lacking = whole.clone();
        let nodes = lacking["state"].as_array_mut().unwrap();
        let half = nodes.len() / 2;
        nodes.truncate(half);
        if backend == "raw" {
            lacking.as_object_mut().unwrap().remove("pre");
        }
        let line = refused(
            &gzip(lacking.to_string().as_bytes()),
            backend,
            &["block 1150001", "witness is incomplete"],
        );
        assert_eq!(line.matches(".json.gz").count(), 1, "the file is named once: {line}");
    }
    // One code less.
    let path = bundle(&mainnet, "witness/21429992");
    let mut lacking: Value = serde_json::from_slice(&gunzip(Path::new(&path))).unwrap();
    lacking["codes"] = json!([]);
    for backend in ["mpt", "raw"] {
        refused(&gzip(lacking.to_string().as_bytes()), backend, &["block 21429992", "code"]);
    }
}

#[test]
fn failed_check_is_counted_and_ends_with_an_error() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let path = bundle(&mainnet, "witness/21429992");
    let mut changed: Value = serde_json::from_slice(&gunzip(Path::new(&path))).unwrap();
    for account in changed["pre"].as_object_mut().unwrap().values_mut().filter(|a| !a.is_null()) {
        for value in account["storage"].as_object_mut().unwrap().values_mut() {
            *value = json!("0x0");
        }
    }
    let file = scene.write("21429992.json.gz", gzip(changed.to_string().as_bytes()));
    let good = bundle(&mainnet, "witness/1150001");
    let mut command = replay(&scene, "--state-backend raw", &[file, good]);
    let says = ["block 21429992", "gasUsed", "differ"];
    fails_saying(&mut command, &says);
    let report = scene.json("report.json");
    let result = &results(&report, true)[0];
    assert_eq!((&result["ok"], &result["blocks"]), (&false.into(), &2.into()));
    assert_eq!(result["failures"].as_array().unwrap().len(), 1);
}

#[test]
fn chains_are_replayed_from_genesis() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 6);
    let chain = format!("--chain {} --state-backend mpt,raw", scene.at("genesis.json"));
    let file = [scene.at("chain.rlp")];
    succeeds(&mut replay(&scene, &chain, &file));
    let report = scene.json("report.json");
    let replayed = results(&report, false);
    assert_eq!(replayed.len(), 2);
    assert_eq!(replayed[0]["root"], blocks[5].header.state_root.to_string());
    for result in replayed {
        assert_eq!(
            (&result["ok"], &result["blocks"], &result["to"]),
            (&true.into(), &6.into(), &6.into())
        );
    }
    // An invalid block: the others count, and the exit code reports it.
    let mut wrong = blocks;
    wrong[4].header.gas_used -= 1;
    retrie_pipeline::testkit::write_blocks(&scene.path("wrong.rlp"), &wrong);
    fails_saying(&mut replay(&scene, &chain, &[scene.at("wrong.rlp")]), &["block 5 (", "gas"]);
    for result in results(&scene.json("report.json"), false) {
        assert_eq!(
            (&result["ok"], &result["blocks"], &result["to"]),
            (&false.into(), &4.into(), &4.into())
        );
        assert!(result["failures"][0].as_str().unwrap().contains("block 5 ("));
    }
}

#[test]
fn mainnet_blocks_are_replayed_on_fresh_stores() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let file = [mainnet_blocks(&mainnet)[0].to_str().unwrap().to_owned()];
    succeeds(&mut replay(&scene, "--state-backend mpt,raw --to 500", &file));
    let report = scene.json("report.json");
    for result in results(&report, false) {
        assert_eq!((&result["blocks"], &result["to"]), (&500.into(), &500.into()));
    }
}

#[test]
fn padded_states_are_kept_between_replays() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 6);
    let file = [scene.at("chain.rlp")];
    let run = |pad: &str| {
        let more = format!(
            "--chain {} --state-backend mpt,raw --state-cache {} {pad}",
            scene.at("genesis.json"),
            scene.at("cache")
        );
        let output = replay(&scene, &more, &file).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let report = scene.json("report.json");
        let roots: Vec<_> =
            results(&report, false).iter().map(|result| result["root"].clone()).collect();
        (said.matches("padding the state").count(), roots)
    };
    let (padded, roots) = run("--pad-accounts 5 --pad-slots 1250");
    assert_eq!(padded, 2);
    assert_eq!(run("--pad-accounts 5 --pad-slots 1250"), (0, roots.clone()));
    let (padded, other) = run("--pad-accounts 5 --pad-slots 1251");
    assert!(padded == 2 && other[0] != roots[0], "{other:?}");
    // Without padding nothing is cached.
    let kept = || std::fs::read_dir(scene.path("cache/states")).unwrap().count();
    assert_eq!((kept(), run("").0, kept()), (4, 0, 4));
}
