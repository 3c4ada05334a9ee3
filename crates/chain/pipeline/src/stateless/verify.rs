//! Executing a block on its witness alone.

use super::{finding::FindingList, headers::AncestorChain};
use crate::{InvalidBlockError, prepare, validate_outcome};
use alloy_consensus::Transaction as _;
use alloy_primitives::{B256, Bytes, keccak256, map::HashMap};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock},
};
use retrie_consensus::ConsensusError;
use retrie_execution::{
    AccessRecorder, ExecutionError, ExecutionInput, ExecutionOutcome, RecordedAccesses,
    WitnessExecutionError, execute_block,
};
use retrie_sources::witness::{AnswerEntry, AnswerList, ExecutionWitness, ListForm};
use retrie_state::{BlockRef, PartialState, PartialTree, StateError};
use std::sync::Arc;

/// Most gas that the transactions of a block may ask for in sum. Blocks of mainnet ask for less than a
/// tenth of it.
pub const MAX_GAS: u64 = 1 << 32;

/// Why a block cannot be verified on its witness.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatelessError {
    /// The block itself is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidBlockError),
    /// The genesis block has no parent.
    #[error("block 0 is the genesis: it has no transactions and no witness")]
    Genesis,
    /// Executing the block could take too long.
    #[error(
        "the transactions of block {number} ask for {gas} gas: more than {most} is not executed"
    )]
    TooMuchGas {
        /// The block.
        number: u64,
        /// Sum of the gas limits of its transactions.
        gas: u64,
        /// [`MAX_GAS`].
        most: u64,
    },
    /// The witness has no header of the parent, whose state it would show.
    #[error("the witness does not have the header of the parent {parent}")]
    NoParent {
        /// Hash of the parent.
        parent: B256,
    },
    /// The witness is of the state after another block.
    #[error("the witness is of the state after block {given}, and the block's parent is {parent}")]
    OtherParent {
        /// The block that the witness names.
        given: BlockRef,
        /// The parent.
        parent: BlockRef,
    },
    /// A header of the witness is none.
    #[error("headers[{at}] is no RLP of a header")]
    Header {
        /// Its position.
        at: usize,
    },
    /// The block cannot be executed on what the witness holds.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// The block cannot be executed on what the witness of a store holds.
    #[error(transparent)]
    Witness(#[from] WitnessExecutionError),
    /// Execution gives something else than the header says.
    #[error("the outcome is not the header's: {0}")]
    Outcome(Box<ConsensusError>),
    /// The state of the witness cannot be opened, or the root after the block not computed.
    #[error("the state root after the block cannot be computed: {0}")]
    State(#[from] StateError),
    /// The root after the block is not that of its header.
    #[error("the state root after the block is {got}, the header says {expected}")]
    Root {
        /// Root of the header.
        expected: B256,
        /// Root computed.
        got: B256,
    },
    /// The root after the block is not the one that the witness names.
    #[error("the state root after the block is {got}, the witness says {expected}")]
    NextRoot {
        /// Root that the witness names.
        expected: B256,
        /// Root computed.
        got: B256,
    },
}

/// A block that was verified on its witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatelessOutcome {
    /// State root before the block, from the header of its parent.
    pub before: B256,
    /// State root after it.
    pub after: B256,
    /// Gas that it uses.
    pub gas_used: u64,
}

/// Executes `block` on `witness` alone, and compares everything with its header. The hash of the block
/// is what the caller trusts; all else follows from it.
///
/// # Errors
/// [`StatelessError`] says what is missing or wrong.
pub fn verify_witness(
    spec: &Arc<ChainSpec>,
    opener: &dyn PartialState,
    block: Block,
    witness: &ExecutionWitness,
) -> Result<StatelessOutcome, StatelessError> {
    let block = executable(spec, block)?;
    let headers = AnswerList {
        form: ListForm::List,
        entries: witness.headers.iter().cloned().map(AnswerEntry::Hex).collect(),
    };
    let ancestors = AncestorChain::of(&headers, block.header(), &mut FindingList::default());
    let parent = block.parent_hash;
    let parent = ancestors.parent().ok_or(StatelessError::NoParent { parent })?;
    let tree = opener.open_witness(parent.state_root, &witness.state)?;
    let input = WitnessInput::of(&*tree, &witness.codes, ancestors.hashes.clone());
    let outcome = input.execute(spec, &block).0?;
    let spec = spec.for_header(block.header());
    validate_outcome(&spec, block.sealed_block(), &outcome, None)
        .map_err(|error| StatelessError::Outcome(Box::new(error)))?;
    let after = tree.apply(&outcome.delta)?.root();
    if after != block.state_root {
        return Err(StatelessError::Root { expected: block.state_root, got: after });
    }
    Ok(StatelessOutcome { before: parent.state_root, after, gas_used: outcome.gas_used })
}

/// The block with its senders, checked as far as it can be without its parent.
///
/// # Errors
/// If it is invalid, or its execution not bounded.
pub(super) fn executable(
    spec: &Arc<ChainSpec>,
    block: Block,
) -> Result<Arc<RecoveredBlock>, StatelessError> {
    let number = block.header.number;
    if number == 0 {
        return Err(StatelessError::Genesis);
    }
    let gas = block.body.transactions.iter().map(|tx| tx.gas_limit());
    let gas = gas.fold(0, u64::saturating_add);
    if gas > MAX_GAS {
        return Err(StatelessError::TooMuchGas { number, gas, most: MAX_GAS });
    }
    Ok(prepare(spec, block)?.block)
}

/// What a witness gives an execution.
pub(super) struct WitnessInput<'a> {
    tree: &'a dyn PartialTree,
    codes: HashMap<B256, Bytes>,
    hashes: HashMap<u64, B256>,
}

impl<'a> WitnessInput<'a> {
    pub(super) fn of<'c>(
        tree: &'a dyn PartialTree,
        codes: impl IntoIterator<Item = &'c Bytes>,
        hashes: HashMap<u64, B256>,
    ) -> Self {
        let codes = codes.into_iter().map(|code| (keccak256(code), code.clone())).collect();
        Self { tree, codes, hashes }
    }

    /// Executes `block`. What it has read is there also if it fails.
    pub(super) fn execute(
        &self,
        spec: &Arc<ChainSpec>,
        block: &RecoveredBlock,
    ) -> (Result<ExecutionOutcome, ExecutionError>, RecordedAccesses) {
        let input = ExecutionInput::new(self.tree, &self.codes, &self.hashes);
        let recorder = AccessRecorder::of_input(input);
        let spec = spec.for_header(block.header());
        let outcome = execute_block(&spec, block, recorder.input());
        (outcome, recorder.into_accesses())
    }
}
