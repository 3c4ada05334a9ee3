//! Shared by the mock backends: sorted levels of entries with one encoding, and helpers.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod column;
pub(crate) mod hashed;

use alloy_primitives::{Address, B256, Bytes, keccak256};
use retrie_state::{
    AccountKey, AnyBackend, BackendKey, DeltaBuilder, StateDelta, StateError, StateKey, StateValue,
};
use retrie_state_store::{KvStore, MemoryStore, Proposal, StateId, StateStore, StoreOptions};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Entries in key order; `None` is a tombstone.
pub(crate) type EntryLevel = BTreeMap<BackendKey, Option<StateValue>>;

/// `count (4, BE)`, then for each entry `key length (1) || key || 0`, or `... || 1 || value length
/// (4, BE) || value`.
pub(crate) fn encode_level(level: &EntryLevel) -> Vec<u8> {
    let mut out = (level.len() as u32).to_be_bytes().to_vec();
    for (key, value) in level {
        let key = key.encode();
        out.push(key.len() as u8);
        out.extend_from_slice(&key);
        match value {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                out.extend_from_slice(value);
            }
        }
    }
    out
}

/// Reads one level off the front of `bytes`; `None` unless it is the canonical encoding.
pub(crate) fn decode_level(bytes: &mut &[u8]) -> Option<EntryLevel> {
    let word = |bytes: &mut &[u8]| {
        let (word, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        Some(u32::from_be_bytes(*word) as usize)
    };
    let mut level = EntryLevel::new();
    for _ in 0..word(bytes)? {
        let (len, rest) = bytes.split_first()?;
        let (key, rest) = rest.split_at_checked(*len as usize)?;
        let key = BackendKey::decode(key)?;
        let (tag, rest) = rest.split_first()?;
        *bytes = rest;
        let value = match tag {
            0 => None,
            1 => {
                let len = word(bytes)?;
                let (value, rest) = bytes.split_at_checked(len)?;
                *bytes = rest;
                Some(Bytes::copy_from_slice(value))
            }
            _ => return None,
        };
        if level.last_key_value().is_some_and(|(last, _)| *last >= key) {
            return None;
        }
        level.insert(key, value);
    }
    Some(level)
}

pub(crate) fn digest(level: &EntryLevel) -> B256 {
    keccak256(encode_level(level))
}

/// A row for a value or a tombstone.
pub(crate) fn encode_row(value: &Option<StateValue>) -> Bytes {
    value.as_ref().map_or_else(|| Bytes::from_static(&[0]), |v| [&[1], &v[..]].concat().into())
}

pub(crate) fn decode_row(row: &[u8]) -> Option<Option<StateValue>> {
    match row.split_first()? {
        (0, []) => Some(None),
        (1, value) => Some(Some(Bytes::copy_from_slice(value))),
        _ => None,
    }
}

/// The first `limit` slots of `account` in a merged state.
pub(crate) fn slots_of(
    entries: &EntryLevel,
    account: &AccountKey,
    limit: usize,
) -> Vec<(B256, StateValue)> {
    let slots = entries.iter().filter_map(|(key, value)| match key {
        BackendKey::Slot(of, slot) if of == account => Some((*slot, value.clone()?)),
        _ => None,
    });
    slots.take(limit).collect()
}

/// Entries from `start` on.
pub(crate) fn page(
    entries: &EntryLevel,
    start: Option<&BackendKey>,
    limit: usize,
) -> Vec<(BackendKey, StateValue)> {
    entries
        .iter()
        .filter(|(key, _)| start.is_none_or(|start| *key >= start))
        .filter_map(|(key, value)| Some((*key, value.clone()?)))
        .take(limit)
        .collect()
}

// -- driving a store ------------------------------------------------------------------------------

pub(crate) fn slot_key(n: u64) -> StateKey {
    StateKey::Slot(Address::with_last_byte((n % 5) as u8), B256::with_last_byte((n / 5) as u8))
}

/// A delta of `changes`, with the previous value of each key.
pub(crate) fn delta(
    previous: impl Fn(&StateKey) -> Option<StateValue>,
    changes: &[(StateKey, Option<StateValue>)],
) -> StateDelta {
    let mut builder = DeltaBuilder::new();
    for (key, next) in changes {
        builder.change(*key, previous(key), next.clone());
    }
    builder.build()
}

/// Hash of the n-th block of branch `branch`.
pub(crate) fn hash(branch: u8, number: u64) -> B256 {
    let mut hash = B256::with_last_byte(branch);
    hash[..8].copy_from_slice(&number.to_be_bytes());
    hash
}

pub(crate) fn open(
    backend: Arc<dyn AnyBackend>,
    kv: &MemoryStore,
    dir: Option<&Path>,
    options: StoreOptions,
) -> Result<StateStore, StateError> {
    let options = StoreOptions { dir: dir.map(Path::to_path_buf), ..options };
    StateStore::open(backend, Arc::new(kv.clone()), options)
}

pub(crate) fn commit(
    store: &StateStore,
    kv: &dyn KvStore,
    proposals: &[Proposal],
) -> Result<(), StateError> {
    let mut txn = kv.begin_write()?;
    let after = store.commit(proposals, &mut *txn)?;
    txn.commit()?;
    after.run()
}

pub(crate) fn revert(store: &StateStore, kv: &dyn KvStore, to: u64) -> Result<(), StateError> {
    let mut txn = kv.begin_write()?;
    let after = store.revert(to, &mut *txn)?;
    txn.commit()?;
    after.run()
}

/// Proposes a block on `at`, which sets `changes`, and seals it with `hash`.
pub(crate) fn propose(
    store: &StateStore,
    at: StateId<'_>,
    hash: B256,
    changes: &[(StateKey, Option<StateValue>)],
) -> Result<Proposal, StateError> {
    use retrie_state::StateReader;
    let session = store.begin(at)?;
    let reader = session.reader();
    let delta = delta(|key| reader.get(key).unwrap(), changes);
    let proposal = session.finish(&delta)?;
    store.seal(&proposal, hash);
    Ok(proposal)
}
