//! The importer: blocks in, a durable canonical chain out.
//!
//! It feeds a [`Tree`] and chooses the head by the heaviest chain, or by what came last under proof
//! of stake. Side blocks are stored beside the canonical chain; a reorg takes the chain back to the
//! common ancestor and commits the branch.
//!
//! In a stream, blocks that extend the chain are executed ahead of the roots of those below them.
//! Those far below the end of the stream may come in runs with one root ([`CheckRoots::Batch`]). Every
//! other block (known, on another branch, of receipts that hold roots) waits until no block is
//! ahead, and is verified by itself.

use crate::{
    AnchorError, Chain, ExecutedBlock, PipelineError,
    lookahead::Lookahead,
    report::{ImportReport, TipReport},
    stream::{BlockStream, PreparedBlock, prepare},
    tree::{BatchLimits, COMING, ImportTimes, Settled, Tree},
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
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Of which blocks an import computes and checks state roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckRoots {
    /// Of every block.
    #[default]
    Every,
    /// Of one block in many, where the states allow it ([`States::apply_runs`](crate::States::apply_runs)):
    /// consecutive blocks that lie deeper below the end of the stream than states are retained are
    /// imported as a run with one root, that of the last. If that one is wrong, or anything else about
    /// the run, its blocks are imported again with every root, and the error is about the first that is
    /// wrong. A wrong state root in a header within a run is not noticed if that of the last is right: so
    /// this is for chains whose last hash is trusted. Once a run is durable, the chain can be taken back
    /// to its last block, and no further.
    Batch,
}

/// How an import behaves.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// When a batch is committed.
    pub batch: BatchLimits,
    /// Whether receipts before Byzantium, which hold state roots, are checked with a throw-away
    /// proposal per transaction. Needs a backend or referee with Ethereum's roots.
    pub intermediate_roots: bool,
    /// Which state roots are checked.
    pub check_roots: CheckRoots,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            batch: BatchLimits {
                blocks: 1024,
                rows: 200_000,
                bytes: 64 << 20,
                time: Duration::from_secs(2),
            },
            intermediate_roots: false,
            check_roots: CheckRoots::Every,
        }
    }
}

/// How an import ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All blocks asked for are there.
    Complete,
    /// It was told to stop.
    Stopped,
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It was known already.
    Known,
    /// It is the new head.
    Head,
    /// It is the new head, on another branch than the one before.
    Reorg {
        /// Number of the last block that both branches share.
        ancestor: u64,
    },
    /// It is valid, but another branch is heavier.
    Side,
}

/// Imports blocks into one [`Chain`].
#[derive(Debug)]
pub struct Importer<'a> {
    tree: Tree<'a>,
    batch: BatchLimits,
    /// Blocks may come in runs where at least so many follow.
    runs_below: Option<u64>,
    /// Number of the head at the start.
    began_at: u64,
    /// The block whose state the chain was started from.
    anchor: u64,
    report: ImportReport,
}

impl<'a> Importer<'a> {
    /// An importer that goes on from the durable head of `chain`. Commits, and roots of blocks ahead,
    /// run on threads of `scope`.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub fn new<'scope>(
        chain: &'a Chain,
        options: ImportOptions,
        metrics: Metrics,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let ImportOptions { batch, intermediate_roots, check_roots } = options;
        let codes = Arc::new(CodeCache::default());
        let tree = Tree::new(chain, intermediate_roots, codes, metrics, scope)?;
        let began_at = tree.head().chain.number;
        let anchor = tree.read.anchor()?;
        let in_runs = check_roots == CheckRoots::Batch && chain.states.apply_runs();
        let runs_below = in_runs.then(|| chain.state().retention());
        let report = ImportReport::default();
        Ok(Self { tree, batch, runs_below, began_at, anchor, report })
    }

    /// The head: number and hash.
    pub fn head(&self) -> BlockRef {
        self.tree.head().block()
    }

    /// Figures so far, without the blocks ahead.
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

    /// Imports one block that nobody has looked at yet.
    ///
    /// # Errors
    /// [`PipelineError::is_invalid_block`] tells verdicts about the block from other failures.
    pub fn import(&mut self, block: Block) -> Result<Imported, PipelineError> {
        let prepared = prepare(&self.tree.chain.spec, block)?;
        self.import_prepared(prepared)
    }

    /// Imports one block that is checked by itself, with its senders.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_prepared(&mut self, block: PreparedBlock) -> Result<Imported, PipelineError> {
        self.settle_all()?;
        // It may be one of a run, or stand on one.
        self.tree.flush_runs()?;
        let (number, hash) = (block.block.number(), block.block.hash());
        self.import_block(block).map_err(|error| error.in_block(number, hash))
    }

    /// Imports one block that is checked by itself, with its senders; if it extends the chain, without
    /// waiting for its root. Errors of this block may then come with a later one, or with
    /// [`flush`](Self::flush); they name the block they are about.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_ahead(&mut self, block: PreparedBlock) -> Result<(), PipelineError> {
        while !self.has_room_for(&block)? {
            self.settle(true)?;
        }
        while self.settle(false)?.is_some() {}
        self.take_up(block).map(drop)
    }

    /// Begins to read what the next blocks will ask for, as far as it is known before they are executed.
    pub fn read_ahead<'b>(&mut self, coming: impl IntoIterator<Item = &'b PreparedBlock>) {
        self.tree.read_ahead(coming);
    }

    /// Whether [`take_up`](Self::take_up) is possible now. If not, blocks have to settle before.
    fn has_room_for(&self, block: &PreparedBlock) -> Result<bool, PipelineError> {
        Ok(self.tree.is_settled() || self.can_run_ahead(block)?)
    }

    /// Begins with a block; if it can be executed ahead, [`settle`](Self::settle) tells what became
    /// of it.
    fn take_up(&mut self, block: PreparedBlock) -> Result<Option<Imported>, PipelineError> {
        if self.can_run_ahead(&block)? {
            self.tree.execute_ahead(block);
            return Ok(None);
        }
        self.import_prepared(block).map(Some)
    }

    /// Begins with the next blocks of `stream` as a run; returns how many it took, none if they are not
    /// one.
    fn take_up_run(&mut self, stream: &mut Lookahead) -> Result<usize, PipelineError> {
        let Some(behind) = self.runs_below else { return Ok(0) };
        // What stands on a block that is not known is not known either.
        let begins = match stream.peek() {
            Some(first) => self.can_run_ahead(first)?,
            None => false,
        };
        Ok(if begins { self.tree.execute_run_ahead(stream.run(behind)) } else { 0 })
    }

    /// Whether the block extends the chain up to the last block taken up, and can be executed ahead.
    fn can_run_ahead(&self, block: &PreparedBlock) -> Result<bool, PipelineError> {
        let (number, hash, head) = (block.number(), block.hash(), &self.tree.head().header);
        let extends = !self.tree.is_settled() || block.parent_hash() == head.hash();
        if !extends || number <= head.number || !self.tree.can_execute_ahead(block) {
            return Ok(false);
        }
        // One that is known may be so as a side block.
        let stored = self.tree.read.block_number(&hash);
        let stored = stored.map_err(|error| PipelineError::from(error).in_block(number, hash))?;
        Ok(stored.is_none() && self.tree.get(&hash).is_none())
    }

    /// Takes the lowest block that is ahead into the chain; `None` if there is none, or if its root is
    /// not there yet and shall not be waited for.
    fn settle(&mut self, wait: bool) -> Result<Option<Imported>, PipelineError> {
        self.tree.settle(wait).map(|settled| self.accept_settled(settled)).transpose()
    }

    fn accept_settled(&mut self, settled: Settled) -> Result<Imported, PipelineError> {
        let Settled { block, outcome, .. } = settled;
        let accepted = outcome.and_then(|block| self.accept(block));
        if accepted.is_err() {
            self.tree.discard_ahead();
        }
        accepted.map_err(|error| error.in_block(block.number(), block.hash()))
    }

    /// Waits until no block is ahead.
    ///
    /// # Errors
    /// As [`import`](Self::import), about the first block that has one.
    pub fn settle_all(&mut self) -> Result<(), PipelineError> {
        while self.settle(true)?.is_some() {}
        Ok(())
    }

    fn import_block(&mut self, block: PreparedBlock) -> Result<Imported, PipelineError> {
        if block.block.number() == 0 {
            return self.check_genesis(block.block.hash());
        }
        if self.is_known(block.block.sealed_header())? {
            self.report.known_blocks += 1;
            return Ok(Imported::Known);
        }
        let (number, anchor) = (block.number(), self.anchor);
        if number <= anchor {
            return Err(AnchorError::Below { number, anchor }.into());
        }
        let block = self.tree.insert(block)?;
        self.accept(block)
    }

    /// Makes everything that was imported durable.
    ///
    /// # Errors
    /// Those of the commits.
    pub fn flush(&mut self) -> Result<(), PipelineError> {
        self.settle_all()?;
        self.tree.flush()
    }

    /// Takes head and figures back to what is durable, once a commit has failed.
    pub(crate) fn give_up_what_is_not_durable(&mut self) -> Result<(), PipelineError> {
        self.tree.give_up()
    }

    fn check_genesis(&mut self, hash: B256) -> Result<Imported, PipelineError> {
        let spec = &self.tree.chain.spec;
        let expected = spec.genesis_hash();
        if hash != expected {
            let chain = spec.name().to_owned();
            return Err(PipelineError::ForeignGenesis { got: hash, expected, chain });
        }
        self.report.known_blocks += 1;
        Ok(Imported::Known)
    }

    /// Known means in the tree, canonical, or stored as a side block that still loses. One that
    /// leads by now belongs to a branch that a reorg had left, or was to make canonical, when it was
    /// cut off.
    ///
    /// Under proof of stake the block given last leads, whatever its height. There a stored block
    /// counts as given anew only above the head that this import began with, and on a parent that
    /// is canonical or came anew itself: so importing a file again neither takes the chain back nor
    /// ends on another of its branches.
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

    fn accept(&mut self, block: Arc<ExecutedBlock>) -> Result<Imported, PipelineError> {
        let (number, hash) = (block.block().number(), block.block().hash());
        let head = self.tree.head();
        let outcome = if block.first().parent_hash() == head.header.hash() {
            self.tree.extend(block);
            Imported::Head
        } else if ForkChoice::decide(&head.chain, &block.chain) == ForkChoice::Switch {
            let change = self.tree.set_head(hash)?;
            let ancestor = change.map_or(number, |change| change.ancestor);
            self.report.reorgs += 1;
            tracing::info!(number, %hash, ancestor, "reorg");
            Imported::Reorg { ancestor }
        } else {
            self.report.side_blocks += 1;
            tracing::debug!(number, %hash, "side block");
            self.tree.store_side_block(&block)?;
            Imported::Side
        };
        self.tree.hand_over_full(&self.batch)?;
        Ok(outcome)
    }
}

/// Imports all blocks of `stream`, telling `progress` after each, until `stop` is set.
///
/// On an error everything before the block it names is made durable first.
pub(crate) fn import_stream(
    importer: &mut Importer<'_>,
    stream: BlockStream,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<End, PipelineError> {
    let end = feed(importer, stream, stop, progress);
    // Of blocks that nobody waits for any more.
    importer.tree.discard_ahead();
    let flushed = importer.flush();
    progress(&importer.report());
    match (end, flushed) {
        // A commit of earlier blocks has failed on its thread, and this block noticed it first.
        (Err(error), Err(cause @ PipelineError::Commit { .. })) if error.may_follow() => Err(cause),
        // The block's own error says more than one that followed from it.
        (end, flushed) => end.and_then(|end| flushed.map(|()| end)),
    }
}

/// Takes up the blocks of `stream`, and lets them settle one by one, or run by run: so whoever looks on
/// sees each as the head, and can stop there.
fn feed(
    importer: &mut Importer<'_>,
    stream: BlockStream,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<End, PipelineError> {
    let mut stream = Lookahead::new(stream);
    // What is ahead, block by block or run by run.
    let mut ahead: VecDeque<Vec<PreparedBlock>> = VecDeque::new();
    // So many blocks have failed as a run, and come one by one.
    let mut singly = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(End::Stopped);
        }
        let has_room = match stream.peek() {
            Some(block) => importer.has_room_for(block)?,
            // What comes before an error, or the end, is good.
            None => false,
        };
        importer.read_ahead(stream.coming(COMING));
        if let Some(settled) = importer.tree.settle(!has_room) {
            match &settled.outcome {
                Err(error) if settled.is_run => {
                    tracing::debug!(%error, "a run of blocks failed, they come again one by one");
                    singly = ahead.front().map_or(0, Vec::len);
                    stream.put_back(ahead.drain(..).flatten());
                }
                _ => {
                    ahead.pop_front();
                    importer.accept_settled(settled)?;
                    progress(&importer.report());
                }
            }
            continue;
        }
        if singly == 0 {
            let taken = importer.take_up_run(&mut stream)?;
            if taken > 0 {
                ahead.push_back(stream.take(taken));
                continue;
            }
        }
        match stream.next() {
            None => return Ok(End::Complete),
            Some(block) => {
                singly = singly.saturating_sub(1);
                let block = block?;
                let again = block.clone();
                match importer.take_up(block)? {
                    Some(_) => progress(&importer.report()),
                    None => ahead.push_back(vec![again]),
                }
            }
        }
    }
}
