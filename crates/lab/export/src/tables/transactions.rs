//! Table `transactions`, and the rows that it shares with `receipts`.

use super::{RowSink, address, count, hash, price};
use crate::{BlockData, ExportError, column::TableSchema};
use alloy_consensus::Transaction as _;
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, Bytes, U256};
use retrie_chainspec::primitives::{Receipt, Transaction};
use std::sync::Arc;

/// A transaction of a block, and its receipt.
pub(crate) struct TransactionRow {
    pub(super) block: Arc<BlockData>,
    index: usize,
    pub(super) gas_used: Option<u64>,
}

impl TransactionRow {
    pub(super) fn transaction(&self) -> &Transaction {
        &self.block.block.body().transactions[self.index]
    }

    pub(super) fn sender(&self) -> Address {
        self.block.block.senders()[self.index]
    }

    pub(super) fn receipt(&self) -> Option<&Receipt> {
        self.block.receipts.as_ref()?.get(self.index)
    }

    pub(super) const fn index(&self) -> u32 {
        self.index as u32
    }

    pub(super) const fn position(&self) -> usize {
        self.index
    }

    pub(super) fn number(&self) -> Option<u32> {
        Some(self.block.header().number as u32)
    }

    /// Whether it succeeded. Receipts before Byzantium do not tell.
    pub(super) fn success(&self) -> Option<bool> {
        self.receipt().filter(|_| self.block.has_status).map(|receipt| receipt.success)
    }

    pub(super) fn gas_price(&self) -> Option<u64> {
        price(self.transaction().effective_gas_price(self.block.header().base_fee_per_gas))
    }

    fn zero_bytes(&self) -> u32 {
        self.transaction().input().iter().filter(|byte| **byte == 0).count() as u32
    }
}

pub(super) fn rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, TransactionRow>,
) -> Result<(), ExportError> {
    let mut gas_before = 0;
    for index in 0..block.block.body().transactions.len() {
        let cumulative = block.receipts.as_ref().and_then(|receipts| receipts.get(index));
        let cumulative = cumulative.map(|receipt| receipt.cumulative_gas_used);
        let gas_used = cumulative.map(|gas| gas.saturating_sub(gas_before));
        gas_before = cumulative.unwrap_or_default();
        sink(&TransactionRow { block: block.clone(), index, gas_used })?;
    }
    Ok(())
}

fn word(word: U256) -> Option<Bytes> {
    let word: [u8; 32] = word.to_be_bytes();
    Some(Bytes::copy_from_slice(&word))
}

/// cryo's columns up to `v`, then our own.
pub(super) fn schema() -> TableSchema<TransactionRow> {
    TableSchema::<TransactionRow>::new()
        .u32("block_number", TransactionRow::number)
        .u64("transaction_index", |t| Some(t.index().into()))
        .binary("transaction_hash", |t| hash(*t.transaction().tx_hash()))
        .unique()
        .u64("nonce", |t| Some(t.transaction().nonce()))
        .binary("from_address", |t| address(t.sender()))
        .binary("to_address", |t| t.transaction().to().and_then(address))
        .u256("value", |t| Some(t.transaction().value()))
        .binary("input", |t| Some(t.transaction().input().clone()))
        .u64("gas_limit", |t| Some(t.transaction().gas_limit()))
        .u64("gas_used", |t| t.gas_used)
        .u64("gas_price", TransactionRow::gas_price)
        .u32("transaction_type", |t| Some(u32::from(u8::from(t.transaction().tx_type()))))
        .u64("max_priority_fee_per_gas", |t| {
            t.transaction().max_priority_fee_per_gas().and_then(price)
        })
        .u64("max_fee_per_gas", |t| {
            let tx = t.transaction();
            tx.is_dynamic_fee().then(|| tx.max_fee_per_gas()).and_then(price)
        })
        .bool("success", TransactionRow::success)
        .u32("n_input_bytes", |t| count(t.transaction().input().len()))
        .u32("n_input_zero_bytes", |t| Some(t.zero_bytes()))
        .u32("n_input_nonzero_bytes", |t| {
            Some(t.transaction().input().len() as u32 - t.zero_bytes())
        })
        .u32("n_rlp_bytes", |t| count(t.transaction().encode_2718_len()))
        .binary("block_hash", |t| hash(t.block.block.hash()))
        .u64("chain_id", |t| Some(t.block.chain_id))
        .u32("timestamp", |t| Some(t.block.header().timestamp as u32))
        .binary("r", |t| word(t.transaction().signature().r()))
        .unique()
        .binary("s", |t| word(t.transaction().signature().s()))
        .unique()
        .bool("v", |t| Some(t.transaction().signature().v()))
        .u64("max_fee_per_blob_gas", |t| t.transaction().max_fee_per_blob_gas().and_then(price))
        .u32("n_blobs", |t| {
            t.transaction().blob_versioned_hashes().and_then(|all| count(all.len()))
        })
        .u32("n_authorizations", |t| {
            t.transaction().authorization_list().and_then(|all| count(all.len()))
        })
        .u32("n_access_list_addresses", |t| {
            t.transaction().access_list().and_then(|list| count(list.0.len()))
        })
}
