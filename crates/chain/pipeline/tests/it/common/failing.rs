//! A backend whose disk fails when a test wants it.

use alloy_primitives::{B256, Bytes};
use retrie_state::{
    ApplyContext, ApplyOutput, Backend, BackendCapabilities, BackendIdentity, BackendStats,
    BulkSink, NodeRead, NodeWrite, ProofError, RowTable, StateDelta, StateError, StateKey,
    StateValue, StoreError,
};
use retrie_storage_raw::Raw;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// `raw` on a failing disk.
#[derive(Default)]
pub struct FailingBackend {
    /// Set when a load begins. The load then fails.
    pub loading: Arc<AtomicBool>,
    /// How many times it can be opened before opening fails.
    pub openings: Arc<AtomicU32>,
}

fn disk_is_gone() -> StateError {
    StoreError::new("reading", "the disk is gone, says the test").into()
}

impl Backend for FailingBackend {
    type Cache = ();

    fn identity(&self) -> &BackendIdentity {
        Raw.identity()
    }

    fn capabilities(&self) -> BackendCapabilities {
        Raw.capabilities()
    }

    fn tables(&self) -> Vec<RowTable> {
        Raw.tables()
    }

    fn empty_root(&self) -> B256 {
        Raw.empty_root()
    }

    fn open(&self, _: &dyn NodeRead, _: Option<&Path>) -> Result<(), StateError> {
        let one_less = |left: u32| left.checked_sub(1);
        let left = self.openings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.map(drop).map_err(|_| disk_is_gone())
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &(),
        delta: &StateDelta,
    ) -> Result<ApplyOutput<()>, StateError> {
        Raw.apply(context, view, cache, delta)
    }

    fn bulk_load(
        &self,
        _: u64,
        _: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        _: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.loading.store(true, Ordering::Relaxed);
        Err(disk_is_gone())
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &(),
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        Raw.prove(view, cache, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        Raw.verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, cache: &()) -> Result<BackendStats, StateError> {
        Raw.stats(view, cache)
    }
}
