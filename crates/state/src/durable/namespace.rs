//! A second state in the same store: the referee beside the backend under test.

use crate::{
    Direction, KeyRange, KvRead, KvStore, KvTxn, KvWrite, Row, Snapshot, StoreError, Table,
};
use alloy_primitives::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// Tables of one state under names of their own, so that two states share one [`KvStore`] and one
/// transaction.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// By the id of the original.
    tables: Arc<BTreeMap<u8, Table>>,
}

impl Namespace {
    /// Renames `tables` by a prefix and gives them the ids `first_id..`, which must be free in the
    /// store.
    ///
    /// The names live as long as the program: make a namespace once.
    ///
    /// # Panics
    /// When the ids do not suffice.
    pub fn new(prefix: &str, first_id: u8, tables: &[Table]) -> Self {
        let renamed = |(n, table): (usize, &Table)| {
            let name = Box::leak(format!("{prefix}{}", table.name).into_boxed_str());
            let id = usize::from(first_id) + n;
            assert!(id < usize::from(Table::FRAMEWORK), "no table ids left for a namespace");
            (table.id, Table { id: id as u8, name })
        };
        Self { tables: Arc::new(tables.iter().enumerate().map(renamed).collect()) }
    }

    /// The tables under their new names, for the store to create.
    pub fn tables(&self) -> Vec<Table> {
        self.tables.values().copied().collect()
    }

    /// The store as the second state sees it.
    pub fn store(&self, kv: Arc<dyn KvStore>) -> Arc<dyn KvStore> {
        Arc::new(Named { inner: kv, names: self.clone() })
    }

    /// An open write transaction as the second state sees it.
    pub fn txn<'a>(&self, txn: &'a mut dyn KvWrite) -> impl KvWrite + use<'a> {
        Named { inner: txn, names: self.clone() }
    }

    fn get(&self, table: Table) -> Result<Table, StoreError> {
        self.tables.get(&table.id).copied().ok_or_else(|| {
            StoreError::new(format!("finding table {}", table.name), "it is not in this namespace")
        })
    }
}

struct Named<T> {
    inner: T,
    names: Namespace,
}

impl KvStore for Named<Arc<dyn KvStore>> {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(Arc::new(Named { inner: self.inner.snapshot()?, names: self.names.clone() }))
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        Ok(Box::new(Named { inner: self.inner.begin_write()?, names: self.names.clone() }))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.inner.disk_bytes()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.inner.sync()
    }
}

impl<T: std::ops::Deref<Target: KvRead>> KvRead for Named<T> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(self.names.get(table)?, key)
    }

    fn seek(
        &self,
        table: Table,
        key: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Row>, StoreError> {
        self.inner.seek(self.names.get(table)?, key, direction)
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        self.inner.scan(self.names.get(table)?, range, direction, limit)
    }

    fn count(&self, table: Table) -> Result<u64, StoreError> {
        self.inner.count(self.names.get(table)?)
    }

    fn expect_readers(&self, threads: usize) {
        self.inner.expect_readers(threads);
    }
}

impl<T: std::ops::DerefMut<Target: KvWrite>> KvWrite for Named<T> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.put(self.names.get(table)?, key, value)
    }

    fn append(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.append(self.names.get(table)?, key, value)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.delete(self.names.get(table)?, key)
    }

    fn clear(&mut self, table: Table) -> Result<(), StoreError> {
        self.inner.clear(self.names.get(table)?)
    }
}

impl KvTxn for Named<Box<dyn KvTxn + '_>> {
    fn is_awaited(&self) -> bool {
        self.inner.is_awaited()
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.inner.commit()
    }
}
