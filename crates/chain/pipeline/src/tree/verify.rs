//! Verification of one block on its parent, which may be anywhere in the tree or the chain.

use super::{
    BlockTree,
    batch::BlockBatch,
    root_task::{BaseStates, BlockWrites, ComputedRoot, RootComputation},
    spans::{block_span, record_reads},
};
use crate::{
    BlockWithReceipts, ExecutedBlock, InvalidBlockError, PipelineError, PreparedBlock, SessionSet,
    StatePatch, StoreSetId, outcome::validate_outcome,
};
use alloy_consensus::BlockHeader;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use retrie_chainspec::primitives::{Header, Receipt, RecoveredBlock, SealedHeader};
use retrie_consensus::{ChainHead, HeaderProvider};
use retrie_db::{ChainRead, DbError, add_to_table};
use retrie_execution::{
    BatchState, BlockAccessList, BlockHashes, CodeReader, ExecutionInput, ExecutionOutcome,
    LayeredState, execute_block, execute_block_with_observer,
};
use retrie_log_tables::{TableBuilder, TableSpan};
use retrie_state::{BlockRef, StateDelta, StateError, StateReader, StoreError};
use retrie_telemetry::spans::TraceContext;
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tracing::Span;

/// A block after the first half of its verification: everything that needs no state root is
/// checked.
#[derive(Debug)]
pub(super) struct CheckedExecution {
    pub(super) block: Arc<RecoveredBlock>,
    pub(super) delta: Arc<StateDelta>,
    /// The chain that ends with the block.
    chain: ChainHead,
    /// Everything else that the execution yields.
    outcome: ExecutionOutcome,
    /// Execution time that went into the roots in receipts.
    proving: Duration,
}

impl CheckedExecution {
    /// The second half of the verification.
    pub(super) fn root_task<'a>(&self, base: BaseStates<'a>) -> RootComputation<'a> {
        let (block, writes) = (self.block.clone(), BlockWrites::Block(self.delta.clone()));
        RootComputation { parent: block.parent_hash(), block, writes, base }
    }
}

impl<'a> BlockTree<'a> {
    /// Height and total difficulty of a known block.
    pub(crate) fn chain_of(&self, header: &SealedHeader) -> Result<ChainHead, PipelineError> {
        let hash = header.hash();
        if self.head.header.hash() == hash {
            return Ok(self.head.chain);
        }
        if let Some(block) = self.blocks.get(&hash) {
            return Ok(block.chain);
        }
        if let Some(ahead) = self.ahead.get(&hash) {
            return Ok(ahead.chain);
        }
        Ok(ChainHead {
            number: header.number,
            hash,
            total_difficulty: self.read.total_difficulty(&hash)?.unwrap_or_default(),
            is_pos: self.chain.spec.is_pos(header),
        })
    }

    /// Verifies a block whose parent is known and adds it to the tree. The head stays.
    ///
    /// # Errors
    /// [`PipelineError::is_invalid_block`] tells invalid blocks from other failures.
    pub fn insert(&mut self, block: PreparedBlock) -> Result<Arc<ExecutedBlock>, PipelineError> {
        let begun = self.record_prepare(&block);
        let PreparedBlock { block, access_list, .. } = block;
        let span = block_span(&block);
        let _entered = span.enter();
        let parent = self.parent_of(&block);
        let hash = block.hash();
        let verified =
            parent.and_then(|parent| self.verify(block, access_list.as_deref(), &parent));
        self.stop_prefetch(&hash);
        self.insert_verified(verified, begun, &span)
    }

    /// Records the time that the block's preparation took. Returns the time at which its
    /// verification begins.
    pub(super) fn record_prepare(&mut self, block: &PreparedBlock) -> Instant {
        self.times.prepare += block.prepare;
        self.metrics.prepare_seconds.observe(block.prepare.as_secs_f64());
        Instant::now()
    }

    /// Counts a verified block and adds it to the tree. Its commit will be a part of `span`.
    pub(super) fn insert_verified(
        &mut self,
        verified: Result<ExecutedBlock, PipelineError>,
        begun: Instant,
        span: &Span,
    ) -> Result<Arc<ExecutedBlock>, PipelineError> {
        match verified {
            Ok(mut block) => {
                block.trace = TraceContext::of(span);
                let took = begun.elapsed() / block.batch_len() as u32;
                block.batch().for_each(|of| self.count(&of.block, took));
                Ok(self.add(Arc::new(block)))
            }
            Err(error) => {
                if error.is_invalid_block() {
                    self.metrics.invalid_blocks.inc();
                }
                Err(error)
            }
        }
    }

    fn count(&mut self, block: &RecoveredBlock, took: Duration) {
        let (txs, gas) = (block.transaction_count() as u64, block.gas_used());
        self.counts.blocks += 1;
        self.counts.txs += txs;
        self.counts.gas += gas;
        self.metrics.blocks.inc();
        self.metrics.transactions.inc_by(txs);
        self.metrics.gas.inc_by(gas);
        self.metrics.block_seconds.observe(took.as_secs_f64());
    }

    /// The parent of a block. Its state is available on return, or will be when the blocks ahead
    /// are finished.
    pub(super) fn parent_of(
        &mut self,
        block: &RecoveredBlock,
    ) -> Result<SealedHeader, PipelineError> {
        let (number, hash, parent) = (block.number(), block.hash(), block.parent_hash());
        if let Some(ahead) = self.ahead.get(&parent) {
            return Ok(ahead.block.clone_sealed_header());
        }
        let parent = self.header(&parent)?.ok_or(PipelineError::UnknownParent {
            number,
            hash,
            parent,
            head: self.head.header.number,
        })?;
        self.restore_branch(&parent)?;
        Ok(parent)
    }

    /// Both halves, one after the other.
    pub(super) fn verify(
        &mut self,
        block: Arc<RecoveredBlock>,
        access_list: Option<&BlockAccessList>,
        parent: &SealedHeader,
    ) -> Result<ExecutedBlock, PipelineError> {
        let (executed, base) = self.execute(block, access_list, parent)?;
        let rooted = executed.root_task(base).run(&self.chain.states)?;
        let waited = rooted.took;
        Ok(self.finish_verification(executed.into(), rooted, waited))
    }

    /// The first half: executes a block on its parent, which may be ahead, and checks everything
    /// but state roots. Also returns the states that the second half needs.
    pub(super) fn execute(
        &self,
        block: Arc<RecoveredBlock>,
        access_list: Option<&BlockAccessList>,
        parent: &SealedHeader,
    ) -> Result<(CheckedExecution, BaseStates<'a>), PipelineError> {
        let chain = self.chain;
        let (number, hash) = (block.number(), block.hash());
        let header = block.header();
        let parent_chain = self.chain_of(parent)?;
        let spec = chain.spec.for_header(header);
        let sealed = block.sealed_block();
        let invalid = |source| InvalidBlockError::rule(sealed.sealed_header(), source);
        retrie_consensus::validate_header_against_parent(&spec, block.sealed_header(), parent)
            .map_err(invalid)?;
        retrie_consensus::validate_merge(&chain.spec, header, parent_chain.total_difficulty)
            .map_err(invalid)?;
        if !block.body().ommers.is_empty() {
            retrie_consensus::validate_ommers(&spec, sealed, TreeAncestors(self))
                .map_err(invalid)?;
        }

        let at = self.state_of(self.ahead.floor(parent))?;
        let session = self.begin(at.at())?;
        let _ahead = self.prefetch_block(&session, &block, access_list);
        let mut below = LayeredState::new(session.own().reader());
        self.ahead
            .deltas_below(&parent.hash())
            .for_each(|delta| below.push_delta(delta.clone(), []));
        // A dev chain's patch, if the block is stored and executed again.
        let patch = StatePatch::stored(&self.read, &hash)?;
        patch.iter().for_each(|patch| below.push_delta(patch.delta.clone(), []));
        let in_run;
        let state: &dyn StateReader = match &self.ahead.open_batch {
            Some(run) => {
                in_run = BatchState::new(below, run.deltas.sum());
                &in_run
            }
            None => &below,
        };
        let surroundings = ParentContext::new(self, parent);
        let input =
            ExecutionInput::new(state, &surroundings, &surroundings).with_code_cache(&self.codes);
        let (execution, execution_begun) = (tracing::debug_span!("execution"), SystemTime::now());
        let entered = execution.enter();
        let (mut outcome, roots, proving) = if self.checks_receipt_roots(number) {
            self.execute_with_roots(&block, at.at(), input)?
        } else {
            let outcome = match access_list {
                Some(list) => self.execute_with_list(&spec, &block, list, &session, input),
                // The other threads work on the blocks below, or will work on the whole batch.
                None if self.ahead.open_batch.is_some()
                    || self.ahead.pending_states(&parent.hash()).is_some() =>
                {
                    execute_block(&spec, &block, input)
                }
                None => self.execute_with_hints(&spec, &block, &session, input),
            };
            (outcome?, None, Duration::ZERO)
        };
        drop(entered);
        record_reads(&execution, execution_begun, &outcome);

        validate_outcome(&spec, sealed, &outcome, roots.as_deref()).map_err(invalid)?;
        let head = parent_chain.child(&chain.spec, hash, header);
        let mut delta = std::mem::take(&mut outcome.delta);
        if let Some(patch) = patch {
            delta = patch.delta.then(&delta);
            outcome.codes.extend(patch.codes());
        }
        let delta = Arc::new(delta);
        let base = match self.ahead.pending_states(&parent.hash()) {
            Some(states) => BaseStates::Pending(states),
            None => BaseStates::Ready(Box::new(session)),
        };
        Ok((CheckedExecution { block, delta, chain: head, outcome, proving }, base))
    }

    /// Joins the two halves, of one block or of a batch, and counts figures and times. `waited` is
    /// how long this thread waited for the second half.
    pub(super) fn finish_verification(
        &mut self,
        executed: BlockBatch,
        rooted: ComputedRoot,
        waited: Duration,
    ) -> ExecutedBlock {
        let ComputedRoot { states, checked, took } = rooted;
        self.counts.roots_checked += checked;
        self.times.authentication += waited;
        self.times.roots_aside += took.saturating_sub(waited);
        self.metrics.roots_checked.inc_by(checked);
        self.metrics.propose_seconds.observe(took.as_secs_f64());
        self.metrics.root_wait_seconds.inc_by(waited.as_secs_f64());
        executed.iter().for_each(|one| self.count_execution(one));
        let deltas = executed.iter().map(|one| one.delta.clone());
        let preimages = self.chain.states.preimages_of(deltas);
        let BlockBatch { inner, last: CheckedExecution { block, chain, outcome, .. } } = executed;
        let mut whole = ExecutedBlock::new(block, outcome, chain, states);
        whole.preimages = preimages;
        for CheckedExecution { block, chain, outcome, .. } in inner {
            whole.push_inner(block, outcome, chain.total_difficulty);
        }
        whole
    }

    fn count_execution(&mut self, executed: &CheckedExecution) {
        let CheckedExecution { delta, outcome, proving, .. } = executed;
        let (reads, writes) =
            (outcome.accesses.accounts + outcome.accesses.slots, delta.len() as u64);
        self.counts.key_reads += reads;
        self.counts.key_writes += writes;
        self.times.reads += outcome.timing.storage;
        self.times.execution += outcome.timing.execution().saturating_sub(*proving);
        self.times.authentication += *proving;
        self.metrics.key_reads.inc_by(reads);
        self.metrics.key_writes.inc_by(writes);
        self.metrics.state_read_seconds.inc_by(outcome.timing.storage.as_secs_f64());
        self.metrics.execution_seconds.observe(outcome.timing.total.as_secs_f64());
    }

    /// Whether this block's receipts hold state roots that are checked.
    pub(super) fn checks_receipt_roots(&self, number: u64) -> bool {
        self.intermediate_roots && !self.chain.spec.is_byzantium_active_at_block(number)
    }

    /// Executes, and computes the state roots that receipts before Byzantium hold.
    fn execute_with_roots(
        &self,
        block: &RecoveredBlock,
        at: StoreSetId<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<(ExecutionOutcome, Option<Vec<B256>>, Duration), PipelineError> {
        let spec = self.chain.spec.for_header(block.header());
        let mut roots = self.chain.states.receipt_roots(at)?;
        let mut observer = |_, delta| Ok(roots.push(&delta)?);
        let outcome = execute_block_with_observer(&spec, block, input, &mut observer)?;
        let (roots, proving) = roots.finish();
        Ok((outcome, Some(roots), proving))
    }

    /// A block of the tree, or ahead, with its receipts.
    fn executed(&self, hash: &B256) -> Option<(&RecoveredBlock, &[Receipt])> {
        if let Some(one) = self.ahead.get(hash) {
            return Some((&*one.block, &one.outcome.receipts));
        }
        let mut all = self.blocks.values().flat_map(|block| block.batch());
        let of_batch = |data: &&BlockWithReceipts| data.block.hash() == *hash;
        let found = match self.blocks.get(hash) {
            Some(block) => Some(&block.data),
            None if self.batch_blocks.contains_key(hash) => all.find(of_batch),
            None => None,
        };
        found.map(|data| (&*data.block, &data.receipts[..]))
    }

    /// The state of a block in the tree, or of a durable block.
    pub(super) fn state_of(&self, block: BlockRef) -> Result<ParentState, PipelineError> {
        if let Some(block) = self.blocks.get(&block.hash) {
            return Ok(ParentState::Tree(block.clone()));
        }
        if block.number < self.first_retained() {
            return Err(self.beyond_retention(block.number));
        }
        Ok(ParentState::Durable(block.hash))
    }

    /// Sessions on a state that existed when [`state_of`](Self::state_of) returned. A commit that
    /// runs in parallel may have moved the retained blocks beyond it.
    pub(super) fn begin(&self, at: StoreSetId<'_>) -> Result<SessionSet<'a>, PipelineError> {
        self.chain.states.begin(at).map_err(|error| match &error {
            StateError::UnknownBlock { hash } => match self.read.block_number(hash) {
                Ok(Some(number)) if number < self.first_retained() => self.beyond_retention(number),
                _ => error.into(),
            },
            _ => error.into(),
        })
    }

    /// Oldest durable block that can be extended.
    pub fn first_retained(&self) -> u64 {
        self.chain.states.first_retained().unwrap_or(0)
    }

    pub(super) fn beyond_retention(&self, number: u64) -> PipelineError {
        self.chain.states.beyond_retention(number).into()
    }

    /// Header of a block that is known or ahead.
    fn header_or_ahead(&self, hash: &B256) -> Result<Option<SealedHeader>, PipelineError> {
        match self.ahead.get(hash) {
            Some(ahead) => Ok(Some(ahead.block.clone_sealed_header())),
            None => self.header(hash),
        }
    }

    /// Executes stored side blocks again, from the last canonical block up to `block`, if its state
    /// is no longer available.
    pub(super) fn restore_branch(&mut self, block: &SealedHeader) -> Result<(), PipelineError> {
        let first = self.first_retained();
        let mut branch = Vec::new();
        let (mut hash, mut number) = (block.hash(), block.number);
        while hash != self.head.header.hash() && !self.is_canonical(&hash)? {
            // A block in memory may have a parent that has since left the canonical chain.
            if let Some(known) = self.blocks.get(&hash) {
                hash = known.block().parent_hash();
                number = number.saturating_sub(1);
                continue;
            }
            // It may not even be stored: side blocks in memory are dropped below this block.
            if number <= first {
                return Err(self.beyond_retention(number.saturating_sub(1)));
            }
            let stored =
                self.read.recovered_block(&hash)?.ok_or(StateError::UnknownBlock { hash })?;
            hash = stored.parent_hash();
            number = number.saturating_sub(1);
            branch.push(stored);
        }
        for stored in branch.into_iter().rev() {
            let parent = stored.parent_hash();
            let parent = self.header(&parent)?.ok_or(StateError::UnknownBlock { hash: parent })?;
            let verified = self.verify(Arc::new(stored), None, &parent)?;
            self.add(Arc::new(verified));
        }
        Ok(())
    }
}

/// The state of a block's parent.
pub(super) enum ParentState {
    Tree(Arc<ExecutedBlock>),
    Durable(B256),
}

impl ParentState {
    pub(super) fn at(&self) -> StoreSetId<'_> {
        match self {
            Self::Tree(block) => StoreSetId::Proposals(&block.states),
            Self::Durable(hash) => StoreSetId::Block(*hash),
        }
    }
}

/// Codes and ancestor hashes for a block on `parent`.
struct ParentContext<'a, 'b> {
    tree: &'b BlockTree<'a>,
    parent: &'b SealedHeader,
    /// Hashes of the ancestors walked so far, `parent`'s first, down to a canonical durable one. A
    /// contract may ask for 255 of them.
    walked: Mutex<Vec<B256>>,
}

impl<'a, 'b> ParentContext<'a, 'b> {
    fn new(tree: &'b BlockTree<'a>, parent: &'b SealedHeader) -> Self {
        Self { tree, parent, walked: Mutex::new(vec![parent.hash()]) }
    }

    fn ancestor(&self, number: u64) -> Result<Option<B256>, PipelineError> {
        let Some(depth) = self.parent.number.checked_sub(number) else { return Ok(None) };
        let mut walked = self.walked.lock();
        let read = &self.tree.read;
        while walked.len() as u64 <= depth {
            let at = walked[walked.len() - 1];
            if read.is_canonical(&at)? {
                return Ok(read.canonical_hash(number)?);
            }
            match self.tree.header_or_ahead(&at)? {
                Some(header) => walked.push(header.parent_hash),
                None => return Ok(None),
            }
        }
        Ok(Some(walked[depth as usize]))
    }
}

impl ParentContext<'_, '_> {
    /// The root of the index table of some ancestors, from their receipts.
    fn table_of(&self, span: TableSpan) -> Result<Option<B256>, PipelineError> {
        let mut table = TableBuilder::default();
        for number in span.first()..=span.last() {
            let Some(hash) = self.ancestor(number)? else { return Ok(None) };
            let is_there = match self.tree.executed(&hash) {
                Some((block, receipts)) => {
                    let transactions = &block.body().transactions;
                    add_to_table(&mut table, block.header(), transactions, receipts)
                }
                None => self.tree.read.add_to_table(&mut table, &hash)?,
            };
            if !is_there {
                return Ok(None);
            }
        }
        Ok(Some(table.finish().root()))
    }
}

impl CodeReader for ParentContext<'_, '_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        if let Some(code) = self.tree.block_codes.get(hash) {
            return Ok(Some(code.clone()));
        }
        let mut ahead = self.tree.ahead.iter().flat_map(|executed| &executed.outcome.codes);
        if let Some((_, code)) = ahead.find(|(created, _)| created == hash) {
            return Ok(Some(code.clone()));
        }
        let stored = self.tree.read.code(hash);
        stored.map_err(|error| {
            StoreError::new(format!("reading code {hash}"), DbError::from(error)).into()
        })
    }
}

impl BlockHashes for ParentContext<'_, '_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.ancestor(number).map_err(|error| {
            let action = format!("looking for ancestor {number}");
            StoreError::new(action, error).into()
        })
    }

    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        self.table_of(span).map_err(|error| {
            let action = format!("indexing blocks {} to {}", span.first(), span.last());
            StoreError::new(action, error).into()
        })
    }
}

/// Headers and ommers of ancestors, for the ommer rules.
struct TreeAncestors<'a, 'b>(&'b BlockTree<'a>);

impl HeaderProvider for TreeAncestors<'_, '_> {
    type Error = PipelineError;

    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, PipelineError> {
        if let Some(block) = self.0.block(&hash) {
            let ommers = block.body().ommers.clone();
            return Ok(Some((block.clone_sealed_header(), ommers)));
        }
        if let Some(ahead) = self.0.ahead.get(&hash) {
            let ommers = ahead.block.body().ommers.clone();
            return Ok(Some((ahead.block.clone_sealed_header(), ommers)));
        }
        let Some(header) = self.0.header(&hash)? else { return Ok(None) };
        let missing = || StateError::corrupt("Bodies", format!("block {hash} has no body"));
        let body = self.0.read.body(&hash)?.ok_or_else(missing)?;
        Ok(Some((header, body.ommers)))
    }
}
