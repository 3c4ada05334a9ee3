//! The state contract's key-value traits on MDBX.
//!
//! A table that was never written to counts as empty: reads find nothing, and the first write
//! creates it in the same transaction.

use crate::{
    ChainRead, DatabaseEnv, DbError, ReadError, ReadTxn, StorageError, WriteTxn,
    raw::{RawRead, RowRange},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError, TableRow};
use retrie_state_store::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
use std::sync::Arc;

impl DatabaseEnv {
    /// The state store in this datadir.
    pub fn state_store(&self) -> Arc<dyn KvStore> {
        Arc::new(DatadirStateStore(self.clone()))
    }
}

impl ReadTxn {
    /// The state store as of this snapshot, whatever is committed later; for reading only.
    pub fn state_store(self: &Arc<Self>) -> Arc<dyn KvStore> {
        Arc::new(PinnedStore(self.clone()))
    }
}

/// The tables `State..` of one snapshot.
struct PinnedStore(Arc<ReadTxn>);

impl KvStore for PinnedStore {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        Ok(self.0.clone())
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        let read_only = StorageError::ReadOnly { path: self.0.inner().context.path.clone() };
        Err(StoreError::new("opening a write transaction", DbError::from(read_only)))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.0.state_bytes().map_err(|e| StoreError::new("measuring the state", DbError::from(e)))
    }
}

/// The tables `State..` of a datadir.
struct DatadirStateStore(DatabaseEnv);

impl KvStore for DatadirStateStore {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        match self.0.begin_read() {
            Ok(snapshot) => Ok(Arc::new(snapshot)),
            Err(e) => Err(StoreError::new("opening a snapshot of the state", DbError::from(e))),
        }
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        match self.0.begin_write() {
            Ok(txn) => Ok(Box::new(txn)),
            Err(e) => {
                Err(StoreError::new("opening a write transaction of the state", DbError::from(e)))
            }
        }
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        let snapshot = self.0.begin_read();
        snapshot
            .and_then(|snapshot| snapshot.state_bytes())
            .map_err(|e| StoreError::new("measuring the state", DbError::from(e)))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.0.sync().map_err(|e| StoreError::new("syncing the state", DbError::from(e)))
    }
}

/// Implements the reads that snapshots and write transactions share. They differ in how they find a
/// table.
macro_rules! kv_read {
    ($transaction:ty, $find:expr, $expect_readers:expr) => {
        impl KvRead for $transaction {
            #[inline]
            fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
                act(table, "get", || {
                    let Some(handle) = $find(self, table)? else { return Ok(None) };
                    self.raw_get(handle, key)
                })
            }

            fn seek(
                &self,
                table: RowTable,
                key: Option<&[u8]>,
                direction: ScanDirection,
            ) -> Result<Option<TableRow>, StoreError> {
                act(table, "seek", || {
                    let Some(handle) = $find(self, table)? else { return Ok(None) };
                    self.raw_seek(handle, key, direction)
                })
            }

            fn scan(
                &self,
                table: RowTable,
                range: KeyRange<'_>,
                direction: ScanDirection,
                limit: usize,
            ) -> Result<Vec<TableRow>, StoreError> {
                let KeyRange { start, end } = range;
                act(table, "scan", || {
                    let Some(handle) = $find(self, table)? else { return Ok(Vec::new()) };
                    self.raw_scan(handle, RowRange { start, end, direction, limit })
                })
            }

            fn count(&self, table: RowTable) -> Result<u64, StoreError> {
                act(table, "count", || -> Result<_, ReadError> {
                    let Some(handle) = $find(self, table)? else { return Ok(0) };
                    Ok(self.raw_stat(handle)?.map_or(0, |stat| stat.entries() as u64))
                })
            }

            fn code(&self, hash: &B256) -> Result<Option<Bytes>, StoreError> {
                ChainRead::code(self, hash)
                    .map_err(|e| StoreError::new(format!("reading code {hash}"), DbError::from(e)))
            }

            fn expect_readers(&self, threads: usize) {
                $expect_readers(self, threads);
            }
        }
    };
}

kv_read!(ReadTxn, |txn: &ReadTxn, table| txn.inner().state_table(table), ReadTxn::expect_readers);
// A write transaction belongs to one thread.
kv_read!(WriteTxn, WriteTxn::existing_state_table, |_: &WriteTxn, _| ());

impl KvWrite for WriteTxn {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        act(table, "put", || {
            let handle = self.state_table(table)?;
            self.raw_put(handle, key, value)
        })
    }

    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        act(table, "append", || {
            let handle = self.state_table(table)?;
            self.raw_append(handle, key, value)
        })
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError> {
        act(table, "delete", || match self.existing_state_table(table)? {
            Some(handle) => self.raw_delete(handle, key),
            None => Ok(false),
        })
    }

    fn clear(&mut self, table: RowTable) -> Result<(), StoreError> {
        act(table, "clear", || match self.existing_state_table(table)? {
            Some(handle) => self.raw_clear(handle),
            None => Ok(()),
        })
    }
}

impl KvTxn for WriteTxn {
    fn is_awaited(&self) -> bool {
        Self::is_awaited(self)
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        (*self).commit().map_err(|e| StoreError::new("commit of state", DbError::from(e)))
    }
}

/// Runs `work`, and adds the attempted action and the table to its error.
#[inline]
fn act<T, E: Into<DbError>>(
    table: RowTable,
    action: &str,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, StoreError> {
    work().map_err(|e| failed(table, action, e.into()))
}

#[cold]
fn failed(table: RowTable, action: &str, error: DbError) -> StoreError {
    StoreError::new(format!("{action} in state table {}", table.name), error)
}
