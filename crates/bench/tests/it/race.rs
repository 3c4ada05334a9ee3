//! Races between the real backends, on small states.

use crate::common;

use common::root_by_a_plain_loop;
use retrie_bench::{
    BenchError,
    cache::StateCache,
    memory::MemoryCap,
    state::{
        BackendEntrant, Choice, Contender, Corpus, Entrant, Entries, Keys, Layout, Op, Outcome,
        Progress, ProofFigures, Race, Raced, Reads, Terms, Workload,
    },
};
use retrie_db::SyncMode;
use retrie_pipeline::replay::{BundleReplayOptions, Padding};
use retrie_state::{Counts, StateKey, Value};
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

fn workload(keys: Keys, layout: Layout) -> Workload {
    Workload {
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

fn entrants() -> Vec<Box<dyn Entrant>> {
    let mpt = BackendEntrant::new(Arc::new(Mpt::new()));
    vec![Box::new(BackendEntrant::new(Arc::new(Raw))), Box::new(mpt)]
}

fn run(
    workload: &Workload,
    entrants: &[Box<dyn Entrant>],
    cache: &StateCache,
) -> Result<Vec<Outcome>, BenchError> {
    let Raced { outcomes, ended, .. } = run_to_its_end(workload, entrants, cache)?;
    ended.map(|()| outcomes)
}

fn run_to_its_end(
    workload: &Workload,
    entrants: &[Box<dyn Entrant>],
    cache: &StateCache,
) -> Result<Raced, BenchError> {
    run_with(workload, entrants, cache, 0)
}

fn run_with(
    workload: &Workload,
    entrants: &[Box<dyn Entrant>],
    cache: &StateCache,
    read_threads: usize,
) -> Result<Raced, BenchError> {
    // So little memory that generations fill and fold within the race.
    let terms = Terms { sync: SyncMode::NoSync, cache_bytes: 64 << 10, retention: 4, read_threads };
    let stop = AtomicBool::new(false);
    let race = Race {
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

/// What is read ahead is among the rows that are counted, and nothing else tells of it.
#[test]
fn keys_that_are_told_before_change_nothing_but_how_often_rows_are_read() {
    let workload = workload(Keys::Preloaded(2000), Layout::Accounts);
    let run = |threads| run_with(&workload, &entrants(), &StateCache::none(), threads).unwrap();
    let [without, with] = [0, 4].map(run);
    for (without, with) in without.outcomes.iter().zip(&with.outcomes) {
        assert_eq!(without.ethereum_root, with.ethereum_root);
        assert_eq!((without.reads, without.writes), (with.reads, with.writes));
        let [without, with] = [without, with].map(|outcome| outcome.counts.clone().unwrap());
        assert_eq!(without.writes, with.writes);
        // A commit may be over before anybody has read anything ahead.
        assert!(without.reads <= with.reads, "{} and {} reads", without.reads, with.reads);
    }
}

#[test]
fn every_variant_leaves_the_state_of_a_plain_loop() {
    for keys in [Keys::Preloaded(2000), Keys::Fresh] {
        for layout in [Layout::OneContract, Layout::Accounts] {
            let workload = workload(keys.clone(), layout);
            let outcomes = run(&workload, &entrants(), &StateCache::none()).unwrap();
            let [raw, mpt] = &outcomes[..] else { panic!("two outcomes") };
            assert_eq!(mpt.ethereum_root, Some(root_by_a_plain_loop(&workload)), "{workload:?}");
            assert_eq!(raw.ethereum_root, None);
            for outcome in &outcomes {
                assert_eq!((outcome.reads, outcome.writes, outcome.ops()), (450, 450, 900));
                assert_eq!((outcome.series.len(), outcome.latency.count()), (4, 9));
                let ops: Vec<_> = outcome.series.iter().map(|slice| slice.ops).collect();
                assert_eq!(ops, [200, 400, 600, 900]);
                assert!(outcome.series.iter().all(|slice| slice.disk_bytes > Some(0)));
                let spent = outcome.breakdown.unwrap();
                // The time of reads is an estimate: it may be all that there is.
                assert!(spent.authentication >= 0.0 && spent.storage_io > 0.0, "{spent:?}");
                let sum = spent.authentication + spent.storage_io + spent.other;
                assert!((sum - outcome.total().as_secs_f64()).abs() < 1e-6, "{spent:?}");
                let counts = outcome.counts.as_ref().unwrap();
                assert!(counts.reads >= 450 && counts.folded_rows > 0, "{counts:?}");
                assert!(outcome.disk_bytes > 0 && outcome.peak_rss_bytes > 0);
                assert!(outcome.sustained_rate() > 0.0 && outcome.total() >= outcome.slices);
            }
            // One row a key, read once and written once, but for keys drawn twice in a commit.
            let counts = raw.counts.as_ref().unwrap();
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

/// A backend that counts its loads, and may lose a write or forget its root.
struct Spy {
    inner: BackendEntrant,
    loads: Rc<Cell<u32>>,
    fault: Option<Fault>,
}

#[derive(Clone, Copy)]
enum Fault {
    /// Stores something else.
    Stores(fn(&Value) -> Value),
    OtherRoot,
    /// When the race ends.
    FailsToFlush,
    WrongProof,
}

impl Entrant for Spy {
    fn name(&self) -> &str {
        "spy"
    }

    fn hash(&self) -> &str {
        self.inner.hash()
    }

    fn format(&self) -> String {
        "spy".into()
    }

    fn load(&self, folder: &Path, entries: &mut Entries<'_>) -> Result<(), BenchError> {
        self.loads.set(self.loads.get() + 1);
        self.inner.load(folder, entries)
    }

    fn open(
        &self,
        folder: &Path,
        terms: &Terms,
        page_cache: u64,
    ) -> Result<Box<dyn Contender>, BenchError> {
        assert_eq!(page_cache, u64::MAX, "memory is not capped");
        let inner = self.inner.open(folder, terms, page_cache)?;
        Ok(Box::new(SpyRace { inner, fault: self.fault, flushes: 0 }))
    }
}

struct SpyRace {
    inner: Box<dyn Contender>,
    fault: Option<Fault>,
    flushes: u32,
}

impl Contender for SpyRace {
    fn commit(&mut self, block: &[Op]) -> Result<Reads, BenchError> {
        match self.fault {
            Some(Fault::Stores(other)) => {
                let stored = block.iter().map(|op| match op {
                    Op::Write(key, value) => Op::Write(*key, other(value)),
                    op => op.clone(),
                });
                self.inner.commit(&stored.collect::<Vec<_>>())
            }
            _ => self.inner.commit(block),
        }
    }

    fn settle(&mut self) -> Result<(), BenchError> {
        self.inner.settle()
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.flushes += 1;
        match self.fault {
            Some(Fault::FailsToFlush) if self.flushes == 2 => {
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
            Some(Fault::WrongProof) => {
                let key = keys[0].to_string();
                Err(BenchError::WrongProof { backend: "spy".into(), key })
            }
            _ => self.inner.prove(keys, present, stop),
        }
    }

    fn counts(&self) -> Option<Counts> {
        None
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        self.inner.disk_bytes()
    }

    fn ethereum_root(&self) -> Option<alloy_primitives::B256> {
        match self.fault {
            Some(Fault::OtherRoot) => Some(alloy_primitives::B256::repeat_byte(1)),
            _ => self.inner.ethereum_root(),
        }
    }
}

fn with_spy(fault: Option<Fault>) -> (Vec<Box<dyn Entrant>>, Rc<Cell<u32>>) {
    let loads = Rc::new(Cell::new(0));
    let inner = BackendEntrant::new(Arc::new(Mpt::new()));
    let mut entrants = entrants();
    entrants.push(Box::new(Spy { inner, loads: loads.clone(), fault }));
    (entrants, loads)
}

/// The ways in which a store without a root may get values wrong.
const WRONG_VALUES: [fn(&Value) -> Value; 4] = [
    |_| Value::from_static(b"other"),
    |value| value.iter().enumerate().map(|(n, byte)| byte ^ u8::from(n == 8)).collect(),
    |value| value.iter().enumerate().map(|(n, byte)| byte ^ u8::from(n == 31)).collect(),
    // Nine bytes of it, of which eight were once compared.
    |value| value.slice(..9),
];

#[test]
fn contender_that_stores_other_values_is_named_also_alone() {
    // Few keys, so that what is wrong is read again. New keys are only read when all is over.
    for (keys, place) in [(Keys::Preloaded(60), "warm-up, commit"), (Keys::Fresh, "at the end")] {
        let workload = workload(keys, Layout::OneContract);
        for (n, wrong) in WRONG_VALUES.into_iter().enumerate() {
            let spy = || {
                let inner = BackendEntrant::new(Arc::new(Raw));
                let spy = Spy { inner, loads: Rc::default(), fault: Some(Fault::Stores(wrong)) };
                Box::new(spy) as Box<dyn Entrant>
            };
            let beside = vec![Box::new(BackendEntrant::new(Arc::new(Raw))) as _, spy()];
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
        let inner = BackendEntrant::new(Arc::new(Raw));
        vec![Box::new(Spy { inner, loads: Rc::default(), fault }) as Box<dyn Entrant>]
    };
    let Some(trace) = common::real_trace() else { return };
    let all = trace.figures().reads;
    let keys = Keys::Real(Arc::new(trace));
    // Forth and half of the way back, on which what was written is read.
    let workload =
        Workload { keys, pairs: all + all / 2, warmup: 0, slices: 3, ..Default::default() };
    run(&workload, &lone(None), &StateCache::none()).unwrap();
    let wrong: fn(&Value) -> Value = |value| match value.len() {
        1 => Value::from(vec![if value[0] == 1 { 2 } else { 1 }]),
        _ => value.clone(),
    };
    let error = run(&workload, &lone(Some(Fault::Stores(wrong))), &StateCache::none());
    assert!(matches!(error, Err(BenchError::WrongReads { .. })), "{:?}", error.err());
}

#[test]
fn contender_with_another_root_is_named() {
    let workload = workload(Keys::Preloaded(60), Layout::OneContract);
    let (entrants, _) = with_spy(Some(Fault::OtherRoot));
    let error = run(&workload, &entrants, &StateCache::none()).unwrap_err();
    assert!(matches!(&error, BenchError::RootsDiffer { a, b, .. } if a == "mpt" && b == "spy"));
}

#[test]
fn error_at_the_end_costs_no_slices() {
    let workload = workload(Keys::Preloaded(500), Layout::OneContract);
    let raced = |fault| {
        let (entrants, _) = with_spy(Some(fault));
        let raced = run_to_its_end(&workload, &entrants, &StateCache::none()).unwrap();
        assert!(raced.outcomes.iter().all(|outcome| outcome.series.len() == 4));
        raced
    };
    let Raced { outcomes, ended, .. } = raced(Fault::FailsToFlush);
    assert!(matches!(ended, Err(BenchError::Peer { action: "flushing", .. })), "{ended:?}");
    // Two of the three have done it, which could not be held against the third.
    assert!(outcomes.iter().all(|outcome| outcome.flush.is_none()));
    let Raced { outcomes, ended, .. } = raced(Fault::WrongProof);
    assert!(matches!(ended, Err(BenchError::WrongProof { .. })), "{ended:?}");
    assert!(outcomes.iter().all(|outcome| outcome.flush.is_some()));
    assert_eq!(outcomes[1].proofs.len(), 2);
}

#[test]
fn proofs_stop_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let workload = workload(Keys::Preloaded(500), Layout::OneContract);
    let entrant = BackendEntrant::new(Arc::new(Mpt::new()));
    let loads = Rc::default();
    // Fills the folder.
    let spy = Spy { inner: entrant.clone(), loads, fault: None };
    let cache = StateCache::at(folder.path().to_owned());
    run(&workload, &[Box::new(spy)], &cache).unwrap();
    let state = std::fs::read_dir(folder.path().join("states")).unwrap().next().unwrap().unwrap();
    let terms =
        Terms { sync: SyncMode::NoSync, cache_bytes: 1 << 20, retention: 4, read_threads: 16 };
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
    let workload = workload(Keys::Preloaded(500), Layout::OneContract);
    let first = run(&workload, &entrants, &cache).unwrap();
    let second = run(&workload, &entrants, &cache).unwrap();
    assert_eq!(loads.get(), 1);
    assert_eq!(first[1].ethereum_root, second[1].ethereum_root);
    let others = [
        Workload { keys: Keys::Preloaded(501), ..workload.clone() },
        Workload { seed: 4, ..workload.clone() },
        Workload { layout: Layout::Accounts, ..workload.clone() },
    ];
    for (n, other) in (2..).zip(&others) {
        run(other, &entrants, &cache).unwrap();
        assert_eq!(loads.get(), n, "{other:?}");
    }
    // What is measured is not part of it.
    let measured = Workload {
        pairs: 100,
        commit_every: 10,
        warmup: 0,
        reads: 0.5,
        choice: Choice::Zipf,
        ..workload
    };
    run(&measured, &entrants, &cache).unwrap();
    assert_eq!(loads.get(), 4);
}

#[test]
fn reads_and_hot_keys_leave_the_state_of_a_plain_loop() {
    for (reads, choice) in [(0.5, Choice::Uniform), (0.95, Choice::Zipf), (1.0, Choice::Uniform)] {
        let workload =
            Workload { reads, choice, ..workload(Keys::Preloaded(2000), Layout::OneContract) };
        let outcomes = run(&workload, &entrants(), &StateCache::none()).unwrap();
        let [raw, mpt] = &outcomes[..] else { panic!("two outcomes") };
        assert_eq!(mpt.ethereum_root, Some(root_by_a_plain_loop(&workload)), "{workload:?}");
        assert_eq!(raw.reads, 450);
        let counts = raw.counts.as_ref().unwrap();
        assert_eq!(counts.reads, 450, "{counts:?}");
        assert!(counts.writes <= raw.writes, "{counts:?}");
        assert_eq!(raw.writes == 0, reads == 1.0);
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
    let workload = Workload {
        keys: Keys::Real(Arc::new(trace)),
        // All blocks forth, and half of them back.
        pairs: all + all / 2 - 3000,
        warmup: 3000,
        slices: 5,
        ..Default::default()
    };
    let mut entrants = entrants();
    entrants.push(Box::new(BackendEntrant::new(Arc::new(MptArchive::new(TrieHash::Keccak256)))));
    let outcomes = run(&workload, &entrants, &StateCache::none()).unwrap();
    let [raw, mpt, archive] = &outcomes[..] else { panic!("three outcomes") };
    let expected = root_by_a_plain_loop(&workload);
    assert_eq!((mpt.ethereum_root, archive.ethereum_root), (Some(expected), Some(expected)));
    for outcome in [raw, mpt, archive] {
        assert!(outcome.reads >= workload.pairs && outcome.writes < outcome.reads);
        assert_eq!(outcome.latency.count(), workload.commits());
    }
    assert_eq!(mpt.proofs.iter().map(ProofFigures::count).sum::<usize>(), 6);
}

#[test]
fn missing_real_blocks_are_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let spec = retrie_chainspec::ChainSpec::mainnet();
    let options = BundleReplayOptions { spec, witness_opener: None };
    let corpus = Corpus::at(folder.path().join("mainnet"));
    let stop = AtomicBool::new(false);
    let error = corpus.trace(&options, Padding::default(), &stop).unwrap_err().to_string();
    assert!(error.contains("RETRIE_DATA") && error.contains("witness"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

/// A race that is told to stop when it reports for the `at`th time.
fn stopped(at: u64, cache: &StateCache) -> Result<Raced, BenchError> {
    let workload = workload(Keys::Preloaded(500), Layout::OneContract);
    let terms =
        Terms { sync: SyncMode::NoSync, cache_bytes: 1 << 20, retention: 4, read_threads: 16 };
    let stop = AtomicBool::new(at == 0);
    let (terms, workload) = (&terms, &workload);
    let race = Race {
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
        if let Progress::Racing { .. } = progress {
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
    let Raced { outcomes, ended, .. } = stopped(3, &cache).unwrap();
    assert!(matches!(ended, Err(BenchError::Stopped)), "{ended:?}");
    for outcome in outcomes {
        assert_eq!((outcome.series.len(), outcome.reads, outcome.latency.count()), (2, 200, 4));
        assert_eq!((outcome.ethereum_root, outcome.proofs.len()), (None, 0));
        assert_eq!(outcome.flush, None);
        assert!(outcome.median_rate() > 0.0 && outcome.disk_bytes > 0);
        assert!(outcome.counts.is_some_and(|counts| counts.reads >= 200));
    }
}

#[test]
fn race_runs_under_a_memory_cap_or_says_why_not() {
    let workload = workload(Keys::Preloaded(500), Layout::OneContract);
    let terms =
        Terms { sync: SyncMode::NoSync, cache_bytes: 1 << 20, retention: 4, read_threads: 16 };
    let (cache, stop) = (StateCache::none(), AtomicBool::new(false));
    let run = |entrants: &[Box<dyn Entrant>], limit| {
        let (memory_limit, stop) = (Some(limit), &stop);
        let race = Race {
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
    let large = BackendEntrant::new(Arc::new(Mpt::new()));
    let error = run(&[Box::new(large)], 150 << 20).unwrap_err().to_string();
    assert!(error.contains("161 MiB are needed"), "{error}");
    if let Some(why) = MemoryCap::why_no_cgroup() {
        // A balloon would take the machine from everybody else. Past the harness, which keeps to itself
        // what tests print that pass.
        writeln!(std::io::stderr(), "skipped: no cgroup of memory can be made here: {why}")
            .unwrap();
        return;
    }
    let group = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let home = group();
    let raced = run(&entrants(), 1 << 30).unwrap();
    assert!(raced.ended.is_ok(), "{:?}", raced.ended);
    assert_eq!(raced.memory, Some((1 << 30, "cgroup", 2)));
    assert_eq!(raced.params(&workload, &terms)["memory_limit_shared_by"], 2);
    // The state of a next race is loaded outside.
    assert_eq!(group(), home);
    assert_eq!(raced.outcomes[1].ethereum_root, Some(root_by_a_plain_loop(&workload)));
}
