//! The figures that only races of state stores have.

use super::workload::StoreWorkload;
use crate::race::{RaceOutcome, RaceTerms};
use alloy_primitives::B256;
use retrie_report::{BenchResult, ProofBytes, ProofResult, ProofTime, latency::LatencyHistogram};
use retrie_state::StateKey;
use serde_json::json;
use std::time::Duration;

/// The figures of one state store in a race. Its operations are keys: one per key read, and one per
/// key written.
pub type StoreOutcome = RaceOutcome<StoreFigures>;

/// The figures that only state stores have.
#[derive(Clone, Debug, Default)]
pub struct StoreFigures {
    /// Proofs of one key each: of present keys, then of absent keys; of all keys of a commit; then of one
    /// key each in old states.
    pub proofs: Vec<ProofFigures>,
    /// Ethereum's state root at the end, if the store computes it.
    pub ethereum_root: Option<B256>,
    /// Bytes of free pages, with those of the chain's tables, if the store knows it.
    pub free_bytes: Option<u64>,
}

impl StoreOutcome {
    /// The figures as a result of `--json`.
    pub fn result(&self, workload: &StoreWorkload, terms: &RaceTerms) -> BenchResult {
        let mut params = workload.params();
        params.extend(terms.params());
        params.extend(self.memory_cap.iter().flat_map(|cap| cap.params()));
        params.insert("hash".into(), json!(self.hash));
        BenchResult {
            proofs: self.figures.proofs.iter().map(ProofFigures::result).collect(),
            ..self.bench_result("state", params)
        }
    }
}

/// The cost of proofs: of one key each, or of all keys of a commit.
#[derive(Clone, Debug)]
pub struct ProofFigures {
    /// Whether the keys have a value.
    pub present: bool,
    /// Number of keys of the median commit whose keys one proof shows, whether they have a value or
    /// not; `None` if each proof shows one key.
    pub keys: Option<usize>,
    /// Depth of the state in blocks below the tip; `None` for the current state, if no old states
    /// are proven.
    pub depth: Option<u64>,
    /// Time to make the first proof, if it was measured. It is not among the others.
    pub first: Option<Duration>,
    /// Time to make a proof.
    pub made: LatencyHistogram,
    /// Time to verify a proof.
    pub verified: LatencyHistogram,
    /// Lengths in bytes.
    bytes: Vec<usize>,
}

impl ProofFigures {
    pub(crate) fn new(present: bool) -> Self {
        let (made, verified, bytes) = Default::default();
        Self { present, keys: None, depth: None, first: None, made, verified, bytes }
    }

    /// Figures of proofs of all keys of a commit.
    pub(crate) fn of_commits(commits: &[Vec<StateKey>]) -> Self {
        let mut lengths: Vec<usize> = commits.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        Self { keys: lengths.get(lengths.len() / 2).copied(), ..Self::new(true) }
    }

    /// Figures of present keys in the state `depth` blocks below the tip. `first` is the time of
    /// the first proof.
    pub(crate) fn at_depth(depth: u64, first: Duration) -> Self {
        Self { depth: Some(depth), first: Some(first), ..Self::new(true) }
    }

    pub(crate) fn add(&mut self, made: Duration, verified: Duration, bytes: usize) {
        self.made.record(made);
        self.verified.record(verified);
        let at = self.bytes.partition_point(|shorter| *shorter < bytes);
        self.bytes.insert(at, bytes);
    }

    /// Number of proofs.
    pub const fn count(&self) -> usize {
        self.bytes.len()
    }

    /// The `fraction` quantile of the lengths in bytes; 0 without proofs.
    pub fn bytes(&self, fraction: f64) -> usize {
        let last = self.bytes.len().saturating_sub(1);
        self.bytes.get((fraction * last as f64) as usize).copied().unwrap_or(0)
    }

    pub(crate) fn result(&self) -> ProofResult {
        let time = |latency: &LatencyHistogram| ProofTime {
            p50_us: latency.micros(0.5),
            p99_us: latency.micros(0.99),
            max_us: latency.max_micros(),
        };
        let bytes = |fraction| self.bytes(fraction) as u64;
        ProofResult {
            present: self.present,
            keys: self.keys.map(|keys| keys as u64),
            depth: self.depth,
            first_us: self.first.map(|first| first.as_micros() as u64),
            count: self.count() as u64,
            made: time(&self.made),
            verified: time(&self.verified),
            bytes: ProofBytes { min: bytes(0.0), p50: bytes(0.5), max: bytes(1.0) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_proofs_are_those_of_the_sorted_list() {
        let mut figures = ProofFigures::new(true);
        assert_eq!(figures.bytes(0.5), 0);
        for bytes in [30, 10, 50, 20, 40] {
            figures.add(Duration::from_micros(bytes as u64), Duration::from_micros(7), bytes);
        }
        let at = [0.0, 0.5, 1.0].map(|fraction| figures.bytes(fraction));
        assert_eq!((figures.count(), at), (5, [10, 30, 50]));
        assert_eq!((figures.made.micros(0.5), figures.verified.max_micros()), (30, 7));
    }
}
