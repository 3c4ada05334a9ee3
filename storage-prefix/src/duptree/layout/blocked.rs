//! `blocked`: a row holds the bottoms of a subtree that are not empty, 1 to 32 hashes.
//!
//! What is above them is hashed again when the row is loaded. Kept in the row it would save 26 of
//! 31 hashes where one bottom changes, some microseconds, but would double the row, and with it
//! what is read, journalled and kept for undo.

use super::{Previous, RowChange, Step, hashes, joined, reported, row, row_key};
use crate::duptree::{
    shape::Place,
    subtree::{BOTTOM, Subtree},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{NodeRead, StateError};

/// Loads the bottoms, if they are not known.
pub(super) fn load(
    view: &dyn NodeRead,
    place: Place,
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

pub(super) fn rows(step: &Step<'_>, rows: &mut Vec<RowChange>) -> Result<(), StateError> {
    let key = row_key(step.place.layer, step.place.index);
    let previous = Previous::Row(encode(step.before)?);
    rows.extend(encode(step.after)?.map(|next| RowChange { key, previous, next }));
    Ok(())
}

pub(super) fn check(
    view: &dyn NodeRead,
    place: Place,
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
