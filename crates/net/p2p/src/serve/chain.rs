//! What the network reads of the node's own chain and pool.

use crate::eth::{BlockRange, BlockReceipt, PooledTransaction};
use alloy_eips::eip7594::Cell;
use alloy_primitives::{B256, Bytes};
use retrie_chainspec::{
    CellMask,
    primitives::{BlockBody, Header},
};
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

    /// The cells of the mask, in ascending order of their indices, of each blob of a transaction of
    /// the pool that may be sent to peers. `None` also if its blobs have no proofs of cells. The
    /// default has none.
    fn blob_cells(&self, _hash: &B256, _mask: CellMask) -> Option<Vec<Vec<Cell>>> {
        None
    }

    /// How many blobs of a transaction have cells beyond the blob itself that
    /// [`blob_cells`](Self::blob_cells) would have to compute, each in milliseconds. The default has
    /// none.
    fn blobs_to_extend(&self, _hash: &B256) -> usize {
        0
    }
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
