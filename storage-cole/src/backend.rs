//! [`Cole`]: the backend.

use crate::{
    Params, ParamsError, apply, check,
    levels::{Levels, Work},
    proof,
    row::{BLOCKS, MANIFEST, MEMORY, META, Manifest, parse_blocks},
    run::{self, RunInfo},
    scan::Keys,
    state::State,
    verify,
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, HashId, History,
    Identity, NodeRead, NodeWrite, ProofError, Provenance, StateDelta, StateError, StateKey, Table,
    Thinned, Value, Version,
};
use std::{ops::RangeInclusive, path::Path, sync::Arc};

/// COLE, or COLE* with asynchronous merges, under given [`Params`].
#[derive(Debug)]
pub struct Cole {
    identity: Identity,
    params: Params,
}

/// Structures of blocks that are kept: those of the last sixteen. One shares with its parent's what the
/// block did not change; of blocks that change thousands of keys each is some megabytes.
const KEPT: usize = 16;
/// Memory for structures of older blocks, in bytes: of a block that changes a thousand keys a third of a
/// MiB is its own, half of it pairs that have left the tip's memory level perhaps.
const THINNED_BYTES: u64 = 96 << 20;

impl Cole {
    /// Format version of rows, files and proofs.
    pub const VERSION: u32 = 1;

    /// A backend under `params`.
    ///
    /// # Errors
    /// [`ParamsError`] if one of them is out of its range.
    pub fn new(params: Params) -> Result<Self, ParamsError> {
        let params = params.checked()?;
        let plain = Identity::plain("cole", Self::VERSION, HashId::Blake2b256);
        let identity = Identity { params: params.digest(), ..plain };
        Ok(Self { identity, params })
    }

    /// Its parameters.
    pub const fn params(&self) -> &Params {
        &self.params
    }
}

impl Backend for Cole {
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
        vec![MEMORY, META]
    }

    fn empty_root(&self) -> B256 {
        Levels::default().root()
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<State, StateError> {
        State::open(view, dir)
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

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        state: &State,
        delta: &StateDelta,
    ) -> Result<Applied<State>, StateError> {
        apply::apply(&self.params, context, view, state, delta)
    }

    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        state: &State,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        apply::settle(view, state, first_retained, budget)
    }

    fn read(
        &self,
        _: &dyn NodeRead,
        state: &State,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        Ok(state.levels.get(key, state.as_of)?.and_then(|(_, value)| value))
    }

    fn slots_of(
        &self,
        _: &dyn NodeRead,
        state: &State,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let start = StateKey::Slot(*address, B256::ZERO);
        let mut keys = Keys::new(&state.levels, start, state.as_of)?;
        let mut slots = Vec::new();
        while slots.len() < limit
            && let Some((StateKey::Slot(of, slot), _, value)) = keys.next_key()?
            && of == *address
        {
            slots.extend(value.map(|value| (slot, value)));
        }
        Ok(slots)
    }

    fn entries(
        &self,
        _: &dyn NodeRead,
        state: &State,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        let start = start.copied().unwrap_or(StateKey::Account(Address::ZERO));
        let mut keys = Keys::new(&state.levels, start, state.as_of)?;
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
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        apply::bulk_load(&self.params, number, entries, sink)
    }

    fn prove(
        &self,
        _: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        Ok(proof::prove(&state.levels, keys, state.as_of..=state.as_of)?.1)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify::verify(&self.params, root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, state: &State) -> Result<BackendStats, StateError> {
        let mut stats = BackendStats::count(view, &[MEMORY, META])?;
        let start = StateKey::Account(Address::ZERO);
        let mut keys = Keys::new(&state.levels, start, state.as_of)?;
        while let Some((_, _, value)) = keys.next_key()? {
            match value {
                Some(_) => stats.live_keys += 1,
                None => stats.dead_keys += 1,
            }
        }
        Ok(stats)
    }

    fn history(&self) -> Option<&dyn History<State>> {
        Some(self)
    }

    fn provenance(&self) -> Option<&dyn Provenance<State>> {
        Some(self)
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

    fn files_under_way(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        let Some(row) = view.get(META, MANIFEST)? else { return Ok(Vec::new()) };
        let manifest = Manifest::decode(&row, RunInfo::decode)?;
        let merges = manifest.levels.into_iter().filter_map(|level| level.merge);
        let names = |work: Work| run::file_names(&work.stem());
        Ok(manifest.flush.into_iter().chain(merges).flat_map(names).collect())
    }

    fn cache_bytes(&self) -> u64 {
        // Both groups of the memory level: a pair with its share of the tree takes some 300 bytes.
        let groups = 1 + u64::from(self.params.async_merge);
        groups * self.params.memory_pairs * 300 + THINNED_BYTES
    }
}

impl History<State> for Cole {
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let Some(row) = view.get(META, BLOCKS)? else { return Ok(None) };
        let (first, last) = parse_blocks(&row)?;
        let horizon = match view.get(META, MANIFEST)? {
            Some(row) => Manifest::decode(&row, RunInfo::decode)?.horizon,
            None => 0,
        };
        Ok(Some(first.max(horizon)..=last))
    }

    fn open_at(
        &self,
        _: &dyn NodeRead,
        state: &State,
        number: u64,
    ) -> Result<(B256, Arc<State>), StateError> {
        let past = State { as_of: number, ..state.clone() };
        Ok((past.levels.root(), Arc::new(past)))
    }

    fn prunes(&self) -> bool {
        self.params.keep_history > 0
    }

    fn proven_by_view(&self) -> bool {
        true
    }
}

impl Provenance<State> for Cole {
    fn versions(
        &self,
        _: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<Version>>, Bytes), StateError> {
        proof::prove(&state.levels, keys, blocks)
    }

    fn verify_versions(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<Version>>, ProofError> {
        verify::verify_versions(&self.params, root, keys, blocks, proof)
    }
}
