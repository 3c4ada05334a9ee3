//! A second state in the same store, such as a reference backend beside the backend under test.

use crate::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
use alloy_primitives::{B256, Bytes};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError, TableRow};
use std::{collections::BTreeMap, sync::Arc};

/// Renames the tables of one state, so that two states share one [`KvStore`] and one transaction.
#[derive(Clone, Debug)]
pub struct TableNamespace {
    /// By the id of the original.
    tables: Arc<BTreeMap<u8, RowTable>>,
}

impl TableNamespace {
    /// Renames `tables` by a prefix and gives them the ids `first_id..`, which must be free in the
    /// store.
    ///
    /// The names are leaked, so make a namespace once.
    ///
    /// # Panics
    /// When the ids do not suffice.
    pub fn new(prefix: &str, first_id: u8, tables: &[RowTable]) -> Self {
        let renamed = |(n, table): (usize, &RowTable)| {
            let name = Box::leak(format!("{prefix}{}", table.name).into_boxed_str());
            let id = usize::from(first_id) + n;
            assert!(id < usize::from(RowTable::FRAMEWORK), "no table ids left for a namespace");
            (table.id, RowTable { id: id as u8, name })
        };
        Self { tables: Arc::new(tables.iter().enumerate().map(renamed).collect()) }
    }

    /// The tables under their new names, for the store to create.
    pub fn tables(&self) -> Vec<RowTable> {
        self.tables.values().copied().collect()
    }

    /// The store as the second state sees it.
    pub fn store(&self, kv: Arc<dyn KvStore>) -> Arc<dyn KvStore> {
        Arc::new(NamespacedStore { inner: kv, names: self.clone() })
    }

    /// An open write transaction as the second state sees it.
    pub fn txn<'a>(&self, txn: &'a mut dyn KvWrite) -> impl KvWrite + use<'a> {
        NamespacedStore { inner: txn, names: self.clone() }
    }

    fn get(&self, table: RowTable) -> Result<RowTable, StoreError> {
        self.tables.get(&table.id).copied().ok_or_else(|| {
            StoreError::new(format!("finding table {}", table.name), "it is not in this namespace")
        })
    }
}

struct NamespacedStore<T> {
    inner: T,
    names: TableNamespace,
}

impl KvStore for NamespacedStore<Arc<dyn KvStore>> {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        Ok(Arc::new(NamespacedStore { inner: self.inner.snapshot()?, names: self.names.clone() }))
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        Ok(Box::new(NamespacedStore {
            inner: self.inner.begin_write()?,
            names: self.names.clone(),
        }))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.inner.disk_bytes()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.inner.sync()
    }
}

impl<T: std::ops::Deref<Target: KvRead>> KvRead for NamespacedStore<T> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(self.names.get(table)?, key)
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        self.inner.seek(self.names.get(table)?, key, direction)
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        self.inner.scan(self.names.get(table)?, range, direction, limit)
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        self.inner.count(self.names.get(table)?)
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StoreError> {
        self.inner.code(hash)
    }

    fn expect_readers(&self, threads: usize) {
        self.inner.expect_readers(threads);
    }
}

impl<T: std::ops::DerefMut<Target: KvWrite>> KvWrite for NamespacedStore<T> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.put(self.names.get(table)?, key, value)
    }

    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.append(self.names.get(table)?, key, value)
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.delete(self.names.get(table)?, key)
    }

    fn clear(&mut self, table: RowTable) -> Result<(), StoreError> {
        self.inner.clear(self.names.get(table)?)
    }
}

impl KvTxn for NamespacedStore<Box<dyn KvTxn + '_>> {
    fn is_awaited(&self) -> bool {
        self.inner.is_awaited()
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.inner.commit()
    }
}
