//! The durable, transactional store underneath: MDBX (`crates/db`) or [memory](crate::MemoryStore).

use crate::{Direction, KeyRange, Row, StoreError, Table};
use alloy_primitives::Bytes;
use std::sync::Arc;

/// A durable, transactional key-value store with named tables: MDBX in `crates/db`, or memory.
pub trait KvStore: Send + Sync + 'static {
    /// A consistent view of the last commit. Cheap: one is taken for each reader.
    fn snapshot(&self) -> Result<Snapshot, StoreError>;

    /// Opens the one write transaction; waits while another is open.
    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError>;

    /// Bytes on disk used by live pages (not the size of a sparse file).
    fn disk_bytes(&self) -> Result<u64, StoreError>;

    /// Returns once all that was committed survives a power failure. Needed where commits do not
    /// wait for that themselves. No write transaction may be open.
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A consistent view of one commit, shared between threads.
pub type Snapshot = Arc<dyn KvRead + Send + Sync>;

/// Reads of a snapshot or of a write transaction.
pub trait KvRead {
    /// The value of `key`.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// The first row at or after `key` (forward), or the last row at or before it (backward;
    /// `None` starts at the end).
    fn seek(
        &self,
        table: Table,
        key: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Row>, StoreError>;

    /// Up to `limit` rows of `range` in `direction`.
    fn scan(
        &self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError>;

    /// Number of rows of a table.
    fn count(&self, table: Table) -> Result<u64, StoreError>;

    /// Says that so many threads will soon read at once, for which there may be no room any more once
    /// something has been committed.
    fn expect_readers(&self, threads: usize) {
        let _ = threads;
    }
}

/// An open write transaction. The chain's own tables change in the same one.
pub trait KvWrite: KvRead {
    /// Sets `key`.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Sets `key`, which sorts after all keys of the table (faster than [`put`](Self::put)).
    fn append(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes `key`; says whether it was there.
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, StoreError>;

    /// Removes all rows of a table.
    fn clear(&mut self, table: Table) -> Result<(), StoreError>;
}

/// A write transaction that the framework opened itself; dropping it aborts.
pub trait KvTxn: KvWrite {
    /// Whether somebody waits to write: background work then makes way.
    fn is_awaited(&self) -> bool {
        false
    }

    /// Makes all its writes durable at once.
    fn commit(self: Box<Self>) -> Result<(), StoreError>;
}
