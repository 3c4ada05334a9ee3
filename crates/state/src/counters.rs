//! Counts at the key-value interface: the papers' read and write amplification.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reads and writes of backends at the node interface since the store was opened. Undo and journal
/// are the framework's and counted apart.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    journal_bytes: AtomicU64,
    undo_bytes: AtomicU64,
    folded_rows: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows read, range rows included.
    pub reads: u64,
    /// Bytes of the values read.
    pub read_bytes: u64,
    /// Rows written or deleted.
    pub writes: u64,
    /// Bytes of keys and values written.
    pub write_bytes: u64,
    /// Bytes of journal rows.
    pub journal_bytes: u64,
    /// Bytes of undo rows.
    pub undo_bytes: u64,
    /// Rows folded from the journal into the tables.
    pub folded_rows: u64,
}

impl Counters {
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Relaxed);
        self.write_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn journal(&self, bytes: usize) {
        self.journal_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn undo(&self, bytes: usize) {
        self.undo_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn folded(&self, rows: usize) {
        self.folded_rows.fetch_add(rows as u64, Relaxed);
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            journal_bytes: self.journal_bytes.load(Relaxed),
            undo_bytes: self.undo_bytes.load(Relaxed),
            folded_rows: self.folded_rows.load(Relaxed),
        }
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            journal_bytes: self.journal_bytes - earlier.journal_bytes,
            undo_bytes: self.undo_bytes - earlier.undo_bytes,
            folded_rows: self.folded_rows - earlier.folded_rows,
        }
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            reads: self.reads + more.reads,
            read_bytes: self.read_bytes + more.read_bytes,
            writes: self.writes + more.writes,
            write_bytes: self.write_bytes + more.write_bytes,
            journal_bytes: self.journal_bytes + more.journal_bytes,
            undo_bytes: self.undo_bytes + more.undo_bytes,
            folded_rows: self.folded_rows + more.folded_rows,
        }
    }
}
