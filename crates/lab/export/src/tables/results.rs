//! Tables of reports: `results`, a row for each result, and `result_blocks`, a row for each bundle
//! that a replay checked. Each report gives one file per table, with the report's name.

use super::{ExportTable, hash};
use crate::{
    ExportError, ExportOutcome,
    column::TableSchema,
    file::{self, FileStamp, TableFile},
};
use alloy_primitives::keccak256;
use retrie_pipeline::{
    replay::BundleOutcome,
    report::{ReplayReport, ReplayResult, TimeBreakdown},
};
use retrie_report::{BenchReport, BenchResult, ReportDocument};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The head of a report.
struct ReportHead {
    name: String,
    command: String,
    machine: String,
    version: String,
    complete: bool,
}

/// A result of a race, or of a replay.
struct ResultRow {
    report: Arc<ReportHead>,
    result: BenchResult,
    replay: Option<ReplayResult>,
}

impl ResultRow {
    fn breakdown(&self) -> Option<TimeBreakdown> {
        self.replay.as_ref().map_or(self.result.breakdown, |replay| Some(replay.breakdown))
    }
}

/// The checks of one replayed bundle.
struct BlockRow {
    report: Arc<ReportHead>,
    backend: String,
    chain: String,
    outcome: BundleOutcome,
}

fn result_schema() -> TableSchema<ResultRow> {
    let replay = |schema: TableSchema<ResultRow>| {
        schema
            .text("chain", |r| Some(r.replay.as_ref()?.chain.clone()))
            .u64("from_block", |r| Some(r.replay.as_ref()?.from))
            .u64("to_block", |r| Some(r.replay.as_ref()?.to))
            .u64("n_blocks", |r| Some(r.replay.as_ref()?.blocks))
            .u64("n_transactions", |r| Some(r.replay.as_ref()?.txs))
            .u64("gas_used", |r| Some(r.replay.as_ref()?.gas))
            .f64("mgas_per_s", |r| Some(r.replay.as_ref()?.mgas_per_s))
            .bool("ok", |r| Some(r.replay.as_ref()?.ok))
            .text("failures", |r| Some(r.replay.as_ref()?.failures.join("\n")))
            .binary("root", |r| hash(r.replay.as_ref()?.root))
    };
    let schema = TableSchema::<ResultRow>::new()
        .text("report", |r| Some(r.report.name.clone()))
        .text("command", |r| Some(r.report.command.clone()))
        .text("machine", |r| Some(r.report.machine.clone()))
        .text("version", |r| Some(r.report.version.clone()))
        .bool("complete", |r| Some(r.report.complete))
        .text("workload", |r| Some(r.result.workload.clone()))
        .text("backend", |r| Some(r.result.backend.clone()))
        .text("params", |r| serde_json::to_string(&r.result.params).ok());
    replay(schema)
        .u64("ops", |r| Some(r.result.ops))
        .f64("seconds", |r| Some(r.result.seconds))
        .f64("ops_per_s", |r| Some(r.result.ops_per_s))
        .f64("sustained_ops_per_s", |r| r.result.sustained_ops_per_s)
        .f64("tps", |r| r.result.tps)
        .f64("spread", |r| r.result.spread)
        .u64("p50_us", |r| r.result.p50_us)
        .u64("p99_us", |r| r.result.p99_us)
        .u64("p999_us", |r| r.result.p999_us)
        .u64("max_us", |r| r.result.max_us)
        .f64("execution_s", |r| Some(r.breakdown()?.execution))
        .f64("authentication_s", |r| Some(r.breakdown()?.authentication))
        .f64("storage_io_s", |r| Some(r.breakdown()?.storage_io))
        .f64("other_s", |r| Some(r.breakdown()?.other))
        .f64("reads_per_op", |r| r.result.reads_per_op)
        .f64("writes_per_op", |r| r.result.writes_per_op)
        .f64("read_bytes_per_op", |r| r.result.read_bytes_per_op)
        .f64("write_bytes_per_op", |r| r.result.write_bytes_per_op)
        .u64("disk_bytes", |r| Some(r.result.disk_bytes))
        .u64("peak_rss_bytes", |r| Some(r.result.peak_rss_bytes))
}

fn block_schema() -> TableSchema<BlockRow> {
    TableSchema::<BlockRow>::new()
        .text("report", |r| Some(r.report.name.clone()))
        .text("backend", |r| Some(r.backend.clone()))
        .text("chain", |r| Some(r.chain.clone()))
        .u64("block_number", |r| Some(r.outcome.number))
        .text("kind", |r| Some(r.outcome.kind.to_string()))
        .text("fork", |r| Some(r.outcome.fork.clone()))
        .u64("n_transactions", |r| Some(r.outcome.txs))
        .u64("gas_used", |r| Some(r.outcome.gas))
        .f64("seconds", |r| Some(r.outcome.seconds))
        .bool("ok", |r| Some(r.outcome.ok()))
        .bool("gas_ok", |r| Some(r.outcome.gas_ok))
        .bool("bloom_ok", |r| Some(r.outcome.bloom_ok))
        .bool("receipts_ok", |r| r.outcome.receipts_ok)
        .bool("requests_ok", |r| r.outcome.requests_ok)
        .bool("root_ok", |r| r.outcome.root_ok)
}

/// Writes `tables` of reports, as `--json` of `retrie replay` and `retrie bench` writes them, into
/// the folder `out`. Tables that are made of blocks are skipped.
///
/// # Errors
/// If a report cannot be read, two reports have the same name, or a file cannot be written; and,
/// unless `overwrite` is set, if an existing file does not hold exactly this report.
pub fn export_reports(
    out: &Path,
    tables: &[ExportTable],
    reports: &[PathBuf],
    overwrite: bool,
) -> Result<ExportOutcome, ExportError> {
    std::fs::create_dir_all(out)
        .map_err(|error| file::io_error(out, "create the folder", error))?;
    let mut exported = ExportOutcome::default();
    let mut names = BTreeSet::new();
    for path in reports {
        let text = std::fs::read_to_string(path)
            .map_err(|error| file::io_error(path, "read the report", error))?;
        let document = ReportDocument::parse(&path.display().to_string(), &text)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.strip_suffix(".json").unwrap_or(&name);
        if !names.insert(stem.to_owned()) {
            let what = format!("of two reports called {stem}; give one of them another name");
            return Err(ExportError::OtherContent { path: path.clone(), what });
        }
        let content = format!("report {name}");
        let stamp = FileStamp { chain_id: 0, content, digest: keccak256(&text) };
        let (results, blocks) = rows(name.clone(), &document);
        for table in tables {
            let target = out.join(format!("{table}__{stem}.parquet"));
            match table {
                ExportTable::Results => {
                    write(
                        &target,
                        *table,
                        result_schema(),
                        &results,
                        &stamp,
                        overwrite,
                        &mut exported,
                    )?;
                }
                ExportTable::ResultBlocks => {
                    write(
                        &target,
                        *table,
                        block_schema(),
                        &blocks,
                        &stamp,
                        overwrite,
                        &mut exported,
                    )?;
                }
                _ => {}
            }
        }
    }
    Ok(exported)
}

fn write<R>(
    target: &Path,
    table: ExportTable,
    schema: TableSchema<R>,
    rows: &[R],
    stamp: &FileStamp,
    overwrite: bool,
    exported: &mut ExportOutcome,
) -> Result<(), ExportError> {
    if !overwrite && target.exists() {
        let rows = file::check(target, table.name(), &schema, stamp)?;
        exported.count_kept(table, rows);
        return Ok(());
    }
    let mut file = TableFile::create(target, table.name(), schema)?;
    rows.iter().try_for_each(|row| file.push(row))?;
    exported.count_written(table, file.finish(stamp)?);
    Ok(())
}

fn rows(name: String, document: &ReportDocument) -> (Vec<ResultRow>, Vec<BlockRow>) {
    let BenchReport { machine, version, command, complete, results, .. } = &document.report;
    let report = Arc::new(ReportHead {
        name,
        command: command.clone(),
        machine: machine.clone(),
        version: version.clone(),
        complete: *complete,
    });
    // A document splits a replay by kinds of bundles; this table has one row per backend.
    let Ok(ReplayReport { results: replays, .. }) = serde_json::from_value(document.json.clone())
    else {
        let row = |result: &BenchResult| ResultRow {
            report: report.clone(),
            result: result.clone(),
            replay: None,
        };
        return (results.iter().map(row).collect(), Vec::new());
    };
    let mut blocks = Vec::new();
    let mut rows = Vec::new();
    for mut replay in replays {
        for outcome in std::mem::take(&mut replay.bundles) {
            blocks.push(BlockRow {
                report: report.clone(),
                backend: replay.backend.clone(),
                chain: replay.chain.clone(),
                outcome,
            });
        }
        let result = BenchResult {
            backend: replay.backend.clone(),
            workload: "replay".into(),
            ops: replay.txs,
            seconds: replay.seconds,
            ops_per_s: replay.tps,
            tps: Some(replay.tps),
            reads_per_op: Some(replay.amplification.reads_per_op),
            writes_per_op: Some(replay.amplification.writes_per_op),
            read_bytes_per_op: Some(replay.amplification.read_bytes_per_op),
            write_bytes_per_op: Some(replay.amplification.write_bytes_per_op),
            disk_bytes: replay.disk_bytes,
            peak_rss_bytes: replay.peak_rss_bytes,
            ..BenchResult::default()
        };
        rows.push(ResultRow { report: report.clone(), result, replay: Some(replay) });
    }
    (rows, blocks)
}
