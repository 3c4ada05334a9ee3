//! State root task: the tries are updated with a block's writes while the block still executes. At
//! the end most lower subtries are done, and the computation of the root takes them over.
//!
//! Like [prefetched branches](super::TriePrefetch) these subtries belong to the parent state of the
//! block. The first block that is applied on this state takes them.

use crate::trie::{EarlySubtries, RowRecorder, RowStamp};
use parking_lot::Mutex;
use retrie_state::{AccountKey, StateError};
use std::{collections::HashMap, fmt};

/// The state root task of the next block on one state.
#[derive(Default)]
pub struct RootTask<S: RowStamp = ()>(Mutex<EarlyTries<S>>);

/// Early updated subtries of one block's tries.
#[derive(Debug)]
pub struct EarlyTries<S: RowStamp = ()> {
    /// Subtries of the account trie.
    pub accounts: EarlySubtries<RowRecorder<S>>,
    /// Subtries of storage tries.
    pub storages: HashMap<AccountKey, EarlySubtries<RowRecorder<S>>>,
}

impl<S: RowStamp> Default for EarlyTries<S> {
    fn default() -> Self {
        Self { accounts: EarlySubtries::default(), storages: HashMap::new() }
    }
}

impl<S: RowStamp> fmt::Debug for RootTask<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootTask").finish_non_exhaustive()
    }
}

impl<S: RowStamp> RootTask<S> {
    /// Calls `update` to update further subtries.
    ///
    /// # Errors
    /// Errors of `update`. The final update of the tries meets the same error again.
    pub fn update(
        &self,
        update: impl FnOnce(&mut EarlyTries<S>) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        update(&mut self.0.lock())
    }

    /// Takes all subtries, for the block that is applied now.
    pub fn take(&self) -> EarlyTries<S> {
        std::mem::take(&mut *self.0.lock())
    }
}
