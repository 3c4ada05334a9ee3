//! Counts at the key-value interface: the papers' read and write amplification.

use crate::Table;
use std::{
    ops::{Add, Sub},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// One in so many reads is timed. A prime, so that no rhythm of a backend falls in with it.
const TIMED: u64 = 13;

/// Reads and writes of backends at the node interface since the store was opened, table by table.
/// Undo, journal and [flat history](crate::FlatHistory) are the framework's and counted apart.
#[derive(Debug)]
pub struct Counters {
    /// By the id of the table.
    tables: Box<[TableCounters; 256]>,
    read_nanos: AtomicU64,
    journal_bytes: AtomicU64,
    undo_bytes: AtomicU64,
    history_bytes: AtomicU64,
    folded_rows: AtomicU64,
    job_wait_nanos: AtomicU64,
}

#[derive(Debug, Default)]
struct TableCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows read, range rows included.
    pub reads: u64,
    /// Bytes of the values read, and of the keys of range rows.
    pub read_bytes: u64,
    /// Rows written or deleted.
    pub writes: u64,
    /// Bytes of keys and values written.
    pub write_bytes: u64,
    /// Time in reads of single rows, on all threads together: an estimate, as one in 13 is timed.
    pub read_time: Duration,
    /// Reads, writes and their bytes of each table that was touched, by its name, in the order of
    /// ids.
    pub tables: Vec<(&'static str, TableCounts)>,
    /// Bytes of journal rows.
    pub journal_bytes: u64,
    /// Bytes of undo rows.
    pub undo_bytes: u64,
    /// Bytes of keys and values of [flat history](crate::FlatHistory), written or deleted.
    pub history_bytes: u64,
    /// Rows folded from the journal into the tables.
    pub folded_rows: u64,
    /// Time that blocks waited for [jobs](crate::Jobs), or ran them themselves.
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
}

type Named = (&'static str, TableCounts);

impl Default for Counters {
    fn default() -> Self {
        Self {
            tables: Box::new(std::array::from_fn(|_| TableCounters::default())),
            read_nanos: AtomicU64::new(0),
            journal_bytes: AtomicU64::new(0),
            undo_bytes: AtomicU64::new(0),
            history_bytes: AtomicU64::new(0),
            folded_rows: AtomicU64::new(0),
            job_wait_nanos: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// When the next read of `table` begins, if it is one to be timed.
    pub(crate) fn begin_read(&self, table: Table) -> Option<Instant> {
        let reads = self.tables[usize::from(table.id)].reads.load(Relaxed);
        reads.is_multiple_of(TIMED).then(Instant::now)
    }

    /// A read that was to be timed has ended.
    pub(crate) fn end_read(&self, begun: Option<Instant>) {
        if let Some(begun) = begun {
            let nanos = begun.elapsed().as_nanos() as u64;
            self.read_nanos.fetch_add(nanos * TIMED, Relaxed);
        }
    }

    pub(crate) fn read(&self, table: Table, bytes: usize) {
        let counters = &self.tables[usize::from(table.id)];
        counters.reads.fetch_add(1, Relaxed);
        counters.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn write(&self, table: Table, bytes: usize) {
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

    pub(crate) fn job_wait(&self, time: Duration) {
        self.job_wait_nanos.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// The counts so far, of all `tables` of the store.
    pub(crate) fn counts(&self, tables: &[Table]) -> Counts {
        let of = |table: &Table| (table.name, self.tables[usize::from(table.id)].counts());
        let touched = |(_, counts): &Named| *counts != TableCounts::default();
        let tables: Vec<_> = tables.iter().map(of).filter(touched).collect();
        let sum = |count: fn(&TableCounts) -> u64| tables.iter().map(|(_, of)| count(of)).sum();
        Counts {
            reads: sum(|of| of.reads),
            read_bytes: sum(|of| of.read_bytes),
            writes: sum(|of| of.writes),
            write_bytes: sum(|of| of.write_bytes),
            read_time: Duration::from_nanos(self.read_nanos.load(Relaxed)),
            journal_bytes: self.journal_bytes.load(Relaxed),
            undo_bytes: self.undo_bytes.load(Relaxed),
            history_bytes: self.history_bytes.load(Relaxed),
            folded_rows: self.folded_rows.load(Relaxed),
            job_wait: Duration::from_nanos(self.job_wait_nanos.load(Relaxed)),
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
        }
    }
}

impl Counts {
    /// The counts of the table called `name`: zero if there is none.
    pub fn table(&self, name: &str) -> TableCounts {
        let of = self.tables.iter().find(|(table, _)| *table == name);
        of.map_or_else(TableCounts::default, |(_, counts)| *counts)
    }
}

impl Sub for &Counts {
    type Output = Counts;

    fn sub(self, earlier: Self) -> Counts {
        let table = |(name, of): &Named| (*name, *of - earlier.table(name));
        Counts {
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
            job_wait: self.job_wait.saturating_sub(earlier.job_wait),
        }
    }
}

impl Add for &Counts {
    type Output = Counts;

    fn add(self, more: Self) -> Counts {
        let table = |(name, of): &Named| (*name, *of + more.table(name));
        let is_new = |(name, _): &&Named| self.tables.iter().all(|(known, _)| known != name);
        let known = self.tables.iter().map(table);
        Counts {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Table = Table::new(3, "One");
    const TWO: Table = Table::new(4, "Two");

    #[test]
    fn totals_are_the_sums_of_the_tables() {
        let counters = Counters::default();
        counters.read(ONE, 10);
        counters.read(TWO, 0);
        counters.read(TWO, 5);
        counters.write(TWO, 7);
        counters.journal(9);
        let counts = counters.counts(&[ONE, TWO]);
        let one = TableCounts { reads: 1, read_bytes: 10, ..Default::default() };
        let two = TableCounts { reads: 2, read_bytes: 5, writes: 1, write_bytes: 7 };
        assert_eq!(counts.tables, [("One", one), ("Two", two)]);
        assert_eq!((counts.reads, counts.read_bytes), (3, 15));
        assert_eq!((counts.writes, counts.write_bytes), (1, 7));
        assert_eq!(counts.table("Two"), two);
        assert_eq!(counts.table("Three"), TableCounts::default());
    }

    #[test]
    fn one_in_thirteen_reads_is_timed_for_all() {
        let counters = Counters::default();
        let timed = (0..26).filter(|_| {
            let begun = counters.begin_read(ONE);
            counters.end_read(begun.map(|begun| begun - Duration::from_millis(1)));
            counters.read(ONE, 1);
            begun.is_some()
        });
        assert_eq!(timed.count(), 2);
        let time = counters.counts(&[ONE]).read_time;
        assert!(time >= Duration::from_millis(26), "{time:?}");
    }

    #[test]
    fn differences_and_sums_are_taken_table_by_table() {
        let counters = Counters::default();
        counters.read(ONE, 10);
        let earlier = counters.counts(&[ONE, TWO]);
        counters.read(ONE, 1);
        counters.write(TWO, 2);
        counters.undo(3);
        counters.history(4);
        counters.job_wait(Duration::from_millis(5));
        let between = &counters.counts(&[ONE, TWO]) - &earlier;
        assert_eq!(
            between.table("One"),
            TableCounts { reads: 1, read_bytes: 1, ..Default::default() }
        );
        assert_eq!(
            between.table("Two"),
            TableCounts { writes: 1, write_bytes: 2, ..Default::default() }
        );
        assert_eq!((between.reads, between.writes, between.undo_bytes), (1, 1, 3));
        assert_eq!((between.history_bytes, between.job_wait), (4, Duration::from_millis(5)));
        assert_eq!(&earlier + &between, counters.counts(&[ONE, TWO]));
        // A sum may begin with nothing.
        assert_eq!(&Counts::default() + &earlier, earlier);
        assert_eq!(&earlier - &Counts::default(), earlier);
    }
}
