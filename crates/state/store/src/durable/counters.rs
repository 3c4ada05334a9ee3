//! Counters at the node interface: the read and write amplification that the papers measure.

use retrie_state::{CacheLookups, RowTable};
use std::{
    ops::{Add, Sub},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// One in this many reads is timed. A prime, so that it does not align with a backend's access
/// pattern.
const TIMED: u64 = 13;

/// Counts a backend's reads and writes at the node interface since the store was opened, for each
/// table. The framework's undo, journal and [flat history](crate::FlatHistory) are counted
/// separately.
#[derive(Debug)]
pub(crate) struct NodeCounters {
    /// By the id of the table.
    tables: Box<[TableCounters; 256]>,
    read_nanos: AtomicU64,
    journal_bytes: AtomicU64,
    undo_bytes: AtomicU64,
    history_bytes: AtomicU64,
    folded_rows: AtomicU64,
}

#[derive(Debug, Default)]
struct TableCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    scanned: AtomicU64,
    fetched: AtomicU64,
}

/// The counts of rows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// Rows read, range rows included.
    pub reads: u64,
    /// Bytes of the values read, and of the keys of range rows.
    pub read_bytes: u64,
    /// Rows written or deleted.
    pub writes: u64,
    /// Bytes of keys and values written.
    pub write_bytes: u64,
    /// Total time in reads of single rows, on all threads: an estimate, as one read in 13 is timed.
    pub read_time: Duration,
    /// Counts of each used table, by name, in the order of ids.
    pub tables: Vec<(&'static str, TableCounts)>,
    /// Bytes of journal rows.
    pub journal_bytes: u64,
    /// Bytes of undo rows.
    pub undo_bytes: u64,
    /// Bytes of keys and values of [flat history](crate::FlatHistory) that were written or deleted.
    pub history_bytes: u64,
    /// Rows folded from the journal into the tables.
    pub folded_rows: u64,
    /// Lookups in the backend's own caches.
    pub caches: CacheLookups,
    /// Time that blocks waited for [jobs](retrie_state::JobRunner), or ran them on their own thread.
    pub job_wait: Duration,
}

/// The counts of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Rows read, range rows included.
    pub reads: u64,
    /// Bytes of the values read, and of the keys of range rows.
    pub read_bytes: u64,
    /// Rows written or deleted.
    pub writes: u64,
    /// Bytes of keys and values written.
    pub write_bytes: u64,
    /// Rows of ranges, among the rows read.
    pub scanned: u64,
    /// Single rows that were looked up in the tables, among the rows read. All other single rows
    /// were in memory, because no fold had moved them to the tables yet.
    pub fetched: u64,
}

type NamedCounts = (&'static str, TableCounts);

impl Default for NodeCounters {
    fn default() -> Self {
        Self {
            tables: Box::new(std::array::from_fn(|_| TableCounters::default())),
            read_nanos: AtomicU64::new(0),
            journal_bytes: AtomicU64::new(0),
            undo_bytes: AtomicU64::new(0),
            history_bytes: AtomicU64::new(0),
            folded_rows: AtomicU64::new(0),
        }
    }
}

impl NodeCounters {
    /// Starts the next read of `table`; returns the time if the read is to be timed.
    pub(crate) fn begin_read(&self, table: RowTable) -> Option<Instant> {
        let reads = self.tables[usize::from(table.id)].reads.load(Relaxed);
        reads.is_multiple_of(TIMED).then(Instant::now)
    }

    /// Ends a read that [`begin_read`](Self::begin_read) has started.
    pub(crate) fn end_read(&self, begun: Option<Instant>) {
        if let Some(begun) = begun {
            let nanos = begun.elapsed().as_nanos() as u64;
            self.read_nanos.fetch_add(nanos * TIMED, Relaxed);
        }
    }

    pub(crate) fn read(&self, table: RowTable, bytes: usize) {
        let counters = &self.tables[usize::from(table.id)];
        counters.reads.fetch_add(1, Relaxed);
        counters.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a row of a range, which is a read too.
    pub(crate) fn scan(&self, table: RowTable, bytes: usize) {
        self.read(table, bytes);
        self.tables[usize::from(table.id)].scanned.fetch_add(1, Relaxed);
    }

    /// Counts a single row that was not in memory.
    pub(crate) fn fetch(&self, table: RowTable) {
        self.tables[usize::from(table.id)].fetched.fetch_add(1, Relaxed);
    }

    pub(crate) fn write(&self, table: RowTable, bytes: usize) {
        let counters = &self.tables[usize::from(table.id)];
        counters.writes.fetch_add(1, Relaxed);
        counters.write_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn journal(&self, bytes: usize) {
        self.journal_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn undo(&self, bytes: usize) {
        self.undo_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn history(&self, bytes: usize) {
        self.history_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn folded(&self, rows: usize) {
        self.folded_rows.fetch_add(rows as u64, Relaxed);
    }

    /// The counts of `tables` so far; blocks have waited `job_wait` for jobs.
    pub(crate) fn counts(&self, tables: &[RowTable], job_wait: Duration) -> CounterSnapshot {
        let of = |table: &RowTable| (table.name, self.tables[usize::from(table.id)].counts());
        let touched = |(_, counts): &NamedCounts| *counts != TableCounts::default();
        let tables: Vec<_> = tables.iter().map(of).filter(touched).collect();
        let sum = |count: fn(&TableCounts) -> u64| tables.iter().map(|(_, of)| count(of)).sum();
        CounterSnapshot {
            reads: sum(|of| of.reads),
            read_bytes: sum(|of| of.read_bytes),
            writes: sum(|of| of.writes),
            write_bytes: sum(|of| of.write_bytes),
            read_time: Duration::from_nanos(self.read_nanos.load(Relaxed)),
            journal_bytes: self.journal_bytes.load(Relaxed),
            undo_bytes: self.undo_bytes.load(Relaxed),
            history_bytes: self.history_bytes.load(Relaxed),
            folded_rows: self.folded_rows.load(Relaxed),
            caches: CacheLookups::default(),
            job_wait,
            tables,
        }
    }
}

impl TableCounters {
    fn counts(&self) -> TableCounts {
        TableCounts {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            scanned: self.scanned.load(Relaxed),
            fetched: self.fetched.load(Relaxed),
        }
    }
}

impl CounterSnapshot {
    /// The counts of the table `name`; zero if it was not used.
    pub fn table(&self, name: &str) -> TableCounts {
        let of = self.tables.iter().find(|(table, _)| *table == name);
        of.map_or_else(TableCounts::default, |(_, counts)| *counts)
    }

    /// Reads of single rows: how many were in memory, because they were not folded yet.
    pub fn unfolded_rows(&self) -> CacheLookups {
        let lookups = |(_, of): &NamedCounts| CacheLookups {
            hits: of.reads.saturating_sub(of.scanned + of.fetched),
            misses: of.fetched,
        };
        self.tables.iter().map(lookups).fold(CacheLookups::default(), Add::add)
    }

    /// Lookups in the backend's caches and of single rows together: what was found in either, and
    /// what had to be fetched from the tables.
    pub fn memory_lookups(&self) -> CacheLookups {
        let rows = self.unfolded_rows();
        CacheLookups { hits: self.caches.hits + rows.hits, misses: rows.misses }
    }
}

impl Sub for &CounterSnapshot {
    type Output = CounterSnapshot;

    fn sub(self, earlier: Self) -> CounterSnapshot {
        let table = |(name, of): &NamedCounts| (*name, *of - earlier.table(name));
        CounterSnapshot {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            read_time: self.read_time.saturating_sub(earlier.read_time),
            tables: self.tables.iter().map(table).collect(),
            journal_bytes: self.journal_bytes - earlier.journal_bytes,
            undo_bytes: self.undo_bytes - earlier.undo_bytes,
            history_bytes: self.history_bytes - earlier.history_bytes,
            folded_rows: self.folded_rows - earlier.folded_rows,
            caches: self.caches - earlier.caches,
            job_wait: self.job_wait.saturating_sub(earlier.job_wait),
        }
    }
}

impl Add for &CounterSnapshot {
    type Output = CounterSnapshot;

    fn add(self, more: Self) -> CounterSnapshot {
        let table = |(name, of): &NamedCounts| (*name, *of + more.table(name));
        let is_new = |(name, _): &&NamedCounts| self.tables.iter().all(|(known, _)| known != name);
        let known = self.tables.iter().map(table);
        CounterSnapshot {
            reads: self.reads + more.reads,
            read_bytes: self.read_bytes + more.read_bytes,
            writes: self.writes + more.writes,
            write_bytes: self.write_bytes + more.write_bytes,
            read_time: self.read_time + more.read_time,
            tables: known.chain(more.tables.iter().filter(is_new).copied()).collect(),
            journal_bytes: self.journal_bytes + more.journal_bytes,
            undo_bytes: self.undo_bytes + more.undo_bytes,
            history_bytes: self.history_bytes + more.history_bytes,
            folded_rows: self.folded_rows + more.folded_rows,
            caches: self.caches + more.caches,
            job_wait: self.job_wait + more.job_wait,
        }
    }
}

impl Sub for TableCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            scanned: self.scanned - earlier.scanned,
            fetched: self.fetched - earlier.fetched,
        }
    }
}

impl Add for TableCounts {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            reads: self.reads + more.reads,
            read_bytes: self.read_bytes + more.read_bytes,
            writes: self.writes + more.writes,
            write_bytes: self.write_bytes + more.write_bytes,
            scanned: self.scanned + more.scanned,
            fetched: self.fetched + more.fetched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RowTable = RowTable::new(3, "One");
    const TWO: RowTable = RowTable::new(4, "Two");

    #[test]
    fn totals_are_the_sums_of_the_tables() {
        let counters = NodeCounters::default();
        counters.read(ONE, 10);
        counters.read(TWO, 0);
        counters.scan(TWO, 5);
        counters.fetch(ONE);
        counters.write(TWO, 7);
        counters.journal(9);
        let counts = counters.counts(&[ONE, TWO], Duration::ZERO);
        let one = TableCounts { reads: 1, read_bytes: 10, fetched: 1, ..Default::default() };
        let two = TableCounts {
            reads: 2,
            read_bytes: 5,
            writes: 1,
            write_bytes: 7,
            scanned: 1,
            fetched: 0,
        };
        assert_eq!(counts.tables, [("One", one), ("Two", two)]);
        assert_eq!((counts.reads, counts.read_bytes), (3, 15));
        assert_eq!((counts.writes, counts.write_bytes), (1, 7));
        assert_eq!(counts.table("Two"), two);
        assert_eq!(counts.table("Three"), TableCounts::default());
        // Of two single rows one was in memory; the row of the range is no lookup.
        assert_eq!(counts.unfolded_rows(), CacheLookups { hits: 1, misses: 1 });
        let cached = CounterSnapshot { caches: CacheLookups { hits: 2, misses: 2 }, ..counts };
        assert_eq!(cached.memory_lookups(), CacheLookups { hits: 3, misses: 1 });
    }

    #[test]
    fn one_in_thirteen_reads_is_timed_for_all() {
        let counters = NodeCounters::default();
        let timed = (0..26).filter(|_| {
            let begun = counters.begin_read(ONE);
            counters.end_read(begun.map(|begun| begun - Duration::from_millis(1)));
            counters.read(ONE, 1);
            begun.is_some()
        });
        assert_eq!(timed.count(), 2);
        let time = counters.counts(&[ONE], Duration::ZERO).read_time;
        assert!(time >= Duration::from_millis(26), "{time:?}");
    }

    #[test]
    fn differences_and_sums_are_taken_table_by_table() {
        let counters = NodeCounters::default();
        counters.read(ONE, 10);
        let earlier = counters.counts(&[ONE, TWO], Duration::ZERO);
        counters.read(ONE, 1);
        counters.write(TWO, 2);
        counters.undo(3);
        counters.history(4);
        let wait = Duration::from_millis(5);
        let between = &counters.counts(&[ONE, TWO], wait) - &earlier;
        assert_eq!(
            between.table("One"),
            TableCounts { reads: 1, read_bytes: 1, ..Default::default() }
        );
        assert_eq!(
            between.table("Two"),
            TableCounts { writes: 1, write_bytes: 2, ..Default::default() }
        );
        assert_eq!((between.reads, between.writes, between.undo_bytes), (1, 1, 3));
        assert_eq!((between.history_bytes, between.job_wait), (4, wait));
        assert_eq!(&earlier + &between, counters.counts(&[ONE, TWO], wait));
        // The default value is neutral.
        assert_eq!(&CounterSnapshot::default() + &earlier, earlier);
        assert_eq!(&earlier - &CounterSnapshot::default(), earlier);
    }
}
