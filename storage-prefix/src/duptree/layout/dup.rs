//! `dup`: the row of a bottom holds the five siblings on the path from this bottom to the subtree's
//! root, from below. So a path needs only one row of a subtree. This is the paper's own layout
//! (sections 4.1.2 and 5.1.1); each node above the bottoms is in many rows.
//!
//! An empty bottom has a row if its sibling is not empty, because this sibling is in no other row.

use super::{
    PreviousRow, RowChange, RowKey, SubtreeChange, corrupt, hashes, joined, reported, row, row_key,
};
use crate::duptree::{
    shape::{LEVELS, SubtreePlace, WIDTH},
    subtree::{BOTTOM, NODES, NodeSet, Subtree, level_of, node_at, number_of},
};
use alloy_primitives::{B256, Bytes, hex};
use retrie_state::{KeyRange, NodeRead, ScanDirection, StateError};

/// Number of rows of a subtree.
fn count(subtree: &Subtree) -> usize {
    usize::from(subtree.filled()).next_multiple_of(2)
}

fn key(place: SubtreePlace, position: usize) -> RowKey {
    row_key(place.layer, place.index * WIDTH + position as u64)
}

/// The nodes in the row of a bottom, from below.
fn shown(position: usize) -> [usize; LEVELS as usize] {
    std::array::from_fn(|level| node_at(level as u8, position >> level ^ 1))
}

/// Takes unknown nodes from a row, except empty ones.
fn take(key: RowKey, row: &[u8], position: usize, subtree: &mut Subtree) -> Result<(), StateError> {
    for (node, hash) in shown(position).into_iter().zip(hashes(key, row, LEVELS.into())?) {
        if subtree.get(node).is_none() {
            subtree.set(node, B256::from(hash));
        }
    }
    Ok(())
}

pub(super) fn load_siblings(
    view: &dyn NodeRead,
    place: SubtreePlace,
    paths: NodeSet,
    subtree: &mut Subtree,
) -> Result<(), StateError> {
    let siblings = paths.siblings();
    for position in (0..BOTTOM).filter(|position| paths.has(BOTTOM + position)) {
        let shown = shown(position).into_iter();
        if shown.filter(|node| siblings.has(*node)).any(|node| subtree.get(node).is_none()) {
            let key = key(place, position);
            take(key, &row(view, key)?, position, subtree)?;
        }
    }
    Ok(())
}

/// Loads all nodes in the subtree's rows, with one scan, unless they are known.
pub(super) fn load(
    view: &dyn NodeRead,
    place: SubtreePlace,
    subtree: &mut Subtree,
) -> Result<(), StateError> {
    let count = count(subtree);
    let all = (0..count).flat_map(shown);
    if all.into_iter().all(|node| subtree.get(node).is_some()) {
        return Ok(());
    }
    let (start, end) = (key(place, 0), key(place, count));
    let mut rows = view.scan(NODES, KeyRange::new(&start, &end), ScanDirection::Forward)?;
    for position in 0..count {
        let key = key(place, position);
        match rows.next().transpose()? {
            Some((found, row)) if found[..] == key => take(key, &row, position, subtree)?,
            _ => return Err(corrupt(key, "is missing")),
        }
    }
    Ok(())
}

fn encode(subtree: &Subtree, position: usize) -> Result<Bytes, StateError> {
    let nodes = shown(position).map(|node| subtree.need(node));
    let nodes = nodes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(joined(nodes.into_iter()))
}

pub(super) fn rows(step: &SubtreeChange<'_>, rows: &mut Vec<RowChange>) -> Result<(), StateError> {
    for position in 0..count(step.after) {
        let previous =
            (position < count(step.before)).then(|| encode(step.before, position)).transpose()?;
        if previous.is_some() && !shown(position).iter().any(|node| step.changed.has(*node)) {
            continue;
        }
        let next = encode(step.after, position)?;
        if previous.as_ref() != Some(&next) {
            let previous = PreviousRow::Row(previous);
            rows.push(RowChange { key: key(step.place, position), previous, next });
        }
    }
    Ok(())
}

/// Checks that all copies of a node agree, and equal the hash that follows from the bottoms.
pub(super) fn check(
    view: &dyn NodeRead,
    place: SubtreePlace,
    mut subtree: Subtree,
    report: &mut dyn FnMut(StateError),
) -> Result<Option<Subtree>, StateError> {
    // For each node the first row that holds it, and the hash in this row.
    let mut copies: Vec<Option<(RowKey, B256)>> = vec![None; 2 * BOTTOM];
    let mut is_whole = true;
    for position in 0..count(&subtree) {
        let key = key(place, position);
        let Some(row) = reported(row(view, key), report)? else {
            is_whole = false;
            continue;
        };
        let Some(found) = reported(hashes(key, &row, LEVELS.into()), report)? else {
            is_whole = false;
            continue;
        };
        for (node, hash) in shown(position).into_iter().zip(found.iter().map(B256::from)) {
            match &copies[node] {
                None => copies[node] = Some((key, hash)),
                Some((other, first)) if *first != hash => {
                    let (level, number) =
                        (place.level() + level_of(node), number_of(place.index, node));
                    let other = hex::encode(other);
                    let what = format!(
                        "has {hash} for node {number} of level {level}, but row {other} has {first}"
                    );
                    report(corrupt(key, &what));
                }
                Some(_) => {}
            }
        }
    }
    if !is_whole {
        return Ok(None);
    }
    for position in 0..usize::from(subtree.filled()) {
        if let Some((_, hash)) = copies[BOTTOM + position] {
            subtree.set(BOTTOM + position, hash);
        }
    }
    subtree.complete()?;
    for (node, copy) in copies.into_iter().enumerate() {
        let Some((key, hash)) = copy else { continue };
        if subtree.need(node)? != &hash {
            let (level, number) = (place.level() + level_of(node), number_of(place.index, node));
            let what = format!("has a wrong node {number} of level {level}");
            report(corrupt(key, &what));
        }
    }
    Ok(Some(subtree))
}
