//! The state contract's key-value traits on MDBX.
//!
//! A table that was never written to is an empty one: reads of it find nothing, the first write
//! creates it in the same transaction.

use crate::{
    Db, DbError, ReadTxn, WriteTxn,
    raw::{Range, RawRead},
};
use alloy_primitives::Bytes;
use retrie_state::{
    Direction, KeyRange, KvRead, KvStore, KvTxn, KvWrite, Row, Snapshot, StoreError, Table,
};
use std::sync::Arc;

impl Db {
    /// The state store in this datadir.
    pub fn state_store(&self) -> Arc<dyn KvStore> {
        Arc::new(StateStore(self.clone()))
    }
}

impl ReadTxn {
    /// The state store as this snapshot shows it, whatever is committed meanwhile: for reading
    /// alone.
    pub fn state_store(self: &Arc<Self>) -> Arc<dyn KvStore> {
        Arc::new(PinnedStore(self.clone()))
    }
}

/// The tables `State..` of one snapshot.
struct PinnedStore(Arc<ReadTxn>);

impl KvStore for PinnedStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.0.clone())
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        let path = self.0.inner().context.path.clone();
        Err(StoreError::new("opening a write transaction", DbError::ReadOnly { path }))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.0.state_bytes().map_err(|e| StoreError::new("measuring the state", e))
    }
}

/// The tables `State..` of a datadir.
struct StateStore(Db);

impl KvStore for StateStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        match self.0.begin_read() {
            Ok(snapshot) => Ok(Arc::new(snapshot)),
            Err(e) => Err(StoreError::new("opening a snapshot of the state", e)),
        }
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        match self.0.begin_write() {
            Ok(txn) => Ok(Box::new(txn)),
            Err(e) => Err(StoreError::new("opening a write transaction of the state", e)),
        }
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        let snapshot = self.0.begin_read();
        snapshot
            .and_then(|snapshot| snapshot.state_bytes())
            .map_err(|e| StoreError::new("measuring the state", e))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.0.sync().map_err(|e| StoreError::new("syncing the state", e))
    }
}

/// Reads that snapshots and write transactions do alike; the two differ in how they find a table.
macro_rules! kv_read {
    ($transaction:ty, $find:expr, $expect_readers:expr) => {
        impl KvRead for $transaction {
            #[inline]
            fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
                act(table, "get", || {
                    let Some(handle) = $find(self, table)? else { return Ok(None) };
                    self.raw_get(handle, key)
                })
            }

            fn seek(
                &self,
                table: Table,
                key: Option<&[u8]>,
                direction: Direction,
            ) -> Result<Option<Row>, StoreError> {
                act(table, "seek", || {
                    let Some(handle) = $find(self, table)? else { return Ok(None) };
                    self.raw_seek(handle, key, direction)
                })
            }

            fn scan(
                &self,
                table: Table,
                range: KeyRange<'_>,
                direction: Direction,
                limit: usize,
            ) -> Result<Vec<Row>, StoreError> {
                let KeyRange { start, end } = range;
                act(table, "scan", || {
                    let Some(handle) = $find(self, table)? else { return Ok(Vec::new()) };
                    self.raw_scan(handle, Range { start, end, direction, limit })
                })
            }

            fn count(&self, table: Table) -> Result<u64, StoreError> {
                act(table, "count", || {
                    let Some(handle) = $find(self, table)? else { return Ok(0) };
                    Ok(self.raw_stat(handle)?.map_or(0, |stat| stat.entries() as u64))
                })
            }

            fn expect_readers(&self, threads: usize) {
                $expect_readers(self, threads);
            }
        }
    };
}

kv_read!(ReadTxn, |txn: &ReadTxn, table| txn.inner().state_table(table), ReadTxn::expect_readers);
// One thread has it.
kv_read!(WriteTxn, WriteTxn::existing_state_table, |_: &WriteTxn, _| ());

impl KvWrite for WriteTxn {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        act(table, "put", || {
            let handle = self.state_table(table)?;
            self.raw_put(handle, key, value)
        })
    }

    fn append(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        act(table, "append", || {
            let handle = self.state_table(table)?;
            self.raw_append(handle, key, value)
        })
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, StoreError> {
        act(table, "delete", || match self.existing_state_table(table)? {
            Some(handle) => self.raw_delete(handle, key),
            None => Ok(false),
        })
    }

    fn clear(&mut self, table: Table) -> Result<(), StoreError> {
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
        (*self).commit().map_err(|e| StoreError::new("commit of state", e))
    }
}

/// Runs `work`; its error says what was attempted on which table.
#[inline]
fn act<T>(
    table: Table,
    action: &str,
    work: impl FnOnce() -> Result<T, DbError>,
) -> Result<T, StoreError> {
    work().map_err(|e| failed(table, action, e))
}

#[cold]
fn failed(table: Table, action: &str, error: DbError) -> StoreError {
    StoreError::new(format!("{action} in state table {}", table.name), error)
}
