//! [`HttpPeer`]: a node that is asked by JSON-RPC.

use super::{StatePeer, StatePeerError};
use alloy_primitives::{B256, Bytes};
use retrie_sources::{BlockingClient, HttpOptions, RpcClient, RpcError, rpc::RpcErrorKind};
use retrie_state::ChunkId;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Error code of a node that refuses a request now and may answer it later (EIP-1474).
const BUSY: i64 = -32005;

/// How long a peer may send nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one exchange may take in total. It bounds answers that come a few bytes at a time.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(45);

/// A node's JSON-RPC over HTTP, namespace `sync`.
#[derive(Debug)]
pub struct HttpPeer(RpcClient);

impl HttpPeer {
    /// The node at `url`. Requests end when `stop` is set.
    pub fn new(url: &str, stop: Arc<AtomicBool>) -> Self {
        let options = HttpOptions {
            timeout: IDLE_TIMEOUT,
            total_timeout: Some(EXCHANGE_TIMEOUT),
            retries: 0,
            ..HttpOptions::default()
        };
        Self(RpcClient::new(url, BlockingClient::new(options, stop)))
    }
}

impl StatePeer for HttpPeer {
    fn name(&self) -> &str {
        self.0.endpoint()
    }

    fn find_root(&self, root: B256) -> Result<Option<B256>, StatePeerError> {
        Ok(self.0.sync_find_root(root)?)
    }

    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, StatePeerError> {
        Ok(self.0.sync_headers(block, count)?)
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        Ok(self.0.sync_codes(hashes)?)
    }

    fn chunks(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let ids: Vec<_> = ids.iter().map(|id| id.bytes().clone()).collect();
        Ok(self.0.sync_chunks(block, &ids)?)
    }
}

impl From<RpcError> for StatePeerError {
    fn from(error: RpcError) -> Self {
        match &*error.kind {
            RpcErrorKind::Refused { code: BUSY, .. } => Self::busy(error),
            _ => Self::new(error),
        }
    }
}
