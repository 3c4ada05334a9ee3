//! Chains made from a seed: the same valid blocks on every machine, for every client.
//!
//! ```text
//!  Recipe --> Planner --calls--> sign (all cores) --> BlockBuilder --> block --> chain.rlp
//!    '-----> genesis.json                                 '--> state (temporary store)
//! ```
//!
//! Prague from genesis on, proof of stake. The first blocks deploy tokens, pairs and a router
//! (`crates/bench/contracts`), give every sender tokens and every pair liquidity. All others hold
//! the mix that the [`Recipe`] asks for. About one call in a hundred of tokens, and one in two
//! hundred of pairs, reverts.
//!
//! # Vocabulary
//! * **sender**: one of 256 funded accounts whose keys follow from the seed. One of them, the owner,
//!   deploys and mints.
//! * **receiver**: an account without a key that ether and tokens are sent to.
//! * **mix**: shares of plain transfers, token calls, and calls of pairs.

mod contracts;
mod files;
mod genesis;
mod maker;
mod plan;
mod random;
mod recipe;
mod sign;
#[cfg(test)]
mod tests;

pub use files::{CHAIN_FILE, GENESIS_FILE, MadeChain, write_chain};
pub use genesis::CHAIN_ID;
pub use maker::ChainMaker;
pub use recipe::{Fill, MAX_GAS_TARGET, Mix, Recipe};

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
