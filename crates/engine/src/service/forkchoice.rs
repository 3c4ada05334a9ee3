//! Which block is the head, and which are safe and final.

use super::{ForkchoiceOutcome, SIDE_BLOCK_DEPTH, Service, valid};
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

impl Service<'_> {
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
        // One that cannot be executed is known, and is not reached by that.
        if !self.targets.is_deep(&hash) {
            self.targets.reached(self.tree.head().header.number);
        }
        let safe = self.ancestor(state.state_safe_hash(), &header, "safe")?;
        let finalized = self.ancestor(state.state_finalized_hash(), &header, "finalized")?;

        let is_head = self.tree.head().header.hash() == hash;
        // An ancestor of what is final cannot become the head again, and the specification allows to
        // pass over it.
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
                let fork = self.shared_below(hash)?.unwrap_or(branch.fork);
                return Err(self.too_deep(hash, number, DeepBranch { fork, ..branch }));
            }
            change => change?,
        };
        self.targets.reached(self.tree.head().header.number);
        self.name(safe, finalized)?;
        self.forget_side_blocks();
        self.publish(change);
        Ok(ForkchoiceOutcome { status: valid(hash), head: Some(header) })
    }

    /// What to say of a head that is not here.
    fn unknown_head(&mut self, hash: B256) -> Result<PayloadStatus, EngineError> {
        if let Some((number, branch)) = self.deep.get(&hash) {
            return Err(self.too_deep(hash, number, branch));
        }
        if let Some(orphan) = self.orphans.get(&hash) {
            let (number, parent) = (orphan.number(), orphan.parent_hash());
            if let Some(status) = self.rejected.descendant(hash, parent) {
                return Ok(status);
            }
            self.targets.heard_of(number);
        }
        self.targets.want(hash, self.tree.head().header.number);
        Ok(PayloadStatus::from_status(PayloadStatusEnum::Syncing))
    }

    /// Number of the highest canonical block at or below this one, if all on the way are known.
    pub(super) fn shared_below(&self, mut hash: B256) -> Result<Option<u64>, EngineError> {
        while let Some(header) = self.tree.header(&hash)? {
            if self.tree.is_canonical(&hash)? {
                return Ok(Some(header.number));
            }
            hash = header.parent_hash();
        }
        Ok(None)
    }

    /// The consensus client wants a head that cannot be executed here.
    fn too_deep(&self, hash: B256, number: u64, branch: DeepBranch) -> EngineError {
        self.targets.too_deep(hash, number, branch, self.tree.head().header.number);
        EngineError::TooDeepReorg { number, hash, source: branch.error() }
    }

    /// Makes a canonical block the head; what is safe or final above it is lowered to it.
    pub(super) fn go_back(&mut self, hash: B256) -> Result<(), EngineError> {
        let header = self.tree.header(&hash)?.ok_or(EngineError::NotCanonical { hash })?;
        if !self.tree.is_canonical(&hash)? && self.tree.head().header.hash() != hash {
            return Err(EngineError::NotCanonical { hash });
        }
        let change = self.set_head(hash, &header)?;
        let target = BlockRef::new(header.number, hash);
        let lowered = |named: Option<BlockRef>| {
            named.map(|block| if block.number > target.number { target } else { block })
        };
        self.name(lowered(self.safe), lowered(self.finalized))?;
        self.forget_side_blocks();
        self.publish(change.map(|change| HeadChange { is_dropped: true, ..change }));
        Ok(())
    }

    /// Takes note of what is safe and final. What was so before remains, unless it has left the chain.
    fn name(
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

    /// The block that the consensus client calls `what`, which must lie on the chain of `head`.
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

    /// Blocks that can become canonical no more, or hardly.
    pub(super) fn forget_side_blocks(&mut self) {
        let final_number = self.finalized.map_or(0, |block| block.number);
        let deepest = self.tree.head().header.number.saturating_sub(SIDE_BLOCK_DEPTH);
        let first = final_number.max(deepest);
        self.tree.retain(|block| block.block().number() > first);
        self.orphans.retain_above(first);
    }
}
