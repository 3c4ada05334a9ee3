//! [`Cole`]: the implementation of [`Backend`].

use crate::{
    ColeParams, ParamsError, apply, check,
    descriptor::NO_WITNESS,
    levels::{LsmLevels, PendingRun},
    prove,
    record::{BLOCKS, MANIFEST, MEMORY, META, RunManifest, parse_blocks},
    run::{self, RunDescription},
    scan::KeyScan,
    state::ColeState,
    verify,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AccountKey, AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions,
    BackendIdentity, BackendKey, BackendProfile, BackendStats, BulkSink, CacheCompaction,
    CompactedCache, HashId, JobFiles, Maintenance, NodeRead, NodeWrite, ProofError,
    ProvenanceQueries, StateError, StateHistory, StateValue, ValueVersion, WitnessSupport,
};
use std::{ops::RangeInclusive, path::Path};

/// COLE, or COLE* with asynchronous merges, under given [`ColeParams`].
#[derive(Debug)]
pub struct Cole {
    identity: BackendIdentity,
    params: ColeParams,
}

/// Structures of durable blocks that are kept whole: those of the last sixteen blocks. Each shares
/// with its parent's structure what the block did not change. After blocks with thousands of
/// changed keys each takes some megabytes.
const CACHES_KEPT: usize = 16;
/// Memory for compacted structures of older blocks, in bytes. A block that changes a thousand keys
/// takes a third of a MiB for itself, about half of it for pairs that may have left the tip's
/// memory level.
const COMPACTED_BYTES: u64 = 96 << 20;

impl Cole {
    /// Format version of rows, files and proofs.
    pub const VERSION: u32 = 1;

    /// A backend under `params`.
    ///
    /// # Errors
    /// [`ParamsError`] if a parameter is out of its range.
    pub fn new(params: ColeParams) -> Result<Self, ParamsError> {
        let params = params.checked()?;
        let plain = BackendIdentity::plain("cole", Self::VERSION, HashId::Blake2b256);
        let identity = BackendIdentity { params: params.digest(), ..plain };
        Ok(Self { identity, params })
    }

    /// Its parameters.
    pub const fn params(&self) -> &ColeParams {
        &self.params
    }
}

impl Backend for Cole {
    type Cache = ColeState;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        // Both groups of the memory level; a pair with its share of the tree takes some 300 bytes.
        let groups = 1 + u64::from(self.params.async_merge);
        BackendProfile {
            tables: &[MEMORY, META],
            empty_root: LsmLevels::default().root(),
            proofs: true,
            absence_proofs: true,
            cache_bytes: groups * self.params.memory_pairs * 300 + COMPACTED_BYTES,
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<ColeState, StateError> {
        ColeState::open(&self.params, view, dir)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        state: &ColeState,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<ColeState>, StateError> {
        apply::apply(&self.params, context, view, state, delta)
    }

    fn read(
        &self,
        _: &dyn NodeRead,
        state: &ColeState,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        Ok(state.levels.get(key, state.as_of)?.and_then(|(_, value)| value))
    }

    fn slots_of(
        &self,
        _: &dyn NodeRead,
        state: &ColeState,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let start = BackendKey::Slot(*account, B256::ZERO);
        let mut keys = KeyScan::new(&state.levels, start, state.as_of)?;
        let mut slots = Vec::new();
        while slots.len() < limit
            && let Some((BackendKey::Slot(of, slot), _, value)) = keys.next_key()?
            && of == *account
        {
            slots.extend(value.map(|value| (slot, value)));
        }
        Ok(slots)
    }

    fn entries(
        &self,
        _: &dyn NodeRead,
        state: &ColeState,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        let start = start.copied().unwrap_or(BackendKey::Account(AccountKey::MIN));
        let mut keys = KeyScan::new(&state.levels, start, state.as_of)?;
        let mut entries = Vec::new();
        while entries.len() < limit
            && let Some((key, _, value)) = keys.next_key()?
        {
            entries.extend(value.map(|value| (key, value)));
        }
        Ok(entries)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        apply::bulk_load(&self.params, number, entries, sink)
    }

    fn prove(
        &self,
        _: &dyn NodeRead,
        state: &ColeState,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        Ok(prove::prove(&state.levels, keys, state.as_of..=state.as_of)?.1)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify(&self.params, root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, state: &ColeState) -> Result<BackendStats, StateError> {
        let mut stats = BackendStats::count(view, &[MEMORY, META])?;
        let start = BackendKey::Account(AccountKey::MIN);
        let mut keys = KeyScan::new(&state.levels, start, state.as_of)?;
        while let Some((_, _, value)) = keys.next_key()? {
            match value {
                Some(_) => stats.live_keys += 1,
                None => stats.dead_keys += 1,
            }
        }
        Ok(stats)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &ColeState,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(view, state, root, report)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            history: Some(self),
            provenance: Some(self),
            maintenance: Some(self),
            cache_compaction: Some(self),
            job_files: Some(self),
            witnesses: WitnessSupport::Unsupported(NO_WITNESS),
            ..BackendExtensions::default()
        }
    }
}

impl Maintenance for Cole {
    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let state: &ColeState = cache.get()?;
        apply::remove_old_rows(view, state, first_retained, budget)
    }
}

impl CacheCompaction for Cole {
    fn retained_caches(&self) -> usize {
        CACHES_KEPT
    }

    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache> {
        let state: &ColeState = cache.get().ok()?;
        let (cache, bytes) = state.compacted()?;
        Some(CompactedCache { cache: AnyCache::new(cache), bytes })
    }

    fn compacted_cache_bytes(&self) -> u64 {
        COMPACTED_BYTES
    }
}

impl JobFiles for Cole {
    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        let Some(row) = view.get(META, MANIFEST)? else { return Ok(Vec::new()) };
        let manifest = RunManifest::decode(&row, RunDescription::decode)?;
        let merges = manifest.levels.into_iter().filter_map(|level| level.merge);
        let names = |work: PendingRun| run::file_names(&work.stem(), self.params.version_trees);
        Ok(manifest.flush.into_iter().chain(merges).flat_map(names).collect())
    }
}

impl StateHistory for Cole {
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let Some(row) = view.get(META, BLOCKS)? else { return Ok(None) };
        let (first, last) = parse_blocks(&row)?;
        let horizon = match view.get(META, MANIFEST)? {
            Some(row) => RunManifest::decode(&row, RunDescription::decode)?.horizon,
            None => 0,
        };
        Ok(Some(first.max(horizon)..=last))
    }

    fn open_at(
        &self,
        _: &dyn NodeRead,
        cache: &AnyCache,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError> {
        let state: &ColeState = cache.get()?;
        let past = ColeState { as_of: number, ..state.clone() };
        Ok((past.levels.root(), AnyCache::new(past)))
    }

    fn prunes(&self) -> bool {
        self.params.keep_history > 0
    }

    fn proven_by_view(&self) -> bool {
        true
    }
}

impl ProvenanceQueries for Cole {
    fn versions(
        &self,
        _: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError> {
        let state: &ColeState = cache.get()?;
        prove::prove(&state.levels, keys, blocks)
    }

    fn verify_versions(
        &self,
        root: B256,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
        verify::verify_versions(&self.params, root, keys, blocks, proof)
    }
}
