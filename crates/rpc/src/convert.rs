//! Converts chain types to their JSON-RPC form.

use alloy_consensus::{
    Eip658Value, Receipt as EnvelopeReceipt, ReceiptEnvelope, ReceiptWithBloom, Transaction as _,
    transaction::{Recovered, TransactionInfo},
};
use alloy_eips::eip7840::BlobParams;
use alloy_primitives::{Address, B256, Log as ChainLog, TxKind, U256};
use alloy_rlp::Encodable;
use alloy_rpc_types_eth::{Block, BlockTransactions, Header, Log, Transaction, TransactionReceipt};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block as ChainBlock, Receipt, RecoveredBlock, SealedHeader, TxType},
};
use retrie_engine::pool::PoolTransaction;

/// A transaction in JSON-RPC form.
pub(crate) type RpcTransaction = Transaction<retrie_chainspec::primitives::Transaction>;
/// A block in JSON-RPC form.
pub(crate) type RpcBlock = Block<RpcTransaction>;
/// A receipt in JSON-RPC form.
pub(crate) type RpcReceipt = TransactionReceipt<ReceiptEnvelope<Log>>;

/// A block with its transactions, in full or by hash.
pub(crate) fn block(block: &RecoveredBlock, is_full: bool) -> RpcBlock {
    let transactions = if is_full {
        let count = block.body().transactions.len();
        BlockTransactions::Full((0..count).filter_map(|at| transaction(block, at)).collect())
    } else {
        let hash = |one: &retrie_chainspec::primitives::Transaction| *one.tx_hash();
        BlockTransactions::Hashes(block.body().transactions.iter().map(hash).collect())
    };
    let body = block.body();
    let size = ChainBlock::rlp_length_for(block.header(), body);
    Block {
        header: header(block.sealed_header(), Some(size)),
        uncles: body.ommers.iter().map(|ommer| ommer.hash_slow()).collect(),
        transactions,
        withdrawals: body.withdrawals.clone(),
    }
}

/// A header, with the size of its block in bytes if given.
pub(crate) fn header(header: &SealedHeader, size: Option<usize>) -> Header {
    Header {
        hash: header.hash(),
        inner: header.header().clone(),
        total_difficulty: None,
        size: size.map(U256::from),
    }
}

/// An ommer as a block of its own, without transactions.
pub(crate) fn ommer(header: &SealedHeader) -> RpcBlock {
    let alone = ChainBlock { header: header.header().clone(), body: Default::default() };
    Block {
        header: self::header(header, Some(alone.length())),
        uncles: Vec::new(),
        transactions: BlockTransactions::Uncle,
        withdrawals: None,
    }
}

/// The transaction at `index` of a block.
pub(crate) fn transaction(block: &RecoveredBlock, index: usize) -> Option<RpcTransaction> {
    let transaction = block.body().transactions.get(index)?.clone();
    let sender = *block.senders().get(index)?;
    Some(mined_transaction(transaction, sender, block.sealed_header(), index))
}

/// The transaction at `index` of the block with this header.
pub(crate) fn mined_transaction(
    transaction: retrie_chainspec::primitives::Transaction,
    sender: Address,
    header: &SealedHeader,
    index: usize,
) -> RpcTransaction {
    let info = TransactionInfo {
        hash: Some(*transaction.tx_hash()),
        index: Some(index as u64),
        block_hash: Some(header.hash()),
        block_number: Some(header.number),
        base_fee: header.base_fee_per_gas,
        block_timestamp: Some(header.timestamp),
    };
    Transaction::from_transaction(Recovered::new_unchecked(transaction, sender), info)
}

/// A transaction of the pool.
pub(crate) fn pool_transaction(waiting: &PoolTransaction) -> RpcTransaction {
    Transaction::from_transaction(waiting.transaction.clone(), TransactionInfo::default())
}

/// The position of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPosition {
    pub(crate) transaction: B256,
    pub(crate) transaction_index: usize,
    /// Index within the block.
    pub(crate) index: usize,
    /// Whether its block has left the canonical chain.
    pub(crate) is_removed: bool,
}

/// A log of the block with this header.
pub(crate) fn log(log: ChainLog, header: &SealedHeader, position: LogPosition) -> Log {
    Log {
        inner: log,
        block_hash: Some(header.hash()),
        block_number: Some(header.number),
        block_timestamp: Some(header.timestamp),
        transaction_hash: Some(position.transaction),
        transaction_index: Some(position.transaction_index as u64),
        log_index: Some(position.index as u64),
        removed: position.is_removed,
    }
}

/// The receipts of a block. `roots` are the state roots after each transaction, if known: receipts
/// before Byzantium have them in place of a status.
pub(crate) fn receipts(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    receipts: &[Receipt],
    roots: Option<&[B256]>,
) -> Vec<RpcReceipt> {
    let mut position = ReceiptPosition::first(spec, block);
    let mut shown = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        shown.extend(position.receipt(block, receipt, roots));
        position.pass(receipt);
    }
    shown
}

/// The receipt `index` of a block, as [`receipts`] gives it; `None` if the block has fewer.
pub(crate) fn receipt(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    receipts: &[Receipt],
    index: usize,
    roots: Option<&[B256]>,
) -> Option<RpcReceipt> {
    let receipt = receipts.get(index)?;
    let mut position = ReceiptPosition::first(spec, block);
    receipts[..index].iter().for_each(|receipt| position.pass(receipt));
    position.receipt(block, receipt, roots)
}

/// The position of a receipt in its block.
struct ReceiptPosition {
    index: usize,
    gas_before: u64,
    logs_before: usize,
    blob_params: Option<BlobParams>,
}

impl ReceiptPosition {
    fn first(spec: &ChainSpec, block: &RecoveredBlock) -> Self {
        let blob_params = spec.blob_params_at_timestamp(block.timestamp);
        Self { index: 0, gas_before: 0, logs_before: 0, blob_params }
    }

    /// Moves on from `receipt` to the next one.
    fn pass(&mut self, receipt: &Receipt) {
        self.index += 1;
        self.gas_before = receipt.cumulative_gas_used;
        self.logs_before += receipt.logs.len();
    }

    /// The receipt at this position; `None` if the block has no such transaction.
    fn receipt(
        &self,
        block: &RecoveredBlock,
        receipt: &Receipt,
        roots: Option<&[B256]>,
    ) -> Option<RpcReceipt> {
        let header = block.sealed_header();
        let transaction = block.body().transactions.get(self.index)?;
        let from = *block.senders().get(self.index)?;
        let root = roots.and_then(|roots| roots.get(self.index)).copied();
        let hash = *transaction.tx_hash();
        let logs = receipt.logs.iter().enumerate().map(|(at, log)| {
            let position = LogPosition {
                transaction: hash,
                transaction_index: self.index,
                index: self.logs_before + at,
                is_removed: false,
            };
            self::log(log.clone(), header, position)
        });
        let status = root.map_or(Eip658Value::Eip658(receipt.success), Eip658Value::PostState);
        let inner = EnvelopeReceipt {
            status,
            cumulative_gas_used: receipt.cumulative_gas_used,
            logs: logs.collect(),
        };
        let logs_bloom = alloy_primitives::logs_bloom(&receipt.logs);
        let inner = ReceiptWithBloom { receipt: inner, logs_bloom };
        let inner = match receipt.tx_type {
            TxType::Legacy => ReceiptEnvelope::Legacy(inner),
            TxType::Eip2930 => ReceiptEnvelope::Eip2930(inner),
            TxType::Eip1559 => ReceiptEnvelope::Eip1559(inner),
            TxType::Eip4844 => ReceiptEnvelope::Eip4844(inner),
            TxType::Eip7702 => ReceiptEnvelope::Eip7702(inner),
        };
        let blob_fee = self.blob_params.and_then(|params| header.blob_fee(params));
        let contract_address = match transaction.kind() {
            TxKind::Create => Some(from.create(transaction.nonce())),
            TxKind::Call(_) => None,
        };
        Some(TransactionReceipt {
            inner,
            transaction_hash: hash,
            transaction_index: Some(self.index as u64),
            block_hash: Some(header.hash()),
            block_number: Some(header.number),
            gas_used: receipt.cumulative_gas_used.saturating_sub(self.gas_before),
            effective_gas_price: transaction.effective_gas_price(header.base_fee_per_gas),
            blob_gas_used: transaction.blob_gas_used(),
            blob_gas_price: blob_fee.filter(|_| transaction.is_eip4844()),
            from,
            to: transaction.to(),
            contract_address,
        })
    }
}
