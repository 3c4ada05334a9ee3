//! The durable, transactional store underneath: MDBX (`crates/chain/db`) or [memory](crate::MemoryStore).

use alloy_primitives::{B256, Bytes};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError, TableRow};
use std::sync::Arc;

/// A durable, transactional key-value store with named tables: MDBX in `crates/chain/db`, or memory.
pub trait KvStore: Send + Sync + 'static {
    /// A consistent view of the last commit. Cheap: one is taken for each reader.
    fn snapshot(&self) -> Result<KvSnapshot, StoreError>;

    /// Opens the one write transaction; waits while another is open.
    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError>;

    /// Bytes of live pages on disk (not the size of a sparse file).
    fn disk_bytes(&self) -> Result<u64, StoreError>;

    /// Returns once all commits so far survive a power failure. Needed where commits do not sync
    /// themselves. No write transaction may be open.
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A consistent view of one commit, shared between threads.
pub type KvSnapshot = Arc<dyn KvRead + Send + Sync>;

/// Reads of a snapshot or of a write transaction.
pub trait KvRead {
    /// The value of `key`.
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// The first row at or after `key` (forward), or the last row at or before it (backward;
    /// `None` starts at the end).
    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError>;

    /// Up to `limit` rows of `range` in `direction`.
    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError>;

    /// Number of rows of a table.
    fn count(&self, table: RowTable) -> Result<u64, StoreError>;

    /// The code of this keccak-256, if the client keeps its codes in this database; the state's own
    /// tables have none. A bulk load reads codes here for backends that need them, so those of its
    /// transaction must be written before.
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StoreError> {
        let _ = hash;
        Ok(None)
    }

    /// Announces that `threads` threads will soon read this snapshot at once. The store may have to
    /// reserve readers now, because it cannot open more readers of the snapshot after a commit.
    fn expect_readers(&self, threads: usize) {
        let _ = threads;
    }
}

/// An open write transaction. The chain's own tables change in the same transaction.
pub trait KvWrite: KvRead {
    /// Sets `key`.
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Sets `key`, which sorts after all keys of the table (faster than [`put`](Self::put)).
    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes `key`; returns whether it existed.
    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError>;

    /// Removes all rows of a table.
    fn clear(&mut self, table: RowTable) -> Result<(), StoreError>;
}

/// A write transaction that the framework opened itself; dropping it aborts.
pub trait KvTxn: KvWrite {
    /// Whether another thread waits to write: background work then ends its transaction early.
    fn is_awaited(&self) -> bool {
        false
    }

    /// Makes all its writes durable at once.
    fn commit(self: Box<Self>) -> Result<(), StoreError>;
}
