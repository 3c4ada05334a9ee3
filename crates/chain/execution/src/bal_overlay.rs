//! The state before one transaction, according to a block access list (BAL, EIP-7928).

use crate::{CodeReader, ExecutionInput};
use alloy_eip7928::{AccountChanges, BlockAccessIndex};
use alloy_primitives::{
    Address, B256, Bytes, U256, keccak256,
    map::{AddressMap, B256Map},
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use retrie_state::{Account, StateError, StateKey, StateReader, StateValue, encode_slot};

/// A well-formed block access list (EIP-7928), prepared for lookups.
pub(crate) struct IndexedBal<'a> {
    /// Ordered by address.
    accounts: &'a [AccountChanges],
    /// Hashes of the new codes of each account, in the order of its code changes.
    code_hashes: AddressMap<Vec<B256>>,
    codes: B256Map<Bytes>,
}

impl<'a> IndexedBal<'a> {
    pub(crate) fn new(accounts: &'a [AccountChanges]) -> Self {
        let (mut code_hashes, mut codes) = (AddressMap::default(), B256Map::default());
        for account in accounts.iter().filter(|account| !account.code_changes.is_empty()) {
            let hashed = account.code_changes.iter().map(|change| {
                let hash = keccak256(&change.new_code);
                codes.insert(hash, change.new_code.clone());
                hash
            });
            code_hashes.insert(account.address, hashed.collect());
        }
        Self { accounts, code_hashes, codes }
    }

    fn get(&self, address: &Address) -> Option<&'a AccountChanges> {
        let place = self.accounts.binary_search_by_key(address, |account| account.address).ok()?;
        self.accounts.get(place)
    }

    /// The account after the changes before `index`, if it was `parent` before the block.
    fn account(
        &self,
        index: BlockAccessIndex,
        address: &Address,
        parent: Option<Account>,
    ) -> Option<Account> {
        let Some(changes) = self.get(address) else { return parent };
        let balance = last(&changes.balance_changes, |one| one.block_access_index < index);
        let nonce = last(&changes.nonce_changes, |one| one.block_access_index < index);
        let codes = changes.code_changes.partition_point(|one| one.block_access_index < index);
        let hashes = self.code_hashes.get(address);
        let code_hash = codes.checked_sub(1).and_then(|at| hashes?.get(at));
        if balance.is_none() && nonce.is_none() && code_hash.is_none() {
            return parent;
        }
        let mut account = parent.unwrap_or_default();
        account.balance = balance.map_or(account.balance, |change| change.post_balance);
        account.nonce = nonce.map_or(account.nonce, |change| change.new_nonce);
        account.code_hash = code_hash.copied().unwrap_or(account.code_hash);
        // An account that was changed and is empty does not exist (EIP-161).
        (!account.is_empty()).then_some(account)
    }

    /// The value of a slot after the changes before `index`, if there are any.
    fn slot(&self, index: BlockAccessIndex, address: &Address, slot: &B256) -> Option<U256> {
        let slots = &self.get(address)?.storage_changes;
        let place =
            slots.binary_search_by_key(&U256::from_be_bytes(slot.0), |one| one.slot).ok()?;
        let changes = &slots.get(place)?.changes;
        Some(last(changes, |one| one.block_access_index < index)?.new_value)
    }
}

/// The last change for which `is_before` holds.
fn last<T>(changes: &[T], is_before: impl Fn(&T) -> bool) -> Option<&T> {
    changes.partition_point(is_before).checked_sub(1).and_then(|at| changes.get(at))
}

/// A parent's state with the list's writes before the current transaction.
pub(crate) struct BalOverlay<'a> {
    listed: &'a IndexedBal<'a>,
    input: ExecutionInput<'a>,
    /// Block access index of the current transaction.
    index: AtomicU64,
}

impl<'a> BalOverlay<'a> {
    pub(crate) const fn new(listed: &'a IndexedBal<'a>, input: ExecutionInput<'a>) -> Self {
        Self { listed, input, index: AtomicU64::new(0) }
    }

    /// Moves to the state before the transaction with this block access index.
    pub(crate) fn move_to_index(&self, index: u64) {
        self.index.store(index, Relaxed);
    }

    /// The input to execute a transaction on. Each thread has its own [`BalOverlay`].
    pub(crate) fn input(&self) -> ExecutionInput<'_> {
        ExecutionInput { state: self, codes: self, ..self.input }
    }

    fn index(&self) -> BlockAccessIndex {
        BlockAccessIndex::new(self.index.load(Relaxed))
    }
}

impl StateReader for BalOverlay<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        match key {
            StateKey::Account(address) => {
                Ok(self.account(address)?.map(|account| account.encode()))
            }
            StateKey::Slot(address, slot) => Ok(encode_slot(self.slot(address, slot)?)),
        }
    }

    fn account(&self, address: &Address) -> Result<Option<Account>, StateError> {
        let parent = self.input.state.account(address)?;
        Ok(self.listed.account(self.index(), address, parent))
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StateError> {
        match self.listed.slot(self.index(), address, slot) {
            Some(value) => Ok(value),
            None => self.input.state.slot(address, slot),
        }
    }

    /// A list has the accessed slots of an account, not all its slots.
    fn slots_of(&self, _: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let backend = "block access list";
        Err(StateError::Unsupported { backend, what: "the whole storage of an account" })
    }
}

impl CodeReader for BalOverlay<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        match self.listed.codes.get(hash) {
            Some(code) => Ok(Some(code.clone())),
            None => self.input.codes.code(hash),
        }
    }
}
