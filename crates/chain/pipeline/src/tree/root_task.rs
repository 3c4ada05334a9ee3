//! State root tasks: a block is executed on the deltas of the blocks below it, while their roots
//! are computed.
//!
//! ```text
//!  tree's thread   execute n+2 on the state of n-1 and the deltas of n, n+1 --.
//!  `import-root`   root of n ------> root of n+1 (n+2 waits) <--delta, base---'
//!  `import-commit` commit of the blocks up to n-1
//! ```
//!
//! | half of a verification | thread | stands on | checks |
//! |---|---|---|---|
//! | [execution](BlockTree::execute) | the tree's | the newest state that has a root, with the deltas of the blocks ahead laid above | headers, ommers, transactions, gas, receipts, bloom, requests, BAL |
//! | [root task](RootComputation::run) | `import-root`; for a block by itself the tree's | the proposal of its parent | state roots |
//!
//! A [batch](super::batch) of blocks is ahead as one: it has one delta, the sum of its blocks'
//! deltas, and one root.
//!
//! A block is *ahead* from its execution until [`finish_ahead`](BlockTree::finish_ahead) returns
//! it. Until then only the blocks that are executed on it see it: it is no block of the tree, no
//! head, and in no commit. Blocks are finished in the order of their execution. If a block fails in
//! either half, all blocks above it fail with it, and the error is about this block.

use super::{
    BlockTree,
    batch::{BlockBatch, OpenBatch},
    spans::block_span,
    verify::CheckedExecution,
};
use crate::{
    ChainStore, ExecutedBlock, PipelineError, PreparedBlock, ProposalSet, SessionSet, StoreSet,
    StoreSetId,
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use crossbeam_channel::{Receiver, Sender, bounded};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_execution::BlockAccessList;
use retrie_state::{BlockRef, DeltaBatch, StateDelta, StateError};
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tracing::Span;

/// Blocks, or batches, that may be ahead: one whose root is being computed, one that waits for that
/// thread, and one that was executed meanwhile. More would not keep the two threads busier, but
/// make every read pass more deltas, and a wrong root more expensive.
const MAX_AHEAD: usize = 3;

const THREAD: &str = "import-root";

/// The states of a block, once its root task is done.
type PendingStates = Arc<OnceLock<ProposalSet>>;

/// The states that a block's delta is applied to.
#[derive(Debug)]
pub(super) enum BaseStates<'a> {
    /// They exist.
    Ready(Box<SessionSet<'a>>),
    /// They are the states of a block that is ahead.
    Pending(PendingStates),
}

/// The changes that are applied to the base states, to get a root.
#[derive(Debug)]
pub(super) enum BlockWrites {
    Block(Arc<StateDelta>),
    Batch(DeltaBatch),
}

impl BlockWrites {
    /// The changes as one delta.
    const fn sum(&self) -> &Arc<StateDelta> {
        match self {
            Self::Block(delta) => delta,
            Self::Batch(run) => run.sum(),
        }
    }
}

/// The second half of a verification: computes the state root and checks it.
#[derive(Debug)]
pub(super) struct RootComputation<'a> {
    /// The block, or the last block of a batch.
    pub(super) block: Arc<RecoveredBlock>,
    /// Hash of the block below.
    pub(super) parent: B256,
    pub(super) writes: BlockWrites,
    pub(super) base: BaseStates<'a>,
}

/// The result of a root task.
#[derive(Debug)]
pub(super) struct ComputedRoot {
    pub(super) states: ProposalSet,
    /// Number of header roots that were compared.
    pub(super) checked: u64,
    /// How long the backend took.
    pub(super) took: Duration,
}

impl<'a> RootComputation<'a> {
    pub(super) fn run(self, states: &'a StoreSet) -> Result<ComputedRoot, PipelineError> {
        let Self { block, parent, writes, base } = self;
        let session = match base {
            BaseStates::Ready(session) => *session,
            BaseStates::Pending(below) => {
                // The root task below has failed. This block will be discarded.
                let unknown = || StateError::UnknownBlock { hash: parent };
                states.begin(StoreSetId::Proposals(below.get().ok_or_else(unknown)?))?
            }
        };
        let (proposals, took) = match &writes {
            BlockWrites::Block(delta) => session.finish(delta),
            BlockWrites::Batch(run) => session.finish_batch(run),
        }?;
        let checked = states.check_roots(block.sealed_header(), proposals.roots())?;
        states.seal(&proposals, block.hash());
        Ok(ComputedRoot { states: proposals, checked, took })
    }
}

struct QueuedRootTask<'a> {
    task: RootComputation<'a>,
    /// Receives the states, for the block above.
    states: PendingStates,
    /// The span that the task is a part of.
    span: Span,
    reply: Sender<Result<ComputedRoot, PipelineError>>,
}

/// Blocks that are ahead, and the thread that runs their root tasks in order.
pub(super) struct RootTaskQueue<'a> {
    jobs: Sender<QueuedRootTask<'a>>,
    blocks: VecDeque<PendingRoot>,
    /// The batch above these blocks that is being executed.
    pub(super) open_batch: Option<OpenBatch<'a>>,
}

/// A block or a batch that is ahead.
pub(super) struct PendingRoot {
    /// The block, or the last block of the batch that was executed.
    pub(super) block: Arc<RecoveredBlock>,
    /// The block below.
    pub(super) floor: BlockRef,
    pub(super) is_batch: bool,
    pub(super) begun: Instant,
    /// The span of its verification.
    pub(super) span: Span,
    /// The running root task, or why the execution failed.
    pub(super) task: Result<RootTaskHandle, PipelineError>,
}

pub(super) struct RootTaskHandle {
    executed: BlockBatch,
    /// The changes of the block or batch.
    delta: Arc<StateDelta>,
    states: PendingStates,
    result: Receiver<Result<ComputedRoot, PipelineError>>,
}

/// The outcome of a block, or a batch, that was ahead.
#[derive(Debug)]
pub struct AheadOutcome {
    /// The block, or the last one of the batch.
    pub block: Arc<RecoveredBlock>,
    /// Whether it was a batch. The error of a batch need not be the fault of `block`: verify its
    /// blocks one by one to find out.
    pub is_batch: bool,
    /// The block in the tree, or why it is not there. After an error no block is ahead any more.
    pub outcome: Result<Arc<ExecutedBlock>, PipelineError>,
}

impl<'a> RootTaskQueue<'a> {
    pub(super) fn start<'scope>(
        chain: &'a ChainStore,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let (jobs, inbox) = bounded::<QueuedRootTask<'a>>(MAX_AHEAD);
        std::thread::Builder::new()
            .name(THREAD.into())
            .spawn_scoped(scope, move || {
                for QueuedRootTask { task: half, states, span, reply } in inbox {
                    let rooted = span.in_scope(|| half.run(&chain.states));
                    drop(span);
                    if let Ok(rooted) = &rooted {
                        // Only this thread fills the cell.
                        let _ = states.set(rooted.states.clone());
                    }
                    // The block may have been discarded meanwhile.
                    let _ = reply.send(rooted);
                }
            })
            .map_err(|source| PipelineError::Io {
                action: format!("starting thread {THREAD}"),
                source,
            })?;
        Ok(Self { jobs, blocks: VecDeque::new(), open_batch: None })
    }

    /// Whether a block on `parent` extends the last block ahead.
    fn ends_with(&self, parent: &B256) -> bool {
        let in_run = self.open_batch.as_ref().map(|run| &run.executed.last.block);
        let last = in_run.or_else(|| self.blocks.back().map(|last| &last.block));
        last.is_some_and(|last| last.hash() == *parent)
    }

    /// What was executed below a block on `parent`, and below the open batch, the oldest first.
    fn executed_below(&self, parent: &B256) -> impl DoubleEndedIterator<Item = &RootTaskHandle> {
        let is_above = self.ends_with(parent);
        self.blocks.iter().filter(move |_| is_above).filter_map(|one| one.task.as_ref().ok())
    }

    pub(super) fn deltas_below(&self, parent: &B256) -> impl Iterator<Item = &Arc<StateDelta>> {
        self.executed_below(parent).map(|below| &below.delta)
    }

    /// The states of `parent`, or of the block below the open batch, if they are not computed yet.
    pub(super) fn pending_states(&self, parent: &B256) -> Option<PendingStates> {
        self.executed_below(parent).next_back().map(|last| last.states.clone())
    }

    /// The block below all blocks that are ahead, if `parent` is the last of them; otherwise
    /// `parent`.
    pub(super) fn floor(&self, parent: &SealedHeader) -> BlockRef {
        let lowest = || {
            let first = self.blocks.front().map(|first| first.floor);
            first.or_else(|| self.open_batch.as_ref().map(|run| run.floor))
        };
        let lowest = if self.ends_with(&parent.hash()) { lowest() } else { None };
        lowest.unwrap_or_else(|| BlockRef::new(parent.number, parent.hash()))
    }

    /// An executed block that is ahead.
    pub(super) fn get(&self, hash: &B256) -> Option<&CheckedExecution> {
        // Usually the caller looks for one of the last blocks.
        self.iter().rev().find(|one| one.block.hash() == *hash)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &CheckedExecution> {
        let half_way = self.blocks.iter().filter_map(|one| one.task.as_ref().ok());
        let executed = half_way.map(|half_way| &half_way.executed);
        executed.chain(self.open_batch.iter().map(|run| &run.executed)).flat_map(BlockBatch::iter)
    }

    /// Gives the root task of an execution to the thread. The task becomes a part of the current
    /// span.
    pub(super) fn send(
        &self,
        executed: BlockBatch,
        half: RootComputation<'a>,
    ) -> Result<RootTaskHandle, PipelineError> {
        let states = PendingStates::default();
        let (reply, rooted) = bounded(1);
        let delta = half.writes.sum().clone();
        let span = Span::current();
        let job = QueuedRootTask { task: half, states: states.clone(), span, reply };
        self.jobs.send(job).map_err(|_| PipelineError::Thread { thread: THREAD })?;
        Ok(RootTaskHandle { executed, delta, states, result: rooted })
    }

    /// Adds a block or batch above all others that are ahead.
    pub(super) fn push(&mut self, ahead: PendingRoot) {
        self.blocks.push_back(ahead);
    }
}

impl BlockTree<'_> {
    /// Whether no block is ahead.
    pub fn has_none_ahead(&self) -> bool {
        self.ahead.blocks.is_empty()
    }

    /// Whether `block` can be [executed ahead](Self::execute_ahead) now: it extends the last block
    /// ahead, if there is one; there are not too many; and its receipts do not need the states
    /// between its transactions.
    pub(crate) fn can_execute_ahead(&self, block: &PreparedBlock) -> bool {
        let RootTaskQueue { blocks, .. } = &self.ahead;
        let is_above = |last: &PendingRoot| {
            last.task.is_ok()
                && blocks.len() < MAX_AHEAD
                && last.block.hash() == block.parent_hash()
        };
        !self.checks_receipt_roots(block.number()) && blocks.back().is_none_or(is_above)
    }

    /// Executes a block for which this [is possible](Self::can_execute_ahead), and leaves its root
    /// to another thread. [`finish_ahead`](Self::finish_ahead) returns the outcome, also if the
    /// block is invalid.
    pub(crate) fn execute_ahead(&mut self, block: PreparedBlock) {
        let begun = self.record_prepare(&block);
        let PreparedBlock { block, access_list, .. } = block;
        let floor = BlockRef::new(block.number().saturating_sub(1), block.parent_hash());
        let span = block_span(&block);
        let entered = span.enter();
        let half_way = self.start_root_task(block.clone(), access_list.as_deref());
        drop(entered);
        self.stop_prefetch(&block.hash());
        self.ahead.push(PendingRoot { block, floor, is_batch: false, begun, span, task: half_way });
    }

    fn start_root_task(
        &mut self,
        block: Arc<RecoveredBlock>,
        access_list: Option<&BlockAccessList>,
    ) -> Result<RootTaskHandle, PipelineError> {
        let parent = self.parent_of(&block)?;
        let (executed, base) = self.execute(block, access_list, &parent)?;
        let half = executed.root_task(base);
        self.ahead.send(executed.into(), half)
    }

    /// Takes the lowest block that is ahead into the tree. `None` if no block is ahead, or if its
    /// root is not computed yet and `wait` is false.
    pub(crate) fn finish_ahead(&mut self, wait: bool) -> Option<AheadOutcome> {
        let is_coming = |one: &PendingRoot| one.task.as_ref().is_ok_and(|it| it.result.is_empty());
        if self.ahead.blocks.front().is_some_and(is_coming) && !wait {
            return None;
        }
        let PendingRoot { block, is_batch: is_run, begun, span, task: half_way, .. } =
            self.ahead.blocks.pop_front()?;
        let verified = half_way.and_then(|half_way| self.await_root(half_way));
        let outcome = match verified {
            // This says nothing about any single block of the batch yet.
            Err(error) if is_run => Err(error),
            verified => self.insert_verified(verified, begun, &span),
        };
        if outcome.is_err() {
            self.discard_ahead();
        }
        Some(AheadOutcome { block, is_batch: is_run, outcome })
    }

    fn await_root(&mut self, half_way: RootTaskHandle) -> Result<ExecutedBlock, PipelineError> {
        let RootTaskHandle { executed, result: rooted, .. } = half_way;
        let start = Instant::now();
        let rooted = rooted.recv().map_err(|_| PipelineError::Thread { thread: THREAD })??;
        Ok(self.finish_verification(executed, rooted, start.elapsed()))
    }

    /// Drops the blocks that are ahead. They leave no trace.
    pub fn discard_ahead(&mut self) {
        self.ahead.blocks.clear();
    }
}
