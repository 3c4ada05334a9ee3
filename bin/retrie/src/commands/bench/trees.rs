//! `retrie bench trees`: search trees with Merkle hashes in memory, raced as the B+AVL paper does.

use super::measured::Measured;
use crate::{
    args::parse_count,
    output::{Output, ReportArgs, command_line, grouped, say},
};
use eyre::{WrapErr, bail};
use retrie_bench::{
    paper::{Paper, references},
    report::BenchReport,
    trees::{
        Structure,
        measure::{self, Setting, Times},
        report::{Operation, TreesReport, faster, median_ns},
    },
};
use std::sync::atomic::AtomicBool;

/// What the figures mean, below `--help`.
const HELP: &str = "avlplus is the AVL+ tree of Tendermint, the paper's baseline: an element a leaf. bplus \
is a Merkle B+tree, bavl the B+AVL tree with the shape and the roots of the backend of that name. All lie \
in memory, use one thread and hash the same way, as often as --hash-every says. Elements have keys of 4 \
bytes and come in random order. Each turn builds and searches all trees, one after the other; times are \
medians over turns, ratios medians of the ratios within a turn. Small trees get more turns.";

/// Arguments of `retrie bench trees`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Numbers of elements: Fig. 5 of the paper.
    #[arg(
        long,
        value_name = "N,N,..",
        value_delimiter = ',',
        default_value = "1k,10k,100k,1m",
        value_parser = parse_elements
    )]
    elements: Vec<u64>,
    /// Bytes of each value.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: u32,
    /// Elements of a chunk, or of a cell, at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=4096))]
    chunk: u32,
    /// Inserts between two calculations of the root: 0 for one at the end, 1 as the paper's authors, 1000
    /// as blocks would.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    hash_every: u64,
    /// Trees, separated by commas: avlplus, bplus, bavl; all by default.
    #[arg(long, value_name = "TREES", value_delimiter = ',')]
    trees: Vec<Structure>,
    /// Turns, at least.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u64,
    /// Also the lengths of proofs, the numbers of chunks and the times of bytes, with chunks of so many
    /// elements: Figs. 1, 6, 7, Table II. The tree has the last of --elements.
    #[arg(
        long,
        value_name = "N,N,..",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(4..=4096)
    )]
    shapes: Vec<u32>,
    /// Seed of keys and values.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
}

fn parse_elements(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("a tree without elements has nothing to measure".into()),
        count if count > 1 << 31 => {
            Err(format!("`{text}` elements are too many for keys of 4 bytes"))
        }
        count => Ok(count),
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = Output::open(&self.report)?;
        let mut report = TreesReport::new(BenchReport::new(command_line(), Vec::new()));
        report.bench.references = references(Paper::Bavl);
        report.bench.references.retain(|figure| figure.workload == "trees");
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        // What was measured is not lost with what was not.
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Measures, and leaves the report to the caller. Shapes are in its notes.
    pub(super) fn measured(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let mut report = TreesReport::new(BenchReport::new(String::new(), Vec::new()));
        let ended = self.measure(out, stop, &mut report);
        let BenchReport { results, notes, .. } = report.bench;
        Ok(Measured { results, notes, references: Vec::new(), ended })
    }

    fn setting(&self, elements: u64, chunk: u32) -> Setting {
        Setting {
            elements,
            bytes: self.bytes as usize,
            chunk: chunk as usize,
            hash_every: self.hash_every,
            seed: self.seed,
        }
    }

    fn measure(
        &self,
        out: &Output,
        stop: &AtomicBool,
        report: &mut TreesReport,
    ) -> eyre::Result<()> {
        let trees = if self.trees.is_empty() { &Structure::ALL[..] } else { &self.trees };
        if let Some(twice) =
            trees.iter().enumerate().find(|(n, tree)| trees[..*n].contains(tree)).map(|(_, t)| t)
        {
            bail!("--trees names `{twice}` twice");
        }
        say!(
            out,
            "values of {} bytes, chunks of {}, root after {}",
            self.bytes,
            self.chunk,
            match self.hash_every {
                0 => "all inserts".to_owned(),
                1 => "each insert".to_owned(),
                many => format!("{} inserts", grouped(many)),
            }
        );
        say!(
            out,
            "\n{:>10} {:<8} {:>10} {:>8} {:>10} {:>8}",
            "elements",
            "tree",
            "ns/insert",
            "faster",
            "ns/search",
            "faster"
        );
        for elements in &self.elements {
            let setting = self.setting(*elements, self.chunk);
            let all = measure::race(trees, &setting, self.rounds, stop)
                .wrap_err_with(|| format!("{elements} elements"))?;
            print_times(out, &setting, &all)?;
            report.add(&setting, &all);
        }
        self.measure_shapes(out, trees, stop, report)
    }

    fn measure_shapes(
        &self,
        out: &Output,
        trees: &[Structure],
        stop: &AtomicBool,
        report: &mut TreesReport,
    ) -> eyre::Result<()> {
        let Some(elements) = self.elements.last().filter(|_| !self.shapes.is_empty()) else {
            return Ok(());
        };
        say!(
            out,
            "\n{:<8} {:>6} | {:>9} {:>7} {:>6} {:>6} | {:>7} {:>7}",
            "tree",
            "chunk",
            "hashes",
            "+-",
            "least",
            "most",
            "space",
            "+-"
        );
        for (n, chunk) in self.shapes.iter().enumerate() {
            for tree in trees {
                // It has no chunks, so one size of them is enough.
                if *tree == Structure::AvlPlus && n > 0 {
                    continue;
                }
                let shape = measure::shape(*tree, &self.setting(*elements, *chunk), stop)
                    .wrap_err_with(|| format!("{tree}, chunks of {chunk}"))?;
                let (proof, space) = (shape.proof_hashes, shape.space);
                let chunk = shape.chunk.map_or_else(|| "-".into(), |chunk| chunk.to_string());
                let space = space.map_or_else(
                    || format!("{:>7} {:>7}", "-", "-"),
                    |space| format!("{:>7.2} {:>7.2}", space.mean, space.deviation),
                );
                say!(
                    out,
                    "{tree:<8} {chunk:>6} | {:>9.2} {:>7.2} {:>6} {:>6} | {space}",
                    proof.mean,
                    proof.deviation,
                    proof.min,
                    proof.max,
                );
                report.add_shape(shape);
            }
        }
        say!(
            out,
            "\n{:<8} {:>6} {:>9} {:>9} {:>13} {:>13}",
            "tree",
            "chunk",
            "messages",
            "MiB",
            "ms to write",
            "ms to read"
        );
        for chunk in &self.shapes {
            let both = measure::messages(&self.setting(*elements, *chunk), self.rounds, stop)
                .wrap_err_with(|| format!("messages of {chunk} elements"))?;
            for one in both {
                say!(
                    out,
                    "{:<8} {:>6} {:>9} {:>9.1} {:>13.1} {:>13.1}",
                    one.tree,
                    one.chunk,
                    one.messages,
                    one.bytes as f64 / f64::from(1 << 20),
                    one.serialize_ms,
                    one.deserialize_ms
                );
                report.add_messages(one);
            }
        }
        Ok(())
    }
}

fn print_times(out: &Output, setting: &Setting, all: &[Times]) -> eyre::Result<()> {
    let baseline = all.iter().find(|times| times.structure == Structure::AvlPlus);
    for times in all {
        let ratio = |operation| match baseline {
            Some(other) => format!("{:.2}x", faster(setting, times, other, operation).median),
            None => "-".into(),
        };
        say!(
            out,
            "{:>10} {:<8} {:>10.0} {:>8} {:>10.1} {:>8}",
            grouped(setting.elements),
            times.structure,
            median_ns(setting, times, Operation::Insert),
            ratio(Operation::Insert),
            median_ns(setting, times, Operation::Search),
            ratio(Operation::Search),
        );
    }
    Ok(())
}
