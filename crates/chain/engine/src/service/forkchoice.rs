//! Forkchoice: sets the head, the safe and the finalized block.

use super::{EngineLoop, ForkchoiceOutcome, SIDE_BLOCK_DEPTH, valid};
use crate::{
    DeepBranch, EngineError,
    live::{FINALIZED, SAFE},
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use retrie_chainspec::primitives::SealedHeader;
use retrie_pipeline::{HeadChange, PipelineError};
use retrie_state::{BlockRef, StateError};

impl EngineLoop<'_> {
    pub(super) fn forkchoice(
        &mut self,
        state: ForkchoiceState,
    ) -> Result<ForkchoiceOutcome, EngineError> {
        let hash = state.head_block_hash;
        let only = |status| Ok(ForkchoiceOutcome { status, head: None });
        if hash.is_zero() {
            return Err(EngineError::ZeroHead);
        }
        if let Some(status) = self.rejected.status(&hash) {
            return only(status);
        }
        let Some(header) = self.tree.header(&hash)? else {
            return only(self.unknown_head(hash)?);
        };
        // The head of a deep branch may be known, but is not reached by that.
        if !self.targets.is_deep(&hash) {
            self.targets.reached(self.tree.head().header.number);
        }
        let safe = self.ancestor(state.state_safe_hash(), &header, "safe")?;
        let finalized = self.ancestor(state.state_finalized_hash(), &header, "finalized")?;

        let is_head = self.tree.head().header.hash() == hash;
        // An ancestor of the finalized block cannot become the head again; the specification allows
        // to ignore such an update.
        let is_final = self.finalized.is_some_and(|block| header.number < block.number)
            && self.tree.is_canonical(&hash)?;
        if !is_head && is_final {
            return only(valid(hash));
        }
        let change = match self.set_head(hash, &header) {
            Err(EngineError::TooDeepReorg { number, hash, source }) => {
                let Some(branch) = DeepBranch::of(&source) else {
                    return Err(EngineError::TooDeepReorg { number, hash, source });
                };
                let fork = self.common_ancestor_number(hash)?.unwrap_or(branch.fork);
                return Err(self.report_too_deep(hash, number, DeepBranch { fork, ..branch }));
            }
            change => change?,
        };
        self.targets.reached(self.tree.head().header.number);
        self.set_safe_and_finalized(safe, finalized)?;
        self.drop_side_blocks();
        self.publish(change);
        Ok(ForkchoiceOutcome { status: valid(hash), head: Some(header) })
    }

    /// The answer for an unknown head.
    fn unknown_head(&mut self, hash: B256) -> Result<PayloadStatus, EngineError> {
        if let Some((number, branch)) = self.deep.get(&hash) {
            return Err(self.report_too_deep(hash, number, branch));
        }
        if let Some(orphan) = self.orphans.get(&hash) {
            let (number, parent) = (orphan.number(), orphan.parent_hash());
            if let Some(status) = self.rejected.reject_descendant(hash, parent) {
                return Ok(status);
            }
            self.targets.note_orphan(number);
        }
        self.targets.set_wanted(hash, self.tree.head().header.number);
        Ok(PayloadStatus::from_status(PayloadStatusEnum::Syncing))
    }

    /// Number of the highest canonical block at or below this one, if all blocks in between are
    /// known.
    pub(super) fn common_ancestor_number(
        &self,
        mut hash: B256,
    ) -> Result<Option<u64>, EngineError> {
        while let Some(header) = self.tree.header(&hash)? {
            if self.tree.is_canonical(&hash)? {
                return Ok(Some(header.number));
            }
            hash = header.parent_hash();
        }
        Ok(None)
    }

    /// Records that the consensus client wants a head on a deep branch, and returns the error.
    fn report_too_deep(&self, hash: B256, number: u64, branch: DeepBranch) -> EngineError {
        self.targets.set_deep(hash, number, branch, self.tree.head().header.number);
        EngineError::TooDeepReorg { number, hash, source: branch.error() }
    }

    /// Makes a canonical block the head; a safe or finalized block above it is lowered to it.
    pub(super) fn set_head_back(&mut self, hash: B256) -> Result<(), EngineError> {
        let header = self.tree.header(&hash)?.ok_or(EngineError::NotCanonical { hash })?;
        if !self.tree.is_canonical(&hash)? && self.tree.head().header.hash() != hash {
            return Err(EngineError::NotCanonical { hash });
        }
        let change = self.set_head(hash, &header)?;
        let target = BlockRef::new(header.number, hash);
        let lowered = |named: Option<BlockRef>| {
            named.map(|block| if block.number > target.number { target } else { block })
        };
        self.set_safe_and_finalized(lowered(self.safe), lowered(self.finalized))?;
        self.drop_side_blocks();
        self.publish(change.map(|change| HeadChange { is_dropped: true, ..change }));
        Ok(())
    }

    /// Sets the safe and the finalized block. Without a new one the old one remains, unless it has
    /// left the chain.
    fn set_safe_and_finalized(
        &mut self,
        safe: Option<BlockRef>,
        finalized: Option<BlockRef>,
    ) -> Result<(), EngineError> {
        for (name, new) in [(SAFE, safe), (FINALIZED, finalized)] {
            let old = if name == SAFE { self.safe } else { self.finalized };
            let named = match new.or(old) {
                Some(block) if new.is_some() || self.tree.is_canonical(&block.hash)? => Some(block),
                _ => None,
            };
            if named != old {
                self.tree.put_note(name, named.map_or(Vec::new(), |block| block.hash.to_vec()));
            }
            *(if name == SAFE { &mut self.safe } else { &mut self.finalized }) = named;
        }
        Ok(())
    }

    fn set_head(
        &mut self,
        hash: B256,
        header: &SealedHeader,
    ) -> Result<Option<HeadChange>, EngineError> {
        let number = header.number;
        let change = self.tree.set_head(hash).map_err(|error| match error {
            PipelineError::State(error @ StateError::BeyondRetention { .. }) => {
                EngineError::TooDeepReorg { number, hash, source: error }
            }
            error => error.in_block(number, hash).into(),
        })?;
        if let Some(change) = &change {
            self.drop_patch();
            if change.reverted.is_empty() {
                tracing::info!(number, %hash, txs = change.committed.last().map_or(0, |block| block.block.transaction_count()), "new head");
            } else {
                let (depth, ancestor) = (change.reverted.len(), change.ancestor);
                tracing::info!(number, %hash, depth, ancestor, "reorg");
            }
        }
        Ok(change)
    }

    /// The block that the consensus client calls `what`, which must be an ancestor of `head` or
    /// `head` itself.
    fn ancestor(
        &self,
        hash: Option<B256>,
        head: &SealedHeader,
        what: &'static str,
    ) -> Result<Option<BlockRef>, EngineError> {
        let Some(hash) = hash else { return Ok(None) };
        let unknown = || EngineError::InvalidForkchoice { what, hash };
        let number = self.tree.header(&hash)?.ok_or_else(unknown)?.number;
        let mut at = head.clone();
        loop {
            if at.hash() == hash {
                return Ok(Some(BlockRef::new(number, hash)));
            }
            if at.number <= number {
                return Err(unknown());
            }
            if self.tree.is_canonical(&at.hash())? {
                // Everything below is canonical.
                return match self.tree.is_canonical(&hash)? {
                    true => Ok(Some(BlockRef::new(number, hash))),
                    false => Err(unknown()),
                };
            }
            at = self.tree.header(&at.parent_hash())?.ok_or_else(unknown)?;
        }
    }

    /// Drops side blocks and orphans at or below the finalized block, or too far below the head.
    pub(super) fn drop_side_blocks(&mut self) {
        let final_number = self.finalized.map_or(0, |block| block.number);
        let deepest = self.tree.head().header.number.saturating_sub(SIDE_BLOCK_DEPTH);
        let first = final_number.max(deepest);
        self.tree.retain(|block| block.block().number() > first);
        self.orphans.retain_above(first);
    }
}
