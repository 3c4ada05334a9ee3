//! Old states: by the backend's own history, and by flat history.

use super::{
    StateId, StateStore,
    provider::{ProviderBlock, StateOrigin, StateProvider},
};
use crate::durable::flat_history::{self, CHANGED_KEYS};
use alloy_primitives::B256;
use retrie_state::{BackendKey, BlockRef, StateError, StateHistory, StateValue};
use std::{ops::RangeInclusive, sync::atomic::Ordering};

#[cfg(doc)]
use crate::FlatHistory;

impl StateStore {
    /// The state of `block` of the durable chain, however old, by the backend's own
    /// [`StateHistory`].
    ///
    /// The store knows only the hashes of retained blocks, so it does not check the hash of
    /// `block`. The hash goes into proofs, whose verifier checks the root against a header.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`StateHistory`],
    /// [`StateError::NotInHistory`] if the block lies above the tip or before the first kept block.
    pub fn history(&self, block: BlockRef) -> Result<StateProvider, StateError> {
        let history = self.own_history()?;
        let mut state = self.at(StateId::Tip)?;
        let kept = history.kept(&state.view)?;
        let number = block.number;
        let tip = match (state.block, &kept) {
            (Some(ProviderBlock { number: tip, hash: Some(hash), .. }), Some(kept))
                if kept.contains(&number) =>
            {
                BlockRef::new(tip, hash)
            }
            _ => return Err(StateError::NotInHistory { number, kept }),
        };
        let mut root = state.root();
        if !(history.proven_by_view() && number == tip.number) {
            let (of_block, cache) = history.open_at(&state.view, &state.cache, number)?;
            state.cache = cache;
            if !history.proven_by_view() {
                root = of_block;
            }
        }
        state.block = Some(ProviderBlock { number, hash: Some(block.hash), root });
        state.kind = StateOrigin::History { tip };
        Ok(state)
    }

    /// Numbers of the blocks that [`history`](Self::history) has; `None` while the state is empty.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`StateHistory`].
    pub fn history_kept(&self) -> Result<Option<RangeInclusive<u64>>, StateError> {
        self.own_history()?.kept(&self.at(StateId::Tip)?.view)
    }

    fn own_history(&self) -> Result<&dyn StateHistory, StateError> {
        self.backend().extensions().history.ok_or_else(|| self.durable.unsupported("history"))
    }

    /// The state after block `number`, an ancestor of `at` or `at` itself, by [flat
    /// history](FlatHistory). It reads values only; for entries and proofs of old states use
    /// [`history`](Self::history).
    ///
    /// # Errors
    /// [`StateError::BeyondHistory`] if flat history does not reach back to the block,
    /// [`StateError::NotInHistory`] if the block lies above `at`.
    pub fn flat_history(&self, at: StateId<'_>, number: u64) -> Result<StateProvider, StateError> {
        let state = self.at(at)?;
        match self.kept(&state)? {
            Some(kept) if number < *kept.start() => {
                Err(StateError::BeyondHistory { number, first: *kept.start() })
            }
            Some(kept) if number <= *kept.end() => {
                let block = Some(ProviderBlock { number, hash: None, root: B256::ZERO });
                Ok(StateProvider { block, kind: StateOrigin::FlatHistory, ..state })
            }
            kept => Err(StateError::NotInHistory { number, kept }),
        }
    }

    /// Numbers of the blocks that [`flat_history`](Self::flat_history) reads, including `at`
    /// itself; `None` on the empty state.
    pub fn flat_history_kept(
        &self,
        at: StateId<'_>,
    ) -> Result<Option<RangeInclusive<u64>>, StateError> {
        self.kept(&self.at(at)?)
    }

    /// The keys that block `number`, an ancestor of `at` or `at` itself, has changed, in order.
    /// This includes slots that a SELFDESTRUCT cleared and the same block set again to the value
    /// they had.
    ///
    /// # Errors
    /// As [`flat_history`](Self::flat_history). The changes of the first block that it reads are
    /// not kept either.
    pub fn changed_keys(
        &self,
        at: StateId<'_>,
        number: u64,
    ) -> Result<Vec<BackendKey>, StateError> {
        self.keys_of(&self.at(at)?, number)
    }

    /// The keys that block `number` has changed, as [`changed_keys`](Self::changed_keys), and the
    /// value of each before the block.
    ///
    /// # Errors
    /// As [`changed_keys`](Self::changed_keys).
    pub fn changes(
        &self,
        at: StateId<'_>,
        number: u64,
    ) -> Result<Vec<(BackendKey, Option<StateValue>)>, StateError> {
        let state = self.at(at)?;
        let before = |key| {
            let value = flat_history::before_change(&state.view, &key, number)?;
            Ok((key, value))
        };
        self.keys_of(&state, number)?.into_iter().map(before).collect()
    }

    fn keys_of(&self, state: &StateProvider, number: u64) -> Result<Vec<BackendKey>, StateError> {
        match self.kept(state)? {
            Some(kept) if number <= *kept.start() => {
                Err(StateError::BeyondHistory { number, first: kept.start().saturating_add(1) })
            }
            Some(kept) if number <= *kept.end() => {
                let next = number.saturating_add(1);
                let block = flat_history::blocks(&state.view, number, next).next();
                let missing = || {
                    let what = format!("block {number}: its rows are missing");
                    StateError::corrupt(CHANGED_KEYS.name, what)
                };
                Ok(block.transpose()?.ok_or_else(missing)?.keys)
            }
            kept => Err(StateError::NotInHistory { number, kept }),
        }
    }

    /// Blocks whose state flat history reads from `state`.
    fn kept(&self, state: &StateProvider) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let pruned = self.pruned.load(Ordering::Relaxed);
        let number = state.number();
        number.map(|number| flat_history::kept(&state.view, number, pruned)).transpose()
    }
}
