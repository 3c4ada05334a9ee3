//! Tests of the framework beyond the test-kit: threads, damaged rows, failing folds, shared stores.

use crate::common;

use alloy_primitives::Bytes;
use common::{commit, hash, hashed::MockHash, propose, revert, slot_key};
use parking_lot::Mutex;
use retrie_state::{
    AnyBackend, KeyRange, RowTable, ScanDirection, StateError, StateKey, StateReader, StateValue,
    StoreError,
};
use retrie_state_store::{
    KvSnapshot, KvStore, KvTxn, MemoryStore, StateId, StateStore, StoreOptions, TableNamespace,
};
use retrie_state_testkit::{TestKit, TestScale, a_key_value_store_matches_a_model, run_all_of};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

const KEYS: u64 = 25;

fn options(retention: u64) -> StoreOptions {
    StoreOptions { retention, fold_bytes: 1, fold_commits: 1, ..StoreOptions::default() }
}

fn open(kv: &MemoryStore, options: StoreOptions) -> Result<StateStore, StateError> {
    common::open(Arc::new(MockHash), kv, None, options)
}

/// Every key set to `n`.
fn all_set_to(n: u64) -> Vec<(StateKey, Option<StateValue>)> {
    let value = Bytes::copy_from_slice(&n.to_be_bytes());
    (0..KEYS).map(|k| (slot_key(k), Some(value.clone()))).collect()
}

#[test]
fn readers_in_other_threads_see_whole_blocks_while_commits_folds_and_reverts_go_on() {
    let kv = MemoryStore::new();
    let store = open(&kv, options(20)).unwrap();
    let proposal = propose(&store, StateId::Tip, hash(0, 0), &all_set_to(0)).unwrap();
    commit(&store, &kv, &[proposal]).unwrap();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    // Blocks on the chain, oldest first: hash and value of all keys.
    let chain = Mutex::new(vec![(hash(0, 0), 0u64)]);

    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, done, chain, reads) = (&store, &done, &chain, &reads);
            scope.spawn(move || {
                let mut n = thread;
                while !done.load(SeqCst) {
                    n += 1;
                    let at = match n % 3 {
                        0 => None,
                        _ => {
                            let chain = chain.lock();
                            let back = n * 7 % chain.len().min(12);
                            Some(chain[chain.len() - 1 - back])
                        }
                    };
                    let reader = match at {
                        None => store.at(StateId::Tip),
                        Some((hash, _)) => store.at(StateId::Block(hash)),
                    };
                    let reader = match reader {
                        Ok(reader) => reader,
                        // The block was reverted or pruned after it was chosen.
                        Err(
                            StateError::UnknownBlock { .. } | StateError::BeyondRetention { .. },
                        ) if at.is_some() => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let first = reader.get(&slot_key(0)).unwrap().unwrap();
                    if let Some((_, value)) = at {
                        assert_eq!(first[..], value.to_be_bytes(), "another block's state");
                    }
                    for _ in 0..2 {
                        for key in 0..KEYS {
                            let value = reader.get(&slot_key(key)).unwrap();
                            assert_eq!(value.as_ref(), Some(&first), "half a block");
                        }
                        for key in 0..5 {
                            let slots = reader.slots_of(slot_key(key).address()).unwrap();
                            assert_eq!(slots.len() as u64, KEYS / 5);
                            assert!(slots.iter().all(|(_, value)| *value == first), "half a block");
                        }
                    }
                    reads.fetch_add(1, SeqCst);
                }
            });
        }
        let start = Instant::now();
        let mut round = 0;
        while start.elapsed() < Duration::from_millis(1500) || reads.load(SeqCst) < 50 {
            assert!(start.elapsed() < Duration::from_secs(60), "readers starve");
            round += 1;
            let number = chain.lock().len() as u64;
            let block = hash(7, number << 32 | round);
            let proposal = propose(&store, StateId::Tip, block, &all_set_to(round)).unwrap();
            commit(&store, &kv, &[proposal]).unwrap();
            chain.lock().push((block, round));
            if round % 17 == 0 {
                let keep = chain.lock().len() - (round % 5) as usize;
                chain.lock().truncate(keep.max(1));
                let to = chain.lock().len() as u64 - 1;
                revert(&store, &kv, to).unwrap();
            }
            if round % 13 == 0 {
                store.flush().unwrap();
            }
        }
        done.store(true, SeqCst);
    });
    let (block, value) = *chain.lock().last().unwrap();
    assert_eq!(store.tip().unwrap().block.hash, block);
    drop(store);
    let store = open(&kv, options(20)).unwrap();
    let reader = store.at(StateId::Tip).unwrap();
    assert_eq!(reader.get(&slot_key(3)).unwrap().unwrap()[..], value.to_be_bytes());
}

/// A store with undo and journal rows: some blocks are in the journal, the others in the tables.
fn used_store() -> MemoryStore {
    let kv = MemoryStore::new();
    let rarely = StoreOptions { fold_commits: 100, ..StoreOptions::default() };
    let store = open(&kv, StoreOptions { retention: 3, ..rarely }).unwrap();
    for number in 0..8 {
        let changes: Vec<_> = all_set_to(number).into_iter().take(4).collect();
        let proposal = propose(&store, StateId::Tip, hash(0, number), &changes).unwrap();
        commit(&store, &kv, &[proposal]).unwrap();
        if number == 4 {
            store.flush().unwrap();
        }
    }
    kv
}

fn table(name: &str) -> RowTable {
    let tables = StateStore::tables(&MockHash);
    tables.into_iter().find(|table| table.name == name).unwrap()
}

/// Opens a copy of `kv` after `change`, and reads what can be read.
fn open_damaged(kv: &MemoryStore, change: impl FnOnce(&mut dyn KvTxn)) -> Result<(), StateError> {
    // The transaction is never committed elsewhere: each copy starts from the same rows.
    let copy = MemoryStore::new();
    let mut txn = copy.begin_write()?;
    let snapshot = kv.snapshot()?;
    for table in StateStore::tables(&MockHash) {
        for (key, value) in
            snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX)?
        {
            txn.put(table, &key, &value)?;
        }
    }
    change(&mut *txn);
    txn.commit()?;
    let store = open(&copy, StoreOptions { retention: 3, ..StoreOptions::default() })?;
    for number in 4..8 {
        store.at(StateId::Block(hash(0, number)))?.get(&slot_key(1))?;
    }
    revert(&store, &copy, 4)
}

#[test]
fn a_flipped_bit_in_journal_undo_or_meta_rows_is_corruption_and_never_a_panic() {
    let kv = used_store();
    open_damaged(&kv, |_| {}).unwrap();
    let mut flips = 0;
    for name in ["Journal", "Undo", "Meta"] {
        let table = table(name);
        let snapshot = kv.snapshot().unwrap();
        let rows = snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
        assert!(rows.len() >= 2, "{name} has rows");
        for (key, value) in rows {
            for bit in 0..value.len() * 8 {
                // All bits of the heads, samples of the rest.
                if bit > 8 * 140 && bit % 11 != 0 {
                    continue;
                }
                let mut damaged = value.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let outcome = open_damaged(&kv, |txn| txn.put(table, &key, &damaged).unwrap());
                let is_corrupt = matches!(outcome, Err(StateError::Corrupt { .. }));
                assert!(is_corrupt, "bit {bit} of a row of {name}: {outcome:?}");
                flips += 1;
            }
            for bit in 0..key.len() * 8 {
                let mut damaged = key.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let outcome = open_damaged(&kv, |txn| {
                    txn.delete(table, &key).unwrap();
                    txn.put(table, &damaged, &value).unwrap();
                });
                let is_corrupt = matches!(outcome, Err(StateError::Corrupt { .. }));
                assert!(is_corrupt, "bit {bit} of a key of {name}: {outcome:?}");
            }
            for damaged in [&value[..value.len() - 1], &[], &[&value[..], &[0]].concat()] {
                let outcome = open_damaged(&kv, |txn| txn.put(table, &key, damaged).unwrap());
                let is_corrupt = matches!(outcome, Err(StateError::Corrupt { .. }));
                assert!(is_corrupt, "length of a row of {name}: {outcome:?}");
            }
            let outcome = open_damaged(&kv, |txn| {
                txn.delete(table, &key).unwrap();
            });
            let is_corrupt = matches!(outcome, Err(StateError::Corrupt { .. }));
            // The oldest undo record may go: that is what pruning does.
            let is_oldest = name == "Undo" && key[..8] == 5u64.to_be_bytes();
            assert!(is_corrupt || is_oldest, "a row of {name} is gone: {outcome:?}");
        }
    }
    assert!(flips > 2000);
}

/// A store whose fold thread cannot write while the disk is full.
#[derive(Clone)]
struct FullDisk {
    inner: MemoryStore,
    is_full: Arc<AtomicBool>,
}

impl KvStore for FullDisk {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        self.inner.snapshot()
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        let is_folder = std::thread::current().name() == Some("state-fold");
        if is_folder && self.is_full.load(SeqCst) {
            return Err(StoreError::new("opening a transaction", "no space left on device"));
        }
        self.inner.begin_write()
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.inner.disk_bytes()
    }
}

#[test]
fn a_fold_that_fails_loses_nothing_is_reported_and_heals() {
    let kv = FullDisk { inner: MemoryStore::new(), is_full: Arc::new(AtomicBool::new(true)) };
    let store = StateStore::open(Arc::new(MockHash), Arc::new(kv.clone()), options(5)).unwrap();
    let mut committed = 0;
    let mut refused = 0;
    while refused < 3 {
        let next =
            propose(&store, StateId::Tip, hash(0, committed), &all_set_to(committed)).unwrap();
        match commit(&store, &kv, &[next]) {
            Ok(()) => committed += 1,
            Err(error) => {
                assert!(error.to_string().contains("no space left"), "{error}");
                refused += 1;
            }
        }
        assert!(committed < 100, "commits pile up although nothing can be folded");
        let tip = store.tip().map(|tip| tip.block.hash);
        assert_eq!(tip, committed.checked_sub(1).map(|n| hash(0, n)), "what was reported is there");
    }
    assert!(store.flush().unwrap_err().to_string().contains("no space left"));
    kv.is_full.store(false, SeqCst);
    store.flush().unwrap();
    assert_eq!(store.stats().unwrap().journal_rows, 0);
    for number in committed..committed + 3 {
        let next = propose(&store, StateId::Tip, hash(0, number), &all_set_to(number)).unwrap();
        commit(&store, &kv, &[next]).unwrap();
    }
    drop(store);
    let store = open(&kv.inner, options(5)).unwrap();
    assert_eq!(store.tip().unwrap().block.hash, hash(0, committed + 2));
    // The last block that was committed while nothing could be folded.
    let last = committed - 1;
    revert(&store, &kv, last).unwrap();
    let value = store.at(StateId::Tip).unwrap().get(&slot_key(2)).unwrap().unwrap();
    assert_eq!(value[..], last.to_be_bytes());
}

#[test]
fn folds_leave_the_tables_with_the_live_rows_alone_and_the_journal_empty() {
    let kv = MemoryStore::new();
    let store = open(&kv, StoreOptions::default()).unwrap();
    for number in 0..20 {
        let changes: Vec<_> = (0..KEYS)
            .map(|k| (slot_key(k), ((k + number) % 3 > 0).then(|| Bytes::from(vec![9; 30]))))
            .collect();
        let proposal = propose(&store, StateId::Tip, hash(0, number), &changes).unwrap();
        commit(&store, &kv, &[proposal]).unwrap();
    }
    assert!(store.stats().unwrap().pending_bytes > 0);
    assert_eq!(kv.snapshot().unwrap().count(table("Flat")).unwrap(), 0);
    store.flush().unwrap();
    let live = store.at(StateId::Tip).and_then(|state| state.entries(None, usize::MAX)).unwrap();
    let snapshot = kv.snapshot().unwrap();
    assert_eq!(snapshot.count(table("Flat")).unwrap(), live.len() as u64);
    assert_eq!(snapshot.count(table("Journal")).unwrap(), 0);
    assert_eq!(store.stats().unwrap().pending_bytes, 0);
    let counts = store.counts();
    assert!(counts.journal_bytes > 0 && counts.undo_bytes > 0);
    assert_eq!(counts.folded_rows, KEYS, "each row once, however often it was written");
    // Nothing is left to do.
    store.flush().unwrap();
}

#[test]
fn the_store_in_memory_is_one() {
    let tables = [RowTable::new(1, "One"), RowTable::new(2, "Two")];
    a_key_value_store_matches_a_model(&|| Arc::new(MemoryStore::new()), &tables);
    let namespace = TableNamespace::new("Shadow", 0x40, &tables);
    a_key_value_store_matches_a_model(&|| namespace.store(Arc::new(MemoryStore::new())), &tables);
}

#[test]
fn a_backend_in_a_namespace_beside_another_passes_the_kit() {
    let namespace = TableNamespace::new("Referee", 0x40, &StateStore::tables(&MockHash));
    let stores = || {
        let shared = MemoryStore::new();
        // The other state is there first, under the same names.
        let other = open(&shared, options(3)).unwrap();
        let proposal = propose(&other, StateId::Tip, hash(0, 0), &all_set_to(1)).unwrap();
        commit(&other, &shared, &[proposal]).unwrap();
        namespace.store(Arc::new(shared))
    };
    let factory = || Arc::new(MockHash) as Arc<dyn AnyBackend>;
    let scale =
        TestScale { blocks: 6, depth: 20, kills: 10, mutations: 50, ..TestScale::default() };
    run_all_of(&TestKit::new(&factory, scale).on(&stores));
}
