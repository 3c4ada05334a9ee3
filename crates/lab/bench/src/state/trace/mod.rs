//! Traces: the accesses of many blocks in one compact file (LVMT paper, section 6, "real").
//!
//! ```text
//!  archive node ── debug_traceBlockByNumber ─┐
//!  JSON lines of such answers ───────────────┤
//!  Parquet tables of state changes ──────────┼─> make_trace ─> FILE ─> RecordedTrace ─> a race
//!  real blocks of the data folder ───────────┤
//!  counts of a paper (SyntheticRecipe) ──────┘
//! ```
//!
//! A block of a trace has the keys that it reads, and those of them that it writes, with their
//! values. The state before the first block holds what the first access of each key finds. A race
//! replays the blocks without the EVM, each as one commit, **forward only**, and ends with the
//! trace; [`AccessTrace`](super::AccessTrace) runs its few blocks forward and backward instead.
//!
//! # Assumptions
//! * A file is not trusted: its checksum, its records, and the states that they lead to are checked
//!   ([`TraceFault`]).
//! * A node is trusted: nothing proves its traces. Rewards, withdrawals and system calls are not
//!   among them; a key keeps the value that the trace has last written.
//! * There are no codes. A store that keeps codes gets the hash of each as its code.
//!
//! The bytes: `docs/formats/access-trace.md`.

mod answers;
mod decode;
mod encode;
mod error;
mod format;
mod make;
mod parquet_tables;
mod prestate;
mod recorded;
mod synthetic;
#[cfg(test)]
mod tests;
mod zipf;

pub use error::{MakeTraceError, TraceFault, TraceFileError};
pub use make::{AccessSource, TraceSummary, make_trace};
pub use recorded::RecordedTrace;
pub(crate) use recorded::TraceCursor;
pub use synthetic::SyntheticRecipe;
