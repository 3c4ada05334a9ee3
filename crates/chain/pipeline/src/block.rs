//! A block that was executed on any parent: a block that was verified or built here.

use crate::{ProposalSet, RootSet, StatePatch, preimages::DeltaPreimages};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bytes, U256};
use retrie_chainspec::primitives::{Block, Receipt, RecoveredBlock};
use retrie_consensus::ChainHead;
use retrie_db::KeyPreimage;
use retrie_execution::{BlockAccessList, ExecutionOutcome};
use retrie_telemetry::spans::TraceContext;
use std::sync::Arc;
use tracing::Span;

/// A block with its receipts; cheap to clone.
#[derive(Clone, Debug)]
pub struct BlockWithReceipts {
    /// The block and the senders of its transactions.
    pub block: Arc<RecoveredBlock>,
    /// One receipt per transaction.
    pub receipts: Arc<Vec<Receipt>>,
}

/// A block of a batch that is not its last. A batch has states after its last block only.
#[derive(Clone, Debug)]
pub(crate) struct InnerBlock {
    pub(crate) data: BlockWithReceipts,
    /// As in [`ExecutedBlock`].
    pub(crate) access_list: Option<BlockAccessList>,
    pub(crate) total_difficulty: U256,
}

/// A valid block with everything that its execution yields. It need not be durable yet.
#[derive(Debug)]
pub struct ExecutedBlock {
    /// The block.
    pub data: BlockWithReceipts,
    /// Blocks below it that were executed in one batch with it, the oldest first.
    pub(crate) inner: Vec<InnerBlock>,
    /// Codes that the block, or the batch, has created.
    pub codes: Vec<(B256, Bytes)>,
    /// The block access list (EIP-7928), from Amsterdam on.
    pub access_list: Option<BlockAccessList>,
    /// Requests to the consensus layer (EIP-7685).
    pub requests: Requests,
    /// The chain that ends with it, for fork choice.
    pub chain: ChainHead,
    /// Its states. They are sealed with its hash.
    pub states: ProposalSet,
    /// Changes that the user of a dev chain made to the parent's state. The block begins with them.
    pub patch: Option<Arc<StatePatch>>,
    /// Preimages of the keys that it writes; none if the datadir does not keep them.
    pub(crate) preimages: DeltaPreimages,
    /// The span of its verification. Its commit becomes a part of that.
    pub(crate) trace: TraceContext,
}

impl ExecutedBlock {
    pub(crate) fn new(
        block: Arc<RecoveredBlock>,
        outcome: ExecutionOutcome,
        chain: ChainHead,
        states: ProposalSet,
    ) -> Self {
        let ExecutionOutcome { receipts, codes, access_list, requests, .. } = outcome;
        let data = BlockWithReceipts { block, receipts: Arc::new(receipts) };
        Self {
            data,
            inner: Vec::new(),
            codes,
            access_list,
            requests,
            chain,
            states,
            patch: None,
            preimages: DeltaPreimages::default(),
            trace: TraceContext::of(&Span::current()),
        }
    }

    /// Adds a block of the same batch, above the blocks that were added before.
    pub(crate) fn push_inner(
        &mut self,
        block: Arc<RecoveredBlock>,
        outcome: ExecutionOutcome,
        total_difficulty: U256,
    ) {
        let ExecutionOutcome { receipts, codes, access_list, .. } = outcome;
        let data = BlockWithReceipts { block, receipts: Arc::new(receipts) };
        self.inner.push(InnerBlock { data, access_list, total_difficulty });
        self.codes.extend(codes);
    }

    /// All blocks that were executed together, in ascending order: the batch, or this block alone.
    pub(crate) fn batch(&self) -> impl Iterator<Item = &BlockWithReceipts> {
        self.inner.iter().map(|inner| &inner.data).chain([&self.data])
    }

    /// The number of these blocks.
    pub(crate) const fn batch_len(&self) -> usize {
        self.inner.len() + 1
    }

    /// The first of these blocks.
    pub(crate) fn first(&self) -> &RecoveredBlock {
        let first = self.inner.first().map(|inner| &inner.data);
        &first.unwrap_or(&self.data).block
    }

    /// The address or slot with this keccak-256, if the block writes such a key, and the datadir
    /// keeps preimages.
    pub fn preimage(&self, hash: &B256) -> Option<KeyPreimage> {
        self.preimages.get(hash)
    }

    /// The block.
    pub fn block(&self) -> &RecoveredBlock {
        &self.data.block
    }

    /// Its receipts.
    pub fn receipts(&self) -> &[Receipt] {
        &self.data.receipts
    }

    /// The roots of its states.
    pub fn roots(&self) -> RootSet {
        self.states.roots()
    }

    /// Bytes of the block and its logs, summed over the batch.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |data: &BlockWithReceipts| {
            let logs = data.receipts.iter().flat_map(|receipt| &receipt.logs);
            let logs: usize = logs.map(|log| log.data.data.len() + 32 * log.topics().len()).sum();
            Block::rlp_length_for(data.block.header(), data.block.body()) + logs
        };
        self.batch().map(bytes).sum()
    }
}
