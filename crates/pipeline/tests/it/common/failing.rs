//! A backend whose disk fails when a test wants it to.

use alloy_primitives::{B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, Identity, NodeRead,
    NodeWrite, ProofError, StateDelta, StateError, StateKey, StoreError, Table, Value,
};
use retrie_storage_raw::Raw;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// `raw`, on a disk that fails.
#[derive(Default)]
pub struct Failing {
    /// Set when a load begins, which then fails.
    pub loading: Arc<AtomicBool>,
    /// How often it can be opened before that fails.
    pub openings: Arc<AtomicU32>,
}

fn disk_is_gone() -> StateError {
    StoreError::new("reading", "the disk is gone, says the test").into()
}

impl Backend for Failing {
    type Cache = ();

    fn identity(&self) -> &Identity {
        Raw.identity()
    }

    fn capabilities(&self) -> Capabilities {
        Raw.capabilities()
    }

    fn tables(&self) -> Vec<Table> {
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
    ) -> Result<Applied<()>, StateError> {
        Raw.apply(context, view, cache, delta)
    }

    fn bulk_load(
        &self,
        _: u64,
        _: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
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
    ) -> Result<Vec<Option<Value>>, ProofError> {
        Raw.verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, cache: &()) -> Result<BackendStats, StateError> {
        Raw.stats(view, cache)
    }
}
