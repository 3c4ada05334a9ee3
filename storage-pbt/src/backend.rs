//! [`Pbt`]: the `Backend` implementation.

use crate::{
    apply,
    code::CODES,
    descriptor::{NAME, VERSION},
    hash::{EMPTY_ROOT, TreeHash},
    leaf::CHUNK_LEN,
    load,
    page::{NODES, STORAGE_NODES},
    prefetch, prove,
    state::{PageRoom, PbtState, StateTrees},
    stem::STEMS,
    verify, witness,
};
use alloy_primitives::{B256, Bytes, keccak256};
use retrie_state::{
    AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions, BackendIdentity,
    BackendKey, BackendProfile, BulkSink, CacheLookups, CodePart, CodeProofs, NodeRead, NodeWrite,
    Prefetcher, ProofError, StateError, StateValue, WitnessMaker, WitnessRequest, WitnessSupport,
    compare_rows, descriptor::WitnessResult, flat,
};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
};

/// The partitioned binary tree, latest state only.
#[derive(Debug)]
pub struct Pbt {
    identity: BackendIdentity,
    hash: TreeHash,
    room: Arc<PageRoom>,
}

impl Pbt {
    /// The backend, with this hash function.
    pub fn new(hash: TreeHash) -> Self {
        Self::within(hash, None)
    }

    /// As [`new`](Self::new), with at most `bytes` of pages in memory, or as many as by default.
    pub fn within(hash: TreeHash, bytes: Option<u64>) -> Self {
        let identity = BackendIdentity::plain(NAME, VERSION, hash.id());
        Self { identity, hash, room: PageRoom::within(bytes).into() }
    }

    /// The hash function of the tree.
    pub const fn hash_function(&self) -> TreeHash {
        self.hash
    }

    /// The leaves of these chunks.
    fn code_leaves(&self, codes: &[CodePart]) -> BTreeMap<verify::LeafKey, B256> {
        let leaves = |part: &CodePart| {
            verify::chunk_leaves(self.hash, &part.code, part.chunks.iter().copied())
        };
        codes.iter().flat_map(leaves).collect()
    }

    const fn trees<'a>(&self, view: &'a dyn NodeRead, state: &'a PbtState) -> StateTrees<'a> {
        StateTrees { hash: self.hash, view, state }
    }
}

impl Default for Pbt {
    fn default() -> Self {
        Self::new(TreeHash::Blake3)
    }
}

impl Backend for Pbt {
    type Cache = PbtState;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[flat::TABLE, NODES, STORAGE_NODES, STEMS, CODES],
            empty_root: EMPTY_ROOT,
            proofs: true,
            absence_proofs: true,
            state_determined_root: true,
            ethereum_root: false,
            binary_root: matches!(self.hash, TreeHash::Blake3),
            ethereum_state_only: true,
            needs_codes: true,
            cache_bytes: self.room.bytes(),
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<PbtState, StateError> {
        PbtState::open(self.hash, view, self.room.clone())
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &PbtState,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<PbtState>, StateError> {
        apply::apply(self.hash, context.number, view, parent, delta)
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(self.hash, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &PbtState,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        Ok(prove::prove(self.trees(view, state), keys)?.into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify(self.hash, root, keys, proof)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        _: &PbtState,
        _: B256,
        _: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        // The rows follow from the values and the codes.
        let Some(rebuilt) = rebuilt else { return Ok(()) };
        for table in [NODES, STORAGE_NODES, STEMS, CODES] {
            compare_rows(table, view, rebuilt, report)?;
        }
        Ok(())
    }

    fn cache_lookups(&self) -> CacheLookups {
        self.room.lookups().lookups()
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            prefetcher: Some(self),
            code_proofs: Some(self),
            chunks: Some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl WitnessMaker for Pbt {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        Ok(witness::make(self.trees(view, cache.get()?), block)?.into())
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(self.hash, root, witness)
    }
}

impl CodeProofs for Pbt {
    fn chunk_bytes(&self) -> usize {
        CHUNK_LEN
    }

    fn prove_with_codes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        codes: &[CodePart],
    ) -> Result<Bytes, StateError> {
        let leaves = self.code_leaves(codes);
        let values = keys.iter().flat_map(|key| verify::targets_of(self.hash, key));
        let mut targets: Vec<_> = values.chain(leaves.into_keys()).collect();
        targets.sort_unstable();
        targets.dedup();
        let by_hash: HashMap<B256, &Bytes> =
            codes.iter().map(|part| (keccak256(&part.code), &part.code)).collect();
        let get = |hash: &B256| by_hash.get(hash).map(|code| (*code).clone());
        Ok(prove::prove_leaves(self.trees(view, cache.get()?), &get, &targets)?.into())
    }

    fn verify_with_codes(
        &self,
        root: B256,
        keys: &[BackendKey],
        codes: &[CodePart],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify_with_chunks(self.hash, root, keys, &self.code_leaves(codes), proof)
    }
}

impl Prefetcher for Pbt {
    fn prefetch(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[BackendKey]) {
        if let Ok(state) = cache.get::<PbtState>() {
            // A damaged row shows when the block is applied.
            let _ = prefetch::prefetch(self.hash, view, state, keys);
        }
    }
}
