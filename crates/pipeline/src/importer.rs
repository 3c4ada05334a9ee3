//! The importer: blocks in, a durable canonical chain out.
//!
//! ```text
//!  block -> parent known? -> header against parent, ommers -> session on the parent -> execute
//!        -> propose -> receipts, bloom, gas, root -> tree of blocks not yet durable
//!        -> fork choice -> (extends head | side block | reorg)
//!  tree  -> commits, batched by size and time, on the thread `import-commit`
//! ```
//!
//! Every block is executed on its own parent, side blocks too, as proposals cost nothing until they
//! are committed. Side blocks are stored beside the canonical chain; a reorg takes the durable
//! chain back to the common ancestor and commits the branch.

use crate::{
    Chain, End, PipelineError,
    commit::{CommitJob, Committer},
    report::{ImportReport, TipReport},
    stream::{PreparedBlock, prepare},
};
use alloy_consensus::BlockHeader;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, map::HashMap};
use retrie_chainspec::primitives::{Block, Header, Receipt, RecoveredBlock, SealedHeader};
use retrie_consensus::{ChainHead, ExecutionResult, ForkChoice, HeaderProvider};
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::{
    BlockHashes, CodeCache, CodeReader, ExecutionInput, ExecutionOutcome, execute_block,
    execute_block_with_observer,
};
use retrie_state::{At, BlockRef, Proposal, Session, StateError, StateStore, StoreError};
use retrie_telemetry::Metrics;
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How an import behaves.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// A batch is committed once it holds this many blocks ...
    pub batch_blocks: usize,
    /// ... or this many written state rows ...
    pub batch_rows: usize,
    /// ... or this many bytes of blocks and logs ...
    pub batch_bytes: usize,
    /// ... or is this old.
    pub batch_time: Duration,
    /// Whether receipts before Byzantium, which hold state roots, are checked with a throw-away
    /// proposal per transaction. Needs a backend or referee with Ethereum's roots.
    pub intermediate_roots: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            batch_blocks: 1024,
            batch_rows: 200_000,
            batch_bytes: 64 << 20,
            batch_time: Duration::from_secs(2),
            intermediate_roots: false,
        }
    }
}

/// A verified block that is not durable yet.
#[derive(Debug)]
pub(crate) struct TreeBlock {
    pub(crate) block: RecoveredBlock,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) codes: Vec<(B256, Bytes)>,
    /// The chain that ends with this block, for fork choice.
    pub(crate) chain: ChainHead,
    pub(crate) proposal: Proposal,
    pub(crate) referee: Option<Proposal>,
}

impl TreeBlock {
    /// Rows of state that it writes.
    fn rows(&self) -> usize {
        self.proposal.rows() + self.referee.as_ref().map_or(0, Proposal::rows)
    }

    /// Bytes of the block and its logs.
    fn bytes(&self) -> usize {
        let logs = self.receipts.iter().flat_map(|receipt| &receipt.logs);
        let logs: usize = logs.map(|log| log.data.data.len() + 32 * log.topics().len()).sum();
        Block::rlp_length_for(self.block.header(), self.block.body()) + logs
    }
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

/// Times of an import, by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportTimes {
    /// EVM.
    pub execution: Duration,
    /// State reads of the EVM.
    pub reads: Duration,
    /// Roots and writes.
    pub authentication: Duration,
    /// Commits, as far as the import waited for them.
    pub commit_wait: Duration,
    /// Sender recovery and checks, on other threads.
    pub prepare: Duration,
}

/// Imports blocks into one [`Chain`].
pub struct Importer<'a> {
    chain: &'a Chain,
    options: ImportOptions,
    metrics: Metrics,
    codes: CodeCache,
    /// Blocks that are not durable yet, and side blocks not too far below the durable tip.
    tree: HashMap<B256, Arc<TreeBlock>>,
    /// Codes that the blocks of `tree` have created.
    tree_codes: HashMap<B256, Bytes>,
    /// Canonical blocks of the tree in order, not yet handed to a commit.
    pending: Vec<Arc<TreeBlock>>,
    pending_rows: usize,
    pending_bytes: usize,
    pending_since: Instant,
    committer: Committer<'a>,
    head: Head,
    /// Number of the head at the start.
    began_at: u64,
    read: ReadTxn,
    report: ImportReport,
    times: ImportTimes,
    key_reads: u64,
    key_writes: u64,
}

#[derive(Clone, Debug)]
struct Head {
    header: SealedHeader,
    chain: ChainHead,
}

fn durable_head(chain: &Chain, read: &ReadTxn) -> Result<Head, PipelineError> {
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
    Ok(Head { header: SealedHeader::new(header, tip.hash), chain })
}

impl std::fmt::Debug for Importer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importer").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<'a> Importer<'a> {
    /// An importer that goes on from the durable head of `chain`. Commits run on a thread of
    /// `scope`.
    ///
    /// # Errors
    /// [`PipelineError::NoHeaderRoot`] if intermediate roots are asked for and nobody computes them.
    pub fn new<'scope>(
        chain: &'a Chain,
        options: ImportOptions,
        metrics: Metrics,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let own = chain.store.backend();
        if options.intermediate_roots
            && !own.capabilities().ethereum_root
            && chain.referee.is_none()
        {
            return Err(PipelineError::NoHeaderRoot { backend: own.identity().name });
        }
        let read = chain.db.begin_read()?;
        let head = durable_head(chain, &read)?;
        metrics.head.set(head.chain.number as i64);
        metrics.durable.set(head.chain.number as i64);
        Ok(Self {
            chain,
            options,
            committer: Committer::start(chain, metrics.clone(), scope)?,
            metrics,
            codes: CodeCache::default(),
            tree: HashMap::default(),
            tree_codes: HashMap::default(),
            pending: Vec::new(),
            pending_rows: 0,
            pending_bytes: 0,
            pending_since: Instant::now(),
            began_at: head.chain.number,
            head,
            read,
            report: ImportReport::default(),
            times: ImportTimes::default(),
            key_reads: 0,
            key_writes: 0,
        })
    }

    /// The head: number and hash.
    pub fn head(&self) -> BlockRef {
        BlockRef::new(self.head.header.number, self.head.header.hash())
    }

    /// Figures so far.
    pub fn report(&self) -> ImportReport {
        let header = &self.head.header;
        ImportReport {
            tip: TipReport {
                number: header.number,
                hash: header.hash(),
                state_root: header.state_root,
            },
            ..self.report.clone()
        }
    }

    /// Times so far.
    pub const fn times(&self) -> ImportTimes {
        self.times
    }

    /// Keys read by the EVM and keys changed so far.
    pub const fn key_operations(&self) -> (u64, u64) {
        (self.key_reads, self.key_writes)
    }

    /// Imports one block that nobody has looked at yet.
    ///
    /// # Errors
    /// [`PipelineError::is_invalid_block`] tells verdicts about the block from other failures.
    pub fn import(&mut self, block: Block) -> Result<Imported, PipelineError> {
        let prepared = prepare(&self.chain.spec, block)?;
        self.import_prepared(prepared)
    }

    /// Imports one block that is checked by itself, with its senders.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_prepared(
        &mut self,
        PreparedBlock { block, prepare }: PreparedBlock,
    ) -> Result<Imported, PipelineError> {
        self.times.prepare += prepare;
        self.metrics.prepare_seconds.observe(prepare.as_secs_f64());
        let (number, hash) = (block.number(), block.hash());
        let start = Instant::now();
        let imported = self.import_block(block);
        self.metrics.block_seconds.observe(start.elapsed().as_secs_f64());
        imported.map_err(|error| {
            if error.is_invalid_block() {
                self.metrics.invalid_blocks.inc();
            }
            error.in_block(number, hash)
        })
    }

    fn import_block(&mut self, block: RecoveredBlock) -> Result<Imported, PipelineError> {
        let (number, hash) = (block.number(), block.hash());
        if number == 0 {
            return self.check_genesis(hash);
        }
        if self.is_known(block.sealed_header())? {
            self.report.known_blocks += 1;
            return Ok(Imported::Known);
        }
        let parent = self.header(&block.parent_hash())?.ok_or(PipelineError::UnknownParent {
            number,
            hash,
            parent: block.parent_hash(),
            head: self.head.header.number,
        })?;
        self.restore_branch(&parent)?;
        let verified = self.verify(block, &parent)?;
        self.accept(Arc::new(verified))
    }

    /// Makes everything that was imported durable.
    pub fn flush(&mut self) -> Result<(), PipelineError> {
        self.hand_over()?;
        let start = Instant::now();
        let done = self.committer.wait()?;
        self.waited_for_commit(start);
        self.forget(done)
    }

    /// Takes head and figures back to what is durable, once a commit has failed.
    pub(crate) fn give_up_what_is_not_durable(&mut self) -> Result<(), PipelineError> {
        self.refresh()?;
        self.head = durable_head(self.chain, &self.read)?;
        self.tree_codes.clear();
        for (hash, block) in std::mem::take(&mut self.tree) {
            if self.read.block_number(&hash)?.is_none() {
                self.report.blocks -= 1;
                self.report.txs -= block.block.transaction_count() as u64;
                self.report.gas -= block.block.gas_used();
            }
        }
        Ok(())
    }

    // -- one block --------------------------------------------------------------------------------

    fn check_genesis(&mut self, hash: B256) -> Result<Imported, PipelineError> {
        let expected = self.chain.spec.genesis_hash();
        if hash != expected {
            let chain = self.chain.spec.name().to_owned();
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
        if self.tree.contains_key(&hash) || self.read.is_canonical(&hash)? {
            return Ok(true);
        }
        if self.read.block_number(&hash)?.is_none() {
            return Ok(false);
        }
        let stored = self.chain_of(header)?;
        let is_anew = !stored.is_pos
            || stored.number > self.began_at
                && (self.tree.contains_key(&parent) || self.read.is_canonical(&parent)?);
        Ok(!is_anew || ForkChoice::decide(&self.head.chain, &stored) != ForkChoice::Switch)
    }

    fn header(&self, hash: &B256) -> Result<Option<SealedHeader>, PipelineError> {
        if self.head.header.hash() == *hash {
            return Ok(Some(self.head.header.clone()));
        }
        if let Some(block) = self.tree.get(hash) {
            return Ok(Some(block.block.clone_sealed_header()));
        }
        Ok(self.read.header(hash)?.map(|header| SealedHeader::new(header, *hash)))
    }

    /// The chain that ends with a known block.
    fn chain_of(&self, header: &SealedHeader) -> Result<ChainHead, PipelineError> {
        let hash = header.hash();
        if self.head.header.hash() == hash {
            return Ok(self.head.chain);
        }
        if let Some(block) = self.tree.get(&hash) {
            return Ok(block.chain);
        }
        Ok(ChainHead {
            number: header.number,
            hash,
            total_difficulty: self.read.total_difficulty(&hash)?.unwrap_or_default(),
            is_pos: self.chain.spec.is_pos(header),
        })
    }

    fn verify(
        &mut self,
        block: RecoveredBlock,
        parent: &SealedHeader,
    ) -> Result<TreeBlock, PipelineError> {
        let chain = self.chain;
        let (number, hash) = (block.number(), block.hash());
        let header = block.header();
        let parent_chain = self.chain_of(parent)?;
        let spec = chain.spec.for_header(header);
        let sealed = block.sealed_block();
        let invalid = |source| PipelineError::invalid(sealed, source);
        retrie_consensus::validate_header_against_parent(&spec, block.sealed_header(), parent)
            .map_err(invalid)?;
        retrie_consensus::validate_merge(&chain.spec, header, parent_chain.total_difficulty)
            .map_err(invalid)?;
        if !block.body().ommers.is_empty() {
            retrie_consensus::validate_ommers(&spec, sealed, Ancestors(self)).map_err(invalid)?;
        }

        let at = self.state_of(parent)?;
        let session = self.begin(&chain.store, at.as_at())?;
        let reader = session.reader();
        let surroundings = Surroundings::new(self, parent);
        let input =
            ExecutionInput::new(&reader, &surroundings, &surroundings).with_code_cache(&self.codes);
        let (outcome, roots, proving) =
            if self.options.intermediate_roots && !spec.is_byzantium_active_at_block(number) {
                self.execute_with_roots(&block, &at, input)?
            } else {
                (execute_block(&spec, &block, input)?, None, Duration::ZERO)
            };
        drop(reader);

        let start = Instant::now();
        let proposal = session.finish(&outcome.delta)?;
        chain.store.seal(&proposal, hash);
        let proposing = start.elapsed();
        let referee = match &chain.referee {
            None => None,
            Some(referee) => {
                let session = self.begin(&referee.store, at.referee())?;
                let proposal = session.finish(&outcome.delta)?;
                referee.store.seal(&proposal, hash);
                Some(proposal)
            }
        };

        retrie_consensus::validate_post_execution(
            &spec,
            sealed,
            &ExecutionResult {
                receipts: &outcome.receipts,
                gas_used: outcome.gas_used,
                blob_gas_used: Some(outcome.blob_gas_used),
                requests: &outcome.requests,
                block_access_list_hash: outcome.access_list_hash(),
                intermediate_state_roots: roots.as_deref(),
            },
        )
        .map_err(invalid)?;
        let checked =
            chain.check_roots(number, hash, header.state_root(), &proposal, referee.as_ref())?;

        self.report.roots_checked += checked;
        self.times.reads += outcome.timing.storage;
        self.times.execution += outcome.timing.execution().saturating_sub(proving);
        self.times.authentication += proposing + proving;
        self.key_reads += outcome.accesses.accounts + outcome.accesses.slots;
        self.key_writes += outcome.delta.len() as u64;
        self.metrics.roots_checked.inc_by(checked);
        self.metrics.key_reads.inc_by(outcome.accesses.accounts + outcome.accesses.slots);
        self.metrics.key_writes.inc_by(outcome.delta.len() as u64);
        self.metrics.state_read_seconds.inc_by(outcome.timing.storage.as_secs_f64());
        self.metrics.execution_seconds.observe(outcome.timing.total.as_secs_f64());
        self.metrics.propose_seconds.observe(proposing.as_secs_f64());
        let head = parent_chain.child(&chain.spec, hash, header);
        Ok(TreeBlock {
            receipts: outcome.receipts,
            codes: outcome.codes,
            block,
            chain: head,
            proposal,
            referee,
        })
    }

    /// Executes with one throw-away proposal per transaction, to learn the state roots that receipts before
    /// Byzantium hold.
    fn execute_with_roots(
        &self,
        block: &RecoveredBlock,
        at: &ParentState,
        input: ExecutionInput<'_>,
    ) -> Result<(ExecutionOutcome, Option<Vec<B256>>, Duration), PipelineError> {
        let spec = self.chain.spec.for_header(block.header());
        let (store, at): (&StateStore, _) = match &self.chain.referee {
            Some(referee) => (&referee.store, at.referee()),
            None => (&self.chain.store, at.as_at()),
        };
        let mut last: Option<Proposal> = None;
        let mut roots = Vec::new();
        let mut proving = Duration::ZERO;
        let outcome = execute_block_with_observer(&spec, block, input, &mut |_, delta| {
            let start = Instant::now();
            let session = self.begin(store, last.as_ref().map_or(at, At::Proposal))?;
            let proposal = session.finish(&delta)?;
            roots.push(proposal.root());
            last = Some(proposal);
            proving += start.elapsed();
            Ok(())
        })?;
        Ok((outcome, Some(roots), proving))
    }

    /// The state of a block of the tree, or of a durable one.
    fn state_of(&self, block: &SealedHeader) -> Result<ParentState, PipelineError> {
        if let Some(block) = self.tree.get(&block.hash()) {
            return Ok(ParentState::Tree(block.clone()));
        }
        if block.number < self.first_retained() {
            return Err(self.beyond_retention(block.number));
        }
        Ok(ParentState::Durable(block.hash()))
    }

    /// A session on a state that was there when [`state_of`](Self::state_of) looked. The commit that
    /// runs beside us may have moved the retained blocks beyond it.
    fn begin<'s>(&self, store: &'s StateStore, at: At<'_>) -> Result<Session<'s>, PipelineError> {
        store.begin(at).map_err(|error| match &error {
            StateError::UnknownBlock { hash } => match self.read.block_number(hash) {
                Ok(Some(number)) if number < self.first_retained() => self.beyond_retention(number),
                _ => error.into(),
            },
            _ => error.into(),
        })
    }

    /// Oldest durable block that can be built on.
    fn first_retained(&self) -> u64 {
        self.chain.store.retained().map_or(0, |retained| *retained.start())
    }

    fn beyond_retention(&self, number: u64) -> PipelineError {
        self.chain.store.beyond_retention(number).into()
    }

    /// Executes stored side blocks again, from the last canonical block up to `block`, if its state
    /// is no longer at hand.
    fn restore_branch(&mut self, block: &SealedHeader) -> Result<(), PipelineError> {
        let first = self.first_retained();
        let mut branch = Vec::new();
        let mut hash = block.hash();
        while !self.tree.contains_key(&hash) && !self.read.is_canonical(&hash)? {
            let stored =
                self.read.recovered_block(&hash)?.ok_or(StateError::UnknownBlock { hash })?;
            if stored.number() <= first {
                return Err(self.beyond_retention(stored.number().saturating_sub(1)));
            }
            hash = stored.parent_hash();
            branch.push(stored);
        }
        for stored in branch.into_iter().rev() {
            let parent = stored.parent_hash();
            let parent = self.header(&parent)?.ok_or(StateError::UnknownBlock { hash: parent })?;
            let hash = stored.hash();
            let verified = self.verify(stored, &parent)?;
            self.insert(hash, Arc::new(verified));
        }
        Ok(())
    }

    // -- the tree ---------------------------------------------------------------------------------

    fn accept(&mut self, block: Arc<TreeBlock>) -> Result<Imported, PipelineError> {
        let (number, hash) = (block.block.number(), block.block.hash());
        self.report.blocks += 1;
        self.report.txs += block.block.transaction_count() as u64;
        self.report.gas += block.block.gas_used();
        self.metrics.blocks.inc();
        self.metrics.transactions.inc_by(block.block.transaction_count() as u64);
        self.metrics.gas.inc_by(block.block.gas_used());
        self.insert(hash, block.clone());

        let outcome = if block.block.parent_hash() == self.head.header.hash() {
            self.extend(block);
            Imported::Head
        } else if ForkChoice::decide(&self.head.chain, &block.chain) == ForkChoice::Switch {
            let ancestor = self.reorg(&block)?;
            self.report.reorgs += 1;
            self.metrics.reorgs.inc();
            tracing::info!(number, %hash, ancestor, "reorg");
            Imported::Reorg { ancestor }
        } else {
            self.report.side_blocks += 1;
            self.metrics.side_blocks.inc();
            tracing::debug!(number, %hash, "side block");
            self.committer.side_block(&block)?;
            Imported::Side
        };
        self.metrics.head.set(self.head.header.number as i64);
        let full = self.pending.len() >= self.options.batch_blocks
            || self.pending_rows >= self.options.batch_rows
            || self.pending_bytes >= self.options.batch_bytes
            || self.pending_since.elapsed() >= self.options.batch_time;
        if full && !self.pending.is_empty() {
            self.hand_over()?;
        }
        Ok(outcome)
    }

    fn insert(&mut self, hash: B256, block: Arc<TreeBlock>) {
        self.tree_codes.extend(block.codes.iter().cloned());
        self.tree.insert(hash, block);
    }

    /// To be called once blocks have left the tree.
    fn forget_codes(&mut self) {
        let codes = self.tree.values().flat_map(|block| block.codes.iter().cloned());
        self.tree_codes = codes.collect();
    }

    fn extend(&mut self, block: Arc<TreeBlock>) {
        if self.pending.is_empty() {
            self.pending_since = Instant::now();
        }
        self.head = Head { header: block.block.clone_sealed_header(), chain: block.chain };
        self.pending_rows += block.rows();
        self.pending_bytes += block.bytes();
        self.pending.push(block);
    }

    /// Makes `block`'s branch canonical; returns the number of the common ancestor.
    fn reorg(&mut self, block: &Arc<TreeBlock>) -> Result<u64, PipelineError> {
        let old_head = self.head();
        self.flush()?;
        // Everything canonical is durable now. The branch, from its tip down to a canonical block:
        let mut branch = vec![block.clone()];
        let ancestor = loop {
            let first = &branch[branch.len() - 1].block;
            let parent = first.parent_hash();
            if self.read.is_canonical(&parent)? {
                break first.number() - 1;
            }
            let Some(parent) = self.tree.get(&parent) else {
                // The commits just made have moved the retained blocks beyond it.
                return Err(self.beyond_retention(first.number() - 1));
            };
            branch.push(parent.clone());
        };
        self.chain.revert(ancestor)?;
        tracing::debug!(old = %old_head, ancestor, "took the durable chain back");
        self.refresh()?;
        // Side blocks may stand on blocks that are not canonical any more. All are stored: should
        // their branch, or the one just left, win later, it is executed again.
        self.tree = branch.iter().map(|block| (block.block.hash(), block.clone())).collect();
        self.forget_codes();
        for block in branch.into_iter().rev() {
            self.extend(block);
        }
        Ok(ancestor)
    }

    /// Gives the pending blocks to the committer and forgets those that are durable.
    fn hand_over(&mut self) -> Result<(), PipelineError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let blocks = std::mem::take(&mut self.pending);
        self.pending_rows = 0;
        self.pending_bytes = 0;
        let start = Instant::now();
        let done = self.committer.send(CommitJob { blocks })?;
        self.waited_for_commit(start);
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
            self.tree.remove(hash);
        }
        // In this order: what lies below is then durable in what `read` sees, though the next commit
        // may end meanwhile.
        let first = self.first_retained();
        self.refresh()?;
        self.tree.retain(|_, block| block.block.number() > first);
        self.forget_codes();
        Ok(())
    }

    fn refresh(&mut self) -> Result<(), PipelineError> {
        self.read = self.chain.db.begin_read()?;
        Ok(())
    }
}

/// The state a block stands on.
enum ParentState {
    Tree(Arc<TreeBlock>),
    Durable(B256),
}

impl ParentState {
    fn as_at(&self) -> At<'_> {
        match self {
            Self::Tree(block) => At::Proposal(&block.proposal),
            Self::Durable(hash) => At::Block(*hash),
        }
    }

    fn referee(&self) -> At<'_> {
        match self {
            Self::Tree(block) => match &block.referee {
                Some(proposal) => At::Proposal(proposal),
                None => At::Block(block.block.hash()),
            },
            Self::Durable(hash) => At::Block(*hash),
        }
    }
}

/// Codes and ancestor hashes for a block on `parent`.
struct Surroundings<'a, 'b> {
    importer: &'b Importer<'a>,
    parent: &'b SealedHeader,
    /// Hashes of the ancestors walked so far, `parent`'s first, up to a canonical durable one: a
    /// contract may ask for 255 of them.
    walked: RefCell<Vec<B256>>,
}

impl<'a, 'b> Surroundings<'a, 'b> {
    fn new(importer: &'b Importer<'a>, parent: &'b SealedHeader) -> Self {
        Self { importer, parent, walked: RefCell::new(vec![parent.hash()]) }
    }

    fn ancestor(&self, number: u64) -> Result<Option<B256>, PipelineError> {
        let Some(depth) = self.parent.number.checked_sub(number) else { return Ok(None) };
        let mut walked = self.walked.borrow_mut();
        let read = &self.importer.read;
        while walked.len() as u64 <= depth {
            let at = walked[walked.len() - 1];
            if read.is_canonical(&at)? {
                return Ok(read.canonical_hash(number)?);
            }
            match self.importer.header(&at)? {
                Some(header) => walked.push(header.parent_hash),
                None => return Ok(None),
            }
        }
        Ok(Some(walked[depth as usize]))
    }
}

impl CodeReader for Surroundings<'_, '_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        if let Some(code) = self.importer.tree_codes.get(hash) {
            return Ok(Some(code.clone()));
        }
        let stored = self.importer.read.code(hash);
        stored.map_err(|error| StoreError::new(format!("reading code {hash}"), error).into())
    }
}

impl BlockHashes for Surroundings<'_, '_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.ancestor(number).map_err(|error| {
            let action = format!("looking for ancestor {number}");
            StoreError::new(action, error.to_string()).into()
        })
    }
}

/// Headers and ommers of ancestors, for the rules of ommers.
struct Ancestors<'a, 'b>(&'b Importer<'a>);

impl HeaderProvider for Ancestors<'_, '_> {
    type Error = PipelineError;

    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, PipelineError> {
        if let Some(block) = self.0.tree.get(&hash) {
            let ommers = block.block.body().ommers.clone();
            return Ok(Some((block.block.clone_sealed_header(), ommers)));
        }
        let Some(header) = self.0.header(&hash)? else { return Ok(None) };
        let missing = || StateError::corrupt("Bodies", format!("block {hash} has no body"));
        let body = self.0.read.body(&hash)?.ok_or_else(missing)?;
        Ok(Some((header, body.ommers)))
    }
}

/// Imports all blocks of `stream`, telling `progress` after each, until `stop` is set.
///
/// On an error everything before the block it names is made durable first.
pub(crate) fn import_stream(
    importer: &mut Importer<'_>,
    stream: impl Iterator<Item = Result<PreparedBlock, PipelineError>>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<End, PipelineError> {
    let mut end = Ok(End::Complete);
    for block in stream {
        if stop.load(Ordering::Relaxed) {
            end = Ok(End::Stopped);
            break;
        }
        match block.and_then(|block| importer.import_prepared(block)) {
            Ok(_) => progress(&importer.report()),
            Err(error) => {
                end = Err(error);
                break;
            }
        }
    }
    let flushed = importer.flush();
    progress(&importer.report());
    // The block's own error says more than one that followed from it.
    end.and_then(|end| flushed.map(|()| end))
}
