//! [`Cole`]: the backend.

use crate::{
    Params, ParamsError, apply, check,
    levels::{Levels, Work},
    proof,
    row::{
        BLOCKS, MANIFEST, MEMORY, META, Manifest, memory_key, parse_blocks, parse_memory_key,
        read_memory_row,
    },
    run::{self, RunInfo},
    scan::Keys,
    verify,
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Cache, Capabilities, Direction, HashId,
    History, Identity, Jobs, KeyRange, NodeRead, NodeWrite, ProofError, Provenance, StateDelta,
    StateError, StateKey, Table, Value, Version,
};
use std::{ops::RangeInclusive, sync::Arc};

/// COLE, or COLE* with asynchronous merges, under given [`Params`].
#[derive(Debug)]
pub struct Cole {
    identity: Identity,
    params: Params,
}

/// The structure of one block's state, or of an older block's within it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) levels: Levels,
    /// Blocks before this one have no rows in [`MEMORY`].
    pub(crate) rows_from: u64,
    /// First and last block; `None` on the empty state.
    pub(crate) blocks: Option<(u64, u64)>,
    /// The block whose state is read: `u64::MAX` for the last one.
    pub(crate) as_of: u64,
}

impl State {
    pub(crate) fn of(cache: &Cache) -> Result<&Self, StateError> {
        // Caches come from `open` and `apply` alone.
        cache
            .downcast_ref()
            .ok_or_else(|| StateError::corrupt("cole", "a cache of another backend"))
    }

    fn open(view: &dyn NodeRead, jobs: &Jobs) -> Result<Self, StateError> {
        let mut levels = match view.get(META, MANIFEST)? {
            None => Levels::default(),
            Some(row) => Levels::opened(Manifest::decode(&row, RunInfo::decode)?, jobs.dir())?,
        };
        let mut rows_from = None;
        if let Some(row) = view.scan(MEMORY, KeyRange::ALL, Direction::Forward)?.next() {
            rows_from = Some(parse_memory_key(&row?.0)?.0);
        }
        let blocks = view.get(META, BLOCKS)?.map(|row| parse_blocks(&row)).transpose()?;
        let mut pairs: Vec<(StateKey, Option<Value>)> = Vec::new();
        let mut current = None;
        let mut add = |block: u64, pairs: &mut Vec<(StateKey, Option<Value>)>| {
            let group = match block < levels.writing_from {
                true => &mut levels.merging,
                false => &mut levels.writing,
            };
            group.add_block(block, pairs.iter().map(|(key, value)| (*key, value)));
            pairs.clear();
        };
        let first = memory_key(levels.merging_from, 0);
        for row in view.scan(MEMORY, KeyRange::from(&first), Direction::Forward)? {
            let (key, row) = row?;
            let (block, piece) = parse_memory_key(&key)?;
            match &mut current {
                Some((of, last)) if *of == block && u32::from(piece) == *last + 1 => *last += 1,
                Some((of, _)) if *of == block => return Err(lost(block)),
                _ if piece > 0 => return Err(lost(block)),
                _ => {
                    if let Some((of, _)) = current.replace((block, 0u32)) {
                        add(of, &mut pairs);
                    }
                }
            }
            read_memory_row(&key, &row, &mut pairs)?;
        }
        if let Some((of, _)) = current {
            add(of, &mut pairs);
        }
        // The root says that nothing is known of the blocks before the first one.
        levels.horizon = levels.horizon.max(blocks.map_or(0, |(first, _)| first));
        let next = blocks.map_or(0, |(_, last)| last.saturating_add(1));
        let rows_from = rows_from.unwrap_or(next);
        Ok(Self { levels, rows_from, blocks, as_of: u64::MAX })
    }
}

fn lost(block: u64) -> StateError {
    StateError::corrupt(MEMORY.name, format!("a row of block {block} is missing"))
}

impl Cole {
    /// Format version of rows, files and proofs.
    pub const VERSION: u32 = 1;

    /// A backend under `params`.
    ///
    /// # Errors
    /// [`ParamsError`] if one of them is out of its range.
    pub fn new(params: Params) -> Result<Self, ParamsError> {
        let params = params.checked()?;
        let identity = Identity {
            name: "cole",
            version: Self::VERSION,
            hash: HashId::Blake2b256,
            params: params.digest(),
        };
        Ok(Self { identity, params })
    }

    /// Its parameters.
    pub const fn params(&self) -> &Params {
        &self.params
    }
}

impl Backend for Cole {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: true,
            absence_proofs: true,
            state_determined_root: false,
            ethereum_root: false,
            history: true,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![MEMORY, META]
    }

    fn empty_root(&self) -> B256 {
        Levels::default().root()
    }

    fn open(&self, view: &dyn NodeRead, jobs: &Jobs) -> Result<Cache, StateError> {
        Ok(Arc::new(State::open(view, jobs)?))
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &Cache,
        delta: &StateDelta,
    ) -> Result<Applied, StateError> {
        apply::apply(&self.params, context, view, State::of(cache)?, delta)
    }

    fn read(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        let state = State::of(cache)?;
        Ok(state.levels.get(key, state.as_of)?.and_then(|(_, value)| value))
    }

    fn slots_of(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        address: &Address,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let state = State::of(cache)?;
        let start = StateKey::Slot(*address, B256::ZERO);
        let mut keys = Keys::new(&state.levels, start, state.as_of)?;
        let mut slots = Vec::new();
        while let Some((StateKey::Slot(of, slot), _, value)) = keys.next_key()?
            && of == *address
        {
            slots.extend(value.map(|value| (slot, value)));
        }
        Ok(slots)
    }

    fn entries(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        let state = State::of(cache)?;
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
        cache: &Cache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        let state = State::of(cache)?;
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

    fn stats(&self, view: &dyn NodeRead, cache: &Cache) -> Result<BackendStats, StateError> {
        let state = State::of(cache)?;
        let count = |table| -> Result<u64, StateError> {
            view.scan(table, KeyRange::ALL, Direction::Forward)?
                .try_fold(0, |count, row| row.map(|_| count + 1))
        };
        let mut stats = BackendStats {
            tables: vec![(MEMORY.name, count(MEMORY)?), (META.name, count(META)?)],
            ..BackendStats::default()
        };
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

    fn history(&self) -> Option<&dyn History> {
        Some(self)
    }

    fn provenance(&self) -> Option<&dyn Provenance> {
        Some(self)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        cache: &Cache,
        root: B256,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(view, State::of(cache)?, root, report)
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
        groups * self.params.memory_pairs * 300
    }
}

impl History for Cole {
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
        cache: &Cache,
        number: u64,
    ) -> Result<(B256, Cache), StateError> {
        let state = State::of(cache)?;
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

impl Provenance for Cole {
    fn versions(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<Version>>, Bytes), StateError> {
        proof::prove(&State::of(cache)?.levels, keys, blocks)
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
