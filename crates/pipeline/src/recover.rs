//! Sender recovery: the one costly step of a block that needs no state.

use crate::PipelineError;
use alloy_consensus::transaction::SignerRecoverable;
use alloy_primitives::Address;
use rayon::prelude::*;
use retrie_chainspec::primitives::{Block, RecoveredBlock};

/// Below this many transactions a block is recovered on the calling thread.
const PARALLEL_FROM: usize = 8;

/// Recovers the sender of each transaction, on all cores for large blocks.
///
/// # Errors
/// [`PipelineError::InvalidSignature`] names block and transaction.
pub fn recover_senders(block: Block) -> Result<RecoveredBlock, PipelineError> {
    let number = block.header.number;
    let one = |(index, tx): (usize, &retrie_chainspec::primitives::Transaction)| {
        // Whether a high `s` is allowed is a rule of the fork (EIP-2), which the EVM's environment
        // does not check: blocks before Homestead may hold such signatures.
        tx.recover_signer_unchecked().map_err(|_| PipelineError::InvalidSignature { number, index })
    };
    let transactions = &block.body.transactions;
    let senders: Vec<Address> = if transactions.len() < PARALLEL_FROM {
        transactions.iter().enumerate().map(one).collect::<Result<_, _>>()?
    } else {
        transactions.par_iter().enumerate().map(one).collect::<Result<_, _>>()?
    };
    Ok(RecoveredBlock::new_unhashed(block, senders))
}
