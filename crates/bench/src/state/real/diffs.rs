//! Net writes of blocks (`diffs/NUMBER.json.gz`): the keys that a block has changed, with the values
//! before and after.

use super::trace::TraceBuilder;
use alloy_primitives::{Address, Bytes, U256, keccak256};
use retrie_state::{Account, StateKey, Value, encode_slot};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The members of a file that matter here: maps of `[old, new]`.
#[derive(Debug, Deserialize)]
pub(super) struct Diff {
    pub(super) number: u64,
    storage: BTreeMap<Address, BTreeMap<U256, (U256, U256)>>,
    balances: BTreeMap<Address, (U256, U256)>,
    nonces: BTreeMap<Address, (u64, u64)>,
    codes: BTreeMap<Address, (Bytes, Bytes)>,
}

impl Diff {
    /// Adds the block to a trace. What the files leave out of an account is taken from the blocks
    /// before; where these do not have it either, a contract has nonce 1 and the hash of its address
    /// for the hash of its code.
    pub(super) fn push(&self, trace: &mut TraceBuilder) {
        let mut pre = BTreeMap::new();
        let mut writes = BTreeMap::new();
        let changed: BTreeSet<&Address> = (self.storage.keys())
            .chain(self.balances.keys())
            .chain(self.nonces.keys())
            .chain(self.codes.keys())
            .collect();
        for address in changed {
            let key = StateKey::Account(*address);
            let known = trace.get(&key);
            let before = known.unwrap_or_else(|| self.first_seen(address).map(|a| a.encode()));
            let after = self.after(address, before.as_ref());
            pre.insert(key, before.clone());
            if after != before {
                writes.insert(key, after);
            }
        }
        for (address, slots) in &self.storage {
            for (slot, (old, new)) in slots {
                let key = StateKey::Slot(*address, (*slot).into());
                pre.insert(key, encode_slot(*old));
                writes.insert(key, encode_slot(*new));
            }
        }
        trace.push(pre, writes);
    }

    /// An account before the block, as far as the block tells; `None` if nothing says that it was
    /// there.
    fn first_seen(&self, address: &Address) -> Option<Account> {
        let old_code = self.codes.get(address).map(|(old, _)| old);
        let is_created = old_code.is_some_and(|code| code.is_empty());
        let is_contract = !is_created && (self.storage.contains_key(address) || old_code.is_some());
        let nonce = self.nonces.get(address).map(|(old, _)| *old);
        let nonce = nonce.unwrap_or_else(|| is_contract.into());
        let balance = self.balances.get(address).map_or(U256::ZERO, |(old, _)| *old);
        let code_hash = match old_code {
            Some(code) => keccak256(code),
            None if is_contract => keccak256(address),
            None => Account::default().code_hash,
        };
        Some(Account { nonce, balance, code_hash }).filter(|account| !account.is_empty())
    }

    /// The account after the block. One that is empty and keeps no slot is gone (EIP-161).
    fn after(&self, address: &Address, before: Option<&Value>) -> Option<Value> {
        let mut account = before.and_then(|value| Account::decode(value)).unwrap_or_default();
        if let Some((_, new)) = self.nonces.get(address) {
            account.nonce = *new;
        }
        if let Some((_, new)) = self.balances.get(address) {
            account.balance = *new;
        }
        if let Some((_, new)) = self.codes.get(address) {
            account.code_hash = keccak256(new);
        }
        let slots = self.storage.get(address);
        let keeps_slots = slots.is_some_and(|slots| slots.values().any(|(_, new)| !new.is_zero()));
        (!account.is_empty() || keeps_slots).then(|| account.encode())
    }
}
