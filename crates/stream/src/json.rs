//! The JSON of records. Blocks and receipts have the forms of `eth_getBlockByNumber` and
//! `eth_getBlockReceipts`.

use crate::{RecordKind, StreamCursor};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use retrie_engine::LiveView;
use retrie_pipeline::PipelineError;
use retrie_state::{
    Account, BlockRef, StateChange, StateDelta, StateError, StateKey, StateValue, decode_slot,
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use std::collections::BTreeMap;

/// A record: `cursor`, `type`, `number` and `hash` of its block, and its content, or `null` and the
/// reason.
pub(crate) struct RecordLine<T> {
    pub(crate) cursor: StreamCursor,
    pub(crate) content: Result<T, String>,
}

impl<T: Serialize> Serialize for RecordLine<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cursor, content } = self;
        let StreamCursor { block, kind, .. } = cursor;
        let name = if *kind == RecordKind::Revert { "undone" } else { kind.name() };
        let mut fields = serializer.serialize_map(None)?;
        // First, so that a reader finds it without parsing the line.
        fields.serialize_entry("cursor", cursor)?;
        fields.serialize_entry("type", kind.name())?;
        fields.serialize_entry("number", &U64::from(block.number))?;
        fields.serialize_entry("hash", &block.hash)?;
        match content {
            Ok(content) => fields.serialize_entry(name, content)?,
            Err(reason) => {
                fields.serialize_entry(name, &())?;
                fields.serialize_entry("reason", reason)?;
            }
        }
        fields.end()
    }
}

/// How every record begins, before the text of its cursor and a quotation mark.
pub(crate) const LINE_START: &str = "{\"cursor\":\"";

/// A block by number and hash.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct BlockName {
    number: U64,
    hash: B256,
}

impl From<BlockRef> for BlockName {
    fn from(block: BlockRef) -> Self {
        Self { number: U64::from(block.number), hash: block.hash }
    }
}

/// What a block changed. Balances include fees, rewards and withdrawals.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DeltaFields {
    accounts: Vec<AccountDiff>,
    storage: Vec<SlotDiff>,
    codes: BTreeMap<B256, Bytes>,
}

/// An account before and after a block; `null` if it is absent.
#[derive(Clone, Debug, Serialize)]
struct AccountDiff {
    address: Address,
    from: Option<AccountFields>,
    to: Option<AccountFields>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountFields {
    nonce: U64,
    balance: U256,
    code_hash: B256,
}

/// A slot before and after a block; zero if it is not set.
#[derive(Clone, Debug, Serialize)]
struct SlotDiff {
    address: Address,
    slot: B256,
    from: B256,
    to: B256,
}

impl DeltaFields {
    /// The fields of `delta`, with the codes that accounts have after it and had not before.
    ///
    /// # Errors
    /// If a value or a code is not as it must be.
    pub(crate) fn new(view: &LiveView, delta: &StateDelta) -> Result<Self, PipelineError> {
        let mut fields = Self::default();
        for change in delta.changes() {
            match change.key {
                StateKey::Account(address) => fields.add_account(view, delta, address, change)?,
                StateKey::Slot(address, slot) => {
                    let [from, to] = [&change.previous, &change.next].map(word);
                    let bad = || bad_value(change);
                    let (from, to) = (from.ok_or_else(bad)?, to.ok_or_else(bad)?);
                    // Cleared with its account, and then set to the same value again.
                    if from != to {
                        fields.storage.push(SlotDiff { address, slot, from, to });
                    }
                }
            }
        }
        Ok(fields)
    }

    fn add_account(
        &mut self,
        view: &LiveView,
        delta: &StateDelta,
        address: Address,
        change: &StateChange,
    ) -> Result<(), PipelineError> {
        let from = account(change, &change.previous)?;
        let to = account(change, &change.next)?;
        if let Some(to) = to
            && to.code_hash != alloy_primitives::KECCAK256_EMPTY
            && from.is_none_or(|from| from.code_hash != to.code_hash)
            && !self.codes.contains_key(&to.code_hash)
        {
            let code = match delta.code(&to.code_hash) {
                Some(code) => code.clone(),
                None => view.code(&to.code_hash)?.ok_or_else(|| {
                    let what = format!("code {} of {address} is missing", to.code_hash);
                    StateError::corrupt("Codes", what)
                })?,
            };
            self.codes.insert(to.code_hash, code);
        }
        self.accounts.push(AccountDiff { address, from, to });
        Ok(())
    }
}

fn account(
    change: &StateChange,
    value: &Option<StateValue>,
) -> Result<Option<AccountFields>, PipelineError> {
    let Some(value) = value else { return Ok(None) };
    let Account { nonce, balance, code_hash } =
        Account::decode(value).ok_or_else(|| bad_value(change))?;
    Ok(Some(AccountFields { nonce: U64::from(nonce), balance, code_hash }))
}

/// The value of a slot; zero if it is absent, `None` if it is damaged.
fn word(value: &Option<StateValue>) -> Option<B256> {
    match value {
        Some(value) => decode_slot(value).map(B256::from),
        None => Some(B256::ZERO),
    }
}

fn bad_value(change: &StateChange) -> StateError {
    StateError::corrupt("state", format!("the value of {} is not canonical", change.key))
}
