//! What `--json` of `retrie bench` writes, and reads back: the shape that DESIGN section 6 fixes for
//! every workload, and what goes beyond it.
//!
//! * [`Document`]: a report of any command, read from a file or fresh.
//! * [`page()`]: documents as one HTML page.
//! * [`compare`]: what has become slower between two documents, and what is noise.
//! * [`merge`]: reports of parts of a replay as one.

pub mod compare;
mod document;
pub mod merge;
mod page;
mod variant;
mod words;

pub use document::{Document, ReportError};
pub use page::page;
pub use words::percent;

use crate::latency::Latency;
use retrie_pipeline::report::{Breakdown, machine};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Report of one `retrie bench` command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// The machine the figures were measured on.
    pub machine: String,
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Whether all that was asked for was measured; `false` if it was stopped before.
    #[serde(default = "yes")]
    pub complete: bool,
    /// One result a backend and variant of the workload.
    pub results: Vec<BenchResult>,
    /// What a reader has to know: the paper that is followed, what had to be left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Figures of papers and of their authors' programs, to stand beside ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
}

const fn yes() -> bool {
    true
}

impl BenchReport {
    /// The report of `command` on this machine.
    pub fn new(command: String, results: Vec<BenchResult>) -> Self {
        let version = env!("CARGO_PKG_VERSION").into();
        let (notes, references) = Default::default();
        Self { machine: machine(), version, command, complete: true, results, notes, references }
    }
}

/// What one backend did on one variant of a workload. Fields that make no sense for a workload are
/// absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BenchResult {
    /// Backend name.
    pub backend: String,
    /// Workload name.
    pub workload: String,
    /// What was asked for. Results of one workload and equal params were raced against each other.
    pub params: Map<String, Value>,
    /// Operations measured.
    pub ops: u64,
    /// Timed seconds, all deferred work included.
    pub seconds: f64,
    /// Operations a second: median of the slices.
    pub ops_per_s: f64,
    /// Transactions a second: median of the slices.
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
    /// Longest.
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
    /// The four above by table: of each that was read or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Vec<TableResult>>,
    /// Bytes of live pages and files at the end, after everything has been folded.
    pub disk_bytes: u64,
    /// Bytes of files of the state beside those: superseded, but kept for reverts, or made ahead of
    /// the block that publishes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_file_bytes: Option<u64>,
    /// Largest resident set of the process during this race, in bytes.
    pub peak_rss_bytes: u64,
    /// Interquartile range of the slices' throughput over its median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// Where the seconds went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown>,
    /// All operations over all timed seconds, deferred work included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_ops_per_s: Option<f64>,
    /// The slices in the order they were run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<SliceResult>,
    /// The latency that each fraction of the commits or blocks does not exceed, fractions rising.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<LatencyPoint>,
    /// Seconds of the slices that were spent waiting for background work at their end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<f64>,
    /// Seconds within blocks that were spent waiting for work in the background, if any were.
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
    /// By how much allocated memory has grown during its turns, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// Proofs of one key each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<ProofResult>,
    /// Bytes of pages of its database that are free for reuse at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Under an attack: how fast it is beside itself without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_baseline: Option<OfBaseline>,
}

/// How fast a store is under an attack, as a part of how fast it is on the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfBaseline {
    /// Median of the ratios of slices that were run one after the other.
    pub median: f64,
    /// Interquartile range of these over their median.
    pub spread: f64,
    /// Ratio of the sustained rates.
    pub sustained: f64,
}

/// What a backend did on one of its tables. Reads are per key read, writes per key written.
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
    /// Operations measured up to its end.
    pub ops: u64,
    /// Operations a second in it.
    pub ops_per_s: f64,
    /// Bytes of live pages and files at its end, unfolded journal included; absent where nobody
    /// looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// By how much allocated memory has grown up to its end, in bytes.
    pub memory_bytes: i64,
}

/// A point of the distribution of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyPoint {
    /// Fraction of all commits or blocks, 0 to 1.
    pub quantile: f64,
    /// The latency that they do not exceed, in microseconds.
    pub us: u64,
}

impl LatencyPoint {
    /// The fractions of a report: what a box plot and its tail need.
    const QUANTILES: [f64; 9] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];

    /// The points of a distribution; none without durations.
    pub fn of(latency: &Latency) -> Vec<Self> {
        if latency.count() == 0 {
            return Vec::new();
        }
        Self::QUANTILES.map(|quantile| Self { quantile, us: latency.micros(quantile) }).to_vec()
    }
}

/// What proofs of one key cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProofResult {
    /// Whether the keys have a value.
    pub present: bool,
    /// How many blocks below the tip the state lies that is proven, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Microseconds to make the first one of this state, which is none of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_us: Option<u64>,
    /// Number of proofs.
    pub count: u64,
    /// Time to make one.
    pub made: ProofTime,
    /// Time to check one.
    pub verified: ProofTime,
    /// Lengths.
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

/// A figure that somebody else has published or that was measured with somebody else's program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Where it stands: paper and figure or table, or whose program was measured here.
    pub source: String,
    /// The system, by the name of our backend where it is the same design.
    pub system: String,
    /// Name of the workload it belongs to, as in [`BenchResult::workload`].
    pub workload: String,
    /// The setting, in words: `5m receivers`, `10^4 blocks`.
    pub setting: String,
    /// What it is: `tps`, `ops_per_s`, `ratio to mpt`, `read amplification`.
    pub metric: String,
    /// The figure.
    pub value: f64,
}
