//! [`NodeSnapHandler`]: answers `snap` requests of peers from the states of recent blocks.

use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use retrie_engine::{LiveChain, LiveView, RangeServers};
use retrie_p2p::{
    handle::{PeerInfo, SnapRequestHandler},
    serve::{self, ChainError},
    snap::{SnapRequest, SnapResponse},
};
use retrie_pipeline::PipelineError;
use retrie_state::RangeAnswer;
use retrie_state_sync::{MAX_SNAP_BYTES, MAX_SNAP_LOOKUPS, answer_snap};

/// The states of the engine's chain, for peers.
#[derive(Debug)]
pub(crate) struct NodeSnapHandler {
    live: LiveChain,
    states: RangeServers,
}

impl NodeSnapHandler {
    pub(crate) fn new(live: LiveChain) -> Self {
        Self { live, states: RangeServers::default() }
    }

    /// `NoTrie` if the state, or a part of it, is not there.
    fn find(&self, request: &SnapRequest) -> Result<RangeAnswer<SnapResponse>, PipelineError> {
        let view = self.live.view()?;
        let root = match request {
            SnapRequest::Codes { hashes, bytes } => {
                return codes(&view, hashes, *bytes).map(RangeAnswer::Found);
            }
            SnapRequest::AccessLists { hashes, bytes } => {
                return Ok(RangeAnswer::Found(access_lists(&view, hashes, *bytes)));
            }
            SnapRequest::Accounts { root, .. }
            | SnapRequest::Storage { root, .. }
            | SnapRequest::Nodes { root, .. } => root,
        };
        let Some(state) = self.states.state(&view, *root)? else {
            return Ok(RangeAnswer::NoTrie);
        };
        Ok(answer_snap(&*state, request)?)
    }
}

impl SnapRequestHandler for NodeSnapHandler {
    fn answer(&self, _: &PeerInfo, request: SnapRequest) -> Option<SnapResponse> {
        let found = self.find(&request).unwrap_or_else(|error| {
            tracing::warn!(%error, "a part of a state cannot be read for a peer");
            RangeAnswer::NoTrie
        });
        match found {
            RangeAnswer::Found(found) => Some(found),
            RangeAnswer::NoTrie => Some(request.empty_answer()),
            RangeAnswer::NotReady => None,
        }
    }
}

fn access_lists(view: &LiveView, hashes: &[B256], bytes: u64) -> SnapResponse {
    let enough = bytes.min(MAX_SNAP_BYTES) as usize;
    let list = |hash: &B256| view.access_list(hash).map_err(ChainError::new);
    SnapResponse::AccessLists(serve::access_lists(hashes, enough, list))
}

fn codes(view: &LiveView, hashes: &[B256], bytes: u64) -> Result<SnapResponse, PipelineError> {
    let (mut codes, mut used) = (Vec::new(), 0);
    for hash in hashes.iter().take(MAX_SNAP_LOOKUPS) {
        let code = match *hash == KECCAK256_EMPTY {
            true => Some(Bytes::new()),
            false => view.code(hash)?,
        };
        used += code.as_ref().map_or(0, |code| code.len() as u64);
        codes.extend(code);
        if used > bytes.min(MAX_SNAP_BYTES) {
            break;
        }
    }
    Ok(SnapResponse::Codes(codes))
}
