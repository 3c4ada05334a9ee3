//! A block that was executed, on whatever parent: verified, or built here.

use crate::{Proposals, Roots};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bytes};
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

/// A valid block and all that it leaves. It need not be durable yet.
#[derive(Debug)]
pub struct ExecutedBlock {
    /// The block.
    pub data: BlockWithReceipts,
    /// Codes that it has created.
    pub codes: Vec<(B256, Bytes)>,
    /// Accesses of the block (EIP-7928), from Amsterdam on.
    pub access_list: Option<BlockAccessList>,
    /// Requests to the consensus layer (EIP-7685).
    pub requests: Requests,
    /// The chain that ends with it, for fork choice.
    pub chain: ChainHead,
    /// Its states, sealed with its hash.
    pub states: Proposals,
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
        Self { data, codes, access_list, requests, chain, states }
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

    /// Bytes of the block and its logs.
    pub(crate) fn bytes(&self) -> usize {
        let logs = self.data.receipts.iter().flat_map(|receipt| &receipt.logs);
        let logs: usize = logs.map(|log| log.data.data.len() + 32 * log.topics().len()).sum();
        Block::rlp_length_for(self.block().header(), self.block().body()) + logs
    }
}
