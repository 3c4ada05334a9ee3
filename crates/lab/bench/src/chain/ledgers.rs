//! Calls of the ledger contracts: the banks of SmallBank, and the key-value store of YCSB.

use super::{
    contracts::{IKVStore, ISmallBank},
    recipe::KeyChoice,
};
use crate::random::{SplitMix64, ZipfDistribution};
use alloy_primitives::{Address, I256, U256};
use alloy_sol_types::SolCall;

/// Number of banks. The accounts are divided among them.
pub(crate) const BANKS: usize = 10;
/// Initial savings of each bank account, and its initial checking balance, if there is a preload.
pub(crate) const DEPOSIT: u64 = 10_000;
/// Amounts of bank operations stay at or below this.
const MAX_AMOUNT: u64 = 100;

/// Chooses calls of banks and store.
#[derive(Clone, Debug)]
pub(crate) struct LedgerCalls {
    banks: [Address; BANKS],
    store: Address,
    accounts: u64,
    reads: u32,
    inserts: u32,
    /// Number of keys that calls have inserted so far. Their numbers follow those of the accounts.
    inserted: u64,
    zipf: Option<ZipfDistribution>,
}

impl LedgerCalls {
    pub(crate) fn new(
        banks: [Address; BANKS],
        store: Address,
        accounts: u64,
        keys: KeyChoice,
    ) -> Self {
        let zipf = keys.zipf.map(|theta| ZipfDistribution::new(accounts, theta));
        let KeyChoice { reads, inserts, .. } = keys;
        Self { banks, store, accounts, reads, inserts, inserted: 0, zipf }
    }

    /// The bank of account `n`.
    pub(crate) const fn bank_of(n: u64) -> usize {
        (n % BANKS as u64) as usize
    }

    /// One of the six operations, all equally likely, on random accounts of one bank. Returns
    /// contract and input.
    pub(crate) fn bank(&self, random: &mut SplitMix64) -> (Address, Vec<u8>) {
        let a = random.below(self.accounts);
        // Another account of the same bank, or the same account.
        let bank = Self::bank_of(a);
        let shared = (self.accounts - bank as u64).div_ceil(BANKS as u64);
        let b = bank as u64 + BANKS as u64 * random.below(shared);
        let amount = I256::from_raw(U256::from(1 + random.below(MAX_AMOUNT)));
        let (account, from, to) = (U256::from(a), U256::from(a), U256::from(b));
        let input = match random.below(6) {
            0 => ISmallBank::getBalanceCall { account }.abi_encode(),
            1 => ISmallBank::amalgamateCall { from, to }.abi_encode(),
            2 => ISmallBank::updateBalanceCall { account, amount }.abi_encode(),
            3 => ISmallBank::updateSavingCall { account, amount }.abi_encode(),
            4 => ISmallBank::sendPaymentCall { from, to, amount }.abi_encode(),
            _ => ISmallBank::writeCheckCall { account, amount }.abi_encode(),
        };
        (self.banks[bank], input)
    }

    /// A read or a write of the store. Returns contract and input.
    pub(crate) fn store(&mut self, random: &mut SplitMix64) -> (Address, Vec<u8>) {
        let is_read = random.below(100) < u64::from(self.reads);
        // Without inserts no random number is drawn, so that older chains stay the same.
        let inserts = !is_read && self.inserts > 0 && random.below(100) < u64::from(self.inserts);
        let known = self.accounts + self.inserted;
        self.inserted += u64::from(inserts);
        let key = U256::from(match &self.zipf {
            _ if inserts => known,
            None => random.below(known),
            Some(zipf) => zipf.next(random),
        });
        let input = if is_read {
            IKVStore::getCall { key }.abi_encode()
        } else {
            let value = U256::from_limbs(std::array::from_fn(|_| random.next()));
            IKVStore::setCall { key, value }.abi_encode()
        };
        (self.store, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn ledgers(accounts: u64, reads: u32) -> LedgerCalls {
        let banks = std::array::from_fn(|n| Address::with_last_byte(n as u8));
        let keys = KeyChoice { reads, inserts: 0, zipf: None };
        LedgerCalls::new(banks, Address::with_last_byte(99), accounts, keys)
    }

    #[test]
    fn operations_are_six_and_stay_in_their_bank() {
        for accounts in [1, 7, 10, 25] {
            let (ledgers, mut random) = (ledgers(accounts, 50), SplitMix64::new(accounts));
            let mut selectors: BTreeMap<[u8; 4], u64> = BTreeMap::new();
            for _ in 0..600 {
                let (bank, input) = ledgers.bank(&mut random);
                let selector = *input.first_chunk().unwrap();
                *selectors.entry(selector).or_default() += 1;
                let a = U256::from_be_slice(&input[4..36]).to::<u64>();
                assert!(a < accounts && LedgerCalls::bank_of(a) == usize::from(bank[19]));
                if selector == ISmallBank::sendPaymentCall::SELECTOR {
                    let b = U256::from_be_slice(&input[36..68]).to::<u64>();
                    assert!(b < accounts && LedgerCalls::bank_of(b) == LedgerCalls::bank_of(a));
                }
            }
            assert!(selectors.len() == 6 && selectors.values().all(|n| *n > 60), "{selectors:?}");
        }
    }

    #[test]
    fn calls_of_the_store_read_as_often_as_asked_for() {
        for (reads, expected) in [(0, 0..=0), (50, 400..=600), (100, 1000..=1000)] {
            let (mut ledgers, mut random) = (ledgers(1000, reads), SplitMix64::new(1));
            let calls = (0..1000).map(|_| ledgers.store(&mut random).1);
            let found = calls.filter(|input| input[..4] == IKVStore::getCall::SELECTOR).count();
            assert!(expected.contains(&found), "{reads}: {found}");
        }
    }

    #[test]
    fn inserts_are_a_share_of_writes_and_take_the_next_key() {
        let (mut ledgers, mut random) = (ledgers(100, 50), SplitMix64::new(1));
        ledgers.inserts = 50;
        let (mut writes, mut next) = (0, 100);
        for _ in 0..2000 {
            let known = next;
            let (_, input) = ledgers.store(&mut random);
            let key = U256::from_be_slice(&input[4..36]).to::<u64>();
            let is_write = input[..4] == IKVStore::setCall::SELECTOR;
            writes += u64::from(is_write);
            next += u64::from(key == known);
            assert!(key < known || is_write && key == known, "{key} of {known}");
        }
        let inserted = next - 100;
        assert!((900..1100).contains(&writes), "{writes}");
        assert!((writes * 4 / 10..writes * 6 / 10).contains(&inserted), "{inserted} of {writes}");
        assert_eq!(ledgers.inserted, inserted);
    }
}
