//! Races between state stores, without a chain: operations on the keys of a preloaded state,
//! grouped into commits.
//!
//! * The default is the stand-alone workload of the LVMT paper (section 6): random pairs (read,
//!   then write, an existing key), with a commit after every 1,000 pairs.
//! * Optionally a share of the operations only reads, and a few keys are hot, by YCSB's
//!   distribution. The other operations read before they write. With one half only reading this is
//!   YCSB's workload F, with all of them its C. Workloads A and B of YCSB write without reading,
//!   which no block does.
//! * [`AccessTrace`]: the accesses of real blocks, with removals; each block is a commit.
//! * [`AttackKind`]: attacks, each next to a plain baseline ([`AttackConfig`],
//!   [`StoreRace::run_beside`]): in every slice a store and its twin on the baseline run one after
//!   the other.
//!
//! ```text
//!  prepare each   copy of a cached state, or a bulk load   (untimed)
//!  warm-up        the same blocks on each, then flush      (untimed)
//!  slice 1        A: commit commit ... wait      B: commit commit ... wait
//!  slice 2        B: ...                         A: ...
//!  ...
//!  end            A: flush                       B: flush
//! ```
//!
//! * All contenders run in one process and get the same blocks, which are generated outside the
//!   timed parts. They take turns slice by slice. Their order rotates and is reversed in every
//!   other slice, so that a slow moment of the machine affects all of them.
//! * A commit is timed from its first read until it is durable and installed. This is one sample of
//!   the latency; it includes any wait for background work.
//! * **Deferred work counts for the contender that defers it.** At the end of its turn a contender
//!   waits on its own time for running background work ([`Contender::wait_idle`]), so none of it
//!   runs in another contender's turn. The wait starts no work, so generations fill and fold as
//!   without a race, and a fold still overlaps with the commits of the turn in which it began. Work
//!   that has not begun at the end is done in a timed *flush*.
//! * So there are two rates. The median of the slices is robust on a noisy machine, but does not
//!   contain a fold that happens in few slices. The sustained rate, all operations divided by all
//!   timed seconds, contains every fold and the final flush.
//! * The values that each commit reads must equal the workload's own model of the state, also if a
//!   contender races alone. At the end, outside the timed part, up to a thousand of the written
//!   keys are read once more. The roots of all contenders with Ethereum's root must be equal.
//! * A race that is stopped, or ends with an error, returns the slices that all contenders have
//!   run, unless a contender has a wrong state.
//! * Under a memory limit the prepared states are dropped from the page cache, then memory is
//!   capped, and then the stores are opened. **All stores share one cap**: all are open while one
//!   runs, the caches of the others stay allocated, and its pages evict theirs. So each store has
//!   less memory than it would have alone; for a figure of one store under a cap, race it alone. A
//!   store that bypasses the system's page cache gets its share of it as a cache of its own.

mod adversary;
mod attack_config;
mod base;
mod block;
mod contender;
mod outcome;
mod race;
mod race_result;
mod real;
mod store;
mod stream;
mod workload;

pub use adversary::{AttackKind, AttackScenario, PathDepth};
pub use attack_config::{AttackConfig, AttackPair, baseline_ratio};
pub use base::{RandomBase, SortedEntries, StateBase};
pub use block::{CommitBlock, KeyOp, ReadDigest};
pub use contender::{Contender, ContenderFactory, EntryStream, LoadStopped, RaceTerms};
pub use outcome::{ProofFigures, StoreOutcome};
pub use race::{StoreRace, StoreRaceProgress, TurnSummary};
pub use race_result::RaceResult;
pub use real::{AccessTrace, BlockCorpus, TraceError, TraceFigures};
pub use store::BackendFactory;
pub use stream::CommitStream;
pub use workload::{InitialKeys, KeyDistribution, KeyLayout, SLOTS_PER_ACCOUNT, StoreWorkload};
pub(crate) use {
    race::{apply_cap, check_cap, needed_bytes, turn_order},
    store::GENERATIONS,
};
