//! Sessions: the work on one block.

use super::{
    Resolved, StateStore,
    at::{BlockAt, StateAt},
};
use crate::{
    Applied, ApplyContext, BlockRef, FlatHistory, Proposal, StateDelta, StateError, StateKey,
    durable::{flat_history, overlay::RowWriter, proposal::ProposedBlock},
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// The life of one block on top of its parent: reads, hints, then one delta.
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

    /// Says that `keys` will probably be read or written.
    pub fn hint(&self, keys: &[StateKey]) {
        let StateAt { durable, view, cache, .. } = &self.parent.state;
        durable.backend.hint(view, cache, keys);
    }

    /// Whether it is of use to [hint](Self::hint) at keys that have just been read.
    pub fn heeds_reads(&self) -> bool {
        self.parent.state.durable.backend.heeds_reads()
    }

    /// Applies the block's delta in memory.
    pub fn finish(self, delta: &StateDelta) -> Result<Proposal, StateError> {
        let number = self.number();
        self.finish_as(number, delta)
    }

    /// As [`finish`](Self::finish) for a state that does not start at block 0: the first block on
    /// an empty store may have any number. On any other parent the number must be the next one.
    pub fn finish_as(self, number: u64, delta: &StateDelta) -> Result<Proposal, StateError> {
        let Self { store, parent: Resolved { state, parent, base } } = self;
        let StateAt { durable, view, cache, block, .. } = state;
        if let Some(BlockAt { number: below, hash, .. }) = block
            && number != below + 1
        {
            let tip = BlockRef::new(below, hash.unwrap_or_default());
            return Err(StateError::NotOnTip { number, tip });
        }
        let parent_root = block.map_or(B256::ZERO, |block| block.root);
        let context = ApplyContext { number, parent_root, jobs: &store.jobs };
        let mut view = RowWriter::new(view, store.options.retention > 0);
        let Applied { root, cache } = durable.backend.apply(&context, &mut view, &cache, delta)?;
        // The state after the first block of all is what lies before every change.
        if block.is_some() && store.options.flat_history != FlatHistory::Off {
            flat_history::record(&mut view, number, delta)?;
        }
        let (layer, below) = view.finish();
        let layer = Arc::new(layer);
        Ok(Proposal(Arc::new(ProposedBlock {
            number,
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
