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
//! * [`RecordedTrace`]: the accesses of many blocks from a file, forward only.
//! * [`AttackKind`]: attacks, each next to a plain baseline ([`AttackConfig`],
//!   [`StoreRace::run_beside`]): in every slice a store and its twin on the baseline run one after
//!   the other.
//!
//! * The contenders take turns ([`race`](crate::race)) in one process, and get the same blocks,
//!   which are generated outside the timed parts. Each starts on a copy of a cached state, or on a
//!   bulk load.
//! * A commit is timed from its first read until it is durable and installed. This is one sample of
//!   the latency; it includes any wait for background work.
//! * At the end of its turn a contender waits on its own time for running background work
//!   ([`OpenStore::wait_idle`]). The wait starts no work, so generations fill and fold as without a
//!   race, and a fold still overlaps with the commits of the turn in which it began.
//! * The values that each commit reads must equal the workload's own model of the state, also if a
//!   contender races alone. At the end, outside the timed part, up to a thousand of the written
//!   keys are read once more. The roots of all contenders with Ethereum's root must be equal.
//! * A store that bypasses the system's page cache gets its share of a memory limit as a cache of
//!   its own.

mod adversary;
mod attack_config;
mod base;
mod block;
mod factory;
mod needed;
mod outcome;
mod race;
mod real;
mod store;
mod stream;
mod trace;
mod workload;

pub use adversary::{AttackKind, AttackScenario, PathDepth};
pub use attack_config::{AttackConfig, AttackPair, baseline_ratio};
pub use base::{RandomBase, SortedEntries, StateBase};
pub use block::{CommitBlock, KeyOp, ReadDigest};
pub use factory::{EntryStream, LoadStopped, OpenStore, StoreFactory};
pub use outcome::{ProofFigures, StoreFigures, StoreOutcome};
pub use race::StoreRace;
pub use real::{AccessTrace, BlockCorpus, TraceError, TraceFigures};
pub use store::BackendFactory;
pub(crate) use store::GENERATIONS;
pub use stream::CommitStream;
pub use trace::{
    AccessSource, MakeTraceError, RecordedTrace, SyntheticRecipe, TraceFault, TraceFileError,
    TraceSummary, make_trace,
};
pub use workload::{InitialKeys, KeyDistribution, KeyLayout, StoreWorkload};
