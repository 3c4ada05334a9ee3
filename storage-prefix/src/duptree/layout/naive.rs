//! `naive`: a row for each node below the top, keyed by its level.

use super::{
    PreviousRow, RowChange, RowKey, SubtreeChange, corrupt, hashes, reported, row, row_key,
};
use crate::duptree::{
    shape::{SubtreePlace, TreeShape},
    subtree::{BOTTOM, NodeSet, Subtree, level_of, number_of},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{NodeRead, StateError};

fn key(place: SubtreePlace, node: usize) -> RowKey {
    row_key(place.level() + level_of(node), number_of(place.index, node))
}

fn read(view: &dyn NodeRead, place: SubtreePlace, node: usize) -> Result<B256, StateError> {
    let key = key(place, node);
    let row = row(view, key)?;
    match hashes(key, &row, 1)? {
        [hash] => Ok(B256::from(hash)),
        _ => Err(corrupt(key, "is not a hash")),
    }
}

pub(super) fn load_siblings(
    view: &dyn NodeRead,
    place: SubtreePlace,
    paths: NodeSet,
    subtree: &mut Subtree,
) -> Result<(), StateError> {
    for node in paths.siblings().iter() {
        if subtree.get(node).is_none() {
            let hash = read(view, place, node)?;
            subtree.set(node, hash);
        }
    }
    Ok(())
}

/// The nodes of a subtree that have rows: all nodes below the top, except the subtree's root, which
/// is a bottom of the layer above.
fn stored(shape: TreeShape, place: SubtreePlace, subtree: &Subtree) -> impl Iterator<Item = usize> {
    let is_below_top = move |node| place.level() + level_of(node) < shape.height();
    (2..2 * BOTTOM).filter(move |node| !subtree.is_empty(*node) && is_below_top(*node))
}

pub(super) fn rows(step: &SubtreeChange<'_>, rows: &mut Vec<RowChange>) -> Result<(), StateError> {
    let [shape_before, shape] = step.shapes;
    for node in stored(shape, step.place, step.after).filter(|node| step.changed.has(*node)) {
        let was_stored = !step.before.is_empty(node)
            && step.place.level() + level_of(node) < shape_before.height();
        let previous = match (was_stored, step.before.get(node)) {
            (false, _) => PreviousRow::Row(None),
            (true, Some(hash)) => PreviousRow::Row(Some(Bytes::copy_from_slice(&hash[..]))),
            (true, None) => PreviousRow::Unread,
        };
        let next = Bytes::copy_from_slice(&step.after.need(node)?[..]);
        rows.push(RowChange { key: key(step.place, node), previous, next });
    }
    Ok(())
}

pub(super) fn check(
    view: &dyn NodeRead,
    shape: TreeShape,
    place: SubtreePlace,
    mut subtree: Subtree,
    report: &mut dyn FnMut(StateError),
) -> Result<Option<Subtree>, StateError> {
    let nodes: Vec<usize> = stored(shape, place, &subtree).collect();
    let mut found = Vec::with_capacity(nodes.len());
    let mut is_whole = true;
    for node in nodes {
        match reported(read(view, place, node), report)? {
            Some(hash) => found.push((node, hash)),
            None => is_whole &= node < BOTTOM,
        }
    }
    if !is_whole {
        return Ok(None);
    }
    for (node, hash) in found.iter().filter(|(node, _)| *node >= BOTTOM) {
        subtree.set(*node, *hash);
    }
    subtree.complete()?;
    for (node, hash) in found {
        if subtree.need(node)? != &hash {
            report(corrupt(key(place, node), "is not the hash of the two nodes below"));
        }
    }
    Ok(Some(subtree))
}
