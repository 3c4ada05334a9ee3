//! `retrie bench locality`: counts and times the locality of Merkle trees in flat files.

use super::measurement::RaceMeasurement;
use crate::{
    args::parse_count,
    output::{CommandOutput, ReportArgs, command_line, grouped, say},
};
use eyre::{WrapErr, bail};
use retrie_bench::locality::{
    MAX_HEIGHT, TreeLayout,
    report::{AccessFigures, LocalityReport, TreeFigures},
    rows::rows,
    sparse::{TrieArity, TrieCounts, random_trie},
    timing::{LeafOperation, PageState, TimingConfig},
};
use retrie_report::{BenchReport, BenchResult};
use std::{path::PathBuf, str::FromStr, sync::atomic::AtomicBool};

/// Tries have at most 2^26 keys, which are kept in memory.
const HIGHEST_TRIE: u32 = 26;

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "Counts are exact: over all leaves, or over the stated number of leaves. \
Regions are maximal sequences of adjacent slots of 32 bytes; pages have 4096 bytes. Each count is checked \
against theory, and a difference is an error. Layouts are measured one after the other, each with a \
file of its own; times are those of the median batch. All layouts at height 24 take up to 3 GB, one \
at a time.";

/// Arguments of `retrie bench locality`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct LocalityArgs {
    /// Heights of the trees, which have 2^height leaves: `18-24`, or `18,20,24`.
    #[arg(long, value_name = "HEIGHTS", default_value = "18-24")]
    pub(super) heights: TreeHeights,
    /// Layouts, separated by commas: naive, third, duptree, duptree-plus, duptree-plus-plus,
    /// blocked [default: all].
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',')]
    layouts: Vec<TreeLayout>,
    /// Leaves read to measure the times, in ten batches. Writes use three batches of this size, up
    /// to 10,000 (fewer if each write changes many nodes). 0 counts only, and writes no files.
    #[arg(long, value_name = "N", default_value = "20k", value_parser = parse_count)]
    pub(super) samples: u64,
    /// Also time batches that start with none of the file's pages in the page cache.
    #[arg(long)]
    pub(super) cold: bool,
    /// Also write and read this many rows of MDBX, in order and at random (Table 1 of the paper).
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_rows)]
    pub(super) rows: u32,
    /// Folder for the files, which are removed afterwards [default: the system's folder for
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seed of leaves and keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
}

fn parse_rows(text: &str) -> Result<u32, String> {
    let count = parse_count(text)?;
    count.try_into().map_err(|_| format!("`{text}` rows are too many: {} are the most", u32::MAX))
}

/// Heights of trees, in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeHeights(pub(super) Vec<u32>);

impl FromStr for TreeHeights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no list of heights such as 18-24 or 18,20,24");
        let mut heights = Vec::new();
        for part in text.split(',') {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
            let (low, high) = (number(low)?, number(high)?);
            if high > MAX_HEIGHT {
                return Err(format!(
                    "a tree of height {high} is too high: {MAX_HEIGHT} is the most"
                ));
            }
            if low > high {
                return Err(wrong());
            }
            heights.extend(low..=high);
        }
        Ok(Self(heights))
    }
}

impl LocalityArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        if let Some((n, twice)) =
            self.layouts.iter().enumerate().find(|(n, layout)| self.layouts[..*n].contains(layout))
        {
            bail!("--layouts names `{twice}` twice (place {})", n + 1);
        }
        let out = CommandOutput::open(&self.report)?;
        let mut report = LocalityReport::new(BenchReport::new(command_line(), Vec::new()));
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        // The results measured before an error are kept.
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Measures, and returns the report with the counts in its notes.
    pub(super) fn measured(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let mut report = LocalityReport::new(BenchReport::new(String::new(), Vec::new()));
        let ended = self.measure(out, stop, &mut report);
        let BenchReport { results, notes, .. } = report.bench;
        Ok(RaceMeasurement { results, notes, references: Vec::new(), ended })
    }

    fn measure(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut LocalityReport,
    ) -> eyre::Result<()> {
        let folder = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let layouts = if self.layouts.is_empty() { &TreeLayout::ALL[..] } else { &self.layouts };
        let timed = TimingConfig {
            samples: self.samples,
            cold: self.cold,
            folder: folder.clone(),
            seed: self.seed,
        };
        let timed = (self.samples > 0).then_some(&timed);
        print_head(out)?;
        for height in &self.heights.0 {
            for layout in layouts {
                let tree = TreeFigures::measure(*layout, *height, timed, stop);
                let tree = tree.wrap_err_with(|| format!("layout {layout}, height {height}"))?;
                print_tree(out, &tree)?;
                report.add(tree);
            }
        }
        print_trie_head(out)?;
        for height in self.heights.0.iter().filter(|height| **height <= HIGHEST_TRIE) {
            for arity in [TrieArity::Two, TrieArity::Sixteen] {
                let trie = random_trie(arity, 1 << height, self.seed, stop)?;
                print_trie(out, &trie)?;
                report.tries.push(trie);
            }
        }
        if self.rows > 0 {
            report.rows = rows(&folder, self.rows, self.seed, stop)?;
            say!(out, "\n{:<18} {:>9} {:>12}", "rows of MDBX", "us a row", "LevelDB's");
            for row in &report.rows {
                say!(
                    out,
                    "{:<18} {:>9.3} {:>12.3}",
                    row.access.name(),
                    row.mean_us,
                    row.leveldb_us
                );
            }
            say!(
                out,
                "{} rows of 116 bytes, 10,000 a commit, each durable; LevelDB's figures are those of \
                 the paper, Table 1",
                grouped(self.rows.into())
            );
        }
        Ok(())
    }
}

fn print_head(out: &CommandOutput) -> eyre::Result<()> {
    say!(
        out,
        "\n{:>6} {:<17} {:>8} | {:>7} {:>4} {:>6} {:>5} | {:>9} {:>9} {:>9} | {:>19} | {:>19}",
        "",
        "",
        "",
        "read",
        "",
        "",
        "",
        "write",
        "",
        "",
        "us a read",
        "us a write"
    );
    say!(
        out,
        "{:>6} {:<17} {:>8} | {:>7} {:>4} {:>6} {:>5} | {:>9} {:>9} {:>9} | {:>9} {:>9} | {:>9} {:>9}",
        "height",
        "layout",
        "MiB",
        "regions",
        "most",
        "pages",
        "slots",
        "regions",
        "pages",
        "slots",
        "cached",
        "cold",
        "cached",
        "cold"
    );
    Ok(())
}

fn print_tree(out: &CommandOutput, tree: &TreeFigures) -> eyre::Result<()> {
    let AccessFigures { regions, pages, slots, .. } = &tree.read;
    let written = &tree.write;
    let micros = |operation, pages| match timing(&tree.results, operation, pages) {
        Some(rate) if rate > 0.0 => format!("{:.2}", 1e6 / rate),
        _ => "-".into(),
    };
    let some = match written.all {
        true => String::new(),
        false => format!("  (writes of {} leaves)", grouped(written.leaves)),
    };
    say!(
        out,
        "{:>6} {:<17} {:>8.1} | {:>7.3} {:>4} {:>6.3} {:>5.0} | {:>9.1} {:>9.1} {:>9.0} | {:>9} {:>9} | \
         {:>9} {:>9}{some}",
        tree.height,
        tree.layout,
        tree.bytes as f64 / f64::from(1 << 20),
        regions.mean,
        regions.max,
        pages.mean,
        slots.mean,
        written.regions.mean,
        written.pages.mean,
        written.slots.mean,
        micros(LeafOperation::Read, PageState::Cached),
        micros(LeafOperation::Read, PageState::Cold),
        micros(LeafOperation::Write, PageState::Cached),
        micros(LeafOperation::Write, PageState::Cold),
    );
    Ok(())
}

/// Operations per second of one kind, if they were timed.
fn timing(results: &[BenchResult], operation: LeafOperation, pages: PageState) -> Option<f64> {
    let is = |result: &&BenchResult, name: &str, value: &str| {
        result.params.get(name).is_some_and(|param| param == value)
    };
    let found = results.iter().find(|result| {
        is(result, "operation", operation.name()) && is(result, "pages", pages.name())
    });
    found.map(|result| result.ops_per_s)
}

fn print_trie_head(out: &CommandOutput) -> eyre::Result<()> {
    say!(out, "\ntries of random keys, depth first; in brackets the worst leaf");
    say!(
        out,
        "{:>6} {:>12} {:>7} {:>14} {:>14} {:>14} {:>12}",
        "arity",
        "keys",
        "height",
        "nodes",
        "regions",
        "pages",
        "Delta(n, h)"
    );
    Ok(())
}

fn print_trie(out: &CommandOutput, trie: &TrieCounts) -> eyre::Result<()> {
    let leaves = trie.leaves.max(1) as f64;
    let of = |total: u64, max: u64| format!("{:.2} ({max})", total as f64 / leaves);
    say!(
        out,
        "{:>6} {:>12} {:>7} {:>14} {:>14} {:>14} {:>12}",
        trie.arity,
        grouped(trie.leaves),
        trie.height,
        of(trie.path.total, trie.path.max),
        of(trie.regions.total, trie.regions.max),
        of(trie.pages.total, trie.pages.max),
        trie.least_max_regions.map_or_else(|| "-".into(), |least| least.to_string()),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_a_range_or_a_list() {
        let parsed = |text: &str| text.parse::<TreeHeights>().map(|heights| heights.0);
        assert_eq!(parsed("18-20"), Ok(vec![18, 19, 20]));
        assert_eq!(parsed("0,7, 9-10"), Ok(vec![0, 7, 9, 10]));
        for wrong in ["", "a", "5-", "-5", "9-8", "1,,2", "37", "0-4000000000"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_rows("1m"), parse_rows("5000m").is_err()), (Ok(1_000_000), true));
    }
}
