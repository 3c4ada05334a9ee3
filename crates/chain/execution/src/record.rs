//! Records which keys are read, with their values: this gives a bundle its pre-state.

use alloy_primitives::{Address, B256};
use core::fmt;
use parking_lot::Mutex;
use retrie_state::{StateError, StateKey, StateReader, StateValue};
use std::collections::{BTreeMap, BTreeSet};

/// The keys that were read through an [`AccessRecorder`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedAccesses {
    /// Every key that was read, with its value; `None` where it is absent.
    pub values: BTreeMap<StateKey, Option<StateValue>>,
    /// Accounts whose whole storage was listed. All their slots are in `values`.
    pub listed: BTreeSet<Address>,
}

/// A [`StateReader`] that forwards reads and records them.
pub struct AccessRecorder<'a> {
    state: &'a dyn StateReader,
    accesses: Mutex<RecordedAccesses>,
}

impl<'a> AccessRecorder<'a> {
    /// A recorder in front of `state`, without reads.
    pub fn new(state: &'a dyn StateReader) -> Self {
        Self { state, accesses: Mutex::default() }
    }

    /// The reads so far.
    pub fn into_accesses(self) -> RecordedAccesses {
        self.accesses.into_inner()
    }
}

impl StateReader for AccessRecorder<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let value = self.state.get(key)?;
        self.accesses.lock().values.insert(*key, value.clone());
        Ok(value)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let slots = self.state.slots_of(address)?;
        let mut accesses = self.accesses.lock();
        accesses.listed.insert(*address);
        for (slot, value) in &slots {
            accesses.values.insert(StateKey::Slot(*address, *slot), Some(value.clone()));
        }
        Ok(slots)
    }
}

impl fmt::Debug for AccessRecorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accesses = self.accesses.lock();
        f.debug_struct("AccessRecorder")
            .field("values", &accesses.values.len())
            .field("listed", &accesses.listed.len())
            .finish()
    }
}
