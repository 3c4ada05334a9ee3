//! The Engine API by REST and SSZ, beside JSON-RPC on the authenticated port (execution-apis #793,
//! `refactor.md` and `refactor-ssz.md`; merged 2026-09-02).
//!
//! ```text
//!  method, path, header --> RestCall ---.
//!  body (SSZ) --------------------------+--> EngineRest --> EngineApi
//!                                       |        |
//!  RestProblem (status, problem+json) <-'        '--> RestAnswer (SSZ in pieces, or JSON)
//! ```
//!
//! # Vocabulary
//! * **call** ([`RestCall`]): what a request wants, without its body.
//! * **container**: an SSZ type of the specification; each is read or written for every fork by one
//!   function in `containers`.
//! * **problem** ([`RestProblem`]): an error as the specification wants it.
//! * **piece**: a part of an encoded answer; blobs are pieces that belong to the pool.
//!
//! # Assumptions
//! The server has checked the token and bounds the body before a call gets here.

mod call;
mod containers;
mod problem;
mod ssz;
#[cfg(test)]
mod tests;

pub(crate) use call::RestCall;
pub(crate) use problem::{PROBLEM_JSON, RestProblem};
pub(crate) use ssz::SszBuffer;

use crate::engine::THIS_CLIENT;
use alloy_primitives::Bytes;
use call::{BlobRevision, FORK_NAMES, MAX_BODIES, MAX_HASHES, MAX_PAYLOAD};
use containers::{
    CellRequest, ForkchoiceRequest, decode_cell_request, decode_envelope, decode_forkchoice,
    decode_hashes, encode_blobs_v1, encode_blobs_v2, encode_blobs_v4, encode_bodies,
    encode_built_payload, encode_forkchoice, encode_status,
};
use retrie_engine::{ApiFork, BodyRequest, EngineApi};
use serde_json::json;

/// Answers the calls.
#[derive(Clone, Debug)]
pub(crate) struct EngineRest {
    api: EngineApi,
}

/// The answer of a call that did not fail.
#[derive(Debug)]
pub(crate) enum RestAnswer {
    Ssz(SszBuffer),
    Json(String),
    /// There is nothing to give, for all that was asked.
    NoContent,
}

impl EngineRest {
    pub(crate) const fn new(api: EngineApi) -> Self {
        Self { api }
    }

    /// Answers a call with this body, which is empty if the call has none.
    ///
    /// # Errors
    /// The problem to tell the client.
    pub(crate) async fn answer(
        &self,
        call: RestCall,
        body: Bytes,
    ) -> Result<RestAnswer, RestProblem> {
        match call {
            RestCall::NewPayload(fork) => {
                let envelope = decode_envelope(fork, body)?;
                let status = self.api.new_payload_of_fork(fork, envelope).await?;
                Ok(RestAnswer::Ssz(encode_status(&status)))
            }
            RestCall::GetPayload(fork, id) => {
                let (payload, built) = self.api.payload_of_fork(fork, id).await?;
                Ok(RestAnswer::Ssz(encode_built_payload(fork, &payload, &built)))
            }
            RestCall::Forkchoice(fork) => self.forkchoice(fork, body).await,
            RestCall::BodiesByHash(fork) => {
                self.bodies(fork, BodyRequest::Hashes(decode_hashes(body)?)).await
            }
            RestCall::BodiesByRange { fork, from, count } => {
                self.bodies(fork, BodyRequest::Range { start: from, count }).await
            }
            RestCall::Blobs(revision) => self.blobs(revision, body).await,
            RestCall::Capabilities => Ok(RestAnswer::Json(capabilities())),
            RestCall::Identity => {
                let clients = serde_json::to_string(&[THIS_CLIENT]);
                let json = clients.map_err(|error| RestProblem::internal(error.to_string()))?;
                Ok(RestAnswer::Json(json))
            }
        }
    }

    async fn forkchoice(&self, fork: ApiFork, body: Bytes) -> Result<RestAnswer, RestProblem> {
        let ForkchoiceRequest { state, attributes, custody_columns: _ } =
            decode_forkchoice(fork, body)?;
        let updated = self.api.fork_choice_of_fork(fork, state, attributes).await?;
        Ok(RestAnswer::Ssz(encode_forkchoice(&updated)))
    }

    async fn bodies(&self, fork: ApiFork, request: BodyRequest) -> Result<RestAnswer, RestProblem> {
        let bodies = self.api.bodies_of_fork(fork, request, MAX_BODIES as u64).await?;
        Ok(RestAnswer::Ssz(encode_bodies(fork, &bodies)))
    }

    async fn blobs(&self, revision: BlobRevision, body: Bytes) -> Result<RestAnswer, RestProblem> {
        let answer = match revision {
            BlobRevision::V1 => {
                Some(encode_blobs_v1(&self.api.blobs_with_proof(&decode_hashes(body)?)?))
            }
            BlobRevision::V2 => {
                let blobs = self.api.blobs_with_cell_proofs(&decode_hashes(body)?)?;
                let is_whole = |blobs: &Vec<_>| blobs.iter().all(Option::is_some);
                blobs.filter(is_whole).map(|blobs| encode_blobs_v2(&blobs))
            }
            BlobRevision::V3 => {
                let blobs = self.api.blobs_with_cell_proofs(&decode_hashes(body)?)?;
                blobs.map(|blobs| encode_blobs_v2(&blobs))
            }
            BlobRevision::V4 => {
                let CellRequest { hashes, cells } = decode_cell_request(body)?;
                let blobs = self.api.blobs_v4(hashes, cells.into()).await?;
                blobs.map(|blobs| encode_blobs_v4(cells, &blobs))
            }
        };
        Ok(answer.map_or(RestAnswer::NoContent, RestAnswer::Ssz))
    }
}

/// What this node serves, and its limits.
fn capabilities() -> String {
    json!({
        "supported_forks": FORK_NAMES.map(|(name, _)| name),
        "fork_scoped_endpoints": ["payloads", "forkchoice", "bodies"],
        "independently_versioned": { "blobs": ["v1", "v2", "v3", "v4"] },
        "unscoped_endpoints": ["capabilities", "identity"],
        "limits": {
            "bodies.max_count": MAX_BODIES,
            "blobs.max_versioned_hashes": MAX_HASHES,
            "payload.max_bytes": MAX_PAYLOAD,
        },
    })
    .to_string()
}
