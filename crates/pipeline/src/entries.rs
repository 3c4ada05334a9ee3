//! All entries of one state, page by page.

use retrie_state::{At, BlockRef, StateAt, StateError, StateKey, StateStore, Value};

/// Entries read at a time.
const PAGE: usize = 1 << 16;

type Entry = (StateKey, Value);

/// The state after a canonical block whose entries can be listed: that of the tip, of a block that
/// can be reverted to, or one that the backend itself keeps.
pub(crate) fn listed_state(store: &StateStore, block: BlockRef) -> Result<StateAt, StateError> {
    if store.retained().is_some_and(|kept| kept.contains(&block.number)) {
        return store.at(At::Block(block.hash));
    }
    if store.backend().history().is_some() {
        return store.history(block);
    }
    Err(store.beyond_retention(block.number))
}

/// Entries of a state in key order.
pub(crate) struct Entries<'a> {
    state: &'a StateAt,
    page: std::iter::Peekable<std::vec::IntoIter<Entry>>,
    /// Where the next page starts; its first entry was given already if `last` is set.
    start: Option<StateKey>,
    last: Option<StateKey>,
    is_over: bool,
}

impl<'a> Entries<'a> {
    /// Those from `start` on.
    pub(crate) fn new(state: &'a StateAt, start: Option<StateKey>) -> Self {
        let page = Vec::new().into_iter().peekable();
        Self { state, page, start, last: None, is_over: false }
    }

    fn peek(&mut self) -> Result<Option<&Entry>, StateError> {
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

    /// The next entry, if `is_wanted`.
    pub(crate) fn next_if(
        &mut self,
        is_wanted: impl FnOnce(&StateKey) -> bool,
    ) -> Result<Option<Entry>, StateError> {
        match self.peek()? {
            Some((key, _)) if is_wanted(key) => Ok(self.page.next()),
            _ => Ok(None),
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry, StateError>;

    /// An error is not the end: the caller has to stop there.
    fn next(&mut self) -> Option<Self::Item> {
        self.next_if(|_| true).transpose()
    }
}
