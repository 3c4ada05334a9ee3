//! Makes proofs of keys.

use super::{
    cache::DupTreeCache,
    keys::{self, KEYS},
    layout::DupTreeLayout,
    leaf::IndexedLeaf,
    proof::DupTreeProof,
    shape::{LEVELS, SubtreePlace, WIDTH},
    subtree::{NodeSet, Subtree, level_of},
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BackendKey, NodeRead, StateError};
use std::{collections::BTreeMap, sync::Arc};

/// Keys, or subtrees, that one thread takes at a time.
const CHUNK: usize = 16;

/// The proof of `keys` in the state of `view` and `cache`.
pub(crate) fn prove(
    layout: DupTreeLayout,
    view: &dyn NodeRead,
    cache: &DupTreeCache,
    keys: &[BackendKey],
) -> Result<DupTreeProof, StateError> {
    let leaves = covering_leaves(view, cache, keys)?;
    let height = cache.shape.height();
    let numbers: Vec<u64> = leaves.keys().copied().collect();
    let hashes = match numbers.is_empty() {
        true => vec![cache.top],
        false => path_siblings(layout, view, cache, numbers)?,
    };
    Ok(DupTreeProof { height, leaves: leaves.into_iter().collect(), hashes })
}

/// The leaves that cover `keys`, by number.
pub(super) fn covering_leaves(
    view: &dyn NodeRead,
    cache: &DupTreeCache,
    keys: &[BackendKey],
) -> Result<BTreeMap<u64, IndexedLeaf>, StateError> {
    let leaves = keys
        .par_iter()
        .with_min_len(CHUNK)
        .map(|key| keys::covering_leaf(view, key))
        .collect::<Result<BTreeMap<_, _>, _>>()?;
    if let Some((number, _)) = leaves.range(cache.shape.leaves..).next() {
        let what = format!("a key has leaf {number} of {}", cache.shape.leaves);
        return Err(StateError::corrupt(KEYS.name, what));
    }
    Ok(leaves)
}

/// The siblings on the paths of the leaves with these numbers, ascending, that do not follow from
/// these leaves: level by level from below, from left to right.
pub(super) fn path_siblings(
    layout: DupTreeLayout,
    view: &dyn NodeRead,
    cache: &DupTreeCache,
    mut numbers: Vec<u64>,
) -> Result<Vec<B256>, StateError> {
    let height = cache.shape.height();
    let mut hashes = Vec::new();
    for layer in 0..cache.shape.layers() {
        let groups: Vec<&[u64]> = numbers.chunk_by(|a, b| a / WIDTH == b / WIDTH).collect();
        let found = groups
            .par_iter()
            .with_min_len(CHUNK)
            .map(|group| siblings(layout, view, cache, layer, group))
            .collect::<Result<Vec<_>, _>>()?;
        for level in 0..LEVELS.min(height - layer * LEVELS) {
            let of_level = found.iter().flatten().filter(|(at, _)| *at == level);
            hashes.extend(of_level.map(|(_, hash)| *hash));
        }
        numbers = groups.iter().filter_map(|group| Some(group.first()? / WIDTH)).collect();
    }
    Ok(hashes)
}

/// The siblings, with their levels above the bottoms, on the paths from the bottoms with these
/// numbers, which are all in one subtree.
fn siblings(
    layout: DupTreeLayout,
    view: &dyn NodeRead,
    cache: &DupTreeCache,
    layer: u8,
    numbers: &[u64],
) -> Result<Vec<(u8, B256)>, StateError> {
    let index = numbers.first().map_or(0, |first| first / WIDTH);
    let place = SubtreePlace { layer, index };
    let paths = NodeSet::paths(numbers.iter().fold(0, |set, number| set | 1 << (number % WIDTH)));
    let found = |subtree: &Subtree| {
        let siblings = paths.siblings().iter();
        siblings.map(|node| Ok((level_of(node), *subtree.need(node)?))).collect()
    };
    match cache.subtree(place).map(Arc::as_ref) {
        Some(subtree) if subtree.knows(paths.siblings()) => found(subtree),
        cached => {
            let new = || Subtree::new(place.level(), cache.shape.filled(place));
            let mut subtree = cached.cloned().unwrap_or_else(new);
            layout.load_siblings(view, place, paths, &mut subtree)?;
            found(&subtree)
        }
    }
}
