//! What a race of clients gave, for one of them.

use super::workload::{Senders, Workload};
use crate::{
    figures::{Ratio, per, quantile, rate, unless_zero},
    latency::Latency,
    memory::cap_params,
    report::{BenchResult, LatencyPoint, SliceResult, TableResult},
    state::Terms,
};
use retrie_db::SyncMode;
use retrie_pipeline::{ImportTimes, report::Breakdown};
use retrie_state::{Counts, TableCounts};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The figures of one client.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of its backend.
    pub backend: String,
    /// Hash function under its root.
    pub hash: String,
    /// When senders were recovered.
    pub senders: Senders,
    /// Time of the final flush.
    pub flush: Duration,
    /// Bytes of live pages and files of the state after it.
    pub disk_bytes: u64,
    /// Bytes of files of the state beside those: kept for reverts, or made ahead of their block.
    pub kept_file_bytes: u64,
    /// Largest resident set of the process during the race, all clients together.
    pub peak_rss_bytes: u64,
    /// The cap on memory, if there was one: bytes, by what means, shared by how many clients.
    pub memory_cap: Option<(u64, &'static str, usize)>,
    /// What it had counted when the measured part began.
    pub(super) begun: Marks,
    pub(super) turns: Vec<Turn>,
}

/// One slice.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) txs: u64,
    /// All of it, settling included.
    pub(super) elapsed: Duration,
    /// Waiting for the last commit, and for folds under way.
    pub(super) settling: Duration,
    /// The part of that which the importer does not count as waiting for commits.
    pub(super) folding: Duration,
    /// Waiting for blocks that were not yet prepared.
    pub(super) waited: Duration,
    pub(super) latencies: Vec<Duration>,
    pub(super) disk_bytes: u64,
    /// How much allocated memory has grown up to its end.
    pub(super) memory_bytes: i64,
    /// What the client had counted at its end.
    pub(super) marks: Marks,
}

/// What a client counts from its opening on.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    pub(super) times: ImportTimes,
    /// Keys read by the EVM, keys changed.
    pub(super) keys: (u64, u64),
    pub(super) counts: Counts,
}

impl Outcome {
    pub(super) fn new(backend: &str, hash: &str, senders: Senders) -> Self {
        Self {
            backend: backend.into(),
            hash: hash.into(),
            senders,
            flush: Duration::ZERO,
            disk_bytes: 0,
            kept_file_bytes: 0,
            peak_rss_bytes: 0,
            memory_cap: None,
            begun: Marks::default(),
            turns: Vec::new(),
        }
    }

    /// Number of slices measured.
    pub const fn slices_done(&self) -> usize {
        self.turns.len()
    }

    /// Transactions measured.
    pub fn txs(&self) -> u64 {
        self.turns.iter().map(|turn| turn.txs).sum()
    }

    /// Time of all slices, settling included.
    pub fn slices(&self) -> Duration {
        self.turns.iter().map(|turn| turn.elapsed).sum()
    }

    /// All timed work: slices and flush.
    pub fn total(&self) -> Duration {
        self.slices() + self.flush
    }

    /// Median of the slices' transactions a second.
    pub fn tps(&self) -> f64 {
        self.rate_at(0.5)
    }

    /// Interquartile range of the slices' rates over their median.
    pub fn spread(&self) -> f64 {
        match self.tps() {
            0.0 => 0.0,
            median => (self.rate_at(0.75) - self.rate_at(0.25)) / median,
        }
    }

    /// All transactions over all timed work.
    pub fn sustained_tps(&self) -> f64 {
        rate(self.txs(), self.total())
    }

    /// How many times as fast as another client of the same race this one was.
    pub fn ratio_to(&self, other: &Self) -> Ratio {
        Ratio::of(self.rates(), other.rates())
    }

    /// How many times as long as another client of the same race this one took over a block: the
    /// median and spread over the blocks.
    pub fn latency_ratio_to(&self, other: &Self) -> Ratio {
        Ratio::of(self.block_seconds(), other.block_seconds())
    }

    fn block_seconds(&self) -> impl Iterator<Item = f64> + Clone {
        self.turns.iter().flat_map(|turn| &turn.latencies).map(Duration::as_secs_f64)
    }

    fn rates(&self) -> impl Iterator<Item = f64> + Clone {
        self.turns.iter().map(|turn| rate(turn.txs, turn.elapsed))
    }

    fn rate_at(&self, fraction: f64) -> f64 {
        quantile(self.rates(), fraction)
    }

    /// How long blocks took.
    pub fn latency(&self) -> Latency {
        let mut latency = Latency::default();
        let all = self.turns.iter().flat_map(|turn| &turn.latencies);
        all.for_each(|block| latency.record(*block));
        latency
    }

    /// Where the timed seconds went; the flush is I/O. Recovering senders counts as execution, as far
    /// as it was waited for.
    pub fn breakdown(&self) -> Breakdown {
        let sum = |of: fn(&Turn) -> Duration| self.turns.iter().map(of).sum::<Duration>();
        let (begin, end) = (&self.begun.times, self.end().times);
        let mut execution = end.execution - begin.execution;
        if self.senders == Senders::Unrecovered {
            execution += sum(|turn| turn.waited);
        }
        let authentication =
            (end.reads - begin.reads) + (end.authentication - begin.authentication);
        let waited = end.commit_wait - begin.commit_wait;
        let mut breakdown = Breakdown {
            execution: execution.as_secs_f64(),
            authentication: authentication.as_secs_f64(),
            storage_io: (waited + sum(|turn| turn.folding) + self.flush).as_secs_f64(),
            other: 0.0,
        };
        breakdown.attribute_reads(self.counts().read_time);
        breakdown.close(self.total().as_secs_f64());
        breakdown
    }

    fn end(&self) -> &Marks {
        self.turns.last().map_or(&self.begun, |turn| &turn.marks)
    }

    /// Work at the node interface during the slices.
    pub fn counts(&self) -> Counts {
        &self.end().counts - &self.begun.counts
    }

    /// Keys read by the EVM and keys changed during the slices.
    pub fn keys(&self) -> (u64, u64) {
        let ((reads, writes), (r, w)) = (self.end().keys, self.begun.keys);
        (reads - r, writes - w)
    }

    /// By how much allocated memory has grown during its turns since it was opened, in bytes.
    pub fn memory_bytes(&self) -> i64 {
        self.turns.last().map_or(0, |turn| turn.memory_bytes)
    }

    /// Rows read per key read by the EVM, and written per key changed.
    pub fn amplification(&self) -> (f64, f64) {
        let (counts, (reads, writes)) = (self.counts(), self.keys());
        (per(counts.reads, reads), per(counts.writes, writes))
    }

    /// As a result of `--json`.
    pub fn result(&self, workload: &Workload, terms: &Terms) -> BenchResult {
        self.result_on(workload.name, workload.params(), terms)
    }

    /// The same on the workload called `name`, with these params of its own.
    pub(super) fn result_on(
        &self,
        name: &str,
        params: Map<String, Value>,
        terms: &Terms,
    ) -> BenchResult {
        let (counts, (reads, writes)) = (self.counts(), self.keys());
        let latency = self.latency();
        let settling: Duration = self.turns.iter().map(|turn| turn.settling).sum();
        BenchResult {
            backend: self.backend.clone(),
            workload: name.into(),
            params: self.params(params, terms),
            ops: self.txs(),
            seconds: self.total().as_secs_f64(),
            ops_per_s: self.tps(),
            tps: Some(self.tps()),
            p50_us: Some(latency.micros(0.5)),
            p99_us: Some(latency.micros(0.99)),
            p999_us: Some(latency.micros(0.999)),
            max_us: Some(latency.max_micros()),
            reads_per_op: Some(per(counts.reads, reads)),
            writes_per_op: Some(per(counts.writes, writes)),
            read_bytes_per_op: Some(per(counts.read_bytes, reads)),
            write_bytes_per_op: Some(per(counts.write_bytes, writes)),
            tables: Some(tables(&counts, reads, writes)),
            disk_bytes: self.disk_bytes,
            kept_file_bytes: (self.kept_file_bytes > 0).then_some(self.kept_file_bytes),
            peak_rss_bytes: self.peak_rss_bytes,
            spread: Some(self.spread()),
            breakdown: Some(self.breakdown()),
            sustained_ops_per_s: Some(self.sustained_tps()),
            slices: self.slice_results(),
            latency: LatencyPoint::of(&latency),
            settle_seconds: Some(settling.as_secs_f64()),
            job_wait_seconds: unless_zero(counts.job_wait),
            flush_seconds: Some(self.flush.as_secs_f64()),
            journal_bytes_per_op: Some(per(counts.journal_bytes, writes)),
            undo_bytes_per_op: Some(per(counts.undo_bytes, writes)),
            memory_bytes: Some(self.memory_bytes()),
            ..BenchResult::default()
        }
    }

    fn slice_results(&self) -> Vec<SliceResult> {
        let slice = |ops: &mut u64, turn: &Turn| {
            *ops += turn.txs;
            Some(SliceResult {
                ops: *ops,
                ops_per_s: rate(turn.txs, turn.elapsed),
                disk_bytes: Some(turn.disk_bytes),
                memory_bytes: turn.memory_bytes,
            })
        };
        self.turns.iter().scan(0, slice).collect()
    }

    fn params(&self, mut params: Map<String, Value>, terms: &Terms) -> Map<String, Value> {
        let sync = match terms.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        };
        params.extend([
            ("senders".to_owned(), json!(self.senders.to_string())),
            ("hash".to_owned(), json!(self.hash)),
            ("sync".to_owned(), json!(sync)),
            ("cache_mb".to_owned(), json!(terms.cache_bytes >> 20)),
            ("retention".to_owned(), json!(terms.retention)),
            ("read_threads".to_owned(), json!(terms.read_threads)),
        ]);
        if let Some((limit, means, shared_by)) = self.memory_cap {
            params.extend(cap_params(limit, means, shared_by));
        }
        params
    }
}

/// The counts of each table that was read or written, per key read and per key changed.
fn tables(counts: &Counts, reads: u64, writes: u64) -> Vec<TableResult> {
    let table = |(name, counts): &(&'static str, TableCounts)| TableResult {
        name: (*name).into(),
        reads_per_op: per(counts.reads, reads),
        writes_per_op: per(counts.writes, writes),
        read_bytes_per_op: per(counts.read_bytes, reads),
        write_bytes_per_op: per(counts.write_bytes, writes),
    };
    counts.tables.iter().map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// A turn of 100 transactions that ends at these marks.
    fn turn(elapsed: u64, marks: Marks) -> Turn {
        Turn {
            txs: 100,
            elapsed: MS(elapsed),
            settling: MS(2),
            folding: MS(1),
            waited: MS(3),
            latencies: vec![MS(elapsed / 2); 2],
            disk_bytes: 0,
            memory_bytes: 0,
            marks,
        }
    }

    fn marks(n: u32) -> Marks {
        let times = ImportTimes {
            execution: MS(10) * n,
            reads: MS(20) * n,
            authentication: MS(30) * n,
            roots_aside: MS(7) * n,
            commit_wait: MS(4) * n,
            prepare: MS(1000) * n,
        };
        let n = u64::from(n);
        let counts = Counts {
            reads: 60 * n,
            writes: 50 * n,
            read_time: MS(5) * n as u32,
            ..Counts::default()
        };
        Marks { times, keys: (20 * n, 10 * n), counts }
    }

    #[test]
    fn ratio_is_that_of_slices_next_to_each_other() {
        let client = |millis: [u64; 4]| {
            let mut outcome = Outcome::new("a", "none", Senders::Recovered);
            outcome.turns = millis.map(|millis| turn(millis, Marks::default())).into();
            outcome
        };
        // The machine is ten times slower in the second half, for both.
        let (a, b) = (client([100, 120, 1000, 1200]), client([50, 60, 500, 400]));
        let ratio = a.ratio_to(&b);
        assert_eq!((ratio.median, ratio.upper), (0.5, 0.5));
        assert!((ratio.lower - (0.5 - (0.5 - 1.0 / 3.0) / 4.0)).abs() < 1e-9, "{ratio:?}");
        assert_eq!(b.ratio_to(&b), Ratio { median: 1.0, lower: 1.0, upper: 1.0 });
    }

    #[test]
    fn figures_are_those_of_the_measured_slices_and_the_parts_add_up() {
        let mut outcome = Outcome::new("a", "none", Senders::Recovered);
        outcome.begun = marks(3);
        outcome.turns = vec![turn(100, marks(4)), turn(400, marks(5)), turn(200, marks(6))];
        outcome.flush = MS(300);
        assert_eq!((outcome.txs(), outcome.tps(), outcome.sustained_tps()), (300, 500.0, 300.0));
        assert_eq!(outcome.spread(), (750.0 - 375.0) / 500.0);
        assert_eq!(outcome.amplification(), (3.0, 5.0));
        assert_eq!(outcome.latency().count(), 6);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let parts = outcome.breakdown();
        near(parts.execution, 0.030);
        near(parts.authentication, 0.150 - 0.015);
        near(parts.storage_io, 0.012 + 0.003 + 0.300 + 0.015);
        near(parts.execution + parts.authentication + parts.storage_io + parts.other, 1.0);
        // On the clock, waiting for senders is execution.
        outcome.senders = Senders::Unrecovered;
        near(outcome.breakdown().execution, 0.030 + 0.009);
    }
}
