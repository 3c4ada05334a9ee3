//! Bulk load of a whole state. Leaves come in key order, which is the order of their numbers; each
//! subtree is written when its last bottom is known.

use super::{
    hash::HashBatch,
    keys::{self, KEYS},
    layout::{DupTreeLayout, PreviousRow, SubtreeChange},
    leaf::IndexedLeaf,
    meta::{DupTreeMeta, META},
    shape::{LEVELS, SubtreePlace, TreeShape, WIDTH},
    subtree::{BOTTOM, DirtySubtree, NODES, NodeSet, ROOT, Subtree, node_at, rehash},
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BackendKey, BulkSink, StateError, StateValue, flat};

/// Subtrees of layer 0 that are hashed together by one thread.
const CHUNK: usize = 8;
/// Number of leaves that are collected before they are hashed: a multiple of a thread's share.
const WAITING: usize = 64 * CHUNK * WIDTH as usize;

/// Loads all entries; returns size and top of the tree.
pub(crate) fn load(
    layout: DupTreeLayout,
    entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<DupTreeMeta, StateError> {
    let mut loader = TreeLoader {
        layout,
        sink,
        waiting: Vec::new(),
        shape: TreeShape { leaves: 0 },
        open: Vec::new(),
    };
    let mut last = IndexedLeaf::SENTINEL;
    for entry in entries {
        let (key, value) = entry?;
        flat::put(loader.sink, &key, &value)?;
        loader.sink.put(KEYS, &key.encode(), &keys::row(loader.shape.leaves + 1))?;
        last.next = Some(key);
        loader.leaf(std::mem::replace(
            &mut last,
            IndexedLeaf { key: Some(key), value: Some(value), next: None },
        ))?;
    }
    loader.leaf(last)?;
    loader.finish()
}

struct TreeLoader<'a> {
    layout: DupTreeLayout,
    sink: &'a mut dyn BulkSink,
    waiting: Vec<IndexedLeaf>,
    /// The tree so far.
    shape: TreeShape,
    /// For each layer the subtree that is not full yet, with its bottoms.
    open: Vec<(SubtreePlace, Vec<B256>)>,
}

impl TreeLoader<'_> {
    fn leaf(&mut self, leaf: IndexedLeaf) -> Result<(), StateError> {
        self.waiting.push(leaf);
        self.shape.leaves += 1;
        if self.waiting.len() == WAITING { self.hash_waiting() } else { Ok(()) }
    }

    fn hash_waiting(&mut self) -> Result<(), StateError> {
        let hash = |leaves: &[IndexedLeaf]| {
            let (mut batch, mut hashes) = (HashBatch::default(), Vec::with_capacity(leaves.len()));
            leaves.iter().for_each(|leaf| batch.leaf(leaf));
            batch.finish_into(&mut hashes);
            hashes
        };
        let hashes: Vec<Vec<B256>> =
            self.waiting.par_chunks(CHUNK * WIDTH as usize).map(hash).collect();
        self.waiting.clear();
        self.push(0, hashes.concat())
    }

    /// Adds nodes to a layer's bottoms, and writes the subtrees that become full.
    fn push(&mut self, layer: u8, nodes: Vec<B256>) -> Result<(), StateError> {
        let at = usize::from(layer);
        if self.open.len() == at {
            self.open.push((SubtreePlace { layer, index: 0 }, Vec::new()));
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
            // The rows of a full subtree do not depend on the final height of the tree.
            self.write(*place, subtree)?;
        }
        self.push(layer + 1, above)
    }

    /// Writes the rows of a new subtree.
    fn write(&mut self, place: SubtreePlace, subtree: &Subtree) -> Result<(), StateError> {
        let before = Subtree::new(subtree.level(), 0);
        let changed = NodeSet::paths(u32::MAX);
        let shapes = [TreeShape { leaves: 1 }, self.shape];
        let mut rows = Vec::new();
        self.layout.rows(
            &SubtreeChange { place, shapes, before: &before, after: subtree, changed },
            &mut rows,
        )?;
        for row in rows {
            debug_assert_eq!(row.previous, PreviousRow::Row(None));
            self.sink.put_unordered(NODES, &row.key, &row.next)?;
        }
        Ok(())
    }

    /// Writes the subtrees that are not full, and the row of the tree's size.
    fn finish(mut self) -> Result<DupTreeMeta, StateError> {
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
        // If the leaves fill all layers, the top is already a bottom of the layer above.
        let above = self.open.get(usize::from(layers)).and_then(|(_, bottoms)| bottoms.first());
        let top = top
            .or_else(|| above.copied())
            .ok_or_else(|| StateError::corrupt(NODES.name, "a load has no top"))?;
        let meta = DupTreeMeta { shape: self.shape, top };
        self.sink.put_unordered(NODES, META, &meta.encode())?;
        Ok(meta)
    }
}

/// The subtrees of these bottoms, hashed; the last may not be full.
fn subtrees(
    first: SubtreePlace,
    bottoms: &[B256],
) -> Result<Vec<(SubtreePlace, Subtree)>, StateError> {
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
        let dirty = |subtree| DirtySubtree { subtree, changed: NodeSet::default() };
        rehash(&mut subtrees.iter_mut().map(dirty).collect::<Vec<_>>())?;
        Ok(subtrees)
    };
    let hashed: Result<Vec<Vec<Subtree>>, StateError> =
        groups.par_chunks(CHUNK).map(hash).collect();
    let places = (first.index..).map(|index| SubtreePlace { index, ..first });
    Ok(places.zip(hashed?.into_iter().flatten()).collect())
}
