//! Checks what the execution of a block yields against its header.

use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, primitives::SealedBlock};
use retrie_consensus::{ConsensusError, ExecutionResult, validate_post_execution};
use retrie_execution::ExecutionOutcome;

/// Compares the outcome of executing `block` with everything its header commits to, except the
/// state root. `roots` are the state roots after each transaction, which receipts before Byzantium
/// hold; without them the receipts root of such a block is not checked.
///
/// # Errors
/// [`ConsensusError`] naming the difference.
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
