//! State roots of simulated blocks.

use crate::RpcResult;
use alloy_primitives::B256;
use retrie_engine::PostState;
use retrie_pipeline::{ProposalSet, StoreSetId};
use retrie_state::StateDelta;
use std::borrow::Cow;

/// Computes state roots of simulated blocks, as long as the stores can propose on the base state.
pub(super) struct SimulatedRoots<'a> {
    base: &'a PostState,
    last: Option<ProposalSet>,
    is_known: bool,
}

impl<'a> SimulatedRoots<'a> {
    /// Starts on the state after a block.
    pub(super) const fn new(base: &'a PostState) -> Self {
        Self { base, last: None, is_known: true }
    }

    /// The root after one more block with these changes and this timestamp; zero if the stores
    /// cannot compute it.
    pub(super) fn after(&mut self, delta: &StateDelta, timestamp: u64) -> RpcResult<B256> {
        if !self.is_known {
            return Ok(B256::ZERO);
        }
        let view = self.base.view();
        let states = view.live().chain().states();
        let session = match &self.last {
            Some(last) => states.begin(StoreSetId::Proposals(last)).map_err(Into::into),
            None => view.begin_all(&self.base.header().hash()),
        };
        let Ok(session) = session else {
            self.is_known = false;
            return Ok(B256::ZERO);
        };
        // The base state includes dev-chain overrides that no block has committed yet.
        let delta = match self.base.patch() {
            Some(patch) if self.last.is_none() => Cow::Owned(patch.delta.then(delta)),
            _ => Cow::Borrowed(delta),
        };
        let (proposals, _) = session.finish(&delta)?;
        let root = states.header_root(proposals.roots(), timestamp);
        self.last = Some(proposals);
        Ok(root)
    }
}
