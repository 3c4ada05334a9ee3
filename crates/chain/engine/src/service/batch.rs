//! Batches of blocks: each block is executed while the root of the one before is computed.

use super::{EngineLoop, valid};
use crate::EngineError;
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadStatus;
use retrie_pipeline::{AheadOutcome, BlockTree, DriverStep, PreparedBlock, TreeDriver, TreeOwner};
use std::collections::VecDeque;

impl EngineLoop<'_> {
    /// Verifies blocks, each the child of the one before, up to the first that is not valid.
    pub(super) fn new_batch(
        &mut self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        let statuses = self.verify_batch(blocks);
        // After a failure, so that no later command finds blocks without a root.
        self.tree.discard_ahead();
        self.publish(None);
        statuses
    }

    /// Like [`Self::new_batch`] for blocks deeper than the retention depth: one root is computed
    /// for as many of them as possible.
    pub(super) fn new_deep_batch(
        &mut self,
        mut blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        let mut statuses = Vec::with_capacity(blocks.len());
        let is_rejected = |block: &PreparedBlock| self.rejected.status(&block.hash()).is_some();
        if !blocks.iter().any(is_rejected) {
            loop {
                let change = match self.tree.extend_by_batch(&blocks) {
                    Ok(Some(change)) => change,
                    Ok(None) => break,
                    Err(error) => {
                        // A part of it may be durable, and the state of the old head gone.
                        self.publish(None);
                        return Err(error.into());
                    }
                };
                let (number, hash) = (change.head.number, change.head.hash());
                tracing::debug!(number, %hash, blocks = change.committed.len(), "new head, by batch");
                let above = blocks.split_off(change.committed.len());
                let taken = std::mem::replace(&mut blocks, above);
                statuses.extend(taken.iter().map(|block| valid(block.hash())));
                self.drop_patch();
                self.drop_side_blocks();
                self.publish(Some(change));
                for block in taken {
                    self.insert_orphans_of(block.hash())?;
                }
            }
        }
        statuses.extend(self.new_batch(blocks)?);
        Ok(statuses)
    }

    fn verify_batch(
        &mut self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        let statuses = Vec::with_capacity(blocks.len());
        let mut verification = BatchVerification { engine: self, statuses, valid: Vec::new() };
        let (mut driver, mut queue) = (TreeDriver::default(), VecDeque::from(blocks));
        while verification.statuses.last().is_none_or(PayloadStatus::is_valid)
            && driver.step(&mut verification, &mut queue)? != DriverStep::Complete
        {}
        let BatchVerification { statuses, valid, .. } = verification;
        for hash in valid {
            self.insert_orphans_of(hash)?;
        }
        Ok(statuses)
    }
}

/// The blocks of a batch on their way through the tree.
struct BatchVerification<'s, 'a> {
    engine: &'s mut EngineLoop<'a>,
    statuses: Vec<PayloadStatus>,
    /// Hashes of the blocks that were valid ahead.
    valid: Vec<B256>,
}

impl<'a> TreeOwner<'a> for BatchVerification<'_, 'a> {
    type Error = EngineError;

    fn tree(&mut self) -> &mut BlockTree<'a> {
        &mut self.engine.tree
    }

    fn extends(&self, block: &PreparedBlock) -> Result<bool, EngineError> {
        let (engine, hash, parent) = (&*self.engine, block.hash(), block.parent_hash());
        Ok((!engine.tree.has_none_ahead() || engine.is_verified(&parent)?)
            && !engine.is_verified(&hash)?
            && [hash, parent].iter().all(|hash| engine.rejected.status(hash).is_none()))
    }

    fn accept_ahead(&mut self, outcome: AheadOutcome) -> Result<(), EngineError> {
        let AheadOutcome { block, outcome, .. } = outcome;
        let status = self.engine.record_outcome(&block, outcome)?;
        self.valid.extend(status.is_valid().then(|| block.hash()));
        self.statuses.push(status);
        Ok(())
    }

    fn import_alone(&mut self, block: PreparedBlock) -> Result<(), EngineError> {
        let status = self.engine.new_block(block)?;
        self.statuses.push(status);
        Ok(())
    }
}
