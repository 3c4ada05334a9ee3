//! Rules that compare the result of execution with the header.

use alloy_consensus::{
    Eip658Value, ReceiptWithBloom, TxReceipt,
    proofs::{calculate_receipt_root, ordered_trie_root_with_encoder},
};
use alloy_eip7928::{AccountChanges, compute_block_access_list_hash};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bloom};
use retrie_chainspec::{
    ChainSpec, EthereumHardforks,
    primitives::{Receipt, Requests, SealedBlock},
};

use crate::{ConsensusError, access_list::validate_items};

/// The results of executing a block that the header commits to, without the state root: the state
/// store checks it.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionResult<'a> {
    /// One receipt per transaction.
    pub receipts: &'a [Receipt],
    /// Gas used by the block, as its executor counts it: the sum over transactions after refunds,
    /// from Amsterdam on the larger of the gas dimensions (EIP-7778, EIP-8037).
    pub gas_used: u64,
    /// Blob gas used by the block; `None` if not counted, [`crate::validate_body`] checks it too.
    pub blob_gas_used: Option<u64>,
    /// Requests to the consensus layer (EIP-7685); empty before Prague.
    pub requests: &'a Requests,
    /// The block access list that execution built (EIP-7928); `None` if none was built.
    pub block_access_list: Option<&'a [AccountChanges]>,
    /// State root after each transaction, for blocks before Byzantium, whose receipts commit to
    /// it. `None` skips the check of the receipts root of such a block.
    pub intermediate_state_roots: Option<&'a [B256]>,
}

/// Compares the result of execution with what the header commits to.
///
/// Before Byzantium receipts contain state roots, so that the receipts root can only be checked
/// when `intermediate_state_roots` are given; gas and logs bloom are checked on every fork.
///
/// # Errors
/// [`ConsensusError`] naming what differs.
pub fn validate_post_execution(
    spec: &ChainSpec,
    block: &SealedBlock,
    result: &ExecutionResult<'_>,
) -> Result<(), ConsensusError> {
    let header = block.header();
    let count = |what, got: usize| {
        let expected = block.body().transactions.len();
        if got == expected {
            Ok(())
        } else {
            Err(ConsensusError::ReceiptCount { what, got, expected })
        }
    };
    count("receipts", result.receipts.len())?;

    if result.gas_used != header.gas_used {
        return Err(ConsensusError::GasUsed { got: result.gas_used, expected: header.gas_used });
    }
    if let Some(got) = result.blob_gas_used {
        let expected = header.blob_gas_used.unwrap_or_default();
        if got != expected {
            return Err(ConsensusError::BlobGasUsed { got, expected });
        }
    }

    let receipts: Vec<_> = result.receipts.iter().map(TxReceipt::with_bloom_ref).collect();
    let bloom = receipts.iter().fold(Bloom::ZERO, |bloom, receipt| bloom | receipt.logs_bloom);
    if bloom != header.logs_bloom {
        return Err(ConsensusError::LogsBloom {
            got: Box::new(bloom),
            expected: Box::new(header.logs_bloom),
        });
    }
    let receipts_root = if spec.is_byzantium_active_at_block(header.number) {
        Some(calculate_receipt_root(&receipts))
    } else if let Some(state_roots) = result.intermediate_state_roots {
        count("intermediate state roots", state_roots.len())?;
        Some(root_with_state_roots(&receipts, state_roots))
    } else {
        None
    };
    if let Some(got) = receipts_root.filter(|got| *got != header.receipts_root) {
        return Err(ConsensusError::ReceiptsRoot { got, expected: header.receipts_root });
    }

    match header.requests_hash {
        Some(expected) => {
            let got = result.requests.requests_hash();
            if got != expected {
                return Err(ConsensusError::RequestsHash { got, expected });
            }
        }
        None if !result.requests.is_empty() => {
            return Err(ConsensusError::UnexpectedRequests { count: result.requests.len() });
        }
        None => {}
    }
    if let (Some(list), Some(expected)) = (result.block_access_list, header.block_access_list_hash)
    {
        let got = compute_block_access_list_hash(list);
        if got != expected {
            return Err(ConsensusError::BlockAccessListHash { got, expected });
        }
        validate_items(list, header.gas_limit)?;
    }
    Ok(())
}

/// Receipts root of a block before Byzantium, whose receipts are
/// `[state root after the transaction, cumulative gas, bloom, logs]` (yellow paper before
/// EIP-658).
///
/// Returns `None` unless there is exactly one state root per receipt.
pub fn pre_byzantium_receipts_root(receipts: &[Receipt], state_roots: &[B256]) -> Option<B256> {
    let receipts: Vec<_> = receipts.iter().map(TxReceipt::with_bloom_ref).collect();
    (receipts.len() == state_roots.len()).then(|| root_with_state_roots(&receipts, state_roots))
}

/// Both slices have the same length.
fn root_with_state_roots(receipts: &[ReceiptWithBloom<&Receipt>], state_roots: &[B256]) -> B256 {
    let pairs: Vec<_> = receipts.iter().zip(state_roots).collect();
    ordered_trie_root_with_encoder(&pairs, |(receipt, state_root), out| {
        let with_state_root = alloy_consensus::Receipt {
            status: Eip658Value::PostState(**state_root),
            cumulative_gas_used: receipt.receipt.cumulative_gas_used,
            logs: receipt.receipt.logs.clone(),
        };
        // Only legacy transactions exist before Berlin, so the receipt has no type byte.
        alloy_consensus::ReceiptEnvelope::Legacy(ReceiptWithBloom {
            receipt: with_state_root,
            logs_bloom: receipt.logs_bloom,
        })
        .encode_2718(out);
    })
}
