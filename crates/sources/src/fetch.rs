//! Blocks of another node, one by one: what somebody who follows it needs, whatever it is asked by.

use alloy_primitives::B256;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use std::{fmt, time::Duration};

/// A block that a node has a name for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTag {
    /// The last block of its chain.
    Head,
    /// The last one that its consensus client calls safe.
    Safe,
    /// The last one that its consensus client calls final.
    Finalized,
}

/// Fetches blocks of another node. An implementation bounds how much it reads for one block.
///
/// The caller trusts nothing of it: neither that a block has the hash or number that was asked for,
/// nor that a number says anything about a block.
pub trait BlockFetcher: fmt::Debug + Send + Sync {
    /// The node, for messages; nothing secret is in it.
    fn name(&self) -> &str;

    /// Whether there is anybody to ask. While there is not, a follower that nobody has told whom to
    /// follow waits, and finds nothing wrong with it.
    fn is_there(&self) -> bool {
        true
    }

    /// Fails unless the node is on this chain. With `patience` it is asked once, and for no longer.
    ///
    /// # Errors
    /// If it is on another chain, or does not answer.
    fn check_chain(&self, spec: &ChainSpec, patience: Option<Duration>) -> Result<(), FetchError>;

    /// Hash and header of the block that the node calls by this name.
    ///
    /// # Errors
    /// If there is none, or the node does not answer; so for all that follow.
    fn tagged(&self, tag: BlockTag) -> Result<(B256, Header), FetchError>;

    /// The header of the block of this hash, canonical or not.
    fn header_by_hash(&self, hash: B256) -> Result<Header, FetchError>;

    /// The block of this hash, canonical or not.
    fn block_by_hash(&self, hash: B256) -> Result<Block, FetchError>;

    /// The block of this number on the node's chain.
    fn block_by_number(&self, number: u64) -> Result<Block, FetchError>;
}

/// Why a node gave no block, in the words of whatever it was asked by.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct FetchError(Box<dyn std::error::Error + Send + Sync>);

impl FetchError {
    /// With this cause, which names the node.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
