//! States of connected peers, for [`fetch`](mod@crate::fetch).

use super::{Refusal, Request};
use crate::{
    eth::{self, HeadersFrom, PeerId},
    fetch::Roster,
    handle::{Offence, Peers, RequestError},
    peer::{Peer, PeerError},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::ChunkId;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The connected peers that hand out states.
#[derive(Clone, Debug)]
pub struct ConnectedPeers {
    peers: Peers,
    format: String,
    runtime: Handle,
}

impl ConnectedPeers {
    /// Of these peers, in chunks of this [format](retrie_state::Chunks::format). They are asked from
    /// threads that are none of `runtime`, and on which requests run.
    pub fn new(peers: Peers, format: impl Into<String>, runtime: Handle) -> Self {
        Self { peers, format: format.into(), runtime }
    }
}

impl Roster for ConnectedPeers {
    fn peers(&self) -> Vec<Arc<dyn Peer>> {
        let connected = self.peers.connected().into_iter();
        let remote = |id, address| RemotePeer {
            name: format!("{address} ({})", crate::peers::short(&id)),
            id,
            of: self.clone(),
        };
        let speaking = connected.filter(|info| info.speaks_rchk);
        speaking.map(|info| Arc::new(remote(info.id, info.address.ip())) as Arc<dyn Peer>).collect()
    }

    fn may_grow(&self) -> bool {
        true
    }
}

/// A peer that hands out states.
#[derive(Debug)]
pub struct RemotePeer {
    name: String,
    id: PeerId,
    of: ConnectedPeers,
}

impl From<RequestError> for PeerError {
    fn from(error: RequestError) -> Self {
        Self::new(error)
    }
}

impl From<Refusal> for PeerError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Busy => Self::busy(refusal),
            _ => Self::new(refusal),
        }
    }
}

impl RemotePeer {
    fn parts(&self, request: Request) -> Result<Vec<Option<Bytes>>, PeerError> {
        let answer = self.of.runtime.block_on(self.of.peers.request_state(self.id, request))?;
        Ok(answer.into_parts()?)
    }
}

impl Peer for RemotePeer {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_there(&self) -> bool {
        self.of.peers.connected().iter().any(|info| info.id == self.id)
    }

    fn find_root(&self, _: B256) -> Result<Option<B256>, PeerError> {
        Err(PeerError::new("peers are not asked which block has a root: name the block"))
    }

    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, PeerError> {
        let from = HeadersFrom { start: block.into(), limit: count, skip: 0, reverse: true };
        let request = eth::Request::Headers(from);
        let answer = self.of.runtime.block_on(self.of.peers.request(self.id, request))?;
        let eth::Response::Headers(mut headers) = answer else {
            return Err(RequestError::WrongAnswer.into());
        };
        headers.reverse();
        Ok(headers.iter().map(|header| alloy_rlp::encode(header).into()).collect())
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, PeerError> {
        self.parts(Request::Codes(hashes.to_vec()))
    }

    fn chunks(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, PeerError> {
        let format = self.of.format.clone();
        self.parts(Request::Chunks { format, block, ids: ids.to_vec() })
    }

    fn has_lied(&self) {
        self.of.peers.report(self.id, Offence::WrongData);
    }
}
