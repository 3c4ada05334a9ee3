//! What `--json` of `retrie bench` writes: the shape that DESIGN section 6 fixes for every workload.

use retrie_pipeline::report::machine;
use serde::Serialize;
use serde_json::{Map, Value};

/// Report of one `retrie bench` command.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The machine the figures were measured on.
    pub machine: String,
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// One result a backend and variant of the workload.
    pub results: Vec<BenchResult>,
}

impl BenchReport {
    /// The report of `command` on this machine.
    pub fn new(command: String, results: Vec<BenchResult>) -> Self {
        Self { machine: machine(), version: env!("CARGO_PKG_VERSION").into(), command, results }
    }
}

/// What one backend did on one variant of a workload. Fields that make no sense for a workload are
/// absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BenchResult {
    /// Backend name.
    pub backend: String,
    /// Workload name.
    pub workload: String,
    /// What was asked for, and under `measured` what goes beyond the fixed fields.
    pub params: Map<String, Value>,
    /// Operations measured.
    pub ops: u64,
    /// Timed seconds, all deferred work included.
    pub seconds: f64,
    /// Operations a second: median of the slices.
    pub ops_per_s: f64,
    /// Transactions a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tps: Option<f64>,
    /// Median latency in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
    /// 99.9th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<u64>,
    /// Longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<u64>,
    /// Rows read at the node interface per key read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_per_op: Option<f64>,
    /// Rows written at the node interface per key written; journal and undo are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes_per_op: Option<f64>,
    /// Bytes read at the node interface per key read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_op: Option<f64>,
    /// Bytes written at the node interface per key written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_op: Option<f64>,
    /// The four above by table: of each that was read or written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables: Option<Vec<TableResult>>,
    /// Bytes of live pages and files at the end, after everything has been folded.
    pub disk_bytes: u64,
    /// Largest resident set of the process during this race, in bytes.
    pub peak_rss_bytes: u64,
    /// Interquartile range of the slices' throughput over its median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

/// What a backend did on one of its tables. Reads are per key read, writes per key written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableResult {
    /// Name of the table.
    pub name: &'static str,
    /// Rows read.
    pub reads_per_op: f64,
    /// Rows written or deleted.
    pub writes_per_op: f64,
    /// Bytes read.
    pub read_bytes_per_op: f64,
    /// Bytes written.
    pub write_bytes_per_op: f64,
}
