//! Blocks ahead: each is executed on the deltas of those below it, while their roots are computed.
//!
//! ```text
//!  tree's thread   execute n+2 on the state of n-1 and the deltas of n, n+1 --.
//!  `import-root`   root of n ------> root of n+1 (n+2 waits) <--delta, base---'
//!  `import-commit` batch up to n-1
//! ```
//!
//! | half of a verification | thread | stands on | checks |
//! |---|---|---|---|
//! | [execution](Tree::execute) | the tree's | the newest state that has a root, with the deltas of blocks ahead laid above | headers, ommers, transactions, gas, receipts, bloom, requests, access list |
//! | [root](RootHalf::run) | `import-root`; for a block by itself the tree's | the proposal of its parent | state roots |
//!
//! A [run](runs) of blocks is ahead as one: it has one delta, the sum of theirs, and one root.
//!
//! A block is *ahead* from its execution until it [settles](Tree::settle). Until then it is seen by
//! the blocks that are executed on it, and by nobody else: it is no block of the tree, no head, in
//! no batch. Blocks settle in the order of their execution. The first that fails in either half
//! takes those above it with it, and is the one that the error is about.

use super::{
    Tree,
    runs::{ExecutedRun, RunUnderWay},
    verify::Executed,
};
use crate::{
    Chain, ExecutedBlock, PipelineError, PreparedBlock, Proposals, States, StatesAt, StatesSession,
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use crossbeam_channel::{Receiver, Sender, bounded};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_execution::BlockAccessList;
use retrie_state::{BlockRef, Run, StateDelta, StateError};
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// How many blocks, or runs, may be ahead: one whose root is being computed, one for that thread to go on
/// with, and the one that has been executed meanwhile. More would not keep two threads busier, but
/// lengthen the way of each read, and what a wrong root costs.
const AHEAD: usize = 3;

const THREAD: &str = "import-root";

/// The states of a block, once they are there.
type Coming = Arc<OnceLock<Proposals>>;

/// The states that a block's delta is to be applied to.
#[derive(Debug)]
pub(super) enum Base<'a> {
    /// They are there.
    Ready(Box<StatesSession<'a>>),
    /// They are those of a block that is ahead.
    Coming(Coming),
}

/// What is applied to the states below, to get a root.
#[derive(Debug)]
pub(super) enum Writes {
    Block(Arc<StateDelta>),
    Run(Run),
}

impl Writes {
    /// As one delta.
    const fn sum(&self) -> &Arc<StateDelta> {
        match self {
            Self::Block(delta) => delta,
            Self::Run(run) => run.sum(),
        }
    }
}

/// The second half of a verification.
#[derive(Debug)]
pub(super) struct RootHalf<'a> {
    /// The last one of a run.
    pub(super) block: Arc<RecoveredBlock>,
    /// The block below all of it.
    pub(super) parent: B256,
    pub(super) writes: Writes,
    pub(super) base: Base<'a>,
}

/// What it gives.
#[derive(Debug)]
pub(super) struct Rooted {
    pub(super) states: Proposals,
    /// How many header roots were compared.
    pub(super) checked: u64,
    /// How long the backend took.
    pub(super) took: Duration,
}

impl<'a> RootHalf<'a> {
    pub(super) fn run(self, states: &'a States) -> Result<Rooted, PipelineError> {
        let Self { block, parent, writes, base } = self;
        let session = match base {
            Base::Ready(session) => *session,
            Base::Coming(below) => {
                // It has failed: this block will never settle.
                let unknown = || StateError::UnknownBlock { hash: parent };
                states.begin(StatesAt::Proposals(below.get().ok_or_else(unknown)?))?
            }
        };
        let (proposals, took) = match &writes {
            Writes::Block(delta) => session.finish(delta),
            Writes::Run(run) => session.finish_run(run),
        }?;
        let checked = states.check_roots(block.sealed_header(), proposals.roots())?;
        states.seal(&proposals, block.hash());
        Ok(Rooted { states: proposals, checked, took })
    }
}

struct RootJob<'a> {
    half: RootHalf<'a>,
    /// To be filled for the block above.
    states: Coming,
    reply: Sender<Result<Rooted, PipelineError>>,
}

/// Blocks that are ahead, and the thread that computes their roots, one by one in their order.
pub(super) struct AheadOfRoots<'a> {
    jobs: Sender<RootJob<'a>>,
    blocks: VecDeque<Ahead>,
    /// The run above these that is being executed.
    pub(super) run: Option<RunUnderWay<'a>>,
}

/// A block or a run.
pub(super) struct Ahead {
    /// The block, or the last one of the run that was looked at.
    pub(super) block: Arc<RecoveredBlock>,
    /// The block below.
    pub(super) floor: BlockRef,
    pub(super) is_run: bool,
    pub(super) begun: Instant,
    /// What its execution came to.
    pub(super) half_way: Result<HalfWay, PipelineError>,
}

pub(super) struct HalfWay {
    executed: ExecutedRun,
    /// What all of it changes.
    delta: Arc<StateDelta>,
    states: Coming,
    rooted: Receiver<Result<Rooted, PipelineError>>,
}

/// What became of a block, or a run, that was ahead.
#[derive(Debug)]
pub struct Settled {
    /// The block, or the last one of the run.
    pub block: Arc<RecoveredBlock>,
    /// Whether it was a run. Why it is no part of the tree need not be for the block: its blocks one by
    /// one will tell.
    pub is_run: bool,
    /// The same as a block of the tree, or why it is none. Then no block is ahead any more.
    pub outcome: Result<Arc<ExecutedBlock>, PipelineError>,
}

impl<'a> AheadOfRoots<'a> {
    pub(super) fn start<'scope>(
        chain: &'a Chain,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let (jobs, inbox) = bounded::<RootJob<'a>>(AHEAD);
        std::thread::Builder::new()
            .name(THREAD.into())
            .spawn_scoped(scope, move || {
                for RootJob { half, states, reply } in inbox {
                    let rooted = half.run(&chain.states);
                    if let Ok(rooted) = &rooted {
                        // Nobody else fills it.
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
        Ok(Self { jobs, blocks: VecDeque::new(), run: None })
    }

    /// Whether a block on `parent` stands on the last block ahead.
    fn ends_with(&self, parent: &B256) -> bool {
        let in_run = self.run.as_ref().map(|run| &run.executed.last.block);
        let last = in_run.or_else(|| self.blocks.back().map(|last| &last.block));
        last.is_some_and(|last| last.hash() == *parent)
    }

    /// What was executed below a block on `parent`, and below the run under way, the oldest first.
    fn executed_below(&self, parent: &B256) -> impl DoubleEndedIterator<Item = &HalfWay> {
        let is_above = self.ends_with(parent);
        self.blocks.iter().filter(move |_| is_above).filter_map(|one| one.half_way.as_ref().ok())
    }

    pub(super) fn deltas_below(&self, parent: &B256) -> impl Iterator<Item = &Arc<StateDelta>> {
        self.executed_below(parent).map(|below| &below.delta)
    }

    /// The states of `parent`, or of the block below the run under way, if they are still to come.
    pub(super) fn coming(&self, parent: &B256) -> Option<Coming> {
        self.executed_below(parent).next_back().map(|last| last.states.clone())
    }

    /// The block below all that are ahead, for a block that stands on the last of them.
    pub(super) fn floor(&self, parent: &SealedHeader) -> BlockRef {
        let lowest = || {
            let first = self.blocks.front().map(|first| first.floor);
            first.or_else(|| self.run.as_ref().map(|run| run.floor))
        };
        let lowest = if self.ends_with(&parent.hash()) { lowest() } else { None };
        lowest.unwrap_or_else(|| BlockRef::new(parent.number, parent.hash()))
    }

    /// One of the blocks.
    pub(super) fn get(&self, hash: &B256) -> Option<&Executed> {
        // Whoever asks wants one of the last, as a rule.
        self.iter().rev().find(|one| one.block.hash() == *hash)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Executed> {
        let half_way = self.blocks.iter().filter_map(|one| one.half_way.as_ref().ok());
        let executed = half_way.map(|half_way| &half_way.executed);
        executed.chain(self.run.iter().map(|run| &run.executed)).flat_map(ExecutedRun::iter)
    }

    /// Takes up what was executed, and leaves its root to the thread.
    pub(super) fn send(
        &self,
        executed: ExecutedRun,
        half: RootHalf<'a>,
    ) -> Result<HalfWay, PipelineError> {
        let states = Coming::default();
        let (reply, rooted) = bounded(1);
        let delta = half.writes.sum().clone();
        let job = RootJob { half, states: states.clone(), reply };
        self.jobs.send(job).map_err(|_| PipelineError::Thread { thread: THREAD })?;
        Ok(HalfWay { executed, delta, states, rooted })
    }

    /// Puts it above all that is ahead.
    pub(super) fn push(&mut self, ahead: Ahead) {
        self.blocks.push_back(ahead);
    }
}

impl Tree<'_> {
    /// Whether no block is ahead.
    pub fn is_settled(&self) -> bool {
        self.ahead.blocks.is_empty()
    }

    /// Whether `block` can be [executed ahead](Self::execute_ahead) now: it stands on the last block
    /// that is, if one is; there are not too many; and its receipts do not need the states between
    /// its transactions.
    pub fn can_execute_ahead(&self, block: &PreparedBlock) -> bool {
        let AheadOfRoots { blocks, .. } = &self.ahead;
        let is_above = |last: &Ahead| {
            last.half_way.is_ok()
                && blocks.len() < AHEAD
                && last.block.hash() == block.parent_hash()
        };
        !self.checks_receipt_roots(block.number()) && blocks.back().is_none_or(is_above)
    }

    /// Executes a block for which this [is possible](Self::can_execute_ahead), and leaves its root to
    /// another thread. What became of it, [`settle`](Self::settle) tells, also if it is invalid.
    pub fn execute_ahead(&mut self, block: PreparedBlock) {
        let begun = self.take_up(&block);
        let PreparedBlock { block, access_list, .. } = block;
        let floor = BlockRef::new(block.number().saturating_sub(1), block.parent_hash());
        let half_way = self.go_half_way(block.clone(), access_list.as_deref());
        self.no_longer_coming(&block.hash());
        self.ahead.push(Ahead { block, floor, is_run: false, begun, half_way });
    }

    fn go_half_way(
        &mut self,
        block: Arc<RecoveredBlock>,
        access_list: Option<&BlockAccessList>,
    ) -> Result<HalfWay, PipelineError> {
        let parent = self.parent_of(&block)?;
        let (executed, base) = self.execute(block, access_list, &parent)?;
        let half = executed.root_half(base);
        self.ahead.send(executed.into(), half)
    }

    /// Takes the lowest of the blocks ahead into the tree. `None` if there is none; or if its root is
    /// not there yet, and shall not be waited for.
    pub fn settle(&mut self, wait: bool) -> Option<Settled> {
        let is_coming = |one: &Ahead| one.half_way.as_ref().is_ok_and(|it| it.rooted.is_empty());
        if self.ahead.blocks.front().is_some_and(is_coming) && !wait {
            return None;
        }
        let Ahead { block, is_run, begun, half_way, .. } = self.ahead.blocks.pop_front()?;
        let verified = half_way.and_then(|half_way| self.await_root(half_way));
        let outcome = match verified {
            // No verdict about any of its blocks yet.
            Err(error) if is_run => Err(error),
            verified => self.accepted(verified, begun),
        };
        if outcome.is_err() {
            self.discard_ahead();
        }
        Some(Settled { block, is_run, outcome })
    }

    fn await_root(&mut self, half_way: HalfWay) -> Result<ExecutedBlock, PipelineError> {
        let HalfWay { executed, rooted, .. } = half_way;
        let start = Instant::now();
        let rooted = rooted.recv().map_err(|_| PipelineError::Thread { thread: THREAD })??;
        Ok(self.conclude(executed, rooted, start.elapsed()))
    }

    /// Forgets the blocks that are ahead. They leave no trace.
    pub fn discard_ahead(&mut self) {
        self.ahead.blocks.clear();
    }
}
