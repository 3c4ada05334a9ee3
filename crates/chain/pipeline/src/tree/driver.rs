//! The loop that takes a tree through blocks in their order, so that each block is executed while the
//! roots of the blocks below it are computed.
//!
//! ```text
//!  room for the next block?  no:  wait for the lowest block that is ahead
//!                            yes: accept blocks ahead whose roots are there
//!  prefetch the keys of the next blocks
//!  start the next batch or block ahead, or import the block alone
//! ```

use super::{AheadOutcome, BlockTree, PREFETCH_BLOCKS};
use crate::{PipelineError, PreparedBlock};
use std::collections::VecDeque;

/// Blocks in the order of their import.
pub trait BlockQueue {
    /// The next block. `None` before an error or the end.
    fn peek(&mut self) -> Option<&PreparedBlock>;

    /// The next blocks, as far as they are there without waiting, at most `max`.
    fn upcoming(&mut self, max: usize) -> impl Iterator<Item = &PreparedBlock>;

    /// Takes the next block; `None` at the end.
    fn pop(&mut self) -> Option<Result<PreparedBlock, PipelineError>>;

    /// The next blocks, if they may get one root together; otherwise none.
    fn batch(&mut self) -> &[PreparedBlock] {
        &[]
    }

    /// Takes the next `count` blocks of a [batch](Self::batch).
    fn take(&mut self, count: usize) -> Vec<PreparedBlock>;

    /// Puts blocks back that were taken, before all others.
    fn put_back(&mut self, blocks: Vec<PreparedBlock>);
}

impl BlockQueue for VecDeque<PreparedBlock> {
    fn peek(&mut self) -> Option<&PreparedBlock> {
        self.front()
    }

    fn upcoming(&mut self, max: usize) -> impl Iterator<Item = &PreparedBlock> {
        self.iter().take(max)
    }

    fn pop(&mut self) -> Option<Result<PreparedBlock, PipelineError>> {
        self.pop_front().map(Ok)
    }

    fn take(&mut self, count: usize) -> Vec<PreparedBlock> {
        self.drain(..count.min(self.len())).collect()
    }

    fn put_back(&mut self, blocks: Vec<PreparedBlock>) {
        blocks.into_iter().rev().for_each(|block| self.push_front(block));
    }
}

/// The owner of a tree that a [`TreeDriver`] drives: it knows which blocks are new, and chooses the
/// head.
pub trait TreeOwner<'a> {
    /// Its error.
    type Error: From<PipelineError>;

    /// The tree.
    fn tree(&mut self) -> &mut BlockTree<'a>;

    /// Whether the block is unknown and extends the last block that was started, or, if no block is
    /// ahead, a block that the owner builds on.
    ///
    /// # Errors
    /// If the database fails.
    fn extends(&self, block: &PreparedBlock) -> Result<bool, Self::Error>;

    /// Accepts a block that was ahead.
    ///
    /// # Errors
    /// Those that end the import.
    fn accept_ahead(&mut self, outcome: AheadOutcome) -> Result<(), Self::Error>;

    /// Imports a block alone, while no block is ahead.
    ///
    /// # Errors
    /// Those that end the import.
    fn import_alone(&mut self, block: PreparedBlock) -> Result<(), Self::Error>;
}

/// What a [step](TreeDriver::step) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverStep {
    /// It started or put back blocks; none is finished.
    Started,
    /// It finished a block or a batch.
    Finished,
    /// All blocks of the queue are finished.
    Complete,
}

/// The state of the loop.
#[derive(Debug, Default)]
pub struct TreeDriver {
    /// The blocks that are ahead, one entry for each block or batch.
    ahead: VecDeque<Vec<PreparedBlock>>,
    /// Number of blocks that failed as a batch and now come one by one.
    singly: usize,
}

impl TreeDriver {
    /// Takes `queue` one step further.
    ///
    /// # Errors
    /// Those of the queue and of the owner.
    pub fn step<'a, O: TreeOwner<'a>>(
        &mut self,
        owner: &mut O,
        queue: &mut impl BlockQueue,
    ) -> Result<DriverStep, O::Error> {
        let has_room = match queue.peek() {
            Some(block) => owner.tree().has_none_ahead() || can_start_ahead(owner, block)?,
            // Blocks before an error, or before the end, are good.
            None => false,
        };
        owner.tree().prefetch(queue.upcoming(PREFETCH_BLOCKS));
        if let Some(outcome) = owner.tree().finish_ahead(!has_room) {
            return self.finish(owner, queue, outcome);
        }
        let is_batch = self.singly == 0
            && match queue.peek() {
                // The children of an unknown block are unknown, too: the first one is enough.
                Some(first) => can_start_ahead(owner, first)?,
                None => false,
            };
        if is_batch {
            let started = owner.tree().execute_batch_ahead(queue.batch());
            if started > 0 {
                self.ahead.push_back(queue.take(started));
                return Ok(DriverStep::Started);
            }
        }
        let Some(block) = queue.pop() else { return Ok(DriverStep::Complete) };
        self.singly = self.singly.saturating_sub(1);
        let block = block?;
        if can_start_ahead(owner, &block)? {
            self.ahead.push_back(vec![block.clone()]);
            owner.tree().execute_ahead(block);
            return Ok(DriverStep::Started);
        }
        owner.import_alone(block)?;
        Ok(DriverStep::Finished)
    }

    fn finish<'a, O: TreeOwner<'a>>(
        &mut self,
        owner: &mut O,
        queue: &mut impl BlockQueue,
        outcome: AheadOutcome,
    ) -> Result<DriverStep, O::Error> {
        if let Err(error) = &outcome.outcome
            && outcome.is_batch
        {
            tracing::debug!(%error, "a batch of blocks failed; its blocks come one by one");
            self.singly = self.ahead.front().map_or(0, Vec::len);
            queue.put_back(self.ahead.drain(..).flatten().collect());
            return Ok(DriverStep::Started);
        }
        self.ahead.pop_front();
        owner.accept_ahead(outcome)?;
        Ok(DriverStep::Finished)
    }
}

/// Whether the block can be executed before the roots below it are computed.
fn can_start_ahead<'a, O: TreeOwner<'a>>(
    owner: &mut O,
    block: &PreparedBlock,
) -> Result<bool, O::Error> {
    Ok(owner.tree().can_execute_ahead(block) && owner.extends(block)?)
}
