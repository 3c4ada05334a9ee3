//! `--follow`: blocks from another node's JSON-RPC, verified here.
//!
//! | thread | work | ends |
//! |---|---|---|
//! | `follow` | asks for the remote head, fetches what is missing below it, verifies it, makes it the head | when told to |
//!
//! Beside a consensus client it follows nobody: it then fills the gap below the head that the
//! consensus client has named and this node does not know.

use crate::{EngineError, EngineHandle};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use retrie_chainspec::primitives::Block;
use retrie_pipeline::{PreparedBlock, prepare};
use retrie_sources::{RpcClient, RpcError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Handle;

/// A gap that is larger is filled from below by number; a smaller one from above by hash, which
/// finds the branch in any case.
const BY_HASH: u64 = 64;
/// Blocks on the way between the network and the engine.
const AHEAD: usize = 16;

/// How long the node may take for its first answer before that is told.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// Who decides which block is the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// The remote node.
    Remote,
    /// A consensus client on the Engine API.
    ConsensusClient,
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
    Rpc(#[from] RpcError),
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
        /// Scheme and host of the node.
        endpoint: String,
        /// The rule it breaks.
        reason: String,
    },
    /// The remote node is on a chain that has left ours too far below.
    #[error(
        "{endpoint} has left our chain below block {number}, further down than the state can be \
         taken back: check that it is on the same chain"
    )]
    Apart {
        /// Number down to which the chains differ.
        number: u64,
        /// Scheme and host of the node.
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
    client: RpcClient,
    config: FollowConfig,
    runtime: Handle,
    stop: Arc<AtomicBool>,
}

impl Follower {
    /// A follower of the node behind `client`; it ends once `stop` is set. The engine is waited for
    /// on `runtime`.
    pub const fn new(
        engine: EngineHandle,
        client: RpcClient,
        config: FollowConfig,
        runtime: Handle,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self { engine, client, config, runtime, stop }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn start(self) -> Result<std::thread::JoinHandle<()>, EngineError> {
        std::thread::Builder::new()
            .name("follow".into())
            .spawn(move || self.run())
            .map_err(EngineError::Thread)
    }

    fn run(self) {
        // The client tries for a while before it gives up, but whoever has started the node shall
        // hear at once that there is nobody to follow.
        let first = self.client.hasty(FIRST_ANSWER).check_chain(self.engine.live().spec());
        if let Err(error) = &first {
            tracing::warn!(%error, "cannot follow yet, trying on");
        }
        let mut has_checked = first.is_ok();
        let mut has_failed = !has_checked;
        while !self.stop.load(Ordering::Relaxed) {
            let step = || {
                if !has_checked {
                    self.client.check_chain(self.engine.live().spec())?;
                }
                self.step()
            };
            match step() {
                Ok(()) => {
                    has_checked = true;
                    if std::mem::take(&mut has_failed) {
                        tracing::info!("following {} again", self.client.endpoint());
                    }
                }
                Err(FollowError::Stopped | FollowError::Engine(EngineError::Stopped)) => return,
                Err(error) => {
                    has_failed = true;
                    tracing::warn!(%error, "following");
                }
            }
            self.pause();
        }
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
            Leader::Remote => self.follow_remote(),
            Leader::ConsensusClient => {
                let wanted = *self.engine.wanted().borrow();
                wanted.map_or(Ok(()), |hash| self.fetch(self.client.block_by_hash(hash)?))
            }
        }
    }

    fn follow_remote(&self) -> Result<(), FollowError> {
        let (hash, header) = self.client.tagged("latest")?;
        let live = self.engine.live();
        let is_behind = live.view().and_then(|view| view.is_canonical(&hash));
        // A node behind ours, of several that share an address: ours does not go back for it.
        if is_behind.map_err(EngineError::from)? {
            return Ok(());
        }
        self.fetch(self.client.block_by_hash(hash)?)?;
        let named = |tag| match self.client.tagged(tag) {
            // Chains without a consensus layer have none; the remote head may have moved meanwhile.
            Ok((hash, named)) if named.number <= header.number => Some(hash),
            _ => None,
        };
        self.lead(hash, named("safe"), named("finalized"))
    }

    /// Verifies `block` and all that is missing below it.
    fn fetch(&self, block: Block) -> Result<(), FollowError> {
        let head = self.engine.live().head().number;
        let number = block.header.number;
        if number.saturating_sub(head) > BY_HASH {
            // The last blocks come by hash, whichever branch they are on then.
            self.by_number(head + 1, number - BY_HASH)?;
        }
        self.fill_below(block)
    }

    /// Blocks `from` to `to` of the remote node, as long as they follow our head.
    fn by_number(&self, from: u64, to: u64) -> Result<(), FollowError> {
        let live = self.engine.live();
        std::thread::scope(|scope| {
            let (send, blocks) = crossbeam_channel::bounded(AHEAD);
            scope.spawn(move || {
                for number in from..=to {
                    let block = self.refuse_if_stopped().and_then(|()| {
                        let block = self.client.block(number)?;
                        self.prepared(block)
                    });
                    let failed = block.is_err();
                    if send.send(block).is_err() || failed {
                        return;
                    }
                }
            });
            for block in blocks {
                let block = block?;
                let hash = block.hash();
                if block.parent_hash() == live.head().hash() {
                    self.insert(block)?;
                } else {
                    // Another branch than ours: by hash it is found where they part, some blocks
                    // below.
                    self.fill_below(block.block().clone_block())?;
                }
                self.lead(hash, None, None)?;
            }
            Ok(())
        })
    }

    /// Verifies `block` and what is missing below it, down to a block that is known here, from above
    /// by hash.
    fn fill_below(&self, block: Block) -> Result<(), FollowError> {
        let live = self.engine.live();
        let mut missing = Vec::new();
        let mut block = block;
        loop {
            self.refuse_if_stopped()?;
            let parent = block.header.parent_hash;
            let number = block.header.number;
            let is_known =
                live.view().and_then(|view| view.header(&parent)).map_err(EngineError::from)?;
            missing.push(block);
            if is_known.is_some() {
                break;
            }
            let head = live.head().number;
            if number <= 1 {
                let endpoint = self.client.endpoint().to_owned();
                return Err(FollowError::Apart { number, endpoint });
            }
            let retained = live.chain().state().retained();
            if retained.is_some_and(|kept| number <= *kept.start() && number <= head) {
                let endpoint = self.client.endpoint().to_owned();
                return Err(FollowError::Apart { number, endpoint });
            }
            block = self.client.block_by_hash(parent)?;
        }
        while let Some(block) = missing.pop() {
            self.refuse_if_stopped()?;
            self.insert(self.prepared(block)?)?;
        }
        Ok(())
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
        self.expect_valid(number, hash, status)
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
        self.expect_valid(block_number(&self.engine), head, outcome.status)
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
                Err(FollowError::Apart { number, endpoint: self.client.endpoint().to_owned() })
            }
            other => {
                let reason = other.validation_error().unwrap_or("its parent is unknown").to_owned();
                Err(self.invalid(number, hash, reason))
            }
        }
    }

    fn invalid(&self, number: u64, hash: B256, reason: String) -> FollowError {
        FollowError::Invalid { number, hash, endpoint: self.client.endpoint().to_owned(), reason }
    }
}

fn block_number(engine: &EngineHandle) -> u64 {
    engine.live().head().number
}
