//! The state during the execution of a transaction.

use alloy_primitives::{Address, Bytes, U256};
use retrie_execution::InspectorContext;
use revm::{
    Database,
    context_interface::{ContextTr, JournalTr},
    state::AccountInfo,
};

/// Reads the journal, or the state before the transaction if the journal lacks the value. A read
/// does not warm anything. A failed read returns the default value; the execution then fails with
/// the error.
pub(super) trait CurrentState {
    /// The account, with its code if that is loaded.
    fn account(&mut self, address: Address) -> Option<AccountInfo>;

    /// The account's code.
    fn code(&mut self, address: Address) -> Bytes;

    /// The value of a slot before the transaction, and its present value.
    fn original_and_present(&mut self, address: Address, slot: U256) -> (U256, U256);

    /// The account that the code delegates to (EIP-7702).
    fn delegation(&mut self, address: Address) -> Option<Address> {
        delegation(&self.code(address))
    }

    /// Whether the account does not exist or is empty (EIP-161).
    fn is_empty(&mut self, address: Address) -> bool {
        self.account(address).is_none_or(|info| info.is_empty())
    }

    fn exists(&mut self, address: Address) -> bool {
        self.account(address).is_some()
    }

    fn balance(&mut self, address: Address) -> U256 {
        self.account(address).unwrap_or_default().balance
    }

    fn nonce(&mut self, address: Address) -> u64 {
        self.account(address).unwrap_or_default().nonce
    }

    fn slot(&mut self, address: Address, slot: U256) -> U256 {
        self.original_and_present(address, slot).1
    }
}

/// The account that the code delegates to (EIP-7702).
pub(super) fn delegation(code: &[u8]) -> Option<Address> {
    let target = code.strip_prefix(&[0xef, 0x01, 0x00])?;
    Address::try_from(target).ok()
}

impl CurrentState for InspectorContext<'_> {
    fn account(&mut self, address: Address) -> Option<AccountInfo> {
        let (db, state) = self.journal_mut().db_and_state_mut();
        match state.get(&address) {
            Some(account) if account.is_loaded_as_not_existing_not_touched() => None,
            Some(account) => Some(account.info.clone()),
            None => db.basic(address).ok().flatten(),
        }
    }

    fn code(&mut self, address: Address) -> Bytes {
        let Some(info) = self.account(address) else { return Bytes::new() };
        if info.is_empty_code_hash() {
            return Bytes::new();
        }
        let db = self.journal_mut().db_mut();
        let code = info.code.or_else(|| db.code_by_hash(info.code_hash).ok());
        code.map(|code| code.original_bytes()).unwrap_or_default()
    }

    fn original_and_present(&mut self, address: Address, slot: U256) -> (U256, U256) {
        let (db, state) = self.journal_mut().db_and_state_mut();
        let account = state.get(&address);
        if let Some(known) = account.and_then(|account| account.storage.get(&slot)) {
            return (known.original_value(), known.present_value());
        }
        if account.is_some_and(|account| account.is_created()) {
            return (U256::ZERO, U256::ZERO);
        }
        let value = db.storage(address, slot).unwrap_or_default();
        (value, value)
    }
}
