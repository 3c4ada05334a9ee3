//! The `--json` report of `retrie bench trees`: the report of every bench command, with timed
//! inserts and searches as results, and shapes and message times.

use super::measure::{MessageTimes, TreeBenchConfig, TreeShape, TreeTimes};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{
    BenchReport, BenchResult, ReportDocument, SliceResult,
    stats::{PairedRatio, quantile},
};
use serde::Serialize;
use serde_json::{Map, json};
use std::time::Duration;

/// Report of `retrie bench trees`.
#[derive(Clone, Debug, Serialize)]
pub struct TreesReport {
    /// The report.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// Shapes: lengths of proofs, and numbers of chunks.
    pub shapes: Vec<TreeShape>,
    /// Times of serialisation.
    pub messages: Vec<MessageTimes>,
}

impl TreesReport {
    /// A report without results.
    pub const fn new(bench: BenchReport) -> Self {
        Self { bench, shapes: Vec::new(), messages: Vec::new() }
    }

    /// Adds the times of raced trees.
    pub fn add(&mut self, setting: &TreeBenchConfig, all: &[TreeTimes]) {
        for times in all {
            for operation in [TreeOperation::Insert, TreeOperation::Search] {
                self.bench.results.push(result(setting, times, operation));
            }
        }
    }

    /// Adds a shape. A note states the main figures for the HTML page.
    pub fn add_shape(&mut self, shape: TreeShape) {
        let chunks = shape.chunk.map_or_else(String::new, |chunk| format!(", chunks of {chunk}"));
        let space = shape.space.map_or_else(String::new, |space| {
            format!("; {:.2} of the fewest chunks (deviation {:.2})", space.mean, space.deviation)
        });
        let hashes = shape.proof_hashes;
        self.bench.notes.push(format!(
            "{}, {} elements{chunks}: {:.2} hashes a proof (deviation {:.2}){space}",
            shape.tree, shape.elements, hashes.mean, hashes.deviation
        ));
        self.shapes.push(shape);
    }

    /// Adds times of serialisation.
    pub fn add_messages(&mut self, messages: MessageTimes) {
        self.bench.notes.push(format!(
            "{}, {} elements, {} a message: serialized in {:.1} ms, read back in {:.1} ms",
            messages.tree,
            messages.elements,
            messages.chunk,
            messages.serialize_ms,
            messages.deserialize_ms
        ));
        self.messages.push(messages);
    }
}

impl From<&TreesReport> for ReportDocument {
    fn from(report: &TreesReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

/// The timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeOperation {
    /// Insertion of all elements.
    Insert,
    /// Searches of some elements.
    Search,
}

impl TreeOperation {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Search => "search",
        }
    }

    fn of<'a>(self, setting: &TreeBenchConfig, times: &'a TreeTimes) -> (u64, &'a [Duration]) {
        match self {
            Self::Insert => (setting.elements, &times.inserts),
            Self::Search => (times.searches, &times.search_times),
        }
    }
}

/// The median time of an operation in nanoseconds.
pub fn median_ns(setting: &TreeBenchConfig, times: &TreeTimes, operation: TreeOperation) -> f64 {
    let (ops, times) = operation.of(setting, times);
    quantile(times.iter().map(|time| time.as_nanos() as f64 / ops as f64), 0.5)
}

/// The speed of `these` relative to `others`, turn by turn.
pub fn faster(
    setting: &TreeBenchConfig,
    these: &TreeTimes,
    others: &TreeTimes,
    operation: TreeOperation,
) -> PairedRatio {
    let rates = |times| operation.of(setting, times).1.iter().map(|time| 1.0 / time.as_secs_f64());
    PairedRatio::of(rates(these), rates(others))
}

/// The result of a tree. A slice is a turn.
fn result(setting: &TreeBenchConfig, times: &TreeTimes, operation: TreeOperation) -> BenchResult {
    let (ops, durations) = operation.of(setting, times);
    let rate = |time: &Duration| ops as f64 / time.as_secs_f64().max(1e-9);
    let at = |fraction| quantile(durations.iter().map(rate), fraction);
    let seconds = durations.iter().map(Duration::as_secs_f64).sum::<f64>();
    let all = ops * durations.len() as u64;
    let mut params = Map::new();
    params.insert("elements".into(), json!(setting.elements));
    params.insert("bytes".into(), json!(setting.bytes));
    params.insert("chunk".into(), json!(setting.chunk));
    params.insert("hash_every".into(), json!(setting.hash_every));
    params.insert("operation".into(), json!(operation.name()));
    params.insert("seed".into(), json!(setting.seed));
    let slice = |(n, time): (u64, &Duration)| SliceResult {
        ops: n * ops,
        ops_per_s: rate(time),
        disk_bytes: None,
        memory_bytes: 0,
    };
    BenchResult {
        backend: times.structure.name().into(),
        workload: "trees".into(),
        params,
        ops: all,
        seconds,
        ops_per_s: at(0.5),
        peak_rss_bytes: peak_rss_bytes(),
        spread: Some((at(0.75) - at(0.25)) / at(0.5)),
        sustained_ops_per_s: Some(all as f64 / seconds),
        slices: (1..).zip(durations).map(slice).collect(),
        ..BenchResult::default()
    }
}
