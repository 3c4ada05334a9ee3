//! Sessions: the work on one block.

use super::{
    Resolved, StateStore,
    ahead::{OnRead, ReadAhead},
    at::{BlockAt, StateAt},
};
use crate::{
    Applied, ApplyContext, BlockRef, FlatHistory, Proposal, Run, StateDelta, StateError, StateKey,
    durable::{flat_history, overlay::RowWriter, proposal::ProposedBlock},
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, OnceLock},
};

/// The life of one block on top of its parent: reads, hints, then one delta. Or that of a
/// [run](Run) of blocks.
pub struct Session<'a> {
    pub(super) store: &'a StateStore,
    pub(super) parent: Resolved,
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Session<'_> {
    /// Number of the block that this session builds.
    pub fn number(&self) -> u64 {
        self.parent.state.number().map_or(0, |number| number + 1)
    }

    /// Root of the parent.
    pub fn parent_root(&self) -> B256 {
        self.parent.state.root()
    }

    /// The parent's state.
    pub fn reader(&self) -> StateAt {
        self.parent.state.clone()
    }

    /// Begins to read `keys`, which the block will probably ask for, and what its root will need of
    /// them, on other threads, and goes on with that as long as the handle is held. Nobody has to
    /// wait for it, and nothing of it is seen.
    pub fn read_ahead(&self, keys: Vec<StateKey>) -> ReadAhead {
        self.read_ahead_and(keys, Arc::new(|_, _| ()))
    }

    /// The same, and calls `on_read` with each key that has a value.
    pub fn read_ahead_and(&self, keys: Vec<StateKey>, on_read: OnRead) -> ReadAhead {
        self.store.readers.read(&self.parent.state, keys, on_read)
    }

    /// Says that `keys`, which were read, will probably be written: what the root needs beside their
    /// values may be fetched. Returns when that is done, or other threads are about to end it.
    pub fn hint(&self, keys: &[StateKey]) {
        self.store.readers.hint(&self.parent.state, keys);
    }

    /// Whether it is of use to [hint](Self::hint) at keys that have just been read.
    pub fn heeds_reads(&self) -> bool {
        self.parent.state.durable.backend.heeds_reads()
    }

    /// Says what the block has written since this was last called: parts of what its root needs are made
    /// of it now, on this thread. Whatever is said, the block's own delta decides.
    pub fn foretell(&self, writes: &StateDelta) {
        let StateAt { durable, view, cache, .. } = &self.parent.state;
        durable.backend.foretell(view, cache, writes);
    }

    /// Whether it is of use to [foretell](Self::foretell).
    pub fn heeds_writes(&self) -> bool {
        self.parent.state.durable.backend.heeds_writes()
    }

    /// Applies the block's delta in memory.
    pub fn finish(self, delta: &StateDelta) -> Result<Proposal, StateError> {
        let number = self.number();
        self.finish_as(number, delta)
    }

    /// As [`finish`](Self::finish) for a state that does not start at block 0: the first block on
    /// an empty store may have any number. On any other parent the number must be the next one.
    pub fn finish_as(self, number: u64, delta: &StateDelta) -> Result<Proposal, StateError> {
        self.apply(number..=number, delta, [delta])
    }

    /// Applies consecutive blocks at once: the proposal is that of the last one, and no state between
    /// can be read by its hash, extended or reverted to. Once it is durable, its parent cannot
    /// either. Flat history is kept block by block.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend does not [apply
    /// runs](crate::Backend::applies_runs), or there is no parent.
    pub fn finish_run(self, run: &Run) -> Result<Proposal, StateError> {
        let durable = &self.store.durable;
        if !durable.backend.applies_runs() {
            return Err(durable.unsupported("applying blocks at once"));
        }
        let Some(below) = self.parent.state.number() else {
            return Err(durable.unsupported("applying the first blocks of all at once"));
        };
        let deltas = run.deltas().iter().map(|delta| &**delta);
        self.apply(below + 1..=below + deltas.len() as u64, run.sum(), deltas)
    }

    /// Applies `sum`, which is that of the deltas of the blocks `numbers`.
    fn apply<'d>(
        self,
        numbers: RangeInclusive<u64>,
        sum: &StateDelta,
        deltas: impl IntoIterator<Item = &'d StateDelta>,
    ) -> Result<Proposal, StateError> {
        let (first, number) = (*numbers.start(), *numbers.end());
        let Self { store, parent: Resolved { state, parent, base } } = self;
        let StateAt { durable, view, cache, block, .. } = state;
        if let Some(BlockAt { number: below, hash, .. }) = block
            && first != below + 1
        {
            let tip = BlockRef::new(below, hash.unwrap_or_default());
            return Err(StateError::NotOnTip { number: first, tip });
        }
        let parent_root = block.map_or(B256::ZERO, |block| block.root);
        let context = ApplyContext { number, parent_root, jobs: &store.jobs };
        // A run is not reverted.
        let undo = store.options.retention > 0 && first == number;
        let mut view = RowWriter::new(view, undo);
        let Applied { root, cache } = durable.backend.apply(&context, &mut view, &cache, sum)?;
        // The state after the first block of all is what lies before every change.
        if block.is_some() && store.options.flat_history != FlatHistory::Off {
            flat_history::record(&mut view, first, deltas)?;
        }
        let (layer, below) = view.finish();
        let layer = Arc::new(layer);
        Ok(Proposal(Arc::new(ProposedBlock {
            number,
            first,
            hash: OnceLock::new(),
            root,
            parent: Mutex::new(parent),
            stack: below.stack.pushed(layer.clone()),
            layer,
            base,
            cache,
        })))
    }
}
