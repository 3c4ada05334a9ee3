//! The engine's thread: the one place that changes the chain.
//!
//! ```text
//!  Engine API, builder, follower --commands--> thread `engine`: Tree, forkchoice, invalid blocks
//!                                                   |               |
//!                                              `import-commit`   publishes moments (LiveChain)
//! ```
//!
//! Verification runs on this thread, one block at a time; what needs no state (hashes, signatures)
//! is done before a block comes here. The roots of a run of blocks are computed beside it. Blocks
//! behind the head become durable in the background.

mod dev;
mod forkchoice;
mod run;

use crate::{
    DeepBranch, EngineError, SyncWait,
    deep::DeepBlocks,
    live::{LiveChain, Moment},
    orphans::Orphans,
    rejected::{BadBlocks, Rejected},
    status::{SyncProgress, SyncTargets},
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_pipeline::{
    Chain, ExecutedBlock, HeadChange, PipelineError, PreparedBlock, StatePatch, Tree,
};
use retrie_state::BlockRef;
use retrie_telemetry::Metrics;
use std::{fmt, sync::Arc, thread::JoinHandle, time::Duration};
use tokio::sync::oneshot;

/// How the engine behaves.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Canonical blocks in memory beyond which a commit is started (`--engine.persistence-threshold`).
    pub persistence_threshold: u64,
    /// Canonical blocks that stay in memory then (`--engine.memory-block-buffer-target`): a reorg
    /// among them touches no disk.
    pub memory_blocks: u64,
    /// Whether transactions of blocks that come with their access lists (EIP-7928) are executed in
    /// parallel (`--engine.parallel-execution`); unless something else is said, where there is more than
    /// one core.
    pub parallel_execution: bool,
    /// Whether this is a dev chain, whose user's pending changes come back with a restart.
    pub is_dev: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let parallel_execution = cores() > 1;
        Self { persistence_threshold: 2, memory_blocks: 0, parallel_execution, is_dev: false }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Side blocks this far below the head are dropped from memory.
const SIDE_BLOCK_DEPTH: u64 = 256;
/// Threads that execute the transactions of a block, at most.
const MOST_EXECUTION_THREADS: usize = 16;
/// While a commit is under way the engine looks after it this often.
const COMMIT_POLL: Duration = Duration::from_millis(5);

type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

enum Command {
    NewBlock(Box<PreparedBlock>, Reply<PayloadStatus>),
    NewRun(Vec<PreparedBlock>, Depth, Reply<Vec<PayloadStatus>>),
    Rejected(RejectedBlock, Reply<PayloadStatus>),
    Forkchoice(ForkchoiceState, Reply<ForkchoiceOutcome>),
    SetHead(B256, Reply<()>),
    Built(Arc<ExecutedBlock>),
    Patch(Option<Arc<StatePatch>>, Reply<()>),
    Flush(Reply<()>),
    Stop,
}

/// Where the blocks of a run lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Anywhere.
    Any,
    /// Deeper below what they lead to than states are retained.
    Deep,
}

/// A block that is invalid by itself.
#[derive(Clone, Debug)]
pub struct RejectedBlock {
    /// Its hash.
    pub hash: B256,
    /// Hash of its parent.
    pub parent: B256,
    /// The rule it breaks.
    pub reason: String,
    /// The block, if the senders of its transactions are known.
    pub block: Option<Arc<RecoveredBlock>>,
}

/// What a forkchoice update came to.
#[derive(Clone, Debug)]
pub struct ForkchoiceOutcome {
    /// As in the answer of `engine_forkchoiceUpdated`.
    pub status: PayloadStatus,
    /// The head, if it is the one asked for: a payload may be built on it.
    pub head: Option<SealedHeader>,
}

/// Talks to the engine's thread. Cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    live: LiveChain,
    targets: SyncTargets,
    deep: DeepBlocks,
    bad_blocks: BadBlocks,
    trouble: Trouble,
}

/// Why the last block was not verified, if the reason is not the block's.
type Trouble = Arc<Mutex<Option<String>>>;

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("live", &self.live).finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// The chain that the engine moves.
    pub const fn live(&self) -> &LiveChain {
        &self.live
    }

    /// Verifies a block and puts it into the tree. The head stays.
    ///
    /// # Errors
    /// If the engine has ended or failed; an invalid block is no error.
    pub async fn new_block(&self, block: PreparedBlock) -> Result<PayloadStatus, EngineError> {
        self.ask(|reply| Command::NewBlock(Box::new(block), reply)).await
    }

    /// Verifies a run of blocks, each the child of the one before, and puts them into the tree: a
    /// block is executed while the root of the one before is computed. The head stays.
    ///
    /// Returns the status of each, up to the first that is not valid. What follows that was not
    /// looked at.
    ///
    /// # Errors
    /// As [`new_block`](Self::new_block).
    pub async fn new_run(
        &self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        self.ask(|reply| Command::NewRun(blocks, Depth::Any, reply)).await
    }

    /// The same for blocks that lie deeper below what they lead to than states are retained. If they
    /// stand on the head, and the states [apply runs](retrie_pipeline::States::apply_runs), they have
    /// one root for all, that of the last ([what that checks](retrie_pipeline::CheckRoots::Batch)); the
    /// last one then is the head, durable, and the chain cannot be taken back below it.
    ///
    /// # Errors
    /// As [`new_block`](Self::new_block).
    pub async fn new_deep_run(
        &self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        self.ask(|reply| Command::NewRun(blocks, Depth::Deep, reply)).await
    }

    /// Tells of a block that is invalid by itself, so that its descendants are refused too.
    ///
    /// # Errors
    /// If the engine has ended or failed.
    pub async fn reject(&self, block: RejectedBlock) -> Result<PayloadStatus, EngineError> {
        self.ask(|reply| Command::Rejected(block, reply)).await
    }

    /// The invalid blocks that came last, the newest first.
    pub fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        self.bad_blocks.all()
    }

    /// Makes a block the head, and says which are safe and final.
    ///
    /// # Errors
    /// [`EngineError::InvalidForkchoice`], [`EngineError::ZeroHead`] and
    /// [`EngineError::TooDeepReorg`], before anything is changed; if the engine has ended or failed.
    pub async fn forkchoice(
        &self,
        state: ForkchoiceState,
    ) -> Result<ForkchoiceOutcome, EngineError> {
        self.ask(|reply| Command::Forkchoice(state, reply)).await
    }

    /// Takes the chain back to a canonical block, whatever is safe or final: these are lowered to it.
    /// The transactions of the blocks that go do not come back into the pool, as in geth: they are
    /// what somebody wants to be rid of. The blocks stay known, so that a consensus client may make
    /// one of them the head again. For whoever runs the node, not for a consensus client: that has
    /// [`forkchoice`](Self::forkchoice).
    ///
    /// # Errors
    /// [`EngineError::NotCanonical`]; [`EngineError::TooDeepReorg`], which names the limit; both
    /// before anything is changed. If the engine has ended or failed.
    pub async fn set_head(&self, hash: B256) -> Result<(), EngineError> {
        self.ask(|reply| Command::SetHead(hash, reply)).await
    }

    /// Puts a block into the tree that was built here.
    pub fn built(&self, block: Arc<ExecutedBlock>) {
        // An engine that has ended needs no blocks.
        let _ = self.commands.send(Command::Built(block));
    }

    /// Changes what is read of the head's state, until the head changes: for dev chains.
    pub(crate) async fn patch(&self, patch: Option<Arc<StatePatch>>) -> Result<(), EngineError> {
        self.ask(|reply| Command::Patch(patch, reply)).await
    }

    /// Makes the whole canonical chain durable.
    ///
    /// # Errors
    /// Those of the commit.
    pub async fn flush(&self) -> Result<(), EngineError> {
        self.ask(Command::Flush).await
    }

    /// The head that the consensus client wants and nobody here knows.
    pub fn wanted(&self) -> Option<B256> {
        self.targets.wanted()
    }

    /// Why the last block that came was not verified, if the reason is ours: the disk, or work of the state
    /// store in the background that failed. What is stored can be read all the same.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// How far the chain has come, if it is behind.
    pub fn syncing(&self) -> Option<SyncProgress> {
        self.targets.progress(self.live.head().number)
    }

    /// What the node waits for, if it is behind.
    pub fn waiting(&self) -> Option<SyncWait> {
        self.targets.wait(self.live.head().number)
    }

    /// How long the consensus client has not called; `None` if it never has.
    pub fn consensus_silence(&self) -> Option<Duration> {
        self.targets.client_silence()
    }

    /// The head that the consensus client wants, and the blocks of these hashes and numbers below it, are
    /// on a branch that cannot be executed here.
    pub(crate) fn is_too_deep(&self, blocks: &[(B256, u64)], branch: DeepBranch) {
        // The oldest are forgotten first, and the head shall not be.
        for (hash, number) in blocks.iter().rev() {
            self.deep.insert(*hash, *number, branch);
        }
        if let Some((hash, number)) = blocks.first() {
            self.targets.too_deep(*hash, *number, branch, self.live.head().number);
        }
    }

    /// The heads that others have named.
    pub(crate) const fn targets(&self) -> &SyncTargets {
        &self.targets
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| EngineError::Stopped)?;
        answer.await.map_err(|_| EngineError::Stopped)?
    }
}

/// The running engine. Dropping it stops the thread, after everything canonical is durable.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl Engine {
    /// Starts the engine on the durable head of an open datadir.
    ///
    /// # Errors
    /// If the database or the thread fail to start.
    pub fn start(
        chain: Arc<Chain>,
        config: EngineConfig,
        metrics: Metrics,
    ) -> Result<Self, EngineError> {
        let live = LiveChain::start(chain, config.is_dev)?;
        let (commands, inbox) = unbounded();
        let targets = SyncTargets::default();
        let (deep, bad_blocks) = (DeepBlocks::default(), BadBlocks::default());
        let trouble = Trouble::default();
        let handle = EngineHandle {
            commands,
            live: live.clone(),
            targets: targets.clone(),
            deep: deep.clone(),
            bad_blocks: bad_blocks.clone(),
            trouble: trouble.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || {
                let chain = live.chain().clone();
                std::thread::scope(|scope| {
                    let codes = live.codes().clone();
                    let mut tree = Tree::new(&chain, false, codes, metrics, scope)?;
                    if config.parallel_execution {
                        tree.execute_on(cores().clamp(2, MOST_EXECUTION_THREADS));
                    }
                    let ((safe, finalized), patch) = (live.named(), live.patch());
                    let service = Service {
                        tree,
                        config,
                        live,
                        targets,
                        safe,
                        finalized,
                        orphans: Orphans::default(),
                        deep,
                        rejected: Rejected::default(),
                        bad_blocks,
                        trouble,
                        patch,
                    };
                    service.run(&inbox)
                })
            })
            .map_err(EngineError::Thread)?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// A handle to it.
    pub const fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Whether the thread is alive: it ends by itself if a commit fails.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the engine once everything canonical is durable.
    ///
    /// # Errors
    /// Those of the last commits, or what ended the engine before.
    pub fn stop(mut self) -> Result<(), EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // It may have ended by itself.
        let _ = self.handle.commands.send(Command::Stop);
        thread.join().map_err(|_| EngineError::Panicked)?
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("the engine failed: {error}");
        }
    }
}

struct Service<'a> {
    tree: Tree<'a>,
    config: EngineConfig,
    live: LiveChain,
    targets: SyncTargets,
    safe: Option<BlockRef>,
    finalized: Option<BlockRef>,
    orphans: Orphans,
    deep: DeepBlocks,
    rejected: Rejected,
    bad_blocks: BadBlocks,
    trouble: Trouble,
    /// Of the head's state.
    patch: Option<Arc<StatePatch>>,
}

impl Service<'_> {
    fn run(mut self, inbox: &Receiver<Command>) -> Result<(), EngineError> {
        self.forget_stale_patch();
        loop {
            let command = if self.tree.is_committing() {
                match inbox.recv_timeout(COMMIT_POLL) {
                    Ok(command) => Some(command),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            } else {
                match inbox.recv() {
                    Ok(command) => Some(command),
                    Err(_) => break,
                }
            };
            match command {
                Some(Command::Stop) => break,
                Some(command) => self.serve(command),
                None => {}
            }
            self.persist()?;
        }
        self.tree.flush()?;
        self.publish(None);
        Ok(())
    }

    fn serve(&mut self, command: Command) {
        // Whoever asked may have given up waiting: then nobody needs the answer.
        match command {
            Command::NewBlock(block, reply) => drop(reply.send(self.new_block(*block))),
            Command::NewRun(blocks, Depth::Any, reply) => drop(reply.send(self.new_run(blocks))),
            Command::NewRun(blocks, Depth::Deep, reply) => {
                drop(reply.send(self.new_deep_run(blocks)));
            }
            Command::Rejected(block, reply) => drop(reply.send(self.reject(block))),
            Command::Forkchoice(state, reply) => drop(reply.send(self.forkchoice(state))),
            Command::SetHead(hash, reply) => drop(reply.send(self.go_back(hash))),
            Command::Built(block) => self.add_built(block),
            Command::Patch(patch, reply) => {
                let noted = self.set_patch(patch);
                self.publish(None);
                drop(reply.send(noted));
            }
            Command::Flush(reply) => {
                let flushed = self.tree.flush().map_err(EngineError::from);
                self.publish(None);
                drop(reply.send(flushed));
            }
            Command::Stop => {}
        }
    }

    // -- blocks -----------------------------------------------------------------------------------

    fn new_block(&mut self, block: PreparedBlock) -> Result<PayloadStatus, EngineError> {
        let (hash, parent) = (block.hash(), block.parent_hash());
        if let Some(status) = self.rejected.status(&hash) {
            return Ok(status);
        }
        if self.is_verified(&hash)? {
            return Ok(valid(hash));
        }
        if let Some(status) = self.rejected.descendant(hash, parent) {
            return Ok(status);
        }
        if self.tree.header(&parent)?.is_none() {
            if let Some((_, branch)) = self.deep.get(&parent) {
                return Ok(self.accept_deep(hash, block.number(), branch));
            }
            self.targets.heard_of(block.number());
            self.orphans.insert(block);
            return Ok(PayloadStatus::from_status(PayloadStatusEnum::Syncing));
        }
        let status = self.insert(block)?;
        if status.is_valid() {
            self.adopt(hash)?;
        }
        self.publish(None);
        Ok(status)
    }

    fn add_built(&mut self, block: Arc<ExecutedBlock>) {
        let hash = block.block().hash();
        // It may have come back as a new payload before, and may be durable by now. One that is
        // stored and not canonical has been made again, after the head was taken back: its state is
        // at hand here, and needs no second execution.
        let is_here = self.tree.get(&hash).is_some();
        match self.tree.is_canonical(&hash) {
            Ok(is_canonical) if is_here || is_canonical => {}
            Ok(_) => {
                self.tree.add(block);
                self.publish(None);
            }
            Err(error) => tracing::error!(%hash, %error, "a block that was built here is lost"),
        }
    }

    /// Whether it was found valid, now or when it was stored.
    fn is_verified(&self, hash: &B256) -> Result<bool, PipelineError> {
        Ok(self.tree.header(hash)?.is_some())
    }

    fn insert(&mut self, block: PreparedBlock) -> Result<PayloadStatus, EngineError> {
        let whole = block.block().clone();
        let outcome = self.tree.insert(block);
        self.verdict(&whole, outcome)
    }

    /// What to say of a block that was verified.
    fn verdict(
        &mut self,
        block: &Arc<RecoveredBlock>,
        outcome: Result<Arc<ExecutedBlock>, PipelineError>,
    ) -> Result<PayloadStatus, EngineError> {
        let (number, hash, parent) = (block.number(), block.hash(), block.parent_hash());
        match outcome {
            Ok(_) => {
                *self.trouble.lock() = None;
                tracing::debug!(number, %hash, "valid block");
                Ok(valid(hash))
            }
            Err(error) if error.is_invalid_block() => {
                tracing::warn!(number, %hash, %error, "invalid block");
                let reason = error.to_string();
                self.reject(RejectedBlock { hash, parent, reason, block: Some(block.clone()) })
            }
            Err(error) => match deep_branch(&error) {
                Some(branch) => {
                    let fork = self.shared_below(parent)?.unwrap_or(branch.fork);
                    Ok(self.accept_deep(hash, number, DeepBranch { fork, ..branch }))
                }
                None => {
                    let error = error.in_block(number, hash);
                    tracing::error!("not verified, which is not the block's fault: {error}");
                    *self.trouble.lock() = Some(error.to_string());
                    Err(error.into())
                }
            },
        }
    }

    /// Takes note of a block whose parent's state is gone, and of those that have waited for it: they can
    /// be no part of the chain unless it is made again from further down.
    fn accept_deep(&mut self, hash: B256, number: u64, branch: DeepBranch) -> PayloadStatus {
        tracing::debug!(number, %hash, ?branch, "a block stands on a state that is no longer kept");
        self.deep.insert(hash, number, branch);
        for above in self.orphans.take_descendants(&hash) {
            self.deep.insert(above.hash(), above.number(), branch);
        }
        PayloadStatus::from_status(PayloadStatusEnum::Accepted)
    }

    /// Verifies the blocks that have waited for `hash`, and for those in turn.
    fn adopt(&mut self, hash: B256) -> Result<(), EngineError> {
        let mut parents = vec![hash];
        while let Some(parent) = parents.pop() {
            for child in self.orphans.take_children(&parent) {
                let hash = child.hash();
                let is_refused = self.rejected.descendant(hash, parent).is_some();
                if is_refused || self.is_verified(&hash)? || self.insert(child)?.is_valid() {
                    parents.push(hash);
                }
            }
        }
        Ok(())
    }

    fn reject(&mut self, block: RejectedBlock) -> Result<PayloadStatus, EngineError> {
        let RejectedBlock { hash, parent, reason, block } = block;
        if let Some(block) = block {
            self.bad_blocks.keep(block);
        }
        if let Some(status) = self.rejected.descendant(hash, parent) {
            return Ok(status);
        }
        // The Engine API wants zero where the last valid ancestor is a block of proof of work.
        let latest_valid = match self.tree.header(&parent)? {
            Some(header) if self.live.spec().is_pos(&header) || header.number == 0 => Some(parent),
            Some(_) => Some(B256::ZERO),
            None => None,
        };
        self.rejected.insert(hash, latest_valid, reason);
        for child in self.orphans.take_descendants(&hash) {
            self.rejected.descendant(child.hash(), child.parent_hash());
        }
        Ok(self.rejected.status(&hash).unwrap_or_else(|| {
            PayloadStatus::from_status(PayloadStatusEnum::Invalid {
                validation_error: String::new(),
            })
        }))
    }

    // -- persistence ------------------------------------------------------------------------------

    fn persist(&mut self) -> Result<(), EngineError> {
        let was_committing = self.tree.is_committing();
        if was_committing || self.tree.pending() as u64 > self.config.persistence_threshold {
            let before = self.tree.durable();
            let keep = if self.tree.pending() as u64 > self.config.persistence_threshold {
                usize::try_from(self.config.memory_blocks).unwrap_or(usize::MAX)
            } else {
                usize::MAX
            };
            self.tree.persist(keep)?;
            if self.tree.durable() != before {
                self.publish(None);
            }
        }
        Ok(())
    }

    fn publish(&self, change: Option<HeadChange>) {
        let moment = Moment::of(&self.tree, self.safe, self.finalized, self.patch.clone());
        self.live.publish(moment, change);
    }
}

/// The branch that an error is about, if that is of a state that is gone.
const fn deep_branch(error: &PipelineError) -> Option<DeepBranch> {
    match error {
        PipelineError::State(error) => DeepBranch::of(error),
        _ => None,
    }
}

fn valid(hash: B256) -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash))
}
