//! Block batches: consecutive blocks far below the end of an import, verified with one root.
//!
//! ```text
//!  tree's thread   execute m+1 .. m+k on the state of n, the sum of the changes of n+1 .. m,
//!                  and the sum of the changes of the batch so far
//!  `import-root`   root of m, from the sum of n+1 .. m
//! ```
//!
//! Each block is checked as usual except for its state root. The root of the last block is computed
//! from the sum of all deltas: what many blocks write again and again is written, and hashed, once.
//! The stores must be able to [apply batches](crate::StoreSet::applies_batches).
//!
//! **What is checked.** Headers are linked by hash, and each header has its state root in it. So if
//! the hash of the last block is right, the headers of its ancestors are right, state roots
//! included. If its computed root is right, too, all blocks of the batch together led to the right
//! state. A wrong root in a header within the batch is not noticed if the last root is right: such
//! a chain is invalid by consensus, but only the author of the last block's hash can make one. A
//! user who does not trust this hash has every root checked.
//!
//! **What is kept.** Bodies, receipts, senders, codes and flat history of every block; but a root,
//! and a state to revert to, of the last block only. So batches are for blocks that lie deeper than
//! the retention.
//!
//! The error of a failed batch does not name a wrong block: its blocks are then verified one by
//! one, and the error is about one of them.

use super::{
    BlockTree, HeadChange,
    root_task::{BaseStates, BlockWrites, PendingRoot, RootComputation},
    spans::batch_span,
    verify::CheckedExecution,
};
use crate::{PipelineError, PreparedBlock};
use retrie_state::{BlockRef, DeltaBatchBuilder};
use std::time::Instant;

/// Blocks of a batch, at most.
pub(crate) const MAX_BATCH_BLOCKS: usize = 128;
/// A batch ends with the block that brings it to this many changed keys. A key takes some hundred
/// bytes. At this size the state or the writes are large, and a larger batch would not save more.
const MAX_BATCH_KEYS: usize = 100_000;

/// Consecutive blocks that were executed; one or more.
#[derive(Debug)]
pub(super) struct BlockBatch {
    /// The blocks below the last one, the oldest first.
    pub(super) inner: Vec<CheckedExecution>,
    pub(super) last: CheckedExecution,
}

impl BlockBatch {
    fn push(&mut self, next: CheckedExecution) {
        self.inner.push(std::mem::replace(&mut self.last, next));
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &CheckedExecution> {
        self.inner.iter().chain([&self.last])
    }
}

impl From<CheckedExecution> for BlockBatch {
    fn from(last: CheckedExecution) -> Self {
        Self { inner: Vec::new(), last }
    }
}

/// The batch that is being executed.
pub(super) struct OpenBatch<'a> {
    /// The block below.
    pub(super) floor: BlockRef,
    /// The states after `floor`.
    base: BaseStates<'a>,
    pub(super) executed: BlockBatch,
    pub(super) deltas: DeltaBatchBuilder,
}

impl<'a> BlockTree<'a> {
    /// Executes consecutive blocks as a batch, and leaves its root to another thread. The first
    /// block must be one that can be [executed ahead](Self::can_execute_ahead), and the stores must
    /// [apply batches](crate::StoreSet::applies_batches). Takes as many blocks as one batch may
    /// have; returns their number, also if the last of them is invalid.
    /// [`finish_ahead`](Self::finish_ahead) returns the outcome.
    pub(crate) fn execute_batch_ahead(&mut self, blocks: &[PreparedBlock]) -> usize {
        let begun = Instant::now();
        let Some(first) = blocks.first() else { return 0 };
        let floor = BlockRef::new(first.number().saturating_sub(1), first.parent_hash());
        let span = batch_span(first);
        let entered = span.enter();
        let (mut taken, mut last, mut executed) = (0, first, Ok(()));
        for block in blocks {
            self.prefetch(&blocks[taken..]);
            (taken, last) = (taken + 1, block);
            executed = self.execute_in_batch(block, floor);
            self.stop_prefetch(&block.hash());
            let is_full = |run: &OpenBatch<'_>| run.deltas.sum().len() >= MAX_BATCH_KEYS;
            if executed.is_err() || self.ahead.open_batch.as_ref().is_some_and(is_full) {
                break;
            }
        }
        let block = last.block.clone();
        let half_way = match (executed, self.ahead.open_batch.take()) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => return 0,
            (Ok(()), Some(OpenBatch { base, executed, deltas, .. })) => {
                let writes = BlockWrites::Batch(deltas.build());
                let half =
                    RootComputation { block: block.clone(), parent: floor.hash, writes, base };
                self.ahead.send(executed, half)
            }
        };
        drop(entered);
        self.ahead.push(PendingRoot { block, floor, is_batch: true, begun, span, task: half_way });
        taken
    }

    /// Executes the next block of the batch above `floor`.
    fn execute_in_batch(
        &mut self,
        block: &PreparedBlock,
        floor: BlockRef,
    ) -> Result<(), PipelineError> {
        self.record_prepare(block);
        let parent = self.parent_of(&block.block)?;
        let list = block.access_list.as_deref();
        let (executed, base) = self.execute(block.block.clone(), list, &parent)?;
        let delta = executed.delta.clone();
        match &mut self.ahead.open_batch {
            Some(run) => {
                run.deltas.push(delta);
                run.executed.push(executed);
            }
            none => {
                let (executed, deltas) = (executed.into(), DeltaBatchBuilder::new(delta));
                *none = Some(OpenBatch { floor, base, executed, deltas });
            }
        }
        Ok(())
    }

    /// Verifies consecutive blocks on the head as a batch, makes the last of them the head, and all
    /// of them durable: for blocks below which more states are built than are retained. Takes as
    /// many blocks as one batch may have; they are in the returned change. `None` if the blocks
    /// cannot be a batch, or something about it is wrong: then verify them one by one.
    ///
    /// # Errors
    /// Errors of the commits.
    pub fn extend_by_batch(
        &mut self,
        blocks: &[PreparedBlock],
    ) -> Result<Option<HeadChange>, PipelineError> {
        let ancestor = self.head.block();
        let mut below = ancestor.hash;
        for block in blocks {
            if block.parent_hash() != std::mem::replace(&mut below, block.hash())
                || self.header(&block.hash())?.is_some()
            {
                return Ok(None);
            }
        }
        let can = |first: &PreparedBlock| self.has_none_ahead() && self.can_execute_ahead(first);
        if !self.chain.states.applies_batches() || !blocks.first().is_some_and(can) {
            return Ok(None);
        }
        self.execute_batch_ahead(blocks);
        match self.finish_ahead(true).map(|finished| finished.outcome) {
            Some(Ok(run)) => {
                let committed = run.batch().cloned().collect();
                self.extend(run);
                self.flush()?;
                let (head, ancestor) = (self.head.header.clone(), ancestor.number);
                let reverted = Vec::new();
                Ok(Some(HeadChange { head, ancestor, reverted, committed, is_dropped: false }))
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a batch of blocks failed; its blocks come one by one");
                Ok(None)
            }
            None => Ok(None),
        }
    }
}
