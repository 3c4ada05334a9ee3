//! [`Lmpt`]: the backend.

use crate::{
    LAYERS, LISTS, META, Params, ParamsError, SNAPSHOT, apply, check,
    descriptor::{NAME, VERSION},
    layer::Leaves,
    leaf, load,
    merge::Merges,
    prove, settle,
    state::{State, empty_root},
    verify,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, HashId, Identity,
    NodeRead, NodeWrite, ProofError, StateDelta, StateError, StateKey, Table, Thinned, Value, flat,
};
use retrie_storage_mpt::InMemory;
use std::path::Path;

/// LMPT under given [`Params`].
#[derive(Debug)]
pub struct Lmpt {
    identity: Identity,
    params: Params,
    merges: Merges,
}

/// Structures of blocks that are kept in any case: one shares with its parent's what the block did not
/// change; of blocks that change thousands of keys each is some megabytes.
const KEPT: usize = 16;
/// Memory for those of older blocks, in bytes.
const THINNED_BYTES: u64 = 192 << 20;
/// Bytes of a key that a block changes: its leaf, and the branches above that are the block's own.
const CHANGED_BYTES: u64 = 1800;
/// Bytes in memory of a key of a small layer, with its share of branches: about.
const KEY_BYTES: u64 = 700;
/// The same of the rows that its merge makes.
const MADE_BYTES: u64 = 500;
/// Branches of the snapshot in memory take about a KiB each, and are at most those of five levels.
const UPPER_BYTES: u64 = 69_905 << 10;

impl Lmpt {
    /// The backend under `params`.
    ///
    /// # Errors
    /// [`ParamsError`] if one of them is out of its range.
    pub fn new(params: Params) -> Result<Self, ParamsError> {
        let params = params.checked()?;
        let plain = Identity::plain(NAME, VERSION, HashId::Keccak256);
        let identity = Identity { layout: params.stamp(), ..plain };
        Ok(Self { identity, params, merges: Merges::default() })
    }

    /// Its parameters.
    pub const fn params(&self) -> &Params {
        &self.params
    }
}

impl Backend for Lmpt {
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
        vec![flat::TABLE, SNAPSHOT, LAYERS, LISTS, META]
    }

    fn empty_root(&self) -> B256 {
        empty_root()
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<State, StateError> {
        State::open(view)
    }

    fn caches_kept(&self) -> usize {
        KEPT
    }

    fn thinned(&self, state: &State) -> Option<Thinned<State>> {
        let (cache, changed) = state.thinned()?;
        Some(Thinned { cache, bytes: changed * CHANGED_BYTES })
    }

    fn thinned_bytes(&self) -> u64 {
        THINNED_BYTES
    }

    fn cache_bytes(&self) -> u64 {
        let layers = self.params.keys.saturating_mul(2 * KEY_BYTES + MADE_BYTES);
        layers.saturating_add(UPPER_BYTES + THINNED_BYTES)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &State,
        delta: &StateDelta,
    ) -> Result<Applied<State>, StateError> {
        apply::apply(&self.params, &self.merges, context, view, parent, delta)
    }

    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        state: &State,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        settle::settle(view, state, first_retained, budget)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        prove::prove(view, state, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, state: &State) -> Result<BackendStats, StateError> {
        let mut stats = BackendStats::count(view, &self.tables())?;
        stats.live_keys = stats.rows(flat::TABLE);
        let layers = state.layers(view)?;
        let is_tombstone = |leaf: &[u8]| leaf::decode(leaf) == Some(None);
        for leaf in Leaves::of(&layers.delta) {
            stats.dead_keys += u64::from(is_tombstone(leaf?.value()));
        }
        for leaf in Leaves::of(&layers.intermediate) {
            let leaf = leaf?;
            let newer = layers.delta.get(&InMemory, leaf.key())?;
            stats.dead_keys += u64::from(newer.is_none() && is_tombstone(leaf.value()));
        }
        Ok(stats)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &State,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(view, state, root, report)
    }
}
