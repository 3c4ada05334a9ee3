//! `GET /health` of a retrie node: whether it can take requests.

use super::{RpcClient, RpcError, RpcErrorKind, wire::RpcCall};
use crate::http::success;
use alloy_primitives::B256;
use serde::Deserialize;
use serde_json::json;

/// Size limit of an answer (64 KiB).
const MAX_BYTES: u64 = 64 << 10;

/// The answer to `GET /health`, whatever its status (`docs/operations.md`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeHealth {
    /// Whether it is behind.
    pub syncing: bool,
    /// Number of its head.
    pub head: u64,
    /// Hash of its head.
    #[serde(default)]
    pub hash: Option<B256>,
    /// The part of proofs that it keeps, if its backend distributes them.
    #[serde(default)]
    pub shard: Option<String>,
    /// Its name and version.
    #[serde(default)]
    pub node: Option<String>,
    /// Failed parts of the node.
    #[serde(default)]
    pub failing: Vec<String>,
}

impl NodeHealth {
    /// Whether it is in sync and no part has failed.
    pub const fn is_well(&self) -> bool {
        !self.syncing && self.failing.is_empty()
    }
}

impl RpcClient {
    /// The health of the node (`GET /health` below the endpoint's path).
    ///
    /// # Errors
    /// Why it did not answer. [`RpcErrorKind::Result`] if it is not a retrie node.
    pub fn health(&self) -> Result<NodeHealth, RpcError> {
        let call = RpcCall::new("GET /health", json!([]), None);
        let url = self.url.split(['?', '#']).next().unwrap_or_default();
        let url = format!("{}/health", url.trim_end_matches('/'));
        let body = || {
            let answer = self.http.get(&url, &[])?;
            // A node that is behind answers with 503.
            let answer = if answer.status() == 503 { answer } else { success(answer)? };
            self.http.read(answer, MAX_BYTES)
        };
        let body = body().map_err(|fault| self.error(&call, fault.into()))?;
        serde_json::from_slice(&body).map_err(|e| self.error(&call, RpcErrorKind::Result(e)))
    }

    /// The part of proofs that the node keeps (`state_proofShard`).
    ///
    /// # Errors
    /// Why the node did not answer.
    pub fn proof_shard(&self) -> Result<String, RpcError> {
        self.one(&RpcCall::new("state_proofShard", json!([]), None).at_most(MAX_BYTES))
    }
}
