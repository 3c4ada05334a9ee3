//! Table `logs`.

use super::{RowSink, address, count, hash};
use crate::{BlockData, ExportError, column::TableSchema};
use alloy_primitives::{B256, Bytes, Log};
use std::sync::Arc;

/// A log of a block.
pub(crate) struct LogRow {
    block: Arc<BlockData>,
    transaction_hash: B256,
    transaction_index: u32,
    /// Its position among all logs of the block.
    log_index: u32,
    log: Log,
}

impl LogRow {
    fn topic(&self, index: usize) -> Option<Bytes> {
        self.log.topics().get(index).copied().and_then(hash)
    }
}

pub(super) fn rows(
    block: &Arc<BlockData>,
    sink: &mut RowSink<'_, LogRow>,
) -> Result<(), ExportError> {
    let mut log_index = 0;
    let transactions = &block.block.body().transactions;
    let receipts = block.receipts.iter().flatten();
    for ((transaction_index, transaction), receipt) in (0..).zip(transactions).zip(receipts) {
        for log in &receipt.logs {
            sink(&LogRow {
                block: block.clone(),
                transaction_hash: *transaction.tx_hash(),
                transaction_index,
                log_index,
                log: log.clone(),
            })?;
            log_index += 1;
        }
    }
    Ok(())
}

/// cryo's columns.
pub(super) fn schema() -> TableSchema<LogRow> {
    TableSchema::<LogRow>::new()
        .u32("block_number", |l| Some(l.block.header().number as u32))
        .binary("block_hash", |l| hash(l.block.block.hash()))
        .u32("transaction_index", |l| Some(l.transaction_index))
        .u32("log_index", |l| Some(l.log_index))
        .binary("transaction_hash", |l| hash(l.transaction_hash))
        .binary("address", |l| address(l.log.address))
        .binary("topic0", |l| l.topic(0))
        .binary("topic1", |l| l.topic(1))
        .binary("topic2", |l| l.topic(2))
        .binary("topic3", |l| l.topic(3))
        .binary("data", |l| Some(l.log.data.data.clone()))
        .u32("n_data_bytes", |l| count(l.log.data.data.len()))
        .u64("chain_id", |l| Some(l.block.chain_id))
}
