//! [`ChainFollower`]: block sync. Fetches blocks from another node (`--follow`) or from peers, and
//! verifies them.
//!
//! | thread | work | ends |
//! |---|---|---|
//! | `follow` | asks for the remote head, fetches the missing blocks below it, verifies them, sets the head | when `stop` is set |
//! | one per gap that is filled by number | fetches blocks before they are verified | when the gap is filled |
//!
//! With a consensus client it follows no other node's head: it fills the gap below the unknown head
//! that the consensus client has named. With a head that was named at the start
//! ([`HeadSource::Named`]) it does the same, and then sets that head. While no source of blocks is
//! connected it waits, which is no error.
//!
//! **The remote node is not trusted.** The follower asks for headers first, by hash from the head
//! downwards, until one has a known parent; then for the blocks, upwards, one by one. A header must
//! have the requested hash, and the number of its child minus one, so that the way down ends at the
//! lowest block whose state can be restored. Bounds on memory:
//!
//! | data | largest amount |
//! |---|---|
//! | hashes of headers on the way down | 64, or 768 on another branch, plus the number of blocks whose state can be restored |
//! | blocks fetched and not verified yet | 4, and 5 more under verification, each as large as the fetcher accepts; 64 and 64 where one root is computed for all of them |
//!
//! In a larger gap all but the last 64 blocks are fetched upwards by number. All blocks that have
//! arrived go to the engine as one batch, so that a block is executed while the root of the one
//! before is computed. Each block must be valid before it becomes the head.
//!
//! Far behind the head, if the stores [apply batches](retrie_pipeline::StoreSet::applies_batches), 64
//! blocks at a time have one root, the last one's ([what that
//! checks](retrie_pipeline::RootCheckMode::Batch)). This is only done for blocks below the head by
//! more than the retention depth, since the states in between are not kept: a node that claims a
//! higher head than it has only prevents reorgs of the blocks it gave. Each block within the
//! retention depth has its own root.

mod progress;

use crate::{DeepBranch, EngineError, EngineHandle, WaitReason};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use progress::{FollowFailures, ProgressLogger};
use retrie_chainspec::primitives::{Block, Header};
use retrie_pipeline::{PreparedBlock, prepare};
use retrie_sources::{BlockFetcher, BlockTag, FetchError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tokio::runtime::Handle;

/// A gap larger than this is filled from below by number; a smaller gap from above by hash, which
/// finds the right branch in any case.
const MAX_GAP_BY_HASH: u64 = 64;
/// Largest number of headers above the head that are requested one by one to find where a branch
/// leaves the chain.
const MAX_HEADERS_BY_HASH: u64 = 768;
/// Number of blocks that are fetched before the engine takes them.
const FETCH_AHEAD: usize = 4;
/// The same far behind the head; such a batch has one root.
const DEEP_BATCH: usize = 64;
/// Time for the first answer of the remote node before a warning.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Time without success after which the follower reports an error.
const ERROR_AFTER: Duration = Duration::from_secs(30);

/// Who decides which block is the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSource {
    /// The remote node.
    Remote,
    /// A consensus client on the Engine API.
    ConsensusClient,
    /// The operator named the block of this hash. When it is the head, a consensus client may
    /// decide.
    Named(B256),
}

/// Configuration of the follower.
#[derive(Clone, Copy, Debug)]
pub struct FollowConfig {
    /// Who decides which block is the head.
    pub head_source: HeadSource,
    /// Time between two requests for the remote head.
    pub interval: Duration,
}

/// Why a step of the follower failed. It logs the error and tries again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The remote node does not answer, or its answer is invalid.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The engine has ended or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A block of the remote node is invalid.
    #[error("block {number} ({hash}) of {endpoint} is invalid: {reason}")]
    Invalid {
        /// Number.
        number: u64,
        /// Hash.
        hash: B256,
        /// Name of the node.
        endpoint: String,
        /// The rule it breaks.
        reason: String,
    },
    /// The remote node gave another block than the requested one.
    #[error("{endpoint} was asked for block {asked} and gave block {number} ({got})")]
    OtherBlock {
        /// The requested hash.
        asked: B256,
        /// Number of the block it gave.
        number: u64,
        /// Hash of the block it gave.
        got: B256,
        /// Name of the node.
        endpoint: String,
    },
    /// The number of a remote block is not that of its child minus one.
    #[error(
        "block {hash} of {endpoint} says that its number is {number}, but its child is number \
         {child}: no chain is like that"
    )]
    WrongNumber {
        /// Number in the block's header.
        number: u64,
        /// Its hash.
        hash: B256,
        /// Number of its child.
        child: u64,
        /// Name of the node.
        endpoint: String,
    },
    /// The remote node's chain left this node's chain too far below the head.
    #[error(
        "{endpoint} has left our chain below block {number}, further down than the state can be \
         taken back: check that it is on the same chain"
    )]
    Apart {
        /// Lowest block number at which the chains are known to differ.
        number: u64,
        /// Name of the node.
        endpoint: String,
    },
    /// The stop flag is set.
    #[error("stopped")]
    Stopped,
}

/// Follows another node's chain, or fills gaps below the head that the consensus client wants.
#[derive(Debug)]
pub struct ChainFollower {
    engine: EngineHandle,
    remote: Box<dyn BlockFetcher>,
    config: FollowConfig,
    runtime: Handle,
    stop: Arc<AtomicBool>,
    troubles: FollowFailures,
    /// Whether the head that was named at the start is reached.
    has_arrived: AtomicBool,
}

/// A running follower. It ends when its stop flag is set.
#[derive(Debug)]
pub struct FollowerHandle {
    thread: JoinHandle<()>,
    troubles: FollowFailures,
}

impl FollowerHandle {
    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// The last error, if nothing has succeeded for a while.
    pub fn last_error(&self) -> Option<String> {
        self.troubles.lasting(ERROR_AFTER)
    }

    /// Waits for its end, after the stop flag is set.
    ///
    /// # Errors
    /// [`EngineError::Panicked`].
    pub fn join(self) -> Result<(), EngineError> {
        self.thread.join().map_err(|_| EngineError::Panicked)
    }
}

impl ChainFollower {
    /// A follower that fetches from `remote` and ends when `stop` is set. It waits for the engine
    /// on `runtime`. With [`HeadSource::Remote`] the node counts as behind until the follower has
    /// caught up once.
    pub fn new(
        engine: EngineHandle,
        remote: impl BlockFetcher + 'static,
        config: FollowConfig,
        runtime: Handle,
        stop: Arc<AtomicBool>,
    ) -> Self {
        if matches!(config.head_source, HeadSource::Remote) {
            engine.targets().begin_following(engine.live().head().number);
        }
        let troubles = FollowFailures::default();
        let (remote, has_arrived) = (Box::new(remote), AtomicBool::new(false));
        let follower = Self { engine, remote, config, runtime, stop, troubles, has_arrived };
        follower.report_source(None);
        follower
    }

    /// Records the state of the source of blocks: connected or not, or why it fails.
    fn report_source(&self, error: Option<&FollowError>) {
        let name = || self.remote.name().to_owned();
        let source = match error {
            Some(error) => WaitReason::Failing(error.to_string()),
            None if self.remote.is_available() => WaitReason::Blocks(name()),
            None => WaitReason::NoPeers,
        };
        self.engine.targets().set_source(source, self.engine.live().head().number);
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn start(self) -> Result<FollowerHandle, EngineError> {
        let troubles = self.troubles.clone();
        let thread = std::thread::Builder::new()
            .name("follow".into())
            .spawn(move || self.run())
            .map_err(EngineError::Thread)?;
        Ok(FollowerHandle { thread, troubles })
    }

    fn run(self) {
        let spec = self.engine.live().spec();
        // Later checks give the remote node more time. The first one is short, so that the operator
        // sees at once that the remote node does not answer.
        let first = self.remote.check_chain(spec, Some(FIRST_ANSWER));
        let mut has_checked = first.is_ok();
        if let Err(error) = first {
            tracing::warn!(%error, "cannot follow yet, trying on");
            self.add_failure(&error.into());
        }
        while !self.stop.load(Ordering::Relaxed) {
            let step = || {
                if !has_checked {
                    self.remote.check_chain(spec, None)?;
                }
                self.step()
            };
            match step() {
                Ok(()) => {
                    has_checked = true;
                    self.report_source(None);
                    self.clear_failures();
                }
                Err(FollowError::Stopped | FollowError::Engine(EngineError::Stopped)) => return,
                Err(error) => {
                    tracing::warn!(%error, "following failed, trying again");
                    self.add_failure(&error);
                }
            }
            self.pause();
        }
    }

    fn add_failure(&self, error: &FollowError) {
        self.report_source(Some(error));
        self.troubles.add(error);
    }

    fn pause(&self) {
        const SLICE: Duration = Duration::from_millis(50);
        let mut left = self.config.interval;
        while !left.is_zero() && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(left.min(SLICE));
            left = left.saturating_sub(SLICE);
        }
    }

    /// Catches up once.
    ///
    /// # Errors
    /// [`FollowError`]; blocks verified before stay.
    pub fn step(&self) -> Result<(), FollowError> {
        match self.config.head_source {
            HeadSource::Remote => {
                self.follow_remote()?;
                self.engine.targets().follower_caught_up(self.engine.live().head().number);
                Ok(())
            }
            HeadSource::ConsensusClient => self.fill_gap(),
            HeadSource::Named(hash) => self.set_named_head(hash),
        }
    }

    /// Sets the named head, once. After that, fills gaps for a consensus client.
    fn set_named_head(&self, hash: B256) -> Result<(), FollowError> {
        if self.has_arrived.load(Ordering::Relaxed) {
            return self.fill_gap();
        }
        let known = self
            .engine
            .live()
            .view()
            .and_then(|view| Ok((view.is_canonical(&hash)?, view.header(&hash)?.is_some())));
        let (is_canonical, is_known) = known.map_err(EngineError::from)?;
        if !is_canonical {
            if !is_known {
                if !self.remote.is_available() {
                    return Ok(());
                }
                let header = self.header(hash)?;
                self.set_target(header.number);
                self.fetch(hash, header)?;
            }
            self.update_forkchoice(hash, None, None)?;
        }
        self.has_arrived.store(true, Ordering::Relaxed);
        tracing::info!(number = self.engine.live().head().number, %hash, "at the head that was named");
        self.set_target(0);
        Ok(())
    }

    /// Fetches the missing blocks below the head that the consensus client wants, if there is one.
    fn fill_gap(&self) -> Result<(), FollowError> {
        let Some(hash) = self.engine.wanted_head() else {
            self.set_target(0);
            return Ok(());
        };
        if !self.remote.is_available() {
            return Ok(());
        }
        let header = self.header(hash)?;
        self.set_target(header.number);
        let fetched = self.fetch(hash, header);
        if matches!(fetched, Err(FollowError::Fetch(_))) && self.engine.wanted_head().is_none() {
            // Setting blocks on the way as heads has cleared the wanted head: restore it.
            self.engine.targets().set_wanted(hash, self.engine.live().head().number);
        }
        fetched
    }

    fn follow_remote(&self) -> Result<(), FollowError> {
        let (hash, header) = self.remote.tagged(BlockTag::Head)?;
        self.expect_hash(hash, &header)?;
        let live = self.engine.live();
        self.set_target(header.number);
        let is_behind = live.view().and_then(|view| view.is_canonical(&hash));
        // The remote head is an ancestor of ours, for example one of several nodes behind one
        // address: the head is not set back.
        if is_behind.map_err(EngineError::from)? {
            return Ok(());
        }
        let number = header.number;
        self.fetch(hash, header)?;
        let named = |tag| match self.remote.tagged(tag) {
            // A chain without a consensus layer has none, and the remote head may have moved in the
            // meantime.
            Ok((hash, named)) if named.number <= number => Some(hash),
            _ => None,
        };
        self.update_forkchoice(hash, named(BlockTag::Safe), named(BlockTag::Finalized))
    }

    /// Records the number of the target head; 0 if there is none.
    fn set_target(&self, number: u64) {
        self.engine.targets().set_target(number, self.engine.live().head().number);
    }

    /// Verifies the block of this hash and all missing blocks below it.
    fn fetch(&self, hash: B256, header: Header) -> Result<(), FollowError> {
        let head = self.engine.live().head().number;
        let number = header.number;
        if number.saturating_sub(head) > MAX_GAP_BY_HASH {
            // The last blocks are fetched by hash, which follows the right branch.
            match self.fetch_by_number(head + 1, number - MAX_GAP_BY_HASH, self.deep_below(number))
            {
                // Another branch. Fetching headers by hash finds where it leaves the chain, unless
                // there are too many headers.
                Err(FollowError::Apart { .. })
                    if number.saturating_sub(head) <= MAX_HEADERS_BY_HASH => {}
                fetched => fetched?,
            }
        }
        self.fill_below(hash, header)
    }

    /// Highest block that may share one root with others: the blocks up to it are beyond the
    /// retention depth once `head` is reached.
    fn deep_below(&self, head: u64) -> u64 {
        let states = self.engine.live().chain().states();
        if states.applies_batches() { head.saturating_sub(states.own().retention()) } else { 0 }
    }

    /// Fetches and verifies blocks `from` to `to` of the remote node, as long as they build on the
    /// head. Blocks up to `deep` form whole batches with one root each.
    fn fetch_by_number(&self, from: u64, to: u64, deep: u64) -> Result<(), FollowError> {
        std::thread::scope(|scope| {
            let is_deep = |first: u64| first <= deep.min(to).saturating_sub(DEEP_BATCH as u64 - 1);
            let room = if is_deep(from) { DEEP_BATCH } else { FETCH_AHEAD };
            let (send, blocks) = crossbeam_channel::bounded(room);
            scope.spawn(move || {
                for number in from..=to {
                    let block = self.refuse_if_stopped().and_then(|()| {
                        let block = self.remote.block_by_number(number)?;
                        self.prepared(block)
                    });
                    let failed = block.is_err();
                    if send.send(block).is_err() || failed {
                        return;
                    }
                }
            });
            let mut told = ProgressLogger::new(from.saturating_sub(1));
            while let Ok(first) = blocks.recv() {
                told.log(self.engine.live().head().number, to, self.remote.name());
                if first.as_ref().is_ok_and(|first| is_deep(first.number())) {
                    self.insert_batches(
                        std::iter::once(first).chain(blocks.iter().take(DEEP_BATCH - 1)),
                        deep,
                    )?;
                } else {
                    self.insert_batches(
                        std::iter::once(first).chain(blocks.try_iter().take(FETCH_AHEAD)),
                        0,
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Verifies blocks of ascending numbers in batches and sets the last block of each batch as the
    /// head. A batch that ends at block `deep` or below has one root.
    fn insert_batches(
        &self,
        blocks: impl Iterator<Item = Result<PreparedBlock, FollowError>>,
        deep: u64,
    ) -> Result<(), FollowError> {
        let mut blocks = blocks.peekable();
        while let Some(first) = blocks.next() {
            let first = first?;
            let mut top = first.hash();
            if first.parent_hash() != self.engine.live().head().hash() {
                // Another branch: fetching by hash finds where it leaves the chain, some blocks
                // below.
                self.fill_below(top, first.block().header().clone())?;
                self.update_forkchoice(top, None, None)?;
                continue;
            }
            let mut run = vec![first];
            let is_above = |next: &Result<PreparedBlock, _>, top| {
                next.as_ref().is_ok_and(|next| next.parent_hash() == top)
            };
            while let Some(Ok(next)) = blocks.next_if(|next| is_above(next, top)) {
                top = next.hash();
                run.push(next);
            }
            self.insert_batch(run, deep)?;
        }
        Ok(())
    }

    /// Verifies a batch of blocks on the head, each the child of the one before, and sets the last
    /// valid one as the head.
    fn insert_batch(&self, run: Vec<PreparedBlock>, deep: u64) -> Result<(), FollowError> {
        let names: Vec<_> = run.iter().map(|block| (block.number(), block.hash())).collect();
        let statuses = if names.last().is_some_and(|(last, _)| *last <= deep) {
            self.runtime.block_on(self.engine.new_deep_batch(run))?
        } else {
            self.runtime.block_on(self.engine.new_batch(run))?
        };
        let valid = statuses.iter().take_while(|status| status.is_valid()).count();
        if let Some((_, hash)) = valid.checked_sub(1).and_then(|last| names.get(last)) {
            self.clear_failures();
            self.update_forkchoice(*hash, None, None)?;
        }
        for ((number, hash), status) in names.into_iter().zip(statuses) {
            self.expect_valid(number, hash, status)?;
        }
        Ok(())
    }

    /// Verifies the block of this hash and the missing blocks below it: fetches headers down to a
    /// known block, then the blocks upwards.
    fn fill_below(&self, hash: B256, header: Header) -> Result<(), FollowError> {
        let live = self.engine.live();
        let retained = live.chain().state().retained();
        // No state below this block can be restored, and every chain shares genesis.
        let lowest = retained.map_or(0, |kept| *kept.start()).min(live.head().number).max(1);
        let mut missing = Vec::new();
        let (mut hash, mut header) = (hash, header);
        loop {
            self.refuse_if_stopped()?;
            let (parent, number) = (header.parent_hash, header.number);
            missing.push((hash, number));
            let known =
                live.view().and_then(|view| view.header(&parent)).map_err(EngineError::from)?;
            if known.is_some() {
                break;
            }
            if number <= lowest {
                self.report_deep_branch(&missing);
                return Err(FollowError::Apart { number, endpoint: self.endpoint() });
            }
            header = self.header(parent)?;
            if header.number != number - 1 {
                return Err(FollowError::WrongNumber {
                    number: header.number,
                    hash: parent,
                    child: number,
                    endpoint: self.endpoint(),
                });
            }
            hash = parent;
        }
        while let Some((hash, _)) = missing.pop() {
            self.refuse_if_stopped()?;
            let block = self.remote.block_by_hash(hash)?;
            self.expect_hash(hash, &block.header)?;
            self.insert(self.prepared(block)?)?;
        }
        Ok(())
    }

    /// Reports the blocks of these hashes and numbers (the head first) as a deep branch, if the
    /// consensus client or the operator wants that head. Each header is the parent of the one
    /// before, so all belong to the named head.
    fn report_deep_branch(&self, blocks: &[(B256, u64)]) {
        let Some((head, _)) = blocks.first() else { return };
        if Some(*head) != self.engine.wanted_head()
            && self.config.head_source != HeadSource::Named(*head)
        {
            return;
        }
        let state = self.engine.live().chain().state();
        let first_retained = state.retained().map_or(0, |kept| *kept.start());
        let lowest = blocks.last().map_or(0, |(_, number)| *number);
        let (fork, retention) = (lowest.saturating_sub(1), state.retention());
        self.engine.report_deep_branch(blocks, DeepBranch { fork, first_retained, retention });
    }

    /// The header of this hash.
    fn header(&self, hash: B256) -> Result<Header, FollowError> {
        let header = self.remote.header_by_hash(hash)?;
        self.expect_hash(hash, &header).map(|()| header)
    }

    fn expect_hash(&self, asked: B256, header: &Header) -> Result<(), FollowError> {
        let got = header.hash_slow();
        if got == asked {
            return Ok(());
        }
        Err(FollowError::OtherBlock {
            asked,
            number: header.number,
            got,
            endpoint: self.endpoint(),
        })
    }

    fn endpoint(&self) -> String {
        self.remote.name().to_owned()
    }

    fn refuse_if_stopped(&self) -> Result<(), FollowError> {
        if self.stop.load(Ordering::Relaxed) { Err(FollowError::Stopped) } else { Ok(()) }
    }

    fn prepared(&self, block: Block) -> Result<PreparedBlock, FollowError> {
        let (number, hash) = (block.header.number, block.header.hash_slow());
        prepare(self.engine.live().spec(), block)
            .map_err(|error| self.invalid(number, hash, error.to_string()))
    }

    fn insert(&self, block: PreparedBlock) -> Result<(), FollowError> {
        let (number, hash) = (block.number(), block.hash());
        let status = self.runtime.block_on(self.engine.new_block(block))?;
        self.expect_valid(number, hash, status)?;
        // Progress was made, so an earlier failure does not count any more.
        self.clear_failures();
        Ok(())
    }

    fn clear_failures(&self) {
        if self.troubles.clear() {
            tracing::info!("following {} again", self.remote.name());
        }
    }

    fn update_forkchoice(
        &self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), FollowError> {
        let state = ForkchoiceState {
            head_block_hash: head,
            safe_block_hash: safe.unwrap_or_default(),
            finalized_block_hash: finalized.unwrap_or_default(),
        };
        let outcome = self.runtime.block_on(self.engine.forkchoice(state))?;
        self.expect_valid(self.engine.live().head().number, head, outcome.status)
    }

    fn expect_valid(
        &self,
        number: u64,
        hash: B256,
        status: PayloadStatus,
    ) -> Result<(), FollowError> {
        match status.status {
            PayloadStatusEnum::Valid => Ok(()),
            PayloadStatusEnum::Accepted => {
                Err(FollowError::Apart { number, endpoint: self.endpoint() })
            }
            other => {
                let reason = other.validation_error().unwrap_or("its parent is unknown").to_owned();
                Err(self.invalid(number, hash, reason))
            }
        }
    }

    fn invalid(&self, number: u64, hash: B256, reason: String) -> FollowError {
        FollowError::Invalid { number, hash, endpoint: self.endpoint(), reason }
    }
}
