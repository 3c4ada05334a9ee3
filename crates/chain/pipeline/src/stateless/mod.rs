//! Blocks on their witnesses alone, without a state.
//!
//! ```text
//!  WitnessAnswer, Block --> WitnessLint::check --> LintReport: what differs from the canonical witness
//!  ExecutionWitness, Block --> verify_witness --> the root after the block, or why not
//!  StateWitnessFile, OpenedWitness --> verify_state_witness --> the same, on any store with witnesses
//! ```
//!
//! # What the lint can say
//!
//! It executes the block on what the witness holds, computes the root after it, and notes what both
//! needed. So it finds what is missing (the first piece, at which execution stops), and what nothing
//! needed. Execution needs no more than the canonical witness of execution-apis has, with one exception
//! that it looks for itself: headers of all ancestors from the oldest that BLOCKHASH reads.
//!
//! # Assumptions
//!
//! Block and witness are from anyone. A block is executed only if its transactions ask for no more than
//! [`MAX_GAS`] in sum, so a check ends.

mod finding;
mod headers;
mod lint;
mod lists;
mod state_witness;
mod verify;

pub use finding::{FindingCode, LintCounts, LintReport, WitnessFinding};
pub use lint::WitnessLint;
pub use state_witness::{StateWitnessFile, StateWitnessOutcome, verify_state_witness};
pub use verify::{MAX_GAS, StatelessError, StatelessOutcome, verify_witness};
