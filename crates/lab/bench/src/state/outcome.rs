//! The figures of one contender in a race.

use crate::{
    latency::LatencyHistogram,
    report::{
        BenchResult, LatencyPoint, ProofBytes, ProofResult, ProofTime, SliceResult, TableResult,
    },
    stats::{PairedRatio, per, quantile, rate, unless_zero},
};
use alloy_primitives::B256;
use retrie_pipeline::report::TimeBreakdown;
use retrie_state_store::{CounterSnapshot, TableCounts};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The figures of one contender.
#[derive(Clone, Debug)]
pub struct StoreOutcome {
    /// Its name.
    pub backend: String,
    /// Hash function under its root.
    pub hash: String,
    /// Number of keys read in the slices.
    pub reads: u64,
    /// Number of keys written or removed in the slices.
    pub writes: u64,
    /// The slices, in the order in which they ran.
    pub series: Vec<SliceResult>,
    /// Time of all slices, with the waits for background work.
    pub slices: Duration,
    /// The part of this time that was spent waiting for background work.
    pub settling: Duration,
    /// Time of the final flush; `None` if the race ended before all contenders had flushed.
    pub flush: Option<Duration>,
    /// Durations of the commits.
    pub latency: LatencyHistogram,
    /// How the [`total`](Self::total) time was spent; `None` if the contender does not know it. The
    /// final flush counts as work of the key-value store, because it folds rows into the tables.
    pub breakdown: Option<TimeBreakdown>,
    /// Rows read and written during the slices; `None` if the contender does not count them.
    pub counts: Option<CounterSnapshot>,
    /// Proofs of one key each: of present keys, then of absent keys, then in old states.
    pub proofs: Vec<ProofFigures>,
    /// Ethereum's state root at the end, if the contender computes it.
    pub ethereum_root: Option<B256>,
    /// Growth of the process's anonymous resident memory while the contender was opened and during
    /// its turns, in bytes. An allocator returns pages late, also during the turn of another
    /// contender. So this is an estimate with an error of some MiB, and may be negative.
    pub memory_bytes: i64,
    /// Bytes of live pages and files after the flush.
    pub disk_bytes: u64,
    /// Bytes of free pages, with those of the chain's tables, if the contender knows it.
    pub free_bytes: Option<u64>,
    /// Largest resident set of the process during the race, all contenders together.
    pub peak_rss_bytes: u64,
    /// The contender's counters when the measured part began.
    begun: CounterReading,
}

/// The counters of a contender since it was opened.
#[derive(Clone, Debug, Default)]
pub(super) struct CounterReading {
    pub(super) counts: Option<CounterSnapshot>,
    pub(super) breakdown: Option<TimeBreakdown>,
}

/// One turn of one contender.
#[derive(Debug)]
pub(super) struct StoreTurn {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) elapsed: Duration,
    pub(super) settling: Duration,
    pub(super) commits: Vec<Duration>,
    /// Growth of anonymous resident memory during the turn, in bytes.
    pub(super) memory_bytes: i64,
    pub(super) disk_bytes: u64,
    /// The counters at the end of the turn.
    pub(super) reading: CounterReading,
}

impl StoreOutcome {
    pub(super) fn new(backend: &str, hash: &str) -> Self {
        Self {
            backend: backend.into(),
            hash: hash.into(),
            reads: 0,
            writes: 0,
            series: Vec::new(),
            slices: Duration::ZERO,
            settling: Duration::ZERO,
            flush: None,
            latency: LatencyHistogram::default(),
            breakdown: None,
            counts: None,
            proofs: Vec::new(),
            ethereum_root: None,
            memory_bytes: 0,
            disk_bytes: 0,
            free_bytes: None,
            peak_rss_bytes: 0,
            begun: CounterReading::default(),
        }
    }

    /// Begins the measured part.
    pub(super) fn begin(&mut self, reading: CounterReading) {
        self.begun = reading;
    }

    /// Adds a turn of the measured part.
    pub(super) fn add_slice(&mut self, turn: StoreTurn) {
        self.reads += turn.reads;
        self.writes += turn.writes;
        self.slices += turn.elapsed;
        self.settling += turn.settling;
        self.memory_bytes += turn.memory_bytes;
        self.disk_bytes = turn.disk_bytes;
        turn.commits.iter().for_each(|commit| self.latency.record(*commit));
        self.series.push(SliceResult {
            ops: self.ops(),
            ops_per_s: rate(turn.reads + turn.writes, turn.elapsed),
            disk_bytes: Some(turn.disk_bytes),
            memory_bytes: self.memory_bytes,
        });
        self.note_counts(turn.reading.counts);
        let spent = turn.reading.breakdown.zip(self.begun.breakdown);
        self.breakdown = spent.map(|(end, begin)| {
            let mut spent = TimeBreakdown {
                execution: end.execution - begin.execution,
                authentication: end.authentication - begin.authentication,
                storage_io: end.storage_io - begin.storage_io,
                other: 0.0,
            };
            let rows = self.counts.as_ref().map_or(Duration::ZERO, |counts| counts.read_time);
            spent.attribute_reads(rows);
            spent.set_other(self.slices.as_secs_f64());
            spent
        });
    }

    /// Adds the final flush.
    pub(super) fn add_flush(&mut self, elapsed: Duration) {
        self.flush = Some(elapsed);
        let total = self.total().as_secs_f64();
        if let Some(spent) = &mut self.breakdown {
            TimeBreakdown::add(&mut spent.storage_io, elapsed);
            spent.set_other(total);
        }
    }

    /// Sets the counts of the measured part, from the counts since the contender was opened.
    pub(super) fn note_counts(&mut self, counts: Option<CounterSnapshot>) {
        self.counts = counts.zip(self.begun.counts.as_ref()).map(|(end, begin)| &end - begin);
    }

    /// Time that commits waited for background jobs, if the contender counts it.
    pub fn job_wait(&self) -> Option<Duration> {
        self.counts.as_ref().map(|counts| counts.job_wait)
    }

    /// Number of operations: one per key read, and one per key written.
    pub const fn ops(&self) -> u64 {
        self.reads + self.writes
    }

    /// Median of the slices' operations per second.
    pub fn median_rate(&self) -> f64 {
        quantile(self.rates(), 0.5)
    }

    /// Interquartile range of the slices' rates over their median.
    pub fn spread(&self) -> f64 {
        match self.median_rate() {
            0.0 => 0.0,
            median => (quantile(self.rates(), 0.75) - quantile(self.rates(), 0.25)) / median,
        }
    }

    fn rates(&self) -> impl Iterator<Item = f64> + Clone {
        self.series.iter().map(|slice| slice.ops_per_s)
    }

    /// Rate of this contender divided by the rate of another contender of the same race.
    pub fn ratio_to(&self, other: &Self) -> PairedRatio {
        PairedRatio::of(self.rates(), other.rates())
    }

    /// Time of all timed work: slices and flush.
    pub fn total(&self) -> Duration {
        self.slices + self.flush.unwrap_or_default()
    }

    /// All operations divided by the time of all timed work.
    pub fn sustained_rate(&self) -> f64 {
        rate(self.ops(), self.total())
    }

    /// One of the counts per key read.
    pub fn per_read(&self, count: fn(&CounterSnapshot) -> u64) -> Option<f64> {
        self.counts.as_ref().filter(|_| self.reads > 0).map(|of| per(count(of), self.reads))
    }

    /// One of the counts per key written; `None` if no key was written.
    pub fn per_write(&self, count: fn(&CounterSnapshot) -> u64) -> Option<f64> {
        self.counts.as_ref().filter(|_| self.writes > 0).map(|of| per(count(of), self.writes))
    }

    /// The counts of each table that was read or written, per key read or written.
    pub fn tables(&self) -> Option<Vec<TableResult>> {
        let table = |(name, counts): &(&'static str, TableCounts)| TableResult {
            name: (*name).into(),
            reads_per_op: per(counts.reads, self.reads),
            writes_per_op: per(counts.writes, self.writes),
            read_bytes_per_op: per(counts.read_bytes, self.reads),
            write_bytes_per_op: per(counts.write_bytes, self.writes),
        };
        self.counts.as_ref().map(|counts| counts.tables.iter().map(table).collect())
    }

    /// The figures as a result of `--json`. `params` are the params of the race, from
    /// [`RaceResult::params`].
    ///
    /// [`RaceResult::params`]: super::RaceResult::params
    pub fn result(&self, mut params: Map<String, Value>) -> BenchResult {
        params.insert("hash".into(), json!(self.hash));
        BenchResult {
            backend: self.backend.clone(),
            workload: "state".into(),
            params,
            ops: self.ops(),
            seconds: self.total().as_secs_f64(),
            ops_per_s: self.median_rate(),
            p50_us: Some(self.latency.micros(0.5)),
            p99_us: Some(self.latency.micros(0.99)),
            p999_us: Some(self.latency.micros(0.999)),
            max_us: Some(self.latency.max_micros()),
            reads_per_op: self.per_read(|counts| counts.reads),
            writes_per_op: self.per_write(|counts| counts.writes),
            read_bytes_per_op: self.per_read(|counts| counts.read_bytes),
            write_bytes_per_op: self.per_write(|counts| counts.write_bytes),
            tables: self.tables(),
            disk_bytes: self.disk_bytes,
            peak_rss_bytes: self.peak_rss_bytes,
            spread: Some(self.spread()),
            breakdown: self.breakdown,
            sustained_ops_per_s: Some(self.sustained_rate()),
            slices: self.series.clone(),
            latency: LatencyPoint::of(&self.latency),
            settle_seconds: Some(self.settling.as_secs_f64()),
            job_wait_seconds: self.job_wait().and_then(unless_zero),
            flush_seconds: self.flush.map(|flush| flush.as_secs_f64()),
            journal_bytes_per_op: self.per_write(|counts| counts.journal_bytes),
            undo_bytes_per_op: self.per_write(|counts| counts.undo_bytes),
            memory_bytes: Some(self.memory_bytes),
            proofs: self.proofs.iter().map(ProofFigures::result).collect(),
            ..BenchResult::default()
        }
    }
}

/// The cost of proofs of one key each.
#[derive(Clone, Debug)]
pub struct ProofFigures {
    /// Whether the keys have a value.
    pub present: bool,
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
        Self { present, depth: None, first: None, made, verified, bytes }
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

    fn turn(reads: u64, writes: u64, millis: u64) -> StoreTurn {
        let elapsed = Duration::from_millis(millis);
        StoreTurn {
            reads,
            writes,
            elapsed,
            settling: Duration::from_millis(10),
            commits: vec![elapsed; 2],
            memory_bytes: 7,
            disk_bytes: millis,
            reading: CounterReading::default(),
        }
    }

    #[test]
    fn median_and_spread_are_those_of_the_slices_and_the_sustained_rate_has_the_flush() {
        let mut outcome = StoreOutcome::new("a", "none");
        for millis in [100, 50, 200, 125, 250] {
            outcome.add_slice(turn(500, 500, millis));
        }
        outcome.add_flush(Duration::from_millis(275));
        // Rates: 10,000, 20,000, 5,000, 8,000, 4,000.
        assert_eq!((outcome.ops(), outcome.median_rate()), (5000, 8000.0));
        assert_eq!(outcome.spread(), (10_000.0 - 5_000.0) / 8_000.0);
        assert_eq!(outcome.sustained_rate(), 5000.0);
        assert_eq!(outcome.settling, Duration::from_millis(50));
        assert_eq!(outcome.latency.count(), 10);
        let last =
            SliceResult { ops: 5000, ops_per_s: 4000.0, disk_bytes: Some(250), memory_bytes: 35 };
        assert_eq!((outcome.series.len(), outcome.series[4]), (5, last));
    }

    #[test]
    fn ratio_is_that_of_slices_next_to_each_other() {
        let (mut a, mut b) = (StoreOutcome::new("a", "none"), StoreOutcome::new("b", "none"));
        // The machine is ten times slower in the second half, for both.
        for (one, other) in [(100, 50), (120, 60), (1000, 500), (1200, 400)] {
            a.add_slice(turn(500, 500, one));
            b.add_slice(turn(500, 500, other));
        }
        let ratio = a.ratio_to(&b);
        assert_eq!((ratio.median, ratio.upper), (0.5, 0.5));
        assert!((ratio.lower - (0.5 - (0.5 - 1.0 / 3.0) / 4.0)).abs() < 1e-9, "{ratio:?}");
        assert_eq!(b.ratio_to(&b), PairedRatio { median: 1.0, lower: 1.0, upper: 1.0 });
        assert_eq!(b.ratio_to(&b).spread(), 0.0);
    }

    #[test]
    fn time_that_is_not_accounted_for_is_other() {
        let spent = |authentication, storage_io| TimeBreakdown {
            authentication,
            storage_io,
            ..Default::default()
        };
        let reading = |spent| CounterReading { counts: None, breakdown: Some(spent) };
        let mut outcome = StoreOutcome::new("a", "none");
        outcome.begin(reading(spent(10.0, 20.0)));
        outcome.add_slice(StoreTurn { reading: reading(spent(10.5, 20.25)), ..turn(1, 1, 1000) });
        let found = outcome.breakdown.unwrap();
        let fields = [found.execution, found.authentication, found.storage_io, found.other];
        assert_eq!(fields, [0.0, 0.5, 0.25, 0.25]);
        // The flush is timed too, and belongs to the key-value store.
        outcome.add_flush(Duration::from_secs(2));
        let found = outcome.breakdown.unwrap();
        assert_eq!((found.authentication, found.storage_io, found.other), (0.5, 2.25, 0.25));
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
    fn tables_are_counted_per_key_of_the_measured_part() {
        let reading = |reads, writes| {
            let of = TableCounts { reads, read_bytes: 8 * reads, writes, write_bytes: 9 * writes };
            let tables = vec![("Flat", of)];
            let counts = Some(CounterSnapshot { reads, writes, tables, ..Default::default() });
            CounterReading { counts, breakdown: None }
        };
        let mut outcome = StoreOutcome::new("a", "none");
        assert_eq!(outcome.tables(), None);
        outcome.begin(reading(10, 100));
        outcome.add_slice(StoreTurn { reading: reading(110, 200), ..turn(50, 25, 1) });
        let flat = TableResult {
            name: "Flat".into(),
            reads_per_op: 2.0,
            writes_per_op: 4.0,
            read_bytes_per_op: 16.0,
            write_bytes_per_op: 36.0,
        };
        assert_eq!(outcome.tables(), Some(vec![flat]));
        assert_eq!(outcome.per_read(|counts| counts.reads), Some(2.0));
        assert_eq!(outcome.per_write(|counts| counts.writes), Some(4.0));
        let mut reads_only = StoreOutcome::new("a", "none");
        reads_only.begin(reading(0, 0));
        reads_only.add_slice(StoreTurn { reading: reading(50, 0), ..turn(50, 0, 1) });
        assert_eq!(reads_only.per_write(|counts| counts.writes), None);
    }
}
