//! The tree: verified blocks above the durable chain, and which of them are canonical.
//!
//! ```text
//!  block -> parent known? -> header against parent, ommers -> session on the parent -> execute
//!        -> receipts, bloom, gas | -> propose -> root -> a block of the tree, in memory
//!  head  -> a way through the tree; its blocks are committed in batches, on the thread
//!           `import-commit`, while the next ones execute
//! ```
//!
//! Every block is executed on its own parent, whatever branch that is on, as proposals cost nothing
//! until they are committed. The two halves of a verification, up to the delta and from there on,
//! follow each other for a block by itself; in a run of blocks the second halves are done beside
//! the first halves of the next ones, on the thread `import-root` ([`ahead`]). Blocks far below the end of
//! an import may be verified as [runs] with one root. Who decides which
//! block is the head is the caller's business: the importer's fork choice, or a consensus client.

mod ahead;
mod commit;
mod hints;
mod known;
mod listed;
mod runs;
mod verify;

use crate::{BlockWithReceipts, Chain, ExecutedBlock, PipelineError};
use ahead::AheadOfRoots;
use alloy_consensus::BlockHeader;
use alloy_primitives::{B256, Bytes, map::HashMap};
use commit::{CommitJob, Committer};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_consensus::ChainHead;
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::CodeCache;
use retrie_state::{BlockRef, StateError};
use retrie_telemetry::Metrics;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub use ahead::Settled;
pub use known::COMING;
pub(crate) use runs::RUN_BLOCKS;

/// The highest canonical block, and the chain that ends with it.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its header.
    pub header: SealedHeader,
    /// Its height and total difficulty.
    pub chain: ChainHead,
}

impl Head {
    fn durable(chain: &Chain, read: &ReadTxn) -> Result<Self, PipelineError> {
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

    /// Number and hash.
    pub fn block(&self) -> BlockRef {
        BlockRef::new(self.header.number, self.header.hash())
    }
}

/// What a new head changed.
#[derive(Clone, Debug)]
pub struct HeadChange {
    /// The new head.
    pub head: SealedHeader,
    /// The last block that both chains share.
    pub ancestor: u64,
    /// Blocks that are canonical no longer, in ascending order.
    pub reverted: Vec<BlockWithReceipts>,
    /// Blocks that are now, in ascending order; none if the head went back.
    pub committed: Vec<BlockWithReceipts>,
    /// Whether the reverted blocks were dropped by whoever runs the node: nobody wants their
    /// transactions again.
    pub is_dropped: bool,
}

/// Times of verification, by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportTimes {
    /// EVM.
    pub execution: Duration,
    /// State reads of the EVM.
    pub reads: Duration,
    /// Roots and writes, as far as anybody waited for them.
    pub authentication: Duration,
    /// The rest of that time: roots and writes while other blocks were executed.
    pub roots_aside: Duration,
    /// Commits, as far as anybody waited for them.
    pub commit_wait: Duration,
    /// Sender recovery and checks, on other threads.
    pub prepare: Duration,
}

/// What was verified since the tree was made, without what was lost again. The metrics of blocks,
/// transactions, gas and seconds are counted beside these, and nowhere else.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TreeCounts {
    pub(crate) blocks: u64,
    pub(crate) txs: u64,
    pub(crate) gas: u64,
    pub(crate) key_reads: u64,
    pub(crate) key_writes: u64,
    pub(crate) roots_checked: u64,
}

/// Canonical blocks, and runs, that no commit has been given yet.
#[derive(Debug)]
struct Pending {
    blocks: Vec<Arc<ExecutedBlock>>,
    /// How many blocks that are.
    count: usize,
    rows: usize,
    bytes: usize,
    since: Instant,
}

impl Pending {
    const fn new(since: Instant) -> Self {
        Self { blocks: Vec::new(), count: 0, rows: 0, bytes: 0, since }
    }

    fn push(&mut self, block: Arc<ExecutedBlock>) {
        if self.blocks.is_empty() {
            self.since = Instant::now();
        }
        self.count += block.run_len();
        self.rows += block.states.rows();
        self.bytes += block.bytes();
        self.blocks.push(block);
    }

    /// Takes the blocks from the `at`-th on.
    fn split_off(&mut self, at: usize) -> Vec<Arc<ExecutedBlock>> {
        let blocks = self.blocks.split_off(at);
        for block in &blocks {
            self.count -= block.run_len();
            self.rows -= block.states.rows();
            self.bytes -= block.bytes();
        }
        blocks
    }
}

/// When canonical blocks are handed to a commit.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Once there are this many ...
    pub blocks: usize,
    /// ... or they write this many rows of state ...
    pub rows: usize,
    /// ... or take this many bytes with their logs ...
    pub bytes: usize,
    /// ... or the first of them is this old.
    pub time: Duration,
}

/// Verified blocks above the durable tip of one [`Chain`], and a head among them.
pub struct Tree<'a> {
    pub(crate) chain: &'a Chain,
    /// Receipts before Byzantium are checked with a proposal per transaction.
    intermediate_roots: bool,
    /// Threads that execute transactions, where a block's access list is known.
    execution_threads: usize,
    pub(crate) metrics: Metrics,
    codes: Arc<CodeCache>,
    /// Blocks that are not durable yet, and side blocks not too far below the durable tip. Of a run the
    /// last one, which is canonical.
    blocks: HashMap<B256, Arc<ExecutedBlock>>,
    /// The others of these runs.
    in_runs: HashMap<B256, Arc<RecoveredBlock>>,
    /// Codes that these have created.
    block_codes: HashMap<B256, Bytes>,
    /// Canonical blocks that the commit under way makes durable.
    in_flight: Vec<Arc<ExecutedBlock>>,
    /// Canonical blocks above those.
    pending: Pending,
    /// To be left in the database with the next commit.
    notes: HashMap<&'static str, Vec<u8>>,
    committer: Committer<'a>,
    /// Executed blocks that are not in the tree, as their roots are not known.
    ahead: AheadOfRoots<'a>,
    /// Blocks that wait, and whose keys are read.
    coming: known::Coming,
    head: Head,
    pub(crate) read: ReadTxn,
    pub(crate) times: ImportTimes,
    pub(crate) counts: TreeCounts,
}

impl std::fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<'a> Tree<'a> {
    /// A tree on the durable head of `chain`. Commits, and roots of blocks ahead, run on threads of
    /// `scope`.
    ///
    /// # Errors
    /// [`PipelineError::NoHeaderRoot`] if `intermediate_roots` are asked for and nobody computes
    /// them.
    pub fn new<'scope>(
        chain: &'a Chain,
        intermediate_roots: bool,
        codes: Arc<CodeCache>,
        metrics: Metrics,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let own = chain.state().backend();
        if intermediate_roots && !own.capabilities().ethereum_root && chain.referee().is_none() {
            return Err(PipelineError::NoHeaderRoot { backend: own.identity().name });
        }
        let read = chain.db.begin_read()?;
        let head = Head::durable(chain, &read)?;
        metrics.head.set(head.chain.number as i64);
        metrics.durable.set(head.chain.number as i64);
        Ok(Self {
            chain,
            intermediate_roots,
            execution_threads: 0,
            committer: Committer::start(chain, metrics.clone(), scope)?,
            ahead: AheadOfRoots::start(chain, scope)?,
            metrics,
            codes,
            blocks: HashMap::default(),
            in_runs: HashMap::default(),
            block_codes: HashMap::default(),
            in_flight: Vec::new(),
            pending: Pending::new(Instant::now()),
            notes: HashMap::default(),
            coming: known::Coming::new(),
            head,
            read,
            times: ImportTimes::default(),
            counts: TreeCounts::default(),
        })
    }

    /// From now on transactions of blocks that come with their access lists (EIP-7928) are executed on
    /// so many threads in parallel. None at first.
    pub const fn execute_on(&mut self, threads: usize) {
        self.execution_threads = threads;
    }

    /// The head.
    pub const fn head(&self) -> &Head {
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

    /// Canonical blocks that are not durable as far as this tree knows, in ascending order.
    pub fn canonical(&self) -> impl Iterator<Item = &Arc<ExecutedBlock>> {
        self.in_flight.iter().chain(&self.pending.blocks)
    }

    /// Canonical blocks that no commit has been given yet.
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

    /// A block that is not durable, in a run or not.
    fn block(&self, hash: &B256) -> Option<&RecoveredBlock> {
        let in_run = || self.in_runs.get(hash).map(|block| &**block);
        self.blocks.get(hash).map(|block| block.block()).or_else(in_run)
    }

    /// Puts a block into the tree that was verified elsewhere: one that was built here.
    pub fn add(&mut self, block: Arc<ExecutedBlock>) -> Arc<ExecutedBlock> {
        let inner = block.inner.iter().map(|inner| &inner.data.block);
        self.in_runs.extend(inner.map(|block| (block.hash(), block.clone())));
        self.block_codes.extend(block.codes.iter().cloned());
        self.blocks.insert(block.block().hash(), block.clone());
        block
    }

    /// Makes `block`, a child of the head that is in the tree, the head.
    pub(crate) fn extend(&mut self, block: Arc<ExecutedBlock>) {
        self.head = Head { header: block.block().clone_sealed_header(), chain: block.chain };
        self.metrics.head.set(self.head.chain.number as i64);
        self.pending.push(block);
    }

    /// Makes a known block the head. What was canonical above the ancestor of both becomes side
    /// blocks, which are stored. No change if the block is the head already.
    ///
    /// # Errors
    /// [`StateError::BeyondRetention`] if the ancestor lies too far below the durable tip, before
    /// anything is changed.
    pub fn set_head(&mut self, hash: B256) -> Result<Option<HeadChange>, PipelineError> {
        if self.head.header.hash() == hash {
            return Ok(None);
        }
        self.flush_runs()?;
        let header = self.header(&hash)?.ok_or(StateError::UnknownBlock { hash })?;
        self.restore_branch(&header)?;
        let mut branch: Vec<Arc<ExecutedBlock>> = Vec::new();
        let mut at = hash;
        while !self.is_canonical(&at)? {
            let Some(block) = self.blocks.get(&at) else {
                // Forgotten, as the canonical chain cannot be taken back so far.
                let above = branch.last().map_or(header.number, |above| above.block().number());
                return Err(self.beyond_retention(above.saturating_sub(1)));
            };
            at = block.block().parent_hash();
            branch.push(block.clone());
        }
        branch.reverse();
        let ancestor = branch.first().map_or(header.number, |block| block.block().number() - 1);
        let chain = self.chain_of(&header)?;
        let reverted = self.cut(ancestor, &branch)?;
        let committed = branch.iter().map(|block| block.data.clone()).collect();
        for block in branch {
            self.extend(block);
        }
        self.head = Head { header: header.clone(), chain };
        self.metrics.head.set(header.number as i64);
        if !reverted.is_empty() {
            self.metrics.reorgs.inc();
        }
        Ok(Some(HeadChange { head: header, ancestor, reverted, committed, is_dropped: false }))
    }

    /// Takes the canonical chain back to block `ancestor`, in memory if that is enough. `branch`
    /// is what follows.
    fn cut(
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
            // Memory follows what is stored, and not if that fails.
            self.committer.side_blocks(&self.pending.blocks[at..])?;
            return Ok(data(&self.pending.split_off(at)));
        }
        self.wait()?;
        if ancestor < self.first_retained() {
            return Err(self.beyond_retention(ancestor));
        }
        let mut reverted = Vec::new();
        for number in ancestor + 1..=self.chain.tip()?.number {
            reverted.push(self.durable_block(number)?);
        }
        // Blocks of the tree may stand on blocks that are not canonical any more. All are stored:
        // should their branch win later, it is executed again.
        let kept: HashMap<_, _> =
            branch.iter().map(|block| (block.block().hash(), block.clone())).collect();
        reverted.extend(data(&self.pending.blocks));
        let side = self.blocks.values().filter(|block| !kept.contains_key(&block.block().hash()));
        let side: Vec<_> = side.cloned().collect();
        self.committer.revert(ancestor, &side)?;
        tracing::debug!(old = %self.head.block(), ancestor, "took the durable chain back");
        self.pending.split_off(0);
        self.blocks = kept;
        self.forget_codes();
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

    /// Stores a block that is not canonical, so that it is not lost when the tree forgets it.
    pub(crate) fn store_side_block(&self, block: &Arc<ExecutedBlock>) -> Result<(), PipelineError> {
        self.metrics.side_blocks.inc();
        self.committer.side_blocks(std::slice::from_ref(block))
    }

    // -- commits ----------------------------------------------------------------------------------

    /// Hands canonical blocks to a commit if they have reached `limits`; waits for the one before.
    pub(crate) fn hand_over_full(&mut self, limits: &BatchLimits) -> Result<(), PipelineError> {
        let Pending { blocks, count, rows, bytes, since } = &self.pending;
        let is_full = *count >= limits.blocks
            || *rows >= limits.rows
            || *bytes >= limits.bytes
            || since.elapsed() >= limits.time;
        if is_full && !blocks.is_empty() { self.hand_over(0) } else { Ok(()) }
    }

    /// Hands all canonical blocks but the last `keep` to a commit, unless one is under way.
    ///
    /// # Errors
    /// That of the commit before.
    pub fn persist(&mut self, keep: usize) -> Result<(), PipelineError> {
        if let Some(done) = self.committer.poll()? {
            self.forget(done)?;
        }
        if !self.in_flight.is_empty() && !self.committer.is_running() {
            // Somebody else was told why: nothing above it can be committed any more.
            let first = self.in_flight.first().map_or(0, |first| first.first().number());
            let last = self.in_flight.last().map_or(0, |last| last.block().number());
            let source = Box::new(PipelineError::Thread { thread: "import-commit" });
            return Err(PipelineError::Commit { first, last, source });
        }
        if self.in_flight.is_empty() { self.hand_over(keep) } else { Ok(()) }
    }

    /// The highest block that this tree knows to be durable.
    pub fn durable(&self) -> u64 {
        let first = self.canonical().next().map(|block| block.first().number());
        first.map_or(self.head.header.number, |first| first - 1)
    }

    /// Whether a commit is under way.
    pub fn is_committing(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn hand_over(&mut self, keep: usize) -> Result<(), PipelineError> {
        let kept = self.pending.split_off(self.pending.blocks.len().saturating_sub(keep));
        let Pending { blocks, .. } =
            std::mem::replace(&mut self.pending, Pending::new(Instant::now()));
        for block in kept {
            self.pending.push(block);
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let notes = self.notes.drain().collect();
        let done = self.committer.send(CommitJob { blocks: blocks.clone(), notes })?;
        self.waited_for_commit(start);
        self.in_flight = blocks;
        self.forget(done)
    }

    /// Leaves a note in the database with the next commit.
    pub fn put_note(&mut self, name: &'static str, note: Vec<u8>) {
        self.notes.insert(name, note);
    }

    /// The same, at once if the head is durable: what is noted of the head outlives a kill then.
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

    /// Makes everything canonical durable.
    ///
    /// # Errors
    /// Those of the commits.
    pub fn flush(&mut self) -> Result<(), PipelineError> {
        self.hand_over(0)?;
        self.wait()?;
        self.committer.notes(self.notes.drain())
    }

    /// Makes runs durable, if there are any: their blocks are then found one by one, in the database.
    ///
    /// # Errors
    /// Those of the commits.
    pub(crate) fn flush_runs(&mut self) -> Result<(), PipelineError> {
        if self.in_runs.is_empty() { Ok(()) } else { self.flush() }
    }

    /// Waits for the commit under way.
    fn wait(&mut self) -> Result<(), PipelineError> {
        let start = Instant::now();
        let done = self.committer.wait()?;
        self.waited_for_commit(start);
        self.in_flight.clear();
        self.forget(done)
    }

    fn waited_for_commit(&mut self, since: Instant) {
        let waited = since.elapsed();
        self.times.commit_wait += waited;
        self.metrics.commit_wait_seconds.inc_by(waited.as_secs_f64());
    }

    /// Drops durable blocks from the tree, and side blocks that nobody can build on any more.
    fn forget(&mut self, durable: Vec<B256>) -> Result<(), PipelineError> {
        if durable.is_empty() {
            return Ok(());
        }
        for hash in &durable {
            let run = self.blocks.remove(hash);
            for inner in run.iter().flat_map(|run| &run.inner) {
                self.in_runs.remove(&inner.data.block.hash());
            }
        }
        self.in_flight.retain(|block| !durable.contains(&block.block().hash()));
        // In this order: what lies below is then durable in what `read` sees, though the next commit
        // may end meanwhile.
        let first = self.first_retained();
        self.refresh()?;
        self.blocks.retain(|_, block| block.block().number() > first);
        self.forget_codes();
        Ok(())
    }

    /// Drops the blocks that `keep` does not want. Canonical ones stay.
    pub fn retain(&mut self, keep: impl Fn(&ExecutedBlock) -> bool) {
        let canonical: Vec<_> = self.canonical().map(|block| block.block().hash()).collect();
        self.blocks.retain(|hash, block| canonical.contains(hash) || keep(block));
        self.forget_codes();
    }

    /// Takes head and counts back to what is durable, once a commit has failed.
    pub(crate) fn give_up(&mut self) -> Result<(), PipelineError> {
        self.discard_ahead();
        self.refresh()?;
        self.head = Head::durable(self.chain, &self.read)?;
        self.in_flight.clear();
        self.pending = Pending::new(Instant::now());
        self.block_codes.clear();
        self.in_runs.clear();
        for (hash, lost) in std::mem::take(&mut self.blocks) {
            if self.read.block_number(&hash)?.is_none() {
                for BlockWithReceipts { block, .. } in lost.run() {
                    self.counts.blocks -= 1;
                    self.counts.txs -= block.transaction_count() as u64;
                    self.counts.gas -= block.gas_used();
                }
            }
        }
        Ok(())
    }

    /// To be called once blocks have left the tree.
    fn forget_codes(&mut self) {
        let codes = self.blocks.values().flat_map(|block| block.codes.iter().cloned());
        self.block_codes = codes.collect();
    }

    fn refresh(&mut self) -> Result<(), PipelineError> {
        self.read = self.chain.db.begin_read()?;
        Ok(())
    }
}
