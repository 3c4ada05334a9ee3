//! The results of counts and times.

use super::{AccessFigures, TreeFigures, TrieRowFigures};
use crate::locality::{
    rows::RowTimes,
    sparse::TrieCounts,
    stored::{RowMeans, RowPhase},
    timing::{AccessPhase, BatchTiming, PageState},
};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{BenchResult, SliceResult};
use serde_json::{Map, Value, json};

const WORKLOAD: &str = "locality";
/// Bytes in a MiB.
const MIB: f64 = (1 << 20) as f64;

fn params<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A result without a rate.
fn counted<const N: usize>(
    backend: &str,
    params: Map<String, Value>,
    measures: [(&str, f64); N],
) -> BenchResult {
    BenchResult {
        backend: backend.into(),
        workload: WORKLOAD.into(),
        params,
        measures: measures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..BenchResult::default()
    }
}

/// The params of a tree.
fn tree_params(tree: &TreeFigures, operation: &str, medium: &str) -> Map<String, Value> {
    let mut params = params([
        ("height", json!(tree.height)),
        ("operation", json!(operation)),
        ("medium", json!(medium)),
        ("slot_bytes", json!(tree.slot_bytes)),
        ("layout", json!(tree.layout)),
    ]);
    params.extend(tree.p.map(|p| ("p".to_owned(), json!(p))));
    params
}

/// The counts of a tree.
pub(super) fn of_counts(tree: &TreeFigures) -> Vec<BenchResult> {
    let of = |(phase, counts): (AccessPhase, &AccessFigures)| {
        let measures = [
            ("regions", counts.regions.mean),
            ("most regions", counts.regions.max as f64),
            ("pages", counts.pages.mean),
            ("slots", counts.slots.mean),
            ("copies", tree.copies as f64),
            ("file MiB", tree.bytes as f64 / MIB),
        ];
        let mut result = counted(&tree.name, tree_params(tree, phase.name(), "counted"), measures);
        if phase == AccessPhase::Read {
            let least = tree.least_mean_regions.map(|least| ("least regions".to_owned(), least));
            result.measures.extend(least);
        }
        result
    };
    [(AccessPhase::Read, &tree.read), (AccessPhase::Write, &tree.write)].map(of).into()
}

/// A timing of a tree. A slice is a batch.
pub(super) fn of_tree(tree: &TreeFigures, timing: &BatchTiming, seed: u64) -> BenchResult {
    let medium = if timing.pages.is_some() { "file" } else { "mdbx" };
    let params = tree_params(tree, timing.phase.name(), medium);
    BenchResult { disk_bytes: tree.bytes, ..timed(&tree.name, params, timing, seed) }
}

fn timed(
    backend: &str,
    mut params: Map<String, Value>,
    timing: &BatchTiming,
    seed: u64,
) -> BenchResult {
    params.extend(timing.pages.map(|pages| ("pages".to_owned(), json!(pages.name()))));
    params.insert("seed".into(), json!(seed));
    let rate = |micros: f64| if micros > 0.0 { 1e6 / micros } else { 0.0 };
    let slice = |(n, micros): (u64, f64)| SliceResult {
        ops: n * timing.batch,
        ops_per_s: rate(micros),
        disk_bytes: None,
        memory_bytes: 0,
    };
    BenchResult {
        ops: timing.ops(),
        seconds: timing.seconds(),
        ops_per_s: rate(timing.median_micros()),
        peak_rss_bytes: peak_rss_bytes(),
        spread: Some(timing.spread()),
        sustained_ops_per_s: Some(rate(timing.seconds() * 1e6 / timing.ops().max(1) as f64)),
        slices: (1..).zip(timing.micros()).map(slice).collect(),
        ..counted(backend, params, [])
    }
}

/// The result with the rows of its accesses.
pub(super) fn with_rows(mut result: BenchResult, means: &RowMeans) -> BenchResult {
    (result.reads_per_op, result.read_bytes_per_op) =
        (Some(means.rows_read), Some(means.read_bytes));
    (result.writes_per_op, result.write_bytes_per_op) =
        (Some(means.rows_written), Some(means.write_bytes));
    result.measures.extend(means.regions.map(|regions| ("regions".to_owned(), regions)));
    result
}

/// The counts of one phase of a trie, and its times if there are any.
pub(super) fn of_rows(trie: &TrieRowFigures, phase: &RowPhase, seed: u64) -> Vec<BenchResult> {
    let of = |medium: &str| {
        params([
            ("height", json!(trie.height)),
            ("operation", json!(phase.phase.name())),
            ("medium", json!(medium)),
            ("layout", json!(trie.trie.split(':').next())),
            ("padded", json!(trie.padded)),
        ])
    };
    let counts = with_rows(counted(&trie.trie, of("counted"), []), &phase.tally.means());
    let times = phase.timing.iter().map(|timing| timed(&trie.trie, of("mdbx"), timing, seed));
    std::iter::once(counts).chain(times).collect()
}

/// The counts of a trie in depth-first order.
pub(super) fn of_trie(trie: &TrieCounts, height: u32) -> BenchResult {
    let leaves = trie.leaves.max(1) as f64;
    let name = format!("depth-first:arity={}", trie.arity);
    let params = params([
        ("height", json!(height)),
        ("operation", json!(AccessPhase::Read.name())),
        ("medium", json!("counted")),
        ("layout", json!("depth-first")),
    ]);
    let measures = [
        ("regions", trie.regions.total as f64 / leaves),
        ("most regions", trie.regions.max as f64),
        ("pages", trie.pages.total as f64 / leaves),
        ("slots", trie.path.total as f64 / leaves),
    ];
    let mut result = counted(&name, params, measures);
    let least = trie.least_max_regions.map(|least| ("least most regions".to_owned(), least.into()));
    result.measures.extend(least);
    result
}

/// The time of single rows (Table 1).
pub(super) fn of_row(row: &RowTimes) -> BenchResult {
    let params = params([("operation", json!(row.access.name())), ("rows", json!(row.rows))]);
    counted("mdbx", params, [("us a row", row.mean_us)])
}

/// Microseconds of an access in the median batch, if it was timed.
pub(super) fn micros(
    results: &[BenchResult],
    phase: AccessPhase,
    pages: Option<PageState>,
) -> Option<f64> {
    let (medium, pages) = match pages {
        Some(pages) => ("file", Some(pages.name())),
        None => ("mdbx", None),
    };
    let is = |result: &&BenchResult| {
        let param = |name: &str| result.params.get(name).and_then(Value::as_str);
        param("operation") == Some(phase.name())
            && param("medium") == Some(medium)
            && param("pages") == pages
    };
    let found = results.iter().find(is).filter(|result| result.ops_per_s > 0.0);
    found.map(|result| 1e6 / result.ops_per_s)
}
