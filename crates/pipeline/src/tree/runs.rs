//! Runs: consecutive blocks far below the end of what is being imported, with one root for all.
//!
//! ```text
//!  tree's thread   execute m+1 .. m+k on the state of n, what n+1 .. m have changed in sum,
//!                  and the sum of what the run has changed so far
//!  `import-root`   root of m, of the sum of n+1 .. m
//! ```
//!
//! Each block is checked as ever but for its state root, and that of the last one is computed from the
//! sum of all deltas: what many blocks write again and again is written, and hashed, once. It takes
//! states that [apply runs](crate::States::apply_runs).
//!
//! **What is checked.** Headers are linked by hash, and each of them has its state root in it. So a
//! last block whose hash is right has ancestors whose headers are right, state roots included; that its
//! own root is right, too, says that all of the run together led to the right state. A header within
//! the run whose root is wrong is not noticed if the last root is right: such a chain is invalid by
//! consensus, and only who makes the hash of the last block can make one. Whoever does not trust that
//! hash has every root checked.
//!
//! **What is kept.** Bodies, receipts, senders, codes and flat history of every block; a state to go
//! back to, and a root, of the last one alone. So runs are for blocks that lie deeper than is retained.
//!
//! A run that fails says little: its blocks are then verified one by one, and the error is about one of
//! them.

use super::{
    HeadChange, Tree,
    ahead::{Ahead, Base, RootHalf, Writes},
    verify::Executed,
};
use crate::{PipelineError, PreparedBlock};
use retrie_state::{BlockRef, RunBuilder};
use std::time::Instant;

/// Blocks of a run, at most.
pub(crate) const RUN_BLOCKS: usize = 128;
/// A run ends with the block that brings it to this many changed keys, each of which takes some
/// hundred bytes: the state below is large then, or writes are, and more would not save more.
const RUN_KEYS: usize = 100_000;

/// Consecutive blocks that were executed; one or more.
#[derive(Debug)]
pub(super) struct ExecutedRun {
    /// Those below the last one, the oldest first.
    pub(super) inner: Vec<Executed>,
    pub(super) last: Executed,
}

impl ExecutedRun {
    fn push(&mut self, next: Executed) {
        self.inner.push(std::mem::replace(&mut self.last, next));
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Executed> {
        self.inner.iter().chain([&self.last])
    }
}

impl From<Executed> for ExecutedRun {
    fn from(last: Executed) -> Self {
        Self { inner: Vec::new(), last }
    }
}

/// What has been executed of a run so far.
pub(super) struct RunUnderWay<'a> {
    /// The block below.
    pub(super) floor: BlockRef,
    /// Its states.
    base: Base<'a>,
    pub(super) executed: ExecutedRun,
    pub(super) deltas: RunBuilder,
}

impl<'a> Tree<'a> {
    /// Executes consecutive blocks as a run, and leaves its root to another thread. The first must be
    /// one that can be [executed ahead](Self::can_execute_ahead), and the states must [apply
    /// runs](crate::States::apply_runs). Takes as many as one run may have; returns how many, also if
    /// the last of these is invalid. What became of them, [`settle`](Self::settle) tells.
    pub(crate) fn execute_run_ahead(&mut self, blocks: &[PreparedBlock]) -> usize {
        let begun = Instant::now();
        let Some(first) = blocks.first() else { return 0 };
        let floor = BlockRef::new(first.number().saturating_sub(1), first.parent_hash());
        let (mut taken, mut last, mut executed) = (0, first, Ok(()));
        for block in blocks {
            self.read_ahead(&blocks[taken..]);
            (taken, last) = (taken + 1, block);
            executed = self.execute_in_run(block, floor);
            self.no_longer_coming(&block.hash());
            let is_full = |run: &RunUnderWay<'_>| run.deltas.sum().len() >= RUN_KEYS;
            if executed.is_err() || self.ahead.run.as_ref().is_some_and(is_full) {
                break;
            }
        }
        let block = last.block.clone();
        let half_way = match (executed, self.ahead.run.take()) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => return 0,
            (Ok(()), Some(RunUnderWay { base, executed, deltas, .. })) => {
                let writes = Writes::Run(deltas.build());
                let half = RootHalf { block: block.clone(), parent: floor.hash, writes, base };
                self.ahead.send(executed, half)
            }
        };
        self.ahead.push(Ahead { block, floor, is_run: true, begun, half_way });
        taken
    }

    /// Executes the next block of the run above `floor`.
    fn execute_in_run(
        &mut self,
        block: &PreparedBlock,
        floor: BlockRef,
    ) -> Result<(), PipelineError> {
        self.take_up(block);
        let parent = self.parent_of(&block.block)?;
        let list = block.access_list.as_deref();
        let (executed, base) = self.execute(block.block.clone(), list, &parent)?;
        let delta = executed.delta.clone();
        match &mut self.ahead.run {
            Some(run) => {
                run.deltas.push(delta);
                run.executed.push(executed);
            }
            none => {
                let (executed, deltas) = (executed.into(), RunBuilder::new(delta));
                *none = Some(RunUnderWay { floor, base, executed, deltas });
            }
        }
        Ok(())
    }

    /// Verifies consecutive blocks on the head as a run, makes the last of them the head, and all of
    /// them durable: for blocks that lie deeper below what they lead to than states are retained. Takes
    /// as many as one run may have, and says which. `None` if they are no run, or something about it is
    /// wrong: then verify them one by one.
    ///
    /// # Errors
    /// Those of the commits.
    pub fn extend_by_run(
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
        let can = |first: &PreparedBlock| self.is_settled() && self.can_execute_ahead(first);
        if !self.chain.states.apply_runs() || !blocks.first().is_some_and(can) {
            return Ok(None);
        }
        self.execute_run_ahead(blocks);
        match self.settle(true).map(|settled| settled.outcome) {
            Some(Ok(run)) => {
                let committed = run.run().cloned().collect();
                self.extend(run);
                self.flush()?;
                let (head, ancestor) = (self.head.header.clone(), ancestor.number);
                let reverted = Vec::new();
                Ok(Some(HeadChange { head, ancestor, reverted, committed, is_dropped: false }))
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a run of blocks failed, they come again one by one");
                Ok(None)
            }
            None => Ok(None),
        }
    }
}
