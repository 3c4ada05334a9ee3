//! Tables from bundles of real blocks, and from reports.

use super::{ParquetRow, bytes, files, flag, number, rows, text};
use crate::common::{TestFolder, fails_saying, mainnet, retrie, succeeds};
use retrie_sources::{Bundle, BundleKind};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

fn export(scene: &TestFolder, more: &[&str], paths: &[PathBuf]) -> Command {
    let mut command = retrie(["export", "--format", "parquet"]);
    command.args(more).arg(scene.at("out")).args(paths);
    command
}

/// Bundles with all kinds of transactions, before and after Byzantium.
fn bundles(mainnet: &Path) -> Vec<PathBuf> {
    [
        "witness/1150001",
        "witness/1150000",
        "prestate/1150000",
        "prestate/46147",
        // Without the ommer that the block rewards.
        "prestate/1796867",
        "witness/21077746",
        "witness/24647140",
    ]
    .map(|name| mainnet.join(format!("{name}.json.gz")))
    .to_vec()
}

fn of_block(rows: &[ParquetRow], block: u64) -> impl Iterator<Item = &ParquetRow> {
    rows.iter().filter(move |row| number(row, "block_number") == Some(block))
}

#[test]
fn real_blocks_of_bundles_are_exported() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let (out, paths) = (scene.path("out"), bundles(&mainnet));
    let printed = succeeds(&mut export(&scene, &["--chunk-size", "4"], &paths));
    assert!(printed.contains("1 blocks are in several bundles"), "{printed}");
    assert!(printed.contains("lack ommers that they pay: 1796867"), "{printed}");
    assert!(printed.contains("16 files written"), "{printed}");
    let names = files(&out, "blocks");
    assert!(names[0].ends_with("ethereum__blocks__00046147_to_01796867.parquet"), "{names:?}");

    let [blocks, txs, receipts, logs] =
        ["blocks", "transactions", "__receipts", "logs"].map(|table| rows(&out, table));
    let loaded = paths.iter().map(|path| Bundle::load(path).unwrap());
    let mut seen = BTreeSet::new();
    let mut types = BTreeSet::new();
    for bundle in loaded.filter(|bundle| seen.insert(bundle.number)) {
        let number_of = |row: &ParquetRow, column| number(row, column).unwrap();
        let row = of_block(&blocks, bundle.number).next().unwrap();
        assert_eq!(bytes(row, "block_hash"), Some(&bundle.hash[..]));
        assert_eq!(number(row, "size").is_some(), bundle.ommers_known);
        assert_eq!(of_block(&txs, bundle.number).count() as u64, bundle.tx_count);
        let used: u64 = of_block(&txs, bundle.number).map(|row| number_of(row, "gas_used")).sum();
        assert_eq!(used, bundle.gas_used);
        let count: u64 =
            of_block(&receipts, bundle.number).map(|row| number_of(row, "n_logs")).sum();
        assert_eq!(of_block(&logs, bundle.number).count() as u64, count);
        let is_witness = matches!(bundle.kind, BundleKind::Witness(_));
        for row in of_block(&receipts, bundle.number) {
            let is_old = bundle.number < 4_370_000;
            assert_eq!(flag(row, "success").is_none(), is_old);
            assert_eq!(bytes(row, "root").is_some(), is_old && is_witness, "{}", bundle.number);
        }
        for row in of_block(&txs, bundle.number) {
            let kind = number_of(row, "transaction_type");
            types.insert(kind);
            assert_eq!(number(row, "max_fee_per_gas").is_some(), kind >= 2);
            assert_eq!(number(row, "n_blobs").is_some_and(|blobs| blobs > 0), kind == 3);
            assert_eq!(number(row, "max_fee_per_blob_gas").is_some(), kind == 3);
            assert_eq!(number(row, "n_authorizations").is_some_and(|all| all > 0), kind == 4);
        }
        for row in of_block(&receipts, bundle.number) {
            let is_blob = number_of(row, "transaction_type") == 3;
            assert_eq!(number(row, "blob_gas_price").is_some(), is_blob);
        }
        let balances = rows(&out, "balance_diffs");
        let changed = of_block(&balances, bundle.number).count();
        assert_eq!(changed > 0, bundle.ommers_known, "{}", bundle.number);
    }
    assert_eq!(blocks.len(), seen.len());
    assert_eq!(types, BTreeSet::from([0, 2, 3, 4]));
    // The same files are kept; another set of bundles shares some blocks with them.
    let printed = succeeds(&mut export(&scene, &["--chunk-size", "4"], &paths));
    assert!(printed.contains("0 files written, 16 were there"), "{printed}");
    fails_saying(&mut export(&scene, &[], &paths[..1]), &["00046147_to_01796867", "twice"]);
}

#[test]
fn results_of_reports_are_exported() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let mut replay = retrie(["replay", "--state-backend", "raw,mpt", "--sync", "none"]);
    replay.args(["--json", &scene.at("night.json")]).args(&bundles(&mainnet)[..3]);
    succeeds(&mut replay);
    let mut bench = retrie(["bench", "state", "--backends", "raw", "--keys", "1000"]);
    succeeds(bench.args(["--json", &scene.at("race.json")]));
    let reports = [scene.path("night.json"), scene.path("race.json")];
    let tables = ["--tables", "results,result_blocks"];
    let printed = succeeds(&mut export(&scene, &tables, &reports));
    assert!(printed.contains("4 files written"), "{printed}");
    let out = scene.path("out");
    assert!(out.join("results__night.parquet").is_file(), "{:?}", files(&out, "results"));

    let results = rows(&out, "results");
    let report = scene.json("night.json");
    for (row, result) in results.iter().zip(report["results"].as_array().unwrap()) {
        assert_eq!(text(row, "backend"), result["backend"].as_str());
        assert_eq!(text(row, "workload"), Some("replay"));
        assert_eq!(number(row, "n_blocks"), result["blocks"].as_u64());
        assert_eq!(number(row, "gas_used"), result["gas"].as_u64());
        assert_eq!(flag(row, "ok"), Some(true));
    }
    let [.., race] = &results[..] else { panic!("no results") };
    assert_eq!(results.len(), 3);
    assert_eq!((text(race, "report"), text(race, "backend")), (Some("race.json"), Some("raw")));
    assert!(number(race, "ops").unwrap() > 0 && number(race, "gas_used").is_none());
    let blocks = rows(&out, "result_blocks");
    assert_eq!(blocks.len(), 6);
    assert!(blocks.iter().all(|row| flag(row, "ok") == Some(true)));

    let printed = succeeds(&mut export(&scene, &tables, &reports));
    assert!(printed.contains("0 files written, 4 were there"), "{printed}");
    // Another report with this name.
    std::fs::copy(scene.path("race.json"), scene.path("night.json")).unwrap();
    let other = &["results__night.parquet", "holds something else", "--overwrite"];
    fails_saying(&mut export(&scene, &tables, &reports), other);
    fails_saying(&mut export(&scene, &tables, &[scene.path("none.json")]), &["none.json"]);
}
