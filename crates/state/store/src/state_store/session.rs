//! Sessions: the work on one block.

use super::{
    ResolvedState, StateStore,
    deltas::in_form_of,
    prefetch::{PrefetchHandle, PrefetchObserver, PrefetchPool},
    provider::{ProviderBlock, StateProvider},
};
use crate::{
    FlatHistory, Proposal,
    durable::{flat_history, overlay::RowWriter, proposal::ProposedBlock},
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_state::{
    ApplyContext, ApplyOutput, BlockRef, DeltaBatch, Prefetcher, StateDelta, StateError, StateKey,
};
use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, OnceLock},
};

/// The work on one block, or on a [batch](DeltaBatch) of blocks, on top of its parent: reads,
/// prefetches, then one delta.
pub struct StateSession<'a> {
    pub(super) store: &'a StateStore,
    pub(super) parent: ResolvedState,
}

impl fmt::Debug for StateSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSession").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl StateSession<'_> {
    /// Number of the block that this session builds.
    pub fn number(&self) -> u64 {
        self.parent.state.number().map_or(0, |number| number + 1)
    }

    /// Root of the parent.
    pub fn parent_root(&self) -> B256 {
        self.parent.state.root()
    }

    /// The parent's state.
    pub fn reader(&self) -> StateProvider {
        self.parent.state.clone()
    }

    /// Prefetches `keys`, which the block will probably read: other threads read the values and
    /// what the block's root will need beside them, as long as the caller holds the handle. It
    /// returns at once, and has no visible effect but faster reads.
    pub fn prefetch(&self, keys: Vec<StateKey>) -> PrefetchHandle {
        self.prefetch_and(keys, Arc::new(|_, _| ()))
    }

    /// The same; also calls `on_read` with each key that has a value.
    pub fn prefetch_and(&self, keys: Vec<StateKey>, on_read: PrefetchObserver) -> PrefetchHandle {
        self.store.readers.read(&self.parent.state, keys, on_read)
    }

    /// The state root task of the block; `None` if the backend has no [`Prefetcher`], so that there is
    /// nothing to do before the delta.
    pub fn root_task(&self) -> Option<RootTask<'_>> {
        let StateProvider { durable, .. } = &self.parent.state;
        let prefetcher = durable.backend.extensions().prefetcher?;
        Some(RootTask { pool: &self.store.readers, state: &self.parent.state, prefetcher })
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

    /// Applies consecutive blocks at once. The proposal belongs to the last block: the states
    /// between cannot be read by hash, extended or reverted to. Once it is durable, the same holds
    /// for its parent. Flat history is kept block by block.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend does not [apply
    /// batches](retrie_state::AnyBackend::applies_batches), or there is no parent.
    pub fn finish_batch(self, run: &DeltaBatch) -> Result<Proposal, StateError> {
        let durable = &self.store.durable;
        if !durable.backend.applies_batches() {
            return Err(durable.unsupported("applying blocks at once"));
        }
        let Some(below) = self.parent.state.number() else {
            return Err(durable.unsupported("applying the first blocks of all at once"));
        };
        let deltas = run.deltas().iter().map(|delta| &**delta);
        self.apply(below + 1..=below + deltas.len() as u64, run.sum(), deltas)
    }

    /// Applies `sum`, the sum of the deltas of the blocks `numbers`.
    fn apply<'d>(
        self,
        numbers: RangeInclusive<u64>,
        sum: &StateDelta,
        deltas: impl IntoIterator<Item = &'d StateDelta>,
    ) -> Result<Proposal, StateError> {
        let (first, number) = (*numbers.start(), *numbers.end());
        let Self { store, parent: ResolvedState { state, parent, base } } = self;
        let name = store.identity().name;
        let _root = tracing::debug_span!("root", store = name, number, keys = sum.len()).entered();
        if let Some(ProviderBlock { number: below, hash, .. }) = state.block
            && first != below + 1
        {
            let tip = BlockRef::new(below, hash.unwrap_or_default());
            return Err(StateError::NotOnTip { number: first, tip });
        }
        // The very first block has no state below it, so it has no history.
        let has_history = state.block.is_some() && store.options.flat_history != FlatHistory::Off;
        let (is_batch, sum) = (first < number, in_form_of(&state, [sum])?);
        let history = match has_history {
            true if is_batch => in_form_of(&state, deltas)?,
            true => sum.clone(),
            false => Vec::new(),
        };
        let StateProvider { durable, view, cache, block, .. } = state;
        let parent_root = block.map_or(B256::ZERO, |block| block.root);
        let context = ApplyContext { number, parent_root, jobs: &store.jobs };
        // A batch cannot be reverted.
        let undo = store.options.retention > 0 && !is_batch;
        let mut view = RowWriter::new(view, undo);
        let ApplyOutput { root, cache } =
            durable.backend.apply(&context, &mut view, &cache, &sum[0])?;
        if has_history {
            flat_history::record(&mut view, first, &history)?;
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

/// Prepares the root of a block while the block is executed. What it is told decides nothing: the
/// block's root depends on its delta alone.
pub struct RootTask<'s> {
    pool: &'s PrefetchPool,
    state: &'s StateProvider,
    prefetcher: &'s dyn Prefetcher,
}

impl fmt::Debug for RootTask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootTask").field("number", &self.state.number()).finish_non_exhaustive()
    }
}

impl RootTask<'_> {
    /// Prefetches what the root needs if the block writes `keys`, whose values the caller has read.
    /// Returns when that is done, or when prefetch threads are working on the last keys.
    pub fn prefetch(&self, keys: &[StateKey]) {
        self.pool.prefetch_nodes(self.state, keys);
    }

    /// Prepares parts of the root, on this thread, from what the block has written since the last
    /// call.
    pub fn prepare_root(&self, writes: &StateDelta) {
        let StateProvider { durable, view, cache, .. } = self.state;
        self.prefetcher.prepare_root(view, cache, &durable.keys.delta(writes));
    }

    /// Whether [`prepare_root`](Self::prepare_root) does anything.
    pub fn prepares_root(&self) -> bool {
        self.prefetcher.prepares_root()
    }
}
