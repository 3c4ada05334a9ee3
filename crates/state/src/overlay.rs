//! Writes in memory over a durable state: what makes proposing pure.
//!
//! A [`Layer`] holds the writes of one block (or of several, merged). A [`LayerStack`] is a chain
//! of layers whose sizes fall geometrically, so that a read through n blocks asks O(log n) of them.
//! A [`View`] reads a stack over a durable state; a [`WriteView`] adds the layer being written.

use crate::{
    Direction, KeyRange, NodeRead, NodeWrite, Row, Rows, StateError, Table, counters::Counters,
    journal::DurableView,
};
use alloy_primitives::Bytes;
use hashbrown::{HashMap, hash_map::EntryRef};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// A key of a table. All keys of today's backends fit without a heap allocation.
pub(crate) type Key = SmallVec<[u8; 56]>;

/// Table that names the immutable files of the state: key = file name, value empty.
pub(crate) const FILES: Table = Table::framework(0xf4, "Files");

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
    /// Keys in order, made at the first range read.
    sorted: OnceLock<Vec<Key>>,
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
        slot.sorted.take();
        match slot.rows.entry_ref(key) {
            EntryRef::Occupied(mut entry) => entry.get_mut().next = next,
            EntryRef::Vacant(entry) => {
                let previous = previous()?;
                entry.insert_with_key(Key::from_slice(key), Written { previous, next });
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
            slot.sorted.take();
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

    fn range(&self, table: Table, range: KeyRange<'_>) -> Vec<(&Key, &Written)> {
        let Some((_, slot)) = self.tables.iter().find(|(t, _)| t.id == table.id) else {
            return Vec::new();
        };
        let sorted = slot.sorted.get_or_init(|| {
            let mut keys: Vec<Key> = slot.rows.keys().cloned().collect();
            keys.sort_unstable();
            keys
        });
        let start = sorted.partition_point(|key| key[..] < *range.start);
        let end = range
            .end
            .map_or(sorted.len(), |end| sorted.partition_point(|key| key[..] < *end))
            .max(start);
        sorted[start..end].iter().filter_map(|key| slot.rows.get_key_value(key)).collect()
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
pub(crate) struct View {
    /// Proposals above the durable state.
    pub(crate) stack: LayerStack,
    /// Undo of durable blocks above the one that is viewed.
    pub(crate) reverse: Option<Arc<Layer>>,
    /// The durable tip when the view was taken.
    pub(crate) durable: Arc<DurableView>,
    /// Where reads are counted.
    pub(crate) counters: Arc<Counters>,
}

impl View {
    fn lookup(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        for layer in self.stack.0.iter().rev().chain(&self.reverse) {
            if let Some(row) = layer.get(table, key) {
                return Ok(row.next.clone());
            }
        }
        self.durable.get(table, key)
    }
}

impl NodeRead for View {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let value = self.lookup(table, key)?;
        self.counters.read(value.as_ref().map_or(0, |value| value.len()));
        Ok(value)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'a>, StateError> {
        scan_layers(self, None, table, range, direction)
    }
}

/// Merges what layers hold of a range with what lies below.
fn scan_layers<'a>(
    view: &'a View,
    top: Option<&'a Layer>,
    table: Table,
    range: KeyRange<'_>,
    direction: Direction,
) -> Result<Rows<'a>, StateError> {
    let mut upper: std::collections::BTreeMap<Key, Option<Bytes>> = Default::default();
    view.durable.pending(table, range, &mut upper);
    let layers = view.reverse.iter().chain(&view.stack.0).map(|layer| &**layer).chain(top);
    for layer in layers {
        for (key, row) in layer.range(table, range) {
            upper.insert(key.clone(), row.next.clone());
        }
    }
    let below = BaseScan::new(&view.durable, table, range, direction);
    let upper: Box<dyn Iterator<Item = _> + 'a> = match direction {
        Direction::Forward => Box::new(upper.into_iter()),
        Direction::Backward => Box::new(upper.into_iter().rev()),
    };
    let counters = &view.counters;
    let rows = Merge { upper: upper.peekable(), below: below.peekable(), direction };
    Ok(Box::new(rows.inspect(move |row| {
        if let Ok((key, value)) = row {
            counters.read(key.len() + value.len());
        }
    })))
}

/// Two sorted sources; on equal keys the upper one wins, and its deletions hide rows below.
struct Merge<U: Iterator, B: Iterator> {
    upper: std::iter::Peekable<U>,
    below: std::iter::Peekable<B>,
    direction: Direction,
}

impl<U, B> Iterator for Merge<U, B>
where
    U: Iterator<Item = (Key, Option<Bytes>)>,
    B: Iterator<Item = Result<Row, StateError>>,
{
    type Item = Result<Row, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        loop {
            let order = match (self.upper.peek(), self.below.peek()) {
                (None, _) | (_, Some(Err(_))) => return self.below.next(),
                (Some(_), None) => Less,
                (Some((upper, _)), Some(Ok((below, _)))) => {
                    let order = upper[..].cmp(below);
                    if self.direction == Direction::Forward { order } else { order.reverse() }
                }
            };
            match order {
                Greater => return self.below.next(),
                Equal => {
                    self.below.next();
                }
                Less => {}
            }
            if let Some((key, Some(value))) = self.upper.next() {
                return Some(Ok((Bytes::copy_from_slice(&key), value)));
            }
        }
    }
}

/// Rows of the store itself, fetched in growing batches.
struct BaseScan<'a> {
    durable: &'a DurableView,
    table: Table,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    direction: Direction,
    batch: std::vec::IntoIter<Row>,
    limit: usize,
    done: bool,
}

impl<'a> BaseScan<'a> {
    fn new(
        durable: &'a DurableView,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Self {
        Self {
            durable,
            table,
            start: range.start.to_vec(),
            end: range.end.map(<[u8]>::to_vec),
            direction,
            batch: Vec::new().into_iter(),
            limit: 16,
            done: false,
        }
    }
}

impl Iterator for BaseScan<'_> {
    type Item = Result<Row, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(row) = self.batch.next() {
            return Some(Ok(row));
        }
        if self.done {
            return None;
        }
        let range = KeyRange { start: &self.start, end: self.end.as_deref() };
        let rows = match self.durable.snapshot.scan(self.table, range, self.direction, self.limit) {
            Ok(rows) => rows,
            Err(error) => {
                self.done = true;
                return Some(Err(error.into()));
            }
        };
        self.done = rows.len() < self.limit;
        self.limit = (self.limit * 4).min(1024);
        if let Some((last, _)) = rows.last() {
            match self.direction {
                // The next key after `last` is `last` with a zero byte.
                Direction::Forward => {
                    self.start = last.to_vec();
                    self.start.push(0);
                }
                Direction::Backward => self.end = Some(last.to_vec()),
            }
        }
        self.batch = rows.into_iter();
        self.batch.next().map(Ok)
    }
}

/// A view with the layer of the block that is being applied on top.
pub(crate) struct WriteView {
    base: View,
    layer: Layer,
    /// Whether values below are kept for undo.
    undo: bool,
}

impl WriteView {
    pub(crate) fn new(base: View, undo: bool) -> Self {
        Self { base, layer: Layer::default(), undo }
    }

    /// The value of a row, uncounted.
    fn current(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self.layer.get(table, key) {
            Some(row) => Ok(row.next.clone()),
            None => self.base.lookup(table, key),
        }
    }

    /// The writes, and the view they stand on.
    pub(crate) fn finish(mut self) -> (Layer, View) {
        if self.undo {
            self.layer.drop_noops();
        }
        (self.layer, self.base)
    }
}

impl NodeRead for WriteView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self.layer.get(table, key) {
            Some(row) => {
                self.base.counters.read(row.next.as_ref().map_or(0, |value| value.len()));
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
        scan_layers(&self.base, Some(&self.layer), table, range, direction)
    }
}

impl NodeWrite for WriteView {
    fn put(&mut self, table: Table, key: &[u8], value: Bytes) -> Result<(), StateError> {
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(key.len() + value.len());
        self.layer
            .set(table, key, Some(value), || if undo { base.lookup(table, key) } else { Ok(None) })
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StateError> {
        let (base, undo) = (&self.base, self.undo);
        base.counters.write(key.len());
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
        self.base.counters.write(key.len() + next.as_ref().map_or(0, |value| value.len()));
        self.layer.set(table, key, next, || Ok(previous))
    }

    fn publish_file(&mut self, name: &str) -> Result<(), StateError> {
        self.put(FILES, name.as_bytes(), Bytes::new())
    }

    fn retire_file(&mut self, name: &str) -> Result<(), StateError> {
        self.delete(FILES, name.as_bytes())
    }

    fn as_read(&self) -> &dyn NodeRead {
        self
    }
}
