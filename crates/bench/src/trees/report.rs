//! What `--json` of `retrie bench trees` writes: a report as of every other command, whose results are the
//! timed inserts and searches, and beside it shapes and messages.

use super::measure::{Messages, Setting, Shape, Times};
use crate::{
    figures::{Ratio, quantile},
    report::{BenchReport, BenchResult, Document, SliceResult},
};
use retrie_pipeline::report::peak_rss_bytes;
use serde::Serialize;
use serde_json::{Map, json};
use std::time::Duration;

/// Report of `retrie bench trees`.
#[derive(Clone, Debug, Serialize)]
pub struct TreesReport {
    /// The report.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// Lengths of proofs, and numbers of chunks.
    pub shapes: Vec<Shape>,
    /// Times of bytes.
    pub messages: Vec<Messages>,
}

impl TreesReport {
    /// Nothing yet.
    pub const fn new(bench: BenchReport) -> Self {
        Self { bench, shapes: Vec::new(), messages: Vec::new() }
    }

    /// Takes the times of trees that were raced.
    pub fn add(&mut self, setting: &Setting, all: &[Times]) {
        for times in all {
            for operation in [Operation::Insert, Operation::Search] {
                self.bench.results.push(result(setting, times, operation));
            }
        }
    }

    /// Takes a shape; a note says the main figures, for those who read the page alone.
    pub fn add_shape(&mut self, shape: Shape) {
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

    /// Takes times of bytes.
    pub fn add_messages(&mut self, messages: Messages) {
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

impl From<&TreesReport> for Document {
    fn from(report: &TreesReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

/// What is done with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// All of them are inserted.
    Insert,
    /// Some are searched for.
    Search,
}

impl Operation {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Search => "search",
        }
    }

    fn of<'a>(self, setting: &Setting, times: &'a Times) -> (u64, &'a [Duration]) {
        match self {
            Self::Insert => (setting.elements, &times.inserts),
            Self::Search => (times.searches, &times.search_times),
        }
    }
}

/// The median time of an operation in nanoseconds.
pub fn median_ns(setting: &Setting, times: &Times, operation: Operation) -> f64 {
    let (ops, times) = operation.of(setting, times);
    quantile(times.iter().map(|time| time.as_nanos() as f64 / ops as f64), 0.5)
}

/// How many times faster `these` were than `others`, turn by turn.
pub fn faster(setting: &Setting, these: &Times, others: &Times, operation: Operation) -> Ratio {
    let rates = |times| operation.of(setting, times).1.iter().map(|time| 1.0 / time.as_secs_f64());
    Ratio::of(rates(these), rates(others))
}

/// A slice is a turn.
fn result(setting: &Setting, times: &Times, operation: Operation) -> BenchResult {
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
