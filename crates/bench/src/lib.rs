//! Measuring: workloads, and races between state stores.
//!
//! * [`chain`]: chains made from a seed: signed transfers, ERC-20 calls and swaps, block by block.
//! * [`clients`]: whole clients raced on the blocks of such chains.
//! * [`state`]: state stores raced on the identical stream of reads and writes, without a chain.
//! * [`peers`]: stores that are not ours, to race against (feature `peers`).
//! * [`cache`]: prepared states, kept on disk between runs.
//! * [`memory`]: a cap on memory, for data that is larger.
//! * [`locality`]: Merkle trees in flat files, counted and timed.
//! * [`trees`]: search trees with Merkle hashes in memory, and what they are worth.
//! * [`sync`]: such trees fetched from peers, some of which lie.
//! * [`figures`]: rates, their spreads, and how two series compare.
//! * [`report`], [`latency`]: the results, in the shape of `--json`, as a page, and compared.
//! * [`paper`]: the papers' figures, and the experiments behind them.

pub mod cache;
pub mod chain;
pub mod clients;
mod error;
pub mod figures;
pub mod latency;
pub mod locality;
pub mod memory;
pub mod paper;
pub mod peers;
mod random;
pub mod report;
mod sparse;
pub mod state;
pub mod sync;
pub mod trees;

pub use error::{BenchError, Setting};
