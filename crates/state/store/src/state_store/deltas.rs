//! Deltas in the form of a store's keys.

use super::provider::StateProvider;
use alloy_primitives::B256;
use retrie_state::{
    AccountKey, BackendDelta, BackendKey, DeltaBuilder, KeyForm, StateChange, StateDelta,
    StateError, StateValue,
};
use std::collections::BTreeMap;

/// The deltas of consecutive blocks on top of `state`, with keys in the form of its store, and with
/// the removal of every slot of an account that is wiped: the client cannot name the slots of
/// hashed accounts.
pub(super) fn in_form_of<'d>(
    state: &StateProvider,
    deltas: impl IntoIterator<Item = &'d StateDelta>,
) -> Result<Vec<BackendDelta>, StateError> {
    let form = state.durable.keys;
    let mut done = Vec::new();
    for delta in deltas {
        let delta = form.delta(delta);
        done.push(match form {
            KeyForm::Hashed if !delta.wiped().is_empty() => completed(state, &done, &delta)?,
            KeyForm::Plain | KeyForm::Hashed => delta,
        });
    }
    Ok(done)
}

/// `delta` on top of `state` and the `earlier` deltas, with all slots of wiped accounts.
fn completed(
    state: &StateProvider,
    earlier: &[BackendDelta],
    delta: &BackendDelta,
) -> Result<BackendDelta, StateError> {
    let mut complete = DeltaBuilder::new();
    complete.add_codes(delta.codes());
    for account in delta.wiped() {
        complete.wipe(*account);
        for (slot, value) in slots(state, earlier, account)? {
            complete.change(BackendKey::Slot(*account, slot), Some(value), None);
        }
    }
    // The values before, where they are known by now, are kept.
    for StateChange { key, previous, next } in delta.changes() {
        complete.change(*key, previous.clone(), next.clone());
    }
    Ok(complete.build())
}

/// The slots of `account` on top of `state` and the `earlier` deltas.
fn slots(
    state: &StateProvider,
    earlier: &[BackendDelta],
    account: &AccountKey,
) -> Result<BTreeMap<B256, StateValue>, StateError> {
    let StateProvider { durable, view, cache, .. } = state;
    let slots = durable.backend.slots_of(view, cache, account, usize::MAX)?;
    let mut slots: BTreeMap<_, _> = slots.into_iter().collect();
    for StateChange { key, next, .. } in earlier.iter().flat_map(|delta| delta.slots_of(account)) {
        if let BackendKey::Slot(_, slot) = key {
            match next {
                Some(value) => drop(slots.insert(*slot, value.clone())),
                None => drop(slots.remove(slot)),
            }
        }
    }
    Ok(slots)
}
