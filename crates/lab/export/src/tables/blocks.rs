//! Table `blocks`.

use super::{RowSink, address, count, hash};
use crate::{BlockData, ExportError, column::TableSchema};
use alloy_primitives::Bytes;
use retrie_chainspec::primitives::Block;
use std::sync::Arc;

pub(super) fn rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, BlockData>,
) -> Result<(), ExportError> {
    sink(block)
}

/// cryo's columns up to `chain_id`, then our own. `uncles_hash` is `sha3Uncles` of the header.
pub(super) fn schema() -> TableSchema<BlockData> {
    TableSchema::<BlockData>::new()
        .binary("block_hash", |b| hash(b.block.hash()))
        .unique()
        .binary("parent_hash", |b| hash(b.header().parent_hash))
        .unique()
        .binary("uncles_hash", |b| hash(b.header().ommers_hash))
        .binary("author", |b| address(b.header().beneficiary))
        .binary("state_root", |b| hash(b.header().state_root))
        .unique()
        .binary("transactions_root", |b| hash(b.header().transactions_root))
        .binary("receipts_root", |b| hash(b.header().receipts_root))
        .u32("block_number", |b| Some(b.header().number as u32))
        .u64("gas_used", |b| Some(b.header().gas_used))
        .u64("gas_limit", |b| Some(b.header().gas_limit))
        .binary("extra_data", |b| Some(b.header().extra_data.clone()))
        .binary("logs_bloom", |b| Some(Bytes::copy_from_slice(b.header().logs_bloom.as_slice())))
        .u32("timestamp", |b| Some(b.header().timestamp as u32))
        .u64("difficulty", |b| u64::try_from(b.header().difficulty).ok())
        .u256("total_difficulty", |b| b.total_difficulty)
        .u64("size", |b| {
            let size = || Block::rlp_length_for(b.header(), b.block.body()) as u64;
            b.ommers_known.then(size)
        })
        .binary("mix_hash", |b| hash(b.header().mix_hash))
        .unique()
        .binary("nonce", |b| Some(Bytes::copy_from_slice(b.header().nonce.as_slice())))
        .u64("base_fee_per_gas", |b| b.header().base_fee_per_gas)
        .binary("withdrawals_root", |b| b.header().withdrawals_root.and_then(hash))
        .u64("chain_id", |b| Some(b.chain_id))
        .u32("n_transactions", |b| count(b.block.body().transactions.len()))
        .u32("n_uncles", |b| b.ommers_known.then(|| b.block.body().ommers.len() as u32))
        .u32("n_withdrawals", |b| {
            b.block.body().withdrawals.as_ref().and_then(|all| count(all.len()))
        })
        .u64("blob_gas_used", |b| b.header().blob_gas_used)
        .u64("excess_blob_gas", |b| b.header().excess_blob_gas)
        .binary("parent_beacon_block_root", |b| b.header().parent_beacon_block_root.and_then(hash))
        .binary("requests_hash", |b| b.header().requests_hash.and_then(hash))
        .binary("block_access_list_hash", |b| b.header().block_access_list_hash.and_then(hash))
        .u64("slot_number", |b| b.header().slot_number)
}
