//! The figures that only races of clients have.

use super::workload::{ClientWorkload, SenderRecovery};
use crate::race::{RaceOutcome, RaceTerms};
use retrie_pipeline::{ImportTimes, report::TimeBreakdown};
use retrie_report::BenchResult;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The figures of one client in a race. Its operations are transactions; its keys are those that
/// the EVM has read, and those that blocks have changed.
pub type ClientOutcome = RaceOutcome<ClientFigures>;

/// The figures that only clients have.
#[derive(Clone, Copy, Debug)]
pub struct ClientFigures {
    /// Whether senders were recovered before the clock started.
    pub senders: SenderRecovery,
    /// Bytes of other files of the state: files kept for reverts, or written ahead of their block.
    pub kept_file_bytes: u64,
}

impl ClientFigures {
    pub(super) const fn new(senders: SenderRecovery) -> Self {
        Self { senders, kept_file_bytes: 0 }
    }
}

impl ClientOutcome {
    /// The figures as a result of `--json`.
    pub fn result(&self, workload: &ClientWorkload, terms: &RaceTerms) -> BenchResult {
        self.result_on(workload.name, workload.params(), terms)
    }

    /// Like [`result`](Self::result), with another workload name and its params.
    pub(super) fn result_on(
        &self,
        name: &str,
        mut params: Map<String, Value>,
        terms: &RaceTerms,
    ) -> BenchResult {
        let ClientFigures { senders, kept_file_bytes } = self.figures;
        params.insert("senders".into(), json!(senders.to_string()));
        params.insert("hash".into(), json!(self.hash));
        params.extend(terms.params());
        params.extend(self.memory_cap.iter().flat_map(|cap| cap.params()));
        BenchResult {
            tps: Some(self.median_rate()),
            kept_file_bytes: (kept_file_bytes > 0).then_some(kept_file_bytes),
            ..self.bench_result(name, params)
        }
    }
}

/// Time that turns spent waiting, beside the times that an import counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitTimes {
    /// Waiting for recovered senders, which counts as execution.
    pub(super) senders: Duration,
    /// Waiting for folds, which counts as storage I/O.
    pub(super) folds: Duration,
}

impl WaitTimes {
    /// How the time of the turns was spent.
    pub(super) fn with_import(self, import: &ImportTimes) -> TimeBreakdown {
        TimeBreakdown {
            execution: (import.execution + self.senders).as_secs_f64(),
            authentication: (import.reads + import.authentication).as_secs_f64(),
            storage_io: (import.commit_wait + self.folds).as_secs_f64(),
            other: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_belongs_to_what_it_waits_for() {
        const MS: fn(u64) -> Duration = Duration::from_millis;
        let import = ImportTimes {
            execution: MS(10),
            reads: MS(20),
            authentication: MS(30),
            roots_aside: MS(7),
            commit_wait: MS(4),
            prepare: MS(1000),
        };
        let waits = WaitTimes { senders: MS(3), folds: MS(1) };
        let spent = waits.with_import(&import);
        let fields = [spent.execution, spent.authentication, spent.storage_io, spent.other];
        assert_eq!(fields, [0.013, 0.05, 0.005, 0.0]);
    }
}
