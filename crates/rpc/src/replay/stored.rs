//! Compares a replay with the stored outcome of the block.
//!
//! A response from a replay is right only if the replay repeats the original execution. If the
//! parent's state or the rules differ from those of the original execution, gas, status and logs
//! differ, and the request fails.

use crate::{RpcResult, error::ReplayMismatch};
use alloy_primitives::{Bloom, Log, logs_bloom};
use retrie_chainspec::primitives::{Receipt, RecoveredBlock};
use retrie_engine::LiveView;
use retrie_execution::ExecutionOutcome;
use revm::context::result::{ExecutionResult, HaltReason};
use std::{fmt::Display, sync::Arc};

/// The stored outcome of a block.
pub(crate) struct StoredOutcome<'a> {
    block: &'a RecoveredBlock,
    /// Whether this node has the block; other blocks are executed without comparison.
    is_known: bool,
    /// `None` if the receipts are not kept, or this node does not have the block.
    receipts: Option<Arc<Vec<Receipt>>>,
    /// Number, gas and bloom of the transactions executed so far.
    executed: (usize, u64, Bloom),
}

impl<'a> StoredOutcome<'a> {
    /// The stored outcome of `block`.
    pub(crate) fn of(view: &LiveView, block: &'a RecoveredBlock) -> RpcResult<Self> {
        let hash = block.hash();
        Ok(Self {
            block,
            is_known: view.block_number(&hash)?.is_some(),
            receipts: view.receipts(&hash)?,
            executed: (0, 0, Bloom::ZERO),
        })
    }

    /// Compares transaction `index` with its receipt.
    ///
    /// # Errors
    /// [`ReplayMismatch`], as for the methods below.
    pub(crate) fn check(
        &mut self,
        index: usize,
        result: &ExecutionResult<HaltReason>,
    ) -> RpcResult<()> {
        let (gas, logs) = (result.gas().tx_gas_used(), result.logs());
        let (count, sum, bloom) = &mut self.executed;
        *count += 1;
        *sum = sum.saturating_add(gas);
        if self.receipts.is_none() {
            *bloom |= logs_bloom(logs);
        }
        self.check_receipt(index, gas, result.is_success(), logs)
    }

    /// Compares all transactions with the header, if the receipts are not kept. Call it after the
    /// last transaction.
    pub(crate) fn check_sum(&self) -> RpcResult<()> {
        let (count, gas, bloom) = self.executed;
        if self.receipts.is_some() || count != self.block.body().transactions.len() {
            return Ok(());
        }
        self.check_header(gas, bloom)
    }

    /// Compares the outcome of the whole block.
    pub(crate) fn check_block(&self, outcome: &ExecutionOutcome) -> RpcResult<()> {
        if self.receipts.is_none() {
            let last = outcome.receipts.last();
            let gas = last.map_or(0, |receipt| receipt.cumulative_gas_used);
            return self.check_header(gas, outcome.logs_bloom());
        }
        let mut before = 0;
        for (index, receipt) in outcome.receipts.iter().enumerate() {
            let gas = receipt.cumulative_gas_used.saturating_sub(before);
            before = receipt.cumulative_gas_used;
            self.check_receipt(index, gas, receipt.success, &receipt.logs)?;
        }
        Ok(())
    }

    fn check_receipt(&self, index: usize, gas: u64, success: bool, logs: &[Log]) -> RpcResult<()> {
        let Some(receipts) = &self.receipts else { return Ok(()) };
        let of = |index: usize| receipts.get(index).map(|receipt| receipt.cumulative_gas_used);
        let Some(receipt) = receipts.get(index) else {
            return self.compare(|| format!("transaction {index} has"), "a receipt", "none");
        };
        let before = index.checked_sub(1).and_then(of).unwrap_or_default();
        let used = receipt.cumulative_gas_used.saturating_sub(before);
        let status = |success| if success { "success" } else { "failure" };
        let of_it = |what: &str| format!("the {what} of transaction {index} is");
        self.compare(|| of_it("gas used"), gas, used)?;
        self.compare(|| of_it("status"), status(success), status(receipt.success))?;
        if logs == receipt.logs {
            return Ok(());
        }
        // The blooms are compared first because their mismatch makes a short error text.
        self.compare(|| of_it("logs bloom"), logs_bloom(logs), logs_bloom(&receipt.logs))?;
        self.compare(|| of_it("number of logs"), logs.len(), receipt.logs.len())?;
        self.compare(|| format!("transaction {index} has"), "different logs", "another list")
    }

    fn check_header(&self, gas: u64, bloom: Bloom) -> RpcResult<()> {
        if !self.is_known {
            return Ok(());
        }
        let header = self.block.header();
        // From Amsterdam on the header's gas differs from the sum of the receipts (EIP-7778).
        if header.block_access_list_hash.is_none() {
            self.compare(|| "the gas used is".into(), gas, header.gas_used)?;
        }
        self.compare(|| "the logs bloom is".into(), bloom, header.logs_bloom)
    }

    /// Compares a derived value with the header's commitment.
    pub(crate) fn compare<T: PartialEq + Display>(
        &self,
        what: impl FnOnce() -> String,
        executed: T,
        stored: T,
    ) -> RpcResult<()> {
        if executed == stored {
            return Ok(());
        }
        let (number, hash) = (self.block.number, self.block.hash());
        let (executed, stored) = (executed.to_string(), stored.to_string());
        Err(ReplayMismatch { number, hash, what: what(), executed, stored }.into())
    }
}
