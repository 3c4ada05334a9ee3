//! Old states of every backend, by [flat history](Changes): [`StateStore::past`].

use crate::{
    At, StateError, StateKey, StateReader, StateStore, StateView, Value, changes, session::Resolved,
};
use alloy_primitives::{Address, B256};
use std::{fmt, ops::RangeInclusive, sync::atomic::Ordering};

#[cfg(doc)]
use crate::Changes;

impl StateStore {
    /// The state after block `number`, an ancestor of `at` or `at` itself, by
    /// [flat history](Changes). It stays as it is, whatever is committed or reverted meanwhile.
    ///
    /// It reads values alone; proofs of old states are a matter of [`history`](Self::history).
    ///
    /// # Errors
    /// [`StateError::BeyondHistory`] if history does not reach back to the block,
    /// [`StateError::NotInHistory`] if the block lies above `at`.
    pub fn past(&self, at: At<'_>, number: u64) -> Result<HistoricalView, StateError> {
        let state = self.resolve(at)?;
        match self.kept(&state)? {
            Some(kept) if number < *kept.start() => {
                Err(StateError::BeyondHistory { number, first: *kept.start() })
            }
            Some(kept) if number <= *kept.end() => {
                let Resolved { view, cache, .. } = state;
                let state = StateView { shared: self.shared.clone(), view, cache };
                Ok(HistoricalView { state, number })
            }
            kept => Err(StateError::NotInHistory { number, kept }),
        }
    }

    /// Numbers of the blocks whose state [`past`](Self::past) reads, `at` itself included; `None`
    /// on the empty state.
    pub fn changes_kept(&self, at: At<'_>) -> Result<Option<RangeInclusive<u64>>, StateError> {
        self.kept(&self.resolve(at)?)
    }

    /// The keys that block `number`, an ancestor of `at` or `at` itself, has changed, in order.
    /// Slots that a SELFDESTRUCT cleared and the same block set again to the value they had are
    /// among them.
    ///
    /// # Errors
    /// As [`past`](Self::past); history has no changes of the first block whose state it reads.
    pub fn changed_keys(&self, at: At<'_>, number: u64) -> Result<Vec<StateKey>, StateError> {
        let state = self.resolve(at)?;
        match self.kept(&state)? {
            Some(kept) if number <= *kept.start() => {
                Err(StateError::BeyondHistory { number, first: kept.start().saturating_add(1) })
            }
            Some(kept) if number <= *kept.end() => {
                let block = changes::blocks(&state.view, number, number.saturating_add(1)).next();
                let missing = || {
                    let what = format!("block {number}: its rows are missing");
                    StateError::corrupt(changes::CHANGED_KEYS.name, what)
                };
                Ok(block.transpose()?.ok_or_else(missing)?.keys)
            }
            kept => Err(StateError::NotInHistory { number, kept }),
        }
    }

    /// Blocks whose state can be read from `state`.
    fn kept(&self, state: &Resolved) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let pruned = self.pruned.load(Ordering::Relaxed);
        state.at.map(|(number, ..)| changes::kept(&state.view, number, pruned)).transpose()
    }
}

/// The state of an old block, for reading: any backend's, by [flat history](Changes). (That of an
/// archive, which can also be proven, is a [`PastState`](crate::PastState).)
#[derive(Clone)]
pub struct HistoricalView {
    /// A later state, which has the history.
    state: StateView,
    number: u64,
}

impl HistoricalView {
    /// Number of the block.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl StateReader for HistoricalView {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        match changes::before(&self.state.view, key, self.number)? {
            Some(value) => Ok(value),
            None => self.state.get(key),
        }
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        let mut slots = changes::slots_before(&self.state.view, address, self.number, usize::MAX)?;
        for (slot, value) in self.state.slots_of(address)? {
            slots.entry(slot).or_insert(Some(value));
        }
        Ok(slots.into_iter().filter_map(|(slot, value)| Some((slot, value?))).collect())
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let mut slots = changes::slots_before(&self.state.view, address, self.number, limit)?;
        let set = slots.values().flatten().count();
        if set < limit {
            // Of these, some may have been set later, and be among the changed ones.
            let more = limit.saturating_add(slots.len());
            for (slot, value) in self.state.some_slots(address, more)? {
                slots.entry(slot).or_insert(Some(value));
            }
        }
        let set = slots.into_iter().filter_map(|(slot, value)| Some((slot, value?)));
        Ok(set.take(limit).collect())
    }
}

impl fmt::Debug for HistoricalView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HistoricalView").field("number", &self.number).finish_non_exhaustive()
    }
}
