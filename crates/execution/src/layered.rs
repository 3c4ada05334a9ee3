//! A state and changes above it, in memory: blocks that are simulated, changes of a dev chain.

use crate::{BlockHashes, CodeReader};
use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use retrie_state::{StateDelta, StateError, StateKey, StateReader, Value};
use std::{collections::BTreeMap, fmt};

/// A state and changes above it, in memory.
pub struct LayeredState<S> {
    below: S,
    changes: BTreeMap<StateKey, Option<Value>>,
    codes: HashMap<B256, Bytes>,
}

impl<S> fmt::Debug for LayeredState<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredState").field("changes", &self.changes.len()).finish_non_exhaustive()
    }
}

impl<S> LayeredState<S> {
    /// The state below, unchanged.
    pub fn new(below: S) -> Self {
        Self { below, changes: BTreeMap::new(), codes: HashMap::default() }
    }

    /// Lays a block's delta and its new codes above.
    pub fn apply(&mut self, delta: &StateDelta, codes: impl IntoIterator<Item = (B256, Bytes)>) {
        let changes = delta.changes().iter();
        self.changes.extend(changes.map(|change| (change.key, change.next.clone())));
        self.codes.extend(codes);
    }

    /// The state below.
    pub const fn below(&self) -> &S {
        &self.below
    }
}

impl<S: StateReader> StateReader for LayeredState<S> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.below.get(key),
        }
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        // Slots that were wiped are among the changes one by one.
        let mut slots: BTreeMap<B256, Value> = self.below.slots_of(address)?.into_iter().collect();
        let (first, last) = (B256::ZERO, B256::repeat_byte(0xff));
        let changed = StateKey::Slot(*address, first)..=StateKey::Slot(*address, last);
        for (key, value) in self.changes.range(changed) {
            let StateKey::Slot(_, slot) = key else { continue };
            match value {
                Some(value) => slots.insert(*slot, value.clone()),
                None => slots.remove(slot),
            };
        }
        Ok(slots.into_iter().collect())
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let (first, last) = (B256::ZERO, B256::repeat_byte(0xff));
        let changed = StateKey::Slot(*address, first)..=StateKey::Slot(*address, last);
        let changed = self.changes.range(changed);
        // At most these of the slots below are gone, or known with another value.
        let more = limit.saturating_add(changed.clone().count());
        let mut slots: BTreeMap<B256, Value> =
            self.below.some_slots(address, more)?.into_iter().collect();
        for (key, value) in changed {
            let StateKey::Slot(_, slot) = key else { continue };
            match value {
                Some(value) => slots.insert(*slot, value.clone()),
                None => slots.remove(slot),
            };
        }
        Ok(slots.into_iter().take(limit).collect())
    }
}

impl<S: CodeReader> CodeReader for LayeredState<S> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        match self.codes.get(hash) {
            Some(code) => Ok(Some(code.clone())),
            None => self.below.code(hash),
        }
    }
}

impl<S: BlockHashes> BlockHashes for LayeredState<S> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.below.block_hash(number)
    }
}
