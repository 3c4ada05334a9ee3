//! Undo records: the previous values of the rows that each durable block changed. `revert` uses
//! them, and so do the reverse layers through which durable blocks below the tip are read and
//! extended.

use super::{
    layer::{RowKey, RowLayer},
    overlay::{DiffLayer, FILES, PreviousValue},
    patch,
    record::{RecordValue, RecordWriter, decode_rows, delete_records, read_record, record_id},
};
use crate::{KvRead, KvWrite};
use alloy_primitives::{B256, Bytes};
use quick_cache::{Weighter, sync::Cache};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateError, StoreError};
use smallvec::{SmallVec, smallvec};
use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};

/// Undo rows: key = block number (8 bytes, big-endian) || piece (4 bytes, big-endian). A record
/// starts with hash and root of the block, then hash and root of its parent (32 bytes each).
pub(crate) const UNDO: RowTable = RowTable::framework(0xf2, "Undo");

/// Head of an undo record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UndoHead {
    pub(crate) hash: B256,
    pub(crate) root: B256,
    pub(crate) parent_hash: B256,
    pub(crate) parent_root: B256,
}

const HEAD: usize = 128;

/// A row as it was before the block.
pub(crate) type UndoRow = (RowTable, RowKey, RecordValue);

/// Writes the undo record of block `number`; returns its bytes. `patches`: whether a value may be
/// a patch of the value after the block.
pub(crate) fn write(
    txn: &mut dyn KvWrite,
    number: u64,
    head: UndoHead,
    layer: &DiffLayer,
    patches: bool,
) -> Result<usize, StoreError> {
    let mut header = [0; HEAD];
    let fields = [head.hash, head.root, head.parent_hash, head.parent_root];
    for (to, field) in header.chunks_exact_mut(32).zip(fields) {
        to.copy_from_slice(field.as_slice());
    }
    let mut record = RecordWriter::new(&header);
    for (table, key, row) in layer.iter() {
        let PreviousValue::Known(previous) = &row.previous else {
            let action = format!("writing the undo record of block {number}");
            let what = format!("the old value of a row of table {} is not known", table.name);
            return Err(StoreError::new(action, what));
        };
        let base = row.next.as_ref().filter(|_| patches);
        record.push(table, key, previous.as_ref(), base);
    }
    record.write(txn, UNDO, number)
}

/// The undo record of block `number`: its head, and the rows as they were before.
pub(crate) fn read(
    kv: &dyn KvRead,
    tables: &[RowTable],
    number: u64,
) -> Result<(UndoHead, Vec<UndoRow>), StateError> {
    let record = read_record(kv, UNDO, number)?.ok_or_else(|| {
        StateError::corrupt(UNDO.name, format!("the record of block {number} is missing"))
    })?;
    let (header, rest) = record.split_at_checked(HEAD).ok_or_else(|| {
        StateError::corrupt(UNDO.name, format!("the record of block {number} has no header"))
    })?;
    let field = |n: usize| B256::from_slice(&header[n * 32..n * 32 + 32]);
    let head =
        UndoHead { hash: field(0), root: field(1), parent_hash: field(2), parent_root: field(3) };
    let mut rows = Vec::new();
    decode_rows(UNDO, tables, rest, |table, key, value| {
        rows.push((table, RowKey::from_slice(key), value));
    })?;
    Ok((head, rows))
}

/// Numbers of the oldest and the newest block with an undo record.
pub(crate) fn span(kv: &dyn KvRead) -> Result<Option<(u64, u64)>, StateError> {
    let first = kv.seek(UNDO, Some(&[]), ScanDirection::Forward)?;
    let last = kv.seek(UNDO, None, ScanDirection::Backward)?;
    match (first, last) {
        (Some((first, _)), Some((last, _))) => {
            Ok(Some((record_id(UNDO, &first)?, record_id(UNDO, &last)?)))
        }
        _ => Ok(None),
    }
}

/// What undo says of a row: its value before some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UndoValue {
    Whole(Option<Bytes>),
    /// [Patches](patch) of the value after these blocks, to be applied in this order: the newest
    /// block's first.
    Patches(SmallVec<[Bytes; 2]>),
}

/// The rows that some blocks changed, as they were before these blocks.
#[derive(Debug, Default)]
pub(crate) struct UndoLayer(RowLayer<UndoValue>);

impl UndoLayer {
    /// Reads the records of blocks `numbers`.
    pub(crate) fn read(
        kv: &dyn KvRead,
        tables: &[RowTable],
        numbers: RangeInclusive<u64>,
    ) -> Result<Self, StateError> {
        let mut layer = Self::default();
        // Newest first, so that the oldest record wins.
        for number in numbers.rev() {
            let (_, rows) = read(kv, tables, number)?;
            for (table, key, value) in rows {
                layer.add_older(table, key, value)?;
            }
        }
        Ok(layer)
    }

    /// Adds the value of a row before the blocks so far.
    pub(super) fn add_older(
        &mut self,
        table: RowTable,
        key: RowKey,
        value: RecordValue,
    ) -> Result<(), StateError> {
        let value = match value {
            RecordValue::Absent => UndoValue::Whole(None),
            RecordValue::Whole(value) => UndoValue::Whole(Some(value)),
            RecordValue::Patch(patch) => match self.0.get_mut(table, &key) {
                None => UndoValue::Patches(smallvec![patch]),
                Some(UndoValue::Patches(patches)) => {
                    patches.push(patch);
                    return Ok(());
                }
                Some(UndoValue::Whole(value)) => {
                    *value = Some(patched(table, value.as_ref(), &patch)?);
                    return Ok(());
                }
            },
        };
        self.0.insert(table, key, value);
        Ok(())
    }

    pub(crate) fn get(&self, table: RowTable, key: &[u8]) -> Option<&UndoValue> {
        self.0.get(table, key)
    }

    /// The rows of a range that is not empty, in `direction`.
    pub(crate) fn range<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Box<dyn Iterator<Item = (&'a [u8], &'a UndoValue)> + 'a> {
        self.0.range(table, range, direction)
    }

    /// The rows as writes over the state after the blocks, of which `above` has the values.
    pub(crate) fn writes(
        &self,
        above: impl Fn(RowTable, &[u8]) -> Result<Option<Bytes>, StateError>,
    ) -> Result<DiffLayer, StateError> {
        let mut writes = DiffLayer::default();
        for (table, key, value) in self.0.iter() {
            let (previous, next) = match value {
                UndoValue::Whole(value) => (PreviousValue::Unknown, value.clone()),
                UndoValue::Patches(patches) => {
                    let base = above(table, key)?;
                    let mut chain = PatchChain::default();
                    chain.push_newer(patches);
                    (PreviousValue::Known(base.clone()), chain.applied(table, base)?)
                }
            };
            writes.overwrite(table, key.clone(), previous, next);
        }
        Ok(writes)
    }

    fn bytes(&self) -> usize {
        self.0.bytes(|value| match value {
            UndoValue::Whole(value) => value.as_ref().map_or(0, |value| value.len()),
            UndoValue::Patches(patches) => patches.iter().map(|patch| patch.len()).sum(),
        })
    }
}

/// Patches of one row on the way from a newer state to an older one, until a whole value is found.
#[derive(Debug, Default)]
pub(crate) struct PatchChain<'a>(SmallVec<[&'a [Bytes]; 4]>);

impl<'a> PatchChain<'a> {
    /// Adds the patches of newer blocks than those so far.
    pub(crate) fn push_newer(&mut self, patches: &'a [Bytes]) {
        self.0.push(patches);
    }

    /// What the patches make of `base`, the value after all their blocks.
    ///
    /// # Errors
    /// If they are patches of another value.
    pub(crate) fn applied(
        self,
        table: RowTable,
        base: Option<Bytes>,
    ) -> Result<Option<Bytes>, StateError> {
        let mut value = base;
        for patch in self.0.into_iter().rev().flatten() {
            value = Some(patched(table, value.as_ref(), patch)?);
        }
        Ok(value)
    }
}

/// The value that `patch` makes of `base`.
///
/// # Errors
/// If it is a patch of another value.
pub(crate) fn patched(
    table: RowTable,
    base: Option<&Bytes>,
    patch: &[u8],
) -> Result<Bytes, StateError> {
    base.and_then(|base| patch::apply(base, patch)).ok_or_else(|| {
        let what = "a row is not the one of which a record has a patch; run `db verify`";
        StateError::corrupt(table.name, what)
    })
}

/// Sizes of spans, in blocks. A read of an old state visits one layer for each span on the way
/// there: 10 layers on average at a depth of 128, and at most 18.
const SPANS: [u64; 5] = [256, 64, 16, 4, 1];
/// Memory for undo layers in bytes: enough for 128 blocks of a few thousand rows each, some of
/// which have a kilobyte. With less, the layers of one old state evict each other.
const LAYERS_BYTES: u64 = 512 << 20;

/// Cache of undo records as layers, one for each recently used span of blocks, so that repeated
/// reads of old states do not read the records of all blocks above them each time. Spans begin at
/// multiples of their size, so that neighbouring states share them.
#[derive(Debug)]
pub(crate) struct UndoLayerCache(Cache<UndoSpan, Arc<UndoLayer>, LayerWeighter>);

/// A span: its first block, and the hash of its last block, which implies the other blocks.
type UndoSpan = (u64, B256);

#[derive(Clone, Debug)]
struct LayerWeighter;

impl Weighter<UndoSpan, Arc<UndoLayer>> for LayerWeighter {
    fn weight(&self, _: &UndoSpan, layer: &Arc<UndoLayer>) -> u64 {
        layer.bytes() as u64
    }
}

impl Default for UndoLayerCache {
    fn default() -> Self {
        Self::of_bytes(LAYERS_BYTES)
    }
}

impl UndoLayerCache {
    /// The small item estimate gives the cache one shard. With more shards it would refuse a layer
    /// larger than one shard, and evict layers while others have room.
    fn of_bytes(bytes: u64) -> Self {
        Self(Cache::with_weighter(32, bytes, LayerWeighter))
    }

    /// The layers that lead from the state of block `to` back to the state before block `from`,
    /// oldest block first: a row in an earlier layer hides the same row in later ones. `blocks` has
    /// hash and root of each block.
    ///
    /// # Errors
    /// If a record, or a block of `blocks`, is missing or damaged.
    pub(crate) fn reverse_layers(
        &self,
        kv: &dyn KvRead,
        tables: &[RowTable],
        (from, to): (u64, u64),
        blocks: &BTreeMap<u64, (B256, B256)>,
    ) -> Result<Vec<Arc<UndoLayer>>, StateError> {
        let mut layers = Vec::new();
        for span in spans(from, to) {
            let (hash, _) = blocks.get(span.end()).ok_or_else(|| {
                let what = format!("block {} is retained without its hash", span.end());
                StateError::corrupt(UNDO.name, what)
            })?;
            let layer = self.0.get_or_insert_with(&(*span.start(), *hash), || {
                UndoLayer::read(kv, tables, span.clone()).map(Arc::new)
            })?;
            layers.push(layer);
        }
        Ok(layers)
    }
}

/// Splits `from..=to` into spans, in ascending order.
fn spans(mut from: u64, to: u64) -> impl Iterator<Item = RangeInclusive<u64>> {
    std::iter::from_fn(move || {
        let fits = |size: &&u64| from.is_multiple_of(**size) && from + **size - 1 <= to;
        let size = SPANS.iter().find(fits)?;
        let first = from;
        from += size;
        Some(first..=from - 1)
    })
}

/// The files that a block retired: only states below the block name them.
pub(crate) fn retired_files(rows: &[UndoRow]) -> impl Iterator<Item = String> {
    rows.iter()
        .filter(|(table, _, previous)| *table == FILES && *previous != RecordValue::Absent)
        .map(|(_, key, _)| String::from_utf8_lossy(key).into_owned())
}

/// Deletes the records of block `number` and of all blocks below. Block `number` is then the oldest
/// that can be reverted to.
pub(crate) fn forget(txn: &mut dyn KvWrite, number: u64) -> Result<(), StateError> {
    if let Some((first, last)) = span(txn)?
        && first <= number
    {
        delete_records(txn, UNDO, first, number.min(last) + 1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvStore, MemoryStore};
    use std::cell::Cell;

    const TABLE: RowTable = RowTable::new(7, "Test");

    fn hash(number: u64) -> B256 {
        B256::with_last_byte(number as u8)
    }

    /// Long enough to be patched.
    fn value(n: u64) -> Bytes {
        [&[6; 100], &n.to_be_bytes()[..]].concat().into()
    }

    /// Row `key` after block `n`: rows 0 to 6 are written in turn, row n above them by block n.
    fn row_at(n: u64, key: u64) -> Option<Bytes> {
        let last = if key < 7 { n.saturating_sub((n + 7 - key) % 7) } else { key };
        (last > 0 && last <= n && last % 7 == key % 7).then(|| value(last))
    }

    /// The records of blocks 1 to `last`.
    fn records(last: u64) -> (MemoryStore, BTreeMap<u64, (B256, B256)>) {
        let kv = MemoryStore::new();
        let mut txn = kv.begin_write().unwrap();
        for n in 1..=last {
            let mut record = RecordWriter::new(&[0; HEAD]);
            for key in std::collections::BTreeSet::from([n, n % 7]) {
                let row = RowKey::from_slice(&key.to_be_bytes());
                record.push(TABLE, &row, row_at(n - 1, key).as_ref(), row_at(n, key).as_ref());
            }
            record.write(&mut *txn, UNDO, n).unwrap();
        }
        txn.commit().unwrap();
        (kv, (1..=last).map(|n| (n, (hash(n), B256::ZERO))).collect())
    }

    /// Counts the records that the test reads.
    struct CountingReader<'a>(&'a dyn KvRead, Cell<u64>);

    impl KvRead for CountingReader<'_> {
        fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
            self.0.get(table, key)
        }
        fn seek(
            &self,
            table: RowTable,
            from: Option<&[u8]>,
            direction: ScanDirection,
        ) -> Result<Option<retrie_state::TableRow>, StoreError> {
            self.0.seek(table, from, direction)
        }
        fn scan(
            &self,
            table: RowTable,
            range: retrie_state::KeyRange<'_>,
            direction: ScanDirection,
            limit: usize,
        ) -> Result<Vec<retrie_state::TableRow>, StoreError> {
            self.1.set(self.1.get() + 1);
            self.0.scan(table, range, direction, limit)
        }
        fn count(&self, table: RowTable) -> Result<u64, StoreError> {
            self.0.count(table)
        }
    }

    #[test]
    fn spans_are_aligned_few_and_cover_every_block_once() {
        for (from, to) in [(1, 1), (1, 128), (5, 20), (16, 31), (250, 1_300), (511, 513), (9, 8)] {
            let spans: Vec<_> = spans(from, to).collect();
            let covered: Vec<u64> = spans.iter().cloned().flatten().collect();
            assert_eq!(covered, (from..=to).collect::<Vec<_>>());
            for span in &spans {
                let size = span.end() - span.start() + 1;
                assert!(SPANS.contains(&size) && span.start().is_multiple_of(size), "{span:?}");
            }
            let most = 24 + (to.saturating_sub(from) / 256) as usize;
            assert!(spans.len() <= most, "{} for {from}..={to}", spans.len());
        }
    }

    #[test]
    fn layers_lead_to_the_state_that_the_records_lead_to() {
        let (kv, blocks) = records(200);
        let (snapshot, layers) = (kv.snapshot().unwrap(), UndoLayerCache::default());
        for (from, to) in [(1, 200), (150, 200), (16, 31), (3, 40), (200, 200), (17, 199)] {
            let down = layers.reverse_layers(&*snapshot, &[TABLE], (from, to), &blocks).unwrap();
            let whole = UndoLayer::read(&*snapshot, &[TABLE], from..=to).unwrap();
            let number = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap());
            let above = |key: &[u8]| row_at(to, number(key));
            let writes = whole.writes(|_, key| Ok(above(key))).unwrap();
            for (table, key, row) in writes.iter() {
                let expected = row_at(from - 1, number(key));
                assert_eq!(row.next, expected, "{from}..={to}");
                let (mut chain, mut base) = (PatchChain::default(), None);
                for layer in &down {
                    match layer.get(table, key).filter(|_| base.is_none()) {
                        None => {}
                        Some(UndoValue::Whole(value)) => base = Some(value.clone()),
                        Some(UndoValue::Patches(patches)) => chain.push_newer(patches),
                    }
                }
                let base = base.unwrap_or_else(|| above(key));
                assert_eq!(chain.applied(table, base).unwrap(), expected, "{from}..={to}");
            }
            assert!(down.iter().all(|layer| {
                layer.0.iter().all(|(table, key, _)| writes.get(table, key).is_some())
            }));
        }
    }

    #[test]
    fn layers_are_kept_as_long_as_there_is_room_whatever_their_sizes() {
        let (kv, blocks) = records(143);
        let snapshot = kv.snapshot().unwrap();
        let kv = CountingReader(&*snapshot, Cell::new(0));
        let down = |layers: &UndoLayerCache| {
            layers.reverse_layers(&kv, &[TABLE], (16, 143), &blocks).unwrap()
        };
        let all: usize = down(&UndoLayerCache::default()).iter().map(|layer| layer.bytes()).sum();
        let layers = UndoLayerCache::of_bytes(all as u64 + 1);
        for reads in [128, 0, 0] {
            kv.1.set(0);
            down(&layers);
            assert_eq!(kv.1.get(), reads);
        }
    }

    #[test]
    fn records_are_read_once_while_nothing_changes_and_anew_on_another_branch() {
        let (kv, mut blocks) = records(200);
        let (snapshot, layers) = (kv.snapshot().unwrap(), UndoLayerCache::default());
        let kv = CountingReader(&*snapshot, Cell::new(0));
        let reads = |range: (u64, u64), blocks: &_| {
            kv.1.set(0);
            layers.reverse_layers(&kv, &[TABLE], range, blocks).unwrap();
            kv.1.get()
        };
        assert_eq!(reads((73, 199), &blocks), 127);
        assert_eq!(reads((73, 199), &blocks), 0);
        // A block above, and a state one block higher.
        assert_eq!(reads((73, 200), &blocks), 1);
        assert_eq!(reads((74, 200), &blocks), 0);
        // The last complete span now ends in another block.
        blocks.insert(191, (hash(250), B256::ZERO));
        assert_eq!(reads((73, 200), &blocks), 64);
        blocks.remove(&200);
        assert!(layers.reverse_layers(&kv, &[TABLE], (73, 200), &blocks).is_err());
    }
}
