//! Backends behind one type, whatever their caches: what the framework and its clients hold.

use super::{
    AccountNodes, AccountProofs, Applied, ApplyContext, Backend, BackendStats, BulkSink,
    Capabilities, ChunkId, ChunkServer, Chunks, History, NodeRead, NodeWrite, Opened, PartialState,
    ProofHole, ProofShards, Provenance, Table, Thinned,
};
use crate::{Identity, ProofError, StateDelta, StateError, StateKey, Value, Version};
use alloy_primitives::{Address, B256, Bytes};
use std::{any::Any, ops::RangeInclusive, path::Path, sync::Arc};

/// A [cache](Backend::Cache) of any backend.
pub type AnyCache = Arc<Erased>;
/// What lies in it.
type Erased = dyn Any + Send + Sync;

/// A [`Backend`] of any kind: all backends are, and nothing else implements this.
///
/// Methods are those of [`Backend`], with caches that must come from this very backend; one that
/// does not is reported as [`StateError::Corrupt`].
#[expect(missing_docs, reason = "each method is the one of `Backend` that has its name")]
pub trait AnyBackend: Send + Sync + 'static {
    fn identity(&self) -> &Identity;
    fn capabilities(&self) -> Capabilities;
    fn tables(&self) -> Vec<Table>;
    fn empty_root(&self) -> B256;
    fn ethereum_state_only(&self) -> bool;
    fn cache_bytes(&self) -> u64;
    fn caches_kept(&self) -> usize;
    fn thinned(&self, cache: &AnyCache) -> Option<Thinned<AnyCache>>;
    fn thinned_bytes(&self) -> u64;
    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError>;
    fn files_under_way(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError>;
    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &StateDelta,
    ) -> Result<Applied<AnyCache>, StateError>;
    fn applies_runs(&self) -> bool;
    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError>;
    fn hint(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[StateKey]);
    fn heeds_reads(&self) -> bool;
    fn foretell(&self, view: &dyn NodeRead, cache: &AnyCache, writes: &StateDelta);
    fn heeds_writes(&self) -> bool;
    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError>;
    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError>;
    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError>;
    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
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
    ) -> Result<Vec<Option<Value>>, ProofError>;
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
    fn history(&self) -> Option<Box<dyn History<Erased> + '_>>;
    fn proof_shards(&self) -> Option<Box<dyn ProofShards<Erased> + '_>>;
    fn provenance(&self) -> Option<Box<dyn Provenance<Erased> + '_>>;
    fn account_proofs(&self) -> Option<Box<dyn AccountProofs<Erased> + '_>>;
    fn chunks(&self) -> Option<Box<dyn Chunks<Erased> + '_>>;
    fn partial_state(&self) -> Option<&dyn PartialState>;
}

fn of<C: 'static>(cache: &Erased) -> Result<&C, StateError> {
    cache.downcast_ref().ok_or_else(foreign::<C>)
}

fn foreign<C>() -> StateError {
    let what = "a structure in memory belongs to another backend";
    StateError::corrupt(std::any::type_name::<C>(), what)
}

impl<B: Backend> AnyBackend for B {
    fn identity(&self) -> &Identity {
        Backend::identity(self)
    }

    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(self)
    }

    fn tables(&self) -> Vec<Table> {
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

    fn caches_kept(&self) -> usize {
        Backend::caches_kept(self)
    }

    fn thinned(&self, cache: &AnyCache) -> Option<Thinned<AnyCache>> {
        let Thinned { cache, bytes } = Backend::thinned(self, of(&**cache).ok()?)?;
        Some(Thinned { cache: Arc::new(cache), bytes })
    }

    fn thinned_bytes(&self) -> u64 {
        Backend::thinned_bytes(self)
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError> {
        Ok(Arc::new(Backend::open(self, view, dir)?))
    }

    fn files_under_way(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        Backend::files_under_way(self, view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &StateDelta,
    ) -> Result<Applied<AnyCache>, StateError> {
        let Applied { root, cache } = Backend::apply(self, context, view, of(&**cache)?, delta)?;
        Ok(Applied { root, cache: Arc::new(cache) })
    }

    fn applies_runs(&self) -> bool {
        Backend::applies_runs(self)
    }

    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        Backend::settle(self, view, of(&**cache)?, first_retained, budget)
    }

    fn hint(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[StateKey]) {
        if let Ok(cache) = of(&**cache) {
            Backend::hint(self, view, cache, keys);
        }
    }

    fn heeds_reads(&self) -> bool {
        Backend::heeds_reads(self)
    }

    fn foretell(&self, view: &dyn NodeRead, cache: &AnyCache, writes: &StateDelta) {
        if let Ok(cache) = of(&**cache) {
            Backend::foretell(self, view, cache, writes);
        }
    }

    fn heeds_writes(&self) -> bool {
        Backend::heeds_writes(self)
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        Backend::read(self, view, of(&**cache)?, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        Backend::slots_of(self, view, of(&**cache)?, address, limit)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        Backend::entries(self, view, of(&**cache)?, start, limit)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
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
    ) -> Result<Vec<Option<Value>>, ProofError> {
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

    fn history(&self) -> Option<Box<dyn History<Erased> + '_>> {
        Backend::history(self).map(|it| Box::new(Faculty(it)) as Box<dyn History<Erased>>)
    }

    fn proof_shards(&self) -> Option<Box<dyn ProofShards<Erased> + '_>> {
        Backend::proof_shards(self).map(|it| Box::new(Faculty(it)) as Box<dyn ProofShards<Erased>>)
    }

    fn provenance(&self) -> Option<Box<dyn Provenance<Erased> + '_>> {
        Backend::provenance(self).map(|it| Box::new(Faculty(it)) as Box<dyn Provenance<Erased>>)
    }

    fn account_proofs(&self) -> Option<Box<dyn AccountProofs<Erased> + '_>> {
        Backend::account_proofs(self)
            .map(|it| Box::new(Faculty(it)) as Box<dyn AccountProofs<Erased>>)
    }

    fn chunks(&self) -> Option<Box<dyn Chunks<Erased> + '_>> {
        Backend::chunks(self).map(|it| Box::new(Faculty(it)) as Box<dyn Chunks<Erased>>)
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        Backend::partial_state(self)
    }
}

/// A faculty whose caches are erased.
struct Faculty<'a, T: ?Sized>(&'a T);

impl<C: 'static + Send + Sync> History<Erased> for Faculty<'_, dyn History<C> + '_> {
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
        cache: &Erased,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError> {
        let (root, cache) = self.0.open_at(view, of(cache)?, number)?;
        Ok((root, cache))
    }
}

impl<C: 'static> Provenance<Erased> for Faculty<'_, dyn Provenance<C> + '_> {
    fn versions(
        &self,
        view: &dyn NodeRead,
        cache: &Erased,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<Version>>, Bytes), StateError> {
        self.0.versions(view, of(cache)?, keys, blocks)
    }

    fn verify_versions(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<Version>>, ProofError> {
        self.0.verify_versions(root, keys, blocks, proof)
    }
}

impl<C: 'static> ProofShards<Erased> for Faculty<'_, dyn ProofShards<C> + '_> {
    fn shard(&self) -> String {
        self.0.shard()
    }

    fn prove_part(
        &self,
        view: &dyn NodeRead,
        cache: &Erased,
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
        cache: &Erased,
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

impl<C: 'static> AccountProofs<Erased> for Faculty<'_, dyn AccountProofs<C> + '_> {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &Erased,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.0.account_nodes(view, of(cache)?, address, slots)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &Erased,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError> {
        self.0.merge_nodes(view, of(cache)?, removed)
    }
}

impl<C: 'static + Send + Sync> Chunks<Erased> for Faculty<'_, dyn Chunks<C> + '_> {
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

    fn whole(&self, root: B256) -> Option<ChunkId> {
        self.0.whole(root)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<Opened, ProofError> {
        self.0.open(id, answer)
    }

    fn loads_by_parts(&self) -> bool {
        self.0.loads_by_parts()
    }

    fn load(
        &self,
        number: u64,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.0.load(number, parts, entries, sink)
    }
}
