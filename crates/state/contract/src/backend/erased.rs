//! Backends behind one type, with their cache types erased. The framework and its clients hold
//! these.

use super::{
    ApplyContext, ApplyOutput, Backend, BackendExtensions, BackendProfile, BackendStats, BulkSink,
    CacheLookups, NodeRead, NodeWrite,
};
use crate::{
    AccountKey, BackendDelta, BackendIdentity, BackendKey, ProofError, StateError, StateValue,
};
use alloy_primitives::{B256, Bytes};
use std::{any::Any, fmt, path::Path, sync::Arc};

/// A [cache](Backend::Cache) of any backend.
#[derive(Clone)]
pub struct AnyCache(Arc<dyn Any + Send + Sync>);

impl AnyCache {
    /// Erases the type of `cache`.
    pub fn new<C: Any + Send + Sync>(cache: C) -> Self {
        Self::from(Arc::new(cache))
    }

    /// The cache, which must be a `C`.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if it belongs to another backend.
    pub fn get<C: Any>(&self) -> Result<&C, StateError> {
        self.0.downcast_ref().ok_or_else(Self::foreign::<C>)
    }

    /// As [`get`](Self::get), for a holder that outlives this handle.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn share<C: Any + Send + Sync>(&self) -> Result<Arc<C>, StateError> {
        self.0.clone().downcast().map_err(|_| Self::foreign::<C>())
    }

    fn foreign<C>() -> StateError {
        let what = "a structure in memory belongs to another backend";
        StateError::corrupt(std::any::type_name::<C>(), what)
    }
}

impl<C: Any + Send + Sync> From<Arc<C>> for AnyCache {
    fn from(cache: Arc<C>) -> Self {
        Self(cache)
    }
}

impl fmt::Debug for AnyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyCache").finish_non_exhaustive()
    }
}

/// A [`Backend`] with its cache type erased. Every backend implements it, and besides backends only
/// wrappers of them in tests.
///
/// The methods are those of [`Backend`]. Caches must come from this very backend; any other cache
/// is reported as [`StateError::Corrupt`].
#[expect(missing_docs, reason = "each method is the one of `Backend` that has its name")]
pub trait AnyBackend: Send + Sync + 'static {
    fn identity(&self) -> &BackendIdentity;
    fn profile(&self) -> BackendProfile;
    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError>;
    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError>;
    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError>;
    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError>;
    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError>;
    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError>;
    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError>;
    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
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
    fn extensions(&self) -> BackendExtensions<'_>;
    fn cache_lookups(&self) -> CacheLookups {
        CacheLookups::default()
    }

    /// Whether [`apply`](Self::apply) of the sum of consecutive deltas, under the number of the
    /// last block, has the same effect as applying the blocks one by one: the same root, values,
    /// proofs and later blocks. This is so if the root depends on the state alone, and the backend
    /// keeps nothing of the states between.
    fn applies_batches(&self) -> bool {
        let BackendExtensions { history, provenance, .. } = self.extensions();
        self.profile().state_determined_root && history.is_none() && provenance.is_none()
    }
}

impl fmt::Debug for dyn AnyBackend + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.identity().name).finish()
    }
}

/// Forwards each method to the one of [`Backend`], after `cache` has got its type.
impl<B: Backend> AnyBackend for B {
    fn identity(&self) -> &BackendIdentity {
        Backend::identity(self)
    }

    fn profile(&self) -> BackendProfile {
        Backend::profile(self)
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError> {
        Backend::open(self, view, dir).map(AnyCache::new)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError> {
        let ApplyOutput { root, cache } = Backend::apply(self, context, view, cache.get()?, delta)?;
        Ok(ApplyOutput { root, cache: AnyCache::new(cache) })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        Backend::read(self, view, cache.get()?, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        Backend::slots_of(self, view, cache.get()?, account, limit)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        Backend::entries(self, view, cache.get()?, start, limit)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        Backend::bulk_load(self, number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        Backend::prove(self, view, cache.get()?, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        Backend::verify(self, root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, cache: &AnyCache) -> Result<BackendStats, StateError> {
        Backend::stats(self, view, cache.get()?)
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
        Backend::check(self, view, cache.get()?, root, is_tip, rebuilt, report)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        Backend::extensions(self)
    }

    fn cache_lookups(&self) -> CacheLookups {
        Backend::cache_lookups(self)
    }
}
