//! Tables of what blocks changed: `balance_diffs`, `nonce_diffs`, `code_diffs`, `storage_diffs`.
//!
//! cryo has a row for each transaction that changed a value. Here there is one for each block: from what
//! the value was before it to what it is after it, with rewards, withdrawals and system calls. So
//! `transaction_index` and `transaction_hash` are null. What is not there counts as zero, as in cryo.

use super::{Sink, address, hash};
use crate::{BlockData, Changes, ExportError, column::Schema};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use retrie_state::{Account, Change, StateKey, Value, decode_slot};
use std::sync::Arc;

/// A value of an account before and after a block.
pub(crate) struct Diff<V> {
    block: Arc<BlockData>,
    address: Address,
    from: V,
    to: V,
}

/// A slot before and after a block.
pub(crate) struct SlotDiff {
    slot: B256,
    diff: Diff<B256>,
}

/// Hands out the accounts that differ by `value`.
fn accounts<V: PartialEq>(
    block: &Arc<BlockData>,
    value: impl Fn(&Changes, Address, Account) -> Result<V, ExportError>,
    sink: &mut Sink<'_, Diff<V>>,
) -> Result<(), ExportError> {
    let Some(changes) = &block.changes else { return Ok(()) };
    for change in changes.delta.changes() {
        let StateKey::Account(address) = change.key else { continue };
        let side = |side: &Option<Value>| {
            let account = match side {
                Some(bytes) => Account::decode(bytes).ok_or_else(|| bad(block, change))?,
                None => Account::default(),
            };
            value(changes, address, account)
        };
        let (from, to) = (side(&change.previous)?, side(&change.next)?);
        if from != to {
            sink(&Diff { block: block.clone(), address, from, to })?;
        }
    }
    Ok(())
}

fn bad(block: &BlockData, change: &Change) -> ExportError {
    ExportError::BadValue { number: block.header().number, key: change.key }
}

pub(super) fn balance_rows(
    block: &Arc<BlockData>,
    sink: &mut Sink<'_, Diff<U256>>,
) -> Result<(), ExportError> {
    accounts(block, |_, _, account| Ok(account.balance), sink)
}

pub(super) fn nonce_rows(
    block: &Arc<BlockData>,
    sink: &mut Sink<'_, Diff<u64>>,
) -> Result<(), ExportError> {
    accounts(block, |_, _, account| Ok(account.nonce), sink)
}

pub(super) fn code_rows(
    block: &Arc<BlockData>,
    sink: &mut Sink<'_, Diff<Bytes>>,
) -> Result<(), ExportError> {
    // By hash first: codes of accounts that kept theirs are not at hand.
    accounts(block, |_, _, account| Ok(account.code_hash), &mut |diff| {
        let code = |hash: B256| match &block.changes {
            _ if hash == KECCAK256_EMPTY => Ok(Bytes::new()),
            changes => {
                let code = changes.as_ref().and_then(|changes| changes.codes.get(&hash));
                let (number, address) = (block.header().number, diff.address);
                code.cloned().ok_or(ExportError::NoCode { number, hash, address })
            }
        };
        let (from, to) = (code(diff.from)?, code(diff.to)?);
        sink(&Diff { block: diff.block.clone(), address: diff.address, from, to })
    })
}

pub(super) fn storage_rows(
    block: &Arc<BlockData>,
    sink: &mut Sink<'_, SlotDiff>,
) -> Result<(), ExportError> {
    let Some(changes) = &block.changes else { return Ok(()) };
    for change in changes.delta.changes() {
        let StateKey::Slot(address, slot) = change.key else { continue };
        let side = |side: &Option<Value>| match side {
            Some(bytes) => decode_slot(bytes).map(B256::from).ok_or_else(|| bad(block, change)),
            None => Ok(B256::ZERO),
        };
        let (from, to) = (side(&change.previous)?, side(&change.next)?);
        // Cleared with its account, and set again to what it was.
        if from != to {
            sink(&SlotDiff { slot, diff: Diff { block: block.clone(), address, from, to } })?;
        }
    }
    Ok(())
}

fn of_block<V>() -> Schema<Diff<V>> {
    Schema::<Diff<V>>::new()
        .u32("block_number", |d| Some(d.block.header().number as u32))
        .u32("transaction_index", |_| None)
        .binary("transaction_hash", |_| None)
        .binary("address", |d| address(d.address))
}

pub(super) fn balance_schema() -> Schema<Diff<U256>> {
    of_block()
        .u256("from_value", |d: &Diff<U256>| Some(d.from))
        .u256("to_value", |d: &Diff<U256>| Some(d.to))
        .u64("chain_id", |d| Some(d.block.chain_id))
}

pub(super) fn nonce_schema() -> Schema<Diff<u64>> {
    of_block()
        .u64("from_value", |d: &Diff<u64>| Some(d.from))
        .u64("to_value", |d: &Diff<u64>| Some(d.to))
        .u64("chain_id", |d| Some(d.block.chain_id))
}

pub(super) fn code_schema() -> Schema<Diff<Bytes>> {
    of_block()
        .binary("from_value", |d: &Diff<Bytes>| Some(d.from.clone()))
        .binary("to_value", |d: &Diff<Bytes>| Some(d.to.clone()))
        .u64("chain_id", |d| Some(d.block.chain_id))
}

pub(super) fn storage_schema() -> Schema<SlotDiff> {
    Schema::<SlotDiff>::new()
        .u32("block_number", |d| Some(d.diff.block.header().number as u32))
        .u32("transaction_index", |_| None)
        .binary("transaction_hash", |_| None)
        .binary("address", |d| address(d.diff.address))
        .binary("slot", |d| hash(d.slot))
        .binary("from_value", |d| hash(d.diff.from))
        .binary("to_value", |d| hash(d.diff.to))
        .u64("chain_id", |d| Some(d.diff.block.chain_id))
}
