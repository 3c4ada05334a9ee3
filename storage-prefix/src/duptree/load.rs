//! A whole state at once: leaves come in key order, and so in the order of their numbers; each
//! subtree is written when its last bottom is there.

use super::{
    hash::Batch,
    keys::{self, KEYS},
    layout::{Layout, Previous, Step},
    leaf::Leaf,
    meta::{META, Meta},
    shape::{LEVELS, Place, Shape, WIDTH},
    subtree::{BOTTOM, Dirty, NODES, Nodes, ROOT, Subtree, node_at, rehash},
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BulkSink, StateError, StateKey, Value, flat};

/// Subtrees of layer 0 that are hashed together by one thread.
const CHUNK: usize = 8;
/// Leaves that wait to be hashed, a multiple of what a thread takes.
const WAITING: usize = 64 * CHUNK * WIDTH as usize;

/// Loads all entries; what the tree is in the end.
pub(crate) fn load(
    layout: Layout,
    entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<Meta, StateError> {
    let mut loader =
        Loader { layout, sink, waiting: Vec::new(), shape: Shape { leaves: 0 }, open: Vec::new() };
    let mut last = Leaf::SENTINEL;
    for entry in entries {
        let (key, value) = entry?;
        flat::put(loader.sink, &key, &value)?;
        loader.sink.put(KEYS, &key.encode(), &keys::row(loader.shape.leaves + 1))?;
        last.next = Some(key);
        loader.leaf(std::mem::replace(
            &mut last,
            Leaf { key: Some(key), value: Some(value), next: None },
        ))?;
    }
    loader.leaf(last)?;
    loader.finish()
}

struct Loader<'a> {
    layout: Layout,
    sink: &'a mut dyn BulkSink,
    waiting: Vec<Leaf>,
    /// The tree so far.
    shape: Shape,
    /// The subtree of each layer that is not full yet, with its bottoms.
    open: Vec<(Place, Vec<B256>)>,
}

impl Loader<'_> {
    fn leaf(&mut self, leaf: Leaf) -> Result<(), StateError> {
        self.waiting.push(leaf);
        self.shape.leaves += 1;
        if self.waiting.len() == WAITING { self.hash_waiting() } else { Ok(()) }
    }

    fn hash_waiting(&mut self) -> Result<(), StateError> {
        let hash = |leaves: &[Leaf]| {
            let (mut batch, mut hashes) = (Batch::default(), Vec::with_capacity(leaves.len()));
            leaves.iter().for_each(|leaf| batch.leaf(leaf));
            batch.finish_into(&mut hashes);
            hashes
        };
        let hashes: Vec<Vec<B256>> =
            self.waiting.par_chunks(CHUNK * WIDTH as usize).map(hash).collect();
        self.waiting.clear();
        self.push(0, hashes.concat())
    }

    /// Adds nodes to a layer's bottoms. What is full goes.
    fn push(&mut self, layer: u8, nodes: Vec<B256>) -> Result<(), StateError> {
        let at = usize::from(layer);
        if self.open.len() == at {
            self.open.push((Place { layer, index: 0 }, Vec::new()));
        }
        let (place, bottoms) = &mut self.open[at];
        bottoms.extend(nodes);
        let full = bottoms.len() - bottoms.len() % WIDTH as usize;
        if full == 0 {
            return Ok(());
        }
        let rest = bottoms.split_off(full);
        let full = std::mem::replace(bottoms, rest);
        let first = *place;
        place.index += full.len() as u64 / WIDTH;
        let subtrees = subtrees(first, &full)?;
        let mut above = Vec::with_capacity(subtrees.len());
        for (place, subtree) in &subtrees {
            above.push(*subtree.need(ROOT)?);
            // That the tree is higher than a full subtree does not show in its rows.
            self.write(*place, subtree)?;
        }
        self.push(layer + 1, above)
    }

    /// Writes the rows of a subtree, none of which was there.
    fn write(&mut self, place: Place, subtree: &Subtree) -> Result<(), StateError> {
        let before = Subtree::new(subtree.level(), 0);
        let changed = Nodes::paths(u32::MAX);
        let shapes = [Shape { leaves: 1 }, self.shape];
        let mut rows = Vec::new();
        self.layout
            .rows(&Step { place, shapes, before: &before, after: subtree, changed }, &mut rows)?;
        for row in rows {
            debug_assert_eq!(row.previous, Previous::Row(None));
            self.sink.put_unordered(NODES, &row.key, &row.next)?;
        }
        Ok(())
    }

    /// Writes what is not full.
    fn finish(mut self) -> Result<Meta, StateError> {
        if self.shape.leaves == 1 {
            return Ok(super::cache::DupTreeCache::empty());
        }
        self.hash_waiting()?;
        let (height, layers) = (self.shape.height(), self.shape.layers());
        let mut top = None;
        for layer in 0..layers {
            let (place, bottoms) = match self.open.get_mut(usize::from(layer)) {
                Some((place, bottoms)) => (*place, std::mem::take(bottoms)),
                None => break,
            };
            if bottoms.is_empty() {
                continue;
            }
            let subtrees = subtrees(place, &bottoms)?;
            for (place, subtree) in &subtrees {
                self.write(*place, subtree)?;
                let levels = LEVELS.min(height - layer * LEVELS);
                let node = *subtree.need(node_at(levels, 0))?;
                match layer + 1 == layers {
                    true => top = Some(node),
                    false => self.push(layer + 1, vec![node])?,
                }
            }
        }
        // A tree that its layers fill to the last place has its top in the layer above.
        let above = self.open.get(usize::from(layers)).and_then(|(_, bottoms)| bottoms.first());
        let top = top
            .or_else(|| above.copied())
            .ok_or_else(|| StateError::corrupt(NODES.name, "a load has no top"))?;
        let meta = Meta { shape: self.shape, top };
        self.sink.put_unordered(NODES, META, &meta.encode())?;
        Ok(meta)
    }
}

/// Subtrees of these bottoms, of which the last may not be full.
fn subtrees(first: Place, bottoms: &[B256]) -> Result<Vec<(Place, Subtree)>, StateError> {
    let groups: Vec<&[B256]> = bottoms.chunks(WIDTH as usize).collect();
    let hash = |groups: &[&[B256]]| {
        let mut subtrees: Vec<Subtree> = groups
            .iter()
            .map(|group| {
                let mut subtree = Subtree::new(first.level(), group.len() as u8);
                (BOTTOM..).zip(*group).for_each(|(node, hash)| subtree.set(node, *hash));
                subtree
            })
            .collect();
        let dirty = |subtree| Dirty { subtree, changed: Nodes::default() };
        rehash(&mut subtrees.iter_mut().map(dirty).collect::<Vec<_>>())?;
        Ok(subtrees)
    };
    let hashed: Result<Vec<Vec<Subtree>>, StateError> =
        groups.par_chunks(CHUNK).map(hash).collect();
    let places = (first.index..).map(|index| Place { index, ..first });
    Ok(places.zip(hashed?.into_iter().flatten()).collect())
}
