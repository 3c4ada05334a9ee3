//! Tables of state changes by blocks: `balance_diffs`, `nonce_diffs`, `code_diffs`,
//! `storage_diffs`.
//!
//! cryo has a row for each transaction that changed a value. These tables have a row for each block
//! that changed it: the value before the block and the value after it, with rewards, withdrawals
//! and system calls. So `transaction_index` and `transaction_hash` are null. An absent value counts
//! as zero, as in cryo.

use super::{RowSink, address, hash};
use crate::{BlockChanges, BlockData, BlockSourceError, ExportError, column::TableSchema};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use retrie_state::{Account, StateChange, StateKey, StateValue, decode_slot};
use std::sync::Arc;

/// A value of an account before and after a block.
pub(crate) struct ValueDiff<V> {
    block: Arc<BlockData>,
    address: Address,
    from: V,
    to: V,
}

/// A slot before and after a block.
pub(crate) struct SlotDiff {
    slot: B256,
    diff: ValueDiff<B256>,
}

/// Calls `sink` for the accounts whose `value` differs.
fn accounts<V: PartialEq>(
    block: &Arc<BlockData>,
    value: impl Fn(&BlockChanges, Address, Account) -> Result<V, ExportError>,
    sink: &mut RowSink<'_, ValueDiff<V>>,
) -> Result<(), ExportError> {
    let Some(changes) = &block.changes else { return Ok(()) };
    for change in changes.delta.changes() {
        let StateKey::Account(address) = change.key else { continue };
        let side = |side: &Option<StateValue>| {
            let account = match side {
                Some(bytes) => Account::decode(bytes).ok_or_else(|| bad(block, change))?,
                None => Account::default(),
            };
            value(changes, address, account)
        };
        let (from, to) = (side(&change.previous)?, side(&change.next)?);
        if from != to {
            sink(&ValueDiff { block: block.clone(), address, from, to })?;
        }
    }
    Ok(())
}

fn bad(block: &BlockData, change: &StateChange) -> ExportError {
    ExportError::BadValue { number: block.header().number, key: change.key }
}

pub(super) fn balance_rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, ValueDiff<U256>>,
) -> Result<(), ExportError> {
    accounts(block, |_, _, account| Ok(account.balance), sink)
}

pub(super) fn nonce_rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, ValueDiff<u64>>,
) -> Result<(), ExportError> {
    accounts(block, |_, _, account| Ok(account.nonce), sink)
}

pub(super) fn code_rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, ValueDiff<Bytes>>,
) -> Result<(), ExportError> {
    // Compare hashes first: the codes of accounts that kept their code are not loaded.
    accounts(block, |_, _, account| Ok(account.code_hash), &mut |diff| {
        let code = |hash: B256| match &block.changes {
            _ if hash == KECCAK256_EMPTY => Ok(Bytes::new()),
            changes => {
                let code = changes.as_ref().and_then(|changes| changes.codes.get(&hash));
                let (number, address) = (block.header().number, diff.address);
                code.cloned().ok_or(BlockSourceError::NoCode { number, hash, address })
            }
        };
        let (from, to) = (code(diff.from)?, code(diff.to)?);
        sink(&ValueDiff { block: diff.block.clone(), address: diff.address, from, to })
    })
}

pub(super) fn storage_rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, SlotDiff>,
) -> Result<(), ExportError> {
    let Some(changes) = &block.changes else { return Ok(()) };
    for change in changes.delta.changes() {
        let StateKey::Slot(address, slot) = change.key else { continue };
        let side = |side: &Option<StateValue>| match side {
            Some(bytes) => decode_slot(bytes).map(B256::from).ok_or_else(|| bad(block, change)),
            None => Ok(B256::ZERO),
        };
        let (from, to) = (side(&change.previous)?, side(&change.next)?);
        // Cleared with its account, and then set to the same value again.
        if from != to {
            sink(&SlotDiff { slot, diff: ValueDiff { block: block.clone(), address, from, to } })?;
        }
    }
    Ok(())
}

fn of_block<V>() -> TableSchema<ValueDiff<V>> {
    TableSchema::<ValueDiff<V>>::new()
        .u32("block_number", |d| Some(d.block.header().number as u32))
        .u32("transaction_index", |_| None)
        .binary("transaction_hash", |_| None)
        .binary("address", |d| address(d.address))
}

pub(super) fn balance_schema() -> TableSchema<ValueDiff<U256>> {
    of_block()
        .u256("from_value", |d: &ValueDiff<U256>| Some(d.from))
        .u256("to_value", |d: &ValueDiff<U256>| Some(d.to))
        .u64("chain_id", |d| Some(d.block.chain_id))
}

pub(super) fn nonce_schema() -> TableSchema<ValueDiff<u64>> {
    of_block()
        .u64("from_value", |d: &ValueDiff<u64>| Some(d.from))
        .u64("to_value", |d: &ValueDiff<u64>| Some(d.to))
        .u64("chain_id", |d| Some(d.block.chain_id))
}

pub(super) fn code_schema() -> TableSchema<ValueDiff<Bytes>> {
    of_block()
        .binary("from_value", |d: &ValueDiff<Bytes>| Some(d.from.clone()))
        .binary("to_value", |d: &ValueDiff<Bytes>| Some(d.to.clone()))
        .u64("chain_id", |d| Some(d.block.chain_id))
}

pub(super) fn storage_schema() -> TableSchema<SlotDiff> {
    TableSchema::<SlotDiff>::new()
        .u32("block_number", |d| Some(d.diff.block.header().number as u32))
        .u32("transaction_index", |_| None)
        .binary("transaction_hash", |_| None)
        .binary("address", |d| address(d.diff.address))
        .binary("slot", |d| hash(d.slot))
        .binary("from_value", |d| hash(d.diff.from))
        .binary("to_value", |d| hash(d.diff.to))
        .u64("chain_id", |d| Some(d.diff.block.chain_id))
}
