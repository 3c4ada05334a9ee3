//! `bench transfers` and the other chain races: reports, invalid input, stopping; and `make-chain
//! --preload`.

use crate::common::{TestFolder, fails_saying, keys, mainnet, retrie, signal, succeeds, words};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::Duration,
};

/// A small race with its cache in the test folder, and more arguments.
fn race(scene: &TestFolder, line: &str) -> Command {
    let mut words = words(line);
    let mut command = retrie(["bench", words.remove(0)]);
    command.args(["--state-cache", &scene.at("cache"), "--json", &scene.at("report.json")]);
    command.args(["--accounts", "200", "--sync", "none"]).args(words);
    if !line.contains("--signers") {
        command.args(["--signers", "20"]);
    }
    command
}

#[test]
fn report_has_both_ways_of_senders_and_all_backends() {
    let scene = TestFolder::new();
    let line = "transfers --blocks 8 --txs 10 --warmup 2 --slices 4 --backends raw,mpt,mpt-archive";
    let printed = succeeds(&mut race(&scene, line));
    for shared in [
        "senders recovered",
        "senders unrecovered",
        "auth us",
        "retention 128",
        "paper has up to 3.1",
    ] {
        assert!(printed.contains(shared), "{shared} is not in: {printed}");
    }
    let report = scene.json("report.json");
    assert_eq!(report["complete"], true);
    let results = report["results"].as_array().unwrap();
    let lanes: Vec<_> = results
        .iter()
        .map(|one| (one["backend"].as_str().unwrap(), one["params"]["senders"].as_str().unwrap()))
        .collect();
    let expected = ["recovered", "unrecovered"]
        .map(|senders| ["raw", "mpt", "mpt-archive"].map(|backend| (backend, senders)));
    assert_eq!(lanes, expected.concat());
    for result in results {
        assert_eq!((&result["workload"], &result["ops"]), (&"transfers".into(), &80.into()));
        assert_eq!(result["tps"], result["ops_per_s"]);
        assert!(result["tps"].as_f64().unwrap() > 0.0);
        assert_eq!(result["slices"].as_array().unwrap().len(), 4);
        assert_eq!(
            keys(&result["breakdown"]),
            ["authentication", "execution", "other", "storage_io"]
        );
        let params = &result["params"];
        assert_eq!((&params["accounts"], &params["txs"]), (&200.into(), &10.into()));
        assert_eq!((&params["blocks"], &params["blocks_per_slice"]), (&8.into(), &2.into()));
        assert_eq!(params["commit_every"], "import, and at the end of a slice");
        for absent in ["proofs", "contracts", "reads"] {
            assert!(result.get(absent).is_none() && params.get(absent).is_none(), "{absent}");
        }
    }
}

/// Generated blocks of two sizes, then mainnet's.
#[test]
fn payloads_have_the_gas_asked_for_or_are_real_ones() {
    let scene = TestFolder::new();
    let made = "new-payload --contracts own --blocks 2 --warmup 1 --slices 2 --backends raw,mpt";
    for (more, says) in [
        ("--gas 1k", "gas target"),
        ("--gas 1m --txs 5", "--txs"),
        ("--gas 1m --blocks-from real", "--blocks-from made,real"),
        ("--senders recovered", "--senders"),
    ] {
        fails_saying(&mut race(&scene, &format!("{made} {more}")), &[says]);
    }
    let missing = scene.at("nowhere");
    let line = format!("{made} --blocks-from real");
    fails_saying(race(&scene, &line).env("RETRIE_DATA", &missing), &["RETRIE_DATA", "prestate"]);
    succeeds(&mut race(&scene, &format!("{made} --gas 200k,1m")));
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    let lanes: Vec<_> = results.iter().map(|one| one["params"]["gas"].as_u64().unwrap()).collect();
    assert_eq!(lanes, [200_000, 200_000, 1_000_000, 1_000_000]);
    assert!(results[2]["ops"].as_u64() > results[0]["ops"].as_u64());

    // Only a few of the real blocks: they are slow without optimisation.
    let Some(mainnet) = mainnet() else { return };
    let few = scene.path("data/mainnet/prestate");
    std::fs::create_dir_all(&few).unwrap();
    for name in ["46147.json.gz", "15537394.json.gz"] {
        std::fs::copy(mainnet.join("prestate").join(name), few.join(name)).unwrap();
    }
    let line = "new-payload --blocks-from real --pad-accounts 1k --slices 2 --backends raw,mpt";
    let printed = succeeds(race(&scene, line).env("RETRIE_DATA", scene.at("data")));
    for part in ["2 mainnet blocks of prestate bundles (1 since the merge)", "times as long as raw"]
    {
        assert!(printed.contains(part), "{part} is not in: {printed}");
    }
    for result in scene.json("report.json")["results"].as_array().unwrap() {
        assert_eq!(result["workload"], "new-payload");
        assert_eq!(
            (&result["params"]["chain"], &result["params"]["blocks"]),
            (&"mainnet".into(), &4.into())
        );
    }
}

#[test]
fn variants_are_races_of_their_own() {
    let scene = TestFolder::new();
    let small = "--blocks 4 --txs 10 --backends raw --senders recovered";
    succeeds(&mut race(
        &scene,
        &format!("kvstore --ratio read-only,write-only --zipf 0.9 {small}"),
    ));
    let report = scene.json("report.json");
    let writes = |n: usize| {
        let params = &report["results"][n]["params"];
        assert_eq!((&params["zipf"], &params["commit_every"]), (&0.9.into(), &1.into()));
        params["reads"].as_u64().unwrap()
    };
    assert_eq!((writes(0), writes(1)), (100, 0));
    for line in ["smallbank", "uniswap --contracts own", "erc20 --contracts own"] {
        succeeds(&mut race(&scene, &format!("{line} {small}")));
        assert_eq!(scene.json("report.json")["results"][0]["ops"], 40);
    }
}

/// `cole:fanout=8` in a race is one of several contenders. Other tests check which names of this
/// kind exist.
#[test]
fn lanes_may_have_flags_of_their_own() {
    let scene = TestFolder::new();
    let line = "smallbank --fresh --signers 1 --blocks 4 --txs 10 --senders recovered --backends";
    succeeds(&mut race(&scene, &format!("{line} lvmt,lvmt:proof-shard=0/4")));
    let report = scene.json("report.json");
    let backend = |n: usize| report["results"][n]["backend"].clone();
    assert_eq!((backend(0), backend(1)), ("lvmt".into(), "lvmt:proof-shard=0/4".into()));
    assert_eq!(report["results"][0]["params"]["fresh"], true);
    for (backend, says) in [
        ("raw:shard=1", "`raw` has no flags"),
        ("lvmt:shard=1", "there are: params, insecure-dev, proof-shard"),
        ("lvmt:proof-shard", "proof-shard"),
    ] {
        fails_saying(&mut race(&scene, &format!("{line} {backend}")), &[says]);
    }
}

#[test]
fn provenance_is_asked_of_backends_that_prove_the_past() {
    let scene = TestFolder::new();
    let ask = |more: &str| {
        let mut command = retrie(words("bench provenance --states 10 --txs 5 --queries 8"));
        command.args(["--state-cache", &scene.at("cache"), "--json", &scene.at("report.json")]);
        command.args(["--report", &scene.at("report.html")]);
        command.args(words(more));
        command
    };
    let printed = succeeds(&mut ask("--blocks 20 --range 2,16 --backends mpt-archive"));
    assert!(printed.contains("mpt-archive") && printed.contains("shared nodes"), "{printed}");
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    let ranges: Vec<_> = results.iter().map(|one| one["params"]["range"].as_u64()).collect();
    assert_eq!(ranges, [Some(2), Some(16)]);
    let bytes = |n: usize| results[n]["proofs"][0]["bytes"]["p50"].as_u64().unwrap();
    assert!(bytes(1) > 4 * bytes(0) && bytes(0) > 0, "{report}");
    assert!(results.iter().all(|one| one["ops"] == 8 && one["disk_bytes"].as_u64() > Some(0)));
    let page = std::fs::read_to_string(scene.path("report.html")).unwrap();
    assert!(page.contains("Provenance queries") && page.contains("mpt-archive"));
    // `cole` proves a range of blocks with one proof, not with one for each block.
    succeeds(&mut ask("--blocks 20 --range 2,16 --backends cole:memory-pairs=50"));
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    let bytes = |n: usize| results[n]["proofs"][0]["bytes"]["p50"].as_u64().unwrap();
    assert!(results.len() == 2 && results.iter().all(|one| one["ops"] == 8), "{report}");
    assert!(bytes(1) < 4 * bytes(0), "{report}");
    // Only the archive takes part, unless other backends are named.
    succeeds(&mut ask("--blocks 20 --range 2"));
    let report = scene.json("report.json");
    let names = report["results"].as_array().unwrap().iter().map(|one| one["backend"].clone());
    assert!(
        names.clone().any(|name| name == "mpt-archive") && !names.into_iter().any(|n| n == "raw")
    );
    fails_saying(&mut ask("--blocks 20 --backends raw"), &["--range 32", "--blocks"]);
    fails_saying(&mut ask("--blocks 200 --backends raw"), &["`raw`", "old blocks"]);
    fails_saying(&mut retrie(words("bench provenance --queries 0")), &["--queries"]);
}

#[test]
fn bad_flags_are_one_line_errors() {
    let scene = TestFolder::new();
    for (line, says) in [
        ("transfers --blocks 0", "--blocks"),
        ("transfers --blocks 4 --slices 5", "4, the number of measured blocks"),
        ("transfers --slices 0", "--slices"),
        ("transfers --commit-every 0", "--commit-every"),
        ("transfers --txs 0", "one transaction"),
        ("transfers --accounts 0", "accounts"),
        ("transfers --signers 0", "senders"),
        ("transfers --backends mptt", "no backend is called `mptt`"),
        ("transfers --backends raw,mpt,raw", "`raw` twice"),
        ("kvstore --zipf 1.5", "Zipf"),
        ("transfers --memory-limit 16MB --backends raw", "a memory limit of 16 MiB is too small"),
        (
            "transfers --memory-limit 512MB --cache-mb 1024 --backends raw",
            "smallest sensible limit is 1",
        ),
    ] {
        fails_saying(&mut race(&scene, line), &[says]);
    }
    let mut command = race(&scene, "erc20 --blocks 1");
    fails_saying(command.env("RETRIE_DATA", scene.at("none")), &["none", "--contracts own"]);
    for (line, says) in [
        ("transfers --senders some", "unrecovered"),
        ("transfers --contracts own", "--contracts"),
        ("erc20 --contracts theirs", "theirs"),
        ("kvstore --ratio half", "read-write"),
        ("smallbank --accounts 5x", "5x"),
        ("new-payload --blocks-from nobody", "nobody"),
        ("transfers --cache-mb 0", "cache-mb"),
        ("kvstore --inserts 101", "inserts"),
        ("uniswap --memory-limit much", "512MB"),
    ] {
        let output = race(&scene, line).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(says), "{line}: {stderr}");
    }
}

#[test]
fn stopped_race_writes_what_it_has_measured() {
    let scene = TestFolder::new();
    let line =
        "transfers --blocks 1500 --txs 2 --slices 1500 --backends raw,mpt --senders recovered";
    let mut child =
        race(&scene, line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("0/1,500 slices") {
        assert!(stderr.read_line(&mut text).unwrap() > 0, "{text}");
    }
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "INT");
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert!(errors[0].contains("of 1500 slices") && errors[0].contains("stopped"), "{text}");
    let report = scene.json("report.json");
    assert_eq!(report["complete"], false);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{report}");
    let ops = |n: usize| results[n]["ops"].as_u64().unwrap();
    assert!(ops(0) > 0 && ops(0) < 3000 && ops(0) == ops(1), "{} {}", ops(0), ops(1));
}

#[test]
fn closed_pipe_loses_no_results() {
    let scene = TestFolder::new();
    let line = "transfers --blocks 4 --txs 10 --slices 2 --backends raw --senders recovered";
    let mut child =
        race(&scene, line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("equal terms") {
        assert!(stdout.read_line(&mut text).unwrap() > 0, "{text}");
    }
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("writing to stdout"), "{stderr}");
    let report = scene.json("report.json");
    assert_eq!(report["complete"], false);
    assert_eq!(report["results"][0]["ops"], 40);
}

#[test]
fn preloaded_chain_is_made_for_any_client() {
    let scene = TestFolder::new();
    let make = |more: &str| {
        let mut command = retrie(["bench", "make-chain", "--txs", "20", "--blocks", "5"]);
        command.args(words(more)).arg(scene.at("made"));
        command
    };
    let mix = "--mix transfers=1,erc20=1,swaps=1,smallbank=1,kvstore=1 --accounts 100";
    let preloaded = "--preload --signers 30 --contracts own";
    for preload in [preloaded, "", &format!("{preloaded} --fork amsterdam")] {
        let printed = succeeds(&mut make(&format!("{mix} {preload}")));
        let blocks: usize = if preload.is_empty() { 0 } else { 100 };
        assert!(printed.contains("made 5 blocks"), "{printed}");
        assert!(blocks == 0 || printed.contains(&format!("{blocks} txs")), "{printed}");
        for backend in ["mpt", "raw"] {
            let datadir = scene.at(&format!("data-{backend}-{}", preload.len()));
            let mut import = retrie(["import", "--chain", &scene.at("made/genesis.json")]);
            import.args(["--datadir", &datadir, "--state-backend", backend, "--json", "-"]);
            let printed = succeeds(import.arg(scene.at("made/chain.rlp")));
            let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
            assert_eq!(report["blocks"], 5);
            assert_eq!(report["roots_checked"], if backend == "mpt" { 5 } else { 0 });
        }
        let lists = std::fs::read(scene.path("made/access-lists.rlp"));
        assert_eq!(lists.is_ok_and(|lists| lists.len() > 5 * 100), preload.contains("amsterdam"));
        std::fs::remove_dir_all(scene.path("made")).unwrap();
    }
    fails_saying(
        make("--preload").env("RETRIE_DATA", scene.at("none")),
        &["runtime.json.gz", "--contracts own"],
    );
    fails_saying(&mut make("--preload --contracts own --reads 101"), &["100 calls"]);
    fails_saying(&mut make("--contracts own"), &["--preload"]);
}
