//! State accesses of real blocks as a workload (LVMT paper, section 6, "real").
//!
//! A block of the trace is a real block: every key it reads, and its writes. The state before the
//! first block holds each key with its first observed value, so reads hit as they did on mainnet,
//! and padding, so that tries have depth.
//!
//! The blocks run **forward and backward**. Forward, each block writes what it wrote on mainnet.
//! Backward, from the last block to the first, each restores what it has overwritten. So every
//! repetition makes the same changes as the first one, with real values; removed keys return, and
//! the state does not grow, however long the race.
//!
//! Blocks that are not consecutive leave gaps, in which the real state has changed. A key keeps the
//! value that the trace has last written, not the value it had on mainnet at the next block.

mod corpus;
mod diffs;
mod model;
#[cfg(test)]
mod tests;
mod trace;

pub use corpus::{BlockCorpus, TraceError};
pub(super) use diffs::BlockDiff;
pub(super) use model::{AccessModel, BlockAccesses, KeyTouch};
pub use trace::{AccessTrace, TraceFigures};
