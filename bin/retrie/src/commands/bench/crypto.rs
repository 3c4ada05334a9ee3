//! `retrie bench crypto`: what curve arithmetic costs, beside the LVMT paper's Table 1.

use super::measurement::RaceMeasurement;
use crate::{
    args::parse_count,
    output::{CommandOutput, ReportArgs, command_line, grouped, say},
};
use retrie_bench::crypto::{
    measure::{CryptoConfig, OperationTimes, measure},
    report,
};
use retrie_report::BenchReport;
use std::sync::atomic::AtomicBool;

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "Operations are on points of G1 in projective coordinates, with arkworks, the library of \
`lvmt`; one thread. `mixed addition` adds an affine point, `double and add` multiplies bit by bit, \
`multiplication` as the library does (GLV). Times are medians over turns, in which all operations of both \
curves run one after the other; the paper's are of another machine (Intel i9-10900K).";

/// Arguments of `retrie bench crypto`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct CryptoArgs {
    /// Turns of each operation.
    #[arg(long, value_name = "N", default_value = "25", value_parser = parse_count)]
    rounds: u64,
    /// Additions in a turn, 1 to 10m; multiplications are a 200th of them, single conversions a 20th,
    /// batches are whole.
    #[arg(long, value_name = "N", default_value = "20k", value_parser = parse_samples)]
    samples: usize,
    /// Points that are converted at once.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_samples)]
    batch: usize,
    /// Seed of points and scalars.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
}

fn parse_samples(text: &str) -> Result<usize, String> {
    let count = parse_count(text)?;
    match usize::try_from(count) {
        Ok(samples) if (1..=10_000_000).contains(&samples) => Ok(samples),
        _ => Err("it lies between 1 and 10m".into()),
    }
}

impl CryptoArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::open(&self.report)?;
        let mut bench = BenchReport::new(command_line(), Vec::new());
        say!(out, "{}", bench.machine);
        let RaceMeasurement { results, notes, references, ended } = self.measured(&out, stop)?;
        (bench.results, bench.notes, bench.references) = (results, notes, references);
        bench.complete = ended.is_ok();
        out.report(&bench)?;
        ended
    }

    /// Measures, and returns the results.
    pub(super) fn measured(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let Self { rounds, samples, batch, seed, .. } = self;
        let config = CryptoConfig { rounds, samples, batch, seed };
        let measured = measure(&config, stop);
        let all = measured.as_deref().unwrap_or_default();
        let printed = if all.is_empty() { Ok(()) } else { print(out, &config, all) };
        Ok(RaceMeasurement {
            results: all.iter().map(|times| report::result(times, &config)).collect(),
            notes: all.iter().map(note).collect(),
            references: report::references(),
            ended: measured.map(drop).map_err(Into::into).and(printed),
        })
    }
}

/// The time in words, for the page.
fn note(times: &OperationTimes) -> String {
    let paper = report::paper_ns(times.curve, times.operation)
        .map_or_else(String::new, |(ns, place)| format!("; paper, {place}: {ns:.0} ns"));
    format!("{}, {}: {:.0} ns{paper}", times.curve, times.operation, report::median_ns(times))
}

fn print(out: &CommandOutput, config: &CryptoConfig, all: &[OperationTimes]) -> eyre::Result<()> {
    say!(
        out,
        "{} turns of {} additions; {} points a batch",
        config.rounds,
        grouped(config.samples as u64),
        grouped(config.batch as u64)
    );
    say!(
        out,
        "\n{:<10} {:<17} {:>11} {:>7} {:>11} {:>8}  {}",
        "curve",
        "operation",
        "ns",
        "spread",
        "paper's ns",
        "faster",
        "in the paper"
    );
    for times in all {
        let ns = report::median_ns(times);
        let paper = report::paper_ns(times.curve, times.operation);
        let (paper_ns, faster, place) = match paper {
            Some((paper, place)) => (grouped(paper as u64), format!("{:.2}x", paper / ns), place),
            None => ("-".into(), "-".into(), ""),
        };
        say!(
            out,
            "{:<10} {:<17} {:>11.1} {:>6.0}% {:>11} {:>8}  {place}",
            times.curve,
            times.operation,
            ns,
            report::spread(times) * 100.0,
            paper_ns,
            faster
        );
    }
    Ok(())
}
