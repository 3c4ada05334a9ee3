//! Runs of blocks: each is executed while the root of the one before is computed.

use super::{Service, valid};
use crate::EngineError;
use alloy_rpc_types_engine::PayloadStatus;
use retrie_pipeline::{PreparedBlock, Settled};
use std::collections::VecDeque;

impl Service<'_> {
    /// Verifies blocks, each the child of the one before, up to the first that is not valid.
    pub(super) fn new_run(
        &mut self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        let statuses = self.verify_run(blocks);
        // After a failure of ours; nobody else shall find blocks that are not settled.
        self.tree.discard_ahead();
        self.publish(None);
        statuses
    }

    /// The same for blocks that lie deeper than states are retained: as many as can be get one root.
    pub(super) fn new_deep_run(
        &mut self,
        mut blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        let mut statuses = Vec::with_capacity(blocks.len());
        let is_rejected = |block: &PreparedBlock| self.rejected.status(&block.hash()).is_some();
        if !blocks.iter().any(is_rejected) {
            while let Some(change) = self.tree.extend_by_run(&blocks)? {
                let (number, hash) = (change.head.number, change.head.hash());
                tracing::debug!(number, %hash, blocks = change.committed.len(), "new head, by a run");
                let above = blocks.split_off(change.committed.len());
                let taken = std::mem::replace(&mut blocks, above);
                statuses.extend(taken.iter().map(|block| valid(block.hash())));
                self.drop_patch();
                self.forget_side_blocks();
                self.publish(Some(change));
                for block in taken {
                    self.adopt(block.hash())?;
                }
            }
        }
        statuses.extend(self.new_run(blocks)?);
        Ok(statuses)
    }

    fn verify_run(
        &mut self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        let mut statuses: Vec<PayloadStatus> = Vec::with_capacity(blocks.len());
        let mut valid = Vec::with_capacity(blocks.len());
        let mut blocks = VecDeque::from(blocks);
        while statuses.last().is_none_or(PayloadStatus::is_valid) {
            let has_room = match blocks.front() {
                Some(block) => self.tree.is_settled() || self.can_run_ahead(block)?,
                None => false,
            };
            if let Some(Settled { block, outcome, .. }) = self.tree.settle(!has_room) {
                let status = self.verdict(&block, outcome)?;
                valid.extend(status.is_valid().then(|| block.hash()));
                statuses.push(status);
                continue;
            }
            self.tree.read_ahead(&blocks);
            match blocks.pop_front() {
                None => break,
                Some(block) if self.can_run_ahead(&block)? => self.tree.execute_ahead(block),
                Some(block) => statuses.push(self.new_block(block)?),
            }
        }
        for hash in valid {
            self.adopt(hash)?;
        }
        Ok(statuses)
    }

    /// Whether a block can be executed ahead, and nothing is known of it yet.
    fn can_run_ahead(&self, block: &PreparedBlock) -> Result<bool, EngineError> {
        let (hash, parent) = (block.hash(), block.parent_hash());
        Ok(self.tree.can_execute_ahead(block)
            && (!self.tree.is_settled() || self.is_verified(&parent)?)
            && !self.is_verified(&hash)?
            && [hash, parent].iter().all(|hash| self.rejected.status(hash).is_none()))
    }
}
