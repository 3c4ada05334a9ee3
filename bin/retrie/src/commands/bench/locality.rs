//! `retrie bench locality`: counts and times the locality of Merkle trees in flat files and in rows
//! of MDBX.

mod table;

use super::{contenders, measurement::RaceMeasurement};
use crate::{
    args::{BackendArgs, parse_count},
    output::{CommandOutput, ReportArgs, command_line, say},
};
use eyre::{WrapErr, ensure};
use retrie_bench::{
    locality::{
        DenseTree, LocalityError, MAX_HEIGHT, SlotContent, SubtreeLeaves, TreeLayout,
        report::{LocalityReport, TimedMedia, TreeFigures, TrieRowFigures},
        rows::rows,
        space::DiskNeed,
        sparse::{TrieArity, random_trie},
        timing::TimingConfig,
        tries::{PublishedTrie, StoreTrie},
    },
    paper::{Paper, references},
    race::MemoryTerms,
    state::BackendFactory,
};
use retrie_report::BenchReport;
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::atomic::AtomicBool,
};

/// Tries have at most 2^26 keys, which are kept in memory.
const HIGHEST_TRIE: u32 = 26;
/// Accesses by which rows of tries are counted if nothing is timed.
const COUNTED: u64 = 20_000;

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "Counts of dense trees are exact: over all leaves, or over the stated number of \
leaves. Regions are maximal sequences of adjacent slots; pages have 4096 bytes. Each count is checked \
against theory (Theorems 3.4 and 3.9, Lemma 3.14, sections 4.1 and 5.1.1), and a difference is an error. \
K is the number of copies of the node that has most; `least` is the least mean of regions with so many \
copies (Theorem 3.9). Counts need no file: --samples 0 counts trees of any height, in a minute or so \
each for 2^27 leaves. Layouts are measured one after the other, each with a file or database of its own; \
times are those of the median batch. The largest file with P = 32 takes 2.6 GiB at height 24 and 21 GiB \
at 27, twice that with --slot-bytes 64. Before the start the free space is compared with the largest.

Tries: simple-mpt is the baseline of the paper, a row for each node under its hash; prefix-tree is \
PrefixTree as published, a row for each node under prefix and version, with its own hash and the prefixes \
of 16 children, so that a read or insert also takes the siblings; pad=64 makes each prefix as long as a \
hash. All have 2^height random keys, and many inserts share a commit. A backend of ours (prefix, \
prefix:pad=64) is loaded, and its rows are counted as it runs; there a read is a proof. Hashes are \
calculated by backends of ours alone.";

/// Arguments of `retrie bench locality`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct LocalityArgs {
    /// Heights of the trees, which have 2^height leaves or keys: `18-24`, or `18,20,27`. Tries have
    /// 26 at most.
    #[arg(long, value_name = "HEIGHTS", default_value = "18-24")]
    pub(super) heights: TreeHeights,
    /// Layouts of dense trees, separated by commas: naive, third, duptree, duptree-plus,
    /// duptree-plus-plus, blocked; or none [default: all].
    #[arg(long, value_name = "LAYOUTS")]
    pub(super) layouts: Option<NameList<TreeLayout>>,
    /// P of duptree-plus-plus and blocked: leaves of each subtree, a power of two from 2 to 4096,
    /// separated by commas.
    #[arg(long, value_name = "N,N,..", default_value = "32")]
    pub(super) p: NameList<SubtreeLeaves>,
    /// Bytes of a slot: 32, the hash of its node, or 64, the hashes of both children. With 64 a path
    /// is an authentication path, siblings included.
    #[arg(long, value_name = "BYTES", default_value = "32")]
    pub(super) slot_bytes: SlotContent,
    /// Tries, separated by commas: simple-mpt, prefix-tree, prefix-tree:pad=64, or backends of ours
    /// such as prefix and prefix:pad=64; or none.
    #[arg(long, value_name = "TRIES", default_value = "simple-mpt,prefix-tree,prefix-tree:pad=64")]
    pub(super) tries: NameList<TrieChoice>,
    /// Where trees are timed: file, mdbx, or both. In MDBX a row is a slot, record or block, or a
    /// node of a trie.
    #[arg(long, value_name = "MEDIA", default_value = "file")]
    pub(super) media: NameList<TreeMedium>,
    /// Leaves or keys read to measure the times, in ten batches. Writes and inserts use three
    /// batches of this size, up to 10,000 (fewer if each access takes very much). 0 counts only,
    /// and writes no files.
    #[arg(long, value_name = "N", default_value = "20k", value_parser = parse_count)]
    pub(super) samples: u64,
    /// Also time batches that start with none of the file's pages in the page cache.
    #[arg(long)]
    pub(super) cold: bool,
    /// Also write and read this many rows of MDBX, in order and at random (Table 1 of the paper).
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_rows)]
    pub(super) rows: u32,
    /// Folder for files and databases, which are removed afterwards [default: the system's folder
    /// for temporary files].
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

/// Different names, separated by commas; `none` is no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameList<T>(pub(super) Vec<T>);

impl<T: FromStr<Err: fmt::Display> + PartialEq> FromStr for NameList<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = Vec::new();
        if text == "none" {
            return Ok(Self(names));
        }
        for (place, part) in text.split(',').enumerate() {
            let name = part.trim().parse().map_err(|error: T::Err| error.to_string())?;
            if names.contains(&name) {
                return Err(format!("it names `{}` twice (place {})", part.trim(), place + 1));
            }
            names.push(name);
        }
        Ok(Self(names))
    }
}

/// Where trees are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeMedium {
    File,
    Mdbx,
}

impl FromStr for TreeMedium {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "file" => Ok(Self::File),
            "mdbx" => Ok(Self::Mdbx),
            _ => Err(format!("`{text}` is neither `file` nor `mdbx`")),
        }
    }
}

/// A trie: of the paper, or a backend of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TrieChoice {
    Published(PublishedTrie),
    Own(String),
}

impl FromStr for TrieChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(trie) = text.parse() {
            return Ok(Self::Published(trie));
        }
        let known = || PublishedTrie::ALL.map(PublishedTrie::name).join(", ");
        match contenders::backend(text, None, &BackendArgs::default(), MemoryTerms::FREE) {
            Ok(_) => Ok(Self::Own(text.into())),
            Err(error) => Err(format!("it is none of {}, and as a backend: {error}", known())),
        }
    }
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
        let out = CommandOutput::open(&self.report)?;
        let mut report = LocalityReport::new(BenchReport::new(command_line(), Vec::new()));
        report.bench.references = references(Paper::Locality);
        report.bench.references.retain(|figure| figure.workload == "locality");
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
        let mut references = references(Paper::Locality);
        references.retain(|figure| figure.workload == "locality");
        Ok(RaceMeasurement { results, notes, references, ended })
    }

    fn measure(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut LocalityReport,
    ) -> eyre::Result<()> {
        let folder = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        self.check(&folder)?;
        self.measure_trees(&folder, out, stop, report)?;
        if !self.tries.0.is_empty() {
            self.count_tries(out, stop, report)?;
            self.measure_tries(&folder, out, stop, report)?;
        }
        if self.rows > 0 {
            let times = rows(&folder, self.rows, self.seed, stop)?;
            table::print_rows(out, &times, self.rows)?;
            report.add_rows(times);
        }
        Ok(())
    }

    /// Checks flags that depend on each other, and that the disk has room.
    fn check(&self, folder: &Path) -> eyre::Result<()> {
        let own = self.own_tries().next();
        ensure!(
            self.samples > 0 || own.is_none(),
            "--tries {} is counted as it runs: --samples must not be 0",
            own.unwrap_or_default()
        );
        let (file, rows) = (self.has(TreeMedium::File), self.has(TreeMedium::Mdbx));
        let trees: Vec<_> =
            self.heights.0.iter().map(|height| self.trees(*height)).collect::<Result<_, _>>()?;
        let of_trees =
            trees.iter().flatten().flat_map(|tree| TreeFigures::needs(*tree, file, rows));
        let of_tries = self.trie_heights().flat_map(|height| {
            self.tries.0.iter().filter_map(move |trie| match trie {
                TrieChoice::Published(trie) => {
                    rows.then(|| TrieRowFigures::need_of_published(*trie, height))
                }
                TrieChoice::Own(name) => Some(TrieRowFigures::need_of_own(name, height)),
            })
        });
        Ok(DiskNeed::check_largest(of_trees.chain(of_tries), folder)?)
    }

    /// Whether trees are timed there.
    fn has(&self, medium: TreeMedium) -> bool {
        self.samples > 0 && self.media.0.contains(&medium)
    }

    fn own_tries(&self) -> impl Iterator<Item = &str> {
        self.tries.0.iter().filter_map(|trie| match trie {
            TrieChoice::Own(name) => Some(name.as_str()),
            TrieChoice::Published(_) => None,
        })
    }

    fn trie_heights(&self) -> impl Iterator<Item = u32> {
        self.heights.0.iter().copied().filter(|height| *height <= HIGHEST_TRIE)
    }

    /// The dense trees of a height.
    fn trees(&self, height: u32) -> Result<Vec<DenseTree>, LocalityError> {
        let layouts = self.layouts.as_ref().map_or(&TreeLayout::ALL[..], |layouts| &layouts.0);
        let mut trees = Vec::new();
        for layout in layouts {
            let tree = DenseTree::new(*layout, height)?.with_slots(self.slot_bytes);
            match layout.has_subtrees() {
                true => trees.extend(self.p.0.iter().map(|p| tree.with_subtrees(*p))),
                false => trees.push(tree),
            }
        }
        Ok(trees)
    }

    fn timing(&self, folder: &Path) -> TimingConfig {
        let samples = if self.samples == 0 { COUNTED } else { self.samples };
        TimingConfig { samples, cold: self.cold, folder: folder.into(), seed: self.seed }
    }

    fn measure_trees(
        &self,
        folder: &Path,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut LocalityReport,
    ) -> eyre::Result<()> {
        if self.layouts.as_ref().is_some_and(|layouts| layouts.0.is_empty()) {
            return Ok(());
        }
        let timed = &self.timing(folder);
        let (file, rows) = (self.has(TreeMedium::File), self.has(TreeMedium::Mdbx));
        let media = (file || rows).then_some(TimedMedia { timed, file, rows });
        table::print_head(out)?;
        for height in &self.heights.0 {
            for tree in self.trees(*height)? {
                let figures = TreeFigures::measure(tree, media, stop);
                let figures = figures.wrap_err_with(|| format!("layout {tree}"))?;
                table::print_tree(out, &figures)?;
                report.add_tree(figures);
            }
        }
        Ok(())
    }

    fn count_tries(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut LocalityReport,
    ) -> eyre::Result<()> {
        table::print_trie_head(out)?;
        for height in self.trie_heights() {
            for arity in [TrieArity::Two, TrieArity::Sixteen] {
                let trie = random_trie(arity, 1 << height, self.seed, stop)?;
                table::print_trie(out, &trie)?;
                report.add_trie(trie, height);
            }
        }
        Ok(())
    }

    fn measure_tries(
        &self,
        folder: &Path,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut LocalityReport,
    ) -> eyre::Result<()> {
        let (timed, stored) = (self.timing(folder), self.has(TreeMedium::Mdbx));
        table::print_trie_row_head(out, timed.samples)?;
        for height in self.trie_heights() {
            for trie in &self.tries.0 {
                let figures = match trie {
                    TrieChoice::Published(trie) => {
                        TrieRowFigures::published(*trie, height, &timed, stored, stop)
                    }
                    TrieChoice::Own(name) => {
                        let args = BackendArgs::default();
                        let backend = contenders::backend(name, None, &args, MemoryTerms::FREE)?;
                        let factory = BackendFactory::new(backend).named(name);
                        TrieRowFigures::own(StoreTrie::new(&factory), height, &timed, stop)
                    }
                };
                let figures = figures.wrap_err_with(|| format!("{trie:?}, height {height}"))?;
                table::print_trie_rows(out, &figures)?;
                report.add_trie_rows(figures);
            }
        }
        Ok(())
    }
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

    #[test]
    fn names_are_different_and_known() {
        let p = |text: &str| text.parse::<NameList<SubtreeLeaves>>();
        let counts = |text: &str| p(text).unwrap().0.iter().map(|p| p.count()).collect::<Vec<_>>();
        assert_eq!((counts("8, 64"), counts("none")), (vec![8, 64], vec![]));
        assert!(p("8,7").unwrap_err().contains("`7`") && p("8,8").unwrap_err().contains("place 2"));
        let tries = |text: &str| text.parse::<NameList<TrieChoice>>();
        assert_eq!(tries("prefix-tree,prefix:pad=64").unwrap().0.len(), 2);
        let unknown = tries("prefix-tree,trie").unwrap_err();
        assert!(unknown.contains("prefix-tree:pad=64") && unknown.contains("`trie`"), "{unknown}");
        assert!("file,tape".parse::<NameList<TreeMedium>>().unwrap_err().contains("`tape`"));
    }
}
