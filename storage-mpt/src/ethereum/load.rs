//! Bulk load of a whole state, for all row layouts.

use super::account_delta::{decode_account, not_canonical};
use crate::{
    TrieHash, leaf,
    trie::{LeafSorter, LeafUpdate, RowStamp},
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{Account, AccountKey, BackendKey, BulkSink, StateError, StateValue};
use std::iter::Peekable;

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
        key: &BackendKey,
        value: &StateValue,
    ) -> Result<(), StateError>;

    /// Writes the trie of `leaves` and returns its root. It is the storage trie of the account
    /// `trie`, or the account trie.
    ///
    /// # Errors
    /// Errors of the sink.
    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<AccountKey>,
        leaves: LeafSorter<Self::Stamp>,
    ) -> Result<B256, StateError>;
}

/// Accounts whose leaves are made at once.
const ACCOUNTS: usize = 4096;
/// Slots whose leaves are made at once.
const SLOTS: usize = 8192;

/// Writes all tries of `entries`, which come in key order; returns the root.
///
/// Sorts accounts and leaves with the sorters of `sink`; beside them, a 256th of the largest trie
/// is in memory.
///
/// # Errors
/// Errors of `entries` and of the sink, and [`StateError::Corrupt`] for entries that are out of
/// order or not canonical, and for slots of an absent account.
pub fn load(
    layout: &mut impl BulkLayout,
    entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut last = None;
    let mut entries = entries
        .map(|entry| {
            let (key, value) = entry?;
            if last.is_some_and(|last| last >= key) {
                return Err(StateError::corrupt("bulk load", format!("{key} is out of order")));
            }
            last = Some(key);
            Ok((key, value))
        })
        .peekable();

    // All accounts come before the first slot, and wait until their storage roots are known.
    let mut waiting = sink.sorter();
    let is_account = |entry: &Result<(BackendKey, StateValue), StateError>| {
        matches!(entry, Ok((BackendKey::Account(_), _)) | Err(_))
    };
    while let Some(entry) = entries.next_if(is_account) {
        let (key, value) = entry?;
        layout.entry(sink, &key, &value)?;
        waiting.put(&key.encode(), &value)?;
    }
    let mut accounts = AccountLeaves { leaves: LeafSorter::default(), made: Vec::new() };
    for account in waiting.sorted()? {
        let (key, value) = account?;
        let Some(BackendKey::Account(owner)) = BackendKey::decode(&key) else {
            return Err(StateError::corrupt("bulk load", "a sorted row is not an account"));
        };
        let account = decode_account(&owner, &StateValue::from(value))?;
        let root = storage(layout, &owner, &mut entries, sink)?;
        accounts.made.push((owner, account, root));
        if accounts.made.len() == ACCOUNTS {
            accounts.make(layout, sink)?;
        }
    }
    if let Some(entry) = entries.next() {
        let what = format!("{} is set although its account is absent", entry?.0);
        return Err(StateError::corrupt("bulk load", what));
    }
    accounts.make(layout, sink)?;
    layout.build(sink, None, accounts.leaves)
}

/// The leaves of the account trie.
struct AccountLeaves<S> {
    leaves: LeafSorter<S>,
    /// Accounts and their storage roots, whose leaves are not made yet.
    made: Vec<(AccountKey, Account, B256)>,
}

impl<S: RowStamp> AccountLeaves<S> {
    fn make(
        &mut self,
        layout: &impl BulkLayout<Stamp = S>,
        sink: &dyn BulkSink,
    ) -> Result<(), StateError> {
        let (with, built) = (layout.hash(), layout.stamp());
        let leaf = |(owner, account, root): (AccountKey, Account, B256)| {
            let value = Some(leaf::encode_account(&account, root));
            let stamp = if root == with.empty_root() { S::default() } else { built };
            LeafUpdate { key: with.account_path(&owner), value, stamp }
        };
        let leaves: Vec<_> = self.made.par_drain(..).with_min_len(64).map(leaf).collect();
        self.leaves.extend(leaves, sink)
    }
}

/// Writes the storage trie of an account, whose slots come next in `entries`; returns its root.
fn storage(
    layout: &mut impl BulkLayout,
    owner: &AccountKey,
    entries: &mut Peekable<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let with = layout.hash();
    let mut leaves = LeafSorter::default();
    let is_own = |entry: &Result<(BackendKey, StateValue), StateError>| match entry {
        Ok((key, _)) => key.account() == owner,
        Err(_) => true,
    };
    let mut slots = Vec::new();
    loop {
        while slots.len() < SLOTS
            && let Some(entry) = entries.next_if(is_own)
        {
            let (key, value) = entry?;
            layout.entry(sink, &key, &value)?;
            slots.push((key, value));
        }
        if slots.is_empty() {
            break;
        }
        let leaf = |(key, value): (BackendKey, StateValue)| {
            let value = leaf::encode_slot_value(&value);
            match (key, value) {
                (BackendKey::Slot(_, slot), Some(value)) => {
                    Ok(LeafUpdate::new(with.slot_path(owner, &slot), Some(value)))
                }
                _ => Err(not_canonical(&key)),
            }
        };
        let made = slots.par_drain(..).with_min_len(64).map(leaf);
        leaves.extend(made.collect::<Result<Vec<_>, StateError>>()?, sink)?;
    }
    match leaves.is_empty() {
        true => Ok(with.empty_root()),
        false => layout.build(sink, Some(*owner), leaves),
    }
}
