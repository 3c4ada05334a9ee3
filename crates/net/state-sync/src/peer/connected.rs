//! [`ConnectedPeers`]: the peers of the network that serve states, by `rchk`. Headers come by `eth`.

use super::{PeerSource, StatePeer, StatePeerError};
use alloy_primitives::{B256, Bytes, hex};
use retrie_p2p::{
    eth::{EthRequest, EthResponse, GetBlockHeaders, PeerId},
    handle::{NetworkHandle, PeerInfo, PeerOffence, RequestError},
    rchk::{RchkRefusal, RchkRequest},
};
use retrie_state::ChunkId;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The connected peers that serve states.
#[derive(Clone, Debug)]
pub struct ConnectedPeers {
    peers: NetworkHandle,
    format: String,
    runtime: Handle,
}

impl ConnectedPeers {
    /// Takes the peers of a network, and the [format](retrie_state::StateChunks::format) of the chunks
    /// to ask for. Requests run on `runtime`; the caller's threads block on them and must not
    /// belong to it.
    pub fn new(peers: NetworkHandle, format: impl Into<String>, runtime: Handle) -> Self {
        Self { peers, format: format.into(), runtime }
    }
}

impl PeerSource for ConnectedPeers {
    fn peers(&self) -> Vec<Arc<dyn StatePeer>> {
        let serving = self.peers.connected().into_iter().filter(|info| info.speaks_rchk);
        let remote = |info: Arc<PeerInfo>| RemotePeer {
            // The first digits of the id, as in the logs of the network.
            name: format!("{} ({})", info.address.ip(), hex::encode(&info.id[..6])),
            id: info.id,
            of: self.clone(),
        };
        serving.map(|info| Arc::new(remote(info)) as Arc<dyn StatePeer>).collect()
    }

    fn may_grow(&self) -> bool {
        true
    }
}

/// Asks a peer for up to `count` headers by `eth`; the last one is that of `block`.
pub(super) fn headers(
    peers: &NetworkHandle,
    runtime: &Handle,
    peer: PeerId,
    block: B256,
    count: u64,
) -> Result<Vec<Bytes>, StatePeerError> {
    let from = GetBlockHeaders { start: block.into(), limit: count, skip: 0, reverse: true };
    let answer = runtime.block_on(peers.request(peer, EthRequest::Headers(from)))?;
    let EthResponse::Headers(mut headers) = answer else {
        return Err(RequestError::WrongAnswer.into());
    };
    headers.reverse();
    Ok(headers.iter().map(|header| alloy_rlp::encode(header).into()).collect())
}

/// One connected peer that serves states.
#[derive(Debug)]
struct RemotePeer {
    name: String,
    id: PeerId,
    of: ConnectedPeers,
}

impl From<RequestError> for StatePeerError {
    fn from(error: RequestError) -> Self {
        Self::new(error)
    }
}

impl From<RchkRefusal> for StatePeerError {
    fn from(refusal: RchkRefusal) -> Self {
        match refusal {
            RchkRefusal::Busy => Self::busy(refusal),
            _ => Self::new(refusal),
        }
    }
}

impl RemotePeer {
    fn parts(&self, request: RchkRequest) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let answer = self.of.runtime.block_on(self.of.peers.request_state(self.id, request))?;
        Ok(answer.into_parts()?)
    }
}

impl StatePeer for RemotePeer {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_available(&self) -> bool {
        self.of.peers.connected().iter().any(|info| info.id == self.id)
    }

    fn find_root(&self, _: B256) -> Result<Option<B256>, StatePeerError> {
        Err(StatePeerError::new("peers cannot find the block of a root: name the block"))
    }

    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, StatePeerError> {
        headers(&self.of.peers, &self.of.runtime, self.id, block, count)
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        self.parts(RchkRequest::Codes(hashes.to_vec()))
    }

    fn chunks(&self, block: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let format = self.of.format.clone();
        self.parts(RchkRequest::Chunks { format, block, ids: ids.to_vec() })
    }

    fn report_lie(&self) {
        self.of.peers.report(self.id, PeerOffence::WrongData);
    }
}
