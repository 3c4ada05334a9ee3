//! `blocked`: a row holds the non-empty bottoms of a subtree, 1 to 32 hashes.
//!
//! The nodes above them are hashed again when the row is loaded. Storing them in the row would save
//! 26 of 31 hashes when one bottom changes, a few microseconds, but would double the row, and so
//! the bytes that are read, journalled and kept for undo.

use super::{PreviousRow, RowChange, SubtreeChange, hashes, joined, reported, row, row_key};
use crate::duptree::{
    shape::SubtreePlace,
    subtree::{BOTTOM, Subtree},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{NodeRead, StateError};

/// Loads the bottoms, unless they are known.
pub(super) fn load(
    view: &dyn NodeRead,
    place: SubtreePlace,
    subtree: &mut Subtree,
) -> Result<(), StateError> {
    let filled = usize::from(subtree.filled());
    if (BOTTOM..BOTTOM + filled).all(|node| subtree.get(node).is_some()) {
        return Ok(());
    }
    let key = row_key(place.layer, place.index);
    let row = row(view, key)?;
    for (node, hash) in (BOTTOM..).zip(hashes(key, &row, filled)?) {
        subtree.set(node, B256::from(hash));
    }
    Ok(())
}

fn encode(subtree: &Subtree) -> Result<Option<Bytes>, StateError> {
    let filled = usize::from(subtree.filled());
    let bottoms =
        (BOTTOM..BOTTOM + filled).map(|node| subtree.need(node)).collect::<Result<Vec<_>, _>>()?;
    Ok((filled > 0).then(|| joined(bottoms.into_iter())))
}

pub(super) fn rows(step: &SubtreeChange<'_>, rows: &mut Vec<RowChange>) -> Result<(), StateError> {
    let key = row_key(step.place.layer, step.place.index);
    let previous = PreviousRow::Row(encode(step.before)?);
    rows.extend(encode(step.after)?.map(|next| RowChange { key, previous, next }));
    Ok(())
}

pub(super) fn check(
    view: &dyn NodeRead,
    place: SubtreePlace,
    mut subtree: Subtree,
    report: &mut dyn FnMut(StateError),
) -> Result<Option<Subtree>, StateError> {
    let loaded = reported(load(view, place, &mut subtree), report)?;
    if loaded.is_none() {
        return Ok(None);
    }
    subtree.complete()?;
    Ok(Some(subtree))
}
