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
//! A block is *ahead* from its execution until it [settles](Tree::settle). Until then it is seen by
//! the blocks that are executed on it, and by nobody else: it is no block of the tree, no head, in
//! no batch. Blocks settle in the order of their execution. The first that fails in either half
//! takes those above it with it, and is the one that the error is about.

use super::{Tree, verify::Executed};
use crate::{
    Chain, ExecutedBlock, PipelineError, PreparedBlock, Proposals, States, StatesAt, StatesSession,
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use crossbeam_channel::{Receiver, Sender, bounded};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_execution::BlockAccessList;
use retrie_state::{BlockRef, StateDelta, StateError};
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// How many blocks may be ahead: one whose root is being computed, one for that thread to go on
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

/// The second half of a verification.
#[derive(Debug)]
pub(super) struct RootHalf<'a> {
    pub(super) block: Arc<RecoveredBlock>,
    pub(super) delta: Arc<StateDelta>,
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
        let Self { block, delta, base } = self;
        let session = match base {
            Base::Ready(session) => *session,
            Base::Coming(below) => {
                // It has failed: this block will never settle.
                let unknown = || StateError::UnknownBlock { hash: block.parent_hash() };
                states.begin(StatesAt::Proposals(below.get().ok_or_else(unknown)?))?
            }
        };
        let (proposals, took) = session.finish(&delta)?;
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
}

struct Ahead {
    block: Arc<RecoveredBlock>,
    begun: Instant,
    /// What its execution came to.
    half_way: Result<HalfWay, PipelineError>,
}

struct HalfWay {
    executed: Executed,
    states: Coming,
    rooted: Receiver<Result<Rooted, PipelineError>>,
}

/// What became of a block that was ahead.
#[derive(Debug)]
pub struct Settled {
    /// The block.
    pub block: Arc<RecoveredBlock>,
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
        Ok(Self { jobs, blocks: VecDeque::new() })
    }

    /// Whether a block on `parent` stands on the last block ahead.
    fn ends_with(&self, parent: &B256) -> bool {
        self.blocks.back().is_some_and(|last| last.block.hash() == *parent)
    }

    /// What was executed of the blocks below a block on `parent`, the oldest first.
    fn executed_below(&self, parent: &B256) -> impl DoubleEndedIterator<Item = &HalfWay> {
        let is_above = self.ends_with(parent);
        self.blocks.iter().filter(move |_| is_above).filter_map(|one| one.half_way.as_ref().ok())
    }

    pub(super) fn deltas_below(&self, parent: &B256) -> impl Iterator<Item = &Arc<StateDelta>> {
        self.executed_below(parent).map(|below| &below.executed.delta)
    }

    /// The states of `parent`, if they are still to come.
    pub(super) fn coming(&self, parent: &B256) -> Option<Coming> {
        self.executed_below(parent).next_back().map(|last| last.states.clone())
    }

    /// The block below all that are ahead, for a block that stands on the last of them.
    pub(super) fn floor(&self, parent: &SealedHeader) -> BlockRef {
        match self.blocks.front().filter(|_| self.ends_with(&parent.hash())) {
            Some(first) => {
                BlockRef::new(first.block.number().saturating_sub(1), first.block.parent_hash())
            }
            None => BlockRef::new(parent.number, parent.hash()),
        }
    }

    /// One of the blocks.
    pub(super) fn get(&self, hash: &B256) -> Option<&Executed> {
        let at = self.blocks.iter().find(|one| one.block.hash() == *hash)?;
        at.half_way.as_ref().ok().map(|half_way| &half_way.executed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Executed> {
        let half_way = self.blocks.iter().filter_map(|one| one.half_way.as_ref().ok());
        half_way.map(|half_way| &half_way.executed)
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
        let half_way = self.go_half_way(block.clone(), access_list.as_deref());
        self.coming.retain(|(of, _)| *of != block.hash());
        self.ahead.blocks.push_back(Ahead { block, begun, half_way });
    }

    fn go_half_way(
        &mut self,
        block: Arc<RecoveredBlock>,
        access_list: Option<&BlockAccessList>,
    ) -> Result<HalfWay, PipelineError> {
        let parent = self.parent_of(&block)?;
        let (executed, base) = self.execute(block, access_list, &parent)?;
        let states = Coming::default();
        let (reply, rooted) = bounded(1);
        let job = RootJob { half: executed.root_half(base), states: states.clone(), reply };
        self.ahead.jobs.send(job).map_err(|_| PipelineError::Thread { thread: THREAD })?;
        Ok(HalfWay { executed, states, rooted })
    }

    /// Takes the lowest of the blocks ahead into the tree. `None` if there is none; or if its root is
    /// not there yet, and shall not be waited for.
    pub fn settle(&mut self, wait: bool) -> Option<Settled> {
        let is_coming = |one: &Ahead| one.half_way.as_ref().is_ok_and(|it| it.rooted.is_empty());
        if self.ahead.blocks.front().is_some_and(is_coming) && !wait {
            return None;
        }
        let Ahead { block, begun, half_way } = self.ahead.blocks.pop_front()?;
        let verified = half_way.and_then(|half_way| self.await_root(half_way));
        let outcome = self.accepted(verified, begun);
        if outcome.is_err() {
            self.discard_ahead();
        }
        Some(Settled { block, outcome })
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
