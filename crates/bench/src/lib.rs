//! Measuring: workloads, and races between state stores.
//!
//! * [`chain`]: chains made from a seed: signed transfers, ERC-20 calls and swaps, block by block.
//! * [`state`]: state stores raced on the identical stream of reads and writes, without a chain.

pub mod chain;
pub mod state;
