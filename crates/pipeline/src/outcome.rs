//! What executing a block gave, against what its header says.

use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, primitives::SealedBlock};
use retrie_consensus::{ConsensusError, ExecutionResult, validate_post_execution};
use retrie_execution::ExecutionOutcome;

/// Compares what the execution of `block` gave with what its header commits to, but for the state root.
/// `roots` are those after each transaction, to which receipts from before Byzantium commit; without
/// them the receipts root of such a block is not checked.
///
/// # Errors
/// [`ConsensusError`] naming what differs.
pub fn validate_outcome(
    spec: &ChainSpec,
    block: &SealedBlock,
    outcome: &ExecutionOutcome,
    roots: Option<&[B256]>,
) -> Result<(), ConsensusError> {
    let result = ExecutionResult {
        receipts: &outcome.receipts,
        gas_used: outcome.gas_used,
        blob_gas_used: Some(outcome.blob_gas_used),
        requests: &outcome.requests,
        block_access_list: outcome.access_list.as_deref(),
        intermediate_state_roots: roots,
    };
    validate_post_execution(spec, block, &result)
}
