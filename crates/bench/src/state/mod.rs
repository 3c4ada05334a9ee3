//! Races between state stores, without a chain: operations on the keys of a preloaded state, in
//! commits.
//!
//! * By default it is the stand-alone workload of the LVMT paper (section 6): random pairs (read, then
//!   write, an existing key), committed every 1,000 pairs.
//! * A part of the operations may only read, and a few keys may be hot, by YCSB's distribution. The
//!   others read before they write: with half of the operations reads alone it is YCSB's workload F,
//!   with all of them its C. Its A and B write without reading, which no block does.
//! * [`Trace`]: the accesses of real blocks, a block a commit, removals among them.
//! * [`Attack`]: what an adversary would have the stores do, each beside a plain baseline
//!   ([`Siege`], [`Race::run_beside`]): the twins of a store run one after the other in every slice.
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
//! * Each commit's reads, whole values, must be what the workload's own model of the state holds, also
//!   where a contender races alone. At the end, untimed, up to a thousand of the keys written are read
//!   once more. The roots of those contenders that have Ethereum's must be equal.
//! * A race that is stopped, or ends with an error, gives what was measured in the slices that all
//!   contenders have run; unless one of them has a wrong state.
//! * Under a memory limit the prepared states are put out of the page cache, then memory is capped,
//!   and then the stores are opened. **All stores share one cap**: all are open while one runs, the
//!   caches of the others stay allocated, and its pages push theirs out. So each has less than it
//!   would have alone; for a figure of one store under a cap, race it alone. A store that reads past
//!   the system's page cache gets its share of it as a cache of its own.

mod adversary;
mod base;
mod block;
mod contender;
mod outcome;
mod race;
mod raced;
mod real;
mod siege;
mod store;
mod stream;
mod workload;

pub use adversary::{Attack, Depth, Scene};
pub use base::{Base, RandomBase, SortedEntries};
pub use block::{Block, Op, Reads};
pub use contender::{Contender, Entrant, Entries, Stopped, Terms};
pub use outcome::{Outcome, ProofFigures};
pub use race::{Done, Progress, Race};
pub use raced::Raced;
pub use real::{Corpus, Trace, TraceError, TraceFigures};
pub use siege::{Attacked, Siege, of_baseline};
pub use store::BackendEntrant;
pub use stream::BlockStream;
pub use workload::{Choice, Keys, Layout, SLOTS_PER_ACCOUNT, Workload};
pub(crate) use {
    race::{cap, needed, turn_order, within},
    store::GENERATIONS,
};
