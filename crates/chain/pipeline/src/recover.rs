//! Sender recovery: the only expensive step of a block that needs no state.

use crate::InvalidBlockError;
use alloy_consensus::{Transaction as _, transaction::SignerRecoverable};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::Address;
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock, Transaction},
};

/// A block with fewer transactions is recovered on the calling thread.
const PARALLEL_FROM: usize = 8;

/// Recovers the sender of each transaction, on all cores for large blocks.
///
/// Two signature rules are checked here, as the EVM does not check them: a low `s` from Homestead
/// on (EIP-2), and no chain id before Spurious Dragon (EIP-155).
///
/// # Errors
/// [`InvalidBlockError::Signature`] names the block and the transaction.
pub fn recover_senders(
    spec: &ChainSpec,
    block: Block,
) -> Result<RecoveredBlock, InvalidBlockError> {
    let number = block.header.number;
    let low_s = spec.is_homestead_active_at_block(number);
    let chain_id = spec.is_spurious_dragon_active_at_block(number);
    let one = |(index, tx): (usize, &Transaction)| {
        if !chain_id && tx.is_legacy() && tx.chain_id().is_some() {
            return Err(InvalidBlockError::Signature { number, index });
        }
        let sender = if low_s { tx.recover_signer() } else { tx.recover_signer_unchecked() };
        sender.map_err(|_| InvalidBlockError::Signature { number, index })
    };
    let transactions = &block.body.transactions;
    let senders: Vec<Address> = if transactions.len() < PARALLEL_FROM {
        transactions.iter().enumerate().map(one).collect::<Result<_, _>>()?
    } else {
        transactions.par_iter().enumerate().map(one).collect::<Result<_, _>>()?
    };
    Ok(RecoveredBlock::new_unhashed(block, senders))
}
