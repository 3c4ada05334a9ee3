//! Merges small hand-made reports: forged, missing, double and foreign ones.

use super::*;
use alloy_primitives::B256;
use retrie_pipeline::{
    replay::NamedBundle,
    report::{BundleOutcome, PartCoverage, PartFigures, PartInputs, ReplayResult},
};
use serde_json::{Value, json};

const GENESIS: B256 = B256::repeat_byte(7);

fn all_bundles() -> Vec<NamedBundle> {
    let named = |number: u64| NamedBundle { number, file: format!("{number}.json.gz") };
    [10, 20, 30, 40, 50].into_iter().map(named).collect()
}

fn outcome(number: u64) -> BundleOutcome {
    BundleOutcome {
        number,
        kind: "prestate".into(),
        fork: "London".into(),
        txs: number,
        gas: 21_000 * number,
        seconds: 0.5,
        gas_ok: true,
        bloom_ok: true,
        ..BundleOutcome::default()
    }
}

/// The report of a part of five bundles on `mpt` and `raw`, made on `host`.
fn bundles(part: &str, host: &str) -> ReplayReport {
    let part: PartSpec = part.parse().unwrap();
    let all = all_bundles();
    let mine = part.of_list(&all).to_vec();
    let outcomes: Vec<_> = mine.iter().map(|bundle| outcome(bundle.number)).collect();
    let seconds = outcomes.len() as f64 * 0.5;
    let txs: u64 = outcomes.iter().map(|outcome| outcome.txs).sum();
    let result = |backend: &str| ReplayResult {
        backend: backend.into(),
        chain: "mainnet".into(),
        from: mine.first().map_or(0, |bundle| bundle.number),
        to: mine.last().map_or(0, |bundle| bundle.number),
        blocks: outcomes.len() as u64,
        txs,
        gas: 21_000 * txs,
        seconds,
        tps: if seconds > 0.0 { txs as f64 / seconds } else { 0.0 },
        ok: true,
        part: Some(PartFigures { key_reads: 10, key_writes: 10, ..PartFigures::default() }),
        bundles: outcomes.clone(),
        ..ReplayResult::default()
    };
    report(
        part,
        host,
        PartInputs::Bundles { genesis: GENESIS, count: 5, digest: NamedBundle::digest(&all) },
        if mine.is_empty() { PartCoverage::Nothing } else { PartCoverage::Bundles(mine.clone()) },
        vec![result("mpt"), result("raw")],
    )
}

/// The report of a part of blocks 0 to 8 of a chain whose block N has the hash NNNN...
fn chain(part: &str) -> ReplayReport {
    let part: PartSpec = part.parse().unwrap();
    let blocks = part.of_blocks(&(0..=8)).unwrap();
    let (from, to) = (*blocks.start(), *blocks.end());
    let hash =
        |number: u64| if number == 0 { GENESIS } else { B256::repeat_byte(number as u8 + 100) };
    let result = ReplayResult {
        backend: "mpt".into(),
        chain: "dev".into(),
        from,
        to,
        blocks: to - from.max(1) + 1,
        txs: 2,
        seconds: 1.0,
        ok: true,
        root: B256::repeat_byte(to as u8),
        part: Some(PartFigures {
            parent: Some(hash(from.saturating_sub(1))),
            tip: Some(hash(to)),
            ..PartFigures::default()
        }),
        disk_bytes: to * 100,
        ..ReplayResult::default()
    };
    let inputs = PartInputs::Blocks { genesis: GENESIS, from: 0, to: 8 };
    report(part, "a", inputs, PartCoverage::Blocks { from, to }, vec![result])
}

fn report(
    part: PartSpec,
    host: &str,
    inputs: PartInputs,
    covered: PartCoverage,
    results: Vec<ReplayResult>,
) -> ReplayReport {
    let options = [("sync".to_owned(), "none".to_owned())].into();
    ReplayReport {
        machine: "a machine".into(),
        version: "1".into(),
        command: format!("retrie replay --part {part}"),
        complete: true,
        results,
        part: Some(ReplayPart { part, host: host.into(), inputs, options, covered }),
        merged: None,
    }
}

/// Merges `reports` as if read from files named by their indexes: `0.json` and so on.
fn merged(reports: &[ReplayReport]) -> Result<ReplayReport, MergeError> {
    let read = |(place, report): (usize, &ReplayReport)| {
        PartReport::parse(&format!("{place}.json"), &json!(report).to_string())
    };
    let reports = reports.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    merge(&reports, "retrie bench merge".into())
}

/// The report with one member of its JSON changed.
fn changed(report: &ReplayReport, pointer: &str, value: impl Into<Value>) -> ReplayReport {
    let mut json = json!(report);
    *json.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.into();
    serde_json::from_value(json).unwrap()
}

fn refused(reports: &[ReplayReport], says: &[&str]) -> MergeError {
    let error = merged(reports).expect_err("they do not merge");
    let text = error.to_string();
    for part in says {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    error
}

fn three() -> Vec<ReplayReport> {
    vec![bundles("1/3", "a"), bundles("2/3", "b"), bundles("3/3", "b")]
}

#[test]
fn errors_are_small() {
    assert!(size_of::<MergeError>() < 128, "{}", size_of::<MergeError>());
}

#[test]
fn parts_add_up_in_whatever_order_they_come() {
    let [one, two, three] = three().try_into().unwrap();
    let report = merged(&[three, one, two]).unwrap();
    assert!(report.complete && report.part.is_none());
    let result = &report.results[0];
    assert_eq!((result.backend.as_str(), result.from, result.to), ("mpt", 10, 50));
    assert_eq!((result.blocks, result.txs, result.gas), (5, 150, 150 * 21_000));
    let numbers: Vec<_> = result.bundles.iter().map(|outcome| outcome.number).collect();
    assert_eq!(numbers, [10, 20, 30, 40, 50]);
    assert!((result.seconds - 2.5).abs() < 1e-9 && (result.tps - 60.0).abs() < 1e-9);
    let spread = &report.merged.unwrap().spread[0];
    // One bundle of 10 transactions on a, four of 140 on b, half a second each.
    assert_eq!((spread.tps_min, spread.tps_median, spread.tps_max), (20.0, 45.0, 70.0));
    assert_eq!((spread.machines.len(), spread.machines[1].parts, spread.tps_sum), (2, 2, 90.0));
    assert_eq!(report.results[1].backend, "raw");
}

#[test]
fn what_is_missing_is_said_and_what_was_stopped_is_missing() {
    let mut parts = three();
    parts[1].complete = false;
    parts[1].results.clear();
    let report = merged(&parts).unwrap();
    let missing = |report: &ReplayReport| report.merged.clone().unwrap().missing;
    assert!(!report.complete);
    assert_eq!(missing(&report), ["2/3".parse().unwrap()]);
    assert_eq!(report.results[0].blocks, 3);
    // The rest of it alone, and nothing at all.
    let report = merged(&parts[1..2]).unwrap();
    assert_eq!((missing(&report).len(), report.results.len()), (3, 0));
    assert!(matches!(merged(&[]), Err(MergeError::Nothing)));
    // A second, complete report of the part counts once.
    parts.push(bundles("2/3", "c"));
    let report = merged(&parts).unwrap();
    assert!(report.complete && report.merged.unwrap().repeated.is_empty());
}

#[test]
fn a_part_that_came_twice_counts_once_or_names_the_block_that_differs() {
    let mut parts = three();
    let mut again = bundles("3/3", "c");
    again.results[0].seconds = 9.0;
    again.results[0].bundles[0].seconds = 8.0;
    parts.push(again.clone());
    let report = merged(&parts).unwrap();
    assert_eq!(report.results[0].blocks, 5);
    assert_eq!(report.merged.unwrap().repeated, ["3/3".parse().unwrap()]);
    // Another machine has used a different amount of gas in block 50, and its report is consistent.
    again.results[1].bundles[1].gas += 1;
    again.results[1].gas += 1;
    let error =
        refused(&[parts[2].clone(), again.clone()], &["block 50 on raw", "1.json", "0.json"]);
    assert!(matches!(error, MergeError::Differs { block: 50, what: "the gas", .. }), "{error:?}");
    // A check that holds on one machine alone.
    let mut failing = bundles("3/3", "c");
    failing.results[0].bundles[0].bloom_ok = false;
    failing.results[0].ok = false;
    failing.results[0].failures = vec!["block 40 (prestate): logsBloom differ".into()];
    failing.results[0].part.as_mut().unwrap().failed_blocks = vec![40];
    let error = refused(&[parts[2].clone(), failing.clone()], &["block 40 on mpt"]);
    assert!(matches!(error, MergeError::Differs { block: 40, .. }), "{error:?}");
    // Without a second report, the failure is merged with its block number.
    parts.truncate(2);
    parts.push(failing);
    let report = merged(&parts).unwrap();
    assert!(report.complete && !report.results[0].ok && report.results[1].ok);
    assert_eq!(report.results[0].part.as_ref().unwrap().failed_blocks, [40]);
    // A bundle that could not be executed on one of them.
    let mut lacking = bundles("3/3", "c");
    lacking.results[0].bundles.pop();
    lacking.results[0].blocks = 1;
    lacking.results[0].txs = 40;
    lacking.results[0].gas = 40 * 21_000;
    lacking.results[0].ok = false;
    lacking.results[0].failures = vec!["50.json.gz: block 50: a node is missing".into()];
    lacking.results[0].part.as_mut().unwrap().failed_blocks = vec![50];
    let error = refused(&[bundles("3/3", "b"), lacking], &["whether it failed is true in 1.json"]);
    assert!(matches!(error, MergeError::Differs { block: 50, .. }), "{error:?}");
    // A chain names its last block.
    let other = changed(&chain("2/3"), "/results/0/txs", 3);
    let error = refused(&[chain("2/3"), other], &["block 5 on mpt"]);
    assert!(matches!(error, MergeError::Differs { block: 5, .. }), "{error:?}");
}

#[test]
fn reports_of_other_runs_are_foreign() {
    let parts = three();
    for (pointer, value, what) in [
        ("/version", json!("2"), "the version"),
        ("/part/options/sync", json!("durable"), "--sync"),
        ("/part/options", json!({"sync": "none", "hash": "blake2b"}), "--hash"),
        ("/part/options", json!({}), "--sync"),
        ("/part/inputs/digest", json!(B256::ZERO), "what is replayed"),
        ("/part/inputs/genesis", json!(B256::ZERO), "what is replayed"),
        ("/part/inputs/count", json!(6), "what is replayed"),
        ("/results/0/backend", json!("bavl"), "the list of backends"),
        ("/results/1/chain", json!("sepolia"), "the list of backends"),
    ] {
        let foreign = changed(&parts[1], pointer, value);
        let error = refused(&[parts[0].clone(), foreign], &["1.json", "0.json", what]);
        assert!(matches!(error, MergeError::Foreign { .. }), "{error:?}");
    }
    let error = refused(&[bundles("1/3", "a"), bundles("2/4", "a")], &["the number of parts is 4"]);
    assert!(matches!(error, MergeError::Foreign { .. }), "{error:?}");
    refused(&[bundles("1/3", "a"), chain("2/3")], &["what is replayed"]);
    let mut whole = bundles("1/1", "a");
    whole.part = None;
    let error = refused(&[whole], &["0.json", "not the report of a part"]);
    assert!(matches!(error, MergeError::NotAPart { .. }), "{error:?}");
    // What was merged is no part either.
    let error = refused(&[merged(&parts).unwrap()], &["not the report of a part"]);
    assert!(matches!(error, MergeError::NotAPart { .. }), "{error:?}");
    let error = PartReport::parse("x.json", "{\"results\": 7}").unwrap_err();
    assert!(matches!(error, MergeError::Report(_)), "{error:?}");
    assert!(error.to_string().contains("x.json"));
}

#[test]
fn forged_reports_contradict_themselves() {
    let part = bundles("3/3", "a");
    for (pointer, value, says) in [
        ("/results/0/txs", json!(91), "txs"),
        ("/results/0/gas", json!(1), "gas"),
        ("/results/0/blocks", json!(3), "blocks"),
        ("/results/1/ok", json!(false), "raw: ok is false"),
        ("/results/0/failures", json!(["block 50: bad"]), "1 failures and 0 failed"),
        ("/results/0/part/failed_blocks", json!([50]), "1 failed blocks"),
        (
            "/results/0/bundles/0/gas_ok",
            json!(false),
            "block 40 (prestate): gasUsed differ, which is not",
        ),
        ("/results/0/bundles/1/number", json!(60), "block 60 stands where block 50 should"),
        ("/results/0/bundles/1/number", json!(40), "block 40 stands where block 50 should"),
        ("/results/0/bundles/0/seconds", json!(-1.0), "block 40 took -1 seconds"),
        ("/results/0/seconds", json!(-1.0), "seconds is -1"),
        ("/results/0/part", Value::Null, "figures of a part are missing"),
        ("/part/covered", json!("nothing"), "it has 0, there are 2"),
        ("/part/covered", json!({"blocks": {"from": 0, "to": 1}}), "no part of a chain"),
        ("/part/part", json!("1/3"), "it has 2, there are 1"),
    ] {
        let error = refused(&[changed(&part, pointer, value)], &["0.json", says]);
        assert!(matches!(error, MergeError::Contradiction { .. }), "{error:?}");
    }
    let part = chain("2/3");
    for (pointer, value, says) in [
        ("/part/covered", json!({"blocks": {"from": 3, "to": 6}}), "is Some(3..=5)"),
        ("/results/0/to", json!(4), "ends at block 4"),
        ("/results/0/to", json!(9), "ends at block 9"),
        ("/results/0/blocks", json!(2), "has 2 of the blocks 3 to 5"),
        ("/results/0/part/tip", Value::Null, "not the result of a chain"),
    ] {
        let error = refused(&[changed(&part, pointer, value)], &["0.json", says]);
        assert!(matches!(error, MergeError::Contradiction { .. }), "{error:?}");
    }
    // A block of another list, with consistent outcomes: only all parts together show it.
    let mut parts = three();
    let forged = changed(&parts[1], "/part/covered/bundles/1/file", "31.json.gz");
    parts[1] = forged;
    let error = refused(&parts, &["not those of the run"]);
    assert!(matches!(error, MergeError::OtherBundles { .. }), "{error:?}");
    // Another file in one of two reports of the same part.
    let error = refused(&[bundles("2/3", "a"), parts[1].clone()], &["31.json.gz"]);
    assert!(matches!(error, MergeError::Differs { block: 30, .. }), "{error:?}");
}

#[test]
fn parts_of_a_chain_are_linked_by_hash() {
    let parts = ["3/3", "1/3", "2/3"].map(chain);
    let report = merged(&parts).unwrap();
    let result = &report.results[0];
    assert_eq!((result.from, result.to, result.blocks), (0, 8, 8));
    assert_eq!((result.root, result.disk_bytes), (B256::repeat_byte(8), 800));
    let forked = changed(&parts[2], "/results/0/part/parent", json!(B256::ZERO));
    let error = refused(&[parts[1].clone(), forked], &["block 3 of 1.json on mpt", "0.json"]);
    assert!(matches!(error, MergeError::Unlinked { block: 3, .. }), "{error:?}");
    let unrooted = changed(&parts[1], "/results/0/part/parent", json!(B256::ZERO));
    refused(&[unrooted], &["not the genesis"]);
    // All later parts fail at the same invalid block, which is listed once.
    let failing = |part: &str, tip: u64, blocks: u64| {
        let mut report = chain(part);
        let result = &mut report.results[0];
        (result.to, result.blocks, result.ok) = (tip, blocks, false);
        result.failures = vec![format!("block 5 (0x..) is invalid, said part {part}")];
        result.part.as_mut().unwrap().failed_blocks = vec![5];
        report
    };
    let report = merged(&[parts[1].clone(), failing("2/3", 4, 2), failing("3/3", 0, 0)]).unwrap();
    let result = &report.results[0];
    assert_eq!((result.ok, result.to, result.blocks), (false, 4, 4));
    assert_eq!(result.failures, ["block 5 (0x..) is invalid, said part 2/3"]);
    assert_eq!(result.part.as_ref().unwrap().failed_blocks, [5]);
}

#[test]
fn more_parts_than_bundles_are_a_whole_run() {
    let parts: Vec<_> = (1..=7).map(|part| bundles(&format!("{part}/7"), "a")).collect();
    let report = merged(&parts).unwrap();
    assert!(report.complete);
    assert_eq!((report.results[0].blocks, report.results[0].txs), (5, 150));
    // Parts alone that are empty.
    let empty: Vec<_> = parts.into_iter().filter(|part| part.results[0].blocks == 0).collect();
    let report = merged(&empty).unwrap();
    assert_eq!((empty.len(), report.results[0].blocks, report.results[0].ok), (2, 0, true));
}
