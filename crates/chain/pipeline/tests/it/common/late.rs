//! A wrapper of any backend that delays the roots, so that blocks are executed ahead of them.

use retrie_state::{
    AnyBackend, AnyCache, ApplyContext, ApplyOutput, BackendDelta, BackendExtensions, BackendKey,
    Maintenance, NodeRead, NodeWrite, StateError, StateValue, StoreError,
};
use retrie_state_testkit::{BackendWrapper, WrappedBackend};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The delay of a root.
pub const LATE: Duration = Duration::from_millis(2);

/// What a [`LateRootBackend`] records, and when it fails.
#[derive(Debug)]
pub struct RootWatch {
    /// Roots that are being computed.
    under_way: AtomicUsize,
    /// Keys that were read from a state meanwhile.
    pub reads_beside: AtomicUsize,
    /// Number of commits that succeed before they fail.
    pub commits: AtomicU32,
}

pub struct LateRootBackend {
    backend: Arc<dyn AnyBackend>,
    watch: Arc<RootWatch>,
}

impl LateRootBackend {
    pub fn watched(backend: Arc<dyn AnyBackend>) -> (Arc<dyn AnyBackend>, Arc<RootWatch>) {
        let watch = RootWatch {
            under_way: AtomicUsize::new(0),
            reads_beside: AtomicUsize::new(0),
            commits: AtomicU32::new(u32::MAX),
        };
        let watch = Arc::new(watch);
        (Arc::new(WrappedBackend(Self { backend, watch: watch.clone() })), watch)
    }
}

impl BackendWrapper for LateRootBackend {
    fn inner(&self) -> &dyn AnyBackend {
        &*self.backend
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError> {
        self.watch.under_way.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(LATE);
        let applied = self.backend.apply(context, view, cache, delta);
        self.watch.under_way.fetch_sub(1, Ordering::SeqCst);
        applied
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        let beside = self.watch.under_way.load(Ordering::SeqCst).min(1);
        self.watch.reads_beside.fetch_add(beside, Ordering::SeqCst);
        self.backend.read(view, cache, key)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions { maintenance: Some(self), ..self.backend.extensions() }
    }
}

impl Maintenance for LateRootBackend {
    /// Each commit calls it once.
    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let one_less = |left: u32| left.checked_sub(1);
        let left = self.watch.commits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        left.map_err(|_| StoreError::new("writing", "the disk is full, says the test"))?;
        let inner = self.backend.extensions().maintenance;
        inner.map_or(Ok(()), |inner| inner.maintain(view, cache, first_retained, budget))
    }
}
