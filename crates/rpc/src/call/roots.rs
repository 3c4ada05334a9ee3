//! State roots of simulated blocks.

use crate::{RpcResult, replay::ProposedRoots};
use alloy_primitives::B256;
use retrie_engine::PostState;
use retrie_state::StateDelta;

/// Computes state roots of simulated blocks, as long as the stores can propose on the base state.
pub(super) struct SimulatedRoots<'a> {
    roots: ProposedRoots<'a>,
    is_known: bool,
}

impl<'a> SimulatedRoots<'a> {
    /// Starts on the state after a block.
    pub(super) const fn new(base: &'a PostState) -> Self {
        Self { roots: ProposedRoots::new(base), is_known: true }
    }

    /// The root after one more block with these changes and this timestamp; zero if the stores
    /// cannot compute it.
    pub(super) fn after(&mut self, delta: &StateDelta, timestamp: u64) -> RpcResult<B256> {
        if !self.is_known {
            return Ok(B256::ZERO);
        }
        let Ok(session) = self.roots.begin() else {
            self.is_known = false;
            return Ok(B256::ZERO);
        };
        self.roots.finish(session, delta, timestamp)
    }
}
