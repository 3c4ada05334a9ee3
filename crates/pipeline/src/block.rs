//! A block that was executed, on whatever parent: verified, or built here.

use crate::{Proposals, Roots, StatePatch};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bytes, U256};
use retrie_chainspec::primitives::{Block, Receipt, RecoveredBlock};
use retrie_consensus::ChainHead;
use retrie_execution::{BlockAccessList, ExecutionOutcome};
use std::sync::Arc;

/// A block with its receipts; cheap to clone.
#[derive(Clone, Debug)]
pub struct BlockWithReceipts {
    /// The block and the senders of its transactions.
    pub block: Arc<RecoveredBlock>,
    /// One receipt per transaction.
    pub receipts: Arc<Vec<Receipt>>,
}

/// A block of a run that is not its last: the run has states after the last one alone.
#[derive(Clone, Debug)]
pub(crate) struct InnerBlock {
    pub(crate) data: BlockWithReceipts,
    pub(crate) total_difficulty: U256,
}

/// A valid block and all that it leaves. It need not be durable yet.
#[derive(Debug)]
pub struct ExecutedBlock {
    /// The block.
    pub data: BlockWithReceipts,
    /// Blocks below it that were executed as one run with it, the oldest first.
    pub(crate) inner: Vec<InnerBlock>,
    /// Codes that it has created, or the run.
    pub codes: Vec<(B256, Bytes)>,
    /// Accesses of the block (EIP-7928), from Amsterdam on.
    pub access_list: Option<BlockAccessList>,
    /// Requests to the consensus layer (EIP-7685).
    pub requests: Requests,
    /// The chain that ends with it, for fork choice.
    pub chain: ChainHead,
    /// Its states, sealed with its hash.
    pub states: Proposals,
    /// What the user of a dev chain changed of its parent's state, with which it begins.
    pub patch: Option<Arc<StatePatch>>,
}

impl ExecutedBlock {
    pub(crate) fn new(
        block: Arc<RecoveredBlock>,
        outcome: ExecutionOutcome,
        chain: ChainHead,
        states: Proposals,
    ) -> Self {
        let ExecutionOutcome { receipts, codes, access_list, requests, .. } = outcome;
        let data = BlockWithReceipts { block, receipts: Arc::new(receipts) };
        Self { data, inner: Vec::new(), codes, access_list, requests, chain, states, patch: None }
    }

    /// Puts a block of the same run below it, above those that are there.
    pub(crate) fn put_inner(
        &mut self,
        block: Arc<RecoveredBlock>,
        outcome: ExecutionOutcome,
        total_difficulty: U256,
    ) {
        let ExecutionOutcome { receipts, codes, .. } = outcome;
        let data = BlockWithReceipts { block, receipts: Arc::new(receipts) };
        self.inner.push(InnerBlock { data, total_difficulty });
        self.codes.extend(codes);
    }

    /// All that was executed as one, in ascending order: itself, or the run that ends with it.
    pub(crate) fn run(&self) -> impl Iterator<Item = &BlockWithReceipts> {
        self.inner.iter().map(|inner| &inner.data).chain([&self.data])
    }

    /// How many blocks that are.
    pub(crate) const fn run_len(&self) -> usize {
        self.inner.len() + 1
    }

    /// The first of them.
    pub(crate) fn first(&self) -> &RecoveredBlock {
        let first = self.inner.first().map(|inner| &inner.data);
        &first.unwrap_or(&self.data).block
    }

    /// The block.
    pub fn block(&self) -> &RecoveredBlock {
        &self.data.block
    }

    /// Its receipts.
    pub fn receipts(&self) -> &[Receipt] {
        &self.data.receipts
    }

    /// Roots of its states.
    pub fn roots(&self) -> Roots {
        self.states.roots()
    }

    /// Bytes of the block and its logs, or of all of the run.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |data: &BlockWithReceipts| {
            let logs = data.receipts.iter().flat_map(|receipt| &receipt.logs);
            let logs: usize = logs.map(|log| log.data.data.len() + 32 * log.topics().len()).sum();
            Block::rlp_length_for(data.block.header(), data.block.body()) + logs
        };
        self.run().map(bytes).sum()
    }
}
