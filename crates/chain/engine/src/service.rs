//! The engine's thread: the one place that changes the chain.
//!
//! ```text
//!  Engine API, builder, follower --commands--> thread `engine`: BlockTree, forkchoice,
//!                                                   |            invalid blocks
//!                                                   |               |
//!                                              `import-commit`   publishes `ChainSnapshot`s
//!                                                                 (LiveChain)
//! ```
//!
//! Verification runs on this thread, one block at a time; checks that need no state (hashes,
//! signatures) are done before a block gets here. In a batch of blocks the roots are computed on
//! other threads. Blocks behind the head become durable in the background.

mod batch;
mod dev;
mod forkchoice;

use crate::{
    BlockSyncWait, DeepBranch, EngineError,
    deep_branch::DeepBlocks,
    invalid_blocks::{BadBlocks, InvalidBlockCache},
    live::{ChainSnapshot, LiveChain},
    orphans::OrphanBlocks,
    status::{HeadTargets, SyncProgress},
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_pipeline::{
    BlockTree, ChainStore, ExecutedBlock, HeadChange, PipelineError, PreparedBlock, StatePatch,
};
use retrie_state::BlockRef;
use retrie_telemetry::Metrics;
use std::{fmt, sync::Arc, thread::JoinHandle, time::Duration};
use tokio::sync::oneshot;
use tracing::Span;

/// Configuration of the engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// A commit starts when more canonical blocks than this are in memory
    /// (`--engine.persistence-threshold`).
    pub persistence_threshold: u64,
    /// Canonical blocks that a commit leaves in memory (`--engine.memory-block-buffer-target`): a
    /// reorg among them needs no disk access.
    pub memory_blocks: u64,
    /// Whether transactions of blocks that come with a block access list (EIP-7928) are executed in
    /// parallel (`--engine.parallel-execution`). Default: if there is more than one core.
    pub parallel_execution: bool,
    /// Whether this is a dev chain. Its user's pending state changes survive a restart.
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

/// Side blocks more than this many blocks below the head are dropped from memory.
const SIDE_BLOCK_DEPTH: u64 = 256;
/// Largest number of threads that execute the transactions of a block.
const MAX_EXECUTION_THREADS: usize = 16;
/// Time between two checks of a running commit.
const COMMIT_POLL: Duration = Duration::from_millis(5);

type ReplySender<T> = oneshot::Sender<Result<T, EngineError>>;

enum EngineCommand {
    NewBlock(Box<PreparedBlock>, ReplySender<PayloadStatus>),
    NewBatch(Vec<PreparedBlock>, BatchDepth, ReplySender<Vec<PayloadStatus>>),
    Rejected(RejectedBlock, ReplySender<PayloadStatus>),
    Forkchoice(ForkchoiceState, ReplySender<ForkchoiceOutcome>),
    SetHead(B256, ReplySender<()>),
    Built(Arc<ExecutedBlock>),
    Patch(Option<Arc<StatePatch>>, ReplySender<()>),
    Flush(ReplySender<()>),
    Stop,
}

/// A command, and the span that its work is a part of.
struct SentCommand {
    command: EngineCommand,
    span: Span,
}

impl SentCommand {
    fn new(command: EngineCommand) -> Self {
        Self { command, span: Span::current() }
    }
}

/// How deep the blocks of a batch lie below the head that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchDepth {
    /// Anywhere.
    Any,
    /// Deeper than the retention depth.
    Deep,
}

/// A block that is invalid without regard to state.
#[derive(Clone, Debug)]
pub(crate) struct RejectedBlock {
    /// Hash of the block.
    pub hash: B256,
    /// Hash of its parent.
    pub parent: B256,
    /// The rule it breaks.
    pub reason: String,
    /// The block, if the senders of its transactions are known.
    pub block: Option<Arc<RecoveredBlock>>,
}

/// The result of a forkchoice update.
#[derive(Clone, Debug)]
pub struct ForkchoiceOutcome {
    /// As in the answer of `engine_forkchoiceUpdated`.
    pub status: PayloadStatus,
    /// The head, if it is the requested one: a payload may be built on it.
    pub head: Option<SealedHeader>,
}

/// Sends commands to the engine's thread. Cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<SentCommand>,
    live: LiveChain,
    targets: HeadTargets,
    deep: DeepBlocks,
    bad_blocks: BadBlocks,
    trouble: LastError,
}

/// Why the last block could not be verified, if the reason is not the block itself.
type LastError = Arc<Mutex<Option<String>>>;

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("live", &self.live).finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// The chain that the engine changes.
    pub const fn live(&self) -> &LiveChain {
        &self.live
    }

    /// Verifies a block and inserts it into the block tree. The head stays.
    ///
    /// # Errors
    /// If the engine has ended or failed; an invalid block is no error.
    pub async fn new_block(&self, block: PreparedBlock) -> Result<PayloadStatus, EngineError> {
        self.ask(|reply| EngineCommand::NewBlock(Box::new(block), reply)).await
    }

    /// Verifies a batch of blocks, each the child of the one before, and inserts them into the
    /// block tree. A block is executed while the root of the one before is computed. The head
    /// stays.
    ///
    /// Returns the status of each block up to the first that is not valid. Later blocks are not
    /// verified.
    ///
    /// # Errors
    /// As [`new_block`](Self::new_block).
    pub(crate) async fn new_batch(
        &self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        self.ask(|reply| EngineCommand::NewBatch(blocks, BatchDepth::Any, reply)).await
    }

    /// Like [`new_batch`](Self::new_batch), for blocks that lie below the future head by more than
    /// the retention depth. If they build on the head, and the stores [apply
    /// batches](retrie_pipeline::StoreSet::applies_batches), one root is computed for all of them, the
    /// last one's ([what that checks](retrie_pipeline::RootCheckMode::Batch)). The last block then is
    /// the durable head, and the chain cannot be set back below it.
    ///
    /// # Errors
    /// As [`new_block`](Self::new_block).
    pub(crate) async fn new_deep_batch(
        &self,
        blocks: Vec<PreparedBlock>,
    ) -> Result<Vec<PayloadStatus>, EngineError> {
        self.ask(|reply| EngineCommand::NewBatch(blocks, BatchDepth::Deep, reply)).await
    }

    /// Reports a block that is invalid without regard to state, so that its descendants are refused
    /// too.
    ///
    /// # Errors
    /// If the engine has ended or failed.
    pub(crate) async fn reject(&self, block: RejectedBlock) -> Result<PayloadStatus, EngineError> {
        self.ask(|reply| EngineCommand::Rejected(block, reply)).await
    }

    /// The latest invalid blocks, the newest first.
    pub fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        self.bad_blocks.all()
    }

    /// Makes a block the head, and sets the safe and the finalized block.
    ///
    /// # Errors
    /// [`EngineError::InvalidForkchoice`], [`EngineError::ZeroHead`] and
    /// [`EngineError::TooDeepReorg`], with nothing changed; or if the engine has ended or failed.
    pub async fn forkchoice(
        &self,
        state: ForkchoiceState,
    ) -> Result<ForkchoiceOutcome, EngineError> {
        self.ask(|reply| EngineCommand::Forkchoice(state, reply)).await
    }

    /// Sets the head back to a canonical block (`debug_setHead`). A safe or finalized block above
    /// it is lowered to it. As in geth, the transactions of the removed blocks do not return to the
    /// pool, since the operator wants to remove them. The blocks stay known, so that a consensus
    /// client can make one of them the head again. This is for the operator; a consensus client
    /// uses [`forkchoice`](Self::forkchoice).
    ///
    /// # Errors
    /// [`EngineError::NotCanonical`], or [`EngineError::TooDeepReorg`], which names the limit; both
    /// with nothing changed. Also if the engine has ended or failed.
    pub async fn set_head(&self, hash: B256) -> Result<(), EngineError> {
        self.ask(|reply| EngineCommand::SetHead(hash, reply)).await
    }

    /// Inserts a block that was built here into the block tree.
    pub fn built(&self, block: Arc<ExecutedBlock>) {
        // It fails only if the engine has ended, which then needs no block.
        let _ = self.commands.send(SentCommand::new(EngineCommand::Built(block)));
    }

    /// Sets the patch of the head's state, which holds until the head changes: for dev chains.
    pub(crate) async fn patch(&self, patch: Option<Arc<StatePatch>>) -> Result<(), EngineError> {
        self.ask(|reply| EngineCommand::Patch(patch, reply)).await
    }

    /// Makes the whole canonical chain durable.
    ///
    /// # Errors
    /// If the commit fails.
    pub async fn flush(&self) -> Result<(), EngineError> {
        self.ask(EngineCommand::Flush).await
    }

    /// The head that the consensus client has named and that is unknown here.
    pub fn wanted_head(&self) -> Option<B256> {
        self.targets.wanted()
    }

    /// Why the last block was not verified, if the reason lies in this node: the disk, or a failed
    /// background job of the state store. Stored data can still be read.
    pub fn last_error(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Progress of block sync, if the node is behind.
    pub fn syncing(&self) -> Option<SyncProgress> {
        self.targets.progress(self.live.head().number)
    }

    /// What the node waits for, if it is behind.
    pub fn waiting(&self) -> Option<BlockSyncWait> {
        self.targets.wait(self.live.head().number)
    }

    /// Time since the last call of the consensus client; `None` if there was none.
    pub fn time_since_consensus_call(&self) -> Option<Duration> {
        self.targets.time_since_client_call()
    }

    /// Reports that the head which the consensus client wants, and the blocks below it with these
    /// hashes and numbers (the head first), are on a deep branch, which cannot be executed here.
    pub(crate) fn report_deep_branch(&self, blocks: &[(B256, u64)], branch: DeepBranch) {
        // The head is inserted last, since the oldest entries are dropped first.
        for (hash, number) in blocks.iter().rev() {
            self.deep.insert(*hash, *number, branch);
        }
        if let Some((hash, number)) = blocks.first() {
            self.targets.set_deep(*hash, *number, branch, self.live.head().number);
        }
    }

    /// The heads that the consensus client or the follower want.
    pub(crate) const fn targets(&self) -> &HeadTargets {
        &self.targets
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(ReplySender<T>) -> EngineCommand,
    ) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        let command = SentCommand::new(command(reply));
        self.commands.send(command).map_err(|_| EngineError::Stopped)?;
        answer.await.map_err(|_| EngineError::Stopped)?
    }
}

/// The running engine. Dropping it makes everything canonical durable and stops the thread.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl Engine {
    /// Starts the engine on the durable head of an open datadir.
    ///
    /// # Errors
    /// If the database fails or the thread cannot be started.
    pub fn start(
        chain: Arc<ChainStore>,
        config: EngineConfig,
        metrics: Metrics,
    ) -> Result<Self, EngineError> {
        let live = LiveChain::start(chain, config.is_dev)?;
        let (commands, inbox) = unbounded();
        let targets = HeadTargets::default();
        let (deep, bad_blocks) = (DeepBlocks::default(), BadBlocks::default());
        let trouble = LastError::default();
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
                    let mut tree = BlockTree::new(&chain, false, codes, metrics, scope)?;
                    if config.parallel_execution {
                        tree.execute_on(cores().clamp(2, MAX_EXECUTION_THREADS));
                    }
                    let ((safe, finalized), patch) = (live.safe_and_finalized(), live.patch());
                    let service = EngineLoop {
                        tree,
                        config,
                        live,
                        targets,
                        safe,
                        finalized,
                        orphans: OrphanBlocks::default(),
                        deep,
                        rejected: InvalidBlockCache::default(),
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

    /// A handle to the engine.
    pub const fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Whether the thread is alive. It ends by itself if a commit fails.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the engine once everything canonical is durable.
    ///
    /// # Errors
    /// If the last commits fail, or the error that ended the engine before.
    pub fn stop(mut self) -> Result<(), EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // It fails if the thread has ended by itself.
        let _ = self.handle.commands.send(SentCommand::new(EngineCommand::Stop));
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

struct EngineLoop<'a> {
    tree: BlockTree<'a>,
    config: EngineConfig,
    live: LiveChain,
    targets: HeadTargets,
    safe: Option<BlockRef>,
    finalized: Option<BlockRef>,
    orphans: OrphanBlocks,
    deep: DeepBlocks,
    rejected: InvalidBlockCache,
    bad_blocks: BadBlocks,
    trouble: LastError,
    /// Patch of the head's state (dev chains).
    patch: Option<Arc<StatePatch>>,
}

impl EngineLoop<'_> {
    fn run(mut self, inbox: &Receiver<SentCommand>) -> Result<(), EngineError> {
        self.delete_stale_note();
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
            let (command, span) = command.map(|sent| (sent.command, sent.span)).unzip();
            let entered = span.as_ref().map(Span::enter);
            match command {
                Some(EngineCommand::Stop) => break,
                Some(command) => self.serve(command),
                None => {}
            }
            // The caller has its answer.
            drop(entered);
            drop(span);
            self.persist()?;
        }
        self.tree.flush()?;
        self.publish(None);
        Ok(())
    }

    fn serve(&mut self, command: EngineCommand) {
        // Sending a reply fails if the caller has stopped waiting, and may be ignored.
        match command {
            EngineCommand::NewBlock(block, reply) => drop(reply.send(self.new_block(*block))),
            EngineCommand::NewBatch(blocks, BatchDepth::Any, reply) => {
                drop(reply.send(self.new_batch(blocks)))
            }
            EngineCommand::NewBatch(blocks, BatchDepth::Deep, reply) => {
                drop(reply.send(self.new_deep_batch(blocks)));
            }
            EngineCommand::Rejected(block, reply) => drop(reply.send(self.reject(block))),
            EngineCommand::Forkchoice(state, reply) => drop(reply.send(self.forkchoice(state))),
            EngineCommand::SetHead(hash, reply) => drop(reply.send(self.set_head_back(hash))),
            EngineCommand::Built(block) => self.add_built(block),
            EngineCommand::Patch(patch, reply) => {
                let noted = self.set_patch(patch);
                self.publish(None);
                drop(reply.send(noted));
            }
            EngineCommand::Flush(reply) => {
                let flushed = self.tree.flush().map_err(EngineError::from);
                self.publish(None);
                drop(reply.send(flushed));
            }
            EngineCommand::Stop => {}
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
        if let Some(status) = self.rejected.reject_descendant(hash, parent) {
            return Ok(status);
        }
        if self.tree.header(&parent)?.is_none() {
            if let Some((_, branch)) = self.deep.get(&parent) {
                return Ok(self.accept_deep(hash, block.number(), branch));
            }
            self.targets.note_orphan(block.number());
            self.orphans.insert(block);
            return Ok(PayloadStatus::from_status(PayloadStatusEnum::Syncing));
        }
        let status = self.insert(block)?;
        if status.is_valid() {
            self.insert_orphans_of(hash)?;
        }
        self.publish(None);
        Ok(status)
    }

    fn add_built(&mut self, block: Arc<ExecutedBlock>) {
        let hash = block.block().hash();
        // The consensus client may have sent the block before, as a new payload, and it may be
        // durable by now. A block that is stored and not canonical was built again after the head
        // was set back: its state is in memory, so it needs no second execution.
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

    /// Whether a block was found valid, now or before it was stored.
    fn is_verified(&self, hash: &B256) -> Result<bool, PipelineError> {
        Ok(self.tree.header(hash)?.is_some())
    }

    fn insert(&mut self, block: PreparedBlock) -> Result<PayloadStatus, EngineError> {
        let whole = block.block().clone();
        let outcome = self.tree.insert(block);
        self.record_outcome(&whole, outcome)
    }

    /// The payload status of a verified block; records an invalid or failed one.
    fn record_outcome(
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
                    let fork = self.common_ancestor_number(parent)?.unwrap_or(branch.fork);
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

    /// Remembers a block whose parent's state is gone, and the orphans above it, as parts of a deep
    /// branch. They cannot be verified unless the chain is built again from further down.
    fn accept_deep(&mut self, hash: B256, number: u64, branch: DeepBranch) -> PayloadStatus {
        tracing::debug!(number, %hash, ?branch, "a block stands on a state that is no longer kept");
        self.deep.insert(hash, number, branch);
        for above in self.orphans.take_descendants(&hash) {
            self.deep.insert(above.hash(), above.number(), branch);
        }
        PayloadStatus::from_status(PayloadStatusEnum::Accepted)
    }

    /// Verifies the orphans that wait for `hash`, and their descendants.
    fn insert_orphans_of(&mut self, hash: B256) -> Result<(), EngineError> {
        let mut parents = vec![hash];
        while let Some(parent) = parents.pop() {
            for child in self.orphans.take_children(&parent) {
                let hash = child.hash();
                let is_refused = self.rejected.reject_descendant(hash, parent).is_some();
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
        if let Some(status) = self.rejected.reject_descendant(hash, parent) {
            return Ok(status);
        }
        // The Engine API requires a zero hash where the last valid ancestor is a proof-of-work
        // block.
        let latest_valid = match self.tree.header(&parent)? {
            Some(header) if self.live.spec().is_pos(&header) || header.number == 0 => Some(parent),
            Some(_) => Some(B256::ZERO),
            None => None,
        };
        self.rejected.insert(hash, latest_valid, reason);
        for child in self.orphans.take_descendants(&hash) {
            self.rejected.reject_descendant(child.hash(), child.parent_hash());
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
        let moment = ChainSnapshot::of(&self.tree, self.safe, self.finalized, self.patch.clone());
        self.live.publish(moment, change);
    }
}

/// The deep branch of an error, if the cause is a state that is gone.
const fn deep_branch(error: &PipelineError) -> Option<DeepBranch> {
    match error {
        PipelineError::State(error) => DeepBranch::of(error),
        _ => None,
    }
}

fn valid(hash: B256) -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash))
}
