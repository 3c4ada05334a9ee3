//! A store that fails from a chosen write on.

use alloy_primitives::{B256, Bytes};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError, TableRow};
use retrie_state_store::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

/// Decides when a [`FaultStore`] dies: at its n-th write (rows put, appended or deleted, tables
/// cleared, transactions committed, on all threads). From then on every write fails.
#[derive(Debug)]
pub struct FaultPlan {
    fatal: u64,
    survives: bool,
    writes: AtomicU64,
    dead: AtomicBool,
}

impl FaultPlan {
    /// Dies at write `fatal`, counted from 1; never if it is 0. If that write is a commit,
    /// `survives` says whether the commit becomes durable before the caller gets the error.
    pub fn new(fatal: u64, survives: bool) -> Arc<Self> {
        Arc::new(Self { fatal, survives, writes: AtomicU64::new(0), dead: AtomicBool::new(false) })
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(SeqCst)
    }

    /// Whether the fatal write has happened.
    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// Counts a write; true if it is the fatal write.
    fn strike(&self, action: &str) -> Result<bool, StoreError> {
        let dead = || StoreError::new(action, "the store was killed by the test");
        if self.is_dead() {
            return Err(dead());
        }
        let write = self.writes.fetch_add(1, SeqCst) + 1;
        let fatal = write == self.fatal;
        if fatal {
            self.dead.store(true, SeqCst);
        }
        Ok(fatal)
    }

    fn write(&self, action: &str) -> Result<(), StoreError> {
        if self.strike(action)? {
            return Err(StoreError::new(action, "killed at this write by the test"));
        }
        Ok(())
    }
}

/// A [`KvStore`] that forwards all calls until its [`FaultPlan`] makes it die. It leaves what a
/// killed process leaves: the commits before, and nothing of the open transaction.
#[derive(Clone)]
pub struct FaultStore {
    inner: Arc<dyn KvStore>,
    faults: Arc<FaultPlan>,
}

impl std::fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultStore").field("faults", &self.faults).finish_non_exhaustive()
    }
}

impl FaultStore {
    /// Wraps `inner`, with `faults`.
    pub const fn new(inner: Arc<dyn KvStore>, faults: Arc<FaultPlan>) -> Self {
        Self { inner, faults }
    }
}

impl KvStore for FaultStore {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        self.inner.snapshot()
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        let inner = self.inner.begin_write()?;
        Ok(Box::new(FaultTxn { inner, faults: &self.faults }))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.inner.disk_bytes()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.inner.sync()
    }
}

struct FaultTxn<'a> {
    inner: Box<dyn KvTxn + 'a>,
    faults: &'a FaultPlan,
}

impl KvRead for FaultTxn<'_> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(table, key)
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        self.inner.seek(table, key, direction)
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        self.inner.scan(table, range, direction, limit)
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        self.inner.count(table)
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StoreError> {
        self.inner.code(hash)
    }
}

impl KvWrite for FaultTxn<'_> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.faults.write("put")?;
        self.inner.put(table, key, value)
    }

    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.faults.write("append")?;
        self.inner.append(table, key, value)
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError> {
        self.faults.write("delete")?;
        self.inner.delete(table, key)
    }

    fn clear(&mut self, table: RowTable) -> Result<(), StoreError> {
        self.faults.write("clear")?;
        self.inner.clear(table)
    }
}

impl KvTxn for FaultTxn<'_> {
    fn is_awaited(&self) -> bool {
        self.inner.is_awaited()
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        let fatal = self.faults.strike("commit")?;
        if !fatal {
            return self.inner.commit();
        }
        if self.faults.survives {
            self.inner.commit()?;
        }
        Err(StoreError::new("commit", "killed at this commit by the test"))
    }
}
