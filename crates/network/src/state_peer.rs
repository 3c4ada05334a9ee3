//! [`StatePeer`]: a node that state sync asks for chunks of a state.

use alloy_primitives::{B256, Bytes};
use retrie_sources::{BlockingClient, HttpOptions, RpcClient, RpcError, rpc::RpcErrorKind};
use retrie_state::ChunkId;
use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Error code of a node that refuses a request now and may answer it later (EIP-1474).
const BUSY: i64 = -32005;

/// How long a peer may send nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one exchange may take in total. It bounds answers that come a few bytes at a time.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(45);

/// Why a peer gave no answer. A later request may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct StatePeerError {
    reason: Box<dyn std::error::Error + Send + Sync>,
    is_busy: bool,
}

impl StatePeerError {
    /// An error with this reason.
    pub fn new(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { reason: reason.into(), is_busy: false }
    }

    /// An error with this reason: the peer prepares the state that it was asked for, or serves
    /// others.
    pub fn busy(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { reason: reason.into(), is_busy: true }
    }

    /// Whether the peer said that it prepares the state that it was asked for, or serves others.
    pub const fn is_busy(&self) -> bool {
        self.is_busy
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

/// A node that is asked for chunks of a state. The methods check nothing about the answers, but
/// they must return in bounded time and bound what they read.
///
/// A result that is a list answers a prefix of the request, possibly not all of it. `None` stands
/// for an item that the peer does not have.
pub trait StatePeer: Send + Sync {
    /// Its name in messages. Names are unique, and a peer that reconnects has its old name.
    fn name(&self) -> &str;

    /// Whether it can be asked at all.
    fn is_available(&self) -> bool {
        true
    }

    /// Called when an answer of the peer was proven false. It is not asked again.
    fn report_lie(&self) {}

    /// The block whose state has this root, as the peer's backend computes roots.
    ///
    /// # Errors
    /// Why the peer did not answer; the same holds for all methods.
    fn find_root(&self, root: B256) -> Result<Option<B256>, StatePeerError>;

    /// Up to `count` headers in RLP; the last one is that of `block`.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, StatePeerError>;

    /// Contract codes.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError>;

    /// Chunks of the state after `block`.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn chunks(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError>;
}

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

impl fmt::Debug for dyn StatePeer + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.name()).finish()
    }
}
