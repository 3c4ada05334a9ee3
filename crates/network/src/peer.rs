//! [`Peer`]: a node that is asked for parts of a state.

use alloy_primitives::{B256, Bytes};
use retrie_sources::{Http, HttpOptions, RpcClient, RpcError, rpc::RpcErrorKind};
use retrie_state::ChunkId;
use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Code of what a node refuses now and may give later (EIP-1474).
const BUSY: i64 = -32005;

/// How long a peer may be silent.
const SILENT: Duration = Duration::from_secs(10);
/// How long one exchange may take: an answer that drips is none.
const WHOLE: Duration = Duration::from_secs(45);

/// Why a peer gave nothing. It may later.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct PeerError {
    reason: Box<dyn std::error::Error + Send + Sync>,
    is_busy: bool,
}

impl PeerError {
    /// With this reason.
    pub fn new(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { reason: reason.into(), is_busy: false }
    }

    /// With this reason: the peer is there, and makes ready what it was asked for, or serves others.
    pub fn busy(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { reason: reason.into(), is_busy: true }
    }

    /// Whether the peer says that it makes ready what it was asked for, or serves others.
    pub const fn is_busy(&self) -> bool {
        self.is_busy
    }
}

impl From<RpcError> for PeerError {
    fn from(error: RpcError) -> Self {
        match &*error.kind {
            RpcErrorKind::Refused { code: BUSY, .. } => Self::busy(error),
            _ => Self::new(error),
        }
    }
}

/// A node that is asked for parts of a state. Nothing that it says is checked here; but methods must
/// end, and bound what they read.
///
/// Results that are lists answer the front of what was asked, maybe not all of it, `None` standing for
/// what the peer does not have.
pub trait Peer: Send + Sync {
    /// How messages name it. No two have the same name, and one that comes back has its old one.
    fn name(&self) -> &str;

    /// Whether it can be asked at all.
    fn is_there(&self) -> bool {
        true
    }

    /// Hears that what it has given is not what it must be, and that it is not asked again.
    fn has_lied(&self) {}

    /// The block whose state has this root of its backend's.
    ///
    /// # Errors
    /// What kept the peer from answering; so for all methods.
    fn find_root(&self, root: B256) -> Result<Option<B256>, PeerError>;

    /// Up to `count` headers in RLP, the last one that of `block`.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, PeerError>;

    /// Contract codes.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, PeerError>;

    /// Chunks of the state after `block`.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn chunks(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, PeerError>;
}

/// A node's JSON-RPC over HTTP, namespace `sync`.
#[derive(Debug)]
pub struct HttpPeer(RpcClient);

impl HttpPeer {
    /// The node at `url`. Requests end when `stop` is set.
    pub fn new(url: &str, stop: Arc<AtomicBool>) -> Self {
        let options = HttpOptions {
            timeout: SILENT,
            whole: Some(WHOLE),
            retries: 0,
            ..HttpOptions::default()
        };
        Self(RpcClient::new(url, Http::new(options, stop)))
    }
}

impl Peer for HttpPeer {
    fn name(&self) -> &str {
        self.0.endpoint()
    }

    fn find_root(&self, root: B256) -> Result<Option<B256>, PeerError> {
        Ok(self.0.sync_find_root(root)?)
    }

    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, PeerError> {
        Ok(self.0.sync_headers(block, count)?)
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, PeerError> {
        Ok(self.0.sync_codes(hashes)?)
    }

    fn chunks(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, PeerError> {
        let ids: Vec<_> = ids.iter().map(|id| id.bytes().clone()).collect();
        Ok(self.0.sync_chunks(block, &ids)?)
    }
}

impl fmt::Debug for dyn Peer + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.name()).finish()
    }
}
