//! Makes witnesses.

use super::bytes::WitnessBytes;
use crate::duptree::{
    cache::DupTreeCache,
    keys::{self, KEYS},
    layout::DupTreeLayout,
    prove::{covering_leaves, path_siblings},
};
use alloy_primitives::B256;
use retrie_state::{BackendKey, NodeRead, StateError, WitnessRequest};
use std::collections::BTreeSet;

/// The witness of `block` in the state of `view` and `cache`.
pub(in crate::duptree) fn make(
    layout: DupTreeLayout,
    view: &dyn NodeRead,
    cache: &DupTreeCache,
    block: WitnessRequest<'_>,
) -> Result<Vec<u8>, StateError> {
    let mut keys = block.keys();
    for account in block.listed {
        keys.push(BackendKey::Slot(*account, B256::ZERO));
        keys.extend(keys::slots_with_leaf(view, account)?);
    }
    let leaves = covering_leaves(view, cache, &keys)?;
    let own: BTreeSet<&BackendKey> = leaves.values().filter_map(|leaf| leaf.key.as_ref()).collect();
    let is_new = |key: &BackendKey| !own.contains(key);
    let grows = block.delta.changes().iter().any(|c| c.next.is_some() && is_new(&c.key));

    let shape = cache.shape;
    let mut numbers: Vec<u64> = leaves.keys().copied().collect();
    let mut last = None;
    if grows && !leaves.contains_key(&(shape.leaves - 1)) {
        last = Some(last_leaf(layout, view, cache)?);
        numbers.push(shape.leaves - 1);
    }
    let mut hashes = match numbers.is_empty() {
        true => vec![cache.top],
        false => path_siblings(layout, view, cache, numbers.clone())?,
    };
    if grows {
        let mut siblings = sibling_places(shape.height(), numbers).into_iter();
        hashes
            .retain(|_| siblings.next().is_none_or(|(level, number)| number < shape.nodes(level)));
    }
    let count = grows.then_some(shape.leaves);
    let leaves = leaves.into_iter().collect();
    Ok(WitnessBytes { height: shape.height(), count, leaves, last, hashes }.encode())
}

/// The hash of the last leaf: the sibling of the leaf beside it.
fn last_leaf(
    layout: DupTreeLayout,
    view: &dyn NodeRead,
    cache: &DupTreeCache,
) -> Result<B256, StateError> {
    let number = cache.shape.leaves - 1;
    let siblings = path_siblings(layout, view, cache, vec![number ^ 1])?;
    siblings.first().copied().ok_or_else(|| {
        StateError::corrupt(KEYS.name, format!("leaf {number}, the last one, has no hash"))
    })
}

/// Level and number of the siblings on the paths of the leaves `numbers` that do not follow from
/// these leaves, in the order of [`path_siblings`].
fn sibling_places(height: u8, numbers: Vec<u64>) -> Vec<(u8, u64)> {
    let mut places = Vec::new();
    let mut numbers: BTreeSet<u64> = numbers.into_iter().collect();
    for level in 0..height {
        let siblings = numbers.iter().map(|number| number ^ 1);
        places.extend(siblings.filter(|at| !numbers.contains(at)).map(|number| (level, number)));
        numbers = numbers.iter().map(|number| number / 2).collect();
    }
    places
}
