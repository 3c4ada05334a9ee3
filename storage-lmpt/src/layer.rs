//! The small layers: a trie that is wholly in memory, and rows that say block by block what became of
//! its keys, from which it is built again.
//!
//! A key has no row of its own: nothing is looked up in the rows of a layer, and those of a block lie
//! together, where they are written and removed.

use crate::{
    leaf,
    row::{LAYERS, generation_range, layer_key, parse_layer_key},
};
use alloy_primitives::{B256, Bytes, keccak256};
use rayon::prelude::*;
use retrie_state::{
    Direction, KeyRange, NodeRead, NodeWrite, StateDelta, StateError, StateKey,
    wire::{WireReader, put_varint},
};
use retrie_storage_mpt::{
    InMemory, Item, Trie,
    trie::{Leaf, Link},
};
use std::sync::Arc;

/// Keys that one thread hashes at a time.
const CHUNK: usize = 32;
/// Bytes of a row after which a block goes on in the next one, so that one is a page on disk.
const ROW_BYTES: usize = 3_900;

/// The path of a key: keccak-256 of its encoding.
pub(crate) fn path_of(key: &StateKey) -> B256 {
    keccak256(&*key.encode())
}

/// The trie of `generation` as its rows say, and how many keys it has.
pub(crate) fn read(view: &dyn NodeRead, generation: u64) -> Result<(Trie, u64), StateError> {
    let (start, end) = generation_range(generation);
    let rows = view.scan(LAYERS, KeyRange::new(&start, &end), Direction::Forward)?;
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let read: Vec<_> =
        rows.par_iter().map(|(key, row)| read_row(key, row)).collect::<Result<_, _>>()?;
    let mut order = Order::default();
    rows.iter().zip(&read).try_for_each(|((key, _), entries)| order.follow(key, entries))?;
    let item = |(key, leaf): (StateKey, Bytes)| Item::new(path_of(&key), Some(leaf));
    let mut items: Vec<_> =
        read.into_par_iter().flat_map_iter(|entries| entries.into_iter().map(item)).collect();
    // In the order of blocks: of a key the last one counts.
    items.par_sort_by_key(|item| item.key);
    items.dedup_by(|later, earlier| {
        let is_same = later.key == earlier.key;
        if is_same {
            std::mem::swap(later, earlier);
        }
        is_same
    });
    let count = items.len() as u64;
    Ok((Trie::default().update(&InMemory, &items, &mut ())?, count))
}

/// Keys and leaves of a layer row.
pub(crate) type Entries = Vec<(StateKey, Bytes)>;

/// Reads a layer row; it has one entry or more.
pub(crate) fn read_row(key: &Bytes, row: &Bytes) -> Result<Entries, StateError> {
    let malformed = || StateError::corrupt(LAYERS.name, format!("row {key} is malformed"));
    let (mut rest, mut entries) = (WireReader::new(row), Vec::new());
    let mut entry = || {
        let len = usize::from(rest.u8().ok()?);
        let key = StateKey::decode(rest.take(len).ok()?)?;
        let len = usize::try_from(rest.varint().ok()?).ok()?;
        let found = rest.take(len).ok()?;
        leaf::decode(found)?;
        entries.push((key, Bytes::copy_from_slice(found)));
        Some(rest.is_empty())
    };
    while !entry().ok_or_else(malformed)? {}
    Ok(entries)
}

/// The order of layer rows: parts of a block are numbered from 0 on, and keys of a block ascend.
#[derive(Debug, Default)]
pub(crate) struct Order(Option<((u64, u64, u32), StateKey)>);

impl Order {
    /// Refuses a row that cannot come next.
    pub(crate) fn follow(&mut self, key: &Bytes, entries: &Entries) -> Result<(), StateError> {
        let is_next = |(generation, number, part): (u64, u64, u32), first: &StateKey| {
            let keys = entries.iter().map(|(key, _)| key);
            let continues = |((of, at, before), last): &((u64, u64, u32), StateKey)| {
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

/// Writes the rows of a block.
struct RowsOf<'a> {
    view: &'a mut dyn NodeWrite,
    generation: u64,
    number: u64,
    part: u32,
    open: Vec<u8>,
}

impl RowsOf<'_> {
    fn add(&mut self, key: &StateKey, leaf: &[u8]) -> Result<(), StateError> {
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

/// The delta of `generation` with the changes of block `number`, which are written to its rows; and how
/// many of the keys are new to it. A key that goes leaves a tombstone, whatever the layers below have: so
/// what a trie holds depends on its own blocks alone.
pub(crate) fn apply(
    view: &mut dyn NodeWrite,
    (generation, number): (u64, u64),
    trie: &Trie,
    delta: &StateDelta,
) -> Result<(Trie, u64), StateError> {
    struct Changed<'a> {
        key: &'a StateKey,
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
            Ok(Changed {
                key: &change.key,
                leaf: leaf::encode(change.next.as_ref()),
                is_new: trie.get(&InMemory, &path)?.is_none(),
                path,
            })
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    let mut new = 0;
    let mut items = Vec::with_capacity(changes.len());
    let mut rows = RowsOf { view, generation, number, part: 0, open: Vec::new() };
    for Changed { key, leaf, is_new, path } in changes {
        new += u64::from(is_new);
        rows.add(key, &leaf)?;
        items.push(Item::new(path, Some(leaf)));
    }
    rows.close()?;
    items.par_sort_unstable_by_key(|item| item.key);
    Ok((trie.update(&InMemory, &items, &mut ())?, new))
}

/// The leaves of a trie that is wholly in memory, in the order of their paths.
pub(crate) struct Leaves {
    /// What is still to come, the next one last.
    stack: Vec<Link>,
}

impl Leaves {
    pub(crate) fn of(trie: &Trie) -> Self {
        Self { stack: trie.root().cloned().into_iter().collect() }
    }
}

impl Iterator for Leaves {
    type Item = Result<Arc<Leaf>, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.stack.pop()? {
                Link::Leaf(leaf) => return Some(Ok(leaf)),
                Link::Branch(link) if link.node().is_some() => {
                    let children = link.node().into_iter().flat_map(|node| node.children());
                    self.stack.extend(children.rev().flatten().cloned());
                }
                Link::Branch(_) | Link::Unresolved(_) => {
                    let what = "a node of a small trie is not in memory";
                    return Some(Err(StateError::corrupt("trie in memory", what)));
                }
            }
        }
    }
}
