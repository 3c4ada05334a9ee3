//! The `--json` report of `retrie bench locality`: the report of every bench command, and the exact
//! counts.
//!
//! Each count and each time is a [`BenchResult`] too. Their params:
//!
//! | param | |
//! |---|---|
//! | `height` | levels of a dense tree, or log2 of the number of keys of a trie |
//! | `operation` | `read` (with the path), `write` or `insert`; of single rows `random read`, .. |
//! | `medium` | `counted` (no time), `file`, or `mdbx` |
//! | `pages` | of files: `cached` or `cold` |
//! | `slot_bytes`, `seed` | |
//! | `layout`, `p`, `padded` | what the name of the backend says: `blocked:p=32`, `prefix-tree:pad=64` |

mod results;

use super::{
    DenseTree, LocalityError,
    count::{AccessCounts, LeafTally, TreeCounts, count},
    rows::RowTimes,
    space::DiskNeed,
    sparse::TrieCounts,
    stored::{DenseRows, RowMeans, RowPhase, measure},
    theory::ExpectedCounts,
    timing::{AccessPhase, BatchTiming, PageState, TimingConfig, time},
    tries::{PublishedRows, PublishedTrie, StoreTrie},
};
use retrie_report::{BenchReport, BenchResult, ReportDocument};
use serde::Serialize;
use serde_json::json;
use std::sync::atomic::AtomicBool;

/// Bytes of a key in a state store of ours, with its value and nodes, at most about.
const OWN_BYTES: u64 = 600;

/// Report of `retrie bench locality`. All of it is also in the results of a [`BenchReport`], so
/// that pages and comparisons can read it.
#[derive(Clone, Debug, Serialize)]
pub struct LocalityReport {
    /// The report, with its results.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// One entry for each dense tree.
    pub trees: Vec<TreeFigures>,
    /// Tries of random keys in depth-first order.
    pub tries: Vec<TrieCounts>,
    /// The rows of PrefixTree, its baseline and ours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trie_rows: Vec<TrieRowFigures>,
    /// Rows of MDBX.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<RowTimes>,
}

impl LocalityReport {
    /// A report without trees.
    pub const fn new(bench: BenchReport) -> Self {
        Self {
            bench,
            trees: Vec::new(),
            tries: Vec::new(),
            trie_rows: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds the figures of a dense tree. A note states the main ones for the HTML page.
    pub fn add_tree(&mut self, tree: TreeFigures) {
        let AccessFigures { regions, pages, .. } = &tree.read;
        self.bench.notes.push(format!(
            "{}, height {}: {:.2} regions a read on average, {} at most; {:.2} pages",
            tree.name, tree.height, regions.mean, regions.max, pages.mean
        ));
        self.bench.results.extend(tree.results.iter().cloned());
        self.trees.push(tree);
    }

    /// Adds the counts of a trie in depth-first order, of about 2^`height` keys.
    pub fn add_trie(&mut self, trie: TrieCounts, height: u32) {
        self.bench.results.push(results::of_trie(&trie, height));
        self.tries.push(trie);
    }

    /// Adds the rows of a trie.
    pub fn add_trie_rows(&mut self, trie: TrieRowFigures) {
        self.bench.results.extend(trie.results.iter().cloned());
        self.trie_rows.push(trie);
    }

    /// Adds the times of single rows.
    pub fn add_rows(&mut self, rows: Vec<RowTimes>) {
        self.bench.results.extend(rows.iter().map(results::of_row));
        self.rows.extend(rows);
    }
}

impl From<&LocalityReport> for ReportDocument {
    fn from(report: &LocalityReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

/// A dense tree.
#[derive(Clone, Debug, Serialize)]
pub struct TreeFigures {
    /// Name of layout and P.
    pub name: String,
    /// Name of the layout.
    pub layout: &'static str,
    /// P, if the layout has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p: Option<u64>,
    /// Height of the tree.
    pub height: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Length of its file in bytes.
    pub bytes: u64,
    /// The counts of reads, over all leaves.
    pub read: AccessFigures,
    /// The counts of writes.
    pub write: AccessFigures,
    /// K of Theorem 3.9: copies of the node that has most.
    pub copies: u64,
    /// The least mean of the regions of a read with so many copies, by Theorem 3.9 (without copies
    /// by Theorem 3.4); absent if reads take more than the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_mean_regions: Option<f64>,
    /// The expected counts, which the measured ones equal.
    pub theory: ExpectedCounts,
    /// Rows of MDBX that reads and writes take, if they were stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub row_phases: Vec<RowPhaseFigures>,
    /// All results, which are part of `bench`.
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

/// What is timed beside the counts of a dense tree.
#[derive(Clone, Copy, Debug)]
pub struct TimedMedia<'a> {
    /// The parameters.
    pub timed: &'a TimingConfig,
    /// Whether its file is timed.
    pub file: bool,
    /// Whether its rows of MDBX are.
    pub rows: bool,
}

impl TreeFigures {
    /// Counts a dense tree, and times it if `media` is given. Counts need no file.
    ///
    /// # Errors
    /// If a count differs from theory, or the file or database fails; [`LocalityError::Stopped`].
    pub fn measure(
        tree: DenseTree,
        media: Option<TimedMedia<'_>>,
        stop: &AtomicBool,
    ) -> Result<Self, LocalityError> {
        let TreeCounts { read, write, copies } = count(tree, stop)?;
        let theory = ExpectedCounts::of(tree);
        let mut figures = Self {
            name: tree.name(),
            layout: tree.layout().name(),
            p: tree.subtree().map(|subtree| subtree.count()),
            height: tree.height(),
            slot_bytes: tree.content().bytes(),
            bytes: tree.bytes(),
            read: (&read).into(),
            write: (&write).into(),
            copies,
            least_mean_regions: theory.least_mean_regions(tree),
            theory,
            row_phases: Vec::new(),
            results: Vec::new(),
        };
        figures.results = results::of_counts(&figures);
        let Some(TimedMedia { timed, file, rows }) = media else { return Ok(figures) };
        if file {
            for timing in time(tree, timed, stop)? {
                figures.results.push(results::of_tree(&figures, &timing, timed.seed));
            }
        }
        if rows {
            for phase in measure(&mut DenseRows::new(tree), timed, true, stop)? {
                let timing = phase.timing.iter();
                let result = timing.map(|timing| results::of_tree(&figures, timing, timed.seed));
                let means = phase.tally.means();
                let result: Vec<_> =
                    result.map(|result| results::with_rows(result, &means)).collect();
                figures.results.extend(result);
                figures.row_phases.push((&phase).into());
            }
        }
        Ok(figures)
    }

    /// What the files and databases need on disk, one after the other.
    pub fn needs(tree: DenseTree, file: bool, rows: bool) -> impl Iterator<Item = DiskNeed> {
        let of_file = file.then(|| DiskNeed { what: tree.to_string(), bytes: tree.bytes() });
        of_file.into_iter().chain(rows.then(|| DenseRows::new(tree).need()))
    }

    /// Microseconds of an access, if they were measured.
    pub fn micros(&self, phase: AccessPhase, pages: Option<PageState>) -> Option<f64> {
        results::micros(&self.results, phase, pages)
    }
}

/// Reads or changes of rows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowPhaseFigures {
    /// `read`, `write` or `insert`.
    pub operation: &'static str,
    /// Means per access.
    #[serde(flatten)]
    pub means: RowMeans,
    /// Microseconds per access in the median batch, if it was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_us: Option<f64>,
}

impl From<&RowPhase> for RowPhaseFigures {
    fn from(phase: &RowPhase) -> Self {
        Self {
            operation: phase.phase.name(),
            means: phase.tally.means(),
            median_us: phase.timing.as_ref().map(BatchTiming::median_micros),
        }
    }
}

/// The rows of a trie of 2^height random keys.
#[derive(Clone, Debug, Serialize)]
pub struct TrieRowFigures {
    /// Its name: one of the paper's tries, or a state store of ours.
    pub trie: String,
    /// Whether prefixes are padded to the length of a hash.
    pub padded: bool,
    /// log2 of the number of keys.
    pub height: u32,
    /// Reads of a key with its path.
    pub read: RowPhaseFigures,
    /// Inserts of new keys, many in a commit.
    pub insert: RowPhaseFigures,
    /// All results, which are part of `bench`.
    #[serde(skip)]
    pub results: Vec<BenchResult>,
}

impl TrieRowFigures {
    /// Counts the rows of a trie of the paper; if it is `stored`, they are in MDBX, and timed.
    ///
    /// # Errors
    /// If the database fails; [`LocalityError::Stopped`].
    pub fn published(
        trie: PublishedTrie,
        height: u32,
        timed: &TimingConfig,
        stored: bool,
        stop: &AtomicBool,
    ) -> Result<Self, LocalityError> {
        let mut rows = PublishedRows::new(trie, height, timed.seed);
        let phases = measure(&mut rows, timed, stored, stop)?;
        Ok(Self::new(trie.name(), height, &phases, timed.seed))
    }

    /// Counts and times the rows of a state store of ours.
    ///
    /// # Errors
    /// If the store fails, or makes no proofs; [`LocalityError::Stopped`].
    pub fn own(
        store: StoreTrie<'_>,
        height: u32,
        timed: &TimingConfig,
        stop: &AtomicBool,
    ) -> Result<Self, LocalityError> {
        let phases = store.measure(height, timed, stop)?;
        Ok(Self::new(store.name(), height, &phases, timed.seed))
    }

    /// What the database of a trie of the paper needs on disk.
    pub fn need_of_published(trie: PublishedTrie, height: u32) -> DiskNeed {
        PublishedRows::need(trie, height)
    }

    /// What a state store of ours needs on disk, about.
    pub fn need_of_own(name: &str, height: u32) -> DiskNeed {
        let what = format!("the state store `{name}` with 2^{height} keys");
        DiskNeed { what, bytes: OWN_BYTES << height }
    }

    fn new(name: &str, height: u32, phases: &[RowPhase; 2], seed: u64) -> Self {
        let mut figures = Self {
            trie: name.into(),
            padded: name.split(':').any(|flag| flag == "pad=64"),
            height,
            read: (&phases[0]).into(),
            insert: (&phases[1]).into(),
            results: Vec::new(),
        };
        figures.results =
            phases.iter().flat_map(|phase| results::of_rows(&figures, phase, seed)).collect();
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::{SlotContent, TreeLayout};

    #[test]
    fn a_report_is_read_as_one_of_any_bench_and_has_the_counts_beside() {
        let stop = AtomicBool::new(false);
        let folder = std::env::temp_dir();
        let timed = &TimingConfig { samples: 20, cold: false, folder, seed: 5 };
        let mut report =
            LocalityReport::new(BenchReport::new("retrie bench locality".into(), Vec::new()));
        let media = Some(TimedMedia { timed, file: true, rows: true });
        for layout in [TreeLayout::Naive, TreeLayout::Third] {
            let tree = DenseTree::new(layout, 6).unwrap();
            report.add_tree(TreeFigures::measure(tree, media, &stop).unwrap());
        }
        for trie in PublishedTrie::ALL {
            let rows = TrieRowFigures::published(trie, 5, timed, false, &stop).unwrap();
            report.add_trie_rows(rows);
        }
        let text = serde_json::to_string(&report).unwrap();
        let read = ReportDocument::parse("report.json", &text).unwrap();
        // Reads and writes of two layouts, counted, in a file, and in MDBX; three tries, counted.
        assert_eq!(read.report.results.len(), 2 * 6 + 3 * 2);
        let of = |backend: &str, operation: &str, medium: &str| {
            let is = |result: &&BenchResult| {
                result.backend == backend
                    && result.params["operation"] == operation
                    && result.params["medium"] == medium
            };
            read.report.results.iter().find(is).unwrap()
        };
        let counted = of("naive", "read", "counted");
        assert_eq!(
            (counted.measures["regions"], counted.params["height"].as_u64()),
            (6.5, Some(6))
        );
        assert_eq!(of("third", "read", "counted").measures["copies"], 1.0);
        assert!(of("third", "write", "file").ops_per_s > 0.0);
        assert_eq!(of("naive", "read", "mdbx").reads_per_op, Some(7.0));
        let padded = of("prefix-tree:pad=64", "insert", "counted");
        assert_eq!(
            (&padded.params["padded"], &padded.params["layout"]),
            (&true.into(), &"prefix-tree".into())
        );
        assert!(
            padded.write_bytes_per_op > of("simple-mpt", "insert", "counted").write_bytes_per_op
        );
        let trees = &read.json["trees"];
        assert_eq!(ReportDocument::from(&report).json["trees"][0]["read"], trees[0]["read"]);
        assert_eq!(trees[0]["layout"], "naive");
        assert_eq!(trees[0]["read"]["regions"], json!({"mean": 6.5, "max": 7}));
        assert_eq!(trees[1]["theory"]["read_regions"]["max"], 4);
        assert!(retrie_report::page("title", &[(&report).into()]).contains("6.50 regions a read"));
    }

    #[test]
    fn a_tree_that_is_only_counted_names_its_p_and_has_no_times() {
        let stop = AtomicBool::new(false);
        let tree = DenseTree::new(TreeLayout::Blocked, 6).unwrap();
        let tree = tree.with_subtrees("8".parse().unwrap()).with_slots(SlotContent::ChildHashes);
        let counted = TreeFigures::measure(tree, None, &stop).unwrap();
        assert_eq!((counted.results.len(), counted.p, counted.bytes), (2, Some(8), 9 * 16 * 64));
        assert!(counted.read.all && counted.least_mean_regions.is_none());
        assert_eq!(counted.results[0].backend, "blocked:p=8");
        assert_eq!(counted.results[0].params["p"], 8);
        assert_eq!(counted.micros(AccessPhase::Read, Some(PageState::Cached)), None);
    }
}
