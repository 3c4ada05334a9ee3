//! [`BlockSyncError`].

use alloy_primitives::B256;
use retrie_sources::FetchError;
use std::time::Duration;

/// Why peers gave no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockSyncError {
    /// No peer is connected.
    #[error("no peer is connected")]
    NoPeers,
    /// All peers were asked, and none has the block.
    #[error(
        "none of {peers} peers has given block {hash}: it may be on a branch that they do not know"
    )]
    UnknownBlock {
        /// Hash of the block.
        hash: B256,
        /// How many peers were asked.
        peers: usize,
    },
    /// Peers are connected, but nothing useful comes.
    #[error("no peer has sent block {number} or a later one for {} s", after.as_secs())]
    Stalled {
        /// Number of the block.
        number: u64,
        /// How long.
        after: Duration,
    },
    /// The block is above the head that was named, or no head was named.
    #[error("block {number} was asked for before a head at or above it")]
    AboveHead {
        /// Number of the block.
        number: u64,
    },
    /// Peers do not name heads; a consensus client does.
    #[error("peers name no heads: a consensus client does, or --sync.head")]
    NoHeads,
    /// Block sync was stopped.
    #[error("stopped")]
    Stopped,
}

impl From<BlockSyncError> for FetchError {
    fn from(error: BlockSyncError) -> Self {
        Self::new(error)
    }
}
