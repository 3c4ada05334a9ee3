//! A mock of LMPT: the newest blocks' changes are in a layer in memory. The layer is frozen at
//! block boundaries, merged into a base on disk by a background job, and published some blocks
//! later.
//!
//! The root hashes base, frozen and active layer. The job reads the base through a detached view.

use crate::common;

use alloy_primitives::{B256, Bytes, keccak256};
use common::{
    EntryLevel, decode_level, decode_row, digest, encode_level, encode_row, page, propose,
    slot_key, slots_of,
};
use retrie_state::{
    AccountKey, AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions,
    BackendIdentity, BackendKey, BackendProfile, BackendStats, BackgroundJob, BulkSink, HashId,
    JobHandle, JobRunner, KeyRange, Maintenance, NodeRead, NodeWrite, ProofError, RowTable,
    ScanDirection, StateError, StateReader, StateValue, StoreError,
};
use retrie_state_store::{MemoryStore, StateId, StateStore, StoreOptions};
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

static IDENTITY: BackendIdentity = BackendIdentity::plain("mock-layers", 1, HashId::Keccak256);

/// The base: state key to value.
const BASE: RowTable = RowTable::new(0x11, "MockBase");
/// Layers: generation (8 bytes, big-endian) || state key to [`encode_row`].
const LAYERS: RowTable = RowTable::new(0x12, "MockLayers");
/// One row: root of the base, active generation, and what is frozen.
const STATE: RowTable = RowTable::new(0x13, "MockState");

/// Blocks between freezes.
const FREEZE: u64 = 5;
/// Blocks from a freeze to the publication of its merge.
const MERGE: u64 = 3;

#[derive(Default)]
struct MockLayers {
    /// How many executions of a job fail from now on.
    failures: Arc<AtomicU32>,
    runs: Arc<AtomicU32>,
    /// Rows that maintenance has removed.
    removed: Arc<AtomicU32>,
}

#[derive(Clone)]
struct FrozenLayer {
    generation: u64,
    publish_at: u64,
    entries: Arc<EntryLevel>,
    /// `None` until the first block after an opening.
    handle: Option<JobHandle>,
}

#[derive(Clone)]
struct LayersCache {
    base: B256,
    generation: u64,
    active: EntryLevel,
    frozen: Option<FrozenLayer>,
    /// Generations that are merged, and the block from which on no state reads their rows.
    merged: Vec<(u64, u64)>,
}

impl LayersCache {
    fn new() -> Self {
        let (base, active) = (digest(&EntryLevel::new()), EntryLevel::new());
        Self { base, generation: 0, active, frozen: None, merged: Vec::new() }
    }

    /// Restarts the merge that was under way at the opening.
    fn resume(&mut self, layers: &MockLayers, view: &dyn NodeRead, jobs: &JobRunner) {
        if let Some(frozen) = &mut self.frozen
            && frozen.handle.is_none()
        {
            let job = layers.merge_job(view, self.base, frozen.publish_at, &frozen.entries);
            frozen.handle = Some(jobs.start(job));
        }
    }

    fn encode(&self) -> Bytes {
        let frozen = self.frozen.as_ref().map(|frozen| (frozen.generation, frozen.publish_at));
        encode_state(self.base, self.generation, frozen)
    }

    fn root(&self) -> B256 {
        let empty = EntryLevel::new();
        let frozen = self.frozen.as_ref().map_or(&empty, |frozen| &*frozen.entries);
        root_of(self.base, digest(frozen), digest(&self.active))
    }

    fn find(
        &self,
        view: &dyn NodeRead,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.entries.get(key));
        match self.active.get(key).or(frozen) {
            Some(value) => Ok(value.clone()),
            None => view.get(BASE, &key.encode()),
        }
    }

    fn merged(&self, view: &dyn NodeRead) -> Result<EntryLevel, StateError> {
        let mut merged = base(view)?;
        if let Some(frozen) = &self.frozen {
            merged.extend((*frozen.entries).clone());
        }
        merged.extend(self.active.clone());
        Ok(merged)
    }
}

fn encode_state(base: B256, generation: u64, frozen: Option<(u64, u64)>) -> Bytes {
    let mut row = base.to_vec();
    row.extend_from_slice(&generation.to_be_bytes());
    if let Some((generation, publish_at)) = frozen {
        row.extend_from_slice(&generation.to_be_bytes());
        row.extend_from_slice(&publish_at.to_be_bytes());
    }
    row.into()
}

fn root_of(base: B256, frozen: B256, active: B256) -> B256 {
    keccak256([base.as_slice(), frozen.as_slice(), active.as_slice()].concat())
}

fn base(view: &dyn NodeRead) -> Result<EntryLevel, StateError> {
    let decode = |row: Result<(Bytes, Bytes), StateError>| {
        let (key, value) = row?;
        let corrupt = || StateError::corrupt(BASE.name, format!("row {key} is no state key"));
        Ok((BackendKey::decode(&key).ok_or_else(corrupt)?, Some(value)))
    };
    view.scan(BASE, KeyRange::ALL, ScanDirection::Forward)?.map(decode).collect()
}

fn layer_key(generation: u64, key: &BackendKey) -> Vec<u8> {
    [&generation.to_be_bytes()[..], &key.encode()].concat()
}

fn layer(view: &dyn NodeRead, generation: u64) -> Result<EntryLevel, StateError> {
    let (start, end) = (generation.to_be_bytes(), (generation + 1).to_be_bytes());
    let decode = |row: Result<(Bytes, Bytes), StateError>| {
        let (key, row) = row?;
        let corrupt = || StateError::corrupt(LAYERS.name, format!("row {key} is malformed"));
        let value = decode_row(&row).ok_or_else(corrupt)?;
        Ok((BackendKey::decode(&key[8..]).ok_or_else(corrupt)?, value))
    };
    view.scan(LAYERS, KeyRange::new(&start, &end), ScanDirection::Forward)?.map(decode).collect()
}

/// The merged generations whose rows are still there. None can be read [`MERGE`] blocks after the
/// next one began.
fn left_behind(view: &dyn NodeRead, tries: &LayersCache) -> Result<Vec<(u64, u64)>, StateError> {
    let first = tries.frozen.as_ref().map_or(tries.generation, |frozen| frozen.generation);
    let end = first.to_be_bytes();
    let mut generations = BTreeSet::from([first]);
    for row in view.scan(LAYERS, KeyRange::new(&[], &end), ScanDirection::Forward)? {
        let generation = *row?.0.first_chunk::<8>().expect("a generation");
        generations.insert(u64::from_be_bytes(generation));
    }
    let generations: Vec<_> = generations.into_iter().collect();
    Ok(generations.windows(2).map(|pair| (pair[0], pair[1] + MERGE)).collect())
}

impl MockLayers {
    /// Computes the root of the base under `entries`.
    fn merge_job(
        &self,
        view: &dyn NodeRead,
        base_root: B256,
        publish_at: u64,
        entries: &Arc<EntryLevel>,
    ) -> BackgroundJob {
        let (layer, block) = (digest(entries), publish_at.to_be_bytes());
        let id = [base_root.as_slice(), layer.as_slice(), &block].concat();
        let (entries, view) = (entries.clone(), view.detach().expect("views of a store detach"));
        let (failures, runs) = (self.failures.clone(), self.runs.clone());
        BackgroundJob::new(keccak256(id), "mock merge", move |context| {
            runs.fetch_add(1, Ordering::SeqCst);
            let failing = |left: u32| left.checked_sub(1);
            if failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, failing).is_ok() {
                return Err(StoreError::new("merging", "the disk is full, says the test").into());
            }
            let mut merged = EntryLevel::new();
            for row in view.scan(BASE, KeyRange::ALL, ScanDirection::Forward)? {
                context.pause_point()?;
                let (key, value) = row?;
                let key = BackendKey::decode(&key).expect("a state key");
                merged.insert(key, Some(value));
            }
            merged.extend((*entries).clone());
            merged.retain(|_, value| value.is_some());
            Ok(Arc::new(digest(&merged)))
        })
    }
}

impl Backend for MockLayers {
    type Cache = LayersCache;

    fn identity(&self) -> &BackendIdentity {
        &IDENTITY
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[BASE, LAYERS, STATE],
            empty_root: LayersCache::new().root(),
            proofs: true,
            absence_proofs: true,
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<LayersCache, StateError> {
        let mut tries = LayersCache::new();
        if let Some(row) = view.get(STATE, &[])? {
            let word = |at: usize| {
                let bytes = row.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                bytes.map(u64::from_be_bytes)
            };
            let corrupt = || StateError::corrupt(STATE.name, "the row is cut short");
            tries.base = B256::from_slice(row.get(..32).ok_or_else(corrupt)?);
            tries.generation = word(32).ok_or_else(corrupt)?;
            tries.active = layer(view, tries.generation)?;
            if let (Some(generation), Some(publish_at)) = (word(40), word(48)) {
                let entries = Arc::new(layer(view, generation)?);
                tries.frozen = Some(FrozenLayer { generation, publish_at, entries, handle: None });
            }
            tries.merged = left_behind(view, &tries)?;
        }
        Ok(tries)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &LayersCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<LayersCache>, StateError> {
        let mut tries = cache.clone();
        tries.resume(self, view.as_read(), context.jobs);
        if tries.frozen.as_ref().is_some_and(|frozen| frozen.publish_at == context.number)
            && let Some(frozen) = tries.frozen.take()
        {
            let handle = frozen.handle.as_ref().expect("it was resumed");
            let root = context.jobs.wait(handle)?;
            tries.base = *root.downcast::<B256>().expect("a root");
            for (key, value) in &*frozen.entries {
                match value {
                    Some(value) => view.put(BASE, &key.encode(), value.clone())?,
                    None => view.delete(BASE, &key.encode())?,
                }
            }
            // Maintenance removes its rows once no retained state is older than this one.
            tries.merged.push((frozen.generation, context.number));
        }
        for change in delta.changes() {
            let key = layer_key(tries.generation, &change.key);
            view.put(LAYERS, &key, encode_row(&change.next))?;
            tries.active.insert(change.key, change.next.clone());
        }
        if context.number.is_multiple_of(FREEZE) {
            let entries = Arc::new(std::mem::take(&mut tries.active));
            let publish_at = context.number + MERGE;
            let generation = tries.generation;
            tries.frozen = Some(FrozenLayer { generation, publish_at, entries, handle: None });
            tries.resume(self, view.as_read(), context.jobs);
            tries.generation = context.number + 1;
        }
        view.put(STATE, &[], tries.encode())?;
        Ok(ApplyOutput { root: tries.root(), cache: tries })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &LayersCache,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        cache.find(view, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &LayersCache,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        Ok(slots_of(&cache.merged(view)?, account, limit))
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &LayersCache,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        Ok(page(&cache.merged(view)?, start, limit))
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut loaded = EntryLevel::new();
        for entry in entries {
            let (key, value) = entry?;
            let value = Some(value);
            sink.put(LAYERS, &layer_key(0, &key), &encode_row(&value))?;
            loaded.insert(key, value);
        }
        let (empty, none) = (LayersCache::new().base, digest(&EntryLevel::new()));
        if number.is_multiple_of(FREEZE) {
            let frozen = Some((0, number + MERGE));
            sink.put(STATE, &[], &encode_state(empty, number + 1, frozen))?;
            Ok(root_of(empty, digest(&loaded), none))
        } else {
            sink.put(STATE, &[], &encode_state(empty, 0, None))?;
            Ok(root_of(empty, none, digest(&loaded)))
        }
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &LayersCache,
        _: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        let empty = EntryLevel::new();
        let frozen = cache.frozen.as_ref().map_or(&empty, |frozen| &*frozen.entries);
        let levels = [&base(view)?, frozen, &cache.active];
        Ok(levels.map(encode_level).concat().into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        mut proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        let mut next = || decode_level(&mut proof).ok_or(ProofError::Malformed { what: "a level" });
        let [base, frozen, active] = [next()?, next()?, next()?];
        if !proof.is_empty() {
            return Err(ProofError::Unused);
        }
        if root_of(digest(&base), digest(&frozen), digest(&active)) != root {
            return Err(ProofError::RootMismatch);
        }
        let find = |key| {
            let levels = [&active, &frozen, &base];
            levels.iter().find_map(|level| level.get(key)).cloned().flatten()
        };
        Ok(keys.iter().map(find).collect())
    }

    fn stats(&self, view: &dyn NodeRead, cache: &LayersCache) -> Result<BackendStats, StateError> {
        let live_keys = cache.merged(view)?.values().flatten().count() as u64;
        let count = |table| -> Result<u64, StateError> {
            Ok(view.scan(table, KeyRange::ALL, ScanDirection::Forward)?.count() as u64)
        };
        let tables = vec![(BASE.name, count(BASE)?), (LAYERS.name, count(LAYERS)?)];
        Ok(BackendStats { tables, live_keys, dead_keys: 0 })
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions { maintenance: Some(self), ..BackendExtensions::default() }
    }
}

impl Maintenance for MockLayers {
    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        mut budget: usize,
    ) -> Result<(), StateError> {
        let tries: &LayersCache = cache.get()?;
        for (generation, _) in tries.merged.iter().filter(|(_, from)| *from <= first_retained) {
            for key in layer(view.as_read(), *generation)?.keys() {
                let Some(left) = budget.checked_sub(1) else { return Ok(()) };
                budget = left;
                view.delete(LAYERS, &layer_key(*generation, key))?;
                self.removed.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}

// LMPT itself runs the whole scale.
retrie_state_testkit::backend_tests!(
    || Arc::new(MockLayers::default()) as Arc<dyn retrie_state::AnyBackend>,
    retrie_state_testkit::TestScale::small()
);

/// Runs blocks `from..to` on the tip, each with one change.
fn run(store: &StateStore, kv: &MemoryStore, from: u64, to: u64) {
    for number in from..to {
        let changes = [(slot_key(number), Some(Bytes::from(vec![number as u8 + 1])))];
        let proposal = propose(store, StateId::Tip, common::hash(0, number), &changes).unwrap();
        common::commit(store, kv, &[proposal]).unwrap();
    }
}

#[test]
fn a_failed_job_fails_the_block_that_needs_it_and_no_other_and_a_retry_works() {
    let kv = MemoryStore::new();
    let layers = Arc::new(MockLayers::default());
    let (failures, runs) = (layers.failures.clone(), layers.runs.clone());
    let store = common::open(layers, &kv, None, StoreOptions::default()).unwrap();
    run(&store, &kv, 0, 5);
    runs.store(0, Ordering::SeqCst);
    // In the background, then twice in place.
    failures.store(3, Ordering::SeqCst);
    run(&store, &kv, 5, 8);
    while runs.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let due = || propose(&store, StateId::Tip, common::hash(0, 8), &[(slot_key(8), None)]);
    for _ in 0..2 {
        let error = due().unwrap_err();
        assert!(matches!(&error, StateError::Job { job, .. } if job == "mock merge"), "{error}");
        assert!(error.to_string().contains("the disk is full"), "{error}");
        // Everything else goes on.
        let reader = store.at(StateId::Tip).unwrap();
        assert_eq!(reader.get(&slot_key(7)).unwrap(), Some(Bytes::from_static(&[8])));
    }
    let proposal = due().unwrap();
    common::commit(&store, &kv, &[proposal]).unwrap();

    let (kv, plain) = (MemoryStore::new(), Arc::new(MockLayers::default()));
    let other = common::open(plain, &kv, None, StoreOptions::default()).unwrap();
    run(&other, &kv, 0, 8);
    let proposal =
        propose(&other, StateId::Tip, common::hash(0, 8), &[(slot_key(8), None)]).unwrap();
    assert_eq!(proposal.root(), store.tip().unwrap().root);
}

#[test]
fn siblings_share_the_jobs_of_their_parent() {
    let kv = MemoryStore::new();
    let layers = Arc::new(MockLayers::default());
    let runs = layers.runs.clone();
    let store = common::open(layers, &kv, None, StoreOptions::default()).unwrap();
    run(&store, &kv, 0, 6);
    // The merge started at block 5 is due at block 8, on two branches.
    let mut tips = Vec::new();
    for branch in 1..3 {
        let mut at = None;
        for number in 6..9 {
            let parent = at.as_ref().map_or(StateId::Tip, StateId::Proposal);
            let changes = [(slot_key(number), Some(Bytes::from(vec![branch; 3])))];
            at = Some(propose(&store, parent, common::hash(branch, number), &changes).unwrap());
        }
        tips.extend(at);
    }
    assert_ne!(tips[0].root(), tips[1].root());
    assert_eq!(runs.load(Ordering::SeqCst), 2, "one merge at block 0, one at block 5");
}

#[test]
fn rows_that_no_retained_state_reads_are_settled_without_undo() {
    let kv = MemoryStore::new();
    let layers = Arc::new(MockLayers::default());
    let settled = layers.removed.clone();
    let options = StoreOptions { retention: 4, ..StoreOptions::default() };
    let mut store = common::open(layers, &kv, None, options.clone()).unwrap();
    run(&store, &kv, 0, 40);
    // All rows of generations frozen up to block 30 are gone.
    let rows = store.stats().unwrap().backend.tables[1].1;
    assert!(rows <= 15, "{rows} rows of layers");
    assert!(settled.load(Ordering::SeqCst) >= 25, "{settled:?}");
    let retained = store.retained().unwrap();
    let values = |store: &StateStore, number| {
        let state = store.at(StateId::Block(common::hash(0, number))).unwrap();
        (0..=number).map(|n| state.get(&slot_key(n)).unwrap()).collect::<Vec<_>>()
    };
    let expected = |number: u64| {
        (0..=number).map(|n| Some(Bytes::from(vec![n as u8 + 1]))).collect::<Vec<_>>()
    };
    for reopened in [false, true] {
        if reopened {
            drop(store);
            store =
                common::open(Arc::new(MockLayers::default()), &kv, None, options.clone()).unwrap();
        }
        for number in retained.clone() {
            assert_eq!(values(&store, number), expected(number), "block {number}");
        }
    }
    // The oldest retained state is complete after a revert, too.
    common::revert(&store, &kv, *retained.start()).unwrap();
    assert_eq!(values(&store, *retained.start()), expected(*retained.start()));
    run(&store, &kv, retained.start() + 1, 60);
    assert_eq!(values(&store, 59), expected(59));
}
