//! Backends behind one type, with their cache types erased. The framework and its clients hold
//! these.

use super::{
    AccountNodes, AccountProofs, ApplyContext, ApplyOutput, Backend, BackendCapabilities,
    BackendStats, BulkSink, ChunkId, ChunkServer, CompactedCache, NodeRead, NodeWrite, OpenedChunk,
    PartialState, Prefetcher, ProofHole, ProofShards, ProvenanceQueries, RowTable, StateChunks,
    StateHistory,
};
use crate::{
    BackendIdentity, ProofError, StateDelta, StateError, StateKey, StateValue, ValueVersion,
};
use alloy_primitives::{Address, B256, Bytes};
use std::{any::Any, ops::RangeInclusive, path::Path, sync::Arc};

/// A [cache](Backend::Cache) of any backend.
pub type AnyCache = Arc<ErasedCache>;
/// What an [`AnyCache`] points to.
type ErasedCache = dyn Any + Send + Sync;

/// A [`Backend`] with its cache type erased. Every backend implements it, and nothing else does.
///
/// The methods are those of [`Backend`]. Caches must come from this very backend; any other cache
/// is reported as [`StateError::Corrupt`].
#[expect(missing_docs, reason = "each method is the one of `Backend` that has its name")]
pub trait AnyBackend: Send + Sync + 'static {
    fn identity(&self) -> &BackendIdentity;
    fn capabilities(&self) -> BackendCapabilities;
    fn tables(&self) -> Vec<RowTable>;
    fn empty_root(&self) -> B256;
    fn ethereum_state_only(&self) -> bool;
    fn cache_bytes(&self) -> u64;
    fn retained_caches(&self) -> usize;
    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache<AnyCache>>;
    fn compacted_cache_bytes(&self) -> u64;
    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError>;
    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError>;
    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &StateDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError>;
    fn applies_batches(&self) -> bool;
    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError>;
    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &StateKey,
    ) -> Result<Option<StateValue>, StateError>;
    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError>;
    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, StateValue)>, StateError>;
    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError>;
    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError>;
    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError>;
    fn stats(&self, view: &dyn NodeRead, cache: &AnyCache) -> Result<BackendStats, StateError>;
    fn check(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        root: B256,
        is_tip: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError>;
    fn prefetcher(&self) -> Option<Box<dyn Prefetcher<ErasedCache> + '_>>;
    fn history(&self) -> Option<Box<dyn StateHistory<ErasedCache> + '_>>;
    fn proof_shards(&self) -> Option<Box<dyn ProofShards<ErasedCache> + '_>>;
    fn provenance(&self) -> Option<Box<dyn ProvenanceQueries<ErasedCache> + '_>>;
    fn account_proofs(&self) -> Option<Box<dyn AccountProofs<ErasedCache> + '_>>;
    fn chunks(&self) -> Option<Box<dyn StateChunks<ErasedCache> + '_>>;
    fn partial_state(&self) -> Option<&dyn PartialState>;
}

fn of<C: 'static>(cache: &ErasedCache) -> Result<&C, StateError> {
    cache.downcast_ref().ok_or_else(foreign::<C>)
}

fn foreign<C>() -> StateError {
    let what = "a structure in memory belongs to another backend";
    StateError::corrupt(std::any::type_name::<C>(), what)
}

impl<B: Backend> AnyBackend for B {
    fn identity(&self) -> &BackendIdentity {
        Backend::identity(self)
    }

    fn capabilities(&self) -> BackendCapabilities {
        Backend::capabilities(self)
    }

    fn tables(&self) -> Vec<RowTable> {
        Backend::tables(self)
    }

    fn empty_root(&self) -> B256 {
        Backend::empty_root(self)
    }

    fn ethereum_state_only(&self) -> bool {
        Backend::ethereum_state_only(self)
    }

    fn cache_bytes(&self) -> u64 {
        Backend::cache_bytes(self)
    }

    fn retained_caches(&self) -> usize {
        Backend::retained_caches(self)
    }

    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache<AnyCache>> {
        let CompactedCache { cache, bytes } = Backend::compact_cache(self, of(&**cache).ok()?)?;
        Some(CompactedCache { cache: Arc::new(cache), bytes })
    }

    fn compacted_cache_bytes(&self) -> u64 {
        Backend::compacted_cache_bytes(self)
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError> {
        Ok(Arc::new(Backend::open(self, view, dir)?))
    }

    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        Backend::pending_files(self, view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &StateDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError> {
        let ApplyOutput { root, cache } =
            Backend::apply(self, context, view, of(&**cache)?, delta)?;
        Ok(ApplyOutput { root, cache: Arc::new(cache) })
    }

    fn applies_batches(&self) -> bool {
        Backend::applies_batches(self)
    }

    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        Backend::maintain(self, view, of(&**cache)?, first_retained, budget)
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &StateKey,
    ) -> Result<Option<StateValue>, StateError> {
        Backend::read(self, view, of(&**cache)?, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        Backend::slots_of(self, view, of(&**cache)?, address, limit)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, StateValue)>, StateError> {
        Backend::entries(self, view, of(&**cache)?, start, limit)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        Backend::bulk_load(self, number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        Backend::prove(self, view, of(&**cache)?, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        Backend::verify(self, root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, cache: &AnyCache) -> Result<BackendStats, StateError> {
        Backend::stats(self, view, of(&**cache)?)
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
        Backend::check(self, view, of(&**cache)?, root, is_tip, rebuilt, report)
    }

    fn prefetcher(&self) -> Option<Box<dyn Prefetcher<ErasedCache> + '_>> {
        Backend::prefetcher(self)
            .map(|it| Box::new(ErasedExtension(it)) as Box<dyn Prefetcher<ErasedCache>>)
    }

    fn history(&self) -> Option<Box<dyn StateHistory<ErasedCache> + '_>> {
        Backend::history(self)
            .map(|it| Box::new(ErasedExtension(it)) as Box<dyn StateHistory<ErasedCache>>)
    }

    fn proof_shards(&self) -> Option<Box<dyn ProofShards<ErasedCache> + '_>> {
        Backend::proof_shards(self)
            .map(|it| Box::new(ErasedExtension(it)) as Box<dyn ProofShards<ErasedCache>>)
    }

    fn provenance(&self) -> Option<Box<dyn ProvenanceQueries<ErasedCache> + '_>> {
        Backend::provenance(self)
            .map(|it| Box::new(ErasedExtension(it)) as Box<dyn ProvenanceQueries<ErasedCache>>)
    }

    fn account_proofs(&self) -> Option<Box<dyn AccountProofs<ErasedCache> + '_>> {
        Backend::account_proofs(self)
            .map(|it| Box::new(ErasedExtension(it)) as Box<dyn AccountProofs<ErasedCache>>)
    }

    fn chunks(&self) -> Option<Box<dyn StateChunks<ErasedCache> + '_>> {
        Backend::chunks(self)
            .map(|it| Box::new(ErasedExtension(it)) as Box<dyn StateChunks<ErasedCache>>)
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        Backend::partial_state(self)
    }
}

/// An extension with its cache type erased.
struct ErasedExtension<'a, T: ?Sized>(&'a T);

impl<C: 'static> Prefetcher<ErasedCache> for ErasedExtension<'_, dyn Prefetcher<C> + '_> {
    fn prefetch(&self, view: &dyn NodeRead, cache: &ErasedCache, keys: &[StateKey]) {
        if let Ok(cache) = of(cache) {
            self.0.prefetch(view, cache, keys);
        }
    }

    fn prepare_root(&self, view: &dyn NodeRead, cache: &ErasedCache, writes: &StateDelta) {
        if let Ok(cache) = of(cache) {
            self.0.prepare_root(view, cache, writes);
        }
    }

    fn prepares_root(&self) -> bool {
        self.0.prepares_root()
    }
}

impl<C: 'static + Send + Sync> StateHistory<ErasedCache>
    for ErasedExtension<'_, dyn StateHistory<C> + '_>
{
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        self.0.kept(view)
    }

    fn prunes(&self) -> bool {
        self.0.prunes()
    }

    fn proven_by_view(&self) -> bool {
        self.0.proven_by_view()
    }

    fn open_at(
        &self,
        view: &dyn NodeRead,
        cache: &ErasedCache,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError> {
        let (root, cache) = self.0.open_at(view, of(cache)?, number)?;
        Ok((root, cache))
    }
}

impl<C: 'static> ProvenanceQueries<ErasedCache>
    for ErasedExtension<'_, dyn ProvenanceQueries<C> + '_>
{
    fn versions(
        &self,
        view: &dyn NodeRead,
        cache: &ErasedCache,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError> {
        self.0.versions(view, of(cache)?, keys, blocks)
    }

    fn verify_versions(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
        self.0.verify_versions(root, keys, blocks, proof)
    }
}

impl<C: 'static> ProofShards<ErasedCache> for ErasedExtension<'_, dyn ProofShards<C> + '_> {
    fn shard(&self) -> String {
        self.0.shard()
    }

    fn prove_part(
        &self,
        view: &dyn NodeRead,
        cache: &ErasedCache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        self.0.prove_part(view, of(cache)?, keys)
    }

    fn holes(&self, keys: &[StateKey], parts: &[Bytes]) -> Result<Vec<ProofHole>, ProofError> {
        self.0.holes(keys, parts)
    }

    fn fills(&self, shard: &str, hole: &ProofHole) -> bool {
        self.0.fills(shard, hole)
    }

    fn check_part(
        &self,
        view: &dyn NodeRead,
        cache: &ErasedCache,
        keys: &[StateKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError> {
        self.0.check_part(view, of(cache)?, keys, own, part)
    }

    fn combine(&self, parts: &[Bytes]) -> Result<Bytes, ProofError> {
        self.0.combine(parts)
    }
}

impl<C: 'static> AccountProofs<ErasedCache> for ErasedExtension<'_, dyn AccountProofs<C> + '_> {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &ErasedCache,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.0.account_nodes(view, of(cache)?, address, slots)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &ErasedCache,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError> {
        self.0.merge_nodes(view, of(cache)?, removed)
    }
}

impl<C: 'static + Send + Sync> StateChunks<ErasedCache>
    for ErasedExtension<'_, dyn StateChunks<C> + '_>
{
    fn format(&self) -> &'static str {
        self.0.format()
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        self.0.serve(view, cache.downcast().map_err(|_| foreign::<C>())?, scratch)
    }

    fn root_chunk(&self, root: B256) -> Option<ChunkId> {
        self.0.root_chunk(root)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        self.0.open(id, answer)
    }

    fn load_needs_parts(&self) -> bool {
        self.0.load_needs_parts()
    }

    fn load(
        &self,
        number: u64,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.0.load(number, parts, entries, sink)
    }
}
