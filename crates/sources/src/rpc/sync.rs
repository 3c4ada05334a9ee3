//! The methods of namespace `sync`: parts of a state, from a node of ours (`docs/state-sync.md`).

use super::{RpcClient, RpcError, wire::Call};
use alloy_primitives::{B256, Bytes, U64};
use serde::Deserialize;
use serde_json::json;

/// Longest answer that is read (32 MiB). A node ends one behind 2 MiB, twice as much in hexadecimal,
/// with the item that reaches them.
const MAX_BYTES: u64 = 32 << 20;

/// What a node says that it has to hand out (`sync_status`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    /// Its backend.
    pub backend: String,
    /// Whether that hands states out.
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
        self.one(&Call::new(method, params, None).at_most(MAX_BYTES))
    }

    /// What the node says that it has (`sync_status`).
    ///
    /// # Errors
    /// What kept the node from answering; so for all that follow.
    pub fn sync_status(&self) -> Result<SyncStatus, RpcError> {
        self.sync("sync_status", json!([]))
    }

    /// The block whose state has this root, says the node, if it knows one (`sync_findRoot`).
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_find_root(&self, root: B256) -> Result<Option<B256>, RpcError> {
        self.sync("sync_findRoot", json!([root]))
    }

    /// Up to `count` headers in RLP, the last one that of `block` (`sync_getHeaders`). Unchecked, as
    /// are the results of the methods below.
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, RpcError> {
        self.sync("sync_getHeaders", json!([block, U64::from(count)]))
    }

    /// Codes by their hashes, `None` where the node has none; maybe only the first few
    /// (`sync_getCodes`).
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, RpcError> {
        self.sync("sync_getCodes", json!([hashes]))
    }

    /// Chunks of the state after `block` by their ids, `None` where the state has none; maybe only the
    /// first few (`sync_getChunks`).
    ///
    /// # Errors
    /// As [`sync_status`](Self::sync_status).
    pub fn sync_chunks(&self, block: B256, ids: &[Bytes]) -> Result<Vec<Option<Bytes>>, RpcError> {
        self.sync("sync_getChunks", json!([block, ids]))
    }
}
