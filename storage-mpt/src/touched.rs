//! A block's delta as the tries see it: by account, slots as items of a batch.

use crate::{
    TrieHash, leaf,
    trie::{Item, NodeSource, Recorder, Trie},
};
use alloy_primitives::Address;
use rayon::prelude::*;
use retrie_state::{Account, Change, StateDelta, StateError, StateKey, Value};
use std::collections::BTreeMap;

/// From this number of slots of one account on, their keys are hashed in parallel.
const PARALLEL_HASHES: usize = 256;

/// All that a block changes about one account.
pub(crate) struct Touched<'a> {
    pub(crate) address: Address,
    pub(crate) account: Option<&'a Change>,
    pub(crate) slots: &'a [Change],
    pub(crate) wiped: bool,
}

impl Touched<'_> {
    /// The account's item for the account trie, and its storage trie after the block, `None` if the
    /// account is then absent. `before` is the account with its storage trie.
    pub(crate) fn after(
        &self,
        with: TrieHash,
        before: Option<(Account, Trie)>,
        source: &impl NodeSource,
        recorder: &mut impl Recorder,
    ) -> Result<(Item, Option<Trie>), StateError> {
        let key = with.hash(self.address);
        let account = match self.account {
            None => before.as_ref().map(|(account, _)| *account),
            Some(Change { next, .. }) => {
                next.as_ref().map(|next| decode_account(&self.address, next)).transpose()?
            }
        };
        let Some(account) = account else {
            refuse_orphan(self.slots)?;
            return Ok((Item { key, value: None }, None));
        };
        let storage = match before {
            Some((_, storage)) if !self.wiped => storage,
            _ => Trie::empty(with),
        };
        let storage = if self.slots.is_empty() {
            storage
        } else {
            storage.update(source, &slot_items(with, self.slots)?, recorder)?
        };
        let value = Some(leaf::encode_account(&account, storage.hash()));
        Ok((Item { key, value }, Some(storage)))
    }
}

/// The delta by account, in address order.
pub(crate) fn by_account(delta: &StateDelta) -> Vec<Touched<'_>> {
    let changes = delta.changes();
    let split = changes.partition_point(|change| matches!(change.key, StateKey::Account(_)));
    let (accounts, slots) = changes.split_at(split);
    let mut touched = BTreeMap::new();
    let new =
        |address: &Address| Touched { address: *address, account: None, slots: &[], wiped: false };
    for change in accounts {
        let address = change.key.address();
        touched.entry(*address).or_insert_with(|| new(address)).account = Some(change);
    }
    for slots in slots.chunk_by(|a, b| a.key.address() == b.key.address()) {
        let address = slots[0].key.address();
        touched.entry(*address).or_insert_with(|| new(address)).slots = slots;
    }
    for address in delta.wiped() {
        touched.entry(*address).or_insert_with(|| new(address)).wiped = true;
    }
    touched.into_values().collect()
}

/// Hashed and sorted slot changes of one account.
pub(crate) fn slot_items(with: TrieHash, slots: &[Change]) -> Result<Vec<Item>, StateError> {
    let item = |change: &Change| {
        let StateKey::Slot(_, slot) = &change.key else {
            return Err(StateError::corrupt("delta", format!("{} among slots", change.key)));
        };
        let encode = |value: &Value| {
            leaf::encode_slot_value(value).ok_or_else(|| not_canonical(&change.key))
        };
        let value = change.next.as_ref().map(encode).transpose()?;
        Ok(Item { key: with.hash(slot), value })
    };
    let mut items: Vec<Item> = if slots.len() < PARALLEL_HASHES {
        slots.iter().map(item).collect::<Result<_, _>>()?
    } else {
        slots.par_iter().with_min_len(64).map(item).collect::<Result<_, _>>()?
    };
    items.sort_unstable_by_key(|item| item.key);
    Ok(items)
}

pub(crate) fn not_canonical(key: &StateKey) -> StateError {
    StateError::corrupt("delta", format!("the value of {key} is not canonically encoded"))
}

pub(crate) fn decode_account(address: &Address, value: &Value) -> Result<Account, StateError> {
    Account::decode(value).ok_or_else(|| not_canonical(&StateKey::Account(*address)))
}

/// Refuses slots below an account that does not exist: nothing under the root could hold them.
pub(crate) fn refuse_orphan(slots: &[Change]) -> Result<(), StateError> {
    match slots.iter().find(|change| change.next.is_some()) {
        None => Ok(()),
        Some(change) => Err(StateError::corrupt(
            "delta",
            format!("{} is set although its account is absent", change.key),
        )),
    }
}
