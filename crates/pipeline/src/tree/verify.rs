//! The verification of one block on its parent, wherever in the tree or the chain that is.

use super::Tree;
use crate::{ExecutedBlock, PipelineError, StatesAt, StatesSession};
use alloy_consensus::BlockHeader;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use retrie_chainspec::primitives::{Header, RecoveredBlock, SealedHeader};
use retrie_consensus::{ChainHead, ExecutionResult, HeaderProvider};
use retrie_db::ChainRead;
use retrie_execution::{
    BlockAccessList, BlockHashes, CodeReader, ExecutionInput, ExecutionOutcome, execute_block,
    execute_block_with_observer,
};
use retrie_state::{StateError, StoreError};
use std::{sync::Arc, time::Duration};

impl Tree<'_> {
    /// The chain that ends with a known block.
    pub(crate) fn chain_of(&self, header: &SealedHeader) -> Result<ChainHead, PipelineError> {
        let hash = header.hash();
        if self.head.header.hash() == hash {
            return Ok(self.head.chain);
        }
        if let Some(block) = self.blocks.get(&hash) {
            return Ok(block.chain);
        }
        Ok(ChainHead {
            number: header.number,
            hash,
            total_difficulty: self.read.total_difficulty(&hash)?.unwrap_or_default(),
            is_pos: self.chain.spec.is_pos(header),
        })
    }

    pub(super) fn verify(
        &mut self,
        block: Arc<RecoveredBlock>,
        access_list: Option<&BlockAccessList>,
        parent: &SealedHeader,
    ) -> Result<ExecutedBlock, PipelineError> {
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
        let session = self.begin(at.at())?;
        let reader = session.own().reader();
        let surroundings = Surroundings::new(self, parent);
        let input =
            ExecutionInput::new(&reader, &surroundings, &surroundings).with_code_cache(&self.codes);
        let (outcome, roots, proving) =
            if self.intermediate_roots && !spec.is_byzantium_active_at_block(number) {
                self.execute_with_roots(&block, at.at(), input)?
            } else {
                let outcome = match access_list {
                    Some(list) => self.execute_listed(&spec, &block, list, &session, input),
                    None => execute_block(&spec, &block, input),
                };
                (outcome?, None, Duration::ZERO)
            };
        drop(reader);

        let (states, proposing) = session.finish(&outcome.delta)?;
        chain.states.seal(&states, hash);

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
        let checked = chain.states.check_roots(block.sealed_header(), states.roots())?;

        self.counts.roots_checked += checked;
        self.times.reads += outcome.timing.storage;
        self.times.execution += outcome.timing.execution().saturating_sub(proving);
        self.times.authentication += proposing + proving;
        self.counts.key_reads += outcome.accesses.accounts + outcome.accesses.slots;
        self.counts.key_writes += outcome.delta.len() as u64;
        self.metrics.roots_checked.inc_by(checked);
        self.metrics.key_reads.inc_by(outcome.accesses.accounts + outcome.accesses.slots);
        self.metrics.key_writes.inc_by(outcome.delta.len() as u64);
        self.metrics.state_read_seconds.inc_by(outcome.timing.storage.as_secs_f64());
        self.metrics.execution_seconds.observe(outcome.timing.total.as_secs_f64());
        self.metrics.propose_seconds.observe(proposing.as_secs_f64());
        let head = parent_chain.child(&chain.spec, hash, header);
        Ok(ExecutedBlock::new(block, outcome, head, states))
    }

    /// Executes, and learns the state roots that receipts before Byzantium hold.
    fn execute_with_roots(
        &self,
        block: &RecoveredBlock,
        at: StatesAt<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<(ExecutionOutcome, Option<Vec<B256>>, Duration), PipelineError> {
        let spec = self.chain.spec.for_header(block.header());
        let mut roots = self.chain.states.receipt_roots(at)?;
        let mut observer = |_, delta| Ok(roots.push(&delta)?);
        let outcome = execute_block_with_observer(&spec, block, input, &mut observer)?;
        let (roots, proving) = roots.finish();
        Ok((outcome, Some(roots), proving))
    }

    /// The state of a block of the tree, or of a durable one.
    fn state_of(&self, block: &SealedHeader) -> Result<ParentState, PipelineError> {
        if let Some(block) = self.blocks.get(&block.hash()) {
            return Ok(ParentState::Tree(block.clone()));
        }
        if block.number < self.first_retained() {
            return Err(self.beyond_retention(block.number));
        }
        Ok(ParentState::Durable(block.hash()))
    }

    /// A session on a state that was there when [`state_of`](Self::state_of) looked. The commit that
    /// runs beside us may have moved the retained blocks beyond it.
    fn begin(&self, at: StatesAt<'_>) -> Result<StatesSession<'_>, PipelineError> {
        self.chain.states.begin(at).map_err(|error| match &error {
            StateError::UnknownBlock { hash } => match self.read.block_number(hash) {
                Ok(Some(number)) if number < self.first_retained() => self.beyond_retention(number),
                _ => error.into(),
            },
            _ => error.into(),
        })
    }

    /// Oldest durable block that can be built on.
    pub fn first_retained(&self) -> u64 {
        self.chain.states.first_retained().unwrap_or(0)
    }

    pub(super) fn beyond_retention(&self, number: u64) -> PipelineError {
        self.chain.states.beyond_retention(number).into()
    }

    /// Executes stored side blocks again, from the last canonical block up to `block`, if its state
    /// is no longer at hand.
    pub(super) fn restore_branch(&mut self, block: &SealedHeader) -> Result<(), PipelineError> {
        let first = self.first_retained();
        let mut branch = Vec::new();
        let (mut hash, mut number) = (block.hash(), block.number);
        while hash != self.head.header.hash() && !self.is_canonical(&hash)? {
            // A block in memory may stand on one that has left the canonical chain since.
            if let Some(known) = self.blocks.get(&hash) {
                hash = known.block().parent_hash();
                number = number.saturating_sub(1);
                continue;
            }
            // It may not even be stored: side blocks in memory are forgotten below this.
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

/// The state a block stands on.
enum ParentState {
    Tree(Arc<ExecutedBlock>),
    Durable(B256),
}

impl ParentState {
    fn at(&self) -> StatesAt<'_> {
        match self {
            Self::Tree(block) => StatesAt::Proposals(&block.states),
            Self::Durable(hash) => StatesAt::Block(*hash),
        }
    }
}

/// Codes and ancestor hashes for a block on `parent`.
struct Surroundings<'a, 'b> {
    tree: &'b Tree<'a>,
    parent: &'b SealedHeader,
    /// Hashes of the ancestors walked so far, `parent`'s first, up to a canonical durable one: a
    /// contract may ask for 255 of them.
    walked: Mutex<Vec<B256>>,
}

impl<'a, 'b> Surroundings<'a, 'b> {
    fn new(tree: &'b Tree<'a>, parent: &'b SealedHeader) -> Self {
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
            match self.tree.header(&at)? {
                Some(header) => walked.push(header.parent_hash),
                None => return Ok(None),
            }
        }
        Ok(Some(walked[depth as usize]))
    }
}

impl CodeReader for Surroundings<'_, '_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        if let Some(code) = self.tree.block_codes.get(hash) {
            return Ok(Some(code.clone()));
        }
        let stored = self.tree.read.code(hash);
        stored.map_err(|error| StoreError::new(format!("reading code {hash}"), error).into())
    }
}

impl BlockHashes for Surroundings<'_, '_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.ancestor(number).map_err(|error| {
            let action = format!("looking for ancestor {number}");
            StoreError::new(action, error).into()
        })
    }
}

/// Headers and ommers of ancestors, for the rules of ommers.
struct Ancestors<'a, 'b>(&'b Tree<'a>);

impl HeaderProvider for Ancestors<'_, '_> {
    type Error = PipelineError;

    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, PipelineError> {
        if let Some(block) = self.0.blocks.get(&hash) {
            let ommers = block.block().body().ommers.clone();
            return Ok(Some((block.block().clone_sealed_header(), ommers)));
        }
        let Some(header) = self.0.header(&hash)? else { return Ok(None) };
        let missing = || StateError::corrupt("Bodies", format!("block {hash} has no body"));
        let body = self.0.read.body(&hash)?.ok_or_else(missing)?;
        Ok(Some((header, body.ommers)))
    }
}
