//! The one write transaction.
//!
//! MDBX binds it to the thread that began it, and so does the type ([`WriteTxn`] is not `Send`).
//! MDBX has its own queue of writers, but that favours a thread that comes back quickly. So a gate
//! in front of it serves threads strictly in order of arrival: a background job that writes in a
//! loop cannot starve a commit. (The MDBX crate's synchronised transactions, which may move between
//! threads, are not used: they panic when a commit fails, for example on a full disk.)

use crate::{
    HistoryKept, ReadError, Result, StorageError, TableError, checksum,
    env::{DatabaseInner, taken},
    error::show_key,
    raw::{self, RawRead, RowRange, TableHandle},
    snapshot::thread_number,
};
use alloy_primitives::Bytes;
use mdbx::{DatabaseFlags, MdbxError, Stat, WriteFlags, tx::aliases::RwTxUnsync};
use parking_lot::{FairMutex, RawFairMutex, lock_api::ArcMutexGuard};
use retrie_state::{RowTable, ScanDirection, TableRow};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The open write transaction: reads (which see its writes) and writes of chain and state. Dropping
/// it aborts.
pub struct WriteTxn {
    // Dropped first: the transaction ends before the next writer may begin, and before the
    // environment may close.
    tx: RwTxUnsync,
    _pass: WriterPass,
    /// Tables that this transaction has created, not yet visible to others.
    created: Vec<(RowTable, TableHandle)>,
    /// The row being written.
    row: Vec<u8>,
    /// The first write that failed.
    failed: Option<String>,
    inner: Arc<DatabaseInner>,
}

/// Lets one writer in at a time, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct WriterGate {
    queue: Arc<FairMutex<()>>,
    /// Number of the thread inside, plus one.
    inside: Arc<AtomicUsize>,
    /// How many threads wait.
    waiting: AtomicUsize,
}

/// The right to write.
pub(crate) struct WriterPass {
    inside: Arc<AtomicUsize>,
    _turn: ArcMutexGuard<RawFairMutex, ()>,
}

impl WriterGate {
    /// Waits for this thread's turn; `None` if this thread is inside already and would wait for
    /// itself.
    pub(crate) fn enter(&self) -> Option<WriterPass> {
        let me = thread_number() + 1;
        if self.inside.load(Ordering::Relaxed) == me {
            return None;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let turn = self.queue.lock_arc();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.inside.store(me, Ordering::Relaxed);
        Some(WriterPass { inside: Arc::clone(&self.inside), _turn: turn })
    }
}

impl Drop for WriterPass {
    fn drop(&mut self) {
        self.inside.store(0, Ordering::Relaxed);
    }
}

impl WriteTxn {
    /// Opens the transaction after all writers that came before.
    pub(crate) fn begin(inner: Arc<DatabaseInner>) -> Result<Self, StorageError> {
        let path = || inner.context.path.clone();
        let gate = inner.gate.as_ref().ok_or_else(|| StorageError::ReadOnly { path: path() })?;
        let pass = gate.enter().ok_or_else(|| StorageError::Nested { path: path() })?;
        let tx = inner
            .env
            .begin_rw_unsync()
            .map_err(|e| inner.error("opening a write transaction", e))?;
        Ok(Self { tx, _pass: pass, created: Vec::new(), row: Vec::new(), failed: None, inner })
    }

    /// Whether another thread waits for this transaction to end.
    pub(crate) fn is_awaited(&self) -> bool {
        self.inner.gate.as_ref().is_some_and(|gate| gate.waiting.load(Ordering::Relaxed) > 0)
    }

    /// Which parts of old blocks are kept.
    pub(crate) fn kept(&self) -> HistoryKept {
        self.inner.kept
    }

    /// Commits all writes atomically; they are durable (with
    /// [`SyncMode::NoSync`](crate::SyncMode::NoSync): visible) when it returns. On failure none of
    /// them is kept.
    pub fn commit(self) -> Result<(), StorageError> {
        // If the commit fails, these are dropped in reverse order: the transaction first.
        let Self { inner, _pass, created, failed, tx, .. } = self;
        if let Some(reason) = failed {
            return Err(StorageError::Aborted { reason });
        }
        let commit = || tx.commit().map_err(|e| inner.error("committing", e));
        inner.tables.commit_created(&created, commit)
    }

    pub(crate) fn raw_put(&mut self, table: TableHandle, key: &[u8], value: &[u8]) -> Result<()> {
        self.store(table, key, value, WriteFlags::UPSERT)
    }

    /// Puts a row as stored on disk, including its checksum.
    #[cfg(test)]
    pub(crate) fn put_stored(&mut self, table: TableHandle, key: &[u8], row: &[u8]) {
        self.tx.put(table.dbi().unwrap(), key, row, WriteFlags::UPSERT).unwrap();
    }

    /// As `raw_put`, faster, if `key` sorts after all others; otherwise [`TableError::OutOfOrder`].
    pub(crate) fn raw_append(
        &mut self,
        table: TableHandle,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.store(table, key, value, WriteFlags::APPEND | WriteFlags::NO_OVERWRITE)
    }

    fn store(
        &mut self,
        table: TableHandle,
        key: &[u8],
        value: &[u8],
        flags: WriteFlags,
    ) -> Result<()> {
        self.inner.check_key(table, key)?;
        self.inner.check_value(table, key, value)?;
        checksum::seal(table, key, value, &mut self.row);
        let stored = table.dbi().and_then(|db| self.tx.put(db, key, &self.row, flags));
        match stored {
            // MDBX has not changed anything, so the transaction is still valid.
            Err(MdbxError::KeyMismatch | MdbxError::KeyExist) => {
                let (table, key) = (table.name.to_owned(), show_key(key));
                Err(TableError::OutOfOrder { table, key }.into())
            }
            stored => Ok(self.written("writing", table.name, key, stored)?),
        }
    }

    pub(crate) fn raw_delete(&mut self, table: TableHandle, key: &[u8]) -> Result<bool> {
        self.inner.check_key(table, key)?;
        let deleted = table.dbi().and_then(|db| self.tx.del(db, key, None));
        Ok(self.written("deleting from", table.name, key, deleted)?)
    }

    pub(crate) fn raw_clear(&mut self, table: TableHandle) -> Result<()> {
        let cleared = table.dbi().and_then(|db| self.tx.clear_db(db));
        Ok(self.written("clearing", table.name, &[], cleared)?)
    }

    /// The handle of a state table, which is created if it does not exist.
    pub(crate) fn state_table(&mut self, table: RowTable) -> Result<TableHandle> {
        if let Some(handle) = self.existing_state_table(table)? {
            return Ok(handle);
        }
        let name = self.inner.tables.disk_name(table)?;
        let db = self.tx.create_db(Some(&name), DatabaseFlags::empty());
        let db = self.written("creating", table.name, &[], db)?;
        let handle = TableHandle::new(table.name, &name, Some(db));
        self.created.push((table, handle));
        Ok(handle)
    }

    /// The handle of a state table, if it exists.
    pub(crate) fn existing_state_table(
        &self,
        table: RowTable,
    ) -> Result<Option<TableHandle>, ReadError> {
        let created = self.created.iter().find(|(held, _)| held.id == table.id);
        match created {
            Some((held, handle)) if held.name == table.name => Ok(Some(*handle)),
            Some((held, _)) => Err(taken(table, held.name).into()),
            None => self.inner.state_table(table),
        }
    }

    fn written<T>(
        &mut self,
        action: &str,
        table: &str,
        key: &[u8],
        outcome: Result<T, MdbxError>,
    ) -> Result<T, StorageError> {
        outcome.map_err(|e| {
            let action = format!("{action} table {table} at {}", show_key(key));
            let error = self.inner.error(action, e);
            self.failed.get_or_insert_with(|| error.to_string());
            error
        })
    }

    fn read<T>(
        &self,
        table: TableHandle,
        key: Option<&[u8]>,
        read: impl FnOnce(&RwTxUnsync) -> Result<T, MdbxError>,
    ) -> Result<T, ReadError> {
        if let Some(key) = key {
            self.inner.check_key(table, key)?;
        }
        read(&self.tx)
            .map_err(|e| self.inner.error(format!("reading table {}", table.name), e).into())
    }
}

impl RawRead for WriteTxn {
    fn inner(&self) -> &DatabaseInner {
        &self.inner
    }

    fn stored(&self, table: TableHandle, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.read(table, Some(key), |tx| raw::get(tx, table.db, key))
    }

    fn stored_seek(
        &self,
        table: TableHandle,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, ReadError> {
        self.read(table, key, |tx| raw::seek(tx, table.db, key, direction))
    }

    fn stored_scan(
        &self,
        table: TableHandle,
        range: RowRange<'_>,
    ) -> Result<Vec<TableRow>, ReadError> {
        self.inner.check_range(table, range)?;
        self.read(table, None, |tx| raw::scan(tx, table.db, range))
    }

    fn raw_stat(&self, table: TableHandle) -> Result<Option<Stat>, ReadError> {
        self.read(table, None, |tx| raw::stat(tx, table.db))
    }
}

impl fmt::Debug for WriteTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteTxn").field("failed", &self.failed).finish_non_exhaustive()
    }
}
