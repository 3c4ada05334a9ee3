//! State diffs of blocks (`diffs/NUMBER.json.gz`): the keys that a block has changed, with the
//! values before and after.

use super::model::{AccessModel, BlockAccesses};
use alloy_primitives::{Address, Bytes, U256, keccak256};
use retrie_state::{Account, StateKey, StateValue, encode_slot};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The used fields of a file: maps of `[old, new]`.
#[derive(Debug, Default, Deserialize)]
pub(in crate::state) struct BlockDiff {
    pub(in crate::state) number: u64,
    storage: BTreeMap<Address, BTreeMap<U256, (U256, U256)>>,
    balances: BTreeMap<Address, (U256, U256)>,
    nonces: BTreeMap<Address, (u64, u64)>,
    codes: BTreeMap<Address, (Bytes, Bytes)>,
}

impl BlockDiff {
    /// A block without changes.
    pub(in crate::state) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    /// Adds a change of a balance. Of several changes in a block the first old and the last new value
    /// count; so also below.
    pub(in crate::state) fn add_balance(&mut self, address: Address, old: U256, new: U256) {
        self.balances.entry(address).or_insert((old, new)).1 = new;
    }

    /// Adds a change of a nonce.
    pub(in crate::state) fn add_nonce(&mut self, address: Address, old: u64, new: u64) {
        self.nonces.entry(address).or_insert((old, new)).1 = new;
    }

    /// Adds a change of a code.
    pub(in crate::state) fn add_code(&mut self, address: Address, old: Bytes, new: Bytes) {
        self.codes.entry(address).or_insert_with(|| (old, Bytes::new())).1 = new;
    }

    /// Adds a change of a slot.
    pub(in crate::state) fn add_slot(
        &mut self,
        address: Address,
        slot: U256,
        old: U256,
        new: U256,
    ) {
        self.storage.entry(address).or_default().entry(slot).or_insert((old, new)).1 = new;
    }

    /// The accesses of the block. Fields of an account that the diff does not have are taken from
    /// earlier blocks. If these do not have them either, a contract has nonce 1 and its address as
    /// code.
    pub(in crate::state) fn accesses(&self, model: &mut AccessModel) -> BlockAccesses {
        let mut pre = BTreeMap::new();
        let mut writes = BTreeMap::new();
        let changed: BTreeSet<&Address> = (self.storage.keys())
            .chain(self.balances.keys())
            .chain(self.nonces.keys())
            .chain(self.codes.keys())
            .collect();
        let codes = self.codes.values().flat_map(|(old, new)| [old, new]);
        let mut codes: BTreeMap<_, _> = codes.map(|code| (keccak256(code), code.clone())).collect();
        for address in changed {
            codes.insert(keccak256(address), Bytes::copy_from_slice(address.as_slice()));
            let key = StateKey::Account(*address);
            let known = model.get(&key);
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
        BlockAccesses { number: self.number, touches: model.push(pre, writes), codes }
    }

    /// The account before the block, as far as the diff contains it; `None` if the diff does not
    /// show that it existed.
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

    /// The account after the block. An empty account without slots is removed (EIP-161).
    fn after(&self, address: &Address, before: Option<&StateValue>) -> Option<StateValue> {
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
