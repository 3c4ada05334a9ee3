//! [`Lmpt`]: the implementation of [`Backend`].

use crate::{
    LAYERS, LISTS, LmptParams, META, ParamsError, SNAPSHOT, apply, check,
    descriptor::{NAME, VERSION},
    garbage,
    layer::LeafIter,
    leaf, load,
    merge::MergeRegistry,
    prove,
    state::{LmptState, empty_root},
    verify, witness,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions, BackendIdentity,
    BackendKey, BackendProfile, BackendStats, BulkSink, CacheCompaction, CompactedCache, HashId,
    Maintenance, NodeRead, NodeWrite, ProofError, StateError, StateValue, WitnessMaker,
    WitnessRequest, WitnessSupport, descriptor::WitnessResult, flat,
};
use retrie_storage_mpt::MemorySource;
use std::path::Path;

/// LMPT under given [`LmptParams`].
#[derive(Debug)]
pub struct Lmpt {
    identity: BackendIdentity,
    params: LmptParams,
    merges: MergeRegistry,
    /// Memory for compacted structures of older blocks, in bytes.
    compacted: u64,
}

/// Structures of durable blocks that are kept whole. Each shares with its parent's structure what
/// the block did not change. After blocks with thousands of changed keys each takes some megabytes.
const CACHES_KEPT: usize = 16;
/// Default memory for compacted structures of older blocks, in bytes.
const COMPACTED_BYTES: u64 = 192 << 20;
/// Bytes of a key that a block changes: its leaf, and the branches above it that belong to the
/// block alone.
const CHANGED_BYTES: u64 = 1800;
/// About the bytes in memory of a key of a small layer, with its share of branches.
const KEY_BYTES: u64 = 700;
/// About the bytes of the rows that a merge makes, for each key.
const MADE_BYTES: u64 = 500;
/// Branches of the snapshot in memory: about one KiB each, at most those of five levels.
const UPPER_BYTES: u64 = 69_905 << 10;

impl Lmpt {
    /// The backend under `params`.
    ///
    /// # Errors
    /// [`ParamsError`] if a parameter is out of its range.
    pub fn new(params: LmptParams) -> Result<Self, ParamsError> {
        let params = params.checked()?;
        let plain = BackendIdentity::plain(NAME, VERSION, HashId::Keccak256);
        let identity = BackendIdentity { layout: params.stamp(), ..plain };
        let merges = MergeRegistry::default();
        Ok(Self { identity, params, merges, compacted: COMPACTED_BYTES })
    }

    /// The same backend, with at most `bytes` for the compacted structures of older blocks: fewer of
    /// them are kept, and the others are opened again when they are read.
    #[must_use]
    pub fn with_compacted_bytes(self, bytes: u64) -> Self {
        Self { compacted: bytes.min(COMPACTED_BYTES), ..self }
    }

    /// Its parameters.
    pub const fn params(&self) -> &LmptParams {
        &self.params
    }
}

impl Backend for Lmpt {
    type Cache = LmptState;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        let layers = self.params.keys.saturating_mul(2 * KEY_BYTES + MADE_BYTES);
        BackendProfile {
            tables: &[flat::TABLE, SNAPSHOT, LAYERS, LISTS, META],
            empty_root: empty_root(),
            proofs: true,
            absence_proofs: true,
            cache_bytes: layers.saturating_add(UPPER_BYTES + self.compacted),
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<LmptState, StateError> {
        LmptState::open(view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &LmptState,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<LmptState>, StateError> {
        apply::apply(&self.params, &self.merges, context, view, parent, delta)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &LmptState,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        prove::prove(view, state, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, state: &LmptState) -> Result<BackendStats, StateError> {
        let mut stats = BackendStats::count(view, self.profile().tables)?;
        stats.live_keys = stats.rows(flat::TABLE);
        let layers = state.layers(view)?;
        let is_tombstone = |leaf: &[u8]| leaf::decode(leaf) == Some(None);
        for leaf in LeafIter::of(&layers.delta) {
            stats.dead_keys += u64::from(is_tombstone(leaf?.value()));
        }
        for leaf in LeafIter::of(&layers.intermediate) {
            let leaf = leaf?;
            let newer = layers.delta.get(&MemorySource, leaf.key())?;
            stats.dead_keys += u64::from(newer.is_none() && is_tombstone(leaf.value()));
        }
        Ok(stats)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &LmptState,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(view, state, root, report)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            maintenance: Some(self),
            cache_compaction: Some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl WitnessMaker for Lmpt {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        witness::make(&self.params, view, cache.get()?, block)
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(root, witness)
    }
}

impl Maintenance for Lmpt {
    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let state: &LmptState = cache.get()?;
        garbage::write_and_clean(view, state, first_retained, budget)
    }
}

impl CacheCompaction for Lmpt {
    fn retained_caches(&self) -> usize {
        CACHES_KEPT
    }

    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache> {
        let state: &LmptState = cache.get().ok()?;
        let (cache, changed) = state.compacted()?;
        Some(CompactedCache { cache: AnyCache::new(cache), bytes: changed * CHANGED_BYTES })
    }

    fn compacted_cache_bytes(&self) -> u64 {
        self.compacted
    }
}
