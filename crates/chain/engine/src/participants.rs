//! Who takes part in the transactions of a block, for the
//! [address index](retrie_db::DatabaseEnv::index_addresses).

use crate::LiveView;
use alloy_consensus::Transaction as _;
use alloy_primitives::{B256, TxKind};
use quick_cache::{Weighter, sync::Cache};
use retrie_chainspec::primitives::{Receipt, RecoveredBlock};
use retrie_db::{BlockParticipants, ContractCreation, TransactionParticipants};
use retrie_execution::{
    DatabaseError, EvmSimulation, ExecutionError, ParticipantInspector, TransactError,
};
use retrie_pipeline::PipelineError;
use std::{fmt, ops::RangeInclusive, sync::Arc};

impl LiveView {
    /// The blocks of the address index that are canonical in this view; `None` if there are none. The
    /// blocks above are in memory, or are not indexed yet.
    ///
    /// # Errors
    /// If the database fails; this holds for all methods below.
    pub fn indexed_addresses(&self) -> Result<Option<RangeInclusive<u64>>, PipelineError> {
        let Some(indexed) = self.durable().indexed_addresses()? else { return Ok(None) };
        // The database may have other blocks of the same numbers as those in memory.
        let range = *indexed.start()..=self.last_below_memory().min(*indexed.end());
        Ok((!range.is_empty()).then_some(range))
    }

    /// Who takes part in the transactions of a known block: what [`trace_participants`] finds, or
    /// found before. `None` if the block is not known.
    ///
    /// [`trace_participants`]: Self::trace_participants
    pub fn participants(
        &self,
        hash: &B256,
    ) -> Result<Option<Arc<BlockParticipants>>, PipelineError> {
        let cache = self.live().participants();
        if let Some(found) = cache.0.get(hash) {
            return Ok(Some(found));
        }
        let found = self.trace_participants(hash)?.map(Arc::new);
        if let Some(found) = &found {
            cache.0.insert(*hash, found.clone());
        }
        Ok(found)
    }

    /// Who takes part in the transactions of a known block, by executing it again on the state before
    /// it. If that state is not kept, or the outcome is not the stored one, only what block and
    /// receipts show. `None` if the block is not known.
    ///
    /// # Errors
    /// Also if this view [has lost its state](Self::has_lost_state): the next one may know more.
    pub fn trace_participants(
        &self,
        hash: &B256,
    ) -> Result<Option<BlockParticipants>, PipelineError> {
        let Some(block) = self.block(hash)? else { return Ok(None) };
        let receipts = self.receipts(hash)?.unwrap_or_default();
        let mut transactions = shown_by_block(&block, &receipts);
        let traced = self.trace(&block, &receipts)?;
        let is_traced = traced.is_some();
        for (transaction, calls) in transactions.iter_mut().zip(traced.unwrap_or_default()) {
            let created = calls.created().iter();
            let creation = |&(contract, creator)| ContractCreation { contract, creator };
            transaction.created = created.map(creation).collect();
            transaction.accounts.extend(calls.accounts());
        }
        Ok(Some(BlockParticipants { number: block.number, hash: *hash, is_traced, transactions }))
    }

    /// Executes the transactions of a block again; `None` if that cannot be done as it was.
    fn trace(
        &self,
        block: &RecoveredBlock,
        receipts: &[Receipt],
    ) -> Result<Option<Vec<ParticipantInspector>>, PipelineError> {
        let count = block.body().transactions.len();
        if count == 0 {
            return Ok(Some(Vec::new()));
        }
        let state = match self.state_before(block) {
            Err(error) if error.lacks_state() && !self.has_lost_state() => return Ok(None),
            state => state?,
        };
        let differs = |what: &dyn fmt::Display| {
            let (number, hash) = (block.number, block.hash());
            tracing::warn!(
                number, %hash, %what,
                "a block cannot be executed again as it was: its internal calls are not indexed"
            );
            Ok(None)
        };
        let failed = |index, source: DatabaseError| match source {
            // This says nothing about the block.
            DatabaseError::State(_) => {
                let (number, source) = (block.number, Box::new(source));
                Err(PipelineError::from(ExecutionError::Database { number, index, source }))
            }
            source => differs(&source),
        };
        let spec = self.live().spec().for_header(block.header());
        let mut simulation = match EvmSimulation::of_block(&spec, block, state.input()) {
            Ok(simulation) => simulation,
            Err(ExecutionError::Database { index, source, .. }) => return failed(index, *source),
            Err(error) => return differs(&error),
        };
        let (mut traced, mut gas_before) = (Vec::with_capacity(count), 0);
        for index in 0..count {
            let mut inspector = ParticipantInspector::default();
            let outcome = match simulation.replay(block, index, Some(&mut inspector)) {
                Ok((_, outcome)) => outcome,
                Err(TransactError::Database(source)) => return failed(Some(index), source),
                Err(error) => return differs(&error),
            };
            if let Some(receipt) = receipts.get(index) {
                let gas = receipt.cumulative_gas_used.saturating_sub(gas_before);
                gas_before = receipt.cumulative_gas_used;
                let result = &outcome.result;
                if (result.gas().tx_gas_used(), result.is_success()) != (gas, receipt.success) {
                    return differs(&format_args!("transaction {index} has another receipt"));
                }
            }
            if let Err(source) = simulation.commit(outcome.state) {
                return failed(Some(index), source);
            }
            traced.push(inspector);
        }
        Ok(Some(traced))
    }
}

/// Senders, recipients, contracts that transactions create directly, and contracts that log.
fn shown_by_block(block: &RecoveredBlock, receipts: &[Receipt]) -> Vec<TransactionParticipants> {
    let mut shown = Vec::with_capacity(block.body().transactions.len());
    for (index, transaction) in block.body().transactions.iter().enumerate() {
        let sender = block.senders().get(index).copied().unwrap_or_default();
        let (nonce, receipt) = (transaction.nonce(), receipts.get(index));
        let mut participants = TransactionParticipants { sender, nonce, ..Default::default() };
        participants.accounts.insert(sender);
        match transaction.kind() {
            TxKind::Call(to) => {
                participants.accounts.insert(to);
            }
            TxKind::Create if receipt.is_some_and(|receipt| receipt.success) => {
                let contract = sender.create(nonce);
                participants.accounts.insert(contract);
                participants.created.push(ContractCreation { contract, creator: sender });
            }
            TxKind::Create => {}
        }
        let logs = receipt.map_or(&[][..], |receipt| &receipt.logs[..]);
        participants.accounts.extend(logs.iter().map(|log| log.address));
        shown.push(participants);
    }
    shown
}

/// Bytes of participants that are cached.
const MAX_BYTES: u64 = 16 << 20;
/// Number of blocks for which the cache reserves its index.
const EXPECTED_BLOCKS: usize = 256;
/// Bytes of a participant with its share of a tree, and of a transaction without participants.
const ACCOUNT: u64 = 48;
const TRANSACTION: u64 = 128;

/// Who takes part in blocks that searches have traced last: blocks that are not indexed yet. By the
/// hash of the block, so a reorganisation does not concern it.
pub(crate) struct ParticipantCache(Cache<B256, Arc<BlockParticipants>, ParticipantWeighter>);

impl Default for ParticipantCache {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED_BLOCKS, MAX_BYTES, ParticipantWeighter))
    }
}

impl fmt::Debug for ParticipantCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParticipantCache").field("blocks", &self.0.len()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct ParticipantWeighter;

impl Weighter<B256, Arc<BlockParticipants>> for ParticipantWeighter {
    fn weight(&self, _: &B256, block: &Arc<BlockParticipants>) -> u64 {
        let transactions = block.transactions.len() as u64;
        TRANSACTION * (transactions + 1) + ACCOUNT * block.count() as u64
    }
}
