//! Sessions and readers: the work on one state.

use crate::{
    Applied, ApplyContext, BlockRef, Cache, Changes, Proposal, StateDelta, StateError, StateKey,
    StateReader, StateStore, Value, changes,
    overlay::{View, WriteView},
    proposal::{Parent, ProposalInner},
    shared::Shared,
};
use alloy_primitives::{Address, B256};
use parking_lot::Mutex;
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// One state, resolved: what sessions and readers work on.
#[derive(Clone)]
pub(crate) struct Resolved {
    pub(crate) view: View,
    pub(crate) cache: Cache,
    /// Block and root of the state; `None` for the empty state.
    pub(crate) at: Option<(u64, Option<B256>, B256)>,
    pub(crate) parent: Parent,
    pub(crate) base: Option<BlockRef>,
}

/// The life of one block on top of its parent: reads, hints, then one delta.
pub struct Session<'a> {
    pub(crate) store: &'a StateStore,
    pub(crate) state: Resolved,
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Session<'_> {
    /// Number of the block that this session builds.
    pub fn number(&self) -> u64 {
        self.state.at.map_or(0, |(number, ..)| number + 1)
    }

    /// Root of the parent.
    pub fn parent_root(&self) -> B256 {
        self.state.at.map_or_else(|| self.store.shared.backend.empty_root(), |at| at.2)
    }

    /// A reader of the parent's state.
    pub fn reader(&self) -> StateView {
        StateView {
            shared: self.store.shared.clone(),
            view: self.state.view.clone(),
            cache: self.state.cache.clone(),
        }
    }

    /// Says that `keys` will probably be read or written.
    pub fn hint(&self, keys: &[StateKey]) {
        self.store.shared.backend.hint(&self.state.view, &self.state.cache, keys);
    }

    /// Applies the block's delta in memory.
    pub fn finish(self, delta: &StateDelta) -> Result<Proposal, StateError> {
        let number = self.number();
        self.finish_as(number, delta)
    }

    /// As [`finish`](Self::finish) for a state that does not start at block 0: the first block on
    /// an empty store may have any number. On any other parent the number must be the next one.
    pub fn finish_as(self, number: u64, delta: &StateDelta) -> Result<Proposal, StateError> {
        let Self { store, state } = self;
        if let Some((parent, hash, _)) = state.at
            && number != parent + 1
        {
            let tip = BlockRef::new(parent, hash.unwrap_or_default());
            return Err(StateError::NotOnTip { number, tip });
        }
        let parent_root = state.at.map_or(B256::ZERO, |at| at.2);
        let context = ApplyContext { number, parent_root, jobs: &store.jobs };
        let mut view = WriteView::new(state.view, store.options.retention > 0);
        let Applied { root, cache } =
            store.shared.backend.apply(&context, &mut view, &state.cache, delta)?;
        // The state after the first block of all is what lies before every change.
        if state.at.is_some() && store.options.changes != Changes::Off {
            changes::record(&mut view, number, delta)?;
        }
        let (layer, below) = view.finish();
        let layer = Arc::new(layer);
        Ok(Proposal(Arc::new(ProposalInner {
            number,
            hash: OnceLock::new(),
            root,
            parent: Mutex::new(state.parent),
            stack: below.stack.pushed(layer.clone()),
            layer,
            base: state.base,
            cache,
        })))
    }
}

/// Reads one state through its backend.
#[derive(Clone)]
pub struct StateView {
    pub(crate) shared: Arc<Shared>,
    pub(crate) view: View,
    pub(crate) cache: Cache,
}

impl StateView {
    /// Entries in key order from `start` on, at most `limit`; fewer only if there are no more.
    pub fn entries(
        &self,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        self.shared.backend.entries(&self.view, &self.cache, start, limit)
    }
}

impl fmt::Debug for StateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateView").finish_non_exhaustive()
    }
}

impl StateReader for StateView {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        self.shared.backend.read(&self.view, &self.cache, key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        self.shared.backend.slots_of(&self.view, &self.cache, address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let first = StateKey::Slot(*address, B256::ZERO);
        let entries = self.shared.backend.entries(&self.view, &self.cache, Some(&first), limit)?;
        let slots = entries.into_iter().map_while(|(key, value)| match key {
            StateKey::Slot(of, slot) if of == *address => Some((slot, value)),
            _ => None,
        });
        Ok(slots.collect())
    }
}
