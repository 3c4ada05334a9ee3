//! The backend `duptree`: the tree over the framework's key-value view.

use super::{
    apply,
    cache::{CACHED_BYTES, DupTreeCache, MAX_CACHED_SUBTREES, SubtreeRoom},
    check,
    descriptor::{NAME, VERSION},
    keys::KEYS,
    layout::DupTreeLayout,
    load, prove,
    subtree::NODES,
    verify, witness,
};
use crate::duptree::hash;
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions, BackendIdentity,
    BackendKey, BackendProfile, BackendStats, BulkSink, CacheLookups, HashId, LookupCounter,
    NodeRead, NodeWrite, ProofError, StateError, StateValue, WitnessMaker, WitnessRequest,
    WitnessSupport, descriptor::WitnessResult, flat,
};
use std::path::Path;

/// DupTree++ over indexed leaves.
#[derive(Debug)]
pub struct DupTree {
    identity: BackendIdentity,
    layout: DupTreeLayout,
    room: SubtreeRoom,
}

impl DupTree {
    /// The backend with this row layout.
    pub fn new(layout: DupTreeLayout) -> Self {
        Self::with_cache(layout, MAX_CACHED_SUBTREES)
    }

    /// The backend with at most `max_cached` subtrees in memory.
    pub fn with_cache(layout: DupTreeLayout, max_cached: usize) -> Self {
        let plain = BackendIdentity::plain(NAME, VERSION, HashId::Blake2b256);
        let identity = BackendIdentity { layout: layout.name(), ..plain };
        let room = SubtreeRoom { most: max_cached, lookups: LookupCounter::default() };
        Self { identity, layout, room }
    }
}

impl Backend for DupTree {
    type Cache = DupTreeCache;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        let empty = DupTreeCache::empty();
        BackendProfile {
            tables: &[flat::TABLE, KEYS, NODES],
            empty_root: hash::root(empty.shape.height(), &empty.top),
            proofs: true,
            absence_proofs: true,
            cache_bytes: self.room.most as u64 * CACHED_BYTES,
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<DupTreeCache, StateError> {
        DupTreeCache::open(view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &DupTreeCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<DupTreeCache>, StateError> {
        let cache = apply::apply(self.layout, view, parent, context.number, delta, &self.room)?;
        debug_assert!(cache.count() <= self.room.most);
        Ok(ApplyOutput { root: cache.root(), cache })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let meta = load::load(self.layout, entries, sink)?;
        Ok(hash::root(meta.shape.height(), &meta.top))
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &DupTreeCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        Ok(prove::prove(self.layout, view, cache, keys)?.encode().into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &DupTreeCache) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, &[flat::TABLE, KEYS, NODES])?;
        let live_keys = stats.rows(flat::TABLE);
        let dead_keys = stats.rows(KEYS).saturating_sub(live_keys);
        Ok(BackendStats { live_keys, dead_keys, ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        _: &DupTreeCache,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(self.layout, view, DupTreeCache::empty(), root, report)
    }

    fn cache_lookups(&self) -> CacheLookups {
        self.room.lookups.lookups()
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions { witnesses: WitnessSupport::Maker(self), ..BackendExtensions::default() }
    }
}

impl WitnessMaker for DupTree {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        Ok(witness::make(self.layout, view, cache.get()?, block)?.into())
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(root, witness)
    }
}
