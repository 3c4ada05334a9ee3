//! A report of any command, in the common shape for pages and comparisons.

use super::{BenchReport, BenchResult, LatencyPoint, SliceResult, words::number};
use crate::latency::LatencyHistogram;
use flate2::read::MultiGzDecoder;
use retrie_pipeline::{
    replay::{BundleOutcome, PartSpec},
    report::{MachineSpread, MergeSummary, ReplayReport, ReplayResult},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, io::Read, path::Path, time::Duration};

/// Why a file cannot be read as a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The file cannot be read.
    #[error("reading {file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not JSON, or is not a report.
    #[error("{file} is not a report of `retrie bench` or `retrie replay`: {source}")]
    Shape {
        /// The file.
        file: String,
        /// The cause, with line and column if the text is wrong.
        source: serde_json::Error,
    },
    /// The report has no results.
    #[error("{file} holds no results: the run was stopped before the first one")]
    Empty {
        /// The file.
        file: String,
    },
}

/// A report of `retrie bench` or `retrie replay`. A replay becomes results of the workload
/// `replay`: one per backend, and one more for each kind of bundles if there are several, because a
/// backend that opens witnesses commits nothing for them.
#[derive(Clone, Debug)]
pub struct ReportDocument {
    /// Its name for readers: a file name, or the command.
    pub name: String,
    /// The original JSON.
    pub json: Value,
    /// The report in the shape of `retrie bench`.
    pub report: BenchReport,
    /// Failed checks, one line each.
    pub failures: Vec<String>,
}

impl ReportDocument {
    /// Reads a report from a file.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let file = path.display().to_string();
        let text =
            report_text(path).map_err(|source| ReportError::Io { file: file.clone(), source })?;
        Self::parse(&file, &text)
    }

    /// Parses the text of a report; `file` is its name in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, ReportError> {
        let shape = |source| ReportError::Shape { file: file.into(), source };
        let json: Value = serde_json::from_str(text).map_err(shape)?;
        // A result of a replay has the field `chain`; a result of a bench command has `workload`.
        let is_replay = json["results"][0].get("chain").is_some();
        let mut document = if is_replay {
            let report: ReplayReport = serde_json::from_value(json.clone()).map_err(shape)?;
            Self { json, ..Self::from(&report) }
        } else {
            let report: BenchReport = serde_json::from_value(json.clone()).map_err(shape)?;
            Self { json, ..Self::from(&report) }
        };
        if document.report.results.is_empty() && document.report.references.is_empty() {
            return Err(ReportError::Empty { file: file.into() });
        }
        document.name = file.into();
        Ok(document)
    }
}

/// The text of a report's file, which may be compressed with gzip.
pub fn report_text(path: &Path) -> std::io::Result<String> {
    let bytes = std::fs::read(path)?;
    let text = if bytes.starts_with(&GZIP) {
        let mut text = Vec::new();
        MultiGzDecoder::new(&bytes[..]).take(LARGEST + 1).read_to_end(&mut text)?;
        if text.len() as u64 > LARGEST {
            return Err(std::io::Error::other("it holds more than a report can have: 1 GiB"));
        }
        text
    } else {
        bytes
    };
    String::from_utf8(text).map_err(|_| std::io::Error::other("it is no text"))
}

/// The first bytes of a gzip file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The largest text of a report, so that a small file does not fill the memory.
const LARGEST: u64 = 1 << 30;

impl From<&BenchReport> for ReportDocument {
    fn from(report: &BenchReport) -> Self {
        Self {
            name: report.command.clone(),
            json: json!(report),
            report: report.clone(),
            failures: Vec::new(),
        }
    }
}

impl From<&ReplayReport> for ReportDocument {
    fn from(report: &ReplayReport) -> Self {
        let json = json!(report);
        let failures = |result: &ReplayResult| {
            let name = result.backend.clone();
            let lines = result.failures.clone();
            lines.into_iter().map(move |line| format!("{name}: {line}")).collect::<Vec<_>>()
        };
        Self {
            name: report.command.clone(),
            report: BenchReport {
                machine: report.machine.clone(),
                version: report.version.clone(),
                command: report.command.clone(),
                complete: report.complete,
                results: report.results.iter().flat_map(replay_results).collect(),
                notes: report.merged.iter().flat_map(merged_notes).collect(),
                ..BenchReport::default()
            },
            failures: report.results.iter().flat_map(failures).collect(),
            json,
        }
    }
}

/// Notes about a merged report: its parts, and the rates of its machines.
fn merged_notes(merged: &MergeSummary) -> Vec<String> {
    let list =
        |parts: &[PartSpec]| parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut notes = vec![format!("Merged from {} of {} parts.", merged.runs.len(), merged.parts)];
    if !merged.missing.is_empty() {
        notes.push(format!("Parts that are missing: {}.", list(&merged.missing)));
    }
    if !merged.repeated.is_empty() {
        let twice = list(&merged.repeated);
        notes.push(format!(
            "Parts that came twice, with the same results, and count once: {twice}."
        ));
    }
    notes.extend(merged.spread.iter().map(spread_note));
    notes
}

fn spread_note(spread: &MachineSpread) -> String {
    format!(
        "{}: transactions a second on each of {} machines: {} at the least, {} in the median, {} at most; \
         {} on all together.",
        spread.backend,
        spread.machines.len(),
        number(spread.tps_min),
        number(spread.tps_median),
        number(spread.tps_max),
        number(spread.tps_sum),
    )
}

/// The results of a replay: all bundles, then each kind of bundles.
fn replay_results(result: &ReplayResult) -> Vec<BenchResult> {
    let mut kinds: BTreeMap<&str, Vec<&BundleOutcome>> = BTreeMap::new();
    for bundle in &result.bundles {
        kinds.entry(bundle.kind.as_ref()).or_default().push(bundle);
    }
    let all: Vec<_> = result.bundles.iter().collect();
    let what = match kinds.len() {
        0 => "chain",
        1 => kinds.keys().next().copied().unwrap_or_default(),
        _ => "all bundles",
    };
    let whole = BenchResult {
        ops: result.txs,
        seconds: result.seconds,
        ops_per_s: result.tps,
        tps: Some(result.tps),
        breakdown: Some(result.breakdown),
        reads_per_op: Some(result.amplification.reads_per_op),
        writes_per_op: Some(result.amplification.writes_per_op),
        read_bytes_per_op: Some(result.amplification.read_bytes_per_op),
        write_bytes_per_op: Some(result.amplification.write_bytes_per_op),
        disk_bytes: result.disk_bytes,
        peak_rss_bytes: result.peak_rss_bytes,
        of_limit: result.of_limit,
        ..of_bundles(result, what, &all)
    };
    let apart = kinds.iter().filter(|_| kinds.len() > 1);
    std::iter::once(whole)
        .chain(apart.map(|(kind, bundles)| of_bundles(result, kind, bundles)))
        .collect()
}

/// Throughput and latency of the given bundles of a replay. The latency of a block is its timed
/// seconds, and each block is a slice: blocks differ, but the same block can be compared between
/// reports.
fn of_bundles(result: &ReplayResult, what: &str, bundles: &[&BundleOutcome]) -> BenchResult {
    let mut latency = LatencyHistogram::default();
    for bundle in bundles {
        latency.record(Duration::from_secs_f64(bundle.seconds.max(0.0)));
    }
    let mut slices = Vec::new();
    let mut txs = 0;
    for bundle in bundles.iter().filter(|bundle| bundle.txs > 0 && bundle.seconds > 0.0) {
        txs += bundle.txs;
        let ops_per_s = bundle.txs as f64 / bundle.seconds;
        slices.push(SliceResult { ops: txs, ops_per_s, disk_bytes: None, memory_bytes: 0 });
    }
    let seconds: f64 = bundles.iter().map(|bundle| bundle.seconds).sum();
    let rate = if seconds > 0.0 { txs as f64 / seconds } else { 0.0 };
    let at = |quantile| (!bundles.is_empty()).then(|| latency.micros(quantile));
    let blocks = if bundles.is_empty() { result.blocks } else { bundles.len() as u64 };
    let mut params = Map::new();
    params.insert("chain".into(), json!(result.chain));
    params.insert("blocks".into(), json!(blocks));
    params.insert("from".into(), json!(result.from));
    params.insert("to".into(), json!(result.to));
    params.insert("kind".into(), json!(what));
    BenchResult {
        backend: result.backend.clone(),
        workload: "replay".into(),
        params,
        ops: txs,
        seconds,
        ops_per_s: rate,
        tps: Some(rate),
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: at(1.0),
        slices,
        latency: LatencyPoint::of(&latency),
        ..BenchResult::default()
    }
}
