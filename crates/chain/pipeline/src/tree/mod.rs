//! The block tree: verified blocks above the durable chain, and which of them are canonical.
//!
//! ```text
//!  block -> parent known? -> header against parent, ommers -> sessions on the parent -> execute
//!        -> receipts, bloom, gas | -> propose -> root -> a block of the tree, in memory
//!  head  -> a path through the tree; its blocks are committed in groups, on the thread
//!           `import-commit`, while the next ones execute
//! ```
//!
//! Every block is executed on its own parent, on whatever branch, as proposals cost nothing until
//! they are committed. A verification has two halves: the execution up to the delta, and the root
//! task. For a block by itself they follow each other. In a stream of blocks, the root tasks run
//! beside the execution of the next blocks, on the thread `import-root` ([`root_task`]). Blocks far
//! below the end of an import may be verified in [batches](batch) with one root. The caller decides
//! which block is the head: the importer's fork choice, or a consensus client.

mod bal;
mod batch;
mod commit;
mod driver;
mod prefetch;
mod root_hints;
mod root_task;
mod spans;
mod verify;

use crate::{BlockWithReceipts, ChainSetupError, ChainStore, ExecutedBlock, PipelineError};
use alloy_consensus::BlockHeader;
use alloy_primitives::{B256, Bytes, map::HashMap};
use commit::{CommitJob, CommitThread};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_consensus::ChainHead;
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::CodeCache;
use retrie_state::{BlockRef, StateError};
use retrie_telemetry::Metrics;
use root_task::RootTaskQueue;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use batch::MAX_BATCH_BLOCKS;
pub use driver::{BlockQueue, DriverStep, TreeDriver, TreeOwner};
pub use prefetch::PREFETCH_BLOCKS;
pub use root_task::AheadOutcome;

/// The highest canonical block, and the chain that ends with it.
#[derive(Clone, Debug)]
pub struct CanonicalHead {
    /// Its header.
    pub header: SealedHeader,
    /// Its height and total difficulty.
    pub chain: ChainHead,
}

impl CanonicalHead {
    fn durable(chain: &ChainStore, read: &ReadTxn) -> Result<Self, PipelineError> {
        let tip = chain.tip()?;
        let header = read
            .header(&tip.hash)?
            .ok_or_else(|| StateError::corrupt("Headers", format!("block {tip} is missing")))?;
        let chain = ChainHead {
            number: tip.number,
            hash: tip.hash,
            total_difficulty: read.total_difficulty(&tip.hash)?.unwrap_or_default(),
            is_pos: chain.spec.is_pos(&header),
        };
        Ok(Self { header: SealedHeader::new(header, tip.hash), chain })
    }

    /// Its number and hash.
    pub fn block(&self) -> BlockRef {
        BlockRef::new(self.header.number, self.header.hash())
    }
}

/// The changes that a new head has made.
#[derive(Clone, Debug)]
pub struct HeadChange {
    /// The new head.
    pub head: SealedHeader,
    /// Number of the last block that both chains share.
    pub ancestor: u64,
    /// Blocks that are no longer canonical, in ascending order.
    pub reverted: Vec<BlockWithReceipts>,
    /// Blocks that are now canonical, in ascending order; none if the head went back.
    pub committed: Vec<BlockWithReceipts>,
    /// Whether the operator dropped the reverted blocks. Their transactions do not return to the
    /// pool then.
    pub is_dropped: bool,
}

/// Times of verification, by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportTimes {
    /// EVM.
    pub execution: Duration,
    /// State reads of the EVM.
    pub reads: Duration,
    /// Roots and proposals, as far as the importing thread waited for them.
    pub authentication: Duration,
    /// The rest of this time: root tasks that ran while other blocks were executed.
    pub roots_aside: Duration,
    /// Commits, as far as the importing thread waited for them.
    pub commit_wait: Duration,
    /// Sender recovery and checks, on other threads.
    pub prepare: Duration,
}

/// What was verified since the tree was made, without blocks that were lost again. The metrics of
/// blocks, transactions, gas and seconds are counted at the same places, and nowhere else.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TreeCounts {
    pub(crate) blocks: u64,
    pub(crate) txs: u64,
    pub(crate) gas: u64,
    pub(crate) key_reads: u64,
    pub(crate) key_writes: u64,
    pub(crate) roots_checked: u64,
}

/// Canonical blocks, and batches, that were not given to a commit yet.
#[derive(Debug)]
struct PendingBlocks {
    blocks: Vec<Arc<ExecutedBlock>>,
    /// Number of these blocks, with all blocks of batches.
    count: usize,
    rows: usize,
    bytes: usize,
    since: Instant,
}

impl PendingBlocks {
    const fn new(since: Instant) -> Self {
        Self { blocks: Vec::new(), count: 0, rows: 0, bytes: 0, since }
    }

    fn push(&mut self, block: Arc<ExecutedBlock>) {
        if self.blocks.is_empty() {
            self.since = Instant::now();
        }
        self.count += block.batch_len();
        self.rows += block.states.rows();
        self.bytes += block.bytes();
        self.blocks.push(block);
    }

    /// Takes the entries from index `at` on.
    fn split_off(&mut self, at: usize) -> Vec<Arc<ExecutedBlock>> {
        let blocks = self.blocks.split_off(at);
        for block in &blocks {
            self.count -= block.batch_len();
            self.rows -= block.states.rows();
            self.bytes -= block.bytes();
        }
        blocks
    }
}

/// When canonical blocks are given to a commit.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    /// Once there are this many ...
    pub blocks: usize,
    /// ... or they write this many rows of state ...
    pub rows: usize,
    /// ... or take this many bytes with their logs ...
    pub bytes: usize,
    /// ... or the first of them is this old.
    pub time: Duration,
}

/// Verified blocks above the durable tip of one [`ChainStore`], and a head among them.
pub struct BlockTree<'a> {
    pub(crate) chain: &'a ChainStore,
    /// Whether receipts before Byzantium are checked, with a proposal per transaction.
    intermediate_roots: bool,
    /// Threads that execute transactions of blocks with a BAL.
    execution_threads: usize,
    pub(crate) metrics: Metrics,
    codes: Arc<CodeCache>,
    /// Blocks that are not durable yet, and side blocks not too far below the durable tip. Of a
    /// batch only the last block; it is canonical.
    blocks: HashMap<B256, Arc<ExecutedBlock>>,
    /// The other blocks of these batches.
    batch_blocks: HashMap<B256, Arc<RecoveredBlock>>,
    /// Codes that the blocks of the tree have created.
    block_codes: HashMap<B256, Bytes>,
    /// Canonical blocks of the running commit.
    in_flight: Vec<Arc<ExecutedBlock>>,
    /// Canonical blocks above these.
    pending: PendingBlocks,
    /// Notes to be written with the next commit.
    notes: HashMap<&'static str, Vec<u8>>,
    committer: CommitThread<'a>,
    /// Executed blocks that are not in the tree yet, as their roots are not known.
    ahead: RootTaskQueue<'a>,
    /// Blocks whose keys are prefetched before they are executed.
    prefetched: prefetch::PrefetchedBlocks,
    head: CanonicalHead,
    pub(crate) read: ReadTxn,
    pub(crate) times: ImportTimes,
    pub(crate) counts: TreeCounts,
}

impl std::fmt::Debug for BlockTree<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<'a> BlockTree<'a> {
    /// A tree on the durable head of `chain`. Commits, and the roots of blocks ahead, run on
    /// threads of `scope`.
    ///
    /// # Errors
    /// [`ChainSetupError::NoHeaderRoot`] if `intermediate_roots` is set and no store computes them.
    pub fn new<'scope>(
        chain: &'a ChainStore,
        intermediate_roots: bool,
        codes: Arc<CodeCache>,
        metrics: Metrics,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let mut stores = chain.states.stores();
        if intermediate_roots && !stores.any(|(store, _)| store.backend().profile().ethereum_root) {
            let backend = chain.state().identity().name;
            return Err(ChainSetupError::NoHeaderRoot { backend }.into());
        }
        let read = chain.db.begin_read()?;
        let head = CanonicalHead::durable(chain, &read)?;
        metrics.head.set(head.chain.number as i64);
        metrics.durable.set(head.chain.number as i64);
        Ok(Self {
            chain,
            intermediate_roots,
            execution_threads: 0,
            committer: CommitThread::start(chain, metrics.clone(), scope)?,
            ahead: RootTaskQueue::start(chain, scope)?,
            metrics,
            codes,
            blocks: HashMap::default(),
            batch_blocks: HashMap::default(),
            block_codes: HashMap::default(),
            in_flight: Vec::new(),
            pending: PendingBlocks::new(Instant::now()),
            notes: HashMap::default(),
            prefetched: prefetch::PrefetchedBlocks::new(),
            head,
            read,
            times: ImportTimes::default(),
            counts: TreeCounts::default(),
        })
    }

    /// From now on, transactions of blocks that come with a BAL (EIP-7928) are executed on
    /// `threads` threads. 0 at first.
    pub const fn execute_on(&mut self, threads: usize) {
        self.execution_threads = threads;
    }

    /// The head.
    pub const fn head(&self) -> &CanonicalHead {
        &self.head
    }

    /// A block of the tree.
    pub fn get(&self, hash: &B256) -> Option<&Arc<ExecutedBlock>> {
        self.blocks.get(hash)
    }

    /// All blocks of the tree.
    pub fn blocks(&self) -> impl Iterator<Item = &Arc<ExecutedBlock>> {
        self.blocks.values()
    }

    /// Canonical blocks that are not durable, as far as this tree knows, in ascending order.
    pub fn canonical(&self) -> impl Iterator<Item = &Arc<ExecutedBlock>> {
        self.in_flight.iter().chain(&self.pending.blocks)
    }

    /// Number of canonical blocks and batches that were not given to a commit yet.
    pub fn pending(&self) -> usize {
        self.pending.blocks.len()
    }

    /// Whether the block is canonical, durable or not.
    ///
    /// # Errors
    /// If the database fails.
    pub fn is_canonical(&self, hash: &B256) -> Result<bool, PipelineError> {
        Ok(self.canonical().any(|block| block.block().hash() == *hash)
            || self.read.is_canonical(hash)?)
    }

    /// Header of a known block.
    ///
    /// # Errors
    /// If the database fails.
    pub fn header(&self, hash: &B256) -> Result<Option<SealedHeader>, PipelineError> {
        if self.head.header.hash() == *hash {
            return Ok(Some(self.head.header.clone()));
        }
        if let Some(block) = self.block(hash) {
            return Ok(Some(block.clone_sealed_header()));
        }
        Ok(self.read.header(hash)?.map(|header| SealedHeader::new(header, *hash)))
    }

    /// A block that is not durable, within a batch or not.
    fn block(&self, hash: &B256) -> Option<&RecoveredBlock> {
        let in_run = || self.batch_blocks.get(hash).map(|block| &**block);
        self.blocks.get(hash).map(|block| block.block()).or_else(in_run)
    }

    /// Adds a block that was verified elsewhere: a block that was built here.
    pub fn add(&mut self, block: Arc<ExecutedBlock>) -> Arc<ExecutedBlock> {
        let inner = block.inner.iter().map(|inner| &inner.data.block);
        self.batch_blocks.extend(inner.map(|block| (block.hash(), block.clone())));
        self.block_codes.extend(block.codes.iter().cloned());
        self.blocks.insert(block.block().hash(), block.clone());
        block
    }

    /// Makes `block` the head. It must be in the tree, and a child of the head.
    pub(crate) fn extend(&mut self, block: Arc<ExecutedBlock>) {
        self.head =
            CanonicalHead { header: block.block().clone_sealed_header(), chain: block.chain };
        self.metrics.head.set(self.head.chain.number as i64);
        self.pending.push(block);
    }

    /// Makes a known block the head. Blocks above the common ancestor that were canonical become
    /// side blocks, which are stored. No change if the block is the head already.
    ///
    /// # Errors
    /// [`StateError::BeyondRetention`] if the ancestor lies too far below the durable tip; nothing
    /// is changed then.
    pub fn set_head(&mut self, hash: B256) -> Result<Option<HeadChange>, PipelineError> {
        if self.head.header.hash() == hash {
            return Ok(None);
        }
        self.flush_batches()?;
        let header = self.header(&hash)?.ok_or(StateError::UnknownBlock { hash })?;
        self.restore_branch(&header)?;
        let mut branch: Vec<Arc<ExecutedBlock>> = Vec::new();
        let mut at = hash;
        while !self.is_canonical(&at)? {
            let Some(block) = self.blocks.get(&at) else {
                // It was dropped, as the canonical chain cannot be taken back so far.
                let above = branch.last().map_or(header.number, |above| above.block().number());
                return Err(self.beyond_retention(above.saturating_sub(1)));
            };
            at = block.block().parent_hash();
            branch.push(block.clone());
        }
        branch.reverse();
        let ancestor = branch.first().map_or(header.number, |block| block.block().number() - 1);
        let chain = self.chain_of(&header)?;
        let reverted = self.revert_to(ancestor, &branch)?;
        let committed = branch.iter().map(|block| block.data.clone()).collect();
        for block in branch {
            self.extend(block);
        }
        self.head = CanonicalHead { header: header.clone(), chain };
        self.metrics.head.set(header.number as i64);
        if !reverted.is_empty() {
            self.metrics.reorgs.inc();
        }
        Ok(Some(HeadChange { head: header, ancestor, reverted, committed, is_dropped: false }))
    }

    /// Takes the canonical chain back to block `ancestor`, in memory if that is enough. `branch`
    /// has the blocks that follow it.
    fn revert_to(
        &mut self,
        ancestor: u64,
        branch: &[Arc<ExecutedBlock>],
    ) -> Result<Vec<BlockWithReceipts>, PipelineError> {
        if self.head.header.number == ancestor {
            return Ok(Vec::new());
        }
        let data = |blocks: &[Arc<ExecutedBlock>]| -> Vec<_> {
            blocks.iter().map(|block| block.data.clone()).collect()
        };
        let first_pending = self.pending.blocks.first().map(|block| block.block().number());
        if let Some(first) = first_pending.filter(|first| *first <= ancestor + 1) {
            let at = (ancestor + 1 - first) as usize;
            // Store first: if this fails, memory stays as it was.
            self.committer.side_blocks(&self.pending.blocks[at..])?;
            return Ok(data(&self.pending.split_off(at)));
        }
        self.wait_for_commit()?;
        if ancestor < self.first_retained() {
            return Err(self.beyond_retention(ancestor));
        }
        let mut reverted = Vec::new();
        for number in ancestor + 1..=self.chain.tip()?.number {
            reverted.push(self.durable_block(number)?);
        }
        // Other blocks of the tree may have parents that are not canonical any more. They are all
        // stored; if their branch wins later, it is executed again.
        let kept: HashMap<_, _> =
            branch.iter().map(|block| (block.block().hash(), block.clone())).collect();
        reverted.extend(data(&self.pending.blocks));
        let side = self.blocks.values().filter(|block| !kept.contains_key(&block.block().hash()));
        let side: Vec<_> = side.cloned().collect();
        self.committer.revert(ancestor, &side)?;
        tracing::debug!(old = %self.head.block(), ancestor, "took the durable chain back");
        self.pending.split_off(0);
        self.blocks = kept;
        self.rebuild_codes();
        self.refresh()?;
        Ok(reverted)
    }

    fn durable_block(&self, number: u64) -> Result<BlockWithReceipts, PipelineError> {
        let lost = || StateError::corrupt("Canonical", format!("block {number} is missing"));
        let hash = self.read.canonical_hash(number)?.ok_or_else(lost)?;
        let block = self.read.recovered_block(&hash)?.ok_or_else(lost)?;
        // Receipts may have been pruned.
        let receipts = self.read.receipts(&hash)?.unwrap_or_default();
        Ok(BlockWithReceipts { block: Arc::new(block), receipts: Arc::new(receipts) })
    }

    /// Stores a block that is not canonical, so that it is not lost when the tree drops it.
    pub(crate) fn store_side_block(&self, block: &Arc<ExecutedBlock>) -> Result<(), PipelineError> {
        self.metrics.side_blocks.inc();
        self.committer.side_blocks(std::slice::from_ref(block))
    }

    // -- commits ----------------------------------------------------------------------------------

    /// Starts a commit of the canonical blocks if they have reached `limits`. Waits for the commit
    /// before.
    pub(crate) fn commit_if_full(&mut self, limits: &CommitLimits) -> Result<(), PipelineError> {
        let PendingBlocks { blocks, count, rows, bytes, since } = &self.pending;
        let is_full = *count >= limits.blocks
            || *rows >= limits.rows
            || *bytes >= limits.bytes
            || since.elapsed() >= limits.time;
        if is_full && !blocks.is_empty() { self.start_commit(0) } else { Ok(()) }
    }

    /// Starts a commit of all canonical blocks but the last `keep`, unless a commit is running.
    ///
    /// # Errors
    /// The error of the commit before.
    pub fn persist(&mut self, keep: usize) -> Result<(), PipelineError> {
        if let Some(done) = self.committer.poll()? {
            self.drop_durable(done)?;
        }
        if !self.in_flight.is_empty() && !self.committer.is_running() {
            // An earlier call has returned the cause. Nothing above the failed commit can be
            // committed.
            let first = self.in_flight.first().map_or(0, |first| first.first().number());
            let last = self.in_flight.last().map_or(0, |last| last.block().number());
            let source = Box::new(PipelineError::Thread { thread: "import-commit" });
            return Err(PipelineError::Commit { first, last, source });
        }
        if self.in_flight.is_empty() { self.start_commit(keep) } else { Ok(()) }
    }

    /// The highest block that this tree knows to be durable.
    pub fn durable(&self) -> u64 {
        let first = self.canonical().next().map(|block| block.first().number());
        first.map_or(self.head.header.number, |first| first - 1)
    }

    /// Whether a commit is running.
    pub fn is_committing(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn start_commit(&mut self, keep: usize) -> Result<(), PipelineError> {
        let kept = self.pending.split_off(self.pending.blocks.len().saturating_sub(keep));
        let PendingBlocks { blocks, .. } =
            std::mem::replace(&mut self.pending, PendingBlocks::new(Instant::now()));
        for block in kept {
            self.pending.push(block);
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let notes = self.notes.drain().collect();
        let done = self.committer.send(CommitJob { blocks: blocks.clone(), notes })?;
        self.record_commit_wait(start);
        self.in_flight = blocks;
        self.drop_durable(done)
    }

    /// Writes a note to the database with the next commit.
    pub fn put_note(&mut self, name: &'static str, note: Vec<u8>) {
        self.notes.insert(name, note);
    }

    /// As [`put_note`](Self::put_note), but at once if the head is durable, so that a note about
    /// the head survives a kill.
    ///
    /// # Errors
    /// If the database fails.
    pub fn put_note_of_head(
        &mut self,
        name: &'static str,
        note: Vec<u8>,
    ) -> Result<(), PipelineError> {
        self.put_note(name, note);
        if self.canonical().next().is_some() {
            return Ok(());
        }
        self.committer.notes(self.notes.drain())
    }

    /// Makes all canonical blocks durable.
    ///
    /// # Errors
    /// Errors of the commits.
    pub fn flush(&mut self) -> Result<(), PipelineError> {
        self.start_commit(0)?;
        self.wait_for_commit()?;
        self.committer.notes(self.notes.drain())
    }

    /// Makes batches durable, if there are any. Their blocks can then be found one by one, in the
    /// database.
    ///
    /// # Errors
    /// Errors of the commits.
    pub(crate) fn flush_batches(&mut self) -> Result<(), PipelineError> {
        if self.batch_blocks.is_empty() { Ok(()) } else { self.flush() }
    }

    /// Waits for the running commit.
    fn wait_for_commit(&mut self) -> Result<(), PipelineError> {
        let start = Instant::now();
        let done = self.committer.wait()?;
        self.record_commit_wait(start);
        self.in_flight.clear();
        self.drop_durable(done)
    }

    fn record_commit_wait(&mut self, since: Instant) {
        let waited = since.elapsed();
        self.times.commit_wait += waited;
        self.metrics.commit_wait_seconds.inc_by(waited.as_secs_f64());
    }

    /// Drops durable blocks from the tree, and side blocks that cannot be extended any more.
    fn drop_durable(&mut self, durable: Vec<B256>) -> Result<(), PipelineError> {
        if durable.is_empty() {
            return Ok(());
        }
        for hash in &durable {
            let run = self.blocks.remove(hash);
            for inner in run.iter().flat_map(|run| &run.inner) {
                self.batch_blocks.remove(&inner.data.block.hash());
            }
        }
        self.in_flight.retain(|block| !durable.contains(&block.block().hash()));
        // In this order: all blocks below `first` are then durable in the snapshot `read`, even if
        // the next commit ends meanwhile.
        let first = self.first_retained();
        self.refresh()?;
        self.blocks.retain(|_, block| block.block().number() > first);
        self.rebuild_codes();
        Ok(())
    }

    /// Drops the blocks for which `keep` is false. Canonical blocks stay.
    pub fn retain(&mut self, keep: impl Fn(&ExecutedBlock) -> bool) {
        let canonical: Vec<_> = self.canonical().map(|block| block.block().hash()).collect();
        self.blocks.retain(|hash, block| canonical.contains(hash) || keep(block));
        self.rebuild_codes();
    }

    /// Resets head and counts to the durable chain, after a commit has failed.
    pub(crate) fn reset_to_durable(&mut self) -> Result<(), PipelineError> {
        self.discard_ahead();
        self.refresh()?;
        self.head = CanonicalHead::durable(self.chain, &self.read)?;
        self.in_flight.clear();
        self.pending = PendingBlocks::new(Instant::now());
        self.block_codes.clear();
        self.batch_blocks.clear();
        for (hash, lost) in std::mem::take(&mut self.blocks) {
            if self.read.block_number(&hash)?.is_none() {
                for BlockWithReceipts { block, .. } in lost.batch() {
                    self.counts.blocks -= 1;
                    self.counts.txs -= block.transaction_count() as u64;
                    self.counts.gas -= block.gas_used();
                }
            }
        }
        Ok(())
    }

    /// Must be called when blocks have left the tree.
    fn rebuild_codes(&mut self) {
        let codes = self.blocks.values().flat_map(|block| block.codes.iter().cloned());
        self.block_codes = codes.collect();
    }

    fn refresh(&mut self) -> Result<(), PipelineError> {
        self.read = self.chain.db.begin_read()?;
        Ok(())
    }
}
