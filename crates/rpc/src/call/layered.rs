//! The state after simulated blocks: that of a real block, and what they changed above it.

use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use retrie_engine::BlockState;
use retrie_execution::{CodeReader, ExecutionInput};
use retrie_state::{StateDelta, StateError, StateKey, StateReader, Value};
use std::collections::BTreeMap;

/// A real state and changes above it, in memory.
pub(super) struct LayeredState<'a> {
    below: &'a BlockState,
    changes: BTreeMap<StateKey, Option<Value>>,
    codes: HashMap<B256, Bytes>,
}

impl<'a> LayeredState<'a> {
    /// The state below, unchanged.
    pub(super) fn new(below: &'a BlockState) -> Self {
        Self { below, changes: BTreeMap::new(), codes: HashMap::default() }
    }

    /// The state after a block of this delta and these new codes.
    pub(super) fn apply(&mut self, delta: &StateDelta, codes: Vec<(B256, Bytes)>) {
        let changes = delta.changes().iter();
        self.changes.extend(changes.map(|change| (change.key, change.next.clone())));
        self.codes.extend(codes);
    }

    /// What an execution on this state reads from.
    pub(super) fn input(&self) -> ExecutionInput<'_> {
        let cache = self.below.view().live().codes();
        ExecutionInput::new(self, self, self.below).with_code_cache(cache)
    }
}

impl StateReader for LayeredState<'_> {
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

impl CodeReader for LayeredState<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        match self.codes.get(hash) {
            Some(code) => Ok(Some(code.clone())),
            None => CodeReader::code(self.below, hash),
        }
    }
}
