//! What is stored of a block's outcome, held against what executing the block again gives.
//!
//! An answer made by executing again is right only if it is the execution that happened. Where the state
//! below a block is not the one that the block was executed on, or rules have changed, gas, status and
//! logs show it, and the request is refused.

use crate::{RpcResult, error::ReplayMismatch};
use alloy_primitives::{Bloom, Log, logs_bloom};
use retrie_chainspec::primitives::{Receipt, RecoveredBlock};
use retrie_engine::View;
use retrie_execution::ExecutionOutcome;
use revm::context::result::{ExecutionResult, HaltReason};
use std::{fmt::Display, sync::Arc};

/// What is stored of a block's outcome.
pub(crate) struct StoredOutcome<'a> {
    block: &'a RecoveredBlock,
    /// Whether it is a block of this node: others are executed as they come.
    is_known: bool,
    /// `None` if they are not kept, or the block is none of this node's.
    receipts: Option<Arc<Vec<Receipt>>>,
    /// Of the transactions that were executed so far: their number, gas and bloom.
    executed: (usize, u64, Bloom),
}

impl<'a> StoredOutcome<'a> {
    /// That of `block`.
    pub(crate) fn of(view: &View, block: &'a RecoveredBlock) -> RpcResult<Self> {
        let hash = block.hash();
        Ok(Self {
            block,
            is_known: view.block_number(&hash)?.is_some(),
            receipts: view.receipts(&hash)?,
            executed: (0, 0, Bloom::ZERO),
        })
    }

    /// Holds the outcome of transaction `index` against its receipt.
    ///
    /// # Errors
    /// [`ReplayMismatch`]; so for all that follow.
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

    /// Once all transactions were checked: of blocks whose receipts are not kept the header says what
    /// they came to together.
    pub(crate) fn check_sum(&self) -> RpcResult<()> {
        let (count, gas, bloom) = self.executed;
        if self.receipts.is_some() || count != self.block.body().transactions.len() {
            return Ok(());
        }
        self.check_header(gas, bloom)
    }

    /// Holds the outcome of the whole block against what is stored.
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
        // The blooms are there to name the difference.
        self.compare(|| of_it("logs bloom"), logs_bloom(logs), logs_bloom(&receipt.logs))?;
        self.compare(|| of_it("number of logs"), logs.len(), receipt.logs.len())?;
        self.compare(|| format!("the logs of transaction {index} are"), "others", "a list of them")
    }

    fn check_header(&self, gas: u64, bloom: Bloom) -> RpcResult<()> {
        if !self.is_known {
            return Ok(());
        }
        let header = self.block.header();
        // From Amsterdam on the header counts another gas than receipts (EIP-7778).
        if header.block_access_list_hash.is_none() {
            self.compare(|| "the gas used is".into(), gas, header.gas_used)?;
        }
        self.compare(|| "the logs bloom is".into(), bloom, header.logs_bloom)
    }

    /// Holds something else that was derived against what the header commits to.
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
