//! The state as entries with keys and values of 32 bytes each.
//!
//! The key of an entry is the SHA-256 hash of [`StateKey::encode`]: QMDB's index holds the first
//! eight bytes of keys, so they must be evenly distributed. A slot is one entry. An account is one
//! entry with nonce and balance, and a second one with the hash of its code if it has code, as in
//! EIP-7864.

use alloy_primitives::{B256, KECCAK256_EMPTY, U256};
use commonware_cryptography::{Hasher, Sha256, sha256::Digest};
use commonware_storage::qmdb::any::batch::Slot;
use retrie_state::{Account, StateKey, StateValue, decode_slot, encode_slot};

/// Follows the encoded key of an account in the key of its second entry.
const CODE: &[u8] = b"code";
/// Where the nonce begins in the first entry of an account. Before it, byte 0 is 1 if there is code.
const NONCE: usize = 8;
/// Where the balance begins in the first entry of an account.
const BALANCE: usize = 16;

/// A value that has no entry, or an entry that has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryError {
    #[error("a value is not canonical")]
    Value,
    #[error("a balance has more than 128 bits")]
    Balance,
    #[error("an entry of an account is missing or wrong")]
    Account,
}

/// The entries that a block reads, in order, and what becomes of each.
#[derive(Debug, Default)]
pub(super) struct EntryBatch {
    pub(super) keys: Vec<Digest>,
    pub(super) slots: Vec<Slot<Digest>>,
}

impl EntryBatch {
    /// Adds the entries of `key`. `next` is its new value, if it changes; `Some(None)` removes it.
    pub(super) fn push(
        &mut self,
        key: &StateKey,
        next: Option<Option<&StateValue>>,
    ) -> Result<(), EntryError> {
        self.keys.push(entry_key(key));
        if let StateKey::Slot(..) = key {
            let next = next.map(|value| value.map(slot_entry).transpose()).transpose()?;
            self.slots.push(slot_of(next));
            return Ok(());
        }
        self.keys.push(Sha256::hash(&[&key.encode(), CODE]));
        let next = next.map(|value| value.map(account_entries).transpose());
        let next = next.transpose()?;
        self.slots.push(slot_of(next.map(|entries| entries.map(|(basic, _)| basic))));
        self.slots.push(slot_of(next.map(|entries| entries.and_then(|(_, code)| code))));
        Ok(())
    }
}

/// Key of the only entry of a slot, or of the first entry of an account.
pub(super) fn entry_key(key: &StateKey) -> Digest {
    Sha256::hash(&[&key.encode()])
}

/// The entry of a slot.
fn slot_entry(value: &StateValue) -> Result<Digest, EntryError> {
    Ok(Digest(decode_slot(value).ok_or(EntryError::Value)?.to_be_bytes()))
}

/// The value of `key`, from its entries, which are the next of `entries`.
pub(super) fn read_value(
    key: &StateKey,
    entries: &mut impl Iterator<Item = Option<Digest>>,
) -> Result<Option<StateValue>, EntryError> {
    let mut next = || entries.next().ok_or(EntryError::Account);
    let first = next()?;
    if let StateKey::Slot(..) = key {
        return Ok(first.and_then(|entry| encode_slot(U256::from_be_bytes(entry.0))));
    }
    let code = next()?;
    let Some(Digest(basic)) = first else {
        return code.map_or(Ok(None), |_| Err(EntryError::Account));
    };
    let (nonce, balance) = (&basic[NONCE..BALANCE], &basic[BALANCE..]);
    let code_hash = match (basic[0], code) {
        (0, None) => KECCAK256_EMPTY,
        (1, Some(hash)) => B256::from(hash.0),
        _ => return Err(EntryError::Account),
    };
    let nonce = U256::from_be_slice(nonce).to();
    Ok(Some(Account { nonce, balance: U256::from_be_slice(balance), code_hash }.encode()))
}

/// The first entry of an account, and the second one if it has code.
fn account_entries(value: &StateValue) -> Result<(Digest, Option<Digest>), EntryError> {
    let Account { nonce, balance, code_hash } = Account::decode(value).ok_or(EntryError::Value)?;
    let balance = u128::try_from(balance).map_err(|_| EntryError::Balance)?;
    let code = (code_hash != KECCAK256_EMPTY).then_some(Digest(code_hash.0));
    let mut basic = [0; 32];
    basic[0] = code.is_some().into();
    basic[NONCE..BALANCE].copy_from_slice(&nonce.to_be_bytes());
    basic[BALANCE..].copy_from_slice(&balance.to_be_bytes());
    Ok((Digest(basic), code))
}

fn slot_of(next: Option<Option<Digest>>) -> Slot<Digest> {
    match next {
        None => Slot::Keep,
        Some(Some(value)) => Slot::Put(value),
        Some(None) => Slot::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    const ACCOUNT: StateKey = StateKey::Account(Address::repeat_byte(7));
    const SLOT: StateKey = StateKey::Slot(Address::repeat_byte(7), B256::repeat_byte(8));

    /// The value that is read after `value` was written.
    fn through_entries(key: &StateKey, value: &StateValue) -> Result<StateValue, EntryError> {
        let mut batch = EntryBatch::default();
        batch.push(key, Some(Some(value)))?;
        assert_eq!(batch.keys.len(), batch.slots.len());
        let mut entries = batch.slots.into_iter().map(|slot| match slot {
            Slot::Put(value) => Some(value),
            Slot::Keep | Slot::Delete => None,
        });
        let read = read_value(key, &mut entries)?;
        assert_eq!(entries.next(), None);
        Ok(read.expect("it was written"))
    }

    #[test]
    fn values_survive_as_entries() {
        for value in [U256::from(1), U256::from(1) << 248, U256::MAX] {
            let value = encode_slot(value).expect("it is not zero");
            assert_eq!(through_entries(&SLOT, &value), Ok(value));
        }
        for code_hash in [KECCAK256_EMPTY, B256::ZERO, B256::repeat_byte(9)] {
            for balance in [U256::ZERO, U256::from(u128::MAX)] {
                let account = Account { nonce: u64::MAX - 1, balance, code_hash }.encode();
                assert_eq!(through_entries(&ACCOUNT, &account), Ok(account));
            }
        }
        let rich = Account { balance: U256::MAX, ..Account::default() }.encode();
        assert_eq!(through_entries(&ACCOUNT, &rich), Err(EntryError::Balance));
    }

    #[test]
    fn accounts_with_one_entry_too_few_or_too_many_are_refused() {
        let plain = account_entries(&Account::default().encode()).expect("it is canonical").0;
        let code = Digest([9; 32]);
        assert_eq!(read_value(&ACCOUNT, &mut [None, None].into_iter()), Ok(None));
        for entries in [[None, Some(code)], [Some(plain), Some(code)]] {
            let read = read_value(&ACCOUNT, &mut entries.into_iter());
            assert_eq!(read, Err(EntryError::Account));
        }
    }
}
