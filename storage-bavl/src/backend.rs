//! [`Bavl`]: the `Backend` implementation.

use crate::{
    BavlState, CHUNKS, ChunkEntries, HASHES, apply, check,
    descriptor::{NAME, VERSION},
    hash,
    load::{self, ChunkCut},
    prove,
    state::root,
    verify, witness,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions, BackendIdentity,
    BackendKey, BackendProfile, BulkSink, CacheCompaction, CompactedCache, HashId, NodeRead,
    NodeWrite, ProofError, StateError, StateValue, WitnessMaker, WitnessRequest, WitnessSupport,
    descriptor::WitnessResult, flat,
};
use std::path::Path;

/// The B+AVL backend.
#[derive(Debug)]
pub struct Bavl {
    identity: BackendIdentity,
    most: ChunkEntries,
    /// Memory for the upper nodes of older trees, in bytes.
    compacted: u64,
}

/// Number of latest blocks whose trees are kept complete. A tree shares unchanged nodes with its
/// parent's.
const CACHES_KEPT: usize = 16;
/// Default memory for the upper nodes of older trees, in bytes: about 200 KiB for a block that changes a
/// thousand chunks.
const COMPACTED_BYTES: u64 = 64 << 20;
/// Memory for trees, in bytes. A tree takes about 4 bytes per entry at 256 entries per chunk: this
/// is enough for 50 million entries.
const TREE_BYTES: u64 = 200 << 20;

/// The size of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    /// Number of chunks.
    pub chunks: usize,
    /// Number of entries in all of them.
    pub entries: usize,
    /// Inner nodes on the longest path from the top to a chunk.
    pub height: u8,
}

impl Bavl {
    /// The backend.
    pub fn new(most: ChunkEntries) -> Self {
        let plain = BackendIdentity::plain(NAME, VERSION, HashId::Blake2b256);
        let identity = BackendIdentity { layout: most.stamp(), ..plain };
        Self { identity, most, compacted: COMPACTED_BYTES }
    }

    /// The same backend, with at most `bytes` for the compacted structures of older blocks: fewer of
    /// them are kept, and the others are opened again when they are read.
    #[must_use]
    pub fn with_compacted_bytes(self, bytes: u64) -> Self {
        Self { compacted: bytes.min(COMPACTED_BYTES), ..self }
    }

    /// Upper bound of entries per chunk.
    pub const fn chunk_entries(&self) -> ChunkEntries {
        self.most
    }

    /// The size of a state's tree.
    ///
    /// # Errors
    /// [`StateError`] if the tree cannot be read.
    pub fn shape(&self, view: &dyn NodeRead, state: &BavlState) -> Result<TreeShape, StateError> {
        let tree = state.tree(view, self.most)?;
        let places = tree.places();
        let entries = places.iter().map(|place| place.chunk.count()).sum();
        let height = tree.0.as_ref().map_or(0, |top| top.height());
        Ok(TreeShape { chunks: places.len(), entries, height })
    }

    /// The proof of the whole chunk in whose range `key` lies, for
    /// [`verify_chunk`](crate::verify_chunk), and the first key of the next chunk, `None` after the
    /// last chunk. The smallest possible key selects the first chunk, whatever its first key is.
    ///
    /// # Errors
    /// [`StateError`] if the chunk cannot be read.
    pub fn prove_chunk(
        &self,
        view: &dyn NodeRead,
        state: &BavlState,
        key: &BackendKey,
    ) -> Result<(Bytes, Option<BackendKey>), StateError> {
        let tree = state.tree(view, self.most)?;
        let (proof, next) = prove::prove_chunk(self.most, view, tree, key)?;
        Ok((proof.into(), next))
    }
}

impl Backend for Bavl {
    type Cache = BavlState;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[flat::TABLE, CHUNKS, HASHES],
            empty_root: hash::root(self.most.get(), &hash::no_entries()),
            proofs: true,
            absence_proofs: true,
            cache_bytes: TREE_BYTES + self.compacted,
            ..BackendProfile::default()
        }
    }

    fn open(&self, _: &dyn NodeRead, _: Option<&Path>) -> Result<BavlState, StateError> {
        Ok(BavlState::open())
    }

    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &BavlState,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<BavlState>, StateError> {
        let tree = parent.tree(view.as_read(), self.most)?;
        let tree = apply::apply(self.most, view, tree, delta)?;
        Ok(ApplyOutput { root: root(self.most, &tree), cache: BavlState::of(tree) })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(self.most, ChunkCut::Even, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &BavlState,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        let top = state.top(view, self.most)?;
        Ok(prove::prove(self.most, view, top, keys)?.into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify(root, keys, proof)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        _: &BavlState,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(self.most, view, root, report)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            chunks: Some(self),
            cache_compaction: Some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl WitnessMaker for Bavl {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        let state: &BavlState = cache.get()?;
        Ok(witness::make(self.most, view, state.tree(view, self.most)?, block)?.into())
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(root, witness)
    }
}

impl CacheCompaction for Bavl {
    fn retained_caches(&self) -> usize {
        CACHES_KEPT
    }

    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache> {
        let state: &BavlState = cache.get().ok()?;
        let (cache, bytes) = state.compacted()?;
        Some(CompactedCache { cache: AnyCache::new(cache), bytes })
    }

    fn compacted_cache_bytes(&self) -> u64 {
        self.compacted
    }
}
