//! The whole state after a block, entry by entry: [`View::list`].

use crate::View;
use alloy_primitives::{Address, B256};
use retrie_pipeline::PipelineError;
use retrie_state::{At, PastState, StateError, StateKey, StateReader, StateView, Value};

/// The state after one block, whose keys can be listed. It stays as it is, whatever becomes of the
/// chain.
#[derive(Clone, Debug)]
pub enum ListedState {
    /// In memory, or within the retention depth.
    Retained(StateView),
    /// By the backend's own history.
    Past(PastState),
}

impl ListedState {
    /// Entries in key order from `start` on, at most `limit`; fewer only if there are no more.
    ///
    /// # Errors
    /// If the database fails; so for all that follow.
    pub fn entries(
        &self,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        match self {
            Self::Retained(state) => state.entries(start, limit),
            Self::Past(state) => state.entries(start, limit),
        }
    }

    /// Slots of `address` that are set, at most `limit`.
    pub fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        match self {
            Self::Retained(state) => state.some_slots(address, limit),
            Self::Past(state) => state.some_slots(address, limit),
        }
    }
}

impl View {
    /// The state after a known block, for whoever wants all of it. It reaches as far back as the
    /// retention depth, or as the backend's own history: flat history finds keys, and lists none.
    ///
    /// # Errors
    /// [`StateError::UnknownBlock`]; [`StateError::BeyondRetention`] or what the backend's history
    /// says, if the state is not kept in that form; if the database fails.
    pub fn list(&self, hash: &B256) -> Result<ListedState, PipelineError> {
        let store = self.live().chain().state();
        let at = self.executed(hash).map(|block| At::Proposal(&block.proposal));
        let unknown = match store.reader(at.unwrap_or(At::Block(*hash))) {
            Ok(state) => return Ok(ListedState::Retained(state)),
            Err(error @ StateError::UnknownBlock { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        if let Some(past) = self.in_history(hash)? {
            return Ok(ListedState::Past(past));
        }
        Err(match self.block_number(hash)? {
            Some(number) => {
                self.why_not_in_history(number).unwrap_or_else(|| store.beyond_retention(number))
            }
            None => unknown,
        }
        .into())
    }
}
