//! [`Bavl`]: the backend.

use crate::{
    CHUNKS, ChunkEntries, HASHES, State, apply, check,
    descriptor::{NAME, VERSION},
    hash,
    load::{self, Cut},
    prove,
    state::root,
    verify,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, Chunks, HashId, Identity,
    NodeRead, NodeWrite, ProofError, StateDelta, StateError, StateKey, Table, Thinned, Value, flat,
};
use std::path::Path;

/// B+AVL with chunks of up to so many entries.
#[derive(Debug)]
pub struct Bavl {
    identity: Identity,
    most: ChunkEntries,
}

/// Structures of blocks that are kept whole: one shares with its parent's what the block did not change.
const KEPT: usize = 16;
/// Memory for the upper parts of older ones, in bytes: some 200 KiB a block that changes a thousand
/// chunks.
const THINNED_BYTES: u64 = 64 << 20;
/// Memory for trees. They grow with the state, by about 4 bytes an entry at 256 entries a chunk: this is
/// that of 50 million entries.
const TREE_BYTES: u64 = 200 << 20;

/// What a tree looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of chunks.
    pub chunks: usize,
    /// Number of entries in all of them.
    pub entries: usize,
    /// Inner nodes on the longest way from the top to a chunk.
    pub height: u8,
}

impl Bavl {
    /// The backend.
    pub fn new(most: ChunkEntries) -> Self {
        let plain = Identity::plain(NAME, VERSION, HashId::Blake2b256);
        let identity = Identity { layout: most.stamp(), ..plain };
        Self { identity, most }
    }

    /// How many entries its chunks hold.
    pub const fn chunk_entries(&self) -> ChunkEntries {
        self.most
    }

    /// What the tree of a state looks like.
    ///
    /// # Errors
    /// [`StateError`] if it cannot be read.
    pub fn shape(&self, view: &dyn NodeRead, state: &State) -> Result<Shape, StateError> {
        let tree = state.tree(view, self.most)?;
        let places = tree.places();
        let entries = places.iter().map(|place| place.chunk.count()).sum();
        let height = tree.0.as_ref().map_or(0, |top| top.height());
        Ok(Shape { chunks: places.len(), entries, height })
    }

    /// The proof of the whole chunk in whose range `key` lies, for [`verify_chunk`](crate::verify_chunk),
    /// and the first key of the next chunk, `None` behind the last one. The least key leads to the first
    /// chunk, whatever its first key is.
    ///
    /// # Errors
    /// [`StateError`] if it cannot be read.
    pub fn prove_chunk(
        &self,
        view: &dyn NodeRead,
        state: &State,
        key: &StateKey,
    ) -> Result<(Bytes, Option<StateKey>), StateError> {
        let tree = state.tree(view, self.most)?;
        let (proof, next) = prove::prove_chunk(self.most, view, tree, key)?;
        Ok((proof.into(), next))
    }
}

impl Backend for Bavl {
    type Cache = State;

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: true,
            absence_proofs: true,
            state_determined_root: false,
            ethereum_root: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![flat::TABLE, CHUNKS, HASHES]
    }

    fn empty_root(&self) -> B256 {
        hash::root(self.most.get(), &hash::no_entries())
    }

    fn open(&self, _: &dyn NodeRead, _: Option<&Path>) -> Result<State, StateError> {
        Ok(State::open())
    }

    fn caches_kept(&self) -> usize {
        KEPT
    }

    fn thinned(&self, state: &State) -> Option<Thinned<State>> {
        let (cache, bytes) = state.thinned()?;
        Some(Thinned { cache, bytes })
    }

    fn thinned_bytes(&self) -> u64 {
        THINNED_BYTES
    }

    fn cache_bytes(&self) -> u64 {
        TREE_BYTES + THINNED_BYTES
    }

    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &State,
        delta: &StateDelta,
    ) -> Result<Applied<State>, StateError> {
        let tree = parent.tree(view.as_read(), self.most)?;
        let tree = apply::apply(self.most, view, tree, delta)?;
        Ok(Applied { root: root(self.most, &tree), cache: State::of(tree) })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(self.most, Cut::Even, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        let top = state.top(view, self.most)?;
        Ok(prove::prove(self.most, view, top, keys)?.into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &State) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, &self.tables())?;
        Ok(BackendStats { live_keys: stats.rows(flat::TABLE), ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        _: &State,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(self.most, view, root, report)
    }

    fn chunks(&self) -> Option<&dyn Chunks<State>> {
        Some(self)
    }
}
