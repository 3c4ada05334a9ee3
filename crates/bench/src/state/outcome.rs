//! What a race gave, for one contender.

use super::{
    contender::Terms,
    workload::{Keys, Workload},
};
use crate::{
    latency::Latency,
    report::{BenchResult, TableResult},
};
use alloy_primitives::B256;
use retrie_db::SyncMode;
use retrie_state::{Counts, TableCounts};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The figures of one contender.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name.
    pub backend: String,
    /// Hash function under its root.
    pub hash: String,
    /// Pairs measured.
    pub pairs: u64,
    /// Operations a second of each slice, in the order they were run.
    pub slice_rates: Vec<f64>,
    /// Time of all slices, settling included.
    pub slices: Duration,
    /// The part of it that was spent settling.
    pub settling: Duration,
    /// Time of the final flush.
    pub flush: Duration,
    /// Durations of the commits, each of `commit_every` pairs.
    pub latency: Latency,
    /// Work at the node interface during the slices; `None` where there is no such interface.
    pub counts: Option<Counts>,
    /// Proofs of one key each: of keys that are present, then of absent ones.
    pub proofs: Vec<ProofFigures>,
    /// Ethereum's root at the end, from those that have it.
    pub ethereum_root: Option<B256>,
    /// By how much allocated memory has grown during its turns since it was opened, in bytes.
    pub memory_bytes: i64,
    /// Bytes of live pages and files after the flush.
    pub disk_bytes: u64,
    /// Largest resident set of the process during the race, all contenders together.
    pub peak_rss_bytes: u64,
}

impl Outcome {
    pub(super) fn new(backend: &str, hash: &str) -> Self {
        Self {
            backend: backend.into(),
            hash: hash.into(),
            pairs: 0,
            slice_rates: Vec::new(),
            slices: Duration::ZERO,
            settling: Duration::ZERO,
            flush: Duration::ZERO,
            latency: Latency::default(),
            counts: None,
            proofs: Vec::new(),
            ethereum_root: None,
            memory_bytes: 0,
            disk_bytes: 0,
            peak_rss_bytes: 0,
        }
    }

    /// The measured part begins at these counts.
    pub(super) fn begin(&mut self, counts: Option<Counts>) {
        self.counts = counts;
    }

    pub(super) fn add_slice(
        &mut self,
        pairs: u64,
        elapsed: Duration,
        settling: Duration,
        commits: &[Duration],
    ) {
        self.pairs += pairs;
        self.slice_rates.push(rate(2 * pairs, elapsed));
        self.slices += elapsed;
        self.settling += settling;
        commits.iter().for_each(|commit| self.latency.record(*commit));
    }

    /// It ends at these.
    pub(super) fn close(&mut self, counts: Option<Counts>, peak_rss_bytes: u64) {
        self.counts = counts.zip(self.counts.take()).map(|(end, begin)| &end - &begin);
        self.peak_rss_bytes = peak_rss_bytes;
    }

    /// Operations: two a pair.
    pub const fn ops(&self) -> u64 {
        2 * self.pairs
    }

    /// Median of the slices' operations a second.
    pub fn median_rate(&self) -> f64 {
        self.rate_at(0.5)
    }

    /// Interquartile range of the slices' rates over their median.
    pub fn spread(&self) -> f64 {
        match self.median_rate() {
            0.0 => 0.0,
            median => (self.rate_at(0.75) - self.rate_at(0.25)) / median,
        }
    }

    /// All timed work: slices and flush.
    pub fn total(&self) -> Duration {
        self.slices + self.flush
    }

    /// All operations over all timed work.
    pub fn sustained_rate(&self) -> f64 {
        rate(self.ops(), self.total())
    }

    /// The rate that a fraction of the slices does not exceed, linear between them.
    fn rate_at(&self, fraction: f64) -> f64 {
        let mut rates = self.slice_rates.clone();
        rates.sort_unstable_by(f64::total_cmp);
        let Some(last) = rates.len().checked_sub(1) else { return 0.0 };
        let at = fraction * last as f64;
        let (below, above) = (rates[at.floor() as usize], rates[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }

    /// One of the counts per pair: a pair has one key read and one key written.
    pub fn per_pair(&self, count: fn(&Counts) -> u64) -> Option<f64> {
        self.counts.as_ref().map(|counts| count(counts) as f64 / self.pairs.max(1) as f64)
    }

    /// The counts of each table that was read or written, per pair.
    pub fn tables(&self) -> Option<Vec<TableResult>> {
        let per_pair = |count: u64| count as f64 / self.pairs.max(1) as f64;
        let table = |(name, counts): &(&'static str, TableCounts)| TableResult {
            name,
            reads_per_op: per_pair(counts.reads),
            writes_per_op: per_pair(counts.writes),
            read_bytes_per_op: per_pair(counts.read_bytes),
            write_bytes_per_op: per_pair(counts.write_bytes),
        };
        self.counts.as_ref().map(|counts| counts.tables.iter().map(table).collect())
    }

    /// As a result of `--json`.
    pub fn result(&self, workload: &Workload, terms: &Terms) -> BenchResult {
        BenchResult {
            backend: self.backend.clone(),
            workload: "state".into(),
            params: self.params(workload, terms),
            ops: self.ops(),
            seconds: self.total().as_secs_f64(),
            ops_per_s: self.median_rate(),
            tps: None,
            p50_us: Some(self.latency.micros(0.5)),
            p99_us: Some(self.latency.micros(0.99)),
            p999_us: Some(self.latency.micros(0.999)),
            max_us: Some(self.latency.max_micros()),
            reads_per_op: self.per_pair(|counts| counts.reads),
            writes_per_op: self.per_pair(|counts| counts.writes),
            read_bytes_per_op: self.per_pair(|counts| counts.read_bytes),
            write_bytes_per_op: self.per_pair(|counts| counts.write_bytes),
            tables: self.tables(),
            disk_bytes: self.disk_bytes,
            peak_rss_bytes: self.peak_rss_bytes,
            spread: Some(self.spread()),
        }
    }

    fn params(&self, workload: &Workload, terms: &Terms) -> Map<String, Value> {
        let keys = match workload.keys {
            Keys::Preloaded(keys) => json!(keys),
            Keys::Fresh => json!("fresh"),
        };
        let measured = json!({
            "sustained_ops_per_s": self.sustained_rate(),
            "slice_ops_per_s": self.slice_rates,
            "settle_seconds": self.settling.as_secs_f64(),
            "flush_seconds": self.flush.as_secs_f64(),
            "max_over_median": self.latency.stall_ratio(),
            "journal_bytes_per_op": self.per_pair(|counts| counts.journal_bytes),
            "undo_bytes_per_op": self.per_pair(|counts| counts.undo_bytes),
            "folded_rows": self.counts.as_ref().map(|counts| counts.folded_rows),
            "memory_bytes": self.memory_bytes,
            "proofs": self.proofs.iter().map(ProofFigures::json).collect::<Vec<_>>(),
        });
        let params = json!({
            "keys": keys,
            "pairs": workload.pairs,
            "commit_every": workload.commit_every,
            "warmup": workload.warmup,
            "slices": workload.slices,
            "layout": workload.layout,
            "seed": workload.seed,
            "hash": self.hash,
            "sync": match terms.sync {
                SyncMode::Durable => "durable",
                SyncMode::NoSync => "none",
            },
            "cache_mb": terms.cache_bytes >> 20,
            "retention": terms.retention,
            "measured": measured,
        });
        match params {
            Value::Object(params) => params,
            _ => Map::new(),
        }
    }
}

/// What proofs of one key cost.
#[derive(Clone, Debug)]
pub struct ProofFigures {
    /// Whether the keys have a value.
    pub present: bool,
    /// Time to make one.
    pub made: Latency,
    /// Time to check one.
    pub verified: Latency,
    /// Lengths in bytes.
    bytes: Vec<usize>,
}

impl ProofFigures {
    pub(super) fn new(present: bool) -> Self {
        let (made, verified, bytes) = Default::default();
        Self { present, made, verified, bytes }
    }

    pub(super) fn add(&mut self, made: Duration, verified: Duration, bytes: usize) {
        self.made.record(made);
        self.verified.record(verified);
        let at = self.bytes.partition_point(|shorter| *shorter < bytes);
        self.bytes.insert(at, bytes);
    }

    /// Number of proofs.
    pub const fn count(&self) -> usize {
        self.bytes.len()
    }

    /// The length in bytes that a fraction of the proofs does not exceed; 0 without proofs.
    pub fn bytes(&self, fraction: f64) -> usize {
        let last = self.bytes.len().saturating_sub(1);
        self.bytes.get((fraction * last as f64) as usize).copied().unwrap_or(0)
    }

    fn json(&self) -> Value {
        let times = |latency: &Latency| json!({ "p50_us": latency.micros(0.5), "p99_us": latency.micros(0.99), "max_us": latency.max_micros() });
        json!({
            "present": self.present,
            "count": self.count(),
            "made": times(&self.made),
            "verified": times(&self.verified),
            "bytes": { "min": self.bytes(0.0), "p50": self.bytes(0.5), "max": self.bytes(1.0) },
        })
    }
}

fn rate(ops: u64, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => ops as f64 / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread_are_those_of_the_slices_and_the_sustained_rate_has_the_flush() {
        let mut outcome = Outcome::new("a", "none");
        for millis in [100, 50, 200, 125, 250] {
            let slice = Duration::from_millis(millis);
            outcome.add_slice(500, slice, Duration::from_millis(10), &[slice; 2]);
        }
        outcome.flush = Duration::from_millis(275);
        // Rates: 10,000, 20,000, 5,000, 8,000, 4,000.
        assert_eq!((outcome.ops(), outcome.median_rate()), (5000, 8000.0));
        assert_eq!(outcome.spread(), (10_000.0 - 5_000.0) / 8_000.0);
        assert_eq!(outcome.sustained_rate(), 5000.0);
        assert_eq!(outcome.settling, Duration::from_millis(50));
        assert_eq!(outcome.latency.count(), 10);
    }

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

    #[test]
    fn tables_are_counted_per_pair_of_the_measured_part() {
        let counts = |reads, writes| {
            let of = TableCounts { reads, read_bytes: 8 * reads, writes, write_bytes: 9 * writes };
            Some(Counts { reads, writes, tables: vec![("Flat", of)], ..Default::default() })
        };
        let mut outcome = Outcome::new("a", "none");
        assert_eq!(outcome.tables(), None);
        outcome.begin(counts(10, 100));
        outcome.add_slice(50, Duration::from_millis(1), Duration::ZERO, &[]);
        outcome.close(counts(110, 200), 0);
        let flat = TableResult {
            name: "Flat",
            reads_per_op: 2.0,
            writes_per_op: 2.0,
            read_bytes_per_op: 16.0,
            write_bytes_per_op: 18.0,
        };
        assert_eq!(outcome.tables(), Some(vec![flat]));
        assert_eq!(outcome.per_pair(|counts| counts.reads), Some(2.0));
    }
}
