//! `dup`: a row for each bottom holds the five siblings that a path from there meets in the
//! subtree, from below. One row so is all that a path needs of a subtree; the paper's own layout
//! (sections 4.1.2 and 5.1.1), where each node above the bottoms is in many rows.
//!
//! A bottom that is empty has a row if its sibling is not: that sibling is in no other row.

use super::{Previous, RowChange, RowKey, Step, corrupt, hashes, joined, reported, row, row_key};
use crate::duptree::{
    shape::{LEVELS, Place, WIDTH},
    subtree::{BOTTOM, NODES, Nodes, Subtree, level_of, node_at, number_of},
};
use alloy_primitives::{B256, Bytes, hex};
use retrie_state::{Direction, KeyRange, NodeRead, StateError};

/// Rows of a subtree.
fn count(subtree: &Subtree) -> usize {
    usize::from(subtree.filled()).next_multiple_of(2)
}

fn key(place: Place, position: usize) -> RowKey {
    row_key(place.layer, place.index * WIDTH + position as u64)
}

/// The nodes that the row of a bottom holds, from below.
fn shown(position: usize) -> [usize; LEVELS as usize] {
    std::array::from_fn(|level| node_at(level as u8, position >> level ^ 1))
}

/// Takes the nodes of a row that are not known, empty ones aside.
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
    place: Place,
    paths: Nodes,
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

/// Loads all that rows show, which follows from one range of them, if it is not known.
pub(super) fn load(
    view: &dyn NodeRead,
    place: Place,
    subtree: &mut Subtree,
) -> Result<(), StateError> {
    let count = count(subtree);
    let all = (0..count).flat_map(shown);
    if all.into_iter().all(|node| subtree.get(node).is_some()) {
        return Ok(());
    }
    let (start, end) = (key(place, 0), key(place, count));
    let mut rows = view.scan(NODES, KeyRange::new(&start, &end), Direction::Forward)?;
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

pub(super) fn rows(step: &Step<'_>, rows: &mut Vec<RowChange>) -> Result<(), StateError> {
    for position in 0..count(step.after) {
        let previous =
            (position < count(step.before)).then(|| encode(step.before, position)).transpose()?;
        if previous.is_some() && !shown(position).iter().any(|node| step.changed.has(*node)) {
            continue;
        }
        let next = encode(step.after, position)?;
        if previous.as_ref() != Some(&next) {
            let previous = Previous::Row(previous);
            rows.push(RowChange { key: key(step.place, position), previous, next });
        }
    }
    Ok(())
}

/// Copies of a node must agree, and be what the bottoms make it.
pub(super) fn check(
    view: &dyn NodeRead,
    place: Place,
    mut subtree: Subtree,
    report: &mut dyn FnMut(StateError),
) -> Result<Option<Subtree>, StateError> {
    // Of each node the row that shows it first, and how.
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
            let what = format!("has a node {number} of level {level} that is not what is below it");
            report(corrupt(key, &what));
        }
    }
    Ok(Some(subtree))
}
