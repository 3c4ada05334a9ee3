//! Rules of bodies: what the header commits to, and what a block may contain.

use alloy_consensus::{
    Transaction as _, TxType, Typed2718,
    proofs::{calculate_ommers_root, calculate_transaction_root, calculate_withdrawals_root},
};
use retrie_chainspec::{
    ChainSpec, EthereumHardfork, EthereumHardforks,
    primitives::{Block, Header, SealedBlock, Transaction},
};

use crate::ConsensusError;

/// Largest RLP encoding of a block from Osaka on, in bytes (EIP-7934): ten mebibytes less two for
/// what the consensus layer adds.
pub const MAX_RLP_BLOCK_SIZE: usize = 10 * 1024 * 1024 - 2 * 1024 * 1024;

/// Checks a body against its header and the limits of its fork, without executing it.
///
/// The header itself must have passed [`crate::validate_header`]. Rules of single transactions
/// (signature, chain id, nonce, fees, intrinsic gas, blob versions and blobs per transaction of
/// EIP-7594, the gas cap of EIP-7825) are checked by the EVM as they execute. Ommers are checked by
/// [`crate::validate_ommers`].
///
/// # Errors
/// [`ConsensusError`] naming the broken rule.
pub fn validate_body(spec: &ChainSpec, block: &SealedBlock) -> Result<(), ConsensusError> {
    let (header, body) = (block.header(), block.body());

    // The cheap check first: it bounds the work of the others.
    if spec.is_osaka_active_at_timestamp(header.timestamp) {
        let got = Block::rlp_length_for(header, body);
        if got > MAX_RLP_BLOCK_SIZE {
            return Err(ConsensusError::BlockTooLarge { got, max: MAX_RLP_BLOCK_SIZE });
        }
    }
    validate_transaction_types(spec, header, &body.transactions)?;
    let blob_gas = body
        .transactions
        .iter()
        .filter_map(|transaction| transaction.blob_gas_used())
        .fold(0u64, u64::saturating_add);
    let expected = header.blob_gas_used.unwrap_or_default();
    if blob_gas != expected {
        return Err(ConsensusError::BlobGasUsed { got: blob_gas, expected });
    }

    let got = calculate_ommers_root(&body.ommers);
    if got != header.ommers_hash {
        return Err(ConsensusError::OmmersHash { got, expected: header.ommers_hash });
    }
    if spec.is_pos(header) && !body.ommers.is_empty() {
        return Err(ConsensusError::OmmersAfterMerge { got });
    }
    match (&body.withdrawals, header.withdrawals_root) {
        (None, None) => {}
        (Some(withdrawals), Some(expected)) => {
            let got = calculate_withdrawals_root(withdrawals);
            if got != expected {
                return Err(ConsensusError::WithdrawalsRoot { got, expected });
            }
        }
        (None, Some(expected)) => return Err(ConsensusError::MissingWithdrawals { expected }),
        (Some(withdrawals), None) => {
            return Err(ConsensusError::UnexpectedWithdrawals { count: withdrawals.len() });
        }
    }
    let got = calculate_transaction_root(&body.transactions);
    if got != header.transactions_root {
        return Err(ConsensusError::TransactionsRoot { got, expected: header.transactions_root });
    }
    Ok(())
}

/// Typed transactions exist from their fork on (EIP-2930, EIP-1559, EIP-4844, EIP-7702). The EVM
/// checks this too; this check finds it before anything is executed.
fn validate_transaction_types(
    spec: &ChainSpec,
    header: &Header,
    transactions: &[Transaction],
) -> Result<(), ConsensusError> {
    use EthereumHardfork::{Berlin, Cancun, London, Prague};
    let berlin = spec.is_berlin_active_at_block(header.number);
    let london = spec.is_london_active_at_block(header.number);
    let cancun = spec.is_cancun_active_at_timestamp(header.timestamp);
    let prague = spec.is_prague_active_at_timestamp(header.timestamp);
    for (index, transaction) in transactions.iter().enumerate() {
        let (active, fork) = match transaction.tx_type() {
            TxType::Legacy => continue,
            TxType::Eip2930 => (berlin, Berlin),
            TxType::Eip1559 => (london, London),
            TxType::Eip4844 => (cancun, Cancun),
            TxType::Eip7702 => (prague, Prague),
        };
        if !active {
            return Err(ConsensusError::TransactionType { index, ty: transaction.ty(), fork });
        }
    }
    Ok(())
}
