//! Cells of blobs (EIP-7594), which consensus clients fetch from the pool (EIP-8070).

use super::{ApiFork, ApiResult, EngineApi, MAX_BLOBS, check_count};
use crate::{EngineError, pool::CellMask};
use alloy_eips::eip4844::BlobCellsAndProofsV1;
use alloy_primitives::B256;

impl EngineApi {
    /// `engine_getBlobsV4`: the cells of the mask of each blob, in ascending order of their
    /// indices, with their proofs; null for an unknown blob. Null as a whole before Osaka, and on a
    /// node without blobs: it is behind, or its pool refuses them.
    ///
    /// A pooled blob has all of its cells, since this node fetches whole blobs.
    ///
    /// # Errors
    /// [`EngineApiError::TooLarge`](super::EngineApiError::TooLarge) for more than 128 hashes.
    pub async fn blobs_v4(
        &self,
        hashes: Vec<B256>,
        mask: CellMask,
    ) -> ApiResult<Option<Vec<Option<BlobCellsAndProofsV1>>>> {
        check_count(hashes.len() as u64, MAX_BLOBS as u64)?;
        let has_blobs = self.head_fork() >= ApiFork::Osaka
            && self.engine.syncing().is_none()
            && !self.pool.config().disable_blobs;
        if !has_blobs {
            return Ok(None);
        }
        let pool = self.pool.clone();
        let cells = tokio::task::spawn_blocking(move || pool.blob_cells(&hashes, mask));
        Ok(Some(cells.await.map_err(|_| EngineError::Panicked)?))
    }
}
