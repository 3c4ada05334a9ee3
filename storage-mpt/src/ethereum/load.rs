//! Bulk load of a whole state, for all row layouts.

use super::account_delta::{decode_account, not_canonical};
use crate::{
    TrieHash, leaf,
    trie::{LeafUpdate, RowStamp},
};
use alloy_primitives::{Address, B256};
use rayon::prelude::*;
use retrie_state::{Account, BulkSink, StateError, StateKey, StateValue};

/// The rows that a backend writes in a bulk load.
pub trait BulkLayout {
    /// The stamp of account leaves: the version of the rows of their storage.
    type Stamp: RowStamp;

    /// The stamp of accounts whose storage trie is built.
    fn stamp(&self) -> Self::Stamp;

    /// The hash function of all tries.
    fn hash(&self) -> TrieHash;

    /// Writes the rows of an entry that are not part of the tries.
    ///
    /// # Errors
    /// Errors of the sink.
    fn entry(
        &mut self,
        sink: &mut dyn BulkSink,
        key: &StateKey,
        value: &StateValue,
    ) -> Result<(), StateError>;

    /// Writes the trie of `items`, which are sorted by key, and returns its root. It is the storage
    /// trie of the account `trie`, or the account trie.
    ///
    /// # Errors
    /// Errors of the sink.
    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<Address>,
        items: Vec<LeafUpdate<Self::Stamp>>,
    ) -> Result<B256, StateError>;
}

/// Writes all tries of `entries`, which come in key order; returns the root.
///
/// Holds all accounts and the largest storage trie in memory: about 300 bytes per key.
///
/// # Errors
/// Errors of `entries` and of the sink, and [`StateError::Corrupt`] for entries that are out of
/// order or not canonical, and for slots of an absent account.
pub fn load(
    layout: &mut impl BulkLayout,
    entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut accounts: Vec<(Address, Account, B256)> = Vec::new();
    // The slots that are being collected, and the index of their account in `accounts`.
    let mut storage: Option<(usize, Vec<(B256, StateValue)>)> = None;
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
    let (with, built) = (layout.hash(), layout.stamp());
    let mut items: Vec<_> = accounts
        .into_par_iter()
        .map(|(address, account, storage_root)| {
            let is_empty = storage_root == with.empty_root();
            let value = Some(leaf::encode_account(&account, storage_root));
            let stamp = if is_empty { Default::default() } else { built };
            LeafUpdate { key: with.hash(address), value, stamp }
        })
        .collect();
    items.par_sort_unstable_by_key(|item| item.key);
    layout.build(sink, None, items)
}

fn finish_storage(
    layout: &mut impl BulkLayout,
    storage: Option<(usize, Vec<(B256, StateValue)>)>,
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
            Ok(LeafUpdate::new(with.hash(slot), Some(value)))
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    items.par_sort_unstable_by_key(|item| item.key);
    *storage_root = layout.build(sink, Some(*address), items)?;
    Ok(())
}
