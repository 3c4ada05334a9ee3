//! The calls of the API's REST form (execution-apis #793): they name a fork and not a version of a
//! method, and they give blobs that are shared and not copied.

use super::{
    ApiFork, ApiResult, EngineApi, EngineApiError, MAX_BLOBS, check_count, check_requests,
    hashed_block, wrong_proofs,
};
use crate::{BuiltPayload, pool::PooledBlob};
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_engine::{
    CancunPayloadFields, ExecutionPayload, ExecutionPayloadSidecar, ExecutionPayloadV1,
    ExecutionPayloadV2, ExecutionPayloadV3, ExecutionPayloadV4, ForkchoiceState, ForkchoiceUpdated,
    PayloadAttributes, PayloadId, PayloadStatus, PraguePayloadFields,
};
use std::sync::Arc;

/// A payload with what `engine_newPayload` takes beside it. It does not repeat the versioned hashes
/// of its blobs, which its transactions name.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadEnvelope {
    /// The payload.
    pub payload: ExecutionPayload,
    /// From Cancun on.
    pub parent_beacon_block_root: Option<B256>,
    /// From Prague on, as in `engine_newPayloadV4`: each begins with its type (EIP-7685).
    pub requests: Option<Vec<Bytes>>,
}

impl EngineApi {
    /// Verifies a payload, whose shape is that of `fork`.
    ///
    /// # Errors
    /// [`EngineApiError::UnsupportedFork`] if the payload's time belongs to a fork whose payloads
    /// `engine_newPayload` takes in another version; and as the other methods.
    pub async fn new_payload_of_fork(
        &self,
        fork: ApiFork,
        envelope: PayloadEnvelope,
    ) -> ApiResult<PayloadStatus> {
        let PayloadEnvelope { payload, parent_beacon_block_root, requests } = envelope;
        let fits = match self.fork(payload.timestamp()) {
            // Both have the same shapes, and one version of the method.
            ApiFork::Prague | ApiFork::Osaka => matches!(fork, ApiFork::Prague | ApiFork::Osaka),
            own => own == fork,
        };
        if !fits {
            return Err(EngineApiError::UnsupportedFork("the payload's time is in another fork"));
        }
        // Its blobs are those that its transactions name: there is nothing to compare.
        let cancun = |parent_beacon_block_root| CancunPayloadFields {
            parent_beacon_block_root,
            versioned_hashes: Vec::new(),
        };
        let sidecar = match (parent_beacon_block_root.map(cancun), requests) {
            (Some(cancun), Some(requests)) => {
                let prague = PraguePayloadFields::new(check_requests(requests)?);
                ExecutionPayloadSidecar::v4(cancun, prague)
            }
            (Some(cancun), None) => ExecutionPayloadSidecar::v3(cancun),
            (None, _) => ExecutionPayloadSidecar::none(),
        };
        self.new_payload(payload, sidecar, hashed_block).await
    }

    /// Sets the head, and starts a payload of `fork` if there are attributes.
    ///
    /// # Errors
    /// [`EngineApiError::UnsupportedFork`] if the attributes' time is in another fork; the head is
    /// set then. And as the other methods.
    pub async fn fork_choice_of_fork(
        &self,
        fork: ApiFork,
        state: ForkchoiceState,
        attributes: Option<PayloadAttributes>,
    ) -> ApiResult<ForkchoiceUpdated> {
        let version = match fork {
            ApiFork::Paris => 1,
            ApiFork::Shanghai => 2,
            ApiFork::Cancun | ApiFork::Prague | ApiFork::Osaka => 3,
            ApiFork::Amsterdam => 4,
        };
        let check = |attributes: &PayloadAttributes| {
            if self.fork(attributes.timestamp) != fork {
                let what = "the attributes' time is in another fork";
                return Err(EngineApiError::UnsupportedFork(what));
            }
            self.check_attributes(version, attributes)
        };
        self.update_fork_choice(version, state, attributes, check).await
    }

    /// A payload that was built here, and what its proposer needs beside it.
    ///
    /// # Errors
    /// [`EngineApiError::UnsupportedFork`] if the payload is of another fork; and as the other
    /// methods.
    pub async fn payload_of_fork(
        &self,
        fork: ApiFork,
        id: PayloadId,
    ) -> ApiResult<(ExecutionPayload, Arc<BuiltPayload>)> {
        let (built, block) = self.payload(id, "the payload is of another fork", &[fork]).await?;
        let has_cells = fork >= ApiFork::Osaka;
        if built.sidecars.iter().any(|sidecar| sidecar.is_eip7594() != has_cells) {
            return Err(wrong_proofs());
        }
        let hash = built.hash();
        let payload = match fork {
            ApiFork::Paris => {
                ExecutionPayload::V1(ExecutionPayloadV1::from_block_unchecked(hash, &block))
            }
            ApiFork::Shanghai => {
                ExecutionPayload::V2(ExecutionPayloadV2::from_block_unchecked(hash, &block))
            }
            ApiFork::Cancun | ApiFork::Prague | ApiFork::Osaka => {
                ExecutionPayload::V3(ExecutionPayloadV3::from_block_unchecked(hash, &block))
            }
            ApiFork::Amsterdam => {
                let list = built.access_list.clone().unwrap_or_default();
                let payload = ExecutionPayloadV4::from_block_unchecked_with_bal(hash, &block, list);
                ExecutionPayload::V4(payload)
            }
        };
        Ok((payload, built))
    }

    /// The blobs of `engine_getBlobsV1`, each with one proof.
    ///
    /// # Errors
    /// As the other methods.
    pub fn blobs_with_proof(&self, hashes: &[B256]) -> ApiResult<Vec<Option<PooledBlob>>> {
        if !matches!(self.head_fork(), ApiFork::Cancun | ApiFork::Prague) {
            let what = "engine_getBlobsV1 is for Cancun and Prague";
            return Err(EngineApiError::UnsupportedFork(what));
        }
        check_count(hashes.len() as u64, MAX_BLOBS as u64)?;
        let blobs = self.pool.blobs(hashes).into_iter();
        Ok(blobs.map(|blob| blob.filter(|blob| blob.sidecar.is_eip4844())).collect())
    }

    /// The blobs of `engine_getBlobsV3`, each with its cell proofs; `None` before Osaka.
    ///
    /// # Errors
    /// As the other methods.
    pub fn blobs_with_cell_proofs(
        &self,
        hashes: &[B256],
    ) -> ApiResult<Option<Vec<Option<PooledBlob>>>> {
        if self.head_fork() < ApiFork::Osaka {
            return Ok(None);
        }
        check_count(hashes.len() as u64, MAX_BLOBS as u64)?;
        let blobs = self.pool.blobs(hashes).into_iter();
        Ok(Some(blobs.map(|blob| blob.filter(|blob| blob.sidecar.is_eip7594())).collect()))
    }
}
