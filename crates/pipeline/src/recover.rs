//! Sender recovery: the one costly step of a block that needs no state.

use crate::PipelineError;
use alloy_consensus::transaction::SignerRecoverable;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::Address;
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock},
};

/// Below this many transactions a block is recovered on the calling thread.
const PARALLEL_FROM: usize = 8;

/// Recovers the sender of each transaction, on all cores for large blocks. From Homestead on a
/// signature must have a low `s` (EIP-2), which the EVM does not check.
///
/// # Errors
/// [`PipelineError::InvalidSignature`] names block and transaction.
pub fn recover_senders(spec: &ChainSpec, block: Block) -> Result<RecoveredBlock, PipelineError> {
    let number = block.header.number;
    let low_s = spec.is_homestead_active_at_block(number);
    let one = |(index, tx): (usize, &retrie_chainspec::primitives::Transaction)| {
        let sender = if low_s { tx.recover_signer() } else { tx.recover_signer_unchecked() };
        sender.map_err(|_| PipelineError::InvalidSignature { number, index })
    };
    let transactions = &block.body.transactions;
    let senders: Vec<Address> = if transactions.len() < PARALLEL_FROM {
        transactions.iter().enumerate().map(one).collect::<Result<_, _>>()?
    } else {
        transactions.par_iter().enumerate().map(one).collect::<Result<_, _>>()?
    };
    Ok(RecoveredBlock::new_unhashed(block, senders))
}
