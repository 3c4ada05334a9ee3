//! The methods of the namespace `sync`: state sync from a retrie node (`docs/state-sync.md`).

use super::{RpcClient, RpcError, wire::RpcCall};
use alloy_primitives::{B256, Bytes, U64};
use serde::Deserialize;
use serde_json::json;

/// Size limit of an answer (32 MiB). A node ends an answer with the item that reaches 2 MiB;
/// hexadecimal doubles the size.
const MAX_BYTES: u64 = 32 << 20;

/// What a node offers for state sync (`sync_status`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateSyncOffer {
    /// Its backend.
    pub backend: String,
    /// Whether the backend serves state chunks.
    pub chunks: bool,
    /// Number of its head.
    pub block: U64,
    /// Hash of its head.
    pub block_hash: B256,
}

impl RpcClient {
    fn sync<T: serde::de::DeserializeOwned>(
        &self,
        method: &'static str,
        params: serde_json::Value,
    ) -> Result<T, RpcError> {
        self.one(&RpcCall::new(method, params, None).at_most(MAX_BYTES))
    }

    /// What the node offers (`sync_status`).
    ///
    /// # Errors
    /// Why the node did not answer.
    pub fn sync_status(&self) -> Result<StateSyncOffer, RpcError> {
        self.sync("sync_status", json!([]))
    }

    /// The block whose state has this root, according to the node, if it knows one
    /// (`sync_findRoot`).
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_find_root(&self, root: B256) -> Result<Option<B256>, RpcError> {
        self.sync("sync_findRoot", json!([root]))
    }

    /// Up to `count` headers in RLP, ending with the header of `block` (`sync_getHeaders`). They
    /// are not checked, and neither are the results of the methods below.
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, RpcError> {
        self.sync("sync_getHeaders", json!([block, U64::from(count)]))
    }

    /// Codes by their hashes, `None` if the node does not have one; possibly only the first few
    /// (`sync_getCodes`).
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, RpcError> {
        self.sync("sync_getCodes", json!([hashes]))
    }

    /// Chunks of the state after `block` by their ids, `None` if the state has no such chunk;
    /// possibly only the first few (`sync_getChunks`).
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_chunks(&self, block: B256, ids: &[Bytes]) -> Result<Vec<Option<Bytes>>, RpcError> {
        self.sync("sync_getChunks", json!([block, ids]))
    }
}
