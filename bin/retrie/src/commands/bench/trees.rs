//! `retrie bench trees`: races search trees with Merkle hashes in memory, as in the B+AVL paper.

use super::measurement::RaceMeasurement;
use crate::{
    args::parse_count,
    output::{CommandOutput, ReportArgs, command_line, grouped, say},
};
use eyre::{WrapErr, bail};
use retrie_bench::{
    paper::{Paper, references, shape_results},
    trees::{
        TreeStructure,
        measure::{self, TreeBenchConfig, TreeTimes},
        report::{TreeOperation, TreesReport, faster, median_ns},
    },
};
use retrie_report::BenchReport;
use std::sync::atomic::AtomicBool;

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "avlplus is the AVL+ tree of Tendermint, the paper's baseline, with one element in each leaf. \
avlstar is the AVL* tree: the same tree, with the same roots and proofs, whose subtrees lie in chunks. bplus \
is a Merkle B+tree; bavl is the B+AVL tree with the shape and the roots of the backend of that name. All are \
in memory, use one thread and the same hash function, and compute the root as often as --hash-every says; \
each hashes only what has changed. Elements have keys of 4 bytes and come in random order. Each turn builds and searches all trees, one \
after the other. Times are medians over turns, ratios are medians of the ratios within a turn. Small trees \
get more turns.";

/// Arguments of `retrie bench trees`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct TreesArgs {
    /// Numbers of elements: Fig. 5 of the paper.
    #[arg(
        long,
        value_name = "N,N,..",
        value_delimiter = ',',
        default_value = "1k,10k,100k,1m",
        value_parser = parse_elements
    )]
    pub(super) elements: Vec<u64>,
    /// Bytes of each value.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: u32,
    /// Most elements in a chunk, or in a cell.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=4096))]
    chunk: u32,
    /// Inserts between two computations of the root: 1 is the paper's choice, 1000 is like blocks,
    /// 0 computes it once at the end.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    pub(super) hash_every: u64,
    /// Trees, separated by commas: avlplus, avlstar, bplus, bavl [default: all].
    #[arg(long, value_name = "TREES", value_delimiter = ',')]
    trees: Vec<TreeStructure>,
    /// Least number of turns.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u64,
    /// Also measure the lengths of proofs, the numbers of chunks and the times to serialize, with
    /// chunks of this many elements: Figs. 1, 6, 7, Table II. The tree has the last number of
    /// --elements.
    #[arg(
        long,
        value_name = "N,N,..",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(4..=4096)
    )]
    pub(super) shapes: Vec<u32>,
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

impl TreesArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::open(&self.report)?;
        let mut report = TreesReport::new(BenchReport::new(command_line(), Vec::new()));
        report.bench.references = references(Paper::Bavl);
        report.bench.references.retain(|figure| figure.workload == "trees");
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        // The results measured before an error are kept.
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Measures, and returns the results. Shapes and times of messages are results too, without a
    /// rate.
    pub(super) fn measured(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let mut report = TreesReport::new(BenchReport::new(String::new(), Vec::new()));
        let ended = self.measure(out, stop, &mut report);
        let shapes = shape_results(&report);
        let BenchReport { mut results, notes, .. } = report.bench;
        results.extend(shapes);
        Ok(RaceMeasurement { results, notes, references: Vec::new(), ended })
    }

    fn setting(&self, elements: u64, chunk: u32) -> TreeBenchConfig {
        TreeBenchConfig {
            elements,
            bytes: self.bytes as usize,
            chunk: chunk as usize,
            hash_every: self.hash_every,
            seed: self.seed,
        }
    }

    fn measure(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut TreesReport,
    ) -> eyre::Result<()> {
        let trees = if self.trees.is_empty() { &TreeStructure::ALL[..] } else { &self.trees };
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
        out: &CommandOutput,
        trees: &[TreeStructure],
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
                // It has no chunks, so one chunk size is enough.
                if *tree == TreeStructure::AvlPlus && n > 0 {
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
            for tree in trees {
                let setting = self.setting(*elements, *chunk);
                let Some(one) = measure::messages(*tree, &setting, self.rounds, stop)
                    .wrap_err_with(|| format!("{tree}, messages of {chunk} elements"))?
                else {
                    continue;
                };
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

fn print_times(
    out: &CommandOutput,
    setting: &TreeBenchConfig,
    all: &[TreeTimes],
) -> eyre::Result<()> {
    let baseline = all.iter().find(|times| times.structure == TreeStructure::AvlPlus);
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
            median_ns(setting, times, TreeOperation::Insert),
            ratio(TreeOperation::Insert),
            median_ns(setting, times, TreeOperation::Search),
            ratio(TreeOperation::Search),
        );
    }
    Ok(())
}
