//! Chains generated from a seed: the same valid blocks on every machine and for every client.
//!
//! ```text
//!  ChainRecipe --> planner --calls--> sign (all cores) --> BlockBuilder --> block --> chain.rlp
//!    '-----> genesis.json                                      '--> state (temporary store)
//! ```
//!
//! All forks up to Prague, or up to Amsterdam, and proof of stake are active from genesis on. Without
//! a [`GenesisPreload`], genesis holds the senders and the system contracts. The first blocks then
//! deploy the contracts that the mix needs (`crates/lab/bench/contracts`), and give tokens to every
//! sender and liquidity to every pair. About one of a hundred token calls, and one of two hundred
//! pair calls, reverts. With a preload, genesis holds all the state that the calls need, no call
//! reverts, and each kind of transaction is the workload of a paper.
//!
//! # Vocabulary
//! * **sender**: a funded account whose key follows from the seed. Sender 0, the owner, deploys
//!   contracts and mints tokens.
//! * **receiver**: an account without a key that ether and tokens are sent to.
//! * **mix** ([`TransactionMix`]): the shares of plain transfers, token calls, pair calls,
//!   SmallBank calls and key-value store calls.
//! * **lot**: the largest amount of a token that one swap moves.

mod base;
mod contract_set;
mod contracts;
mod files;
mod genesis;
mod ledgers;
mod maker;
mod plan;
mod preloaded;
mod recipe;
mod sign;
#[cfg(test)]
mod tests;

pub use contract_set::ContractSet;
pub use files::{
    ACCESS_LISTS_FILE, CHAIN_FILE, GENESIS_FILE, MadeChain, write_chain, write_chain_with_branches,
};
pub use maker::ChainMaker;
pub use recipe::{BlockFill, ChainFork, ChainRecipe, GenesisPreload, KeyChoice, TransactionMix};
pub(crate) use {base::GenesisBase, files::write_blocks};

use retrie_pipeline::PipelineError;
use std::path::PathBuf;

/// Why a chain could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeChainError {
    /// The recipe has a value that cannot be used.
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
    /// The user asked to stop.
    #[error("stopped before block {number}; nothing was written")]
    Stopped {
        /// The first block not made.
        number: u64,
    },
    /// The codes of the mainnet contracts cannot be read.
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
    /// Transactions reverted that must succeed. A race on them measures nothing.
    #[error("block {number}: {count} transactions reverted that should not")]
    Reverted {
        /// The block.
        number: u64,
        /// How many.
        count: u64,
    },
    /// A folder or file could not be created.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Execution or the state store failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}
