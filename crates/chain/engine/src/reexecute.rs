//! [`re_execute`]: executes stored blocks again on stored states, to check that blocks, receipts
//! and states still agree with the headers.

use crate::{EngineError, live::LiveChain, state::StateNeed};
use retrie_execution::execute_block;
use retrie_pipeline::{PipelineError, validate_outcome};
use retrie_state::{StateError, StateReader};
use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
};

/// The result of [`re_execute`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReExecutionReport {
    /// Blocks executed.
    pub blocks: u64,
    /// Transactions in these blocks.
    pub txs: u64,
    /// Gas used by these blocks.
    pub gas: u64,
    /// Changed keys, each compared with the stored state after its block.
    pub changes: u64,
    /// Differences, one line each, with the block.
    pub failures: Vec<String>,
    /// Whether the whole range was executed.
    pub complete: bool,
}

/// Executes the canonical blocks of `range` again, each on the stored state of its parent, and
/// compares the outcome with its header, its stored receipts and the stored state after it. Ends
/// early when `stop` is set.
///
/// # Errors
/// If a block or a state is not stored, or reading fails. Differences are part of the result.
pub fn re_execute(
    live: &LiveChain,
    range: RangeInclusive<u64>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ReExecutionReport),
) -> Result<ReExecutionReport, EngineError> {
    let mut report = ReExecutionReport::default();
    for number in range {
        if stop.load(Ordering::Relaxed) {
            return Ok(report);
        }
        re_execute_block(live, number, &mut report)?;
        progress(&report);
    }
    report.complete = true;
    Ok(report)
}

fn re_execute_block(
    live: &LiveChain,
    number: u64,
    report: &mut ReExecutionReport,
) -> Result<(), PipelineError> {
    let view = live.view()?;
    let lost = || StateError::corrupt("Canonical", format!("block {number} is missing"));
    let hash = view.canonical_hash(number)?.ok_or_else(lost)?;
    let block = view.block(&hash)?.ok_or_else(lost)?;
    let before = view.state_before(&block)?;
    // Without the patch of a dev chain's user on top of it, which belongs to the next block.
    let after = view.state_at(&hash, StateNeed::Values)?;
    let spec = live.spec().for_header(block.header());

    let outcome = execute_block(&spec, &block, before.input())?;
    let mut fail = |what: String| report.failures.push(format!("block {number} ({hash}): {what}"));
    if let Err(error) = validate_outcome(&spec, block.sealed_block(), &outcome, None) {
        fail(error.to_string());
    }
    if let Some(stored) = view.receipts(&hash)?
        && *stored != outcome.receipts
    {
        fail("the stored receipts differ".into());
    }
    let delta = match before.patch() {
        Some(patch) => patch.delta.then(&outcome.delta),
        None => outcome.delta,
    };
    for change in delta.changes() {
        let kept = after.get(&change.key)?;
        if kept != change.next {
            fail(format!("{} is {kept:?} in the kept state, not {:?}", change.key, change.next));
        }
    }
    report.blocks += 1;
    report.txs += block.transaction_count() as u64;
    report.gas += outcome.gas_used;
    report.changes += delta.len() as u64;
    Ok(())
}
