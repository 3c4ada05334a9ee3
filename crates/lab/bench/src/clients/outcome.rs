//! The figures of one client in a race.

use super::workload::{ClientWorkload, SenderRecovery};
use crate::{
    latency::LatencyHistogram,
    memory::cap_params,
    report::{BenchResult, LatencyPoint, SliceResult, TableResult},
    state::RaceTerms,
    stats::{PairedRatio, per, quantile, rate, unless_zero},
};
use retrie_db::SyncMode;
use retrie_pipeline::{ImportTimes, report::TimeBreakdown};
use retrie_state_store::{CounterSnapshot, TableCounts};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The figures of one client.
#[derive(Clone, Debug)]
pub struct ClientOutcome {
    /// Name of its backend.
    pub backend: String,
    /// Hash function under its root.
    pub hash: String,
    /// Whether senders were recovered before the clock started.
    pub senders: SenderRecovery,
    /// Time of the final flush.
    pub flush: Duration,
    /// Bytes of live pages and files of the state after the flush.
    pub disk_bytes: u64,
    /// Bytes of other files of the state: files kept for reverts, or written ahead of their block.
    pub kept_file_bytes: u64,
    /// Largest resident set of the process during the race, all clients together.
    pub peak_rss_bytes: u64,
    /// The memory cap, if there was one: bytes, means (`cgroup` or `balloon`), number of clients
    /// that share it.
    pub memory_cap: Option<(u64, &'static str, usize)>,
    /// The client's counters when the measured part began.
    pub(super) begun: ClientCounters,
    pub(super) turns: Vec<ClientTurn>,
}

/// One turn: one slice of one client.
#[derive(Clone, Debug)]
pub(super) struct ClientTurn {
    pub(super) txs: u64,
    /// Time of the turn, with the wait for background work.
    pub(super) elapsed: Duration,
    /// Time spent waiting for the last commit and for running folds.
    pub(super) settling: Duration,
    /// The part of `settling` that the importer does not count as waiting for commits.
    pub(super) folding: Duration,
    /// Time spent waiting for prepared blocks.
    pub(super) waited: Duration,
    pub(super) latencies: Vec<Duration>,
    pub(super) disk_bytes: u64,
    /// Growth of allocated memory up to the end of the turn.
    pub(super) memory_bytes: i64,
    /// The client's counters at the end of the turn.
    pub(super) marks: ClientCounters,
}

/// Counters of a client since it was opened.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientCounters {
    pub(super) times: ImportTimes,
    /// Keys read by the EVM, keys changed.
    pub(super) keys: (u64, u64),
    pub(super) counts: CounterSnapshot,
}

impl ClientOutcome {
    pub(super) fn new(backend: &str, hash: &str, senders: SenderRecovery) -> Self {
        Self {
            backend: backend.into(),
            hash: hash.into(),
            senders,
            flush: Duration::ZERO,
            disk_bytes: 0,
            kept_file_bytes: 0,
            peak_rss_bytes: 0,
            memory_cap: None,
            begun: ClientCounters::default(),
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

    /// Time of all slices, with the waits for background work.
    pub fn slices(&self) -> Duration {
        self.turns.iter().map(|turn| turn.elapsed).sum()
    }

    /// All timed work: slices and flush.
    pub fn total(&self) -> Duration {
        self.slices() + self.flush
    }

    /// Median of the slices' transactions per second.
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

    /// Rate of this client divided by the rate of another client of the same race.
    pub fn ratio_to(&self, other: &Self) -> PairedRatio {
        PairedRatio::of(self.rates(), other.rates())
    }

    /// Block latency of this client divided by that of another client of the same race: median and
    /// spread over the blocks.
    pub fn latency_ratio_to(&self, other: &Self) -> PairedRatio {
        PairedRatio::of(self.block_seconds(), other.block_seconds())
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

    /// Latencies of all measured blocks.
    pub fn latency(&self) -> LatencyHistogram {
        let mut latency = LatencyHistogram::default();
        let all = self.turns.iter().flat_map(|turn| &turn.latencies);
        all.for_each(|block| latency.record(*block));
        latency
    }

    /// How the timed seconds were spent. The flush counts as storage I/O. The wait for recovered
    /// senders counts as execution.
    pub fn breakdown(&self) -> TimeBreakdown {
        let sum = |of: fn(&ClientTurn) -> Duration| self.turns.iter().map(of).sum::<Duration>();
        let (begin, end) = (&self.begun.times, self.end().times);
        let mut execution = end.execution - begin.execution;
        if self.senders == SenderRecovery::Unrecovered {
            execution += sum(|turn| turn.waited);
        }
        let authentication =
            (end.reads - begin.reads) + (end.authentication - begin.authentication);
        let waited = end.commit_wait - begin.commit_wait;
        let mut breakdown = TimeBreakdown {
            execution: execution.as_secs_f64(),
            authentication: authentication.as_secs_f64(),
            storage_io: (waited + sum(|turn| turn.folding) + self.flush).as_secs_f64(),
            other: 0.0,
        };
        breakdown.attribute_reads(self.counts().read_time);
        breakdown.set_other(self.total().as_secs_f64());
        breakdown
    }

    fn end(&self) -> &ClientCounters {
        self.turns.last().map_or(&self.begun, |turn| &turn.marks)
    }

    /// Rows read and written during the slices.
    pub fn counts(&self) -> CounterSnapshot {
        &self.end().counts - &self.begun.counts
    }

    /// Number of keys read by the EVM, and number of keys changed, during the slices.
    pub fn keys(&self) -> (u64, u64) {
        let ((reads, writes), (r, w)) = (self.end().keys, self.begun.keys);
        (reads - r, writes - w)
    }

    /// Growth of allocated memory in bytes since the client was opened, during its turns.
    pub fn memory_bytes(&self) -> i64 {
        self.turns.last().map_or(0, |turn| turn.memory_bytes)
    }

    /// Rows read per key read by the EVM, and written per key changed.
    pub fn amplification(&self) -> (f64, f64) {
        let (counts, (reads, writes)) = (self.counts(), self.keys());
        (per(counts.reads, reads), per(counts.writes, writes))
    }

    /// The figures as a result of `--json`.
    pub fn result(&self, workload: &ClientWorkload, terms: &RaceTerms) -> BenchResult {
        self.result_on(workload.name, workload.params(), terms)
    }

    /// Like [`result`](Self::result), with another workload name and its params.
    pub(super) fn result_on(
        &self,
        name: &str,
        params: Map<String, Value>,
        terms: &RaceTerms,
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
        let slice = |ops: &mut u64, turn: &ClientTurn| {
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

    fn params(&self, mut params: Map<String, Value>, terms: &RaceTerms) -> Map<String, Value> {
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
fn tables(counts: &CounterSnapshot, reads: u64, writes: u64) -> Vec<TableResult> {
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

    /// A turn of 100 transactions with these counters at its end.
    fn turn(elapsed: u64, marks: ClientCounters) -> ClientTurn {
        ClientTurn {
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

    fn marks(n: u32) -> ClientCounters {
        let times = ImportTimes {
            execution: MS(10) * n,
            reads: MS(20) * n,
            authentication: MS(30) * n,
            roots_aside: MS(7) * n,
            commit_wait: MS(4) * n,
            prepare: MS(1000) * n,
        };
        let n = u64::from(n);
        let counts = CounterSnapshot {
            reads: 60 * n,
            writes: 50 * n,
            read_time: MS(5) * n as u32,
            ..CounterSnapshot::default()
        };
        ClientCounters { times, keys: (20 * n, 10 * n), counts }
    }

    #[test]
    fn ratio_is_that_of_slices_next_to_each_other() {
        let client = |millis: [u64; 4]| {
            let mut outcome = ClientOutcome::new("a", "none", SenderRecovery::Recovered);
            outcome.turns = millis.map(|millis| turn(millis, ClientCounters::default())).into();
            outcome
        };
        // The machine is ten times slower in the second half, for both.
        let (a, b) = (client([100, 120, 1000, 1200]), client([50, 60, 500, 400]));
        let ratio = a.ratio_to(&b);
        assert_eq!((ratio.median, ratio.upper), (0.5, 0.5));
        assert!((ratio.lower - (0.5 - (0.5 - 1.0 / 3.0) / 4.0)).abs() < 1e-9, "{ratio:?}");
        assert_eq!(b.ratio_to(&b), PairedRatio { median: 1.0, lower: 1.0, upper: 1.0 });
    }

    #[test]
    fn figures_are_those_of_the_measured_slices_and_the_parts_add_up() {
        let mut outcome = ClientOutcome::new("a", "none", SenderRecovery::Recovered);
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
        // If senders are recovered on the clock, the wait for them is execution.
        outcome.senders = SenderRecovery::Unrecovered;
        near(outcome.breakdown().execution, 0.030 + 0.009);
    }
}
