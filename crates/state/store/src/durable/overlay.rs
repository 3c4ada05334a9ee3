//! The overlay: writes in memory over a durable state, so that proposing changes nothing on disk.
//!
//! A [`DiffLayer`] holds the writes of one block (or of several, merged). A [`LayerStack`] is a
//! chain of layers whose sizes fall geometrically, so that a read through n blocks visits O(log n)
//! layers. A [`RowView`] reads a stack over a durable state; a [`RowWriter`] adds the layer being
//! written.

use super::{
    counters::NodeCounters,
    generation::DurableRows,
    layer::{RowKey, RowLayer},
    scan::{MergedScan, merge, scan},
    undo::{PatchChain, UndoLayer, UndoValue},
};
use alloy_primitives::Bytes;
use retrie_state::{
    KeyRange, NodeRead, NodeWrite, RowScan, RowTable, ScanDirection, StateError, StoreError,
};
use std::sync::Arc;

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
    pub(crate) previous: PreviousValue,
    /// Value from this layer on; `None` = deleted.
    pub(crate) next: Option<Bytes>,
}

/// The value of a row below the layer that writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PreviousValue {
    /// The writer did not look.
    Unknown,
    Known(Option<Bytes>),
}

/// The writes of one block, or of several, merged.
#[derive(Debug, Default)]
pub(crate) struct DiffLayer(RowLayer<WrittenRow>);

impl DiffLayer {
    pub(crate) fn get(&self, table: RowTable, key: &[u8]) -> Option<&WrittenRow> {
        self.0.get(table, key)
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Sets a row; calls `previous` only if this layer has not written the key yet.
    fn set(
        &mut self,
        table: RowTable,
        key: &[u8],
        next: Option<Bytes>,
        previous: impl FnOnce() -> Result<PreviousValue, StateError>,
    ) -> Result<(), StateError> {
        match self.0.get_mut(table, key) {
            Some(row) => row.next = next,
            None => {
                let row = WrittenRow { previous: previous()?, next };
                self.0.insert(table, RowKey::from_slice(key), row);
            }
        }
        Ok(())
    }

    /// Sets a row of whose previous value this much is known.
    pub(crate) fn overwrite(
        &mut self,
        table: RowTable,
        key: RowKey,
        previous: PreviousValue,
        next: Option<Bytes>,
    ) {
        self.0.insert(table, key, WrittenRow { previous, next });
    }

    /// All rows, in the order of their first writes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RowTable, &RowKey, &WrittenRow)> {
        self.0.iter()
    }

    /// The rows of one table: key and value, `None` if deleted.
    pub(crate) fn rows(&self, table: RowTable) -> impl Iterator<Item = (&RowKey, Option<&Bytes>)> {
        self.0.rows(table).map(|(key, row)| (key, row.next.as_ref()))
    }

    /// Drops rows whose value has not changed.
    fn drop_noops(&mut self) {
        self.0.retain(|row| match &row.previous {
            PreviousValue::Known(previous) => *previous != row.next,
            PreviousValue::Unknown => true,
        });
    }

    /// The net effect of `layers`, oldest first.
    pub(crate) fn merged(layers: &[Arc<Self>]) -> Self {
        let mut merged = RowLayer::default();
        for layer in layers {
            for (table, key, row) in layer.iter() {
                merged.merge(table, key.clone(), row.clone(), |below: &mut WrittenRow, row| {
                    below.next = row.next;
                });
            }
        }
        Self(merged)
    }

    /// The rows of a range that is not empty, in `direction`.
    pub(crate) fn range<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> impl Iterator<Item = (&'a [u8], Option<Bytes>)> + 'a {
        self.0.range(table, range, direction).map(|(key, row)| (key, row.next.clone()))
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
    pub(crate) reverse: Vec<Arc<UndoLayer>>,
    /// The durable tip when the view was taken.
    pub(crate) durable: Arc<DurableRows>,
    /// Counts the reads.
    pub(crate) counters: Arc<NodeCounters>,
    /// Whether the time of reads counts too; false for prefetches, which no thread waits for.
    pub(crate) is_timed: bool,
}

impl RowView {
    /// The proposals over the durable state, newest first.
    pub(crate) fn proposals(&self) -> impl Iterator<Item = &DiffLayer> {
        self.stack.0.iter().rev().map(|layer| &**layer)
    }

    /// The value of a row, uncounted.
    pub(crate) fn lookup(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.find(table, key, || ())
    }

    /// The same; calls `on_fetch` if the row is not in memory, before it is read from the tables.
    fn find(
        &self,
        table: RowTable,
        key: &[u8],
        on_fetch: impl FnOnce(),
    ) -> Result<Option<Bytes>, StateError> {
        for layer in self.proposals() {
            if let Some(row) = layer.get(table, key) {
                return Ok(row.next.clone());
            }
        }
        let mut patches = PatchChain::default();
        for layer in &self.reverse {
            match layer.get(table, key) {
                None => {}
                Some(UndoValue::Whole(value)) => return patches.applied(table, value.clone()),
                Some(UndoValue::Patches(more)) => patches.push_newer(more),
            }
        }
        let value = match self.durable.unfolded(table, key) {
            Some(value) => value,
            None => {
                on_fetch();
                self.durable.folded(table, key)?
            }
        };
        patches.applied(table, value)
    }

    /// The value of a row that is about to be written, if the writer needs it.
    fn previous(
        &self,
        table: RowTable,
        key: &[u8],
        is_needed: bool,
    ) -> Result<PreviousValue, StateError> {
        if !is_needed {
            return Ok(PreviousValue::Unknown);
        }
        self.lookup(table, key).map(PreviousValue::Known)
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
        let value = self.find(table, key, || self.counters.fetch(table))?;
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
        self.layer.set(table, key, Some(value), || Ok(PreviousValue::Known(None)))
    }

    /// The writes, and the view below them.
    pub(crate) fn finish(mut self) -> (DiffLayer, RowView) {
        self.layer.drop_noops();
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
        self.layer.set(table, key, Some(value), || base.previous(table, key, undo))
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<(), StateError> {
        check_key(table, key)?;
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(table, key.len());
        self.layer.set(table, key, None, || base.previous(table, key, undo))
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
        self.layer.set(table, key, next, || Ok(PreviousValue::Known(previous)))
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
