//! Building blocks: transactions in, a complete block out.
//!
//! Every new block is made here. The caller chooses and orders the transactions; the rest of the
//! header follows from the parent, the rules and the execution.

use crate::{
    ExecutedBlock, InvalidBlockError, PipelineError, SessionSet, StatePatch, StoreSet, StoreSetId,
};
use alloy_consensus::{
    TxReceipt,
    proofs::{
        calculate_ommers_root, calculate_receipt_root, calculate_transaction_root,
        calculate_withdrawals_root,
    },
    transaction::Recovered,
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{
        Block, BlockBody, Header, RecoveredBlock, SealedHeader, Transaction, Withdrawal,
        Withdrawals,
    },
};
use retrie_consensus::{ChainHead, ConsensusError};
use retrie_execution::{
    BlockHashes, CodeCache, CodeReader, ExecutionInput, ExecutionOutcome, LayeredState,
    TransactionSource, execute_block, execute_block_with_observer, fill_block,
};
use std::sync::Arc;

/// The block to build on.
#[derive(Clone, Copy, Debug)]
pub struct BuildParent<'a> {
    /// Its header.
    pub header: &'a SealedHeader,
    /// Total difficulty up to and including it.
    pub total_difficulty: U256,
    /// Its states.
    pub states: StoreSetId<'a>,
}

/// Header fields and lists that follow neither from the parent nor from the transactions. Fields
/// that the fork does not have yet are left out of the header.
#[derive(Clone, Debug, Default)]
pub struct BlockAttributes {
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Recipient of the fees.
    pub beneficiary: Address,
    /// Gas limit. A header rule bounds its distance from the parent's.
    pub gas_limit: u64,
    /// Randomness of the beacon chain (EIP-4399); the mix hash under proof of work.
    pub prev_randao: B256,
    /// Root of the parent beacon block (EIP-4788), from Cancun on.
    pub parent_beacon_block_root: B256,
    /// Withdrawals (EIP-4895), from Shanghai on.
    pub withdrawals: Vec<Withdrawal>,
    /// Headers of ommers, under proof of work.
    pub ommers: Vec<Header>,
    /// Free bytes.
    pub extra_data: Bytes,
    /// Slot of the beacon chain (EIP-7843), from Amsterdam on.
    pub slot_number: Option<u64>,
}

/// Overrides of the rules for a block of a dev chain. Such a block cannot be verified without them.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOverrides<'a> {
    /// Changes of the parent's state that come before everything else in the block.
    pub patch: Option<&'a Arc<StatePatch>>,
    /// Base fee per gas in wei, instead of the fee computed from the parent.
    pub base_fee: Option<u64>,
}

/// Builds blocks of one chain on any parent, from Frontier to Amsterdam. It makes no proof-of-work
/// seals.
#[derive(Clone, Copy)]
pub struct BlockBuilder<'a> {
    /// Rules of the chain.
    pub spec: &'a Arc<ChainSpec>,
    /// The states. Their [header root](StoreSet::header_root) goes into the headers.
    pub states: &'a StoreSet,
    /// Codes of contracts.
    pub codes: &'a dyn CodeReader,
    /// Hashes of ancestors.
    pub hashes: &'a dyn BlockHashes,
    /// Analysed codes of earlier blocks.
    pub code_cache: &'a CodeCache,
}

impl std::fmt::Debug for BlockBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockBuilder").field("chain", &self.spec.name()).finish_non_exhaustive()
    }
}

impl BlockBuilder<'_> {
    /// Executes `transactions`, sent by `senders`, on `parent` and seals the block.
    ///
    /// # Errors
    /// [`PipelineError::Execution`] for a transaction that is invalid on `parent`, and
    /// [`InvalidBlockError::Rule`] for a parent that can have no child. State and store errors.
    pub fn build(
        &self,
        parent: BuildParent<'_>,
        attributes: BlockAttributes,
        transactions: Vec<Transaction>,
        senders: Vec<Address>,
    ) -> Result<ExecutedBlock, PipelineError> {
        let block = self.unsealed(parent, attributes, transactions)?;
        let block = RecoveredBlock::new_unhashed(block, senders);
        let spec = self.spec.for_header(block.header());
        let session = self.states.begin(parent.states)?;
        let reader = session.own().reader();
        let input =
            ExecutionInput::new(&reader, self.codes, self.hashes).with_code_cache(self.code_cache);
        let byzantium = spec.is_byzantium_active_at_block(block.header().number);
        let (outcome, receipts_root) = if byzantium {
            let outcome = execute_block(&spec, &block, input)?;
            let receipts: Vec<_> = outcome.receipts.iter().map(TxReceipt::with_bloom_ref).collect();
            let root = calculate_receipt_root(&receipts);
            (outcome, root)
        } else {
            let mut roots = self.states.receipt_roots(parent.states)?;
            let mut observer = |_, delta| Ok(roots.push(&delta)?);
            let outcome = execute_block_with_observer(&spec, &block, input, &mut observer)?;
            let (roots, _) = roots.finish();
            let root = retrie_consensus::pre_byzantium_receipts_root(&outcome.receipts, &roots)
                .expect("the observer saw every transaction");
            (outcome, root)
        };
        drop(reader);
        let (block, senders) = block.split();
        self.seal(parent, session, block, senders, outcome, receipts_root)
    }

    /// Builds a block on `parent` from the transactions that `source` offers, in its order.
    /// Transactions that cannot be included are left out. From Byzantium on.
    ///
    /// # Errors
    /// As [`build`](Self::build), except transaction errors.
    pub fn fill(
        &self,
        parent: BuildParent<'_>,
        attributes: BlockAttributes,
        source: &mut dyn TransactionSource,
    ) -> Result<ExecutedBlock, PipelineError> {
        self.fill_with_overrides(parent, attributes, BuildOverrides::default(), source)
    }

    /// As [`fill`](Self::fill), with overrides for dev chains. `codes` must find the codes of the
    /// patch.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn fill_with_overrides(
        &self,
        parent: BuildParent<'_>,
        attributes: BlockAttributes,
        liberties: BuildOverrides<'_>,
        source: &mut dyn TransactionSource,
    ) -> Result<ExecutedBlock, PipelineError> {
        let BuildOverrides { patch, base_fee } = liberties;
        let mut template = self.unsealed(parent, attributes, Vec::new())?;
        if let Some(base_fee) = base_fee {
            template.header.base_fee_per_gas = Some(base_fee);
        }
        let template = RecoveredBlock::new_unhashed(template, Vec::new());
        let spec = self.spec.for_header(template.header());
        let session = self.states.begin(parent.states)?;
        let mut reader = LayeredState::new(session.own().reader());
        if let Some(patch) = patch {
            reader.push_delta(patch.delta.clone(), []);
        }
        let input =
            ExecutionInput::new(&reader, self.codes, self.hashes).with_code_cache(self.code_cache);
        let (transactions, mut outcome) = fill_block(&spec, &template, input, source)?;
        drop(reader);
        if let Some(patch) = patch {
            outcome.delta = patch.delta.then(&outcome.delta);
            outcome.codes.extend(patch.codes());
        }
        let receipts: Vec<_> = outcome.receipts.iter().map(TxReceipt::with_bloom_ref).collect();
        let receipts_root = calculate_receipt_root(&receipts);
        let (mut block, _) = template.split();
        let senders = transactions.iter().map(Recovered::signer).collect();
        block.body.transactions = transactions.into_iter().map(Recovered::into_inner).collect();
        block.header.transactions_root = calculate_transaction_root(&block.body.transactions);
        let sealed = self.seal(parent, session, block, senders, outcome, receipts_root)?;
        Ok(ExecutedBlock { patch: patch.cloned(), ..sealed })
    }

    /// Completes the header after execution.
    fn seal(
        &self,
        parent: BuildParent<'_>,
        session: SessionSet<'_>,
        mut block: Block,
        senders: Vec<Address>,
        mut outcome: ExecutionOutcome,
        receipts_root: B256,
    ) -> Result<ExecutedBlock, PipelineError> {
        let spec = self.spec.for_header(&block.header);
        let (states, _) = session.finish(&outcome.delta)?;
        let header = &mut block.header;
        header.state_root = self.states.header_root(states.roots(), header.timestamp);
        header.receipts_root = receipts_root;
        header.logs_bloom = outcome.logs_bloom();
        header.gas_used = outcome.gas_used;
        if spec.is_cancun_active_at_timestamp(header.timestamp) {
            header.blob_gas_used = Some(outcome.blob_gas_used);
        }
        if spec.is_prague_active_at_timestamp(header.timestamp) {
            header.requests_hash = Some(outcome.requests.requests_hash());
        }
        header.block_access_list_hash = outcome.access_list_hash();
        let block = RecoveredBlock::new_unhashed(block, senders);
        self.states.seal(&states, block.hash());
        let BuildParent { header: parent, total_difficulty, .. } = parent;
        let chain = ChainHead {
            number: parent.number,
            hash: parent.hash(),
            total_difficulty,
            is_pos: self.spec.is_pos(parent),
        };
        let chain = chain.child(self.spec, block.hash(), block.header());
        let delta = Arc::new(std::mem::take(&mut outcome.delta));
        let mut built = ExecutedBlock::new(Arc::new(block), outcome, chain, states);
        built.preimages = self.states.preimages_of([delta]);
        Ok(built)
    }

    /// The block as far as it is known before its execution.
    fn unsealed(
        &self,
        BuildParent { header: parent, total_difficulty, .. }: BuildParent<'_>,
        attributes: BlockAttributes,
        transactions: Vec<Transaction>,
    ) -> Result<Block, PipelineError> {
        let BlockAttributes {
            timestamp,
            beneficiary,
            gas_limit,
            prev_randao,
            parent_beacon_block_root,
            withdrawals,
            ommers,
            extra_data,
            slot_number,
        } = attributes;
        let spec = self.spec;
        let barren = |source: ConsensusError| InvalidBlockError::rule(parent, source);
        let is_pos = spec.terminal_total_difficulty().is_some_and(|end| total_difficulty >= end);
        let withdrawals =
            spec.is_shanghai_active_at_timestamp(timestamp).then(|| Withdrawals::new(withdrawals));
        let header = Header {
            parent_hash: parent.hash(),
            ommers_hash: calculate_ommers_root(&ommers),
            beneficiary,
            transactions_root: calculate_transaction_root(&transactions),
            withdrawals_root: withdrawals.as_ref().map(|list| calculate_withdrawals_root(list)),
            difficulty: if is_pos {
                U256::ZERO
            } else {
                retrie_consensus::next_difficulty(spec, parent, timestamp)
            },
            number: parent.number + 1,
            gas_limit,
            timestamp,
            extra_data,
            mix_hash: prev_randao,
            base_fee_per_gas: retrie_consensus::next_base_fee(spec, parent).map_err(barren)?,
            excess_blob_gas: retrie_consensus::next_excess_blob_gas(spec, parent, timestamp)
                .map_err(barren)?,
            parent_beacon_block_root: spec
                .is_cancun_active_at_timestamp(timestamp)
                .then_some(parent_beacon_block_root),
            slot_number: slot_number.filter(|_| spec.is_amsterdam_active_at_timestamp(timestamp)),
            ..Default::default()
        };
        Ok(Block { header, body: BlockBody { transactions, ommers, withdrawals } })
    }
}
