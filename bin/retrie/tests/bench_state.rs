//! `bench state`: its report, its cache of prepared states, and bad input.

mod common;

use common::{Scene, fails_saying, keys, retrie, succeeds, words};
use serde_json::Value;
use std::{os::unix::fs::FileExt, process::Command};

const RESULT_KEYS: [&str; 18] = [
    "backend",
    "disk_bytes",
    "max_us",
    "ops",
    "ops_per_s",
    "p50_us",
    "p999_us",
    "p99_us",
    "params",
    "peak_rss_bytes",
    "read_bytes_per_op",
    "reads_per_op",
    "seconds",
    "spread",
    "tables",
    "workload",
    "write_bytes_per_op",
    "writes_per_op",
];

/// A small race with its cache in the scene, and more arguments.
fn race(scene: &Scene, more: &str) -> Command {
    race_with_cache(scene, &scene.at("cache"), more)
}

fn race_with_cache(scene: &Scene, cache: &str, more: &str) -> Command {
    let mut command = retrie(words("bench state --state-cache"));
    command.args([cache, "--json", &scene.at("report.json")]).args(words(more));
    command
}

#[test]
fn report_has_the_documented_fields() {
    let scene = Scene::new();
    let more = "--sync none --pairs 1k --commit-every 100 --backends raw,mpt --keys 2k,fresh --slices 5 --seed 9 --layout accounts";
    let printed = succeeds(&mut race(&scene, more));
    for shared in ["sync none", "retention 128", "raw none", "mpt keccak256", "4096", "1024 MiB"] {
        assert!(printed.contains(shared), "{shared} is not in: {printed}");
    }
    let report = scene.json("report.json");
    assert_eq!(keys(&report), ["command", "machine", "results", "version"]);
    let results = report["results"].as_array().unwrap();
    let lanes: Vec<_> = results
        .iter()
        .map(|result| (result["backend"].as_str().unwrap(), &result["params"]["keys"]))
        .collect();
    let (preloaded, fresh) = (Value::from(2000), Value::from("fresh"));
    let expected = [("raw", &preloaded), ("mpt", &preloaded), ("raw", &fresh), ("mpt", &fresh)];
    assert_eq!(lanes, expected);
    for result in results {
        assert_eq!(keys(result), RESULT_KEYS);
        assert_eq!((&result["workload"], &result["ops"]), (&"state".into(), &2000.into()));
        let params = &result["params"];
        assert_eq!(
            keys(params),
            [
                "cache_mb",
                "commit_every",
                "hash",
                "keys",
                "layout",
                "measured",
                "pairs",
                "retention",
                "seed",
                "slices",
                "sync",
                "warmup"
            ]
        );
        assert_eq!((&params["warmup"], &params["slices"]), (&100.into(), &5.into()));
        let measured = &params["measured"];
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}: {result}"));
        assert_eq!(measured["slice_ops_per_s"].as_array().unwrap().len(), 5);
        assert!(number(&measured["sustained_ops_per_s"]) > 0.0);
        let sustained = number(&result["ops"]) / number(&result["seconds"]);
        assert!((sustained / number(&measured["sustained_ops_per_s"]) - 1.0).abs() < 1e-6);
        let [p50, p99, p999, max] =
            ["p50_us", "p99_us", "p999_us", "max_us"].map(|name| number(&result[name]));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999 && p999 <= max);
        assert!(number(&result["reads_per_op"]) >= 1.0 && number(&result["spread"]) >= 0.0);
        assert!(number(&result["disk_bytes"]) > 0.0);
        let tables = result["tables"].as_array().unwrap();
        assert_eq!(tables.len() > 1, result["backend"] == "mpt", "{result}");
        for total in ["reads_per_op", "writes_per_op", "read_bytes_per_op", "write_bytes_per_op"] {
            let sum: f64 = tables.iter().map(|table| number(&table[total])).sum();
            assert!((sum - number(&result[total])).abs() < 1e-6, "{total}: {result}");
        }
        assert!(tables.iter().any(|table| table["name"] == "Flat" && keys(table).len() == 5));
    }
    assert!(printed.contains("mpt by table:") && !printed.contains("raw by table:"), "{printed}");
    assert!(results[1]["writes_per_op"].as_f64() > results[0]["writes_per_op"].as_f64());
}

#[test]
fn loaded_states_are_kept_and_built_again_when_damaged() {
    let scene = Scene::new();
    let run = || {
        let output =
            race(&scene, "--sync none --pairs 1k --backends raw --keys 2k").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run().contains("raw: loading"));
    assert!(!run().contains("loading"));
    let states: Vec<_> = std::fs::read_dir(scene.path("cache/states")).unwrap().collect();
    assert_eq!(states.len(), 1);
    let data = states[0].as_ref().unwrap().path().join("db/mdbx.dat");
    let file = std::fs::File::options().write(true).open(&data).unwrap();
    file.write_all_at(b"damage", 50_000).unwrap();
    let said = run();
    assert!(said.contains("damaged (db/mdbx.dat has changed)"), "{said}");
    assert!(said.contains("raw: loading") && !run().contains("loading"));
    assert_eq!(std::fs::read_dir(scene.path("cache/runs")).unwrap().count(), 0);
    // Kept for nobody.
    let mut command =
        race_with_cache(&scene, "none", "--sync none --pairs 1k --backends raw --keys 2k");
    assert!(String::from_utf8(command.output().unwrap().stderr).unwrap().contains("loading"));
}

#[test]
fn bad_flags_are_one_line_errors() {
    let scene = Scene::new();
    for (flags, says) in [
        ("--keys 0", "--keys"),
        ("--keys 5000000000", "--keys"),
        ("--pairs 0", "--pairs"),
        ("--commit-every 0", "--commit-every"),
        ("--slices 0", "--slices"),
        ("--pairs 1k --commit-every 100 --slices 11", "10, the number of measured commits"),
        ("--backends mptt", "no backend is called `mptt`"),
        ("--backends raw,mpt,raw", "`raw` twice"),
        ("--backends raw,lvmt@16/16", "16/16"),
        ("--backends lvmt,raw@1/16", "`raw` has no proof shards"),
        ("--backends nope@1/16", "no backend is called `nope`"),
    ] {
        fails_saying(&mut race(&scene, flags), &[says]);
    }
    if !cfg!(feature = "peers") {
        for peer in ["firewood-ethhash", "nomt"] {
            let more = format!("--backends raw,{peer}");
            fails_saying(&mut race(&scene, &more), &[peer, "--features peers"]);
        }
    }
    // What clap refuses: usage errors, exit code 2.
    for (flags, says) in [
        ("--keys 5x", "5x"),
        ("--keys 1m,tiny", "tiny"),
        ("--pairs -3", "-3"),
        ("--sync sometimes", "sometimes"),
        ("--cache-mb 0", "cache-mb"),
        ("--retention 18446744073709551616", "retention"),
        ("--layout flat", "flat"),
    ] {
        let output = race(&scene, flags).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags}: {stderr}");
        assert!(stderr.contains(says), "{flags}: {stderr}");
    }
    // A cache that cannot be.
    scene.write("file", "");
    let mut command = race_with_cache(&scene, &scene.at("file"), "--backends raw --keys 10");
    fails_saying(&mut command, &["file", "--state-cache"]);
}
