//! The `--json` report of `retrie bench locality`: the report of every bench command, and the exact
//! counts.

use super::{
    DenseTree, LocalityError, SLOT_BYTES, TreeLayout,
    count::{AccessCounts, LeafTally, TreeCounts, count},
    rows::RowTimes,
    sparse::TrieCounts,
    theory::ExpectedCounts,
    timing::{BatchTiming, TimingConfig, time},
};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{BenchReport, BenchResult, ReportDocument, SliceResult};
use serde::Serialize;
use serde_json::{Map, json};
use std::sync::atomic::AtomicBool;

/// Report of `retrie bench locality`. The timed results are in a [`BenchReport`], so pages and
/// comparisons can read them.
#[derive(Clone, Debug, Serialize)]
pub struct LocalityReport {
    /// The report, whose results are the timed batches.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// One entry for each layout and height.
    pub trees: Vec<TreeFigures>,
    /// Tries of random keys in depth-first order.
    pub tries: Vec<TrieCounts>,
    /// Rows of MDBX.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<RowTimes>,
}

impl LocalityReport {
    /// A report without trees.
    pub const fn new(bench: BenchReport) -> Self {
        Self { bench, trees: Vec::new(), tries: Vec::new(), rows: Vec::new() }
    }

    /// Adds the figures of a layout. A note states the main ones for the HTML page.
    pub fn add(&mut self, tree: TreeFigures) {
        let AccessFigures { regions, pages, .. } = &tree.read;
        self.bench.notes.push(format!(
            "{}, height {}: {:.2} regions a read on average, {} at most; {:.2} pages",
            tree.layout, tree.height, regions.mean, regions.max, pages.mean
        ));
        self.bench.results.extend(tree.results.iter().cloned());
        self.trees.push(tree);
    }
}

impl From<&LocalityReport> for ReportDocument {
    fn from(report: &LocalityReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

/// A layout at one height.
#[derive(Clone, Debug, Serialize)]
pub struct TreeFigures {
    /// Name of the layout.
    pub layout: &'static str,
    /// Height of the tree.
    pub height: u32,
    /// Length of its file in bytes.
    pub bytes: u64,
    /// The counts of reads, over all leaves.
    pub read: AccessFigures,
    /// The counts of writes.
    pub write: AccessFigures,
    /// The expected counts, which the measured ones equal.
    pub theory: ExpectedCounts,
    /// The timed batches, which are part of `bench`.
    #[serde(skip)]
    pub results: Vec<BenchResult>,
}

/// The regions, pages and slots that reads, or writes, touch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AccessFigures {
    /// Number of counted leaves.
    pub leaves: u64,
    /// Whether all leaves were counted; otherwise they were chosen at random.
    pub all: bool,
    /// Regions per leaf.
    pub regions: MeanMax,
    /// Distinct pages per leaf.
    pub pages: MeanMax,
    /// Slots per leaf.
    pub slots: MeanMax,
}

/// Mean and maximum over leaves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanMax {
    /// The mean.
    pub mean: f64,
    /// The largest.
    pub max: u64,
}

impl From<&AccessCounts> for AccessFigures {
    fn from(counts: &AccessCounts) -> Self {
        let of = |tally: LeafTally| MeanMax { mean: counts.mean(tally), max: tally.max };
        Self {
            leaves: counts.leaves,
            all: counts.all,
            regions: of(counts.regions),
            pages: of(counts.pages),
            slots: of(counts.slots),
        }
    }
}

impl TreeFigures {
    /// Counts a layout at one height, and times it if `timed` is given.
    ///
    /// # Errors
    /// If a count differs from theory, or the file fails; [`LocalityError::Stopped`].
    pub fn measure(
        layout: TreeLayout,
        height: u32,
        timed: Option<&TimingConfig>,
        stop: &AtomicBool,
    ) -> Result<Self, LocalityError> {
        let tree = DenseTree::new(layout, height)?;
        let TreeCounts { read, write } = count(tree, stop)?;
        let bytes = tree.slots() * SLOT_BYTES;
        let timings = timed.map_or(Ok(Vec::new()), |timed| time(tree, timed, stop))?;
        let seed = timed.map_or(0, |timed| timed.seed);
        Ok(Self {
            layout: layout.name(),
            height,
            bytes,
            read: (&read).into(),
            write: (&write).into(),
            theory: ExpectedCounts::of(tree),
            results: timings.iter().map(|timing| result(tree, timing, seed)).collect(),
        })
    }
}

/// A slice is a batch.
fn result(tree: DenseTree, timing: &BatchTiming, seed: u64) -> BenchResult {
    let rate = |micros: f64| if micros > 0.0 { 1e6 / micros } else { 0.0 };
    let mut params = Map::new();
    params.insert("height".into(), json!(tree.height()));
    params.insert("operation".into(), json!(timing.operation.name()));
    params.insert("pages".into(), json!(timing.pages.name()));
    params.insert("seed".into(), json!(seed));
    let slice = |(n, micros): (u64, f64)| SliceResult {
        ops: n * timing.batch,
        ops_per_s: rate(micros),
        disk_bytes: None,
        memory_bytes: 0,
    };
    BenchResult {
        backend: tree.layout().name().into(),
        workload: "locality".into(),
        params,
        ops: timing.ops(),
        seconds: timing.seconds(),
        ops_per_s: rate(timing.median_micros()),
        disk_bytes: tree.slots() * SLOT_BYTES,
        peak_rss_bytes: peak_rss_bytes(),
        spread: Some(timing.spread()),
        sustained_ops_per_s: Some(rate(timing.seconds() * 1e6 / timing.ops().max(1) as f64)),
        slices: (1..).zip(timing.micros()).map(slice).collect(),
        ..BenchResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_one_of_any_bench_and_has_the_counts_beside() {
        let stop = AtomicBool::new(false);
        let timed =
            TimingConfig { samples: 20, cold: false, folder: std::env::temp_dir(), seed: 5 };
        let mut report =
            LocalityReport::new(BenchReport::new("retrie bench locality".into(), Vec::new()));
        for layout in [TreeLayout::Naive, TreeLayout::Third] {
            report.add(TreeFigures::measure(layout, 6, Some(&timed), &stop).unwrap());
        }
        let text = serde_json::to_string(&report).unwrap();
        let read = ReportDocument::parse("report.json", &text).unwrap();
        assert_eq!(read.report.results.len(), 4, "reads and writes of two layouts");
        assert_eq!(read.report.results[1].params["operation"], "write");
        assert!(read.report.results.iter().all(|result| result.ops_per_s > 0.0));
        assert_eq!(ReportDocument::from(&report).json["trees"], read.json["trees"]);
        let trees = &read.json["trees"];
        assert_eq!(trees[0]["layout"], "naive");
        assert_eq!(trees[0]["read"]["regions"], json!({"mean": 6.5, "max": 7}));
        assert_eq!(trees[1]["theory"]["read_regions"]["max"], 4);
        assert!(retrie_report::page("title", &[(&report).into()]).contains("6.50 regions a read"));
        let counted = TreeFigures::measure(TreeLayout::Blocked, 6, None, &stop).unwrap();
        assert!(counted.results.is_empty() && counted.read.all);
    }
}
