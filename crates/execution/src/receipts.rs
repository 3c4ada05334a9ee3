//! Receipts: how they are built, and their root before Byzantium.

use alloy_consensus::{Eip658Value, ReceiptEnvelope, TxReceipt, proofs::calculate_receipt_root};
use alloy_evm::{
    Evm,
    eth::receipt_builder::{ReceiptBuilder, ReceiptBuilderCtx},
};
use alloy_primitives::B256;
use retrie_chainspec::primitives::{Receipt, Transaction, TxType};

/// Builds this workspace's receipts from what the EVM reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuildReceipt;

impl ReceiptBuilder for BuildReceipt {
    type Transaction = Transaction;
    type Receipt = Receipt;

    fn build_receipt<E: Evm>(&self, ctx: ReceiptBuilderCtx<'_, TxType, E>) -> Receipt {
        Receipt {
            tx_type: ctx.tx_type,
            success: ctx.result.is_success(),
            cumulative_gas_used: ctx.cumulative_gas_used,
            logs: ctx.result.into_logs(),
        }
    }
}

/// The receipts root of a block before Byzantium, whose receipts hold the MPT's state root after
/// each transaction instead of a status (yellow paper 4.3.1 before EIP-658).
///
/// `state_roots[i]` is the root after transaction `i`, collected with
/// [`execute_block_with_observer`](crate::execute_block_with_observer). `None` if the two lists
/// differ in length.
pub fn receipts_root_with_state_roots(receipts: &[Receipt], state_roots: &[B256]) -> Option<B256> {
    if receipts.len() != state_roots.len() {
        return None;
    }
    let receipts: Vec<_> = receipts
        .iter()
        .zip(state_roots)
        .map(|(receipt, root)| {
            let with_root = alloy_consensus::Receipt {
                status: Eip658Value::PostState(*root),
                cumulative_gas_used: receipt.cumulative_gas_used,
                logs: receipt.logs.clone(),
            };
            ReceiptEnvelope::from_typed(receipt.tx_type, with_root.into_with_bloom())
        })
        .collect();
    Some(calculate_receipt_root(&receipts))
}
