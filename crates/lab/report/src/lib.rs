//! The `--json` reports of `retrie bench`, written and read: fields that every workload has, which
//! other programs read, and additional ones.
//!
//! * [`ReportDocument`]: a report of any command, read from a file or new.
//! * [`FigureOutline`]: a figure of a paper, for a report that is ordered by figures.
//! * [`page()`]: writes documents as one HTML page; [`picture`] writes them as one SVG.
//! * [`compare`]: finds regressions between two documents, and separates them from noise.
//! * [`merge`]: combines the reports of the parts of a replay.
//! * [`latency`], [`stats`]: histograms of durations; rates, medians, spreads, and the ratio of two
//!   series.
//!
//! # Vocabulary
//! * **Variant**: a workload with one set of parameters. Results of different variants do not
//!   compare.
//! * **Slice**: a part of the measured workload. The contenders of a race run a slice directly one
//!   after the other, so that noise of the machine meets all of them.
//! * **Yardstick**: the contender that the others are compared with; `raw`, if it takes part.

pub mod compare;
mod document;
pub mod latency;
pub mod merge;
mod outline;
mod page;
mod setting;
pub mod stats;
mod variant;
mod words;

pub use document::{ReportDocument, ReportError, report_text};
pub use outline::{FigureOutline, FigurePlot, FinishedStep, PlotAxis};
pub use page::{figure_verdicts, page, picture};
pub use words::percent;

use crate::latency::LatencyHistogram;
use retrie_pipeline::report::{TimeBreakdown, machine};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Report of one `retrie bench` command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BenchReport {
    /// The machine the figures were measured on.
    pub machine: String,
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Whether everything was measured; `false` if the command was stopped before its end.
    #[serde(default = "yes")]
    pub complete: bool,
    /// One result for each backend and variant of the workload.
    pub results: Vec<BenchResult>,
    /// Notes for readers: the paper that is followed, what had to be left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Figures of papers and of their authors' programs, to show beside ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<ReferenceFigure>,
    /// The paper that was run: its short title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<String>,
    /// The figures of that paper, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<FigureOutline>,
    /// The steps of the run that have ended, in order, if a stopped run can be continued.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<FinishedStep>,
}

const fn yes() -> bool {
    true
}

impl BenchReport {
    /// The report of `command` on this machine.
    pub fn new(command: String, results: Vec<BenchResult>) -> Self {
        Self {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION").into(),
            command,
            complete: true,
            results,
            ..Self::default()
        }
    }
}

/// The result of one backend on one variant of a workload. Fields that do not apply to a workload
/// are absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BenchResult {
    /// Backend name.
    pub backend: String,
    /// Workload name.
    pub workload: String,
    /// The parameters. Results of one workload with equal params were raced against each other.
    pub params: Map<String, Value>,
    /// Number of measured operations.
    pub ops: u64,
    /// Timed seconds, with all deferred work.
    pub seconds: f64,
    /// Operations per second: median of the slices.
    pub ops_per_s: f64,
    /// Transactions per second: median of the slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tps: Option<f64>,
    /// Median latency of a commit or block in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
    /// 99.9th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<u64>,
    /// Longest latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_us: Option<u64>,
    /// Rows read at the node interface per key read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_per_op: Option<f64>,
    /// Rows written at the node interface per key written; journal and undo are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes_per_op: Option<f64>,
    /// Bytes read at the node interface per key read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_op: Option<f64>,
    /// Bytes written at the node interface per key written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_op: Option<f64>,
    /// The four fields above for each table that was read or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Vec<TableResult>>,
    /// Bytes of live pages and files at the end, after all folds.
    pub disk_bytes: u64,
    /// Bytes of other files of the state: superseded files kept for reverts, or files written ahead
    /// of the block that publishes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_file_bytes: Option<u64>,
    /// Largest resident set of the process during this race, in bytes.
    pub peak_rss_bytes: u64,
    /// Interquartile range of the slices' throughput over its median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// How the seconds were spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<TimeBreakdown>,
    /// All operations divided by all timed seconds, with deferred work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_ops_per_s: Option<f64>,
    /// The slices, in the order in which they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<SliceResult>,
    /// Quantiles of the latency of commits or blocks, in rising order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<LatencyPoint>,
    /// Seconds that the slices spent waiting for background work at their end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<f64>,
    /// Seconds that blocks spent waiting for background jobs, if there was a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_wait_seconds: Option<f64>,
    /// Seconds of the final flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_seconds: Option<f64>,
    /// Bytes of journal rows per key written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_bytes_per_op: Option<f64>,
    /// Bytes of undo rows per key written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_bytes_per_op: Option<f64>,
    /// Growth of allocated memory during the backend's turns, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// Bytes of pages of the backend's files that were mapped and in memory at the end of its last
    /// turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_bytes: Option<u64>,
    /// How often what was looked up was in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rates: Option<HitRates>,
    /// Proofs of one key each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<ProofResult>,
    /// Bytes of free pages of its database at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// The least seconds that the machine needs for this workload, divided by `seconds`; absent if
    /// its limits were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
    /// Under an attack: the ratio of its rates to those on the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_baseline: Option<BaselineRatio>,
    /// Figures of this workload alone, by name: hashes of a proof, chunks of a tree.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, f64>,
    /// Number of the repetition, from 1, if the run was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition: Option<u32>,
}

/// Shares of lookups that found what they wanted in memory, 0 to 1. Lookups of prefetches count too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitRates {
    /// Of all lookups in the backend's caches and of single rows: what did not have to be read from
    /// the tables.
    pub all: f64,
    /// Of the lookups in the backend's own caches; absent if it has none, or counts none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<f64>,
    /// Of the reads of single rows, those of rows that no fold had moved to the tables yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<f64>,
}

/// Rates of a store under an attack, relative to its rates on the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselineRatio {
    /// Median of the ratios of slices that ran directly after each other.
    pub median: f64,
    /// Interquartile range of these ratios divided by their median.
    pub spread: f64,
    /// Ratio of the sustained rates.
    pub sustained: f64,
}

/// The counts of a backend on one of its tables. Reads are per key read, writes per key written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableResult {
    /// Name of the table.
    pub name: String,
    /// Rows read.
    pub reads_per_op: f64,
    /// Rows written or deleted.
    pub writes_per_op: f64,
    /// Bytes read.
    pub read_bytes_per_op: f64,
    /// Bytes written.
    pub write_bytes_per_op: f64,
}

/// One turn of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceResult {
    /// Number of operations up to the end of the slice.
    pub ops: u64,
    /// Operations per second in the slice.
    pub ops_per_s: f64,
    /// Bytes of live pages and files at the end of the slice, with the unfolded journal; absent if
    /// it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Growth of allocated memory up to the end of the slice, in bytes.
    pub memory_bytes: i64,
}

/// A quantile of the latency distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyPoint {
    /// The fraction of commits or blocks, 0 to 1.
    pub quantile: f64,
    /// The latency that this fraction does not exceed, in microseconds.
    pub us: u64,
}

impl LatencyPoint {
    /// The quantiles in a report: those of a box plot and its tail.
    const QUANTILES: [f64; 9] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];

    /// The points of a distribution; empty without durations.
    pub fn of(latency: &LatencyHistogram) -> Vec<Self> {
        if latency.count() == 0 {
            return Vec::new();
        }
        Self::QUANTILES.map(|quantile| Self { quantile, us: latency.micros(quantile) }).to_vec()
    }
}

/// The cost of proofs of one key each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProofResult {
    /// Whether the keys have a value.
    pub present: bool,
    /// Number of keys that the median proof shows, with or without a value, if a proof shows those of
    /// a commit and not one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
    /// Depth of the proven state in blocks below the tip, if proofs of old states were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Microseconds to make the first proof in this state, which is not among the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_us: Option<u64>,
    /// Number of proofs.
    pub count: u64,
    /// Time to make a proof.
    pub made: ProofTime,
    /// Time to verify a proof.
    pub verified: ProofTime,
    /// Lengths of the proofs.
    pub bytes: ProofBytes,
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofTime {
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Longest.
    pub max_us: u64,
}

/// Lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofBytes {
    /// Shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// Longest.
    pub max: u64,
}

/// A figure that a paper has published, or that was measured here with the program of another
/// project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceFigure {
    /// The source: paper and figure or table, or the program that was measured here.
    pub source: String,
    /// The system, under the name of our backend if it is the same design.
    pub system: String,
    /// Name of the workload, as in [`BenchResult::workload`].
    pub workload: String,
    /// The setting, in words: `5m receivers`, `10^4 blocks`.
    pub setting: String,
    /// The metric: `tps`, `ops_per_s`, `ratio to mpt`, `read amplification`.
    pub metric: String,
    /// The value.
    pub value: f64,
    /// Names of the figures that it belongs to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<String>,
}
