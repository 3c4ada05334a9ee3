//! The overlay: writes in memory over a durable state, so that proposing changes nothing on disk.
//!
//! A [`DiffLayer`] holds the writes of one block (or of several, merged). A [`LayerStack`] is a
//! chain of layers whose sizes fall geometrically, so that a read through n blocks visits O(log n)
//! layers. A [`RowView`] reads a stack over a durable state; a [`RowWriter`] adds the layer being
//! written.

use super::{
    counters::NodeCounters,
    journal::DurableRows,
    scan::{MergedScan, merge, scan},
};
use alloy_primitives::Bytes;
use hashbrown::{HashMap, hash_map::EntryRef};
use retrie_state::{
    KeyRange, NodeRead, NodeWrite, RowScan, RowTable, ScanDirection, StateError, StoreError,
};
use smallvec::SmallVec;
use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::{Arc, OnceLock},
};

/// A key of a row. Nearly all keys fit without a heap allocation.
pub(crate) type RowKey = SmallVec<[u8; 64]>;

/// Table of the names of the state's immutable files: key = file name, value empty.
pub(crate) const FILES: RowTable = RowTable::framework(0xf4, "Files");

/// Longest key of a row in bytes: within MDBX's limit at every page size we use. It is checked when
/// the row is written, as a fold cannot refuse a committed row.
const MAX_KEY: usize = 1024;

/// Refuses keys that the store underneath could not hold.
pub(crate) fn check_key(table: RowTable, key: &[u8]) -> Result<(), StateError> {
    if key.len() > MAX_KEY {
        let action = format!("writing a row of table {}", table.name);
        let what = format!("its key has {} bytes, at most {MAX_KEY} are possible", key.len());
        return Err(StoreError::new(action, what).into());
    }
    Ok(())
}

/// One written row.
#[derive(Clone, Debug)]
pub(crate) struct WrittenRow {
    /// Value below this layer; valid only in the layer of a single block with undo on.
    pub(crate) previous: Option<Bytes>,
    /// Value from this layer on; `None` = deleted.
    pub(crate) next: Option<Bytes>,
}

#[derive(Debug, Default)]
struct LayerTable {
    rows: HashMap<RowKey, WrittenRow>,
    /// Keys in order; built at the first range read and maintained from then on.
    sorted: OnceLock<BTreeSet<RowKey>>,
}

/// The writes of one block.
#[derive(Debug, Default)]
pub(crate) struct DiffLayer {
    tables: SmallVec<[(RowTable, LayerTable); 4]>,
    len: usize,
}

impl DiffLayer {
    pub(crate) fn get(&self, table: RowTable, key: &[u8]) -> Option<&WrittenRow> {
        self.tables.iter().find(|(t, _)| t.id == table.id)?.1.rows.get(key)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let row = |(_, key, row): (RowTable, &RowKey, &WrittenRow)| {
            let values = [&row.previous, &row.next].into_iter().flatten();
            let beyond = if key.spilled() { key.len() } else { 0 };
            size_of::<(RowKey, WrittenRow)>()
                + beyond
                + values.map(|value| value.len()).sum::<usize>()
        };
        self.iter().map(row).sum()
    }

    fn table_mut(&mut self, table: RowTable) -> &mut LayerTable {
        let at = self.tables.iter().position(|(t, _)| t.id == table.id).unwrap_or_else(|| {
            self.tables.push((table, LayerTable::default()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }

    /// Sets a row; calls `previous` only if this layer has not written the key yet.
    fn set(
        &mut self,
        table: RowTable,
        key: &[u8],
        next: Option<Bytes>,
        previous: impl FnOnce() -> Result<Option<Bytes>, StateError>,
    ) -> Result<(), StateError> {
        let slot = self.table_mut(table);
        match slot.rows.entry_ref(key) {
            EntryRef::Occupied(mut entry) => entry.get_mut().next = next,
            EntryRef::Vacant(entry) => {
                let previous = previous()?;
                let key = RowKey::from_slice(key);
                if let Some(sorted) = slot.sorted.get_mut() {
                    sorted.insert(key.clone());
                }
                entry.insert_with_key(key, WrittenRow { previous, next });
                self.len += 1;
            }
        }
        Ok(())
    }

    /// Sets a row without its previous value.
    pub(crate) fn overwrite(&mut self, table: RowTable, key: RowKey, next: Option<Bytes>) {
        let slot = self.table_mut(table);
        slot.sorted.take();
        if slot.rows.insert(key, WrittenRow { previous: None, next }).is_none() {
            self.len += 1;
        }
    }

    /// All rows, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RowTable, &RowKey, &WrittenRow)> {
        self.tables
            .iter()
            .flat_map(|(table, slot)| slot.rows.iter().map(|(key, row)| (*table, key, row)))
    }

    /// Calls `row` for each row of one table.
    pub(crate) fn for_table(&self, table: RowTable, mut row: impl FnMut(&RowKey, &Option<Bytes>)) {
        if let Some((_, slot)) = self.tables.iter().find(|(t, _)| t.id == table.id) {
            for (key, written) in &slot.rows {
                row(key, &written.next);
            }
        }
    }

    /// Drops rows whose value has not changed.
    fn drop_noops(&mut self) {
        let mut dropped = 0;
        for (_, slot) in &mut self.tables {
            let before = slot.rows.len();
            slot.rows.retain(|_, row| row.previous != row.next);
            dropped += before - slot.rows.len();
            if slot.rows.len() < before {
                slot.sorted.take();
            }
        }
        self.len -= dropped;
    }

    /// The net effect of `layers`, oldest first.
    pub(crate) fn merged(layers: &[Arc<Self>]) -> Self {
        let mut merged = Self::default();
        for layer in layers {
            for (table, key, row) in layer.iter() {
                merged.overwrite(table, key.clone(), row.next.clone());
            }
        }
        merged
    }

    /// The rows of a range that is not empty, in `direction`.
    pub(crate) fn range<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Box<dyn Iterator<Item = (&'a [u8], Option<Bytes>)> + 'a> {
        let Some((_, slot)) = self.tables.iter().find(|(t, _)| t.id == table.id) else {
            return Box::new(std::iter::empty());
        };
        let sorted = slot.sorted.get_or_init(|| slot.rows.keys().cloned().collect());
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = sorted.range::<[u8], _>((Bound::Included(range.start), end));
        let row = |key: &'a RowKey| {
            slot.rows.get(&key[..]).map(|written| (&key[..], written.next.clone()))
        };
        match direction {
            ScanDirection::Forward => Box::new(keys.filter_map(row)),
            ScanDirection::Backward => Box::new(keys.rev().filter_map(row)),
        }
    }
}

/// Layers, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerStack(Vec<Arc<DiffLayer>>);

impl LayerStack {
    /// The stack with `layer` on top; neighbours of similar size are merged.
    pub(crate) fn pushed(&self, layer: Arc<DiffLayer>) -> Self {
        let mut layers = self.0.clone();
        layers.push(layer);
        while let [.., below, top] = &layers[..] {
            if below.len() > 2 * top.len().max(32) {
                break;
            }
            let merged = Arc::new(DiffLayer::merged(&[below.clone(), top.clone()]));
            layers.truncate(layers.len() - 2);
            layers.push(merged);
        }
        Self(layers)
    }
}

/// The state of one block, for reading.
#[derive(Clone)]
pub(crate) struct RowView {
    /// Proposals above the durable state.
    pub(crate) stack: LayerStack,
    /// Undo layers of the durable blocks above the viewed block, oldest first.
    pub(crate) reverse: Vec<Arc<DiffLayer>>,
    /// The durable tip when the view was taken.
    pub(crate) durable: Arc<DurableRows>,
    /// Counts the reads.
    pub(crate) counters: Arc<NodeCounters>,
    /// Whether the time of reads counts too; false for prefetches, which no thread waits for.
    pub(crate) is_timed: bool,
}

impl RowView {
    /// The layers over the durable state, newest first.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &DiffLayer> {
        self.stack.0.iter().rev().chain(&self.reverse).map(|layer| &**layer)
    }

    /// The value of a row, uncounted.
    pub(crate) fn lookup(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        for layer in self.layers() {
            if let Some(row) = layer.get(table, key) {
                return Ok(row.next.clone());
            }
        }
        self.durable.get(table, key)
    }

    /// The rows of a range in key order, uncounted; the caller wants about `batch` of them.
    pub(crate) fn rows(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        batch: usize,
    ) -> MergedScan<'_> {
        merge(self, None, table, range, ScanDirection::Forward, batch.saturating_add(1))
    }
}

impl NodeRead for RowView {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let begun = if self.is_timed { self.counters.begin_read(table) } else { None };
        let value = self.lookup(table, key)?;
        self.counters.end_read(begun);
        self.counters.read(table, value.as_ref().map_or(0, |value| value.len()));
        Ok(value)
    }

    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowScan<'a>, StateError> {
        Ok(scan(self, None, table, range, direction))
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        Some(Arc::new(self.clone()))
    }
}

/// A view with the layer of the block that is being applied on top.
pub(crate) struct RowWriter {
    base: RowView,
    layer: DiffLayer,
    /// Whether to keep previous values for undo.
    undo: bool,
}

impl RowWriter {
    pub(crate) fn new(base: RowView, undo: bool) -> Self {
        Self { base, layer: DiffLayer::default(), undo }
    }

    /// The value of a row, uncounted.
    fn current(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self.layer.get(table, key) {
            Some(row) => Ok(row.next.clone()),
            None => self.base.lookup(table, key),
        }
    }

    /// The state of the parent.
    pub(crate) const fn base(&self) -> &RowView {
        &self.base
    }

    /// Adds one of the framework's own rows, uncounted. The state below must not have the row.
    pub(crate) fn add(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: Bytes,
    ) -> Result<(), StateError> {
        debug_assert_eq!(
            self.current(table, key).ok(),
            Some(None),
            "a row of {} that is added is there already",
            table.name
        );
        self.layer.set(table, key, Some(value), || Ok(None))
    }

    /// The writes, and the view below them.
    pub(crate) fn finish(mut self) -> (DiffLayer, RowView) {
        if self.undo {
            self.layer.drop_noops();
        }
        (self.layer, self.base)
    }
}

impl NodeRead for RowWriter {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self.layer.get(table, key) {
            Some(row) => {
                self.base.counters.read(table, row.next.as_ref().map_or(0, |value| value.len()));
                Ok(row.next.clone())
            }
            None => self.base.get(table, key),
        }
    }

    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowScan<'a>, StateError> {
        Ok(scan(&self.base, Some(&self.layer), table, range, direction))
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        self.base.detach()
    }
}

impl NodeWrite for RowWriter {
    fn put(&mut self, table: RowTable, key: &[u8], value: Bytes) -> Result<(), StateError> {
        check_key(table, key)?;
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(table, key.len() + value.len());
        self.layer
            .set(table, key, Some(value), || if undo { base.lookup(table, key) } else { Ok(None) })
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<(), StateError> {
        check_key(table, key)?;
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(table, key.len());
        self.layer.set(table, key, None, || if undo { base.lookup(table, key) } else { Ok(None) })
    }

    fn replace(
        &mut self,
        table: RowTable,
        key: &[u8],
        previous: Option<Bytes>,
        next: Option<Bytes>,
    ) -> Result<(), StateError> {
        debug_assert_eq!(
            self.current(table, key).ok(),
            Some(previous.clone()),
            "the previous value given for a row of {} is not the stored one",
            table.name
        );
        check_key(table, key)?;
        self.base.counters.write(table, key.len() + next.as_ref().map_or(0, |value| value.len()));
        self.layer.set(table, key, next, || Ok(previous))
    }

    fn publish_file(&mut self, name: &str) -> Result<(), StateError> {
        check_file_name(name)?;
        self.put(FILES, name.as_bytes(), Bytes::new())
    }

    fn retire_file(&mut self, name: &str) -> Result<(), StateError> {
        self.delete(FILES, name.as_bytes())
    }

    fn as_read(&self) -> &dyn NodeRead {
        self
    }
}

/// Refuses names that could lead out of the state directory.
pub(crate) fn check_file_name(name: &str) -> Result<(), StateError> {
    let plain = !name.is_empty()
        && name.len() <= 200
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !name.starts_with('.');
    if plain {
        return Ok(());
    }
    let what = "file names are 1 to 200 letters, digits, '.', '_' or '-', and start with no '.'";
    Err(StoreError::new(format!("naming the state file {name:?}"), what).into())
}

#[cfg(test)]
mod tests;
