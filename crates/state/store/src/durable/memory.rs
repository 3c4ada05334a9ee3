//! A [`KvStore`] in memory, for tests and temporary stores. It has MDBX's isolation and atomicity:
//! snapshots do not change, and an uncommitted transaction leaves nothing.

use crate::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
use alloy_primitives::Bytes;
use parking_lot::{Mutex, MutexGuard};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError, TableRow};
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

type MemoryRows = BTreeMap<Bytes, Bytes>;

#[derive(Clone, Debug, Default)]
struct MemoryTables(BTreeMap<RowTable, Arc<MemoryRows>>);

/// A transactional key-value store in memory. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    committed: Arc<Mutex<Arc<MemoryTables>>>,
    writer: Arc<Mutex<()>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl KvStore for MemoryStore {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        Ok(self.committed.lock().clone())
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        let guard = self.writer.lock();
        let tables = MemoryTables::clone(&self.committed.lock());
        Ok(Box::new(MemoryTxn { store: self, tables, _guard: guard }))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        let tables = self.committed.lock().clone();
        let rows = tables.0.values().flat_map(|rows| rows.iter());
        Ok(rows.map(|(key, value)| (key.len() + value.len()) as u64).sum())
    }
}

impl KvRead for MemoryTables {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.0.get(&table).and_then(|rows| rows.get(key).cloned()))
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        let Some(rows) = self.0.get(&table) else { return Ok(None) };
        let row = match (direction, key) {
            (ScanDirection::Forward, key) => rows
                .range::<[u8], _>((Bound::Included(key.unwrap_or(&[])), Bound::Unbounded))
                .next(),
            (ScanDirection::Backward, Some(key)) => {
                rows.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
            }
            (ScanDirection::Backward, None) => rows.iter().next_back(),
        };
        Ok(row.map(|(key, value)| (key.clone(), value.clone())))
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        let Some(rows) = self.0.get(&table) else { return Ok(Vec::new()) };
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(Vec::new());
        }
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = rows.range::<[u8], _>((Bound::Included(range.start), end));
        let own = |(key, value): (&Bytes, &Bytes)| (key.clone(), value.clone());
        Ok(match direction {
            ScanDirection::Forward => rows.take(limit).map(own).collect(),
            ScanDirection::Backward => rows.rev().take(limit).map(own).collect(),
        })
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        Ok(self.0.get(&table).map_or(0, |rows| rows.len() as u64))
    }
}

struct MemoryTxn<'a> {
    store: &'a MemoryStore,
    tables: MemoryTables,
    _guard: MutexGuard<'a, ()>,
}

impl MemoryTxn<'_> {
    fn rows(&mut self, table: RowTable) -> &mut MemoryRows {
        Arc::make_mut(self.tables.0.entry(table).or_default())
    }
}

impl KvRead for MemoryTxn<'_> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.tables.get(table, key)
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        self.tables.seek(table, key, direction)
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        self.tables.scan(table, range, direction, limit)
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        self.tables.count(table)
    }
}

impl KvWrite for MemoryTxn<'_> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.rows(table).insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        Ok(())
    }

    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if self.rows(table).last_key_value().is_some_and(|(last, _)| last[..] >= *key) {
            return Err(StoreError::new(
                format!("appending to table {}", table.name),
                "key does not sort after the last one",
            ));
        }
        self.put(table, key, value)
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.rows(table).remove(key).is_some())
    }

    fn clear(&mut self, table: RowTable) -> Result<(), StoreError> {
        self.rows(table).clear();
        Ok(())
    }
}

impl KvTxn for MemoryTxn<'_> {
    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        *self.store.committed.lock() = Arc::new(self.tables);
        Ok(())
    }
}
