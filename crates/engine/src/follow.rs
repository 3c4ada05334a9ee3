//! `--follow`: blocks of another node, verified here.
//!
//! | thread | work | ends |
//! |---|---|---|
//! | `follow` | asks for the remote head, fetches what is missing below it, verifies it, makes it the head | when told to |
//! | one per catching up by number | fetches blocks ahead of their verification | with that |
//!
//! Beside a consensus client it follows nobody: it then fills the gap below the head that the
//! consensus client has named and this node does not know. The same for a head that was named at the
//! start ([`Leader::Named`]), which it then makes its own. While there is nobody to fetch from, it
//! waits, and nothing is wrong with that.
//!
//! **The other node may lie.** It is asked for headers first, from the head downwards by hash, until
//! one stands on a block that is known here; then for the blocks, upwards, one by one. A header must
//! have the hash that was asked for and a number one below its child's, so that the way down ends at
//! the lowest block that our state can be taken back to. What lies in memory:
//!
//! | what | at most |
//! |---|---|
//! | hashes of headers on the way down | 64, or 768 on another branch, and the blocks that the state can be taken back |
//! | blocks fetched and not verified yet | 4, and 5 more under verification, each of the size that the fetcher reads; 64 and 64 where one root is computed for all of them |
//!
//! Of a larger gap all but the last 64 blocks come upwards by number. As many as have come go to the
//! engine in one run, so that one is executed while the root of the one before is computed; each must
//! be valid before the head moves on to it.
//!
//! Far behind the head, on states that [apply runs](retrie_pipeline::States::apply_runs), 64 blocks at a
//! time get one root for all, the last one's ([what that checks](retrie_pipeline::CheckRoots::Batch)).
//! That is for blocks deeper below the head than states are retained, as these are not kept between: a
//! node that claims a higher head than it has keeps us from going back so far on what it gave, and no
//! more. The last blocks, as many as are retained, have a root each.

mod progress;

use crate::{DeepBranch, EngineError, EngineHandle, WaitReason};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use progress::{Told, Troubles};
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

/// A gap that is larger is filled from below by number; a smaller one from above by hash, which
/// finds the branch in any case.
const BY_HASH: u64 = 64;
/// Headers above our head that are asked for one after the other to see where a branch leaves our chain.
const LONG_WAY: u64 = 768;
/// Blocks on the way between the network and the engine.
const AHEAD: usize = 4;
/// The same far behind the head, where as many get one root.
const DEEP: usize = 64;
/// How long the node may take for its first answer before that is told.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How long nothing may succeed before the follower says that it does not work.
const UNWELL: Duration = Duration::from_secs(30);

/// Who decides which block is the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// The remote node.
    Remote,
    /// A consensus client on the Engine API.
    ConsensusClient,
    /// Nobody, once the block of this hash is the head; a consensus client may lead on from there.
    Named(B256),
}

/// How the follower behaves.
#[derive(Clone, Copy, Debug)]
pub struct FollowConfig {
    /// Who leads.
    pub leader: Leader,
    /// How long to wait before asking for the remote head again.
    pub interval: Duration,
}

/// Why a follower does not get on. It tries again; these go to the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The remote node does not answer, or not soundly.
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
    /// The remote node has given another block than that of the hash asked for.
    #[error("{endpoint} was asked for block {asked} and gave block {number} ({got})")]
    OtherBlock {
        /// The hash asked for.
        asked: B256,
        /// Number of what came.
        number: u64,
        /// Its hash.
        got: B256,
        /// Name of the node.
        endpoint: String,
    },
    /// A block of the remote node has another number than follows from that of its child.
    #[error(
        "block {hash} of {endpoint} says that its number is {number}, but its child is number \
         {child}: no chain is like that"
    )]
    WrongNumber {
        /// Number that the block says.
        number: u64,
        /// Its hash.
        hash: B256,
        /// Number of its child.
        child: u64,
        /// Name of the node.
        endpoint: String,
    },
    /// The remote node is on a chain that has left ours too far below.
    #[error(
        "{endpoint} has left our chain below block {number}, further down than the state can be \
         taken back: check that it is on the same chain"
    )]
    Apart {
        /// Number down to which the chains differ.
        number: u64,
        /// Name of the node.
        endpoint: String,
    },
    /// Told to stop.
    #[error("stopped")]
    Stopped,
}

/// Follows another node.
#[derive(Debug)]
pub struct Follower {
    engine: EngineHandle,
    remote: Box<dyn BlockFetcher>,
    config: FollowConfig,
    runtime: Handle,
    stop: Arc<AtomicBool>,
    troubles: Troubles,
    /// Whether the head that was named at the start has been reached.
    has_arrived: AtomicBool,
}

/// A follower at work. It ends with the flag that it was made with.
#[derive(Debug)]
pub struct Following {
    thread: JoinHandle<()>,
    troubles: Troubles,
}

impl Following {
    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Why it does not get on, if nothing has succeeded for a while.
    pub fn trouble(&self) -> Option<String> {
        self.troubles.lasting(UNWELL)
    }

    /// Waits for its end, once it was told to stop.
    ///
    /// # Errors
    /// [`EngineError::Panicked`].
    pub fn join(self) -> Result<(), EngineError> {
        self.thread.join().map_err(|_| EngineError::Panicked)
    }
}

impl Follower {
    /// A follower of the node that `remote` asks; it ends once `stop` is set. The engine is waited for
    /// on `runtime`. With [`Leader::Remote`] the engine is behind from now on, until the follower has
    /// caught up once.
    pub fn new(
        engine: EngineHandle,
        remote: impl BlockFetcher + 'static,
        config: FollowConfig,
        runtime: Handle,
        stop: Arc<AtomicBool>,
    ) -> Self {
        if matches!(config.leader, Leader::Remote) {
            engine.targets().begin_following(engine.live().head().number);
        }
        let troubles = Troubles::default();
        let (remote, has_arrived) = (Box::new(remote), AtomicBool::new(false));
        let follower = Self { engine, remote, config, runtime, stop, troubles, has_arrived };
        follower.tell_source(None);
        follower
    }

    /// Says how it stands with the source of blocks: whether it is there, or why it fails.
    fn tell_source(&self, error: Option<&FollowError>) {
        let name = || self.remote.name().to_owned();
        let source = match error {
            Some(error) => WaitReason::Failing(error.to_string()),
            None if self.remote.is_there() => WaitReason::Blocks(name()),
            None => WaitReason::NoPeers,
        };
        self.engine.targets().fetches(source, self.engine.live().head().number);
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn start(self) -> Result<Following, EngineError> {
        let troubles = self.troubles.clone();
        let thread = std::thread::Builder::new()
            .name("follow".into())
            .spawn(move || self.run())
            .map_err(EngineError::Thread)?;
        Ok(Following { thread, troubles })
    }

    fn run(self) {
        let spec = self.engine.live().spec();
        // The remote node is given a while before it is given up, but whoever has started this one
        // shall hear at once that there is nobody to follow.
        let first = self.remote.check_chain(spec, Some(FIRST_ANSWER));
        let mut has_checked = first.is_ok();
        if let Err(error) = first {
            tracing::warn!(%error, "cannot follow yet, trying on");
            self.add_trouble(&error.into());
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
                    self.tell_source(None);
                    self.end_troubles();
                }
                Err(FollowError::Stopped | FollowError::Engine(EngineError::Stopped)) => return,
                Err(error) => {
                    tracing::warn!(%error, "following");
                    self.add_trouble(&error);
                }
            }
            self.pause();
        }
    }

    fn add_trouble(&self, error: &FollowError) {
        self.tell_source(Some(error));
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
    /// [`FollowError`]; what was verified before stays.
    pub fn step(&self) -> Result<(), FollowError> {
        match self.config.leader {
            Leader::Remote => {
                self.follow_remote()?;
                self.engine.targets().has_followed(self.engine.live().head().number);
                Ok(())
            }
            Leader::ConsensusClient => self.fill_gap(),
            Leader::Named(hash) => self.go_to(hash),
        }
    }

    /// Makes a block the head, once. Then a consensus client may lead.
    fn go_to(&self, hash: B256) -> Result<(), FollowError> {
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
                if !self.remote.is_there() {
                    return Ok(());
                }
                let header = self.header(hash)?;
                self.aim_at(header.number);
                self.fetch(hash, header)?;
            }
            self.lead(hash, None, None)?;
        }
        self.has_arrived.store(true, Ordering::Relaxed);
        tracing::info!(number = self.engine.live().head().number, %hash, "at the head that was named");
        self.aim_at(0);
        Ok(())
    }

    /// Fetches what is missing below the head that the consensus client wants, if it wants one.
    fn fill_gap(&self) -> Result<(), FollowError> {
        let Some(hash) = self.engine.wanted() else {
            self.aim_at(0);
            return Ok(());
        };
        if !self.remote.is_there() {
            return Ok(());
        }
        let header = self.header(hash)?;
        self.aim_at(header.number);
        let fetched = self.fetch(hash, header);
        if matches!(fetched, Err(FollowError::Fetch(_))) && self.engine.wanted().is_none() {
            // The blocks on the way became heads, with which the engine was content.
            self.engine.targets().want(hash, self.engine.live().head().number);
        }
        fetched
    }

    fn follow_remote(&self) -> Result<(), FollowError> {
        let (hash, header) = self.remote.tagged(BlockTag::Head)?;
        self.expect_hash(hash, &header)?;
        let live = self.engine.live();
        self.aim_at(header.number);
        let is_behind = live.view().and_then(|view| view.is_canonical(&hash));
        // A node behind ours, of several that share an address: ours does not go back for it.
        if is_behind.map_err(EngineError::from)? {
            return Ok(());
        }
        let number = header.number;
        self.fetch(hash, header)?;
        let named = |tag| match self.remote.tagged(tag) {
            // Chains without a consensus layer have none; the remote head may have moved meanwhile.
            Ok((hash, named)) if named.number <= number => Some(hash),
            _ => None,
        };
        self.lead(hash, named(BlockTag::Safe), named(BlockTag::Finalized))
    }

    /// Says how high the block is that is to become the head; 0 if none is.
    fn aim_at(&self, number: u64) {
        self.engine.targets().follow(number, self.engine.live().head().number);
    }

    /// Verifies the block of this hash and all that is missing below it.
    fn fetch(&self, hash: B256, header: Header) -> Result<(), FollowError> {
        let head = self.engine.live().head().number;
        let number = header.number;
        if number.saturating_sub(head) > BY_HASH {
            // The last blocks come by hash, whichever branch they are on then.
            match self.by_number(head + 1, number - BY_HASH, self.deep_below(number)) {
                // Another branch. The way down by hash shows where it leaves our chain, if that is not
                // too long.
                Err(FollowError::Apart { .. }) if number.saturating_sub(head) <= LONG_WAY => {}
                fetched => fetched?,
            }
        }
        self.fill_below(hash, header)
    }

    /// Number of the block below which nobody will want to go back, once `head` is reached: those up to
    /// it may have one root for many.
    fn deep_below(&self, head: u64) -> u64 {
        let states = self.engine.live().chain().states();
        if states.apply_runs() { head.saturating_sub(states.own().retention()) } else { 0 }
    }

    /// Blocks `from` to `to` of the remote node, as long as they follow our head. Those up to `deep` come
    /// in runs with one root, as long as there is a whole one.
    fn by_number(&self, from: u64, to: u64, deep: u64) -> Result<(), FollowError> {
        std::thread::scope(|scope| {
            let is_deep = |first: u64| first <= deep.min(to).saturating_sub(DEEP as u64 - 1);
            let room = if is_deep(from) { DEEP } else { AHEAD };
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
            let mut told = Told::new(from.saturating_sub(1));
            while let Ok(first) = blocks.recv() {
                told.tell(self.engine.live().head().number, to, self.remote.name());
                if first.as_ref().is_ok_and(|first| is_deep(first.number())) {
                    self.take_in(std::iter::once(first).chain(blocks.iter().take(DEEP - 1)), deep)?;
                } else {
                    self.take_in(std::iter::once(first).chain(blocks.try_iter().take(AHEAD)), 0)?;
                }
            }
            Ok(())
        })
    }

    /// Verifies blocks of ascending numbers and makes each the head, in runs as long as they go; with
    /// one root where they end at block `deep` or below it.
    fn take_in(
        &self,
        blocks: impl Iterator<Item = Result<PreparedBlock, FollowError>>,
        deep: u64,
    ) -> Result<(), FollowError> {
        let mut blocks = blocks.peekable();
        while let Some(first) = blocks.next() {
            let first = first?;
            let mut top = first.hash();
            if first.parent_hash() != self.engine.live().head().hash() {
                // Another branch than ours: by hash it is found where they part, some blocks below.
                self.fill_below(top, first.block().header().clone())?;
                self.lead(top, None, None)?;
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
            self.insert_run(run, deep)?;
        }
        Ok(())
    }

    /// Verifies a run of blocks on our head, each the child of the one before, and makes the last valid
    /// one the head.
    fn insert_run(&self, run: Vec<PreparedBlock>, deep: u64) -> Result<(), FollowError> {
        let names: Vec<_> = run.iter().map(|block| (block.number(), block.hash())).collect();
        let statuses = if names.last().is_some_and(|(last, _)| *last <= deep) {
            self.runtime.block_on(self.engine.new_deep_run(run))?
        } else {
            self.runtime.block_on(self.engine.new_run(run))?
        };
        let valid = statuses.iter().take_while(|status| status.is_valid()).count();
        if let Some((_, hash)) = valid.checked_sub(1).and_then(|last| names.get(last)) {
            self.end_troubles();
            self.lead(*hash, None, None)?;
        }
        for ((number, hash), status) in names.into_iter().zip(statuses) {
            self.expect_valid(number, hash, status)?;
        }
        Ok(())
    }

    /// Verifies the block of this hash and what is missing below it: down to a block that is known
    /// here by headers, and up again with the blocks.
    fn fill_below(&self, hash: B256, header: Header) -> Result<(), FollowError> {
        let live = self.engine.live();
        let retained = live.chain().state().retained();
        // The state cannot be taken back below this one, and nobody leaves genesis.
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
                self.tell_apart(&missing);
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

    /// Says that the blocks of these hashes and numbers, the head first, are on a branch that leaves our
    /// chain further down than the state can be taken back, if it is the consensus client that wants it, or
    /// who has started the node: each header is the parent of the one before, down from the head that was
    /// named.
    fn tell_apart(&self, blocks: &[(B256, u64)]) {
        let Some((head, _)) = blocks.first() else { return };
        if Some(*head) != self.engine.wanted() && self.config.leader != Leader::Named(*head) {
            return;
        }
        let state = self.engine.live().chain().state();
        let first_retained = state.retained().map_or(0, |kept| *kept.start());
        let lowest = blocks.last().map_or(0, |(_, number)| *number);
        let (fork, retention) = (lowest.saturating_sub(1), state.retention());
        self.engine.is_too_deep(blocks, DeepBranch { fork, first_retained, retention });
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
        // A node that has days to catch up gets on, whatever failed before.
        self.end_troubles();
        Ok(())
    }

    fn end_troubles(&self) {
        if self.troubles.end() {
            tracing::info!("following {} again", self.remote.name());
        }
    }

    fn lead(
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
