//! What is made of a block's writes before it is executed to its end: its root then finds most of the
//! tries' lower parts done.
//!
//! As with what is fetched [ahead](super::Ahead), it belongs to the state that the block stands on, and
//! goes into the first block that stands on it.

use crate::trie::{Early, RowRecorder, Stamp};
use alloy_primitives::Address;
use parking_lot::Mutex;
use retrie_state::StateError;
use std::{collections::HashMap, fmt};

/// What was foretold of the next block on one state.
#[derive(Default)]
pub struct Foretold<S: Stamp = ()>(Mutex<Told<S>>);

/// Parts of one block's tries.
#[derive(Debug)]
pub struct Told<S: Stamp = ()> {
    /// Of the account trie.
    pub accounts: Early<RowRecorder<S>>,
    /// Of storage tries.
    pub storages: HashMap<Address, Early<RowRecorder<S>>>,
}

impl<S: Stamp> Default for Told<S> {
    fn default() -> Self {
        Self { accounts: Early::default(), storages: HashMap::new() }
    }
}

impl<S: Stamp> fmt::Debug for Foretold<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foretold").finish_non_exhaustive()
    }
}

impl<S: Stamp> Foretold<S> {
    /// Adds to it.
    ///
    /// # Errors
    /// Those of `tell`: whoever makes the block will see them again.
    pub fn tell(
        &self,
        tell: impl FnOnce(&mut Told<S>) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        tell(&mut self.0.lock())
    }

    /// All of it, for the block that is made now.
    pub fn take(&self) -> Told<S> {
        std::mem::take(&mut *self.0.lock())
    }
}
