//! Batches of blocks: each block is executed while the root of the one before is computed.

use super::{EngineLoop, valid};
use crate::EngineError;
use alloy_rpc_types_engine::PayloadStatus;
use retrie_pipeline::{AheadOutcome, PreparedBlock};
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
            while let Some(change) = self.tree.extend_by_batch(&blocks)? {
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
        let mut statuses: Vec<PayloadStatus> = Vec::with_capacity(blocks.len());
        let mut valid = Vec::with_capacity(blocks.len());
        let mut blocks = VecDeque::from(blocks);
        while statuses.last().is_none_or(PayloadStatus::is_valid) {
            let has_room = match blocks.front() {
                Some(block) => self.tree.has_none_ahead() || self.can_run_ahead(block)?,
                None => false,
            };
            if let Some(AheadOutcome { block, outcome, .. }) = self.tree.finish_ahead(!has_room) {
                let status = self.record_outcome(&block, outcome)?;
                valid.extend(status.is_valid().then(|| block.hash()));
                statuses.push(status);
                continue;
            }
            self.tree.prefetch(&blocks);
            match blocks.pop_front() {
                None => break,
                Some(block) if self.can_run_ahead(&block)? => self.tree.execute_ahead(block),
                Some(block) => statuses.push(self.new_block(block)?),
            }
        }
        for hash in valid {
            self.insert_orphans_of(hash)?;
        }
        Ok(statuses)
    }

    /// Whether a block can be executed before the root of its parent is computed, and is not known
    /// yet.
    fn can_run_ahead(&self, block: &PreparedBlock) -> Result<bool, EngineError> {
        let (hash, parent) = (block.hash(), block.parent_hash());
        Ok(self.tree.can_execute_ahead(block)
            && (!self.tree.has_none_ahead() || self.is_verified(&parent)?)
            && !self.is_verified(&hash)?
            && [hash, parent].iter().all(|hash| self.rejected.status(hash).is_none()))
    }
}
