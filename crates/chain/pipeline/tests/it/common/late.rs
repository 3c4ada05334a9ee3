//! A wrapper of any backend that delays the roots, so that blocks are executed ahead of them.

use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    AccountProofs, AnyBackend, AnyCache, ApplyContext, ApplyOutput, BackendCapabilities,
    BackendIdentity, BackendStats, BulkSink, CompactedCache, NodeRead, NodeWrite, PartialState,
    Prefetcher, ProofError, ProofShards, ProvenanceQueries, RowTable, StateChunks, StateDelta,
    StateError, StateHistory, StateKey, StateValue, StoreError,
};
use std::{
    any::Any,
    path::Path,
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
        (Arc::new(Self { backend, watch: watch.clone() }), watch)
    }
}

type ErasedCache = dyn Any + Send + Sync;

impl AnyBackend for LateRootBackend {
    fn identity(&self) -> &BackendIdentity {
        self.backend.identity()
    }

    fn capabilities(&self) -> BackendCapabilities {
        self.backend.capabilities()
    }

    fn tables(&self) -> Vec<RowTable> {
        self.backend.tables()
    }

    fn empty_root(&self) -> B256 {
        self.backend.empty_root()
    }

    fn ethereum_state_only(&self) -> bool {
        self.backend.ethereum_state_only()
    }

    fn cache_bytes(&self) -> u64 {
        self.backend.cache_bytes()
    }

    fn retained_caches(&self) -> usize {
        self.backend.retained_caches()
    }

    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache<AnyCache>> {
        self.backend.compact_cache(cache)
    }

    fn compacted_cache_bytes(&self) -> u64 {
        self.backend.compacted_cache_bytes()
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError> {
        self.backend.open(view, dir)
    }

    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        self.backend.pending_files(view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &StateDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError> {
        self.watch.under_way.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(LATE);
        let applied = self.backend.apply(context, view, cache, delta);
        self.watch.under_way.fetch_sub(1, Ordering::SeqCst);
        applied
    }

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
        self.backend.maintain(view, cache, first_retained, budget)
    }

    fn applies_batches(&self) -> bool {
        self.backend.applies_batches()
    }

    fn prefetcher(&self) -> Option<Box<dyn Prefetcher<ErasedCache> + '_>> {
        self.backend.prefetcher()
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &StateKey,
    ) -> Result<Option<StateValue>, StateError> {
        let beside = self.watch.under_way.load(Ordering::SeqCst).min(1);
        self.watch.reads_beside.fetch_add(beside, Ordering::SeqCst);
        self.backend.read(view, cache, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.backend.slots_of(view, cache, address, limit)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, StateValue)>, StateError> {
        self.backend.entries(view, cache, start, limit)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.backend.bulk_load(number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        self.backend.prove(view, cache, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        self.backend.verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, cache: &AnyCache) -> Result<BackendStats, StateError> {
        self.backend.stats(view, cache)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        root: B256,
        is_tip: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        self.backend.check(view, cache, root, is_tip, rebuilt, report)
    }

    fn history(&self) -> Option<Box<dyn StateHistory<ErasedCache> + '_>> {
        self.backend.history()
    }

    fn proof_shards(&self) -> Option<Box<dyn ProofShards<ErasedCache> + '_>> {
        self.backend.proof_shards()
    }

    fn provenance(&self) -> Option<Box<dyn ProvenanceQueries<ErasedCache> + '_>> {
        self.backend.provenance()
    }

    fn account_proofs(&self) -> Option<Box<dyn AccountProofs<ErasedCache> + '_>> {
        self.backend.account_proofs()
    }

    fn chunks(&self) -> Option<Box<dyn StateChunks<ErasedCache> + '_>> {
        self.backend.chunks()
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        self.backend.partial_state()
    }
}
