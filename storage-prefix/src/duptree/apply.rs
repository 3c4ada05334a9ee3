//! Applies a block's delta: new keys take leaves, leaves are hashed, then the subtrees above them,
//! layer by layer.

use super::{
    cache::{CacheBuilder, DupTreeCache, SubtreeRoom},
    hash::HashBatch,
    keys::{self, KEYS},
    layout::{DupTreeLayout, RowChange, SubtreeChange},
    leaf::IndexedLeaf,
    meta::{DupTreeMeta, META},
    shape::{LEVELS, MAX_LEAVES, NumberedHash, SubtreePlace, TreeShape, WIDTH},
    subtree::{BOTTOM, DirtySubtree, NODES, NodeSet, Subtree, node_at, rehash},
};
use rayon::prelude::*;
use retrie_state::{
    BackendChange, BackendDelta, BackendKey, NodeRead, NodeWrite, StateChange, StateError, flat,
};

/// Leaves, or subtrees, that one thread takes at a time: enough to hash them together efficiently.
const CHUNK: usize = 16;

/// Applies `delta` as block `block`; returns the cache of the new state, within
/// `room`.
pub(crate) fn apply(
    layout: DupTreeLayout,
    view: &mut dyn NodeWrite,
    parent: &DupTreeCache,
    block: u64,
    delta: &BackendDelta,
    room: &SubtreeRoom,
) -> Result<DupTreeCache, StateError> {
    flat::apply(view, delta)?;
    let touched = number_keys(view, parent.shape, delta)?;
    if touched.keys.is_empty() {
        return Ok(parent.clone());
    }
    let shape = touched.shape;
    let mut changes = hash_leaves(view.as_read(), delta, touched)?;
    let mut cache = CacheBuilder::new(parent, block);
    let climb = LayerUpdate { layout, parent, shape, room };
    let mut top = None;
    for layer in 0..shape.layers() {
        let done = climb.layer(view.as_read(), layer, &changes)?;
        changes.clear();
        let mut subtrees = Vec::with_capacity(done.len());
        for UpdatedSubtree { index, subtree, rows } in done {
            // The last layer may have fewer levels.
            let levels = LEVELS.min(shape.height() - layer * LEVELS);
            changes.push(NumberedHash { number: index, hash: *subtree.need(node_at(levels, 0))? });
            subtrees.push((index, subtree));
            rows.into_iter().try_for_each(|row| row.write(view))?;
        }
        cache.layer(layer, subtrees.into_iter());
        top = changes.first().map(|change| change.hash);
    }
    let top = top.ok_or_else(|| StateError::corrupt(KEYS.name, "a tree of one leaf has keys"))?;
    let row = |shape, top| DupTreeMeta { shape, top }.encode();
    let previous = (parent.shape.leaves > 1).then(|| row(parent.shape, parent.top));
    view.replace(NODES, META, previous, Some(row(shape, top)))?;
    Ok(cache.finish(shape, top, room.most))
}

/// The keys of a delta that have a leaf after the block, with their leaf numbers.
struct NumberedDelta<'a> {
    /// Ascending.
    keys: Vec<TouchedKey<'a>>,
    /// The tree with the new leaves.
    shape: TreeShape,
}

struct TouchedKey<'a> {
    change: &'a BackendChange,
    number: u64,
    is_new: bool,
}

/// Finds the leaves of the delta's keys, and gives leaves to new keys, in the order of the delta.
fn number_keys<'a>(
    view: &mut dyn NodeWrite,
    shape: TreeShape,
    delta: &'a BackendDelta,
) -> Result<NumberedDelta<'a>, StateError> {
    let read = view.as_read();
    let changes = delta.changes();
    let numbers = changes
        .par_iter()
        .with_min_len(CHUNK)
        .map(|change| keys::number(read, &change.key))
        .collect::<Result<Vec<_>, _>>()?;
    let mut touched = NumberedDelta { keys: Vec::with_capacity(changes.len()), shape };
    for (change, number) in changes.iter().zip(numbers) {
        let key = change.key;
        match number {
            Some(number) if number < shape.leaves => {
                touched.keys.push(TouchedKey { change, number, is_new: false });
            }
            Some(number) => {
                let what = format!("{key} has leaf {number} of {}", shape.leaves);
                return Err(StateError::corrupt(KEYS.name, what));
            }
            None if change.previous.is_some() => {
                let what = format!("{key} has a value, but no leaf");
                return Err(StateError::corrupt(KEYS.name, what));
            }
            None if change.next.is_none() => {}
            None if touched.shape.leaves == MAX_LEAVES => {
                return Err(StateError::Exhausted {
                    backend: super::descriptor::NAME,
                    what: format!("the number of leaves, at {key},"),
                    limit: MAX_LEAVES,
                });
            }
            None => {
                let number = touched.shape.leaves;
                touched.shape.leaves += 1;
                view.replace(KEYS, &key.encode(), None, Some(keys::row(number)))?;
                touched.keys.push(TouchedKey { change, number, is_new: true });
            }
        }
    }
    Ok(touched)
}

/// Hashes the leaves of touched keys, and of the predecessors of new keys; sorted by number.
fn hash_leaves(
    view: &dyn NodeRead,
    delta: &BackendDelta,
    touched: NumberedDelta<'_>,
) -> Result<Vec<NumberedHash>, StateError> {
    let is_changed =
        |key: &BackendKey| delta.changes().binary_search_by(|change| change.key.cmp(key)).is_ok();
    let hash_some = |keys: &[TouchedKey<'_>]| {
        let (mut batch, mut numbers, mut hashes) = (HashBatch::default(), Vec::new(), Vec::new());
        let mut add = |number: u64, leaf: IndexedLeaf| {
            batch.leaf(&leaf);
            numbers.push(number);
        };
        for TouchedKey { change: StateChange { key, next: value, .. }, number, is_new } in keys {
            let (key, value) = (*key, value.clone());
            if *is_new {
                let (before, number) = keys::before(view, &key)?;
                // A predecessor that is in the delta is hashed anyway.
                if !before.as_ref().is_some_and(is_changed) {
                    let value = keys::value(view, before.as_ref())?;
                    add(number, IndexedLeaf { key: before, value, next: Some(key) });
                }
            }
            let next = keys::after(view, Some(&key))?;
            add(*number, IndexedLeaf { key: Some(key), value, next });
        }
        batch.finish_into(&mut hashes);
        let numbered = numbers.into_iter().zip(hashes);
        Ok(numbered.map(|(number, hash)| NumberedHash { number, hash }).collect())
    };
    let hashed: Result<Vec<Vec<NumberedHash>>, StateError> =
        touched.keys.par_chunks(CHUNK).map(hash_some).collect();
    let mut leaves = hashed?.concat();
    leaves.sort_unstable_by_key(|leaf| leaf.number);
    let is_sound = |pair: &[NumberedHash]| pair[0].number < pair[1].number;
    if !leaves.windows(2).all(is_sound)
        || leaves.last().is_some_and(|last| last.number >= touched.shape.leaves)
    {
        return Err(StateError::corrupt(
            KEYS.name,
            "two keys have one leaf, or one beyond the last",
        ));
    }
    Ok(leaves)
}

/// The update of all layers by a block, bottom up.
struct LayerUpdate<'a> {
    layout: DupTreeLayout,
    parent: &'a DupTreeCache,
    /// The tree after the block.
    shape: TreeShape,
    room: &'a SubtreeRoom,
}

/// A subtree after a block, and its changed rows.
struct UpdatedSubtree {
    index: u64,
    subtree: Subtree,
    rows: Vec<RowChange>,
}

/// The update of one subtree, in progress.
struct SubtreeUpdate {
    place: SubtreePlace,
    before: Subtree,
    after: Subtree,
    changed: NodeSet,
}

impl LayerUpdate<'_> {
    /// Updates the subtrees of a layer with changed bottoms, which are sorted.
    fn layer(
        &self,
        view: &dyn NodeRead,
        layer: u8,
        changes: &[NumberedHash],
    ) -> Result<Vec<UpdatedSubtree>, StateError> {
        let groups: Vec<&[NumberedHash]> =
            changes.chunk_by(|a, b| a.number / WIDTH == b.number / WIDTH).collect();
        let done = groups.par_chunks(CHUNK).map(|groups| self.subtrees(view, layer, groups));
        let done = done.collect::<Result<Vec<_>, _>>()?;
        Ok(done.into_iter().flatten().collect())
    }

    fn subtrees(
        &self,
        view: &dyn NodeRead,
        layer: u8,
        groups: &[&[NumberedHash]],
    ) -> Result<Vec<UpdatedSubtree>, StateError> {
        let mut work = groups
            .iter()
            .filter_map(|group| group.first().map(|first| (first.number / WIDTH, *group)))
            .map(|(index, group)| self.load(view, SubtreePlace { layer, index }, group))
            .collect::<Result<Vec<_>, _>>()?;
        let mut dirty: Vec<_> = work
            .iter_mut()
            .map(|work| DirtySubtree { subtree: &mut work.after, changed: work.changed })
            .collect();
        rehash(&mut dirty)?;
        let shapes = [self.parent.shape, self.shape];
        let done = work.into_iter().map(|SubtreeUpdate { place, before, after, changed }| {
            let mut rows = Vec::new();
            let step = SubtreeChange { place, shapes, before: &before, after: &after, changed };
            self.layout.rows(&step, &mut rows)?;
            Ok(UpdatedSubtree { index: place.index, subtree: after, rows })
        });
        done.collect()
    }

    fn load(
        &self,
        view: &dyn NodeRead,
        place: SubtreePlace,
        group: &[NumberedHash],
    ) -> Result<SubtreeUpdate, StateError> {
        let bottom = |number: u64| (number % WIDTH) as usize;
        let changed =
            NodeSet::paths(group.iter().fold(0, |set, change| set | 1 << bottom(change.number)));
        let mut before = match self.parent.subtree(place) {
            Some(cached) => {
                self.room.lookups.hit(place.index as u8);
                Subtree::clone(cached)
            }
            None => {
                self.room.lookups.miss(place.index as u8);
                Subtree::new(place.level(), self.parent.shape.filled(place))
            }
        };
        self.layout.load_for_change(view, place, changed, &mut before)?;
        let mut after = before.clone();
        after.grow(self.shape.filled(place));
        for NumberedHash { number, hash } in group {
            after.set(BOTTOM + bottom(*number), *hash);
        }
        Ok(SubtreeUpdate { place, before, after, changed })
    }
}
