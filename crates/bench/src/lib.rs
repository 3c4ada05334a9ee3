//! Measuring: workloads, and races between state stores.
//!
//! * [`chain`]: chains made from a seed: signed transfers, ERC-20 calls and swaps, block by block.
//! * [`state`]: state stores raced on the identical stream of reads and writes, without a chain.
//! * [`peers`]: stores that are not ours, to race against (feature `peers`).
//! * [`cache`]: prepared states, kept on disk between runs.
//! * [`report`], [`latency`]: the results, in the shape of `--json`.

pub mod cache;
pub mod chain;
mod error;
pub mod latency;
mod memory;
pub mod peers;
pub mod report;
mod sparse;
pub mod state;

pub use error::BenchError;
