//! Errors of a chain that begins with the state after some block.

use alloy_primitives::{B256, U256};
use retrie_state::BlockRef;
use std::path::PathBuf;

/// Why a chain cannot begin with, or go back to, the requested block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnchorError {
    /// There is no header, and the dump is not of genesis.
    #[error(
        "the dump has the state root {root}, which is not that of genesis, and comes without the \
         header of its block"
    )]
    NoHeader {
        /// Root of the dump.
        root: B256,
    },
    /// The last header has another hash than the requested one.
    #[error("the last header is block {number} ({got}), not {expected}")]
    OtherHash {
        /// Its number.
        number: u64,
        /// Its hash.
        got: B256,
        /// The requested hash.
        expected: B256,
    },
    /// A header is not the child of the header before it.
    #[error(
        "header {number} ({hash}) is not the child of the one before it, {parent}: the file must \
         hold a chain of ancestors and end with the block of the dump"
    )]
    Unlinked {
        /// Its number.
        number: u64,
        /// Its hash.
        hash: B256,
        /// The header before it.
        parent: BlockRef,
    },
    /// A proof-of-work block without its total difficulty.
    #[error(
        "block {number} is of proof of work, and its total difficulty, by which branches are chosen, \
         is not given"
    )]
    NoTotalDifficulty {
        /// Its number.
        number: u64,
    },
    /// The total difficulty is below the sum of the headers' difficulties; or not equal to it,
    /// although the headers begin with genesis.
    #[error("the total difficulty {total} does not fit the difficulties of the headers")]
    TotalDifficulty {
        /// What was given.
        total: U256,
    },
    /// The dump has the state of another block.
    #[error(
        "the dump has the state root {dump}, block {number} ({hash}) has {header}: it is the state \
         of another block"
    )]
    OtherState {
        /// Root of the dump.
        dump: B256,
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// Root in the header.
        header: B256,
    },
    /// The datadir already has a chain.
    #[error(
        "the datadir {} already holds a chain, up to block {tip}: a state is loaded into an empty \
         datadir only", datadir.display()
    )]
    NotEmpty {
        /// The datadir.
        datadir: PathBuf,
        /// Its tip.
        tip: BlockRef,
    },
    /// A state that came in chunks does not have the trusted root.
    #[error("the state of block {block} has the root {got}, not {expected}, which is trusted")]
    OtherRoot {
        /// The block.
        block: BlockRef,
        /// The computed root.
        got: B256,
        /// The trusted root.
        expected: B256,
    },
    /// The backend's root cannot be computed from values alone.
    #[error(
        "the root of backend {backend} depends on all that happened, not on the state alone: a \
         chain with its roots in the headers cannot begin with a dump, \
         import its blocks"
    )]
    HistoryRoot {
        /// Name of the backend.
        backend: &'static str,
    },
    /// The caller has set the stop flag.
    #[error("stopped; nothing was written, run the same command again")]
    Stopped,
    /// The block is below the anchor, where there is no state.
    #[error(
        "the datadir was started from the state after block {anchor}: block {number} is none that it \
         can import or go back to"
    )]
    Below {
        /// The block.
        number: u64,
        /// Number of the anchor.
        anchor: u64,
    },
}
