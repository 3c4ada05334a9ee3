//! Fetching blocks of another node, over any protocol.

use alloy_primitives::B256;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use std::{fmt, time::Duration};

/// A named block of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTag {
    /// The last block of its chain.
    Head,
    /// The safe block of its consensus client.
    Safe,
    /// The finalized block of its consensus client.
    Finalized,
}

/// Fetches blocks of another node. An implementation bounds how much it reads for one block.
///
/// The caller trusts none of it: neither that a block has the requested hash or number, nor that a
/// number says anything about a block.
pub trait BlockFetcher: fmt::Debug + Send + Sync {
    /// The node's name in messages, without secrets.
    fn name(&self) -> &str;

    /// Whether there is a node to fetch from. While there is none, a follower without a target
    /// waits, and reports no error.
    fn is_available(&self) -> bool {
        true
    }

    /// Fails unless the node is on this chain. With `patience` it makes one try with this time-out.
    ///
    /// # Errors
    /// If it is on another chain, or does not answer.
    fn check_chain(&self, spec: &ChainSpec, patience: Option<Duration>) -> Result<(), FetchError>;

    /// Hash and header of the named block.
    ///
    /// # Errors
    /// If there is none, or the node does not answer; the same for the methods below.
    fn tagged(&self, tag: BlockTag) -> Result<(B256, Header), FetchError>;

    /// The header of the block with this hash, canonical or not.
    fn header_by_hash(&self, hash: B256) -> Result<Header, FetchError>;

    /// The block with this hash, canonical or not.
    fn block_by_hash(&self, hash: B256) -> Result<Block, FetchError>;

    /// The block with this number on the node's chain.
    fn block_by_number(&self, number: u64) -> Result<Block, FetchError>;
}

/// Why a node returned no block. The text comes from the implementation.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct FetchError(Box<dyn std::error::Error + Send + Sync>);

impl FetchError {
    /// An error with this cause, which names the node.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
