//! Stored blocks executed again, on the history of states: whether what is kept still gives what the
//! headers say.

use crate::{EngineError, live::LiveChain, state::Need};
use retrie_execution::execute_block;
use retrie_pipeline::{PipelineError, validate_outcome};
use retrie_state::{StateError, StateReader};
use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
};

/// What executing again gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReExecuted {
    /// Blocks executed.
    pub blocks: u64,
    /// Their transactions.
    pub txs: u64,
    /// Their gas.
    pub gas: u64,
    /// Keys they changed, each compared with the kept state after its block.
    pub changes: u64,
    /// What did not agree, a line each, naming the block.
    pub failures: Vec<String>,
    /// Whether it came to the end.
    pub complete: bool,
}

/// Executes the canonical blocks of `range` again, each on the kept state of its parent, and
/// compares the outcome with its header, its stored receipts and the kept state after it. Ends
/// early when `stop` is set.
///
/// # Errors
/// If a block or a state is not kept, or reading fails. What does not agree is in the result.
pub fn re_execute(
    live: &LiveChain,
    range: RangeInclusive<u64>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ReExecuted),
) -> Result<ReExecuted, EngineError> {
    let mut report = ReExecuted::default();
    for number in range {
        if stop.load(Ordering::Relaxed) {
            return Ok(report);
        }
        one(live, number, &mut report)?;
        progress(&report);
    }
    report.complete = true;
    Ok(report)
}

fn one(live: &LiveChain, number: u64, report: &mut ReExecuted) -> Result<(), PipelineError> {
    let view = live.view()?;
    let lost = || StateError::corrupt("Canonical", format!("block {number} is missing"));
    let hash = view.canonical_hash(number)?.ok_or_else(lost)?;
    let block = view.block(&hash)?.ok_or_else(lost)?;
    let before = view.state_before(&block)?;
    // Without what the user of a dev chain changed of it since: that belongs to the next block.
    let after = view.state_at(&hash, Need::Values)?;
    let spec = live.spec().for_header(block.header());

    let outcome = execute_block(&spec, &block, before.input())?;
    let mut fail = |what: String| report.failures.push(format!("block {number} ({hash}): {what}"));
    if let Err(error) = validate_outcome(&spec, block.sealed_block(), &outcome, None) {
        fail(error.to_string());
    }
    if let Some(stored) = view.receipts(&hash)?
        && *stored != outcome.receipts
    {
        fail("the stored receipts are others".into());
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
