//! Chains made from a seed: the same valid blocks on every machine, for every client.
//!
//! ```text
//!  Recipe --> Planner --calls--> sign (all cores) --> BlockBuilder --> block --> chain.rlp
//!    '-----> genesis.json                                 '--> state (temporary store)
//! ```
//!
//! Prague from genesis on, proof of stake. Without a [`Preload`], genesis holds little more than the
//! senders: the first blocks deploy what the mix needs (`crates/bench/contracts`), give every sender
//! tokens and every pair liquidity, and about one call in a hundred of tokens, and one in two hundred
//! of pairs, reverts. With one, the state that calls need is there from genesis on, none reverts, and
//! each kind of transaction is the workload of a paper.
//!
//! # Vocabulary
//! * **sender**: one of the funded accounts whose keys follow from the seed. One of them, the owner,
//!   deploys and mints.
//! * **receiver**: an account without a key that ether and tokens are sent to.
//! * **mix**: shares of plain transfers, token calls, calls of pairs, of banks, of a key-value store.
//! * **lot**: the most of a token that a swap moves.

mod base;
mod contracts;
mod files;
mod genesis;
mod ledgers;
mod maker;
mod plan;
mod preloaded;
mod recipe;
mod set;
mod sign;
#[cfg(test)]
mod tests;

pub use base::Base;
pub use files::{
    BRANCHES_FILE, CHAIN_FILE, GENESIS_FILE, MadeChain, write_blocks, write_chain,
    write_chain_with_branches,
};
pub use genesis::CHAIN_ID;
pub use maker::ChainMaker;
pub use recipe::{Fill, GAS_TARGET, KeyChoice, MAX_GAS_TARGET, Mix, Preload, Recipe};
pub use set::ContractSet;

use retrie_pipeline::PipelineError;
use std::path::PathBuf;

/// Why a chain was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeChainError {
    /// The recipe cannot be followed.
    #[error("{what}")]
    Recipe {
        /// Why.
        what: String,
    },
    /// A file is there already.
    #[error("{} exists already: choose another folder, or remove it", file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// It was told to stop.
    #[error("stopped before block {number}; nothing was written")]
    Stopped {
        /// The first block not made.
        number: u64,
    },
    /// The real contracts are not there.
    #[error(
        "the real contracts in {} cannot be used: {why}; RETRIE_DATA names the folder of the data",
        file.display()
    )]
    Contracts {
        /// The file of their codes.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// Transactions that should succeed did not: they would measure nothing.
    #[error("block {number}: {count} transactions reverted that should not")]
    Reverted {
        /// The block.
        number: u64,
        /// How many.
        count: u64,
    },
    /// A folder or file could not be made.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Execution or store failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}
