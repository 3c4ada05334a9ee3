//! The state root of accounts and slots that come in the order of Ethereum's trie.

use super::{MigrationContext, MigrationError, MigrationStep};
use alloy_primitives::{Address, B256, U256, keccak256};
use alloy_trie::{HashBuilder, Nibbles, TrieAccount};
use retrie_state::{Account, BulkSorter, SortedRecords, StateError, StateKey, StateValue};

/// Accounts and slots, sorted by the hashes of their keys.
///
/// The key of a record is keccak-256 of the address and, for a slot, that of the slot. So an account
/// comes before its slots. The value is the address or slot, and the value of the state.
pub(super) struct HashedState(Box<dyn BulkSorter>);

impl HashedState {
    pub(super) fn new(sorter: Box<dyn BulkSorter>) -> Self {
        Self(sorter)
    }

    pub(super) fn put_account(
        &mut self,
        address: &Address,
        account: &Account,
    ) -> Result<(), StateError> {
        let value = [&address[..], &account.encode()].concat();
        self.0.put(&keccak256(address)[..], &value)
    }

    /// Adds a slot of the account whose address has the hash `owner`; its value is not zero.
    pub(super) fn put_slot(
        &mut self,
        owner: &B256,
        slot: &B256,
        value: &B256,
    ) -> Result<(), StateError> {
        let mut key = [0; 64];
        key[..32].copy_from_slice(&owner[..]);
        key[32..].copy_from_slice(&keccak256(slot)[..]);
        let zeros = value.iter().take_while(|byte| **byte == 0).count();
        self.0.put(&key, &[&slot[..], &value[zeros..]].concat())
    }

    /// All of them in order.
    pub(super) fn entries(&mut self) -> Result<HashedEntries<'_>, StateError> {
        Ok(HashedEntries { records: self.0.sorted()?, owner: None })
    }

    /// The root of Ethereum's trie over them.
    pub(super) fn root(
        &mut self,
        context: &mut MigrationContext<'_>,
    ) -> Result<B256, MigrationError> {
        let (mut accounts, mut done) = (HashBuilder::default(), 0);
        let mut open: Option<(B256, Account, HashBuilder)> = None;
        for entry in self.entries()? {
            let HashedEntry { hash, key, value } = entry?;
            match key {
                StateKey::Account(_) => {
                    add_account(&mut accounts, open.take());
                    let account = Account::decode(&value).ok_or_else(lost)?;
                    open = Some((hash, account, HashBuilder::default()));
                }
                StateKey::Slot(..) => {
                    let (_, _, storage) = open.as_mut().ok_or_else(lost)?;
                    let value = U256::try_from_be_slice(&value).ok_or_else(lost)?;
                    storage.add_leaf(Nibbles::unpack(hash), &alloy_rlp::encode_fixed_size(&value));
                }
            }
            done += 1;
            context.tell(MigrationStep::Hashing, done)?;
        }
        add_account(&mut accounts, open);
        Ok(accounts.root())
    }
}

fn add_account(accounts: &mut HashBuilder, open: Option<(B256, Account, HashBuilder)>) {
    if let Some((hash, Account { nonce, balance, code_hash }, mut storage)) = open {
        let storage_root = storage.root();
        let account = TrieAccount { nonce, balance, storage_root, code_hash };
        accounts.add_leaf(Nibbles::unpack(hash), &alloy_rlp::encode(account));
    }
}

fn lost() -> StateError {
    StateError::corrupt("sorted state", "a record is not the one that was written")
}

/// An account or slot, and the hash of its address or slot.
pub(super) struct HashedEntry {
    hash: B256,
    pub(super) key: StateKey,
    pub(super) value: StateValue,
}

/// The accounts and slots of a [`HashedState`].
pub(super) struct HashedEntries<'a> {
    records: SortedRecords<'a>,
    owner: Option<Address>,
}

impl HashedEntries<'_> {
    fn entry(&mut self, key: &[u8], value: &[u8]) -> Option<HashedEntry> {
        if let Ok(hash) = B256::try_from(key) {
            let (address, value) = value.split_first_chunk::<20>()?;
            let address = *self.owner.insert(address.into());
            let value = StateValue::copy_from_slice(value);
            return Some(HashedEntry { hash, key: StateKey::Account(address), value });
        }
        let (slot, value) = value.split_first_chunk::<32>()?;
        let hash = B256::try_from(key.get(32..)?).ok()?;
        let key = StateKey::Slot(self.owner?, slot.into());
        Some(HashedEntry { hash, key, value: StateValue::copy_from_slice(value) })
    }
}

impl Iterator for HashedEntries<'_> {
    type Item = Result<HashedEntry, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.records.next()?;
        Some(record.and_then(|(key, value)| self.entry(&key, &value).ok_or_else(lost)))
    }
}
