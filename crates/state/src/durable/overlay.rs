//! Writes in memory over a durable state: what makes proposing pure.
//!
//! A [`Layer`] holds the writes of one block (or of several, merged). A [`LayerStack`] is a chain
//! of layers whose sizes fall geometrically, so that a read through n blocks asks O(log n) of them.
//! A [`RowView`] reads a stack over a durable state; a [`RowWriter`] adds the layer being written.

use super::{
    counters::Counters,
    journal::DurableRows,
    scan::{Merge, merge, scan},
};
use crate::backend::check_file_name;
use crate::{Direction, KeyRange, NodeRead, NodeWrite, Rows, StateError, StoreError, Table};
use alloy_primitives::Bytes;
use hashbrown::{HashMap, hash_map::EntryRef};
use smallvec::SmallVec;
use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::{Arc, OnceLock},
};

/// A key of a table. All keys of today's backends and of [changes](crate::changes) fit without a
/// heap allocation.
pub(crate) type Key = SmallVec<[u8; 64]>;

/// Table that names the immutable files of the state: key = file name, value empty.
pub(crate) const FILES: Table = Table::framework(0xf4, "Files");

/// Longest key of a row in bytes: within MDBX's limit at every page size we use. Checked when the
/// row is written, as the fold comes too late to refuse it.
const MAX_KEY: usize = 1024;

/// Refuses keys that the store underneath could not hold.
pub(crate) fn check_key(table: Table, key: &[u8]) -> Result<(), StateError> {
    if key.len() > MAX_KEY {
        let action = format!("writing a row of table {}", table.name);
        let what = format!("its key has {} bytes, at most {MAX_KEY} are possible", key.len());
        return Err(StoreError::new(action, what).into());
    }
    Ok(())
}

/// One written row.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// Value below this layer; meaningful only in the layer of a single block with undo on.
    pub(crate) previous: Option<Bytes>,
    /// Value from this layer on; `None` = deleted.
    pub(crate) next: Option<Bytes>,
}

#[derive(Debug, Default)]
struct LayerTable {
    rows: HashMap<Key, Written>,
    /// Keys in order, made at the first range read and kept up to date from then on.
    sorted: OnceLock<BTreeSet<Key>>,
}

/// The writes of one block.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    tables: SmallVec<[(Table, LayerTable); 4]>,
    len: usize,
}

impl Layer {
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Written> {
        self.tables.iter().find(|(t, _)| t.id == table.id)?.1.rows.get(key)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// About as many bytes of memory as it takes.
    pub(crate) fn bytes(&self) -> usize {
        let row = |(_, key, row): (Table, &Key, &Written)| {
            let values = [&row.previous, &row.next].into_iter().flatten();
            let beyond = if key.spilled() { key.len() } else { 0 };
            size_of::<(Key, Written)>() + beyond + values.map(|value| value.len()).sum::<usize>()
        };
        self.iter().map(row).sum()
    }

    fn table_mut(&mut self, table: Table) -> &mut LayerTable {
        let at = self.tables.iter().position(|(t, _)| t.id == table.id).unwrap_or_else(|| {
            self.tables.push((table, LayerTable::default()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }

    /// Sets a row; `previous` is asked only when this layer has not written the key yet.
    fn set(
        &mut self,
        table: Table,
        key: &[u8],
        next: Option<Bytes>,
        previous: impl FnOnce() -> Result<Option<Bytes>, StateError>,
    ) -> Result<(), StateError> {
        let slot = self.table_mut(table);
        match slot.rows.entry_ref(key) {
            EntryRef::Occupied(mut entry) => entry.get_mut().next = next,
            EntryRef::Vacant(entry) => {
                let previous = previous()?;
                let key = Key::from_slice(key);
                if let Some(sorted) = slot.sorted.get_mut() {
                    sorted.insert(key.clone());
                }
                entry.insert_with_key(key, Written { previous, next });
                self.len += 1;
            }
        }
        Ok(())
    }

    /// Sets a row without regard to what was below.
    pub(crate) fn overwrite(&mut self, table: Table, key: Key, next: Option<Bytes>) {
        let slot = self.table_mut(table);
        slot.sorted.take();
        if slot.rows.insert(key, Written { previous: None, next }).is_none() {
            self.len += 1;
        }
    }

    /// All rows, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Table, &Key, &Written)> {
        self.tables
            .iter()
            .flat_map(|(table, slot)| slot.rows.iter().map(|(key, row)| (*table, key, row)))
    }

    /// Calls `row` for each row of one table.
    pub(crate) fn for_table(&self, table: Table, mut row: impl FnMut(&Key, &Option<Bytes>)) {
        if let Some((_, slot)) = self.tables.iter().find(|(t, _)| t.id == table.id) {
            for (key, written) in &slot.rows {
                row(key, &written.next);
            }
        }
    }

    /// Forgets rows that end as they began.
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
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Box<dyn Iterator<Item = (&'a [u8], Option<Bytes>)> + 'a> {
        let Some((_, slot)) = self.tables.iter().find(|(t, _)| t.id == table.id) else {
            return Box::new(std::iter::empty());
        };
        let sorted = slot.sorted.get_or_init(|| slot.rows.keys().cloned().collect());
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = sorted.range::<[u8], _>((Bound::Included(range.start), end));
        let row =
            |key: &'a Key| slot.rows.get(&key[..]).map(|written| (&key[..], written.next.clone()));
        match direction {
            Direction::Forward => Box::new(keys.filter_map(row)),
            Direction::Backward => Box::new(keys.rev().filter_map(row)),
        }
    }
}

/// Layers, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerStack(Vec<Arc<Layer>>);

impl LayerStack {
    /// The stack with `layer` on top; neighbours of like size are merged.
    pub(crate) fn pushed(&self, layer: Arc<Layer>) -> Self {
        let mut layers = self.0.clone();
        layers.push(layer);
        while let [.., below, top] = &layers[..] {
            if below.len() > 2 * top.len().max(32) {
                break;
            }
            let merged = Arc::new(Layer::merged(&[below.clone(), top.clone()]));
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
    /// Undo of durable blocks above the one that is viewed, the oldest first.
    pub(crate) reverse: Vec<Arc<Layer>>,
    /// The durable tip when the view was taken.
    pub(crate) durable: Arc<DurableRows>,
    /// Where reads are counted.
    pub(crate) counters: Arc<Counters>,
    /// Whether somebody waits for them, so that their time counts too.
    pub(crate) is_timed: bool,
}

impl RowView {
    /// The layers over the durable state, newest first.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.stack.0.iter().rev().chain(&self.reverse).map(|layer| &**layer)
    }

    /// The value of a row, uncounted.
    pub(crate) fn lookup(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        for layer in self.layers() {
            if let Some(row) = layer.get(table, key) {
                return Ok(row.next.clone());
            }
        }
        self.durable.get(table, key)
    }

    /// The rows of a range in key order, uncounted; about `batch` of them are wanted.
    pub(crate) fn rows(&self, table: Table, range: KeyRange<'_>, batch: usize) -> Merge<'_> {
        merge(self, None, table, range, Direction::Forward, batch.saturating_add(1))
    }
}

impl NodeRead for RowView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let begun = if self.is_timed { self.counters.begin_read(table) } else { None };
        let value = self.lookup(table, key)?;
        self.counters.end_read(begun);
        self.counters.read(table, value.as_ref().map_or(0, |value| value.len()));
        Ok(value)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'a>, StateError> {
        Ok(scan(self, None, table, range, direction))
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        Some(Arc::new(self.clone()))
    }
}

/// A view with the layer of the block that is being applied on top.
pub(crate) struct RowWriter {
    base: RowView,
    layer: Layer,
    /// Whether values below are kept for undo.
    undo: bool,
}

impl RowWriter {
    pub(crate) fn new(base: RowView, undo: bool) -> Self {
        Self { base, layer: Layer::default(), undo }
    }

    /// The value of a row, uncounted.
    fn current(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self.layer.get(table, key) {
            Some(row) => Ok(row.next.clone()),
            None => self.base.lookup(table, key),
        }
    }

    /// The state of the parent.
    pub(crate) const fn base(&self) -> &RowView {
        &self.base
    }

    /// Adds a row of the framework's own, uncounted. No state below may have it.
    pub(crate) fn add(&mut self, table: Table, key: &[u8], value: Bytes) -> Result<(), StateError> {
        debug_assert_eq!(
            self.current(table, key).ok(),
            Some(None),
            "a row of {} that is added is there already",
            table.name
        );
        self.layer.set(table, key, Some(value), || Ok(None))
    }

    /// The writes, and the view they stand on.
    pub(crate) fn finish(mut self) -> (Layer, RowView) {
        if self.undo {
            self.layer.drop_noops();
        }
        (self.layer, self.base)
    }
}

impl NodeRead for RowWriter {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
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
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'a>, StateError> {
        Ok(scan(&self.base, Some(&self.layer), table, range, direction))
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        self.base.detach()
    }
}

impl NodeWrite for RowWriter {
    fn put(&mut self, table: Table, key: &[u8], value: Bytes) -> Result<(), StateError> {
        check_key(table, key)?;
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(table, key.len() + value.len());
        self.layer
            .set(table, key, Some(value), || if undo { base.lookup(table, key) } else { Ok(None) })
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StateError> {
        check_key(table, key)?;
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(table, key.len());
        self.layer.set(table, key, None, || if undo { base.lookup(table, key) } else { Ok(None) })
    }

    fn replace(
        &mut self,
        table: Table,
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

#[cfg(test)]
mod tests;
