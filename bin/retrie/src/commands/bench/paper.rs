//! `retrie bench paper`: runs a paper's experiments, scaled to fit this machine, beside the paper's
//! own figures.
//!
//! Each experiment is an ordinary `retrie bench` command, which is printed, so that it can be run
//! alone and varied.

use super::{BenchRace, locality, measurement::RaceMeasurement, tree_sync, trees};
use crate::output::{CommandOutput, ReportArgs, command_line, say};
use clap::Parser;
use eyre::{Context, bail, eyre};
use retrie_bench::{
    paper::{ExperimentSetup, KvMix, Paper, PaperExperiment, experiments, references},
    report::BenchReport,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Transactions in each block, if the paper does not say.
const TXS_PER_BLOCK: u64 = 500;

/// Arguments of `retrie bench paper`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PaperArgs {
    /// The paper: lvmt, cole, lmpt, locality or bavl.
    #[arg(value_name = "PAPER")]
    paper: Paper,
    /// Scale of state sizes and run lengths; 1 is the paper's own.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01, value_parser = parse_scale)]
    scale: f64,
    /// Only the figures whose name contains this text (`Fig. 2a`, `4`).
    #[arg(long, value_name = "TEXT")]
    figure: Option<String>,
    /// Print the commands without running them.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// More flags for every race, after `--`: `-- --sync none --retention 0`.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let fits = scale.is_finite() && scale > 0.0 && scale <= 1.0;
    if fits { Ok(scale) } else { Err("it lies above 0, and is 1 at most".into()) }
}

/// Parses the command line after `retrie bench`.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true)]
struct BenchCli {
    #[command(subcommand)]
    work: ExperimentWork,
}

/// The command of an experiment.
#[derive(Debug, clap::Subcommand)]
enum ExperimentWork {
    #[command(flatten)]
    Race(Box<BenchRace>),
    /// Counts in flat files, without a backend.
    Locality(locality::LocalityArgs),
    /// Trees in memory.
    Trees(trees::TreesArgs),
    /// The same trees, fetched from peers.
    Sync(tree_sync::TreeFetchArgs),
}

impl ExperimentWork {
    fn measure(self, out: &CommandOutput, stop: &AtomicBool) -> eyre::Result<RaceMeasurement> {
        match self {
            Self::Race(race) => race.measure(out, stop),
            Self::Locality(args) => args.measured(out, stop),
            Self::Trees(args) => args.measured(out, stop),
            Self::Sync(args) => args.measured(out, stop),
        }
    }
}

impl PaperArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let mut experiments = experiments(self.paper, self.scale);
        if let Some(text) = &self.figure {
            experiments.retain(|experiment| experiment.figure.contains(text.as_str()));
            if experiments.is_empty() {
                bail!("the paper `{}` has no experiment for --figure {text}", self.paper);
            }
        }
        // Invalid flags are found before the first run.
        let plan: Vec<_> = experiments
            .iter()
            .map(|experiment| Ok((experiment, self.step(experiment)?)))
            .collect::<eyre::Result<_>>()?;
        let out = CommandOutput::open(&self.report)?;
        let mut report = BenchReport::new(command_line(), Vec::new());
        report.references = references(self.paper);
        report.notes.push(format!("{}, at {} of its size", self.paper.citation(), self.scale));
        report.notes.extend(self.paper.remarks().iter().map(ToString::to_string));
        say!(out, "{}\n{}", report.notes[0], report.machine);
        let of = plan.len();
        let mut ended = Ok(());
        for (number, (experiment, step)) in (1..).zip(plan) {
            if stop.load(Ordering::Relaxed) {
                ended = Err(eyre!("stopped before {}", title(experiment)));
            }
            if ended.is_err() {
                break;
            }
            say!(out, "\n[{number}/{of}] {}", title(experiment));
            say!(out, "  retrie bench {}", step.words.join(" "));
            if !experiment.note.is_empty() {
                say!(out, "  {}", experiment.note);
                let note = format!("{}: {}", title(experiment), experiment.note);
                if !report.notes.contains(&note) {
                    report.notes.push(note);
                }
            }
            if self.dry_run {
                continue;
            }
            // The results measured before an error are kept.
            ended = step.work.measure(&out, stop).and_then(|mut measured| {
                for result in &mut measured.results {
                    result.params.insert("figure".into(), experiment.figure.into());
                }
                report.results.extend(measured.results);
                let known = |note: &String| report.notes.contains(note);
                measured.notes.retain(|note| !known(note));
                report.notes.append(&mut measured.notes);
                measured.ended
            });
            ended = ended.wrap_err_with(|| title(experiment));
        }
        report.complete = ended.is_ok();
        if !self.dry_run {
            out.report(&report)?;
        }
        ended
    }

    /// The step for an experiment.
    fn step(&self, experiment: &PaperExperiment) -> eyre::Result<ExperimentStep> {
        let mut words = words(&experiment.setup);
        // The extra flags are only for stores.
        if !experiment.backends.is_empty() {
            words.extend(["--backends".into(), experiment.backends.join(",")]);
            words.extend_from_slice(&self.flags);
        }
        let line = BenchCli::try_parse_from(&words);
        let line = line.wrap_err_with(|| format!("retrie bench {}", words.join(" ")))?;
        Ok(ExperimentStep { words, work: line.work })
    }
}

/// An experiment's command, ready to run.
struct ExperimentStep {
    /// The words after `retrie bench`.
    words: Vec<String>,
    work: ExperimentWork,
}

fn title(experiment: &PaperExperiment) -> String {
    format!("{}, {}", experiment.figure, experiment.title)
}

/// The words after `retrie bench`.
fn words(setup: &ExperimentSetup) -> Vec<String> {
    let command = match setup {
        // The blocks that the papers replayed are not available; the corpus has others.
        ExperimentSetup::Replay { .. } => "state",
        _ => setup.workload(),
    };
    let mut words = vec![command.to_owned()];
    let mut flag = |name: &str, value: &dyn ToString| {
        words.extend([format!("--{name}"), value.to_string()]);
    };
    match *setup {
        ExperimentSetup::State { keys, pairs, commit_every, cache_mb, proofs, memory_limit_mb } => {
            flag("keys", &keys.map_or_else(|| "fresh".into(), |keys| keys.to_string()));
            flag("pairs", &pairs);
            flag("commit-every", &commit_every);
            if let Some(cache_mb) = cache_mb {
                flag("cache-mb", &cache_mb);
            }
            if proofs > 0 {
                flag("proofs", &proofs);
            }
            if let Some(limit) = memory_limit_mb {
                flag("memory-limit", &format!("{limit}MB"));
            }
        }
        ExperimentSetup::Chain {
            accounts,
            senders,
            txs,
            txs_per_block,
            skewed,
            cache_mb,
            merge_interval,
            ..
        } => {
            let a_block = txs_per_block.unwrap_or(TXS_PER_BLOCK).min(txs);
            flag("accounts", &accounts);
            flag("signers", &senders);
            flag("txs", &a_block);
            flag("blocks", &txs.div_ceil(a_block));
            // The papers' nodes had these transactions in their pool.
            flag("senders", &"recovered");
            if skewed {
                flag("zipf", &0.99);
            }
            if let Some(cache_mb) = cache_mb {
                flag("cache-mb", &cache_mb);
            }
            if let Some(blocks) = merge_interval {
                flag("lmpt.merge-interval", &blocks);
            }
        }
        ExperimentSetup::SmallBank { blocks, txs_per_block, cache_mb, memory_pairs } => {
            flag("blocks", &blocks);
            flag("txs", &txs_per_block);
            // In the authors' program up to as many accounts are named as there are transactions.
            flag("accounts", &(blocks * txs_per_block));
            of_cole(&mut flag, cache_mb, memory_pairs);
            words.push("--fresh".into());
        }
        ExperimentSetup::KvStore { base, blocks, txs_per_block, mix, cache_mb, memory_pairs } => {
            flag("accounts", &base);
            flag("inserts", &50);
            of_cole(&mut flag, cache_mb, memory_pairs);
            flag("blocks", &blocks);
            flag("txs", &txs_per_block);
            flag(
                "ratio",
                &match mix {
                    KvMix::ReadOnly => "read-only",
                    KvMix::ReadWrite => "read-write",
                    KvMix::WriteOnly => "write-only",
                },
            );
        }
        ExperimentSetup::Replay { pad_accounts, memory_limit_mb, .. } => {
            flag("keys", &"real");
            if let Some(accounts) = pad_accounts {
                flag("pad-accounts", &accounts);
            }
            if let Some(limit) = memory_limit_mb {
                flag("memory-limit", &format!("{limit}MB"));
            }
        }
        ExperimentSetup::Provenance { states, blocks, txs_per_block, ranges, memory_pairs } => {
            flag("states", &states);
            flag("blocks", &blocks);
            flag("txs", &txs_per_block);
            flag("cole.memory-pairs", &memory_pairs);
            flag("range", &ranges.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
        }
        ExperimentSetup::Locality { heights: (low, high), samples, rows } => {
            flag("heights", &format!("{low}-{high}"));
            flag("samples", &samples);
            flag("rows", &rows);
            if samples > 0 {
                words.push("--cold".into());
            }
        }
        ExperimentSetup::Trees { elements, hash_every, shapes } => {
            flag("elements", &elements);
            flag("hash-every", &hash_every);
            if !shapes.is_empty() {
                flag("shapes", &shapes.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
            }
        }
        ExperimentSetup::Sync { elements, chunk, peers, byzantine } => {
            flag("elements", &elements);
            flag("chunk", &chunk);
            flag("peers", &peers);
            flag("byzantine", &byzantine);
        }
    }
    words
}

/// Flags that match the COLE authors' program: one caller, nothing signed, and every block is
/// measured, from the first one on.
fn of_cole(flag: &mut dyn FnMut(&str, &dyn ToString), cache_mb: Option<u64>, memory_pairs: u64) {
    flag("signers", &1);
    flag("senders", &"recovered");
    flag("warmup", &0);
    flag("cole.memory-pairs", &memory_pairs);
    if let Some(cache_mb) = cache_mb {
        flag("cache-mb", &cache_mb);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_of_every_paper_is_a_valid_command() {
        for paper in Paper::ALL {
            for scale in [1.0, 0.01, 1e-6] {
                for experiment in experiments(paper, scale) {
                    let words = words(&experiment.setup);
                    let line = BenchCli::try_parse_from(&words);
                    assert!(line.is_ok(), "{paper}: {words:?}: {}", line.unwrap_err());
                }
            }
        }
    }
}
