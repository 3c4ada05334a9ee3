//! The peers: [`StatePeer`] is a node that state sync asks, [`PeerSource`] all of them.
//!
//! | module | a node that is asked |
//! |---|---|
//! | `http` | by JSON-RPC, namespace `sync` |
//! | `connected` | over a devp2p connection, by `rchk` and `eth` |
//! | `snap` | over a devp2p connection, by `snap` and `eth` |

mod connected;
mod http;
mod snap;

pub use connected::ConnectedPeers;
pub use http::HttpPeer;
pub use snap::SnapPeerSet;

use alloy_primitives::{B256, Bytes};
use retrie_state::ChunkId;
use std::{fmt, sync::Arc};

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

    /// Whether an honest peer of this kind gives such a wrong answer for a chunk now and then, so that
    /// it is banned after some of them only.
    fn may_be_mistaken(&self, _chunk: &ChunkId, _wrong: &[u8]) -> bool {
        false
    }

    /// Where the peer has the answer to this id, or the code with this hash; for messages. Nodes
    /// have no such places.
    fn place_of(&self, _id: &[u8]) -> Option<String> {
        None
    }

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

    /// Chunks of which most is known already, as nodes if the peer can give them alone.
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root).
    fn nodes(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        self.chunks(block, ids)
    }

    /// Block access lists in RLP (EIP-7928).
    ///
    /// # Errors
    /// As [`find_root`](Self::find_root); also if the peer cannot be asked for them.
    fn access_lists(&self, blocks: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let _ = blocks;
        Err(StatePeerError::new("it is not asked for block access lists"))
    }
}

impl fmt::Debug for dyn StatePeer + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.name()).finish()
    }
}

/// The peers that a state sync may ask: a fixed list, or the peers that are connected now.
pub trait PeerSource: Send + Sync {
    /// The peers that are available now.
    fn peers(&self) -> Vec<Arc<dyn StatePeer>>;

    /// Whether further peers may come, so that waiting for them makes sense.
    fn may_grow(&self) -> bool {
        false
    }
}

impl PeerSource for Vec<Arc<dyn StatePeer>> {
    fn peers(&self) -> Self {
        self.clone()
    }
}
