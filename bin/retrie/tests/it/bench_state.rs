//! `bench state`: its report, its cache of prepared states, and bad input.

use crate::common::{TestFolder, fails_saying, keys, mainnet, retrie, signal, succeeds, words};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    process::{Command, Stdio},
    time::Duration,
};

const RESULT_KEYS: [&str; 29] = [
    "backend",
    "breakdown",
    "disk_bytes",
    "flush_seconds",
    "hit_rates",
    "journal_bytes_per_op",
    "latency",
    "mapped_bytes",
    "max_us",
    "memory_bytes",
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
    "settle_seconds",
    "slices",
    "spread",
    "sustained_ops_per_s",
    "tables",
    "undo_bytes_per_op",
    "workload",
    "write_bytes_per_op",
    "writes_per_op",
];

/// A small race with its cache in the test folder, and more arguments.
fn race(scene: &TestFolder, more: &str) -> Command {
    race_with_cache(scene, &scene.at("cache"), more)
}

fn race_with_cache(scene: &TestFolder, cache: &str, more: &str) -> Command {
    let mut command = retrie(words("bench state --state-cache"));
    command.args([cache, "--json", &scene.at("report.json")]).args(words(more));
    command
}

#[test]
fn memory_budgets_are_an_axis() {
    let scene = TestFolder::new();
    let more = "--sync none --pairs 200 --commit-every 100 --slices 2 --backends raw,mpt --keys 1k \
                --memory-budget 8MB,16MB --unbounded-pages --cold";
    let printed = succeeds(&mut race(&scene, more));
    for said in ["memory budget 8 MiB a store", "raw 0 + 16, mpt 8 + 8", "hit rate"] {
        assert!(printed.contains(said), "{said} is not in: {printed}");
    }
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    let budgets: Vec<_> =
        results.iter().map(|result| result["params"]["memory_budget"].as_u64().unwrap()).collect();
    assert_eq!(budgets, [8, 8, 16, 16]);
    assert!(results.iter().all(|result| result["params"]["pages"] == "cold"));
    assert!(results.iter().all(|result| result["hit_rates"]["rows"].is_f64()));
}

#[test]
fn report_has_the_documented_fields() {
    let scene = TestFolder::new();
    let more = "--sync none --pairs 1k --commit-every 100 --backends raw,mpt --keys 2k,fresh --slices 5 --seed 9 --layout accounts";
    let printed = succeeds(&mut race(&scene, more));
    for shared in ["sync none", "retention 128", "raw none", "mpt keccak256", "4096", "1024 MiB"] {
        assert!(printed.contains(shared), "{shared} is not in: {printed}");
    }
    assert!(printed.contains("% authenticated structure") && printed.contains("ratios to raw"));
    let report = scene.json("report.json");
    assert_eq!(
        keys(&report),
        ["command", "complete", "machine", "notes", "references", "results", "version"]
    );
    assert_eq!(report["complete"], true);
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
                "pairs",
                "read_threads",
                "retention",
                "seed",
                "slices",
                "sync",
                "warmup"
            ]
        );
        assert_eq!((&params["warmup"], &params["slices"]), (&100.into(), &5.into()));
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}: {result}"));
        let slices = result["slices"].as_array().unwrap();
        let ops: Vec<_> = slices.iter().map(|slice| slice["ops"].as_u64().unwrap()).collect();
        assert_eq!(ops, [400, 800, 1200, 1600, 2000]);
        for slice in slices {
            assert_eq!(keys(slice), ["disk_bytes", "memory_bytes", "ops", "ops_per_s"]);
            assert!(number(&slice["disk_bytes"]) > 0.0);
        }
        let spent = &result["breakdown"];
        let spent =
            ["execution", "authentication", "storage_io", "other"].map(|k| number(&spent[k]));
        let timed = number(&result["seconds"]);
        assert!(spent[0] == 0.0 && spent[1] >= 0.0 && spent[2] > 0.0, "{result}");
        assert!(spent[2] >= number(&result["flush_seconds"]), "{result}");
        assert!((spent.iter().sum::<f64>() - timed).abs() < 1e-6, "{result}");
        assert!(number(&result["sustained_ops_per_s"]) > 0.0);
        let sustained = number(&result["ops"]) / number(&result["seconds"]);
        assert!((sustained / number(&result["sustained_ops_per_s"]) - 1.0).abs() < 1e-6);
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
fn old_states_are_proven_as_far_back_as_a_store_has_proofs() {
    let scene = TestFolder::new();
    let line = "--sync none --keys 2k --pairs 1k --commit-every 10 --warmup 0 --retention 40 \
                --proofs 3 --proof-depths 0,1,40,90,1k \
                --backends raw,mpt,mpt-archive,cole,lmpt,prefix,duptree,bavl";
    let printed = succeeds(&mut race(&scene, line));
    assert!(printed.contains("mpt: 3 proofs of one key 40 commits before: made in"), "{printed}");
    let report = scene.json("report.json");
    for result in report["results"].as_array().unwrap() {
        let proofs = result["proofs"].as_array().map_or(&[][..], |proofs| proofs);
        let old: Vec<_> = proofs.iter().filter(|proof| !proof["depth"].is_null()).collect();
        let depths: Vec<_> = old.iter().map(|proof| proof["depth"].as_u64().unwrap()).collect();
        let expected: &[u64] = match result["backend"].as_str().unwrap() {
            "raw" => &[],
            "mpt-archive" | "cole" | "prefix" => &[0, 1, 40, 90],
            _ => &[0, 1, 40],
        };
        assert_eq!(depths, expected, "{result}");
        for proof in old {
            assert_eq!((&proof["count"], &proof["present"]), (&3.into(), &true.into()));
            let number = |value: &Value| value.as_u64().unwrap();
            assert!(number(&proof["first_us"]) > 0 && number(&proof["made"]["p50_us"]) > 0);
            assert!(number(&proof["bytes"]["min"]) > 0);
        }
    }
    let line = "--backends raw --keys 2k --proof-depths 1";
    fails_saying(&mut race(&scene, line), &["--proof-depths", "--proofs"]);
}

#[test]
fn loaded_states_are_kept_and_built_again_when_damaged() {
    let scene = TestFolder::new();
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
    // Nothing is cached.
    let mut command =
        race_with_cache(&scene, "none", "--sync none --pairs 1k --backends raw --keys 2k");
    assert!(String::from_utf8(command.output().unwrap().stderr).unwrap().contains("loading"));
}

#[test]
fn bad_flags_are_one_line_errors() {
    let scene = TestFolder::new();
    for (flags, says) in [
        ("--keys 0", "--keys"),
        ("--keys 5000000000", "--keys"),
        ("--pairs 0", "--pairs"),
        ("--commit-every 0", "--commit-every"),
        ("--slices 0", "--slices"),
        ("--pairs 1k --commit-every 100 --slices 11", "10, the number of measured commits"),
        ("--reads 1.5", "--reads"),
        ("--keys fresh --reads 0.5", "--keys fresh"),
        ("--keys real --keys-by zipf --pad-accounts 0", "--keys real"),
        ("--memory-limit 16MB --backends raw", "a memory limit of 16 MiB is too small"),
        ("--memory-limit 512MB --cache-mb 1024 --backends raw", "the smallest sensible limit is 1"),
        ("--backends mptt", "no backend is called `mptt`"),
        ("--backends raw,mpt,raw", "`raw` twice"),
        ("--backends raw,lvmt@16/16", "16/16"),
        ("--backends lvmt,raw@1/16", "`raw` has no proof shards"),
        ("--backends raw,cole@3/16", "`cole` has no proof shards, so no 3/16"),
        ("--backends nope@1/16", "no backend is called `nope`"),
    ] {
        fails_saying(&mut race(&scene, flags), &[says]);
    }
    if !cfg!(feature = "peers") {
        for peer in ["redb", "eth-trie", "firewood-ethhash", "nomt", "qmdb"] {
            let more = format!("--backends raw,{peer}");
            fails_saying(&mut race(&scene, &more), &[peer, "--features peers"]);
        }
    }
    // clap rejects these as usage errors: exit code 2.
    for (flags, says) in [
        ("--keys 5x", "5x"),
        ("--keys 1m,tiny", "tiny"),
        ("--pairs -3", "-3"),
        ("--keys-by habit", "habit"),
        ("--memory-limit much", "512MB"),
        ("--sync sometimes", "sometimes"),
        ("--cache-mb 0", "cache-mb"),
        ("--memory-budget 1GB --cache-mb 5", "cannot be used with"),
        ("--memory-budget 1GB --memory-limit 1GB", "cannot be used with"),
        ("--unbounded-pages", "--memory-budget"),
        ("--retention 18446744073709551616", "retention"),
        ("--layout flat", "flat"),
    ] {
        let output = race(&scene, flags).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags}: {stderr}");
        assert!(stderr.contains(says), "{flags}: {stderr}");
    }
    // An invalid cache folder.
    scene.write("file", "");
    let mut command = race_with_cache(&scene, &scene.at("file"), "--backends raw --keys 10");
    fails_saying(&mut command, &["file", "--state-cache"]);
}

#[test]
fn reads_and_hot_keys_are_params_when_asked_for() {
    let scene = TestFolder::new();
    let more = "--sync none --pairs 1k --commit-every 100 --backends raw,mpt --keys 2k --reads 0.5 --keys-by zipf";
    let printed = succeeds(&mut race(&scene, more));
    assert!(printed.contains("50% reads") && printed.contains("Zipf"), "{printed}");
    for result in scene.json("report.json")["results"].as_array().unwrap() {
        let (params, ops) = (&result["params"], result["ops"].as_u64().unwrap());
        assert_eq!((&params["reads"], &params["keys_by"]), (&0.5.into(), &"zipf".into()));
        assert!((1300..1700).contains(&ops), "{ops}");
    }
}

#[test]
fn real_blocks_are_raced_from_the_corpus() {
    let scene = TestFolder::new();
    let real = "--sync none --keys real --pairs 3k --pad-accounts 1k --backends raw,mpt --slices 2";
    let missing = scene.at("nowhere");
    fails_saying(race(&scene, real).env("RETRIE_DATA", &missing), &["RETRIE_DATA", "witness"]);
    let Some(mainnet) = mainnet() else { return };
    let mut command = race(&scene, real);
    let printed = succeeds(command.env("RETRIE_DATA", mainnet.parent().unwrap()));
    for part in ["mainnet blocks", "of these removed", "a block a commit", "1,000 random accounts"]
    {
        assert!(printed.contains(part), "{part} is not in: {printed}");
    }
    for result in scene.json("report.json")["results"].as_array().unwrap() {
        let params = &result["params"];
        assert_eq!((&params["keys"], &params["pad_accounts"]), (&"real".into(), &1000.into()));
        assert!(params["blocks"].as_u64() > Some(75));
        assert!(result["ops"].as_u64() >= Some(3000));
    }
}

#[test]
fn interrupted_race_leaves_what_was_measured() {
    let scene = TestFolder::new();
    // One short race, and one long race.
    let more = "--sync none --backends raw --keys 2k,3k --pairs 300k --commit-every 50 --warmup 0 --slices 100";
    let mut command = race(&scene, more);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    // The settings of the second race are printed before it begins.
    let second = printed.by_ref().map(Result::unwrap).find(|line| line.contains("3,000 keys"));
    assert!(second.is_some());
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "INT");
    let rest: Vec<_> = printed.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].contains("stopped"), "{stderr}");
    let report = scene.json("report.json");
    assert_eq!(report["complete"], false);
    let results = report["results"].as_array().unwrap();
    let slices = |result: &Value| result["slices"].as_array().unwrap().len();
    assert_eq!((slices(&results[0]), &results[0]["ops"]), (100, &600_000.into()));
    // The report has the slices of the second race that ran, unless it stopped before the first.
    if let Some(second) = results.get(1) {
        let done = slices(second);
        assert!((1..100).contains(&done), "{done}");
        assert_eq!(second["ops"], 6000 * done as u64);
        assert!(errors[0].contains(&format!("{done} of 100 slices")), "{stderr}");
        assert!(rest.iter().any(|line| line.contains("without the final flush")), "{rest:?}");
    }
}

#[test]
fn results_outlive_the_pipe_they_are_printed_to() {
    let scene = TestFolder::new();
    let mut command = race(&scene, "--sync none --pairs 20k --backends raw --keys 2k,3k");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    // The last line before the race.
    assert!(printed.by_ref().map(Result::unwrap).any(|line| line.starts_with("equal terms")));
    drop(printed);
    child.wait_with_output().unwrap();
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    assert_eq!((&results[0]["ops"], &report["complete"]), (&40_000.into(), &false.into()));
}
