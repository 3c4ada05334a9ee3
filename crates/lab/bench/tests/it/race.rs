//! Races between the real backends, on small states.

use crate::common;

use common::root_by_a_plain_loop;
use retrie_bench::{
    BenchError,
    cache::StateCache,
    memory::{MemoryCap, SharedMemoryCap},
    race::{MemoryTerms, RaceResult, RaceStep, RaceTerms},
    state::{
        BackendFactory, BlockCorpus, EntryStream, InitialKeys, KeyDistribution, KeyLayout, KeyOp,
        OpenStore, ProofFigures, ReadDigest, StoreFactory, StoreFigures, StoreOutcome, StoreRace,
        StoreWorkload,
    },
};
use retrie_db::SyncMode;
use retrie_pipeline::replay::{BundleReplayOptions, StatePadding};
use retrie_state::{StateKey, StateValue};
use retrie_state_store::CounterSnapshot;
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_raw::Raw;
use std::{
    cell::Cell,
    io::Write,
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

// Little memory, so that generations fill and fold within the race.
const TERMS: RaceTerms = RaceTerms {
    sync: SyncMode::NoSync,
    cache_bytes: 64 << 10,
    retention: 4,
    read_threads: 0,
    memory: MemoryTerms::FREE,
};

fn workload(keys: InitialKeys, layout: KeyLayout) -> StoreWorkload {
    StoreWorkload {
        keys,
        pairs: 450,
        commit_every: 50,
        warmup: 120,
        slices: 4,
        layout,
        seed: 3,
        ..Default::default()
    }
}

fn entrants() -> Vec<Box<dyn StoreFactory>> {
    let mpt = BackendFactory::new(Arc::new(Mpt::new()));
    vec![Box::new(BackendFactory::new(Arc::new(Raw))), Box::new(mpt)]
}

fn run(
    workload: &StoreWorkload,
    entrants: &[Box<dyn StoreFactory>],
    cache: &StateCache,
) -> Result<Vec<StoreOutcome>, BenchError> {
    let RaceResult { outcomes, ended, .. } = run_to_its_end(workload, entrants, cache)?;
    ended.map(|()| outcomes)
}

fn run_to_its_end(
    workload: &StoreWorkload,
    entrants: &[Box<dyn StoreFactory>],
    cache: &StateCache,
) -> Result<RaceResult<StoreFigures>, BenchError> {
    run_with(workload, entrants, cache, 0)
}

fn run_with(
    workload: &StoreWorkload,
    entrants: &[Box<dyn StoreFactory>],
    cache: &StateCache,
    read_threads: usize,
) -> Result<RaceResult<StoreFigures>, BenchError> {
    let terms = RaceTerms { read_threads, ..TERMS };
    let stop = AtomicBool::new(false);
    let race = StoreRace {
        workload,
        terms: &terms,
        cache,
        proofs: 3,
        proof_depths: &[],
        memory_limit: None,
        stop: &stop,
    };
    race.run(entrants, &mut |_| ())
}

/// Prefetching changes the number of rows read, and nothing else.
#[test]
fn keys_that_are_told_before_change_nothing_but_how_often_rows_are_read() {
    let workload = workload(InitialKeys::Preloaded(2000), KeyLayout::Accounts);
    let run = |threads| run_with(&workload, &entrants(), &StateCache::none(), threads).unwrap();
    let [without, with] = [0, 4].map(run);
    for (without, with) in without.outcomes.iter().zip(&with.outcomes) {
        assert_eq!(without.figures.ethereum_root, with.figures.ethereum_root);
        assert_eq!(without.keys(), with.keys());
        let [without, with] = [without, with].map(|outcome| outcome.counts().unwrap());
        assert_eq!(without.writes, with.writes);
        // A commit may end before anything was prefetched.
        assert!(without.reads <= with.reads, "{} and {} reads", without.reads, with.reads);
    }
}

#[test]
fn every_variant_leaves_the_state_of_a_plain_loop() {
    for keys in [InitialKeys::Preloaded(2000), InitialKeys::Fresh] {
        for layout in [KeyLayout::OneContract, KeyLayout::Accounts] {
            let workload = workload(keys.clone(), layout);
            let outcomes = run(&workload, &entrants(), &StateCache::none()).unwrap();
            let [raw, mpt] = &outcomes[..] else { panic!("two outcomes") };
            assert_eq!(
                mpt.figures.ethereum_root,
                Some(root_by_a_plain_loop(&workload)),
                "{workload:?}"
            );
            assert_eq!(raw.figures.ethereum_root, None);
            for outcome in &outcomes {
                assert_eq!((outcome.keys(), outcome.ops()), ((450, 450), 900));
                assert_eq!((outcome.slices_done(), outcome.latency().count()), (4, 9));
                let slices = outcome.result(&workload, &TERMS).slices;
                let ops: Vec<_> = slices.iter().map(|slice| slice.ops).collect();
                assert_eq!(ops, [200, 400, 600, 900]);
                assert!(slices.iter().all(|slice| slice.disk_bytes > Some(0)));
                let spent = outcome.breakdown().unwrap();
                // The time of reads is an estimate. It may be the whole time.
                assert!(spent.authentication >= 0.0 && spent.storage_io > 0.0, "{spent:?}");
                let sum = spent.authentication + spent.storage_io + spent.other;
                assert!((sum - outcome.total().as_secs_f64()).abs() < 1e-6, "{spent:?}");
                let counts = outcome.counts().unwrap();
                assert!(counts.reads >= 450 && counts.folded_rows > 0, "{counts:?}");
                assert!(outcome.disk_bytes > 0 && outcome.peak_rss_bytes > 0);
                assert!(outcome.sustained_rate() > 0.0 && outcome.total() >= outcome.slices());
            }
            // One row per key, read once and written once, except for keys drawn twice in a commit.
            let counts = raw.counts().unwrap();
            assert_eq!(counts.reads, 450, "{counts:?}");
            assert!((400..=450).contains(&counts.writes), "{counts:?}");
            // All of its rows are in one table; those of a trie are in several.
            let flat = counts.table("Flat");
            assert_eq!((flat.reads, flat.writes), (counts.reads, counts.writes), "{counts:?}");
            let tables = mpt.tables().unwrap();
            assert!(tables.len() > 1 && tables.iter().any(|table| table.name == "Flat"));
            let reads: f64 = tables.iter().map(|table| table.reads_per_op).sum();
            assert!((reads - mpt.per_read(|counts| counts.reads).unwrap()).abs() < 1e-9);
            assert!(counts.undo_bytes > 0 && counts.journal_bytes > 450 * 60, "{counts:?}");
        }
    }
}

/// A contender that counts its loads and may have a fault.
struct SpyFactory {
    inner: BackendFactory,
    loads: Rc<Cell<u32>>,
    fault: Option<SpyFault>,
}

#[derive(Clone, Copy)]
enum SpyFault {
    /// Stores another value.
    Stores(fn(&StateValue) -> StateValue),
    OtherRoot,
    /// Fails at the final flush.
    FailsToFlush,
    WrongProof,
}

impl StoreFactory for SpyFactory {
    fn name(&self) -> &str {
        "spy"
    }

    fn hash(&self) -> &str {
        self.inner.hash()
    }

    fn format(&self) -> String {
        "spy".into()
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        self.loads.set(self.loads.get() + 1);
        self.inner.load(folder, entries)
    }

    fn open(
        &self,
        folder: &Path,
        terms: &RaceTerms,
        page_cache: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        assert_eq!(page_cache, u64::MAX, "memory is not capped");
        let inner = self.inner.open(folder, terms, page_cache)?;
        Ok(Box::new(SpyStore { inner, fault: self.fault, flushes: 0 }))
    }
}

struct SpyStore {
    inner: Box<dyn OpenStore>,
    fault: Option<SpyFault>,
    flushes: u32,
}

impl OpenStore for SpyStore {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        match self.fault {
            Some(SpyFault::Stores(other)) => {
                let stored = block.iter().map(|op| match op {
                    KeyOp::Write(key, value) => KeyOp::Write(*key, other(value)),
                    op => op.clone(),
                });
                self.inner.commit(&stored.collect::<Vec<_>>())
            }
            _ => self.inner.commit(block),
        }
    }

    fn wait_idle(&mut self) -> Result<(), BenchError> {
        self.inner.wait_idle()
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.flushes += 1;
        match self.fault {
            Some(SpyFault::FailsToFlush) if self.flushes == 2 => {
                let source = "it is broken".into();
                Err(BenchError::Peer { backend: "spy".into(), action: "flushing", source })
            }
            _ => self.inner.flush(),
        }
    }

    fn prove(
        &mut self,
        keys: &[StateKey],
        present: bool,
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        match self.fault {
            Some(SpyFault::WrongProof) => {
                let key = keys[0].to_string();
                Err(BenchError::WrongProof { backend: "spy".into(), key })
            }
            _ => self.inner.prove(keys, present, stop),
        }
    }

    fn counts(&self) -> Option<CounterSnapshot> {
        None
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        self.inner.disk_bytes()
    }

    fn ethereum_root(&self) -> Option<alloy_primitives::B256> {
        match self.fault {
            Some(SpyFault::OtherRoot) => Some(alloy_primitives::B256::repeat_byte(1)),
            _ => self.inner.ethereum_root(),
        }
    }
}

fn with_spy(fault: Option<SpyFault>) -> (Vec<Box<dyn StoreFactory>>, Rc<Cell<u32>>) {
    let loads = Rc::new(Cell::new(0));
    let inner = BackendFactory::new(Arc::new(Mpt::new()));
    let mut entrants = entrants();
    entrants.push(Box::new(SpyFactory { inner, loads: loads.clone(), fault }));
    (entrants, loads)
}

/// The ways in which a store without a root may return wrong values.
const WRONG_VALUES: [fn(&StateValue) -> StateValue; 4] = [
    |_| StateValue::from_static(b"other"),
    |value| value.iter().enumerate().map(|(n, byte)| byte ^ u8::from(n == 8)).collect(),
    |value| value.iter().enumerate().map(|(n, byte)| byte ^ u8::from(n == 31)).collect(),
    // Nine bytes of it, of which eight were once compared.
    |value| value.slice(..9),
];

#[test]
fn contender_that_stores_other_values_is_named_also_alone() {
    // Few keys, so that wrong values are read again. New keys are only read at the end.
    for (keys, place) in
        [(InitialKeys::Preloaded(60), "warm-up, commit"), (InitialKeys::Fresh, "at the end")]
    {
        let workload = workload(keys, KeyLayout::OneContract);
        for (n, wrong) in WRONG_VALUES.into_iter().enumerate() {
            let spy = || {
                let inner = BackendFactory::new(Arc::new(Raw));
                let spy = SpyFactory {
                    inner,
                    loads: Rc::default(),
                    fault: Some(SpyFault::Stores(wrong)),
                };
                Box::new(spy) as Box<dyn StoreFactory>
            };
            let beside = vec![Box::new(BackendFactory::new(Arc::new(Raw))) as _, spy()];
            for entrants in [vec![spy()], beside] {
                let raced = run(&workload, &entrants, &StateCache::none());
                let Err(BenchError::WrongReads { backend, place: found }) = raced else {
                    panic!("fault {n}, {} of them: {:?}", entrants.len(), raced.err());
                };
                assert!(backend == "spy" && found.contains(place), "{backend}: {found}");
            }
        }
    }
}

/// Values of up to eight bytes were once all the same.
#[test]
fn contender_that_gives_one_short_value_for_another_is_named() {
    let lone = |fault| {
        let inner = BackendFactory::new(Arc::new(Raw));
        vec![Box::new(SpyFactory { inner, loads: Rc::default(), fault }) as Box<dyn StoreFactory>]
    };
    let Some(trace) = common::real_trace() else { return };
    let all = trace.figures().reads;
    let keys = InitialKeys::Real(Arc::new(trace));
    // Forward and half of the way backward, where written values are read.
    let workload =
        StoreWorkload { keys, pairs: all + all / 2, warmup: 0, slices: 3, ..Default::default() };
    run(&workload, &lone(None), &StateCache::none()).unwrap();
    let wrong: fn(&StateValue) -> StateValue = |value| match value.len() {
        1 => StateValue::from(vec![if value[0] == 1 { 2 } else { 1 }]),
        _ => value.clone(),
    };
    let error = run(&workload, &lone(Some(SpyFault::Stores(wrong))), &StateCache::none());
    assert!(matches!(error, Err(BenchError::WrongReads { .. })), "{:?}", error.err());
}

#[test]
fn contender_with_another_root_is_named() {
    let workload = workload(InitialKeys::Preloaded(60), KeyLayout::OneContract);
    let (entrants, _) = with_spy(Some(SpyFault::OtherRoot));
    let error = run(&workload, &entrants, &StateCache::none()).unwrap_err();
    assert!(matches!(&error, BenchError::RootsDiffer { a, b, .. } if a == "mpt" && b == "spy"));
}

#[test]
fn error_at_the_end_costs_no_slices() {
    let workload = workload(InitialKeys::Preloaded(500), KeyLayout::OneContract);
    let raced = |fault| {
        let (entrants, _) = with_spy(Some(fault));
        let raced = run_to_its_end(&workload, &entrants, &StateCache::none()).unwrap();
        assert!(raced.outcomes.iter().all(|outcome| outcome.slices_done() == 4));
        raced
    };
    let RaceResult { outcomes, ended, .. } = raced(SpyFault::FailsToFlush);
    assert!(matches!(ended, Err(BenchError::Peer { action: "flushing", .. })), "{ended:?}");
    // Two of the three have flushed, but their rates would not compare with the third.
    assert!(outcomes.iter().all(|outcome| outcome.flush.is_none()));
    let RaceResult { outcomes, ended, .. } = raced(SpyFault::WrongProof);
    assert!(matches!(ended, Err(BenchError::WrongProof { .. })), "{ended:?}");
    assert!(outcomes.iter().all(|outcome| outcome.flush.is_some()));
    // Of present keys, of absent keys, and of the keys of commits.
    assert_eq!(outcomes[1].figures.proofs.len(), 3);
}

#[test]
fn proofs_stop_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let workload = workload(InitialKeys::Preloaded(500), KeyLayout::OneContract);
    let entrant = BackendFactory::new(Arc::new(Mpt::new()));
    let loads = Rc::default();
    // Fills the folder.
    let spy = SpyFactory { inner: entrant.clone(), loads, fault: None };
    let cache = StateCache::at(folder.path().to_owned());
    run(&workload, &[Box::new(spy)], &cache).unwrap();
    let state = std::fs::read_dir(folder.path().join("states")).unwrap().next().unwrap().unwrap();
    let terms = RaceTerms {
        sync: SyncMode::NoSync,
        cache_bytes: 1 << 20,
        retention: 4,
        read_threads: 16,
        memory: MemoryTerms::FREE,
    };
    let mut open = entrant.open(&state.path(), &terms, u64::MAX).unwrap();
    let [present, _] = workload.keys_to_prove(10);
    let stop = AtomicBool::new(false);
    assert_eq!(open.prove(&present, true, &stop).unwrap().unwrap().count(), 10);
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(open.prove(&present, true, &stop), Err(BenchError::Stopped)));
}

#[test]
fn prepared_states_are_kept_by_all_they_depend_on() {
    let folder = tempfile::tempdir().unwrap();
    let cache = StateCache::at(folder.path().to_owned());
    let (entrants, loads) = with_spy(None);
    let workload = workload(InitialKeys::Preloaded(500), KeyLayout::OneContract);
    let first = run(&workload, &entrants, &cache).unwrap();
    let second = run(&workload, &entrants, &cache).unwrap();
    assert_eq!(loads.get(), 1);
    assert_eq!(first[1].figures.ethereum_root, second[1].figures.ethereum_root);
    let others = [
        StoreWorkload { keys: InitialKeys::Preloaded(501), ..workload.clone() },
        StoreWorkload { seed: 4, ..workload.clone() },
        StoreWorkload { layout: KeyLayout::Accounts, ..workload.clone() },
    ];
    for (n, other) in (2..).zip(&others) {
        run(other, &entrants, &cache).unwrap();
        assert_eq!(loads.get(), n, "{other:?}");
    }
    // Parameters of the measurement do not affect the prepared state.
    let measured = StoreWorkload {
        pairs: 100,
        commit_every: 10,
        warmup: 0,
        reads: 0.5,
        choice: KeyDistribution::Zipf,
        ..workload
    };
    run(&measured, &entrants, &cache).unwrap();
    assert_eq!(loads.get(), 4);
}

#[test]
fn reads_and_hot_keys_leave_the_state_of_a_plain_loop() {
    for (reads, choice) in [
        (0.5, KeyDistribution::Uniform),
        (0.95, KeyDistribution::Zipf),
        (1.0, KeyDistribution::Uniform),
    ] {
        let workload = StoreWorkload {
            reads,
            choice,
            ..workload(InitialKeys::Preloaded(2000), KeyLayout::OneContract)
        };
        let outcomes = run(&workload, &entrants(), &StateCache::none()).unwrap();
        let [raw, mpt] = &outcomes[..] else { panic!("two outcomes") };
        assert_eq!(
            mpt.figures.ethereum_root,
            Some(root_by_a_plain_loop(&workload)),
            "{workload:?}"
        );
        let (reads_done, writes_done) = raw.keys();
        assert_eq!(reads_done, 450);
        let counts = raw.counts().unwrap();
        assert_eq!(counts.reads, 450, "{counts:?}");
        assert!(counts.writes <= writes_done, "{counts:?}");
        assert_eq!(writes_done == 0, reads == 1.0);
        assert_eq!(raw.per_write(|counts| counts.writes).is_none(), reads == 1.0);
    }
}

#[test]
fn real_blocks_leave_equal_roots_and_the_state_of_a_plain_loop() {
    let Some(trace) = common::real_trace() else { return };
    let figures = trace.figures();
    // 68 bundles, of which some blocks come twice, and 23 neighbours; thousands of keys.
    assert!(figures.blocks > 75, "{figures:?}");
    assert!(figures.reads > 40_000 && figures.writes > 15_000, "{figures:?}");
    assert!(figures.deletes > 500 && figures.keys > 30_000, "{figures:?}");
    let all = figures.reads;
    let workload = StoreWorkload {
        keys: InitialKeys::Real(Arc::new(trace)),
        // All blocks forward, and half of them backward.
        pairs: all + all / 2 - 3000,
        warmup: 3000,
        slices: 5,
        ..Default::default()
    };
    let mut entrants = entrants();
    entrants.push(Box::new(BackendFactory::new(Arc::new(MptArchive::new(TrieHash::Keccak256)))));
    let outcomes = run(&workload, &entrants, &StateCache::none()).unwrap();
    let [raw, mpt, archive] = &outcomes[..] else { panic!("three outcomes") };
    let expected = root_by_a_plain_loop(&workload);
    assert_eq!(
        (mpt.figures.ethereum_root, archive.figures.ethereum_root),
        (Some(expected), Some(expected))
    );
    for outcome in [raw, mpt, archive] {
        let (reads, writes) = outcome.keys();
        assert!(reads >= workload.pairs && writes < reads);
        assert_eq!(outcome.latency().count(), workload.commits());
    }
    let (commits, single): (Vec<_>, Vec<_>) =
        mpt.figures.proofs.iter().partition(|proofs| proofs.keys.is_some());
    assert_eq!(single.into_iter().map(ProofFigures::count).sum::<usize>(), 6);
    assert_eq!(commits.into_iter().map(ProofFigures::count).sum::<usize>(), 3);
}

#[test]
fn missing_real_blocks_are_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let spec = retrie_chainspec::ChainSpec::mainnet();
    let options = BundleReplayOptions { spec, witness_opener: None, witnesses: false };
    let corpus = BlockCorpus::at(folder.path().join("mainnet"));
    let stop = AtomicBool::new(false);
    let error = corpus.trace(&options, StatePadding::default(), &stop).unwrap_err().to_string();
    assert!(error.contains("RETRIE_DATA") && error.contains("witness"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

/// A race that is stopped at its `at`th report.
fn stopped(at: u64, cache: &StateCache) -> Result<RaceResult<StoreFigures>, BenchError> {
    let workload = workload(InitialKeys::Preloaded(500), KeyLayout::OneContract);
    let terms = RaceTerms {
        sync: SyncMode::NoSync,
        cache_bytes: 1 << 20,
        retention: 4,
        read_threads: 16,
        memory: MemoryTerms::FREE,
    };
    let stop = AtomicBool::new(at == 0);
    let (terms, workload) = (&terms, &workload);
    let race = StoreRace {
        workload,
        terms,
        cache,
        proofs: 3,
        proof_depths: &[],
        memory_limit: None,
        stop: &stop,
    };
    let mut reports = 0;
    race.run(&entrants(), &mut |progress| {
        if let RaceStep::Racing { .. } = progress {
            reports += 1;
            stop.store(reports >= at, Ordering::Relaxed);
        }
    })
}

#[test]
fn race_stops_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let cache = StateCache::at(folder.path().to_owned());
    let error = stopped(0, &cache).unwrap_err();
    assert!(matches!(error, BenchError::Stopped), "{error}");
    assert!(!folder.path().join("states").exists(), "half a state was kept");
}

#[test]
fn stopped_race_gives_the_slices_that_all_have_run() {
    let cache = StateCache::none();
    let error = stopped(1, &cache).unwrap_err();
    assert!(matches!(error, BenchError::Stopped), "no slice was run: {error}");
    let RaceResult { outcomes, ended, .. } = stopped(3, &cache).unwrap();
    assert!(matches!(ended, Err(BenchError::Stopped)), "{ended:?}");
    for outcome in outcomes {
        let (reads, _) = outcome.keys();
        assert_eq!((outcome.slices_done(), reads, outcome.latency().count()), (2, 200, 4));
        assert_eq!((outcome.figures.ethereum_root, outcome.figures.proofs.len()), (None, 0));
        assert_eq!(outcome.flush, None);
        assert!(outcome.median_rate() > 0.0 && outcome.disk_bytes > 0);
        assert!(outcome.counts().is_some_and(|counts| counts.reads >= 200));
    }
}

#[test]
fn race_runs_under_a_memory_cap_or_says_why_not() {
    let workload = workload(InitialKeys::Preloaded(500), KeyLayout::OneContract);
    let terms = RaceTerms {
        sync: SyncMode::NoSync,
        cache_bytes: 1 << 20,
        retention: 4,
        read_threads: 16,
        memory: MemoryTerms::FREE,
    };
    let (cache, stop) = (StateCache::none(), AtomicBool::new(false));
    let run = |entrants: &[Box<dyn StoreFactory>], limit| {
        let (memory_limit, stop) = (Some(limit), &stop);
        let race = StoreRace {
            workload: &workload,
            terms: &terms,
            cache: &cache,
            proofs: 0,
            proof_depths: &[],
            memory_limit,
            stop,
        };
        race.run(entrants, &mut |_| ())
    };
    let error = run(&entrants(), 16 << 20).unwrap_err().to_string();
    assert!(error.contains("a memory limit of 16 MiB is too small"), "{error}");
    // Its own caches, 1 MiB for rows, and 32 MiB that every store needs.
    let large = BackendFactory::new(Arc::new(Mpt::new()));
    let error = run(&[Box::new(large)], 150 << 20).unwrap_err().to_string();
    assert!(error.contains("161 MiB are needed"), "{error}");
    if let Some(why) = MemoryCap::why_no_cgroup() {
        // A balloon would take memory from all processes of the machine. The message goes to stderr
        // directly, because the harness hides the output of passing tests.
        writeln!(std::io::stderr(), "skipped: no cgroup of memory can be made here: {why}")
            .unwrap();
        return;
    }
    let group = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let home = group();
    let raced = run(&entrants(), 1 << 30).unwrap();
    assert!(raced.ended.is_ok(), "{:?}", raced.ended);
    let cap = SharedMemoryCap { limit: 1 << 30, means: "cgroup", shared_by: 2 };
    for outcome in &raced.outcomes {
        assert_eq!(outcome.memory_cap, Some(cap));
        assert_eq!(outcome.result(&workload, &terms).params["memory_limit_shared_by"], 2);
    }
    // The next race loads its state outside the group.
    assert_eq!(group(), home);
    assert_eq!(raced.outcomes[1].figures.ethereum_root, Some(root_by_a_plain_loop(&workload)));
}
