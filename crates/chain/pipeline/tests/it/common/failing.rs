//! A backend whose disk fails when a test wants it.

use alloy_primitives::B256;
use retrie_state::{
    AnyBackend, AnyCache, BackendKey, BulkSink, NodeRead, StateError, StateValue, StoreError,
};
use retrie_state_testkit::BackendWrapper;
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

impl BackendWrapper for FailingBackend {
    fn inner(&self) -> &dyn AnyBackend {
        &Raw
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError> {
        let one_less = |left: u32| left.checked_sub(1);
        let left = self.openings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.map_err(|_| disk_is_gone())?;
        self.inner().open(view, dir)
    }

    fn bulk_load(
        &self,
        _: u64,
        _: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        _: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.loading.store(true, Ordering::Relaxed);
        Err(disk_is_gone())
    }
}
