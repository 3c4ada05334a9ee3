//! A block: keys take leaves, leaves are hashed, then layer by layer the subtrees above them.

use super::{
    cache::{DupTreeCache, Growing},
    hash::Batch,
    keys::{self, KEYS},
    layout::{Layout, RowChange, Step},
    leaf::Leaf,
    meta::{META, Meta},
    shape::{LEVELS, MAX_LEAVES, Numbered, Place, Shape, WIDTH},
    subtree::{BOTTOM, Dirty, NODES, Nodes, Subtree, node_at, rehash},
};
use rayon::prelude::*;
use retrie_state::{Change, NodeRead, NodeWrite, StateDelta, StateError, StateKey, flat};

/// Leaves, or subtrees, that one thread takes at a time: enough to be hashed together.
const CHUNK: usize = 16;

/// Applies `delta` as block `block`; the cache of the new state, with at most `most` subtrees.
pub(crate) fn apply(
    layout: Layout,
    view: &mut dyn NodeWrite,
    parent: &DupTreeCache,
    block: u64,
    delta: &StateDelta,
    most: usize,
) -> Result<DupTreeCache, StateError> {
    flat::apply(view, delta)?;
    let touched = number_keys(view, parent.shape, delta)?;
    if touched.keys.is_empty() {
        return Ok(parent.clone());
    }
    let shape = touched.shape;
    let mut changes = hash_leaves(view.as_read(), delta, touched)?;
    let mut cache = Growing::new(parent, block);
    let climb = Climb { layout, parent, shape };
    let mut top = None;
    for layer in 0..shape.layers() {
        let done = climb.layer(view.as_read(), layer, &changes)?;
        changes.clear();
        let mut subtrees = Vec::with_capacity(done.len());
        for Done { index, subtree, rows } in done {
            // The last layer ends where the tree does.
            let levels = LEVELS.min(shape.height() - layer * LEVELS);
            changes.push(Numbered { number: index, hash: *subtree.need(node_at(levels, 0))? });
            subtrees.push((index, subtree));
            rows.into_iter().try_for_each(|row| row.write(view))?;
        }
        cache.layer(layer, subtrees.into_iter());
        top = changes.first().map(|change| change.hash);
    }
    let top = top.ok_or_else(|| StateError::corrupt(KEYS.name, "a tree of one leaf has keys"))?;
    let row = |shape, top| Meta { shape, top }.encode();
    let previous = (parent.shape.leaves > 1).then(|| row(parent.shape, parent.top));
    view.replace(NODES, META, previous, Some(row(shape, top)))?;
    Ok(cache.finish(shape, top, most))
}

/// The keys of a delta that have a leaf after it.
struct Touched<'a> {
    /// Ascending.
    keys: Vec<TouchedKey<'a>>,
    /// The tree with the new leaves.
    shape: Shape,
}

struct TouchedKey<'a> {
    change: &'a Change,
    number: u64,
    is_new: bool,
}

/// Gives leaves to new keys, in the order of the delta.
fn number_keys<'a>(
    view: &mut dyn NodeWrite,
    shape: Shape,
    delta: &'a StateDelta,
) -> Result<Touched<'a>, StateError> {
    let read = view.as_read();
    let changes = delta.changes();
    let numbers = changes
        .par_iter()
        .with_min_len(CHUNK)
        .map(|change| keys::number(read, &change.key))
        .collect::<Result<Vec<_>, _>>()?;
    let mut touched = Touched { keys: Vec::with_capacity(changes.len()), shape };
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

/// The leaves of touched keys, and of those before new ones, hashed; by number.
fn hash_leaves(
    view: &dyn NodeRead,
    delta: &StateDelta,
    touched: Touched<'_>,
) -> Result<Vec<Numbered>, StateError> {
    let is_changed =
        |key: &StateKey| delta.changes().binary_search_by(|change| change.key.cmp(key)).is_ok();
    let hash_some = |keys: &[TouchedKey<'_>]| {
        let (mut batch, mut numbers, mut hashes) = (Batch::default(), Vec::new(), Vec::new());
        let mut add = |number: u64, leaf: Leaf| {
            batch.leaf(&leaf);
            numbers.push(number);
        };
        for TouchedKey { change: Change { key, next: value, .. }, number, is_new } in keys {
            let (key, value) = (*key, value.clone());
            if *is_new {
                let (before, number) = keys::before(view, &key)?;
                // Of one that changed itself the leaf is made anyway.
                if !before.as_ref().is_some_and(is_changed) {
                    let value = keys::value(view, before.as_ref())?;
                    add(number, Leaf { key: before, value, next: Some(key) });
                }
            }
            let next = keys::after(view, Some(&key))?;
            add(*number, Leaf { key: Some(key), value, next });
        }
        batch.finish_into(&mut hashes);
        let numbered = numbers.into_iter().zip(hashes);
        Ok(numbered.map(|(number, hash)| Numbered { number, hash }).collect())
    };
    let hashed: Result<Vec<Vec<Numbered>>, StateError> =
        touched.keys.par_chunks(CHUNK).map(hash_some).collect();
    let mut leaves = hashed?.concat();
    leaves.sort_unstable_by_key(|leaf| leaf.number);
    let is_sound = |pair: &[Numbered]| pair[0].number < pair[1].number;
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

/// The way up of a block.
struct Climb<'a> {
    layout: Layout,
    parent: &'a DupTreeCache,
    /// The tree after the block.
    shape: Shape,
}

/// A subtree after a block, and the rows that change.
struct Done {
    index: u64,
    subtree: Subtree,
    rows: Vec<RowChange>,
}

/// A subtree on its way.
struct Work {
    place: Place,
    before: Subtree,
    after: Subtree,
    changed: Nodes,
}

impl Climb<'_> {
    /// Puts changed bottoms (ascending) into the subtrees of a layer.
    fn layer(
        &self,
        view: &dyn NodeRead,
        layer: u8,
        changes: &[Numbered],
    ) -> Result<Vec<Done>, StateError> {
        let groups: Vec<&[Numbered]> =
            changes.chunk_by(|a, b| a.number / WIDTH == b.number / WIDTH).collect();
        let done = groups.par_chunks(CHUNK).map(|groups| self.subtrees(view, layer, groups));
        let done = done.collect::<Result<Vec<_>, _>>()?;
        Ok(done.into_iter().flatten().collect())
    }

    fn subtrees(
        &self,
        view: &dyn NodeRead,
        layer: u8,
        groups: &[&[Numbered]],
    ) -> Result<Vec<Done>, StateError> {
        let mut work = groups
            .iter()
            .filter_map(|group| group.first().map(|first| (first.number / WIDTH, *group)))
            .map(|(index, group)| self.load(view, Place { layer, index }, group))
            .collect::<Result<Vec<_>, _>>()?;
        let mut dirty: Vec<_> = work
            .iter_mut()
            .map(|work| Dirty { subtree: &mut work.after, changed: work.changed })
            .collect();
        rehash(&mut dirty)?;
        let shapes = [self.parent.shape, self.shape];
        let done = work.into_iter().map(|Work { place, before, after, changed }| {
            let mut rows = Vec::new();
            let step = Step { place, shapes, before: &before, after: &after, changed };
            self.layout.rows(&step, &mut rows)?;
            Ok(Done { index: place.index, subtree: after, rows })
        });
        done.collect()
    }

    fn load(
        &self,
        view: &dyn NodeRead,
        place: Place,
        group: &[Numbered],
    ) -> Result<Work, StateError> {
        let bottom = |number: u64| (number % WIDTH) as usize;
        let changed =
            Nodes::paths(group.iter().fold(0, |set, change| set | 1 << bottom(change.number)));
        let mut before = match self.parent.subtree(place) {
            Some(cached) => Subtree::clone(cached),
            None => Subtree::new(place.level(), self.parent.shape.filled(place)),
        };
        self.layout.load_for_change(view, place, changed, &mut before)?;
        let mut after = before.clone();
        after.grow(self.shape.filled(place));
        for Numbered { number, hash } in group {
            after.set(BOTTOM + bottom(*number), *hash);
        }
        Ok(Work { place, before, after, changed })
    }
}
