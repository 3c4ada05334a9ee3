//! The results of a race, complete or not.

use crate::output::{CommandOutput, say};
use eyre::WrapErr;
use retrie_bench::{
    paper::{Paper, references},
    race::{RaceOutcome, RaceResult},
};
use retrie_report::{BenchResult, ReferenceFigure};
use std::time::Duration;

/// The results of a race. Results measured before an error are kept.
#[derive(Debug)]
pub(crate) struct RaceMeasurement {
    pub(super) results: Vec<BenchResult>,
    /// Notes for the reader of the results.
    pub(super) notes: Vec<String>,
    /// Figures of papers to show beside the results.
    pub(super) references: Vec<ReferenceFigure>,
    /// How the race ended.
    pub(super) ended: eyre::Result<()>,
}

impl RaceMeasurement {
    /// No results yet; with the figures of all papers that ran this workload.
    pub(super) fn on(workload: &str) -> Self {
        let mut references: Vec<_> = Paper::ALL.into_iter().flat_map(references).collect();
        references.retain(|figure| figure.workload == workload);
        Self { results: Vec::new(), notes: Vec::new(), references, ended: Ok(()) }
    }
}

/// The reason why a race of `slices` slices on `what` was cut short, if it was.
pub(super) fn ended<F>(what: &str, slices: u64, raced: RaceResult<F>) -> eyre::Result<()> {
    let done = raced.slices_done();
    raced.ended.wrap_err_with(|| format!("{what}: {done} of {slices} slices were measured"))
}

/// Prints the memory limit in bytes, and the number of stores that share it.
pub(super) fn print_memory_limit(
    out: &CommandOutput,
    limit: u64,
    sharers: usize,
) -> eyre::Result<()> {
    say!(
        out,
        "memory limit {} MiB, shared by {sharers} stores that are all open while one runs; the page \
         cache included, which is empty at first",
        limit >> 20
    );
    Ok(())
}

/// Prints for each store how often what it looked up was in memory, and the mapped pages that were
/// there.
pub(super) fn print_hit_rates<F>(
    out: &CommandOutput,
    outcomes: &[RaceOutcome<F>],
) -> eyre::Result<()> {
    say!(
        out,
        "\n{:<16} {:>8} {:>10} {:>9} | {:>9} {:>10}",
        "backend",
        "hit rate",
        "of caches",
        "of rows",
        "mem MiB",
        "mapped MiB"
    );
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    for outcome in outcomes {
        let rates = outcome.hit_rates();
        let shown =
            |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.3}"));
        say!(
            out,
            "{:<16} {:>8} {:>10} {:>9} | {:>9.1} {:>10.1}",
            outcome.backend,
            shown(rates.map(|rates| rates.all)),
            shown(rates.and_then(|rates| rates.caches)),
            shown(rates.and_then(|rates| rates.rows)),
            mib(outcome.memory_bytes() as f64),
            mib(outcome.mapped_bytes() as f64)
        );
    }
    say!(
        out,
        "hit rate: lookups in a store's caches and of single rows that read no table; of rows: not \
         folded yet; prefetches count; mapped: pages of its files in memory after its last turn"
    );
    Ok(())
}

/// Prints how long a store waited for its background jobs, if it did.
pub(super) fn print_job_wait(out: &CommandOutput, name: &str, wait: Duration) -> eyre::Result<()> {
    if !wait.is_zero() {
        let seconds = wait.as_secs_f64();
        say!(out, "  {name}: {seconds:.2} s of waiting for work in the background");
    }
    Ok(())
}
