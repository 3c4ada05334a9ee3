//! State accesses of real blocks as a workload (LVMT paper, section 6, "real").
//!
//! A block of the trace is a real block: every key it reads, and what it writes. The state before
//! the first one holds each key with the first value that was seen of it, so reads hit as they did in
//! reality, and padding, so that tries have depth.
//!
//! The blocks are run **forth and back**. On the way forth each writes what it wrote in reality. On
//! the way back, from the last to the first, each restores what it has overwritten. So every
//! repetition changes what the first one changed, with real values; what was removed comes back, and
//! the state does not grow however long the race.
//!
//! Blocks that are not neighbours leave gaps: between them the real state went on. A key keeps the
//! value that the trace has last written, not the one it had in reality when the next block came.

mod corpus;
mod diffs;
#[cfg(test)]
mod tests;
mod trace;

pub use corpus::{Corpus, TraceError};
pub use trace::{Trace, TraceFigures};
