//! Random blocks.

use super::{StateModel, random_address, random_word};
use alloy_primitives::{Address, B256, U256, keccak256};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{Account, StateKey, encode_slot};
use std::collections::BTreeSet;

pub fn account(random: &mut StdRng) -> Account {
    Account {
        nonce: [0, 1, u64::MAX][random.random_range(0..3)],
        balance: U256::from(random.random_range(0..3u64)),
        code_hash: if random.random_bool(0.5) {
            Account::default().code_hash
        } else {
            B256::repeat_byte(random.random_range(0..4))
        },
    }
}

pub fn slot_value(random: &mut StdRng) -> U256 {
    [U256::from(1), U256::from(0x80), U256::MAX, U256::from(random.random::<u64>() | 1)]
        [random.random_range(0..4)]
}

/// Addresses and slots, many of which share the first nibbles of their hashes.
pub fn keys(random: &mut StdRng) -> (Vec<Address>, Vec<B256>) {
    let mut addresses: Vec<Address> = (0..8).map(|_| random_address(random)).collect();
    let mut slots: Vec<B256> = (0..8).map(|_| random_word(random)).collect();
    let near = |a: B256, b: B256| a[0] == b[0] && a[1] >> 4 == b[1] >> 4;
    for n in 0..4 {
        while addresses.len() < 8 + 6 * (n + 1) {
            let address = random_address(random);
            if near(keccak256(address), keccak256(addresses[n])) {
                addresses.push(address);
            }
        }
        while slots.len() < 8 + 6 * (n + 1) {
            let slot = random_word(random);
            if near(keccak256(slot), keccak256(slots[n])) {
                slots.push(slot);
            }
        }
    }
    (addresses, slots)
}

pub fn slots_of(model: &StateModel, address: Address) -> BTreeSet<StateKey> {
    let from = StateKey::Slot(address, B256::ZERO);
    let to = StateKey::Slot(address, B256::repeat_byte(0xff));
    model.range(from..=to).map(|(key, _)| *key).collect()
}

/// One random block: the state after it and the wiped accounts.
pub fn random_block(
    random: &mut StdRng,
    before: &StateModel,
    addresses: &[Address],
    slots: &[B256],
    shrink: f64,
) -> (StateModel, Vec<Address>) {
    let mut after = before.clone();
    let mut wiped = Vec::new();
    for _ in 0..random.random_range(1..12) {
        let address = *addresses.choose(random).unwrap();
        let key = StateKey::Account(address);
        if random.random_bool(shrink * 0.4) {
            let gone = slots_of(&after, address);
            after.retain(|key, _| !gone.contains(key));
            // Destroyed for good, or made anew in the same block; named as wiped or (when it is
            // gone) not.
            if random.random_bool(0.5) {
                after.remove(&key);
                if random.random_bool(0.5) {
                    wiped.push(address);
                }
                continue;
            }
            wiped.push(address);
        }
        if random.random_bool(0.6) || !after.contains_key(&key) {
            after.insert(key, account(random).encode());
        }
        for _ in 0..random.random_range(0..6) {
            let key = StateKey::Slot(address, *slots.choose(random).unwrap());
            if random.random_bool(shrink) {
                after.remove(&key);
            } else {
                after.insert(key, encode_slot(slot_value(random)).unwrap());
            }
        }
    }
    // A wiped account that is gone has no slots left; one that is wiped later than its last slots
    // were written keeps none of them either, by construction.
    (after, wiped)
}
