//! Benchmarks: workloads, and races between state stores, clients and data structures. Their results
//! are [`retrie_report::BenchResult`]s.
//!
//! # Modules
//! * [`chain`]: chains made from a seed: signed transfers, ERC-20 calls and swaps.
//! * [`race`]: how contenders take turns, and their outcomes.
//! * [`clients`]: races of whole clients that import the blocks of such a chain.
//! * [`state`]: races of state stores on the same stream of reads and writes, without a chain.
//! * [`peers`]: stores of other projects as contenders (feature `peers`).
//! * [`cache`]: prepared states, kept on disk between two commands.
//! * [`memory`]: a cap on memory, for states that are larger than memory.
//! * [`limit`]: what each kind of work costs on this machine, and the least seconds of a workload.
//! * [`locality`]: Merkle trees in flat files, counted and timed.
//! * [`cmi`]: the column-based Merkle index, COLE's baseline, as a contender.
//! * [`cole_index`]: the learned index of COLE's runs against indexes without models.
//! * [`trees`]: authenticated search trees in memory, timed and measured.
//! * [`crypto`]: the cost of curve arithmetic.
//! * [`tree_sync`]: such trees fetched from peers, some of which lie.
//! * [`witness`]: what it takes to execute blocks without a state.
//! * [`paper`]: the figures that the papers state, and their experiments.
//!
//! # Vocabulary
//! * **Entrant**: a store or a client that is to take part in a race: a [`state::StoreFactory`],
//!   which prepares its state on disk and opens it, or a [`clients::ClientEntrant`].
//! * **Contender**: an entrant that is open, and runs the slices of the race in turns.
//! * **Workload**: the operations or blocks that all contenders of a race run. A *variant* is a
//!   workload with one set of parameters.
//! * **Slice**: a part of the measured workload. Each contender runs a slice in one *turn*; the
//!   turns of a slice follow each other directly, so that noise of the machine meets all of them.
//! * **Median rate** and **sustained rate**: the median over the slices, and all operations over
//!   all timed seconds, with deferred work and the final flush.
//! * **Yardstick**: the contender that the others are compared with; `raw`, if it takes part.

pub mod cache;
pub mod chain;
pub mod clients;
pub mod cmi;
pub mod cole_index;
pub mod crypto;
mod error;
pub mod limit;
pub mod locality;
pub mod memory;
pub mod paper;
pub mod peers;
pub mod race;
mod random;
mod sparse;
pub mod state;
pub mod tree_sync;
pub mod trees;
pub mod witness;

pub use error::{BenchError, RaceSetting};
