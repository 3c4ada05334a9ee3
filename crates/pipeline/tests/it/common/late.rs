//! Any backend, with roots that come late, so that blocks are executed ahead of them.

use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    AccountProofs, AnyBackend, AnyCache, Applied, ApplyContext, BackendStats, BulkSink,
    Capabilities, Chunks, History, Identity, NodeRead, NodeWrite, PartialState, ProofError,
    ProofShards, Provenance, StateDelta, StateError, StateKey, StoreError, Table, Thinned, Value,
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

/// How late.
pub const LATE: Duration = Duration::from_millis(2);

/// What a [`Late`] backend has seen, and shall do.
#[derive(Debug)]
pub struct Watch {
    /// Roots under way.
    under_way: AtomicUsize,
    /// Keys that were read of a state meanwhile.
    pub reads_beside: AtomicUsize,
    /// How many commits succeed before they fail.
    pub commits: AtomicU32,
}

pub struct Late {
    backend: Arc<dyn AnyBackend>,
    watch: Arc<Watch>,
}

impl Late {
    pub fn watched(backend: Arc<dyn AnyBackend>) -> (Arc<dyn AnyBackend>, Arc<Watch>) {
        let watch = Watch {
            under_way: AtomicUsize::new(0),
            reads_beside: AtomicUsize::new(0),
            commits: AtomicU32::new(u32::MAX),
        };
        let watch = Arc::new(watch);
        (Arc::new(Self { backend, watch: watch.clone() }), watch)
    }
}

type Erased = dyn Any + Send + Sync;

impl AnyBackend for Late {
    fn identity(&self) -> &Identity {
        self.backend.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn tables(&self) -> Vec<Table> {
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

    fn caches_kept(&self) -> usize {
        self.backend.caches_kept()
    }

    fn thinned(&self, cache: &AnyCache) -> Option<Thinned<AnyCache>> {
        self.backend.thinned(cache)
    }

    fn thinned_bytes(&self) -> u64 {
        self.backend.thinned_bytes()
    }

    fn heeds_reads(&self) -> bool {
        self.backend.heeds_reads()
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError> {
        self.backend.open(view, dir)
    }

    fn files_under_way(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        self.backend.files_under_way(view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &StateDelta,
    ) -> Result<Applied<AnyCache>, StateError> {
        self.watch.under_way.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(LATE);
        let applied = self.backend.apply(context, view, cache, delta);
        self.watch.under_way.fetch_sub(1, Ordering::SeqCst);
        applied
    }

    /// Every commit calls it once.
    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let one_less = |left: u32| left.checked_sub(1);
        let left = self.watch.commits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        left.map_err(|_| StoreError::new("writing", "the disk is full, says the test"))?;
        self.backend.settle(view, cache, first_retained, budget)
    }

    fn applies_runs(&self) -> bool {
        self.backend.applies_runs()
    }

    fn hint(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[StateKey]) {
        self.backend.hint(view, cache, keys);
    }

    fn foretell(&self, view: &dyn NodeRead, cache: &AnyCache, writes: &StateDelta) {
        self.backend.foretell(view, cache, writes);
    }

    fn heeds_writes(&self) -> bool {
        self.backend.heeds_writes()
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
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
    ) -> Result<Vec<(B256, Value)>, StateError> {
        self.backend.slots_of(view, cache, address, limit)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        self.backend.entries(view, cache, start, limit)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
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
    ) -> Result<Vec<Option<Value>>, ProofError> {
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

    fn history(&self) -> Option<Box<dyn History<Erased> + '_>> {
        self.backend.history()
    }

    fn proof_shards(&self) -> Option<Box<dyn ProofShards<Erased> + '_>> {
        self.backend.proof_shards()
    }

    fn provenance(&self) -> Option<Box<dyn Provenance<Erased> + '_>> {
        self.backend.provenance()
    }

    fn account_proofs(&self) -> Option<Box<dyn AccountProofs<Erased> + '_>> {
        self.backend.account_proofs()
    }

    fn chunks(&self) -> Option<Box<dyn Chunks<Erased> + '_>> {
        self.backend.chunks()
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        self.backend.partial_state()
    }
}
