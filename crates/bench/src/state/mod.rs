//! Races between state stores on the stand-alone workload of the LVMT paper (section 6): random
//! pairs (read, then write, an existing key) on a preloaded state, committed every 1,000 pairs.
//!
//! ```text
//!  prepare each   copy of a kept state, or a bulk load     (untimed)
//!  warm-up        the same blocks on each, then flush      (untimed)
//!  slice 1        A: commit commit ... settle    B: commit commit ... settle
//!  slice 2        B: ...                         A: ...
//!  ...
//!  end            A: flush                       B: flush
//! ```
//!
//! * All contenders live in one process and get the identical blocks, made outside the timed parts.
//!   They take turns slice by slice, in an order that rotates and is reversed, so that a slow moment
//!   of the machine meets all of them.
//! * A commit is timed from its first read until it is durable and installed. That is one sample of
//!   the latency; it includes waiting for background work, as far as it waits.
//! * **Work that is put off belongs to whom put it off.** At the end of its turn a contender
//!   *settles*: it waits, on its own time, for background work that is under way, so none of it runs
//!   in another's turn. It does not start any, so generations fill and fold as they would without a
//!   race, and a fold still meets the commits of the turn in which it began. What has not begun at
//!   the end is done in a timed *flush*.
//! * So there are two rates. The median of the slices is robust on a noisy machine, but a fold that
//!   happens in few slices is not in it. The sustained rate, all operations over all timed seconds,
//!   has every fold and the final flush in it.
//! * What the contenders read must be the same, and so must be the roots of those that have
//!   Ethereum's.

mod contender;
mod outcome;
mod race;
mod store;
mod workload;

pub use contender::{Contender, Entrant, Entries, Reads, Stopped, Terms};
pub use outcome::{Outcome, ProofFigures};
pub use race::{Progress, Race};
pub use store::BackendEntrant;
pub use workload::{Base, BlockStream, Keys, Layout, Pair, SLOTS_PER_ACCOUNT, Workload};
