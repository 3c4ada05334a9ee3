//! State roots of changes that no store commits.

use crate::{RpcError, RpcResult};
use alloy_primitives::B256;
use retrie_engine::PostState;
use retrie_pipeline::{PipelineError, ProposalSet, SessionSet, StoreSetId};
use retrie_state::{StateDelta, StateError};
use std::borrow::Cow;

/// Computes state roots one after the other, each on top of the one before, on a state that the
/// stores can still extend.
pub(crate) struct ProposedRoots<'a> {
    base: &'a PostState,
    last: Option<ProposalSet>,
}

impl<'a> ProposedRoots<'a> {
    /// Starts on the state after a block.
    pub(crate) const fn new(base: &'a PostState) -> Self {
        Self { base, last: None }
    }

    /// Opens sessions on the last state.
    ///
    /// # Errors
    /// If the stores cannot extend the base state; the error names the states that they can extend.
    pub(crate) fn begin(&self) -> RpcResult<SessionSet<'a>> {
        let base = self.base;
        let states = base.view().live().chain().states();
        let begun = match &self.last {
            Some(last) => states.begin(StoreSetId::Proposals(last)).map_err(PipelineError::from),
            None => base.view().begin_all(&base.header().hash()),
        };
        begun.map_err(|error| match error {
            // The block is known, only its state cannot be extended.
            PipelineError::State(StateError::UnknownBlock { .. }) => {
                RpcError::from(states.beyond_retention(base.header().number))
            }
            error => error.into(),
        })
    }

    /// The root after these changes, as a header with this timestamp carries it: the own store's if
    /// no store computes the header's.
    ///
    /// # Errors
    /// If a store fails.
    pub(crate) fn finish(
        &mut self,
        session: SessionSet<'a>,
        delta: &StateDelta,
        timestamp: u64,
    ) -> RpcResult<B256> {
        // The base state includes dev-chain overrides that no block has committed yet.
        let delta = match self.base.patch() {
            Some(patch) if self.last.is_none() => Cow::Owned(patch.delta.then(delta)),
            _ => Cow::Borrowed(delta),
        };
        let (proposals, _) = session.finish(&delta)?;
        let states = self.base.view().live().chain().states();
        let root = states.header_root(proposals.roots(), timestamp);
        self.last = Some(proposals);
        Ok(root)
    }
}
