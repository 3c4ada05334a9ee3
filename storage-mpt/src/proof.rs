//! Building proofs. [`verify`](crate::verify) has the format.

use crate::{
    backend::Tries,
    leaf,
    trie::{NodeSource, Trie},
    verify::{AccountProof, SlotProof, keys_digest},
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_rlp::Encodable;
use alloy_trie::EMPTY_ROOT_HASH;
use retrie_state::{Account, StateError, StateKey, Value};
use std::collections::{BTreeMap, HashSet};

/// The proof bytes for `keys`.
pub(crate) fn prove(tries: &Tries<'_>, keys: &[StateKey]) -> Result<Bytes, StateError> {
    let mut path = Vec::new();
    let mut nodes: Vec<Bytes> = Vec::new();
    let mut listed = HashSet::new();
    let mut list = |path: &mut Vec<Bytes>| {
        nodes.extend(path.drain(..).filter(|node| listed.insert(keccak256(node))));
    };
    let mut storages = BTreeMap::new();
    for key in keys {
        let address = key.address();
        let account = account(tries, address, &mut path)?;
        list(&mut path);
        if let StateKey::Slot(_, slot) = key
            && account.is_some()
        {
            let (trie, rows) = match storages.entry(*address) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(tries.storage(address)?)
                }
            };
            trie.prove(rows, &keccak256(slot), &mut path)?;
            list(&mut path);
        }
    }
    Ok(encode(keys, &nodes))
}

fn encode(keys: &[StateKey], nodes: &[Bytes]) -> Bytes {
    let digest = keys_digest(keys);
    let mut out = Vec::new();
    let payload_length = digest.length() + alloy_rlp::list_length::<_, Bytes>(nodes);
    alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
    digest.encode(&mut out);
    alloy_rlp::encode_list::<_, Bytes>(nodes, &mut out);
    out.into()
}

/// The EIP-1186 proof of an account and some of its slots.
pub(crate) fn account_proof(
    tries: &Tries<'_>,
    address: &Address,
    slots: &[B256],
) -> Result<AccountProof, StateError> {
    let mut account_proof = Vec::new();
    let shown = account(tries, address, &mut account_proof)?;
    let (account, storage_root) = match shown {
        Some((account, storage_root)) => (Some(account), storage_root),
        None => (None, EMPTY_ROOT_HASH),
    };
    let (trie, rows) = tries.storage(address)?;
    let trie = if account.is_some() { trie } else { Trie::default() };
    let storage =
        slots.iter().map(|slot| slot_proof(&trie, &rows, slot)).collect::<Result<_, _>>()?;
    Ok(AccountProof { address: *address, account, storage_root, account_proof, storage })
}

fn account(
    tries: &Tries<'_>,
    address: &Address,
    proof: &mut Vec<Bytes>,
) -> Result<Option<(Account, B256)>, StateError> {
    let (trie, rows) = tries.accounts();
    trie.prove(&rows, &keccak256(address), proof)?
        .map(|leaf| {
            leaf::decode_account(&leaf).ok_or_else(|| {
                let what = format!("the leaf of account {address} is malformed");
                StateError::corrupt(crate::ACCOUNT_NODES.name, what)
            })
        })
        .transpose()
}

fn slot_proof(trie: &Trie, rows: &impl NodeSource, slot: &B256) -> Result<SlotProof, StateError> {
    let mut proof = Vec::new();
    let value = trie
        .prove(rows, &keccak256(slot), &mut proof)?
        .map(|leaf| -> Result<Value, StateError> {
            leaf::decode_slot_value(&leaf).ok_or_else(|| {
                let what = format!("the leaf of slot {slot} is malformed");
                StateError::corrupt(crate::STORAGE_NODES.name, what)
            })
        })
        .transpose()?;
    Ok(SlotProof { slot: *slot, value, proof })
}
