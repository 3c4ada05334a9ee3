//! The figures of one contender in a race.

use super::contender::{CounterReading, TimedTurn};
use crate::{
    BenchError,
    limit::{LowerBound, MachineLimits, NeededWork},
    memory::SharedMemoryCap,
};
use retrie_pipeline::report::TimeBreakdown;
use retrie_report::{
    BenchResult, HitRates, LatencyPoint, SliceResult, TableResult,
    latency::LatencyHistogram,
    stats::{PairedRatio, per, quantile, rate, unless_zero},
};
use retrie_state_store::{CounterSnapshot, TableCounts};
use serde_json::{Map, Value};
use std::time::Duration;

/// The result of a race.
#[derive(Debug)]
pub struct RaceResult<F> {
    /// One outcome per contender, in the order of the contenders. They may be missing if the race
    /// was stopped before the end of the first slice.
    pub outcomes: Vec<RaceOutcome<F>>,
    /// Whether the race ran to its end, or why not. If it was cut short, the outcomes contain the
    /// slices that all contenders have run, and of the rest (flush, then what the workload measures
    /// at its end) the steps that all have finished.
    pub ended: Result<(), BenchError>,
}

impl<F> RaceResult<F> {
    /// Number of slices that all contenders have run.
    pub fn slices_done(&self) -> usize {
        self.outcomes.first().map_or(0, RaceOutcome::slices_done)
    }
}

/// The figures of one contender; `figures` are those that only its kind of workload has.
#[derive(Clone, Debug)]
pub struct RaceOutcome<F> {
    /// Its name.
    pub backend: String,
    /// Hash function under its root.
    pub hash: String,
    /// Time of the final flush; `None` if the race ended before all contenders had flushed.
    pub flush: Option<Duration>,
    /// Bytes of live pages and files, after the flush if there was one.
    pub disk_bytes: u64,
    /// Largest resident set of the process during the race, all contenders together.
    pub peak_rss_bytes: u64,
    /// The memory cap, if there was one.
    pub memory_cap: Option<SharedMemoryCap>,
    /// Figures that only this kind of workload has.
    pub figures: F,
    /// The contender's counters when the measured part began.
    begun: CounterReading,
    /// Its counters after the final flush.
    end: Option<CounterReading>,
    /// The least seconds that this machine needs for the turns, if its limits are known.
    bound: Option<LowerBound>,
    /// The measured turns, in the order in which they ran.
    pub(super) turns: Vec<SliceTurn>,
}

/// One turn: one slice of one contender.
#[derive(Clone, Debug)]
pub(super) struct SliceTurn {
    pub(super) timed: TimedTurn,
    /// Growth of anonymous memory up to the end of the turn, in bytes.
    pub(super) memory_bytes: i64,
    /// Bytes of pages of its files that are mapped and in memory at the end of the turn.
    pub(super) mapped_bytes: u64,
    pub(super) disk_bytes: u64,
    /// The counters at the end of the turn.
    pub(super) reading: CounterReading,
}

impl<F> RaceOutcome<F> {
    pub(crate) fn new(backend: &str, hash: &str, figures: F) -> Self {
        Self {
            backend: backend.into(),
            hash: hash.into(),
            flush: None,
            disk_bytes: 0,
            peak_rss_bytes: 0,
            memory_cap: None,
            figures,
            begun: CounterReading::default(),
            end: None,
            bound: None,
            turns: Vec::new(),
        }
    }

    /// Begins the measured part.
    pub(super) fn begin(&mut self, reading: CounterReading) {
        self.begun = reading;
    }

    /// Adds a turn of the measured part.
    pub(super) fn add_turn(&mut self, turn: SliceTurn) {
        self.disk_bytes = turn.disk_bytes;
        self.turns.push(turn);
    }

    /// Adds the final flush.
    pub(super) fn add_flush(&mut self, elapsed: Duration, disk_bytes: u64, end: CounterReading) {
        (self.flush, self.disk_bytes, self.end) = (Some(elapsed), disk_bytes, Some(end));
    }

    /// Number of measured slices.
    pub const fn slices_done(&self) -> usize {
        self.turns.len()
    }

    /// Number of measured operations: for state stores one per key read, and one per key written;
    /// for clients one per transaction.
    pub fn ops(&self) -> u64 {
        self.turns.iter().map(|turn| turn.timed.ops).sum()
    }

    /// Number of keys read, and of keys written or removed, during the slices.
    pub fn keys(&self) -> (u64, u64) {
        let ((reads, writes), (r, w)) = (self.last_reading().keys, self.begun.keys);
        (reads - r, writes - w)
    }

    /// Time of all slices, with the waits for background work.
    pub fn slices(&self) -> Duration {
        self.turns.iter().map(|turn| turn.timed.elapsed).sum()
    }

    /// The part of this time that was spent waiting for background work.
    pub(crate) fn settling(&self) -> Duration {
        self.turns.iter().map(|turn| turn.timed.settling).sum()
    }

    /// Time of all timed work: slices and flush.
    pub fn total(&self) -> Duration {
        self.slices() + self.flush.unwrap_or_default()
    }

    /// The work that the measured turns needed in any case.
    pub fn needed(&self) -> NeededWork {
        self.turns.iter().map(|turn| &turn.timed.needed).sum()
    }

    /// Compares the outcome with the limits of this machine.
    pub fn set_limits(&mut self, limits: &MachineLimits) {
        self.bound = Some(limits.bound(&self.needed()));
    }

    /// The least seconds that this machine needs for the turns, if its limits are known.
    pub const fn bound(&self) -> Option<LowerBound> {
        self.bound
    }

    /// The least seconds divided by the time of all timed work, if the limits are known.
    pub fn of_limit(&self) -> Option<f64> {
        self.bound?.share_of(self.total().as_secs_f64())
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

    /// All operations divided by the time of all timed work.
    pub fn sustained_rate(&self) -> f64 {
        rate(self.ops(), self.total())
    }

    /// Rate of this contender divided by the rate of another contender of the same race.
    pub fn ratio_to(&self, other: &Self) -> PairedRatio {
        PairedRatio::of(self.rates(), other.rates())
    }

    fn rates(&self) -> impl Iterator<Item = f64> + Clone {
        self.turns.iter().map(|turn| rate(turn.timed.ops, turn.timed.elapsed))
    }

    /// Latency of this contender divided by that of another contender of the same race: median and
    /// spread over the commits or blocks.
    pub fn latency_ratio_to(&self, other: &Self) -> PairedRatio {
        let seconds = |one: &Self| -> Vec<f64> {
            one.latencies().map(|latency| latency.as_secs_f64()).collect()
        };
        let (these, others) = (seconds(self), seconds(other));
        PairedRatio::of(these.iter().copied(), others.iter().copied())
    }

    /// Durations of all measured commits or blocks.
    pub fn latency(&self) -> LatencyHistogram {
        let mut latency = LatencyHistogram::default();
        self.latencies().for_each(|one| latency.record(one));
        latency
    }

    fn latencies(&self) -> impl Iterator<Item = Duration> {
        self.turns.iter().flat_map(|turn| &turn.timed.latencies).copied()
    }

    fn last_reading(&self) -> &CounterReading {
        self.turns.last().map_or(&self.begun, |turn| &turn.reading)
    }

    /// Rows read and written during the measured part, with the flush; `None` if the contender does
    /// not count them.
    pub fn counts(&self) -> Option<CounterSnapshot> {
        self.counts_until(self.end.as_ref().unwrap_or_else(|| self.last_reading()))
    }

    fn counts_until(&self, end: &CounterReading) -> Option<CounterSnapshot> {
        Some(end.counts.as_ref()? - self.begun.counts.as_ref()?)
    }

    /// How the [`total`](Self::total) time was spent; `None` if the contender does not know it. The
    /// final flush counts as work of the key-value store, because it folds rows into the tables.
    pub fn breakdown(&self) -> Option<TimeBreakdown> {
        let last = self.last_reading();
        let (end, begin) = last.spent.zip(self.begun.spent)?;
        let mut spent = TimeBreakdown {
            execution: end.execution - begin.execution,
            authentication: end.authentication - begin.authentication,
            storage_io: end.storage_io - begin.storage_io,
            other: 0.0,
        };
        let reads = self.counts_until(last).map(|counts| counts.read_time);
        spent.attribute_reads(reads.unwrap_or_default());
        TimeBreakdown::add(&mut spent.storage_io, self.flush.unwrap_or_default());
        spent.set_other(self.total().as_secs_f64());
        Some(spent)
    }

    /// Growth of the process's anonymous resident memory while the contender was opened and during
    /// its turns, with those of the warm-up, in bytes. An allocator returns pages late, also during
    /// the turn of another contender. So this is an estimate with an error of some MiB, and may be
    /// negative.
    pub fn memory_bytes(&self) -> i64 {
        self.turns.last().map_or(0, |turn| turn.memory_bytes)
    }

    /// Bytes of pages of its files that were mapped and in memory at the end of its last turn; 0 if
    /// the system does not say.
    pub fn mapped_bytes(&self) -> u64 {
        self.turns.last().map_or(0, |turn| turn.mapped_bytes)
    }

    /// How often what was looked up during the measured part was in memory; `None` if the contender
    /// does not count it, or looked nothing up.
    pub fn hit_rates(&self) -> Option<HitRates> {
        let counts = self.counts()?;
        Some(HitRates {
            all: counts.memory_lookups().hit_rate()?,
            caches: counts.caches.hit_rate(),
            rows: counts.unfolded_rows().hit_rate(),
        })
    }

    /// Time that commits waited for background jobs, if the contender counts it.
    pub fn job_wait(&self) -> Option<Duration> {
        self.counts().map(|counts| counts.job_wait)
    }

    /// One of the counts per key read.
    pub fn per_read(&self, count: fn(&CounterSnapshot) -> u64) -> Option<f64> {
        let (reads, _) = self.keys();
        self.counts().filter(|_| reads > 0).map(|of| per(count(&of), reads))
    }

    /// One of the counts per key written; `None` if no key was written.
    pub fn per_write(&self, count: fn(&CounterSnapshot) -> u64) -> Option<f64> {
        let (_, writes) = self.keys();
        self.counts().filter(|_| writes > 0).map(|of| per(count(&of), writes))
    }

    /// The counts of each table that was read or written, per key read or written.
    pub fn tables(&self) -> Option<Vec<TableResult>> {
        let (reads, writes) = self.keys();
        let table = |(name, counts): &(&'static str, TableCounts)| TableResult {
            name: (*name).into(),
            reads_per_op: per(counts.reads, reads),
            writes_per_op: per(counts.writes, writes),
            read_bytes_per_op: per(counts.read_bytes, reads),
            write_bytes_per_op: per(counts.write_bytes, writes),
        };
        self.counts().map(|counts| counts.tables.iter().map(table).collect())
    }

    /// The figures that all kinds of workloads have, as a result of `--json`.
    pub(crate) fn bench_result(&self, workload: &str, params: Map<String, Value>) -> BenchResult {
        let latency = self.latency();
        BenchResult {
            backend: self.backend.clone(),
            workload: workload.into(),
            params,
            ops: self.ops(),
            seconds: self.total().as_secs_f64(),
            ops_per_s: self.median_rate(),
            p50_us: Some(latency.micros(0.5)),
            p99_us: Some(latency.micros(0.99)),
            p999_us: Some(latency.micros(0.999)),
            max_us: Some(latency.max_micros()),
            reads_per_op: self.per_read(|counts| counts.reads),
            writes_per_op: self.per_write(|counts| counts.writes),
            read_bytes_per_op: self.per_read(|counts| counts.read_bytes),
            write_bytes_per_op: self.per_write(|counts| counts.write_bytes),
            tables: self.tables(),
            disk_bytes: self.disk_bytes,
            peak_rss_bytes: self.peak_rss_bytes,
            spread: Some(self.spread()),
            breakdown: self.breakdown(),
            sustained_ops_per_s: Some(self.sustained_rate()),
            slices: self.slice_results(),
            latency: LatencyPoint::of(&latency),
            settle_seconds: Some(self.settling().as_secs_f64()),
            job_wait_seconds: self.job_wait().and_then(unless_zero),
            flush_seconds: self.flush.map(|flush| flush.as_secs_f64()),
            journal_bytes_per_op: self.per_write(|counts| counts.journal_bytes),
            undo_bytes_per_op: self.per_write(|counts| counts.undo_bytes),
            memory_bytes: Some(self.memory_bytes()),
            mapped_bytes: unless_zero_bytes(self.mapped_bytes()),
            hit_rates: self.hit_rates(),
            of_limit: self.of_limit(),
            ..BenchResult::default()
        }
    }

    fn slice_results(&self) -> Vec<SliceResult> {
        let slice = |ops: &mut u64, turn: &SliceTurn| {
            *ops += turn.timed.ops;
            Some(SliceResult {
                ops: *ops,
                ops_per_s: rate(turn.timed.ops, turn.timed.elapsed),
                disk_bytes: Some(turn.disk_bytes),
                memory_bytes: turn.memory_bytes,
            })
        };
        self.turns.iter().scan(0, slice).collect()
    }
}

fn unless_zero_bytes(bytes: u64) -> Option<u64> {
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn outcome() -> RaceOutcome<()> {
        RaceOutcome::new("a", "none", ())
    }

    /// A turn of two commits with these counters at its end.
    fn turn(ops: u64, elapsed: u64, reading: CounterReading) -> SliceTurn {
        let latencies = vec![MS(elapsed / 2); 2];
        SliceTurn {
            timed: TimedTurn {
                ops,
                elapsed: MS(elapsed),
                settling: MS(10),
                latencies,
                needed: NeededWork::executing("transfers=1", 1000 * ops),
            },
            memory_bytes: elapsed as i64,
            mapped_bytes: 2 * elapsed,
            disk_bytes: elapsed,
            reading,
        }
    }

    fn plain(elapsed: u64) -> SliceTurn {
        turn(1000, elapsed, CounterReading::default())
    }

    #[test]
    fn median_and_spread_are_those_of_the_slices_and_the_sustained_rate_has_the_flush() {
        let mut outcome = outcome();
        for millis in [100, 50, 200, 125, 250] {
            outcome.add_turn(plain(millis));
        }
        assert_eq!((outcome.memory_bytes(), outcome.disk_bytes), (250, 250));
        assert_eq!((outcome.mapped_bytes(), outcome.hit_rates()), (500, None));
        outcome.add_flush(MS(275), 300, CounterReading::default());
        // Rates: 10,000, 20,000, 5,000, 8,000, 4,000.
        assert_eq!((outcome.ops(), outcome.median_rate()), (5000, 8000.0));
        assert_eq!(outcome.spread(), (10_000.0 - 5_000.0) / 8_000.0);
        assert_eq!((outcome.sustained_rate(), outcome.disk_bytes), (5000.0, 300));
        assert_eq!(outcome.settling(), MS(50));
        assert_eq!(outcome.latency().count(), 10);
        let slices = outcome.slice_results();
        let last =
            SliceResult { ops: 5000, ops_per_s: 4000.0, disk_bytes: Some(250), memory_bytes: 250 };
        assert_eq!((slices.len(), slices[4]), (5, last));
    }

    #[test]
    fn ratio_is_that_of_slices_next_to_each_other() {
        let raced = |millis: [u64; 4]| {
            let mut outcome = outcome();
            for millis in millis {
                outcome.add_turn(plain(millis));
            }
            outcome
        };
        // The machine is ten times slower in the second half, for both.
        let (a, b) = (raced([100, 120, 1000, 1200]), raced([50, 60, 500, 400]));
        for ratio in [a.ratio_to(&b), b.latency_ratio_to(&a)] {
            assert_eq!((ratio.median, ratio.upper), (0.5, 0.5));
            assert!((ratio.lower - (0.5 - (0.5 - 1.0 / 3.0) / 4.0)).abs() < 1e-9, "{ratio:?}");
        }
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
        let reading = |spent| CounterReading { spent: Some(spent), ..Default::default() };
        let mut outcome = outcome();
        outcome.begin(reading(spent(10.0, 20.0)));
        outcome.add_turn(turn(2, 1000, reading(spent(10.5, 20.25))));
        let found = outcome.breakdown().unwrap();
        let fields = [found.execution, found.authentication, found.storage_io, found.other];
        assert_eq!(fields, [0.0, 0.5, 0.25, 0.25]);
        // The flush is timed too, and belongs to the key-value store.
        outcome.add_flush(Duration::from_secs(2), 0, CounterReading::default());
        let found = outcome.breakdown().unwrap();
        assert_eq!((found.authentication, found.storage_io, found.other), (0.5, 2.25, 0.25));
    }

    #[test]
    fn figures_are_those_of_the_measured_slices_and_the_parts_add_up() {
        let reading = |n: u32| {
            let seconds = f64::from(n) / 1000.0;
            let (authentication, storage_io) = (50.0 * seconds, 5.0 * seconds);
            let execution = 10.0 * seconds;
            let spent = TimeBreakdown { execution, authentication, storage_io, other: 0.0 };
            let counts = CounterSnapshot {
                reads: 60 * u64::from(n),
                writes: 50 * u64::from(n),
                read_time: MS(5) * n,
                ..CounterSnapshot::default()
            };
            let keys = (20 * u64::from(n), 10 * u64::from(n));
            CounterReading { counts: Some(counts), spent: Some(spent), keys }
        };
        let mut outcome = outcome();
        outcome.begin(reading(3));
        for (n, millis) in [(4, 100), (5, 400), (6, 200)] {
            outcome.add_turn(turn(100, millis, reading(n)));
        }
        outcome.add_flush(MS(300), 0, reading(6));
        assert_eq!((outcome.ops(), outcome.keys()), (300, (60, 30)));
        assert_eq!((outcome.median_rate(), outcome.sustained_rate()), (500.0, 300.0));
        assert_eq!(outcome.spread(), (750.0 - 375.0) / 500.0);
        let rows = (outcome.per_read(|of| of.reads), outcome.per_write(|of| of.writes));
        assert_eq!(rows, (Some(3.0), Some(5.0)));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let parts = outcome.breakdown().unwrap();
        near(parts.execution, 0.030);
        near(parts.authentication, 0.150 - 0.015);
        near(parts.storage_io, 0.015 + 0.300 + 0.015);
        near(parts.execution + parts.authentication + parts.storage_io + parts.other, 1.0);
    }

    #[test]
    fn tables_are_counted_per_key_of_the_measured_part() {
        let reading = |reads, writes, keys| {
            let of = TableCounts {
                reads,
                read_bytes: 8 * reads,
                writes,
                write_bytes: 9 * writes,
                ..TableCounts::default()
            };
            let tables = vec![("Flat", of)];
            let counts = Some(CounterSnapshot { reads, writes, tables, ..Default::default() });
            CounterReading { counts, spent: None, keys }
        };
        let mut raced = outcome();
        assert_eq!(raced.tables(), None);
        raced.begin(reading(10, 100, (7, 7)));
        raced.add_turn(turn(75, 1, reading(110, 200, (57, 32))));
        let flat = TableResult {
            name: "Flat".into(),
            reads_per_op: 2.0,
            writes_per_op: 4.0,
            read_bytes_per_op: 16.0,
            write_bytes_per_op: 36.0,
        };
        assert_eq!(raced.tables(), Some(vec![flat]));
        assert_eq!(raced.per_read(|counts| counts.reads), Some(2.0));
        assert_eq!(raced.per_write(|counts| counts.writes), Some(4.0));
        let mut reads_only = outcome();
        reads_only.begin(reading(0, 0, (0, 0)));
        reads_only.add_turn(turn(50, 1, reading(50, 0, (50, 0))));
        assert_eq!(reads_only.per_write(|counts| counts.writes), None);
    }

    #[test]
    fn of_the_limit_is_the_least_time_over_all_timed_seconds() {
        let mut outcome = outcome();
        outcome.add_turn(plain(100));
        outcome.add_turn(plain(200));
        assert_eq!((outcome.of_limit(), outcome.bound()), (None, None));
        assert_eq!(outcome.needed().gas["transfers=1"], 2_000_000);
        // A nanosecond a gas.
        let cost = r#"{"alone": 1e-9, "together": 1e-9}"#;
        let durable = r#"{"commit": 1, "byte": 1}"#;
        let limits = format!(
            r#"{{"sender": {cost}, "branch_hash": {cost}, "leaf_hash": {cost}, "lookup": {cost},
            "execution": {{"any": {{"gas": {cost}, "gas_per_transaction": 21000}}}},
            "disk": {{"file": {durable}, "files": {durable}, "database": {durable}, "page": {cost}}}}}"#
        );
        outcome.set_limits(&serde_json::from_str(&limits).unwrap());
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(outcome.bound().unwrap().seconds(), 0.002);
        near(outcome.of_limit().unwrap(), 0.002 / 0.3);
        outcome.add_flush(MS(100), 0, CounterReading::default());
        near(outcome.of_limit().unwrap(), 0.002 / 0.4);
        near(outcome.bench_result("state", Map::new()).of_limit.unwrap(), 0.005);
    }
}
