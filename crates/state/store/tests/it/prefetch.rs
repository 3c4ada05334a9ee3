//! Prefetching: many threads read all keys if reads wait for the disk, and sessions see the right
//! state whatever the prefetch does.

use crate::common::{commit, hash, hashed::MockHash, propose, slot_key};
use alloy_primitives::Bytes;
use parking_lot::{Condvar, Mutex};
use retrie_state::{
    KeyRange, RowTable, ScanDirection, StateKey, StateReader, StateValue, StoreError, TableRow,
    flat,
};
use retrie_state_store::{
    KvRead, KvSnapshot, KvStore, KvTxn, MemoryStore, StateId, StateStore, StoreOptions,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

const KEYS: u64 = 1000;
const THREADS: usize = 6;

/// Controls and observes the reads of a store.
#[derive(Default)]
struct ReadWatch {
    /// Reads of the flat state by prefetch threads, and the names of these threads.
    reads: AtomicUsize,
    readers: Mutex<BTreeSet<String>>,
    /// Whether reads of prefetch threads wait.
    is_shut: Mutex<bool>,
    opened: Condvar,
    /// Reads of rows with these keys fail.
    broken: Mutex<BTreeSet<Vec<u8>>>,
    snapshots: AtomicUsize,
}

#[derive(Clone)]
struct WatchedStore(MemoryStore, Arc<ReadWatch>);

struct WatchedSnapshot(KvSnapshot, Arc<ReadWatch>);

impl Drop for WatchedSnapshot {
    fn drop(&mut self) {
        self.1.snapshots.fetch_sub(1, SeqCst);
    }
}

impl KvStore for WatchedStore {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        self.1.snapshots.fetch_add(1, SeqCst);
        Ok(Arc::new(WatchedSnapshot(self.0.snapshot()?, self.1.clone())))
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        self.0.begin_write()
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.0.disk_bytes()
    }
}

impl KvRead for WatchedSnapshot {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let watch = &self.1;
        if table == flat::TABLE {
            if let Some(name) = thread::current().name().filter(|it| it.starts_with("state-read")) {
                watch.reads.fetch_add(1, SeqCst);
                watch.readers.lock().insert(name.into());
                let mut is_shut = watch.is_shut.lock();
                watch.opened.wait_while(&mut is_shut, |is_shut| *is_shut);
                drop(is_shut);
                // About as long as a read from disk.
                thread::sleep(Duration::from_micros(50));
            }
            if watch.broken.lock().contains(key) {
                return Err(StoreError::new("reading a row", "the page is damaged"));
            }
        }
        self.0.get(table, key)
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        self.0.seek(table, key, direction)
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        self.0.scan(table, range, direction, limit)
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        self.0.count(table)
    }
}

/// While it lives, prefetch threads wait at their next read.
struct ReadBarrier(Arc<ReadWatch>);

impl ReadBarrier {
    fn now(watch: &Arc<ReadWatch>) -> Self {
        *watch.is_shut.lock() = true;
        Self(watch.clone())
    }
}

impl Drop for ReadBarrier {
    fn drop(&mut self) {
        *self.0.is_shut.lock() = false;
        self.0.opened.notify_all();
    }
}

fn value(k: u64) -> StateValue {
    Bytes::copy_from_slice(&(k + 7).to_be_bytes())
}

fn keys() -> Vec<StateKey> {
    (0..KEYS).map(slot_key).collect()
}

/// A store with [`KEYS`] keys in its tables.
fn store(read_threads: usize) -> (StateStore, Arc<ReadWatch>, WatchedStore) {
    let (kv, watch) = (MemoryStore::new(), Arc::new(ReadWatch::default()));
    let watched = WatchedStore(kv.clone(), watch.clone());
    let options = StoreOptions { read_threads, ..StoreOptions::default() };
    let open = || StateStore::open(Arc::new(MockHash), Arc::new(watched.clone()), options.clone());
    let store = open().unwrap();
    let all: Vec<_> = (0..KEYS).map(|k| (slot_key(k), Some(value(k)))).collect();
    let proposal = propose(&store, StateId::Tip, hash(0, 0), &all).unwrap();
    commit(&store, &kv, &[proposal]).unwrap();
    store.flush().unwrap();
    drop(store);
    (open().unwrap(), watch, watched)
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads all keys of the tip, and sets one of them.
fn check(store: &StateStore, n: u64) {
    let session = store.begin(StateId::Tip).unwrap();
    let reader = session.reader();
    for k in 0..KEYS {
        assert_eq!(reader.get(&slot_key(k)).unwrap(), Some(value(k)), "key {k}");
    }
    drop((session, reader));
    let change = [(slot_key(n), Some(value(n + 1)))];
    let proposal = propose(store, StateId::Tip, hash(0, n), &change).unwrap();
    let read = store.at(StateId::Proposal(&proposal)).unwrap().get(&slot_key(n)).unwrap();
    assert_eq!(read, Some(value(n + 1)));
}

#[test]
fn all_keys_are_read_by_many_threads_while_they_wait_for_the_disk() {
    let (store, watch, _) = store(THREADS);
    store.prefetch_as_from_disk();
    let session = store.begin(StateId::Tip).unwrap();
    let read = Arc::new(Mutex::new(BTreeMap::new()));
    let shut = ReadBarrier::now(&watch);
    let kept = read.clone();
    let absent = (KEYS..KEYS + 9).map(slot_key);
    let ahead = session.prefetch_and(
        keys().into_iter().chain(absent).collect(),
        Arc::new(move |key, value| {
            let before = kept.lock().insert(*key, value.clone());
            assert_eq!(before, None, "{key} was read twice");
        }),
    );
    // The first thread waits, and the session does not wait for it.
    eventually("no thread reads", || watch.reads.load(SeqCst) == 1);
    check(&store, 1);
    drop(shut);
    eventually("keys are left", || read.lock().len() == KEYS as usize);
    assert!(
        read.lock().iter().map(|(key, value)| (*key, value.clone())).eq(keys()
            .into_iter()
            .enumerate()
            .map(|(k, key)| (key, value(k as u64)))
            .collect::<BTreeMap<_, _>>())
    );
    assert!((2..=THREADS).contains(&watch.readers.lock().len()), "{:?}", watch.readers.lock());
    drop(ahead);
    check(&store, 2);
}

#[test]
fn rest_of_the_keys_is_left_alone_if_the_first_are_in_memory() {
    let (store, watch, _) = store(THREADS);
    let session = store.begin(StateId::Tip).unwrap();
    // This program's own pages may come from disk: then all keys are read.
    let round = || {
        let before = watch.reads.load(SeqCst);
        let _ahead = session.prefetch(keys());
        eventually("no thread reads", || watch.reads.load(SeqCst) >= before + 32);
        thread::sleep(Duration::from_millis(20));
        watch.reads.load(SeqCst) - before
    };
    let rounds: Vec<_> = (0..10).map(|_| round()).collect();
    assert!(rounds.contains(&32), "{rounds:?} of {KEYS} keys were read");
    check(&store, 1);
}

#[test]
fn what_cannot_be_read_is_told_to_whoever_needs_it_and_nobody_else() {
    let (store, watch, _) = store(THREADS);
    store.prefetch_as_from_disk();
    let bad: Vec<_> = (0..KEYS).filter(|k| k % 100 == 3).collect();
    watch.broken.lock().extend(bad.iter().map(|k| slot_key(*k).encode().to_vec()));
    let session = store.begin(StateId::Tip).unwrap();
    let _ahead = session.prefetch(keys());
    session.root_task().unwrap().prefetch(&keys());
    eventually("keys are left", || watch.reads.load(SeqCst) == KEYS as usize);
    let reader = session.reader();
    for k in 0..KEYS {
        let read = reader.get(&slot_key(k));
        match bad.contains(&k) {
            true => assert!(read.unwrap_err().to_string().contains("reading a row")),
            false => assert_eq!(read.unwrap(), Some(value(k))),
        }
    }
    watch.broken.lock().clear();
    check(&store, 1);
}

#[test]
fn thread_that_panics_takes_nothing_with_it() {
    let (store, watch, _) = store(THREADS);
    store.prefetch_as_from_disk();
    let session = store.begin(StateId::Tip).unwrap();
    let _panics = session.prefetch_and(keys(), Arc::new(|_, _| panic!("as told")));
    eventually("no thread reads", || watch.reads.load(SeqCst) > 0);
    let before = watch.reads.load(SeqCst);
    let _ahead = session.prefetch(keys());
    eventually("keys are left", || watch.reads.load(SeqCst) >= before + KEYS as usize);
    check(&store, 1);
}

#[test]
fn dropping_the_handle_ends_the_reads_and_closing_the_store_the_threads() {
    let (store, watch, _) = store(THREADS);
    store.prefetch_as_from_disk();
    let session = store.begin(StateId::Tip).unwrap();
    let shut = ReadBarrier::now(&watch);
    let ahead = session.prefetch(keys());
    let waits: Vec<_> = (0..200).map(|_| session.prefetch(keys())).collect();
    eventually("no thread reads", || watch.reads.load(SeqCst) == 1);
    drop((ahead, waits));
    drop(shut);
    let last = session.prefetch(keys());
    eventually("keys are left", || watch.reads.load(SeqCst) >= KEYS as usize);
    assert!(watch.reads.load(SeqCst) <= KEYS as usize + 4, "{}", watch.reads.load(SeqCst));
    drop((session, last));
    // The store is closed while reads are queued, and a handle outlives it.
    let shut = ReadBarrier::now(&watch);
    let reads = watch.reads.load(SeqCst);
    let outlives = store.begin(StateId::Tip).unwrap().prefetch(keys());
    eventually("no thread reads", || watch.reads.load(SeqCst) > reads);
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        drop(shut);
    });
    drop(store);
    assert_eq!(watch.snapshots.load(SeqCst), 0, "a thread still has a state");
    opener.join().unwrap();
    drop(outlives);
}

#[test]
fn nothing_is_read_without_keys_or_without_threads() {
    for (threads, keys) in [(0, keys()), (THREADS, Vec::new())] {
        let (store, watch, _) = store(threads);
        store.prefetch_as_from_disk();
        let session = store.begin(StateId::Tip).unwrap();
        let _ahead = session.prefetch(keys.clone());
        session.root_task().unwrap().prefetch(&keys);
        thread::sleep(Duration::from_millis(5));
        assert_eq!(watch.reads.load(SeqCst), 0);
        check(&store, 1);
    }
}
