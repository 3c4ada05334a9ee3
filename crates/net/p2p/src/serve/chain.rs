//! What the network reads of the node's own chain and pool.

use crate::eth::{BlockRange, BlockReceipt, PooledTransaction};
use alloy_primitives::{B256, Bytes};
use retrie_chainspec::primitives::{BlockBody, Header};
use std::fmt;

/// Read access to the node's chain and its transaction pool.
pub trait ChainReader: fmt::Debug + Send + Sync {
    /// A view of the chain as it is now. The caller holds it for one answer, not longer.
    ///
    /// # Errors
    /// If the database fails.
    fn view(&self) -> Result<Box<dyn ChainView + '_>, ChainError>;

    /// A transaction of the pool that may be sent to peers, with its sidecar.
    fn pooled(&self, hash: &B256) -> Option<PooledTransaction>;
}

/// The chain at one moment. Every method fails if the database does.
pub trait ChainView {
    /// The blocks whose bodies are available, and the head.
    fn range(&self) -> Result<BlockRange, ChainError>;

    /// Hash of the canonical block with this number.
    fn canonical_hash(&self, number: u64) -> Result<Option<B256>, ChainError>;

    /// Header of a known block, canonical or not.
    fn header(&self, hash: &B256) -> Result<Option<Header>, ChainError>;

    /// Body of a known block; `None` also if it is not kept.
    fn body(&self, hash: &B256) -> Result<Option<BlockBody>, ChainError>;

    /// Receipts of a known block; `None` also if they are not kept, or not in the form that peers
    /// expect: before Byzantium that form has state roots.
    fn receipts(&self, hash: &B256) -> Result<Option<Vec<BlockReceipt>>, ChainError>;

    /// RLP of the block access list (EIP-7928) of a known block; `None` also if it is not kept.
    fn access_list(&self, hash: &B256) -> Result<Option<Bytes>, ChainError>;
}

/// Why the chain cannot be read: the error of the underlying database.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ChainError(Box<dyn std::error::Error + Send + Sync>);

impl ChainError {
    /// An error with this cause.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
