//! Loading the pages on the paths of keys, before the delta that changes them comes.

use crate::{
    hash::TreeHash,
    key::{SlotPlace, account_path, account_word, group_path},
    page::{Exit, ExitTarget, TreePlace, nibble},
    state::PbtState,
    tree::LoadedPages,
    units::zones,
};
use alloy_primitives::B256;
use retrie_state::{BackendKey, NodeRead, StateError};

/// Loads the pages on the way to `keys`.
pub(crate) fn prefetch(
    hash: TreeHash,
    view: &dyn NodeRead,
    state: &PbtState,
    keys: &[BackendKey],
) -> Result<(), StateError> {
    let [headers, _, storages] = zones();
    let [header_root, _, storage_root] = state.zones();
    for key in keys {
        let owner = key.account();
        let path = account_path(hash, owner);
        let group = match key {
            BackendKey::Account(_) => None,
            BackendKey::Slot(_, slot) => match SlotPlace::of(slot) {
                SlotPlace::Header(_) => None,
                SlotPlace::Storage { group, .. } => Some(group),
            },
        };
        let Some(group) = group else {
            walk(hash, view, state, &headers, header_root.clone(), &path)?;
            continue;
        };
        walk(hash, view, state, &storages, storage_root.clone(), &path)?;
        let place = TreePlace::storage(owner, &path);
        let root = state.storage(hash, view, &place, owner)?;
        walk(hash, view, state, &place, root, &group_path(hash, &account_word(owner), &group))?;
    }
    Ok(())
}

/// Loads the pages from a root down to a path.
fn walk(
    hash: TreeHash,
    view: &dyn NodeRead,
    state: &PbtState,
    place: &TreePlace,
    root: Option<Exit>,
    to: &B256,
) -> Result<(), StateError> {
    let mut next = root;
    while let Some(Exit { target: ExitTarget::Page(path, page), .. }) = next {
        if !path.leads_to(to) {
            break;
        }
        let page = match page.or_else(|| state.ahead().get(place, &path)) {
            Some(page) => page,
            None => {
                state.ahead().missed(&path);
                let page = place.load(hash, view, &path)?;
                state.ahead().insert(place, page.clone());
                page
            }
        };
        next = page.exit(nibble(to, path.len)).cloned();
    }
    Ok(())
}
