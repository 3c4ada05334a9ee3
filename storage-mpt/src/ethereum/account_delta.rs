//! A block's delta by account, with slots as items for a storage trie.

use crate::{
    TrieHash, leaf,
    trie::{LeafUpdate, NodeSource, RowStamp, Trie, UpdateRecorder},
};
use rayon::prelude::*;
use retrie_state::{
    Account, AccountKey, BackendChange, BackendDelta, BackendKey, StateChange, StateError,
    StateValue,
};
use std::collections::BTreeMap;

/// If one account changes at least this many slots, their keys are hashed in parallel.
const PARALLEL_HASHES: usize = 256;

/// All changes of one account in a block.
#[derive(Clone, Copy, Debug)]
pub struct AccountDelta<'a> {
    /// The account.
    pub owner: AccountKey,
    /// The change of the account itself, if there is one.
    pub account: Option<&'a BackendChange>,
    /// The changes of its slots, in slot order.
    pub slots: &'a [BackendChange],
    /// Whether its whole storage is deleted before these changes.
    pub wiped: bool,
}

/// The item of an account for the account trie, and its storage trie.
type AccountAfter = (LeafUpdate, Option<Trie>);

impl AccountDelta<'_> {
    /// The account's item for the account trie, and its storage trie after the block, `None` if the
    /// account is then absent. `before` is the account with its storage trie before the block.
    ///
    /// # Errors
    /// Errors of `source`, and [`StateError::Corrupt`] for a delta that does not fit any state.
    pub fn after<N: NodeSource<Stamp = ()>>(
        &self,
        with: TrieHash,
        before: Option<(Account, Trie)>,
        source: &N,
        recorder: &mut impl UpdateRecorder<Stamp = ()>,
    ) -> Result<AccountAfter, StateError> {
        let key = with.account_path(&self.owner);
        let account = match self.account {
            None => before.as_ref().map(|(account, _)| *account),
            Some(StateChange { next, .. }) => {
                next.as_ref().map(|next| decode_account(&self.owner, next)).transpose()?
            }
        };
        let Some(account) = account else {
            refuse_orphan(self.slots)?;
            return Ok((LeafUpdate::new(key, None), None));
        };
        let storage = match before {
            Some((_, storage)) if !self.wiped => storage,
            _ => Trie::empty(with),
        };
        let storage = if self.slots.is_empty() {
            storage
        } else {
            storage.update(source, &slot_items(with, self.slots, N::PARALLEL)?, recorder)?
        };
        let value = Some(leaf::encode_account(&account, storage.hash()));
        Ok((LeafUpdate::new(key, value), Some(storage)))
    }
}

/// The delta by account, in owner order.
pub fn by_account(delta: &BackendDelta) -> Vec<AccountDelta<'_>> {
    let changes = delta.changes();
    let split = changes.partition_point(|change| matches!(change.key, BackendKey::Account(_)));
    let (accounts, slots) = changes.split_at(split);
    let mut touched = BTreeMap::new();
    let new = |owner: &AccountKey| AccountDelta {
        owner: *owner,
        account: None,
        slots: &[],
        wiped: false,
    };
    for change in accounts {
        let owner = change.key.account();
        touched.entry(*owner).or_insert_with(|| new(owner)).account = Some(change);
    }
    for slots in slots.chunk_by(|a, b| a.key.account() == b.key.account()) {
        let owner = slots[0].key.account();
        touched.entry(*owner).or_insert_with(|| new(owner)).slots = slots;
    }
    for owner in delta.wiped() {
        touched.entry(*owner).or_insert_with(|| new(owner)).wiped = true;
    }
    touched.into_values().collect()
}

/// The slot changes of one account as items, hashed and sorted. With `parallel` the keys of many
/// slots are hashed in parallel.
///
/// # Errors
/// [`StateError::Corrupt`] for a key that is no slot, or a value that is not canonical.
pub fn slot_items<S: RowStamp>(
    with: TrieHash,
    slots: &[BackendChange],
    parallel: bool,
) -> Result<Vec<LeafUpdate<S>>, StateError> {
    let item = |change: &BackendChange| {
        let BackendKey::Slot(owner, slot) = &change.key else {
            return Err(StateError::corrupt("delta", format!("{} among slots", change.key)));
        };
        let encode = |value: &StateValue| {
            leaf::encode_slot_value(value).ok_or_else(|| not_canonical(&change.key))
        };
        let value = change.next.as_ref().map(encode).transpose()?;
        Ok(LeafUpdate::new(with.slot_path(owner, slot), value))
    };
    let mut items: Vec<LeafUpdate<S>> = if !parallel || slots.len() < PARALLEL_HASHES {
        slots.iter().map(item).collect::<Result<_, _>>()?
    } else {
        slots.par_iter().with_min_len(64).map(item).collect::<Result<_, _>>()?
    };
    items.sort_unstable_by_key(|item| item.key);
    Ok(items)
}

pub(super) fn not_canonical(key: &BackendKey) -> StateError {
    StateError::corrupt("delta", format!("the value of {key} is not canonically encoded"))
}

/// The account that `value` encodes.
///
/// # Errors
/// [`StateError::Corrupt`] if it is not canonical.
pub fn decode_account(owner: &AccountKey, value: &StateValue) -> Result<Account, StateError> {
    Account::decode(value).ok_or_else(|| not_canonical(&BackendKey::Account(*owner)))
}

/// Rejects slots of an account that does not exist, since no leaf could hold their storage root.
///
/// # Errors
/// [`StateError::Corrupt`] if one of `slots` is set.
pub fn refuse_orphan(slots: &[BackendChange]) -> Result<(), StateError> {
    match slots.iter().find(|change| change.next.is_some()) {
        None => Ok(()),
        Some(change) => Err(StateError::corrupt(
            "delta",
            format!("{} is set although its account is absent", change.key),
        )),
    }
}
