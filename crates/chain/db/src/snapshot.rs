//! Snapshots that several threads can read at once.

use crate::{
    ReadError, Result,
    env::DatabaseInner,
    error::show_key,
    raw::{self, RawRead, RowRange, TableHandle},
};
use alloy_primitives::Bytes;
use mdbx::{MdbxError, Stat, tx::aliases::RoTxUnsync};
use parking_lot::Mutex;
use retrie_state::{ScanDirection, TableRow};
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// Maximum number of MDBX transactions of one snapshot.
const MAX_TRANSACTIONS: usize = 32;

/// A consistent view of the last commit: chain reads through [`ChainRead`](crate::ChainRead), state
/// reads through [`KvRead`](retrie_state_store::KvRead).
///
/// An MDBX transaction serves one thread at a time. The snapshot starts with one transaction. A
/// thread that finds all of them busy opens another one, which is possible as long as nothing has
/// been committed since. After a commit it waits for its turn, which takes a fraction of a
/// microsecond.
pub struct ReadTxn {
    transactions: [OnceLock<Mutex<RoTxUnsync>>; MAX_TRANSACTIONS],
    open: AtomicUsize,
    /// No more transactions can be opened on this snapshot.
    full: AtomicBool,
    opening: Mutex<()>,
    id: u64,
    // Last, so that the environment outlives its transactions.
    inner: Arc<DatabaseInner>,
}

impl ReadTxn {
    pub(crate) fn begin(inner: Arc<DatabaseInner>) -> Result<Self, ReadError> {
        let begin = || {
            let tx = inner.env.begin_ro_unsync()?;
            let id = tx.id()?;
            Ok((tx, id))
        };
        let (tx, id) = begin().map_err(|e| inner.error("opening a snapshot", e))?;
        let transactions = [const { OnceLock::new() }; MAX_TRANSACTIONS];
        // A fresh cell is empty, so this cannot fail.
        let _ = transactions[0].set(Mutex::new(tx));
        Ok(Self {
            transactions,
            open: AtomicUsize::new(1),
            full: AtomicBool::new(false),
            opening: Mutex::new(()),
            id,
            inner,
        })
    }

    /// The datadir.
    pub fn datadir(&self) -> &std::path::Path {
        &self.inner.context.path
    }

    /// Runs `read` on a transaction that no other thread uses.
    fn with<T>(&self, read: impl FnOnce(&RoTxUnsync) -> T) -> T {
        let open = self.open.load(Ordering::Acquire);
        let first = thread_number() % open;
        for i in 0..open {
            if let Some(tx) = self.slot((first + i) % open).try_lock() {
                return read(&tx);
            }
        }
        if let Some(slot) = self.grow() {
            return read(&slot.lock());
        }
        read(&self.slot(first).lock())
    }

    /// Opens a transaction for each of `threads` threads beside the first transaction, as far as
    /// possible.
    pub(crate) fn expect_readers(&self, threads: usize) {
        while self.open.load(Ordering::Acquire) <= threads && self.grow().is_some() {}
    }

    fn slot(&self, index: usize) -> &Mutex<RoTxUnsync> {
        // `open` counts the filled cells.
        self.transactions[index].get().expect("cells below `open` are filled before it is raised")
    }

    /// Opens another transaction of this snapshot, if possible.
    #[cold]
    fn grow(&self) -> Option<&Mutex<RoTxUnsync>> {
        if self.full.load(Ordering::Relaxed) {
            return None;
        }
        let _opening = self.opening.try_lock()?;
        let next = self.open.load(Ordering::Acquire);
        let tx = self.inner.env.begin_ro_unsync().ok();
        match tx {
            Some(tx) if next < MAX_TRANSACTIONS && tx.id() == Ok(self.id) => {
                let slot = self.transactions[next].get_or_init(|| Mutex::new(tx));
                self.open.store(next + 1, Ordering::Release);
                Some(slot)
            }
            _ => {
                self.full.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Passes all rows of a table in order to `row`, unchecked, until it returns false.
    pub(crate) fn walk(
        &self,
        table: TableHandle,
        row: impl FnMut(Vec<u8>, Vec<u8>) -> bool,
    ) -> Result<(), MdbxError> {
        self.with(|tx| raw::walk(tx, table.db, row))
    }

    fn read<T>(
        &self,
        table: TableHandle,
        key: Option<&[u8]>,
        read: impl FnOnce(&RoTxUnsync) -> Result<T, MdbxError>,
    ) -> Result<T, ReadError> {
        if let Some(key) = key {
            self.inner.check_key(table, key)?;
        }
        self.with(read).map_err(|e| {
            let at = key.map(|key| format!(" at {}", show_key(key))).unwrap_or_default();
            self.inner.error(format!("reading table {}{at}", table.name), e).into()
        })
    }
}

impl RawRead for ReadTxn {
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

impl fmt::Debug for ReadTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTxn").field("snapshot", &self.id).finish_non_exhaustive()
    }
}

/// A small number per thread, so that threads start their search at different transactions.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatabaseEnv, OpenOptions};
    use retrie_state::RowTable;
    use retrie_state_store::KvRead;

    const A: RowTable = RowTable::new(1, "A");

    #[test]
    fn busy_snapshot_opens_more_transactions_until_something_is_committed() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let commit = |value: &[u8]| {
            use retrie_state_store::KvWrite;
            let mut txn = db.begin_write().unwrap();
            txn.put(A, b"k", value).unwrap();
            txn.commit().unwrap();
        };
        commit(b"1");
        let snapshot = db.begin_read().unwrap();
        let read = || snapshot.get(A, b"k").unwrap().unwrap();
        let open = || snapshot.open.load(Ordering::Relaxed);
        assert_eq!((&read()[..], open()), (&b"1"[..], 1));
        let first = snapshot.slot(0).lock();
        assert_eq!((&read()[..], open()), (&b"1"[..], 2));
        assert_eq!((&read()[..], open()), (&b"1"[..], 2));
        commit(b"2");
        let second = snapshot.slot(1).lock();
        std::thread::scope(|scope| {
            // A new transaction would show another state, so this read waits.
            let waiting = scope.spawn(read);
            while !snapshot.full.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            drop((first, second));
            assert_eq!(waiting.join().unwrap()[..], b"1"[..]);
        });
        assert_eq!(open(), 2);
    }
}
