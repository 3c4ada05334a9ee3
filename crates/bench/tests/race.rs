//! Races between the real backends, on small states.

use retrie_bench::{
    BenchError,
    cache::StateCache,
    state::{
        BackendEntrant, Contender, Entrant, Entries, Keys, Layout, Outcome, Pair, Race, Reads,
        Terms, Workload,
    },
};
use retrie_db::SyncMode;
use retrie_state::{BlockRef, Counts, KvStore, MemoryStore, StateStore, StoreOptions};
use retrie_storage_mpt::Mpt;
use retrie_storage_raw::Raw;
use std::{
    cell::Cell,
    collections::BTreeMap,
    path::Path,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
};

fn workload(keys: Keys, layout: Layout) -> Workload {
    Workload { keys, pairs: 450, commit_every: 50, warmup: 120, slices: 4, layout, seed: 3 }
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
    // So little memory that generations fill and fold within the race.
    let terms = Terms { sync: SyncMode::NoSync, cache_bytes: 64 << 10, retention: 4 };
    let stop = AtomicBool::new(false);
    Race { workload, terms: &terms, cache, proofs: 3, stop: &stop }.run(entrants, &mut |_| ())
}

/// Root of what the workload leaves, by a plain map and a bulk load.
fn root_by_a_plain_loop(workload: &Workload) -> alloy_primitives::B256 {
    let base = workload.base();
    let keys = base.sorted_keys();
    let mut state: BTreeMap<_, _> =
        keys.iter().map(|(key, n)| (*key, base.value(key, *n))).collect();
    let mut stream = workload.stream();
    for pairs in [workload.warmup, workload.pairs] {
        for Pair { key, next } in stream.take(pairs).into_iter().flatten() {
            state.insert(key, next);
        }
    }
    let kv = Arc::new(MemoryStore::new());
    let store =
        StateStore::open(Arc::new(Mpt::new()), kv.clone(), StoreOptions::default()).unwrap();
    let mut txn = kv.begin_write().unwrap();
    let mut entries = state.into_iter().map(Ok);
    let (root, after) = store.bulk_load(BlockRef::default(), &mut entries, &mut *txn).unwrap();
    txn.commit().unwrap();
    after.run().unwrap();
    root
}

#[test]
fn every_variant_leaves_the_state_of_a_plain_loop() {
    for keys in [Keys::Preloaded(2000), Keys::Fresh] {
        for layout in [Layout::OneContract, Layout::Accounts] {
            let workload = workload(keys, layout);
            let outcomes = run(&workload, &entrants(), &StateCache::none()).unwrap();
            let [raw, mpt] = &outcomes[..] else { panic!("two outcomes") };
            assert_eq!(mpt.ethereum_root, Some(root_by_a_plain_loop(&workload)), "{workload:?}");
            assert_eq!(raw.ethereum_root, None);
            for outcome in &outcomes {
                assert_eq!((outcome.pairs, outcome.ops()), (450, 900));
                assert_eq!((outcome.slice_rates.len(), outcome.latency.count()), (4, 9));
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
            assert!((reads - mpt.per_pair(|counts| counts.reads).unwrap()).abs() < 1e-9);
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
    LosesAWrite,
    OtherRoot,
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

    fn open(&self, folder: &Path, terms: &Terms) -> Result<Box<dyn Contender>, BenchError> {
        Ok(Box::new(SpyRace { inner: self.inner.open(folder, terms)?, fault: self.fault }))
    }
}

struct SpyRace {
    inner: Box<dyn Contender>,
    fault: Option<Fault>,
}

impl Contender for SpyRace {
    fn commit(&mut self, block: &[Pair]) -> Result<Reads, BenchError> {
        match self.fault {
            Some(Fault::LosesAWrite) => {
                let mut block = block.to_vec();
                block[0].next = retrie_state::Value::from_static(b"other");
                self.inner.commit(&block)
            }
            _ => self.inner.commit(block),
        }
    }

    fn settle(&mut self) -> Result<(), BenchError> {
        self.inner.settle()
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.inner.flush()
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

#[test]
fn contender_that_reads_other_values_or_has_another_root_is_named() {
    // Few keys, so that what is lost is read again.
    let workload = workload(Keys::Preloaded(60), Layout::OneContract);
    let (entrants, _) = with_spy(Some(Fault::LosesAWrite));
    let error = run(&workload, &entrants, &StateCache::none()).unwrap_err();
    assert!(matches!(&error, BenchError::WrongReads { .. }), "{error}");
    let (entrants, _) = with_spy(Some(Fault::OtherRoot));
    let error = run(&workload, &entrants, &StateCache::none()).unwrap_err();
    assert!(matches!(&error, BenchError::RootsDiffer { a, b, .. } if a == "mpt" && b == "spy"));
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
        Workload { keys: Keys::Preloaded(501), ..workload },
        Workload { seed: 4, ..workload },
        Workload { layout: Layout::Accounts, ..workload },
    ];
    for (n, other) in (2..).zip(&others) {
        run(other, &entrants, &cache).unwrap();
        assert_eq!(loads.get(), n, "{other:?}");
    }
    // What is measured is not part of it.
    run(&Workload { pairs: 100, commit_every: 10, warmup: 0, ..workload }, &entrants, &cache)
        .unwrap();
    assert_eq!(loads.get(), 4);
}

#[test]
fn race_stops_when_asked() {
    let workload = workload(Keys::Preloaded(500), Layout::OneContract);
    let terms = Terms { sync: SyncMode::NoSync, cache_bytes: 1 << 20, retention: 4 };
    let folder = tempfile::tempdir().unwrap();
    let cache = StateCache::at(folder.path().to_owned());
    let stop = AtomicBool::new(true);
    let race = Race { workload: &workload, terms: &terms, cache: &cache, proofs: 3, stop: &stop };
    let error = race.run(&entrants(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, BenchError::Stopped), "{error}");
    assert!(!folder.path().join("states").exists(), "half a state was kept");
}
