//! State roots of simulated blocks.

use crate::RpcResult;
use alloy_primitives::B256;
use retrie_engine::PostState;
use retrie_state::StateDelta;
use retrie_state_store::{Proposal, StateId};
use std::borrow::Cow;

/// Computes state roots of simulated blocks, as long as the store can propose on the base state.
pub(super) struct SimulatedRoots<'a> {
    base: &'a PostState,
    last: Option<Proposal>,
    is_known: bool,
}

impl<'a> SimulatedRoots<'a> {
    /// Starts on the state after a block.
    pub(super) const fn new(base: &'a PostState) -> Self {
        Self { base, last: None, is_known: true }
    }

    /// The root after one more block with these changes; zero if the store cannot compute it.
    pub(super) fn after(&mut self, delta: &StateDelta) -> RpcResult<B256> {
        if !self.is_known {
            return Ok(B256::ZERO);
        }
        let view = self.base.view();
        let session = match &self.last {
            Some(proposal) => {
                view.live().chain().state().begin(StateId::Proposal(proposal)).map_err(Into::into)
            }
            None => view.begin(&self.base.header().hash()),
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
        let proposal = session.finish(&delta)?;
        let root = proposal.root();
        self.last = Some(proposal);
        Ok(root)
    }
}
