//! [`RowLayer`]: changed rows in memory, found by key and read in key order.

use indexmap::{IndexMap, map::Entry};
use retrie_state::{KeyRange, RowTable, ScanDirection};
use smallvec::SmallVec;
use std::{collections::BTreeSet, ops::Bound, sync::OnceLock};

/// A key of a row. Nearly all keys fit without a heap allocation.
pub(crate) type RowKey = SmallVec<[u8; 64]>;

/// Rows of several tables, in the order in which they were first written. Backends write in key
/// order, so neighbours share much of their keys.
#[derive(Debug)]
pub(crate) struct RowLayer<R> {
    tables: SmallVec<[(RowTable, LayerTable<R>); 4]>,
    len: usize,
}

#[derive(Debug)]
struct LayerTable<R> {
    rows: IndexMap<RowKey, R, hashbrown::DefaultHashBuilder>,
    /// Keys in order; built at the first range read and maintained from then on.
    sorted: OnceLock<BTreeSet<RowKey>>,
}

impl<R> Default for RowLayer<R> {
    fn default() -> Self {
        Self { tables: SmallVec::new(), len: 0 }
    }
}

impl<R> RowLayer<R> {
    pub(crate) fn get(&self, table: RowTable, key: &[u8]) -> Option<&R> {
        self.table(table)?.rows.get(key)
    }

    pub(crate) fn get_mut(&mut self, table: RowTable, key: &[u8]) -> Option<&mut R> {
        self.table_mut(table).rows.get_mut(key)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    fn table(&self, table: RowTable) -> Option<&LayerTable<R>> {
        self.tables.iter().find(|(t, _)| t.id == table.id).map(|(_, rows)| rows)
    }

    fn table_mut(&mut self, table: RowTable) -> &mut LayerTable<R> {
        let at = self.tables.iter().position(|(t, _)| t.id == table.id).unwrap_or_else(|| {
            let rows = LayerTable { rows: IndexMap::default(), sorted: OnceLock::new() };
            self.tables.push((table, rows));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }

    /// Sets a row; returns what the layer had.
    pub(crate) fn insert(&mut self, table: RowTable, key: RowKey, row: R) -> Option<R> {
        let rows = self.table_mut(table);
        if let Some(sorted) = rows.sorted.get_mut() {
            sorted.insert(key.clone());
        }
        let old = rows.rows.insert(key, row);
        self.len += usize::from(old.is_none());
        old
    }

    /// Sets a row, or combines it with what the layer has.
    pub(crate) fn merge(
        &mut self,
        table: RowTable,
        key: RowKey,
        row: R,
        combine: impl FnOnce(&mut R, R),
    ) {
        let rows = self.table_mut(table);
        match rows.rows.entry(key) {
            Entry::Occupied(entry) => combine(entry.into_mut(), row),
            Entry::Vacant(entry) => {
                if let Some(sorted) = rows.sorted.get_mut() {
                    sorted.insert(entry.key().clone());
                }
                entry.insert(row);
                self.len += 1;
            }
        }
    }

    /// Keeps the rows for which `keep` is true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&R) -> bool) {
        self.len = 0;
        for (_, rows) in &mut self.tables {
            let before = rows.rows.len();
            rows.rows.retain(|_, row| keep(row));
            if rows.rows.len() < before {
                rows.sorted.take();
            }
            self.len += rows.rows.len();
        }
    }

    /// All rows, table by table.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RowTable, &RowKey, &R)> {
        self.tables
            .iter()
            .flat_map(|(table, rows)| rows.rows.iter().map(|(key, row)| (*table, key, row)))
    }

    /// The rows of one table.
    pub(crate) fn rows(&self, table: RowTable) -> impl Iterator<Item = (&RowKey, &R)> {
        self.table(table).into_iter().flat_map(|rows| &rows.rows)
    }

    /// The rows of a range that is not empty, in `direction`.
    pub(crate) fn range<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Box<dyn Iterator<Item = (&'a [u8], &'a R)> + 'a> {
        let Some(LayerTable { rows, sorted }) = self.table(table) else {
            return Box::new(std::iter::empty());
        };
        let sorted = sorted.get_or_init(|| rows.keys().cloned().collect());
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = sorted.range::<[u8], _>((Bound::Included(range.start), end));
        let row = |key: &'a RowKey| rows.get(&key[..]).map(|row| (&key[..], row));
        match direction {
            ScanDirection::Forward => Box::new(keys.filter_map(row)),
            ScanDirection::Backward => Box::new(keys.rev().filter_map(row)),
        }
    }

    /// About how many bytes of memory it takes; `values` gives those that a row holds.
    pub(crate) fn bytes(&self, values: impl Fn(&R) -> usize) -> usize {
        let row = |(_, key, row): (RowTable, &RowKey, &R)| {
            let beyond = if key.spilled() { key.len() } else { 0 };
            size_of::<(RowKey, R)>() + beyond + values(row)
        };
        self.iter().map(row).sum()
    }
}
