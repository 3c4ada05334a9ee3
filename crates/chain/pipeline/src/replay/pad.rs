//! Random accounts and slots that give a state the size of a real one.

use alloy_primitives::{Address, B256, U256, keccak256};
use rayon::prelude::*;
use retrie_state::{Account, StateKey, StateValue, encode_slot};

/// Slots of a padded contract.
const SLOTS_PER_CONTRACT: u64 = 100;

/// Random accounts and slots. Equal numbers give equal entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatePadding {
    /// Number of accounts. There are more if the slots need them.
    pub accounts: u64,
    /// Number of slots, `SLOTS_PER_CONTRACT` in each of the first accounts.
    pub slots: u64,
}

impl StatePadding {
    /// Whether there are no accounts and slots.
    pub const fn is_none(&self) -> bool {
        self.accounts == 0 && self.slots == 0
    }

    /// A name for these entries, usable in a file name. The number at its end is the version of
    /// this module's rules.
    pub fn name(&self) -> String {
        format!("{}-accounts-{}-slots-v1", self.accounts, self.slots)
    }

    /// Accounts with random addresses, balances and nonces, and slots with random keys and values,
    /// sorted by key.
    pub fn entries(&self) -> Vec<(StateKey, StateValue)> {
        let accounts = self.accounts.max(self.slots.div_ceil(SLOTS_PER_CONTRACT));
        let mut entries: Vec<_> = (0..accounts).into_par_iter().map(account).collect();
        entries.par_extend((0..self.slots).into_par_iter().map(slot));
        entries.par_sort_unstable_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        entries
    }
}

fn address(random: &B256) -> Address {
    Address::from_slice(&random[..20])
}

fn random(number: u64) -> B256 {
    let mut seed = *b"retrie padding ........";
    seed[15..].copy_from_slice(&number.to_be_bytes());
    keccak256(seed)
}

fn account(number: u64) -> (StateKey, StateValue) {
    let random = random(number);
    let word =
        |at: usize| random[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let account = Account {
        nonce: word(20) % 1000,
        balance: U256::from(word(20)) * U256::from(1_000_000_007u64),
        ..Default::default()
    };
    (StateKey::Account(address(&random)), account.encode())
}

fn slot(number: u64) -> (StateKey, StateValue) {
    let contract = address(&random(number / SLOTS_PER_CONTRACT));
    let mut seed = *b"retrie padding slot ........";
    seed[20..].copy_from_slice(&number.to_be_bytes());
    let key = keccak256(seed);
    // A slot is never zero.
    let value = U256::from_be_bytes(keccak256(key).0) | U256::from(1);
    (StateKey::Slot(contract, key), encode_slot(value).unwrap_or_default())
}

/// A block hash for a block outside every chain.
pub(crate) fn synthetic_hash(what: &str, number: u64) -> B256 {
    keccak256(format!("retrie {what} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_state::decode_slot;
    use std::collections::BTreeMap;

    #[test]
    fn padding_is_sorted_unique_and_stable() {
        let padding = StatePadding { accounts: 1000, slots: 0 };
        let accounts = padding.entries();
        assert_eq!(accounts.len(), 1000);
        assert!(accounts.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(accounts, padding.entries());
        assert!(accounts.iter().all(|(_, value)| Account::decode(value).is_some()));
        // Slots are added to the same accounts.
        let both = StatePadding { accounts: 1000, slots: 1250 }.entries();
        assert_eq!(both[..1000], accounts);
        assert_eq!(both.len(), 2250);
    }

    #[test]
    fn every_contract_exists_and_has_its_share_of_slots() {
        let entries = StatePadding { accounts: 5, slots: 1250 }.entries();
        assert!(entries.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let mut slots: BTreeMap<_, u64> = BTreeMap::new();
        for (key, value) in &entries {
            match key {
                StateKey::Account(address) => assert_eq!(slots.insert(*address, 0), None),
                StateKey::Slot(address, _) => {
                    assert!(decode_slot(value).is_some_and(|value| !value.is_zero()));
                    *slots.get_mut(address).expect("its account comes first") += 1;
                }
            }
        }
        let mut counts: Vec<_> = slots.into_values().collect();
        counts.sort_unstable();
        assert_eq!(counts, [[50].as_slice(), &[SLOTS_PER_CONTRACT; 12]].concat());
    }
}
