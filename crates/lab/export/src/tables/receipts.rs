//! Table `receipts`. cryo has none; the column names are those of cryo's transactions and of
//! JSON-RPC receipts.

use super::{address, count, hash, price, transactions::TransactionRow};
use crate::column::TableSchema;
use alloy_consensus::Transaction as _;
use alloy_primitives::{Bytes, logs_bloom};

/// A receipt has `success` or, before Byzantium, `root`, if it is known.
pub(super) fn schema() -> TableSchema<TransactionRow> {
    TableSchema::<TransactionRow>::new()
        .u32("block_number", TransactionRow::number)
        .u32("transaction_index", |t| Some(t.index()))
        .binary("transaction_hash", |t| hash(*t.transaction().tx_hash()))
        .unique()
        .u32("transaction_type", |t| Some(u32::from(u8::from(t.transaction().tx_type()))))
        .bool("success", TransactionRow::success)
        .binary("root", |t| {
            let roots = t.block.roots.as_ref().filter(|_| !t.block.has_status)?;
            roots.get(t.position()).copied().and_then(hash)
        })
        .u64("cumulative_gas_used", |t| t.receipt().map(|receipt| receipt.cumulative_gas_used))
        .u64("gas_used", |t| t.gas_used)
        .u64("effective_gas_price", TransactionRow::gas_price)
        .binary("from_address", |t| address(t.sender()))
        .binary("to_address", |t| t.transaction().to().and_then(address))
        .binary("contract_address", |t| {
            let tx = t.transaction();
            tx.is_create().then(|| t.sender().create(tx.nonce())).and_then(address)
        })
        .u32("n_logs", |t| t.receipt().and_then(|receipt| count(receipt.logs.len())))
        .binary("logs_bloom", |t| {
            let bloom = logs_bloom(&t.receipt()?.logs);
            Some(Bytes::copy_from_slice(bloom.as_slice()))
        })
        .u64("blob_gas_used", |t| t.transaction().blob_gas_used())
        .u64("blob_gas_price", |t| {
            let params = t.block.blob_params.filter(|_| t.transaction().is_eip4844())?;
            t.block.header().blob_fee(params).and_then(price)
        })
        .binary("block_hash", |t| hash(t.block.block.hash()))
        .u64("chain_id", |t| Some(t.block.chain_id))
}
