//! Spans of verification and commits, for [export](retrie_telemetry::spans).
//!
//! ```text
//!  block or batch --+-- execution -- reads       the tree's thread
//!                   +-- root, one a store        `import-root`, or the tree's thread
//!                   '-- commit --+-- journal, one a store
//!                                '-- sync        `import-commit`, later
//! ```
//!
//! Numbers are signed, as OTLP has no other integers.
//! A commit is a part of the last block that it makes durable, and is linked to the others.

use crate::{ExecutedBlock, PreparedBlock};
use alloy_consensus::BlockHeader;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_execution::ExecutionOutcome;
use retrie_telemetry::spans::record_total;
use std::{sync::Arc, time::SystemTime};
use tracing::{Span, debug_span};

/// Blocks to which a commit is linked, at most.
const MAX_LINKS: usize = 64;

/// The span of a block's verification.
pub(super) fn block_span(block: &RecoveredBlock) -> Span {
    debug_span!(
        "block",
        number = block.number() as i64,
        hash = %block.hash(),
        transactions = block.transaction_count() as i64,
        gas = block.gas_used() as i64,
    )
}

/// The span of a batch that begins with `first`.
pub(super) fn batch_span(first: &PreparedBlock) -> Span {
    debug_span!("batch", first = first.number() as i64)
}

/// Records what an execution has read as a child of its span.
pub(super) fn record_reads(execution: &Span, begun: SystemTime, outcome: &ExecutionOutcome) {
    let reads = [("accounts", outcome.accesses.accounts), ("slots", outcome.accesses.slots)];
    record_total(execution, "reads", begun, outcome.timing.storage, &reads);
}

/// The span of a commit of `blocks`.
pub(super) fn commit_span(blocks: &[Arc<ExecutedBlock>]) -> Span {
    let Some((last, below)) = blocks.split_last() else { return Span::none() };
    let span = debug_span!(
        parent: None,
        "commit",
        first = blocks[0].first().number() as i64,
        last = last.block().number() as i64,
    );
    last.trace.set_parent_of(&span);
    below.iter().rev().take(MAX_LINKS).for_each(|block| block.trace.link_to(&span));
    span
}
