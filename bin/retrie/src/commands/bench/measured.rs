//! What a race leaves behind, however it ends.

use crate::output::{Output, say};
use retrie_bench::{
    paper::{Paper, references},
    report::{BenchResult, Reference},
};
use std::time::Duration;

/// What a race has measured. What was measured is not lost with what was not.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(super) results: Vec<BenchResult>,
    /// What a reader has to know about them.
    pub(super) notes: Vec<String>,
    /// Figures of papers that belong beside them.
    pub(super) references: Vec<Reference>,
    /// How it ended.
    pub(super) ended: eyre::Result<()>,
}

impl Measured {
    /// Nothing yet, of this workload: beside it belong the figures of all papers that have run it.
    pub(super) fn on(workload: &str) -> Self {
        let mut references: Vec<_> = Paper::ALL.into_iter().flat_map(references).collect();
        references.retain(|figure| figure.workload == workload);
        Self { results: Vec::new(), notes: Vec::new(), references, ended: Ok(()) }
    }
}

/// To how many bytes memory is capped, and how many share it.
pub(super) fn print_memory_limit(out: &Output, limit: u64, sharers: usize) -> eyre::Result<()> {
    say!(
        out,
        "memory limit {} MiB, shared by {sharers} stores that are all open while one runs; the page \
         cache included, which is empty at first",
        limit >> 20
    );
    Ok(())
}

/// How long a store waited for work in the background, if it did.
pub(super) fn print_job_wait(out: &Output, name: &str, wait: Duration) -> eyre::Result<()> {
    if !wait.is_zero() {
        let seconds = wait.as_secs_f64();
        say!(out, "  {name}: {seconds:.2} s of waiting for work in the background");
    }
    Ok(())
}
