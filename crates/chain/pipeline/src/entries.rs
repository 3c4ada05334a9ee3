//! All entries of one state, page by page.

use crate::{PipelineError, store_set::EntrySource};
use alloy_primitives::B256;
use retrie_state::{AccountKey, BackendKey, BlockRef, KeyForm, StateError, StateValue};
use retrie_state_store::{EntrySorter, StateId, StateProvider, StateStore};

/// Entries read at a time.
const PAGE: usize = 1 << 16;

type StateEntry = (BackendKey, StateValue);

/// Opens the state after a canonical block to list its entries. The block must be the tip, a block
/// that can be reverted to, or one whose state the backend itself keeps.
pub(crate) fn listed_state(
    store: &StateStore,
    block: BlockRef,
) -> Result<StateProvider, StateError> {
    if store.retained().is_some_and(|kept| kept.contains(&block.number)) {
        return store.at(StateId::Block(block.hash));
    }
    if store.backend().extensions().history.is_some() {
        return store.history(block);
    }
    Err(store.beyond_retention(block.number))
}

/// Where the slots of a state with such keys begin: behind all accounts.
pub(crate) const fn first_slot(keys: KeyForm) -> BackendKey {
    match keys {
        KeyForm::Plain => BackendKey::Slot(AccountKey::MIN, B256::ZERO),
        KeyForm::Hashed => BackendKey::Slot(AccountKey::hashed(B256::ZERO), B256::ZERO),
    }
}

/// Entries of a state in key order.
#[expect(missing_debug_implementations, reason = "a state has none")]
pub struct PagedEntries<'a> {
    state: &'a StateProvider,
    page: std::iter::Peekable<std::vec::IntoIter<StateEntry>>,
    /// Where the next page starts. If `last` is set, the first entry of that page was already
    /// returned.
    start: Option<BackendKey>,
    last: Option<BackendKey>,
    is_over: bool,
}

impl<'a> PagedEntries<'a> {
    /// The entries from `start` on; all of them with `None`.
    pub fn new(state: &'a StateProvider, start: Option<BackendKey>) -> Self {
        let page = Vec::new().into_iter().peekable();
        Self { state, page, start, last: None, is_over: false }
    }

    fn peek(&mut self) -> Result<Option<&StateEntry>, StateError> {
        if self.page.peek().is_none() && !self.is_over {
            let mut entries = self.state.entries(self.start.as_ref(), PAGE)?;
            self.is_over = entries.len() < PAGE;
            if self.last.is_some() && entries.first().map(|(key, _)| *key) == self.last {
                entries.remove(0);
            }
            self.last = entries.last().map(|(key, _)| *key);
            self.start = self.last;
            self.page = entries.into_iter().peekable();
        }
        Ok(self.page.peek())
    }

    /// The next entry, if `is_wanted` is true for its key.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn next_if(
        &mut self,
        is_wanted: impl FnOnce(&BackendKey) -> bool,
    ) -> Result<Option<StateEntry>, StateError> {
        match self.peek()? {
            Some((key, _)) if is_wanted(key) => Ok(self.page.next()),
            _ => Ok(None),
        }
    }
}

impl Iterator for PagedEntries<'_> {
    type Item = Result<StateEntry, StateError>;

    /// An error is not the end: the caller has to stop after it.
    fn next(&mut self) -> Option<Self::Item> {
        self.next_if(|_| true).transpose()
    }
}

/// Entries that were sorted on disk.
pub(crate) struct SortedEntries(pub(crate) EntrySorter);

impl EntrySource for SortedEntries {
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>, PipelineError>
    {
        Ok(self.0.entries()?)
    }
}
