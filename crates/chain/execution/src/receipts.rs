//! Builds receipts from the results of the EVM.

use alloy_evm::{
    Evm,
    eth::receipt_builder::{ReceiptBuilder, ReceiptBuilderCtx},
};
use retrie_chainspec::primitives::{Receipt, Transaction, TxType};

/// Builds this workspace's receipts from the results of the EVM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockReceiptBuilder;

impl ReceiptBuilder for BlockReceiptBuilder {
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
