//! The small layers: tries that are completely in memory. Their rows contain the changes block by
//! block, and the tries are rebuilt from them.
//!
//! A key has no row of its own: single keys are never looked up in the rows of a layer. The rows of
//! a block are written and removed together, so they lie side by side.

use crate::{
    leaf,
    record::{LAYERS, generation_range, layer_key, parse_layer_key},
};
use alloy_primitives::{B256, Bytes, keccak256};
use rayon::prelude::*;
use retrie_state::{
    BackendDelta, BackendKey, KeyRange, NodeRead, NodeWrite, ScanDirection, StateError,
    wire::{WireReader, put_varint},
};
use retrie_storage_mpt::{
    LeafUpdate, MemorySource, Trie,
    trie::{Leaf, NodeLink},
};
use std::sync::Arc;

/// The number of keys that one thread hashes at a time.
const CHUNK: usize = 32;
/// A block continues in the next row after this many bytes, so that a row fits into a page.
const ROW_BYTES: usize = 3_900;

/// The path of a key: keccak-256 of its encoding.
pub(crate) fn path_of(key: &BackendKey) -> B256 {
    keccak256(&*key.encode())
}

/// Rebuilds the trie of `generation` from its rows. Also returns the number of its keys.
pub(crate) fn read(view: &dyn NodeRead, generation: u64) -> Result<(Trie, u64), StateError> {
    let (start, end) = generation_range(generation);
    let rows = view.scan(LAYERS, KeyRange::new(&start, &end), ScanDirection::Forward)?;
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let read: Vec<_> =
        rows.par_iter().map(|(key, row)| read_row(key, row)).collect::<Result<_, _>>()?;
    let mut order = LayerRowOrder::default();
    rows.iter().zip(&read).try_for_each(|((key, _), entries)| order.follow(key, entries))?;
    let item = |(key, leaf): (BackendKey, Bytes)| LeafUpdate::new(path_of(&key), Some(leaf));
    let mut items: Vec<_> =
        read.into_par_iter().flat_map_iter(|entries| entries.into_iter().map(item)).collect();
    // In the order of blocks: the last change of a key counts.
    items.par_sort_by_key(|item| item.key);
    items.dedup_by(|later, earlier| {
        let is_same = later.key == earlier.key;
        if is_same {
            std::mem::swap(later, earlier);
        }
        is_same
    });
    let count = items.len() as u64;
    Ok((Trie::default().update(&MemorySource, &items, &mut ())?, count))
}

/// The keys and leaves of a layer row.
pub(crate) type LayerEntries = Vec<(BackendKey, Bytes)>;

/// Decodes a layer row, which has at least one entry.
pub(crate) fn read_row(key: &Bytes, row: &Bytes) -> Result<LayerEntries, StateError> {
    let malformed = || StateError::corrupt(LAYERS.name, format!("row {key} is malformed"));
    let (mut rest, mut entries) = (WireReader::new(row), Vec::new());
    let mut entry = || {
        let len = usize::from(rest.u8().ok()?);
        let key = BackendKey::decode(rest.take(len).ok()?)?;
        let len = usize::try_from(rest.varint().ok()?).ok()?;
        let found = rest.take(len).ok()?;
        leaf::decode(found)?;
        entries.push((key, Bytes::copy_from_slice(found)));
        Some(rest.is_empty())
    };
    while !entry().ok_or_else(malformed)? {}
    Ok(entries)
}

/// Checks the order of layer rows: the parts of a block are numbered from 0 on, and its keys
/// ascend.
#[derive(Debug, Default)]
pub(crate) struct LayerRowOrder(Option<((u64, u64, u32), BackendKey)>);

impl LayerRowOrder {
    /// Rejects a row that cannot be the next one.
    pub(crate) fn follow(&mut self, key: &Bytes, entries: &LayerEntries) -> Result<(), StateError> {
        let is_next = |(generation, number, part): (u64, u64, u32), first: &BackendKey| {
            let keys = entries.iter().map(|(key, _)| key);
            let continues = |((of, at, before), last): &((u64, u64, u32), BackendKey)| {
                (*of, *at) == (generation, number)
                    && before.checked_add(1) == Some(part)
                    && last < first
            };
            keys.is_sorted_by(|one, next| one < next)
                && (part == 0 || self.0.as_ref().is_some_and(continues))
        };
        let place = parse_layer_key(key).zip(entries.first());
        match place.filter(|(place, (first, _))| is_next(*place, first)).zip(entries.last()) {
            Some(((place, _), (last, _))) => {
                self.0 = Some((place, *last));
                Ok(())
            }
            None => Err(StateError::corrupt(LAYERS.name, format!("row {key} is out of order"))),
        }
    }
}

/// Writes the layer rows of a block.
struct LayerRowWriter<'a> {
    view: &'a mut dyn NodeWrite,
    generation: u64,
    number: u64,
    part: u32,
    open: Vec<u8>,
}

impl LayerRowWriter<'_> {
    fn add(&mut self, key: &BackendKey, leaf: &[u8]) -> Result<(), StateError> {
        let key = key.encode();
        self.open.push(key.len() as u8);
        self.open.extend_from_slice(&key);
        put_varint(&mut self.open, leaf.len() as u64);
        self.open.extend_from_slice(leaf);
        if self.open.len() >= ROW_BYTES { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), StateError> {
        if self.open.is_empty() {
            return Ok(());
        }
        let key = layer_key(self.generation, self.number, self.part);
        self.part += 1;
        let row = std::mem::take(&mut self.open).into();
        self.view.replace(LAYERS, &key, None, Some(row))
    }
}

/// Applies the changes of block `number` to the delta of `generation`, and writes its rows. Returns
/// the new trie, and the number of keys that are new in it. A deleted key leaves a tombstone,
/// whatever the layers below contain: so the content of a trie depends only on its own blocks.
pub(crate) fn apply(
    view: &mut dyn NodeWrite,
    (generation, number): (u64, u64),
    trie: &Trie,
    delta: &BackendDelta,
) -> Result<(Trie, u64), StateError> {
    struct LeafChange<'a> {
        key: &'a BackendKey,
        leaf: Bytes,
        is_new: bool,
        path: B256,
    }
    let changes = delta
        .changes()
        .par_iter()
        .with_min_len(CHUNK)
        .filter(|change| change.previous != change.next)
        .map(|change| {
            let path = path_of(&change.key);
            Ok(LeafChange {
                key: &change.key,
                leaf: leaf::encode(change.next.as_ref()),
                is_new: trie.get(&MemorySource, &path)?.is_none(),
                path,
            })
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    let mut new = 0;
    let mut items = Vec::with_capacity(changes.len());
    let mut rows = LayerRowWriter { view, generation, number, part: 0, open: Vec::new() };
    for LeafChange { key, leaf, is_new, path } in changes {
        new += u64::from(is_new);
        rows.add(key, &leaf)?;
        items.push(LeafUpdate::new(path, Some(leaf)));
    }
    rows.close()?;
    items.par_sort_unstable_by_key(|item| item.key);
    Ok((trie.update(&MemorySource, &items, &mut ())?, new))
}

/// The leaves of a trie that is completely in memory, in the order of their paths.
pub(crate) struct LeafIter {
    /// The links that are still to be visited; the next one is last.
    stack: Vec<NodeLink>,
}

impl LeafIter {
    pub(crate) fn of(trie: &Trie) -> Self {
        Self { stack: trie.root().cloned().into_iter().collect() }
    }
}

impl Iterator for LeafIter {
    type Item = Result<Arc<Leaf>, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.stack.pop()? {
                NodeLink::Leaf(leaf) => return Some(Ok(leaf)),
                NodeLink::Branch(link) if link.node().is_some() => {
                    let children = link.node().into_iter().flat_map(|node| node.children());
                    self.stack.extend(children.rev().flatten().cloned());
                }
                NodeLink::Branch(_) | NodeLink::Unresolved(_) => {
                    let what = "a node of a small trie is not in memory";
                    return Some(Err(StateError::corrupt("trie in memory", what)));
                }
            }
        }
    }
}
