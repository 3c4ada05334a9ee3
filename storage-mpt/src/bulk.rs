//! Loading a whole state at once.

use crate::{
    backend::{ACCOUNT_NODES, RowRecorder, STORAGE_NODES, decode_account, not_canonical},
    leaf,
    trie::{InMemory, Item, NodeSource, Trie},
};
use alloy_primitives::{Address, B256, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use rayon::prelude::*;
use retrie_state::{Account, BulkSink, StateError, StateKey, Table, Value, flat};
use std::sync::Arc;

/// Writes the flat state and all tries of `entries`, which come in key order; returns the root.
///
/// Holds all accounts and the largest storage trie in memory: some 300 bytes a key.
pub(crate) fn load(
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
        flat::put(sink, &key, &value)?;
        match key {
            StateKey::Account(address) => {
                accounts.push((address, decode_account(&address, &value)?, EMPTY_ROOT_HASH));
            }
            StateKey::Slot(address, slot) => {
                if storage.as_ref().is_none_or(|(at, _)| accounts[*at].0 != address) {
                    finish_storage(storage.take(), &mut accounts, sink)?;
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
    finish_storage(storage, &mut accounts, sink)?;
    let items = accounts
        .into_par_iter()
        .map(|(address, account, storage_root)| Item {
            key: keccak256(address),
            value: Some(leaf::encode_account(&account, storage_root)),
        })
        .collect();
    build(None, items, sink)
}

fn finish_storage(
    storage: Option<(usize, Vec<(B256, Value)>)>,
    accounts: &mut [(Address, Account, B256)],
    sink: &mut dyn BulkSink,
) -> Result<(), StateError> {
    let Some((at, slots)) = storage else { return Ok(()) };
    let (address, _, storage_root) = &mut accounts[at];
    let items = slots
        .into_par_iter()
        .with_min_len(64)
        .map(|(slot, value)| {
            let value = leaf::encode_slot_value(&value)
                .ok_or_else(|| not_canonical(&StateKey::Slot(*address, slot)))?;
            Ok(Item { key: keccak256(slot), value: Some(value) })
        })
        .collect::<Result<_, StateError>>()?;
    *storage_root = build(Some(*address), items, sink)?;
    Ok(())
}

/// Writes the trie of `items` and returns its root.
fn build(
    trie: Option<Address>,
    mut items: Vec<Item>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    items.par_sort_unstable_by_key(|item| item.key);
    let mut recorder = RowRecorder::new(trie);
    let (empty, table): (_, Table) =
        (Trie::default(), if trie.is_some() { STORAGE_NODES } else { ACCOUNT_NODES });
    let built = empty.update(&Unkept, &items, &mut recorder)?;
    drop(items);
    recorder.root(&empty, &built);
    let mut rows = recorder.rows;
    rows.par_sort_unstable_by(|a, b| a.key.cmp(&b.key));
    for row in rows {
        if let Some(value) = row.next {
            sink.put(table, &row.key, &value)?;
        }
    }
    Ok(built.hash())
}

/// Builds from nothing and keeps nothing: the rows are all that is wanted.
struct Unkept;

impl NodeSource for Unkept {
    fn load(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
    ) -> Result<Arc<crate::node::Branch>, StateError> {
        InMemory.load(path, reference)
    }

    fn resolve(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
    ) -> Result<crate::node::Link, StateError> {
        InMemory.resolve(path, reference)
    }

    fn keep(&self, _: &Nibbles, _: &crate::node::Branch) -> bool {
        false
    }
}
