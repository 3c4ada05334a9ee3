//! The importer: blocks in, a durable canonical chain out.
//!
//! It feeds a [`BlockTree`] and chooses the head: the heaviest chain, or under proof of stake the
//! block that came last. Side blocks are stored beside the canonical chain. A reorg takes the chain
//! back to the common ancestor and commits the new branch.
//!
//! In a stream, a block that extends the chain is executed ahead: before the roots of the blocks
//! below it are known. Blocks far below the end of the stream may come in batches with one root
//! ([`RootCheckMode::Batch`]). Every other block (already known, on another branch, or with state
//! roots in its receipts) waits until no block is ahead, and is verified by itself.

use crate::{
    AnchorError, ChainSetupError, ChainStore, ExecutedBlock, PipelineError,
    lookahead::LookaheadStream,
    report::{ImportReport, TipReport},
    stream::{BlockStream, PreparedBlock, prepare},
    tree::{AheadOutcome, BlockTree, CommitLimits, DriverStep, ImportTimes, TreeDriver, TreeOwner},
};
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use retrie_chainspec::primitives::{Block, SealedHeader};
use retrie_consensus::ForkChoice;
use retrie_db::ChainRead;
use retrie_execution::CodeCache;
use retrie_state::BlockRef;
use retrie_telemetry::Metrics;
use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// For which blocks an import computes and checks state roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootCheckMode {
    /// For every block.
    #[default]
    Every,
    /// For one block in many, if the states allow it
    /// ([`StoreSet::applies_batches`](crate::StoreSet::applies_batches)).
    ///
    /// Consecutive blocks are imported as a batch with one root, the last block's, if more blocks
    /// follow them in the stream than states are retained. If this root or anything else about the
    /// batch is wrong, its blocks are imported again with every root, and the error names the first
    /// wrong block.
    ///
    /// A wrong state root in a header within a batch is not noticed if the last root is right. So
    /// this mode is for chains whose last hash is trusted. Once a batch is durable, the chain can
    /// be taken back to its last block, but not to a block within it.
    Batch,
}

/// How an import behaves.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// When canonical blocks are committed.
    pub commit_limits: CommitLimits,
    /// Whether receipts before Byzantium, which hold state roots, are checked with one temporary
    /// proposal per transaction. Needs a backend or referee with Ethereum's roots.
    pub intermediate_roots: bool,
    /// For which blocks state roots are checked.
    pub check_roots: RootCheckMode,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            commit_limits: CommitLimits {
                blocks: 1024,
                rows: 200_000,
                bytes: 64 << 20,
                time: Duration::from_secs(2),
            },
            intermediate_roots: false,
            check_roots: RootCheckMode::Every,
        }
    }
}

/// How an import ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportEnd {
    /// All requested blocks are imported.
    Complete,
    /// The caller has set the stop flag.
    Stopped,
}

/// What an import has done with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// The block was known already.
    Known,
    /// The block is the new head.
    Head,
    /// The block is the new head, on another branch than the head before.
    Reorg {
        /// Number of the last block that both branches share.
        ancestor: u64,
    },
    /// The block is valid, but another branch is heavier.
    Side,
}

/// Imports blocks into one [`ChainStore`].
#[derive(Debug)]
pub struct BlockImporter<'a> {
    tree: BlockTree<'a>,
    commit_limits: CommitLimits,
    /// Blocks may be batched if at least this many follow.
    batch_depth: Option<u64>,
    /// Number of the head when the import began.
    began_at: u64,
    /// Blocks under proof of stake that a reorg of this import has reverted. If such a block is
    /// given again, it becomes the head again, as in an import into an empty datadir.
    reverted: HashSet<B256>,
    /// Number of the block whose state the chain began with.
    anchor: u64,
    report: ImportReport,
}

impl<'a> BlockImporter<'a> {
    /// An importer that continues from the durable head of `chain`. Commits, and the roots of
    /// blocks ahead, run on threads of `scope`.
    ///
    /// # Errors
    /// As [`BlockTree::new`].
    pub fn new<'scope>(
        chain: &'a ChainStore,
        options: ImportOptions,
        metrics: Metrics,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let ImportOptions { commit_limits: batch, intermediate_roots, check_roots } = options;
        let codes = Arc::new(CodeCache::default());
        let tree = BlockTree::new(chain, intermediate_roots, codes, metrics, scope)?;
        let began_at = tree.head().chain.number;
        let anchor = tree.read.anchor()?;
        let in_runs = check_roots == RootCheckMode::Batch && chain.states.applies_batches();
        let runs_below = in_runs.then(|| chain.state().retention());
        let report = ImportReport::default();
        let reverted = HashSet::new();
        Ok(Self {
            tree,
            commit_limits: batch,
            batch_depth: runs_below,
            began_at,
            reverted,
            anchor,
            report,
        })
    }

    /// The head: number and hash.
    pub fn head(&self) -> BlockRef {
        self.tree.head().block()
    }

    /// Figures so far, without the blocks that are ahead.
    pub fn report(&self) -> ImportReport {
        let header = &self.tree.head().header;
        let counts = &self.tree.counts;
        ImportReport {
            blocks: counts.blocks,
            txs: counts.txs,
            gas: counts.gas,
            tip: TipReport {
                number: header.number,
                hash: header.hash(),
                state_root: header.state_root,
            },
            roots_checked: counts.roots_checked,
            ..self.report.clone()
        }
    }

    /// Times so far.
    pub const fn times(&self) -> ImportTimes {
        self.tree.times
    }

    /// Keys read by the EVM and keys changed so far.
    pub const fn key_operations(&self) -> (u64, u64) {
        (self.tree.counts.key_reads, self.tree.counts.key_writes)
    }

    /// Imports one block that has not been checked yet.
    ///
    /// # Errors
    /// [`PipelineError::is_invalid_block`] tells invalid blocks from other failures.
    pub fn import(&mut self, block: Block) -> Result<BlockStatus, PipelineError> {
        let prepared = prepare(&self.tree.chain.spec, block)?;
        self.import_prepared(prepared)
    }

    /// Imports one prepared block.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_prepared(&mut self, block: PreparedBlock) -> Result<BlockStatus, PipelineError> {
        self.finish_all_ahead()?;
        // The block may be part of a batch, or a child of one.
        self.tree.flush_batches()?;
        let (number, hash) = (block.block.number(), block.block.hash());
        self.import_block(block).map_err(|error| error.in_block(number, hash))
    }

    /// Imports one prepared block. If it extends the chain, the call does not wait for its root. An
    /// error of this block may then be returned by a later call, or by [`flush`](Self::flush); it
    /// names the block.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_ahead(&mut self, block: PreparedBlock) -> Result<(), PipelineError> {
        let (mut driver, mut queue) = (TreeDriver::default(), VecDeque::from([block]));
        while !queue.is_empty() {
            driver.step(self, &mut queue)?;
        }
        Ok(())
    }

    /// Starts to read the keys that the next blocks will access, as far as they are known before
    /// execution.
    pub fn prefetch<'b>(&mut self, waiting: impl IntoIterator<Item = &'b PreparedBlock>) {
        self.tree.prefetch(waiting);
    }

    /// Takes the lowest block that is ahead into the chain. `None` if no block is ahead, or if its
    /// root is not computed yet and `wait` is false.
    fn accept_next_ahead(&mut self, wait: bool) -> Result<Option<BlockStatus>, PipelineError> {
        self.tree.finish_ahead(wait).map(|finished| self.accept_outcome(finished)).transpose()
    }

    fn accept_outcome(&mut self, finished: AheadOutcome) -> Result<BlockStatus, PipelineError> {
        let AheadOutcome { block, outcome, .. } = finished;
        let accepted = outcome.and_then(|block| self.accept(block));
        if accepted.is_err() {
            self.tree.discard_ahead();
        }
        accepted.map_err(|error| error.in_block(block.number(), block.hash()))
    }

    /// Waits until no block is ahead.
    ///
    /// # Errors
    /// As [`import`](Self::import), for the first block that fails.
    pub fn finish_all_ahead(&mut self) -> Result<(), PipelineError> {
        while self.accept_next_ahead(true)?.is_some() {}
        Ok(())
    }

    fn import_block(&mut self, block: PreparedBlock) -> Result<BlockStatus, PipelineError> {
        if block.block.number() == 0 {
            return self.check_genesis(block.block.hash());
        }
        let hash = block.block.hash();
        let comes_back = self.reverted.contains(&hash) && !self.tree.is_canonical(&hash)?;
        if comes_back && let Some(verified) = self.tree.get(&hash).cloned() {
            return self.accept(verified);
        }
        if !comes_back && self.is_known(block.block.sealed_header())? {
            self.report.known_blocks += 1;
            return Ok(BlockStatus::Known);
        }
        let (number, anchor) = (block.number(), self.anchor);
        if number <= anchor {
            return Err(AnchorError::Below { number, anchor }.into());
        }
        let block = self.tree.insert(block)?;
        self.accept(block)
    }

    /// Makes all imported blocks durable.
    ///
    /// # Errors
    /// Errors of the commits.
    pub fn flush(&mut self) -> Result<(), PipelineError> {
        self.finish_all_ahead()?;
        self.tree.flush()
    }

    /// Resets head and figures to the durable chain, after a commit has failed.
    pub(crate) fn reset_to_durable(&mut self) -> Result<(), PipelineError> {
        self.tree.reset_to_durable()
    }

    fn check_genesis(&mut self, hash: B256) -> Result<BlockStatus, PipelineError> {
        let spec = &self.tree.chain.spec;
        let expected = spec.genesis_hash();
        if hash != expected {
            let chain = spec.name().to_owned();
            return Err(ChainSetupError::ForeignGenesis { got: hash, expected, chain }.into());
        }
        self.report.known_blocks += 1;
        Ok(BlockStatus::Known)
    }

    /// A block is known if it is in the tree, canonical, or stored as a side block that still
    /// loses. A stored side block that would win now belongs to a branch that a reorg had left, or
    /// was making canonical when the process was killed; it is imported again.
    ///
    /// Under proof of stake the last block given becomes the head, whatever its height. There a
    /// stored block counts as new only above the head that this import began with, and only if its
    /// parent is canonical or was itself imported as new. So importing a file again neither takes
    /// the chain back nor ends on another of its branches.
    fn is_known(&self, header: &SealedHeader) -> Result<bool, PipelineError> {
        let (hash, parent) = (header.hash(), header.parent_hash);
        if self.tree.get(&hash).is_some() || self.tree.read.is_canonical(&hash)? {
            return Ok(true);
        }
        if self.tree.read.block_number(&hash)?.is_none() {
            return Ok(false);
        }
        let stored = self.tree.chain_of(header)?;
        let is_anew = !stored.is_pos
            || stored.number > self.began_at
                && (self.tree.get(&parent).is_some() || self.tree.read.is_canonical(&parent)?);
        Ok(!is_anew || ForkChoice::decide(&self.tree.head().chain, &stored) != ForkChoice::Switch)
    }

    fn accept(&mut self, block: Arc<ExecutedBlock>) -> Result<BlockStatus, PipelineError> {
        let (number, hash) = (block.block().number(), block.block().hash());
        let head = self.tree.head();
        let outcome = if block.first().parent_hash() == head.header.hash() {
            self.tree.extend(block);
            BlockStatus::Head
        } else if ForkChoice::decide(&head.chain, &block.chain) == ForkChoice::Switch {
            let change = self.tree.set_head(hash)?;
            let ancestor = change.as_ref().map_or(number, |change| change.ancestor);
            if self.tree.head().chain.is_pos {
                let reverted = change.into_iter().flat_map(|change| change.reverted);
                self.reverted.extend(reverted.map(|reverted| reverted.block.hash()));
            }
            self.report.reorgs += 1;
            tracing::info!(number, %hash, ancestor, "reorg");
            BlockStatus::Reorg { ancestor }
        } else {
            self.report.side_blocks += 1;
            tracing::debug!(number, %hash, "side block");
            self.tree.store_side_block(&block)?;
            BlockStatus::Side
        };
        self.tree.commit_if_full(&self.commit_limits)?;
        Ok(outcome)
    }
}

impl<'a> TreeOwner<'a> for BlockImporter<'a> {
    type Error = PipelineError;

    fn tree(&mut self) -> &mut BlockTree<'a> {
        &mut self.tree
    }

    fn extends(&self, block: &PreparedBlock) -> Result<bool, PipelineError> {
        let (number, hash, head) = (block.number(), block.hash(), &self.tree.head().header);
        let extends = !self.tree.has_none_ahead() || block.parent_hash() == head.hash();
        if !extends || number <= head.number {
            return Ok(false);
        }
        // A known block may be known as a side block.
        let stored = self.tree.read.block_number(&hash);
        let stored = stored.map_err(|error| PipelineError::from(error).in_block(number, hash))?;
        Ok(stored.is_none() && self.tree.get(&hash).is_none())
    }

    fn accept_ahead(&mut self, outcome: AheadOutcome) -> Result<(), PipelineError> {
        self.accept_outcome(outcome).map(drop)
    }

    fn import_alone(&mut self, block: PreparedBlock) -> Result<(), PipelineError> {
        self.import_prepared(block).map(drop)
    }
}

/// Imports all blocks of `stream`, and calls `progress` after each one, until `stop` is set.
///
/// On an error, everything before the block that the error names is made durable first.
pub(crate) fn import_stream(
    importer: &mut BlockImporter<'_>,
    stream: BlockStream,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportEnd, PipelineError> {
    let end = feed(importer, stream, stop, progress);
    // Blocks that are still ahead are not needed any more.
    importer.tree.discard_ahead();
    let flushed = importer.flush();
    progress(&importer.report());
    match (end, flushed) {
        // A commit of earlier blocks has failed on its thread, and this block was the first to
        // notice it.
        (Err(error), Err(cause @ PipelineError::Commit { .. })) if error.may_follow() => Err(cause),
        // The block's own error is more useful than an error that followed from it.
        (end, flushed) => end.and_then(|end| flushed.map(|()| end)),
    }
}

/// Starts the blocks of `stream` and finishes them one by one, or batch by batch. So the caller
/// sees each of them as the head, and can stop there.
fn feed(
    importer: &mut BlockImporter<'_>,
    stream: BlockStream,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportEnd, PipelineError> {
    let mut queue = LookaheadStream::new(stream, importer.batch_depth);
    let mut driver = TreeDriver::default();
    while !stop.load(Ordering::Relaxed) {
        match driver.step(importer, &mut queue)? {
            DriverStep::Started => {}
            DriverStep::Finished => progress(&importer.report()),
            DriverStep::Complete => return Ok(ImportEnd::Complete),
        }
    }
    Ok(ImportEnd::Stopped)
}
