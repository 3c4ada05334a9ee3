//! [`MemoryView`]: the rows of one state in memory, for tests of a backend without a store.

use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use retrie_state::{
    BulkSink, BulkSorter, KeyRange, NodeRead, NodeWrite, RowScan, RowTable, ScanDirection,
    SortedRecords, StateError,
};
use std::{collections::BTreeMap, sync::Arc};

/// Rows by key.
pub type TableRows = BTreeMap<Vec<u8>, Bytes>;

/// What was read from and written to one table of a [`MemoryView`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewCounts {
    /// Rows that `get` was asked for.
    pub gets: u64,
    /// Range reads.
    pub scans: u64,
    /// Rows written or deleted, but for those that a load adds in order.
    pub writes: u64,
}

/// Rows in memory. It insists on right previous values, and on the order of a bulk load. Views are
/// equal if their tables are; a clone counts from zero.
#[derive(Debug, Default)]
pub struct MemoryView {
    /// The rows of each table.
    pub tables: BTreeMap<RowTable, TableRows>,
    /// Whether previous values may be wrong, as they are for damaged rows.
    pub lenient: bool,
    /// The codes that a bulk load finds.
    pub codes: Arc<BTreeMap<B256, Bytes>>,
    counts: Mutex<BTreeMap<RowTable, ViewCounts>>,
}

impl Clone for MemoryView {
    fn clone(&self) -> Self {
        let Self { tables, lenient, codes, .. } = self;
        let (tables, codes) = (tables.clone(), codes.clone());
        Self { tables, lenient: *lenient, codes, counts: Mutex::default() }
    }
}

impl PartialEq for MemoryView {
    fn eq(&self, other: &Self) -> bool {
        self.tables == other.tables
    }
}

impl MemoryView {
    /// Number of rows in all tables.
    pub fn rows(&self) -> usize {
        self.tables.values().map(BTreeMap::len).sum()
    }

    /// The tables that are not empty.
    pub fn filled(&self) -> BTreeMap<RowTable, TableRows> {
        self.tables.clone().into_iter().filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// The counts of `table` so far.
    pub fn counts(&self, table: RowTable) -> ViewCounts {
        self.counts.lock().get(&table).copied().unwrap_or_default()
    }

    fn set(&mut self, table: RowTable, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        self.counts.get_mut().entry(table).or_default().writes += 1;
        let rows = self.tables.entry(table).or_default();
        match value {
            Some(value) => rows.insert(key.to_vec(), value),
            None => rows.remove(key),
        }
    }
}

impl NodeRead for MemoryView {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.counts.lock().entry(table).or_default().gets += 1;
        Ok(self.tables.get(&table).and_then(|rows| rows.get(key).cloned()))
    }

    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowScan<'a>, StateError> {
        self.counts.lock().entry(table).or_default().scans += 1;
        let is_empty = range.end.is_some_and(|end| end <= range.start);
        let Some(rows) = self.tables.get(&table).filter(|_| !is_empty) else {
            return Ok(Box::new(std::iter::empty()));
        };
        let start = range.start.to_vec();
        let rows = match range.end {
            Some(end) => rows.range(start..end.to_vec()),
            None => rows.range(start..),
        };
        let row = |(key, value): (&Vec<u8>, &Bytes)| Ok((key.clone().into(), value.clone()));
        Ok(match direction {
            ScanDirection::Forward => Box::new(rows.map(row)),
            ScanDirection::Backward => Box::new(rows.rev().map(row)),
        })
    }
}

impl NodeWrite for MemoryView {
    fn put(&mut self, table: RowTable, key: &[u8], value: Bytes) -> Result<(), StateError> {
        self.set(table, key, Some(value));
        Ok(())
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<(), StateError> {
        self.set(table, key, None);
        Ok(())
    }

    fn replace(
        &mut self,
        table: RowTable,
        key: &[u8],
        previous: Option<Bytes>,
        next: Option<Bytes>,
    ) -> Result<(), StateError> {
        let stored = self.set(table, key, next);
        let is_right = self.lenient || stored == previous;
        assert!(is_right, "previous value of {} {key:02x?}", table.name);
        Ok(())
    }

    fn publish_file(&mut self, _: &str) -> Result<(), StateError> {
        unreachable!("no files")
    }

    fn retire_file(&mut self, _: &str) -> Result<(), StateError> {
        unreachable!("no files")
    }

    fn as_read(&self) -> &dyn NodeRead {
        self
    }
}

impl BulkSink for MemoryView {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let rows = self.tables.entry(table).or_default();
        assert!(rows.last_key_value().is_none_or(|(last, _)| &last[..] < key), "out of order");
        rows.insert(key.to_vec(), Bytes::copy_from_slice(value));
        Ok(())
    }

    fn put_unordered(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), StateError> {
        let stored = self.set(table, key, Some(Bytes::copy_from_slice(value)));
        assert!(stored.is_none_or(|stored| stored[..] == *value), "two values of {key:02x?}");
        Ok(())
    }

    fn sorter(&self) -> Box<dyn BulkSorter> {
        Box::<MemorySorter>::default()
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.codes.get(hash).cloned())
    }
}

/// Sorts records in memory.
#[derive(Debug, Default)]
struct MemorySorter(BTreeMap<Vec<u8>, Vec<u8>>);

impl BulkSorter for MemorySorter {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let before = self.0.insert(key.to_vec(), value.to_vec());
        assert!(before.is_none_or(|before| before == value), "two values of {key:02x?}");
        Ok(())
    }

    fn sorted(&mut self) -> Result<SortedRecords<'_>, StateError> {
        Ok(Box::new(self.0.iter().map(|(key, value)| Ok((key.clone(), value.clone())))))
    }
}
