//! Random accounts that give a state the size of a real one.

use alloy_primitives::{Address, B256, U256, keccak256};
use retrie_state::{Account, StateKey, Value};

/// `count` accounts of random addresses, balances and nonces, sorted by key. The same `count`
/// gives the same accounts.
pub fn padding_accounts(count: u64) -> Vec<(StateKey, Value)> {
    let mut accounts: Vec<_> = (0..count)
        .map(|n| {
            let mut seed = *b"retrie padding ........";
            seed[15..].copy_from_slice(&n.to_be_bytes());
            let random = keccak256(seed);
            let word = |at: usize| {
                random[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
            };
            let account = Account {
                nonce: word(20) % 1000,
                balance: U256::from(word(20)) * U256::from(1_000_000_007u64),
                ..Default::default()
            };
            (StateKey::Account(Address::from_slice(&random[..20])), account.encode())
        })
        .collect();
    accounts.sort_unstable_by_key(|(key, _)| *key);
    accounts.dedup_by_key(|(key, _)| *key);
    accounts
}

/// A block hash for a block that stands outside every chain.
pub(crate) fn synthetic_hash(what: &str, number: u64) -> B256 {
    keccak256(format!("retrie {what} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_sorted_unique_and_stable() {
        let accounts = padding_accounts(1000);
        assert_eq!(accounts.len(), 1000);
        assert!(accounts.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(accounts, padding_accounts(1000));
        assert!(accounts.iter().all(|(_, value)| Account::decode(value).is_some()));
    }
}
