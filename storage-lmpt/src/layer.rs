//! The small layers: a trie that is wholly in memory, and a row of each of its keys, from which it is
//! built again.

use crate::{
    leaf,
    row::{LAYERS, generation_range, layer_key},
};
use alloy_primitives::{B256, Bytes, keccak256};
use rayon::prelude::*;
use retrie_state::{Direction, KeyRange, NodeRead, NodeWrite, StateDelta, StateError, StateKey};
use retrie_storage_mpt::{
    InMemory, Item, Trie,
    trie::{Leaf, Link},
};
use std::sync::Arc;

/// Keys that one thread hashes at a time.
const CHUNK: usize = 32;

/// The path of a key: keccak-256 of its encoding.
pub(crate) fn path_of(key: &StateKey) -> B256 {
    keccak256(&*key.encode())
}

/// The trie of `generation` as its rows say, and how many there are.
pub(crate) fn read(view: &dyn NodeRead, generation: u64) -> Result<(Trie, u64), StateError> {
    let (start, end) = generation_range(generation);
    let rows = view.scan(LAYERS, KeyRange::new(&start, &end), Direction::Forward)?;
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let count = rows.len() as u64;
    let mut items = rows
        .into_par_iter()
        .with_min_len(CHUNK)
        .map(|(key, row)| {
            check_row(&key, &row)?;
            Ok(Item::new(keccak256(&key[8..]), Some(row)))
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    items.par_sort_unstable_by_key(|item| item.key);
    Ok((Trie::default().update(&InMemory, &items, &mut ())?, count))
}

/// The key of a layer row, if the row is sound.
pub(crate) fn check_row(key: &Bytes, row: &Bytes) -> Result<StateKey, StateError> {
    let of = key.get(8..).and_then(StateKey::decode);
    let of = of.filter(|_| leaf::decode(row).is_some());
    of.ok_or_else(|| StateError::corrupt(LAYERS.name, format!("row {key} is malformed")))
}

/// The delta of `generation` with the changes of a block, which are written to its rows; and how many
/// of the keys are new to it. A key that goes leaves a tombstone, whatever the layers below have: so
/// what a trie holds depends on its own blocks alone.
pub(crate) fn apply(
    view: &mut dyn NodeWrite,
    generation: u64,
    trie: &Trie,
    delta: &StateDelta,
) -> Result<(Trie, u64), StateError> {
    struct Changed {
        row: Vec<u8>,
        previous: Option<Bytes>,
        item: Item,
    }
    let mut changes = delta
        .changes()
        .par_iter()
        .with_min_len(CHUNK)
        .filter(|change| change.previous != change.next)
        .map(|change| {
            let key = change.key.encode();
            let path = keccak256(&*key);
            let next = leaf::encode(change.next.as_ref());
            Ok(Changed {
                row: layer_key(generation, &key),
                // A row holds what the leaf holds, so that nothing is read for undo.
                previous: trie.get(&InMemory, &path)?,
                item: Item::new(path, Some(next)),
            })
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    let mut new = 0;
    let mut items = Vec::with_capacity(changes.len());
    for Changed { row, previous, item } in changes.drain(..) {
        new += u64::from(previous.is_none());
        view.replace(LAYERS, &row, previous, item.value.clone())?;
        items.push(item);
    }
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
