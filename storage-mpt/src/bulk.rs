//! Loading a whole state at once, the same for both layouts.

use crate::{
    TrieHash, leaf,
    node::{Branch, Link},
    touched::{decode_account, not_canonical},
    trie::{InMemory, Item, NodeSource},
};
use alloy_primitives::{Address, B256};
use alloy_trie::{Nibbles, nodes::RlpNode};
use rayon::prelude::*;
use retrie_state::{Account, BulkSink, StateError, StateKey, Value};
use std::sync::Arc;

/// What a backend writes of a state.
pub(crate) trait Layout {
    fn hash(&self) -> TrieHash;

    /// Writes what is kept of an entry beside the tries.
    fn entry(
        &mut self,
        sink: &mut dyn BulkSink,
        key: &StateKey,
        value: &Value,
    ) -> Result<(), StateError>;

    /// Writes the trie of `items`, sorted by key (the storage trie of `trie`, or the account trie),
    /// and returns its root.
    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<Address>,
        items: Vec<Item>,
    ) -> Result<B256, StateError>;
}

/// Writes all tries of `entries`, which come in key order; returns the root.
///
/// Holds all accounts and the largest storage trie in memory: some 300 bytes a key.
pub(crate) fn load(
    layout: &mut impl Layout,
    entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut accounts: Vec<(Address, Account, B256)> = Vec::new();
    // The storage that is being collected, and where its account stands in `accounts`.
    let mut storage: Option<(usize, Vec<(B256, Value)>)> = None;
    let mut last = None;
    for entry in entries {
        let (key, value) = entry?;
        if last.is_some_and(|last| last >= key) {
            return Err(StateError::corrupt("bulk load", format!("{key} is out of order")));
        }
        last = Some(key);
        layout.entry(sink, &key, &value)?;
        match key {
            StateKey::Account(address) => {
                let account = decode_account(&address, &value)?;
                accounts.push((address, account, layout.hash().empty_root()));
            }
            StateKey::Slot(address, slot) => {
                if storage.as_ref().is_none_or(|(at, _)| accounts[*at].0 != address) {
                    finish_storage(layout, storage.take(), &mut accounts, sink)?;
                    let at = accounts
                        .binary_search_by_key(&address, |(address, ..)| *address)
                        .map_err(|_| {
                            let what = format!("{key} is set although its account is absent");
                            StateError::corrupt("bulk load", what)
                        })?;
                    storage = Some((at, Vec::new()));
                }
                if let Some((_, slots)) = &mut storage {
                    slots.push((slot, value));
                }
            }
        }
    }
    finish_storage(layout, storage, &mut accounts, sink)?;
    let with = layout.hash();
    let mut items: Vec<_> = accounts
        .into_par_iter()
        .map(|(address, account, storage_root)| Item {
            key: with.hash(address),
            value: Some(leaf::encode_account(&account, storage_root)),
        })
        .collect();
    items.par_sort_unstable_by_key(|item| item.key);
    layout.build(sink, None, items)
}

fn finish_storage(
    layout: &mut impl Layout,
    storage: Option<(usize, Vec<(B256, Value)>)>,
    accounts: &mut [(Address, Account, B256)],
    sink: &mut dyn BulkSink,
) -> Result<(), StateError> {
    let Some((at, slots)) = storage else { return Ok(()) };
    let (address, _, storage_root) = &mut accounts[at];
    let with = layout.hash();
    let mut items = slots
        .into_par_iter()
        .with_min_len(64)
        .map(|(slot, value)| {
            let value = leaf::encode_slot_value(&value)
                .ok_or_else(|| not_canonical(&StateKey::Slot(*address, slot)))?;
            Ok(Item { key: with.hash(slot), value: Some(value) })
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    items.par_sort_unstable_by_key(|item| item.key);
    *storage_root = layout.build(sink, Some(*address), items)?;
    Ok(())
}

/// Builds from nothing and keeps nothing: the rows are all that is wanted.
pub(crate) struct Unkept;

impl NodeSource for Unkept {
    fn load(&self, path: &Nibbles, reference: &RlpNode) -> Result<Arc<Branch>, StateError> {
        InMemory.load(path, reference)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<Link, StateError> {
        InMemory.resolve(path, reference)
    }

    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        false
    }
}
