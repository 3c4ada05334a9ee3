//! State roots of simulated blocks.

use crate::RpcResult;
use alloy_primitives::B256;
use retrie_engine::StateAfter;
use retrie_state::{At, Proposal, StateDelta};
use std::borrow::Cow;

/// Roots of the simulated blocks, as long as the store can propose them.
pub(super) struct Roots<'a> {
    base: &'a StateAfter,
    last: Option<Proposal>,
    is_known: bool,
}

impl<'a> Roots<'a> {
    /// On top of a block.
    pub(super) const fn new(base: &'a StateAfter) -> Self {
        Self { base, last: None, is_known: true }
    }

    /// The root after one more block.
    pub(super) fn after(&mut self, delta: &StateDelta) -> RpcResult<B256> {
        if !self.is_known {
            return Ok(B256::ZERO);
        }
        let view = self.base.view();
        let session = match &self.last {
            Some(proposal) => {
                view.live().chain().state().begin(At::Proposal(proposal)).map_err(Into::into)
            }
            None => view.begin(&self.base.header().hash()),
        };
        let Ok(session) = session else {
            self.is_known = false;
            return Ok(B256::ZERO);
        };
        // The base is the state with what was changed of it by hand.
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
