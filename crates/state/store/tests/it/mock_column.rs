//! The [mock of COLE](common::column) on the test-kit, and tests of files and jobs with it.

use crate::common;

use alloy_primitives::Bytes;
use common::{column::MockColumn, propose, slot_key};
use parking_lot::Mutex;
use retrie_state::{AnyBackend, StateError, StateKey, StateValue, StoreError};
use retrie_state_store::{
    KvSnapshot, KvStore, KvTxn, MemoryStore, StateCheckSink, StateId, StateStore, StoreOptions,
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

// COLE itself runs the whole scale.
retrie_state_testkit::backend_tests!(
    || Arc::new(MockColumn::default()) as Arc<dyn AnyBackend>,
    retrie_state_testkit::TestScale::small()
);

/// The same with merges that prune old versions.
mod pruned {
    use super::*;

    retrie_state_testkit::backend_tests!(
        || Arc::new(MockColumn { keep: Some(5), ..MockColumn::default() }) as Arc<dyn AnyBackend>,
        retrie_state_testkit::TestScale::small()
    );
}

#[test]
fn retired_files_live_as_long_as_a_retained_block_needs_them_and_no_longer() {
    for retention in [0, 1, 5] {
        let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
        let column = Arc::new(MockColumn::default());
        let lives = column.lives.clone();
        let options = StoreOptions { retention, fold_commits: 2, ..StoreOptions::default() };
        let store = common::open(column, &kv, Some(dir.path()), options.clone()).unwrap();
        let mut seen_retired = 0;
        for number in 0..60 {
            let changes: Vec<_> = (0..4)
                .map(|n| {
                    let key = slot_key(number * 3 + n * 7);
                    (key, (n > 0).then(|| Bytes::from(format!("{number}-{n}").into_bytes())))
                })
                .collect();
            let proposal =
                propose(&store, StateId::Tip, common::hash(0, number), &changes).unwrap();
            common::commit(&store, &kv, &[proposal]).unwrap();
            store.wait_idle().unwrap();
            for (name, (published, retired)) in lives.lock().iter() {
                let is_there = dir.path().join(name).is_file();
                match retired {
                    Some(retired) if retired + retention <= number => {
                        seen_retired += 1;
                        assert!(!is_there, "{name} was retired at {retired}, at {number} it stays");
                    }
                    _ => assert!(is_there, "{name} of {published} is gone at {number}"),
                }
            }
            // A read of a retained block opens its files and checks their digests.
            for old in number.saturating_sub(retention)..=number {
                store.at(StateId::Block(common::hash(0, old))).unwrap();
            }
        }
        assert!(seen_retired > 10, "there were merges");
        drop(store);

        // Only what was published and is still needed survives an opening without jobs.
        let needed: BTreeSet<String> = lives
            .lock()
            .iter()
            .filter(|(_, (_, retired))| retired.is_none_or(|retired| retired + retention > 59))
            .map(|(name, _)| name.clone())
            .collect();
        fs::write(dir.path().join("run-0-60-half"), b"half").unwrap();
        let store =
            common::open(Arc::new(MockColumn::default()), &kv, Some(dir.path()), options).unwrap();
        drop(store);
        let left: BTreeSet<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            // The output of the merge that was under way, if the restarted job was that fast.
            .filter(|name| needed.contains(name) || !name.starts_with("run-1-6"))
            .collect();
        assert_eq!(left, needed);
    }
}

#[test]
fn a_block_that_names_a_file_nobody_wrote_is_refused() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let column = Arc::new(MockColumn::default());
    let store = common::open(column, &kv, Some(dir.path()), StoreOptions::default()).unwrap();
    let changes = [(slot_key(1), Some(Bytes::from_static(b"1")))];
    let proposal = propose(&store, StateId::Tip, common::hash(0, 0), &changes).unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let error = common::commit(&store, &kv, &[proposal]).unwrap_err();
    assert!(error.to_string().contains("run-0-0-"), "{error}");
    assert_eq!(store.tip(), None);
    // Proposing again writes it again.
    let proposal = propose(&store, StateId::Tip, common::hash(0, 0), &changes).unwrap();
    common::commit(&store, &kv, &[proposal]).unwrap();
    assert_eq!(store.tip().unwrap().block.number, 0);
    assert!(store.stats().unwrap().file_bytes > 0);
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let store = |kv: &MemoryStore| {
        let column = Arc::new(MockColumn::default());
        common::open(column, kv, Some(dir.path()), StoreOptions::default())
    };
    let first = store(&kv).unwrap();
    let changes = [(slot_key(1), Some(Bytes::from_static(b"1")))];
    let proposal = propose(&first, StateId::Tip, common::hash(0, 0), &changes).unwrap();
    common::commit(&first, &kv, &[proposal]).unwrap();
    drop(first);
    let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut content = fs::read(&file).unwrap();
    content[7] ^= 1;
    fs::write(&file, content).unwrap();
    let error = store(&kv).unwrap_err();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(error.to_string().contains(name), "{error}");
}

/// A store that records each sync, and whose syncs can be made to fail.
struct SyncRecorder {
    inner: MemoryStore,
    dir: PathBuf,
    fails: AtomicBool,
    /// Files in the directory at each sync.
    seen: Mutex<Vec<BTreeSet<String>>>,
}

impl KvStore for SyncRecorder {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        self.inner.snapshot()
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        self.inner.begin_write()
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.inner.disk_bytes()
    }

    fn sync(&self) -> Result<(), StoreError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::new("syncing", "the disk is gone"));
        }
        self.seen.lock().push(files(&self.dir));
        Ok(())
    }
}

fn files(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn some_changes(number: u64) -> Vec<(StateKey, Option<StateValue>)> {
    (0..4)
        .map(|n| (slot_key(number + n), Some(format!("{number}-{n}").into_bytes().into())))
        .collect()
}

/// Without durable commits a power failure may lead back to a commit that names a retired file.
#[test]
fn retired_files_are_deleted_only_once_the_commit_that_let_them_go_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    let kv = Arc::new(SyncRecorder {
        inner: MemoryStore::new(),
        dir: dir.path().to_owned(),
        fails: AtomicBool::new(false),
        seen: Mutex::default(),
    });
    let column = Arc::new(MockColumn::default());
    let lives = column.lives.clone();
    let options =
        StoreOptions { retention: 1, dir: Some(dir.path().to_owned()), ..StoreOptions::default() };
    let open = |column| StateStore::open(column, kv.clone(), options.clone()).unwrap();
    let store = open(column);
    let mut synced = 0;
    for number in 0..40 {
        let proposal =
            propose(&store, StateId::Tip, common::hash(0, number), &some_changes(number)).unwrap();
        kv.fails.store(number >= 30, Ordering::Relaxed);
        let before = files(dir.path());
        common::commit(&store, &*kv, &[proposal]).unwrap();
        store.wait_idle().unwrap();
        let retired: BTreeSet<String> = lives
            .lock()
            .iter()
            .filter(|(_, (_, retired))| retired.is_some_and(|retired| retired + 1 == number))
            .map(|(name, _)| name.clone())
            .collect();
        let seen = std::mem::take(&mut *kv.seen.lock());
        if retired.is_empty() || number >= 30 {
            assert_eq!(seen, [], "block {number}");
            assert!(retired.is_subset(&files(dir.path())), "what is not synced stays");
        } else {
            synced += 1;
            assert!(retired.is_subset(&before) && retired.is_subset(&seen[0]), "block {number}");
            assert!(retired.is_disjoint(&files(dir.path())), "block {number}");
        }
    }
    assert!(synced > 2, "{synced}");
    drop(store);
    kv.fails.store(false, Ordering::Relaxed);
    let left = files(dir.path());
    let gone: BTreeSet<String> = lives
        .lock()
        .iter()
        .filter(|(_, (_, retired))| retired.is_some_and(|retired| (29..39).contains(&retired)))
        .map(|(name, _)| name.clone())
        .collect();
    assert!(!gone.is_empty() && gone.is_subset(&left));
    drop(open(Arc::new(MockColumn::default())));
    assert!(gone.is_disjoint(&files(dir.path())), "the next opening removes them");
    assert!(gone.is_subset(&kv.seen.lock()[0]), "after a sync");
}

#[test]
fn a_merge_that_was_finished_before_closing_is_not_run_again() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let open = |column: &Arc<MockColumn>| {
        common::open(column.clone(), &kv, Some(dir.path()), StoreOptions::default()).unwrap()
    };
    let column = Arc::new(MockColumn::default());
    let store = open(&column);
    let extend = |store: &StateStore, number: u64| {
        let changes = some_changes(number);
        let proposal = propose(store, StateId::Tip, common::hash(0, number), &changes).unwrap();
        common::commit(store, &kv, &[proposal]).unwrap();
    };
    let mut number = 0;
    while column.merges.load(Ordering::Relaxed) == 0 {
        extend(&store, number);
        number += 1;
        store.wait_idle().unwrap();
    }
    drop(store);
    let before = files(dir.path());
    let column = Arc::new(MockColumn::default());
    let store = open(&column);
    store.wait_idle().unwrap();
    assert_eq!(files(dir.path()), before);
    let published =
        |column: &MockColumn| column.lives.lock().keys().any(|name| name.starts_with("run-1-"));
    while !published(&column) {
        extend(&store, number);
        number += 1;
    }
    assert_eq!(column.merges.load(Ordering::Relaxed), 0, "its file is taken as it is");
}

#[test]
fn sizes_tell_the_files_of_the_tip_from_those_kept_for_retained_blocks() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let column = Arc::new(MockColumn::default());
    let lives = column.lives.clone();
    let options = StoreOptions { retention: 5, ..StoreOptions::default() };
    let mut store = common::open(column, &kv, Some(dir.path()), options.clone()).unwrap();
    let bytes = |wanted: &dyn Fn(Option<u64>) -> bool| -> u64 {
        let of = |name: &String| fs::metadata(dir.path().join(name)).unwrap().len();
        let lives = lives.lock();
        lives.iter().filter(|(_, (_, retired))| wanted(*retired)).map(|(name, _)| of(name)).sum()
    };
    let mut retained = 0;
    for number in 0..50 {
        let proposal =
            propose(&store, StateId::Tip, common::hash(0, number), &some_changes(number)).unwrap();
        common::commit(&store, &kv, &[proposal]).unwrap();
        if number == 40 {
            drop(store);
            let again = Arc::new(MockColumn { lives: lives.clone(), ..MockColumn::default() });
            store = common::open(again, &kv, Some(dir.path()), options.clone()).unwrap();
        }
        let stats = store.stats().unwrap();
        assert_eq!(stats.file_bytes, bytes(&|retired| retired.is_none()), "block {number}");
        let is_kept = |retired: Option<u64>| retired.is_some_and(|at| at + 5 > number);
        assert_eq!(stats.retained_file_bytes, bytes(&is_kept), "block {number}");
        let gauges = store.watch().read().unwrap();
        assert_eq!(
            (gauges.file_bytes, gauges.retained_file_bytes),
            (stats.file_bytes, stats.retained_file_bytes)
        );
        retained += u64::from(stats.retained_file_bytes > 0);
    }
    assert!(retained > 10, "{retained}");
}

#[derive(Default)]
struct FileFaults(Vec<String>);

impl StateCheckSink for FileFaults {
    fn fault(&mut self, fault: StateError) {
        self.0.push(fault.to_string());
    }

    fn entry(&mut self, _: &retrie_state::BackendKey, _: &StateValue) {}

    fn progress(&mut self, _: u64, _: u64) {}
}

#[test]
fn a_check_counts_files_and_names_one_that_is_gone() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let column = Arc::new(MockColumn::default());
    let lives = column.lives.clone();
    let options = StoreOptions { retention: 5, ..StoreOptions::default() };
    let store = common::open(column, &kv, Some(dir.path()), options).unwrap();
    let retired = || -> BTreeSet<String> {
        let lives = lives.lock();
        let retired = lives.iter().filter(|(_, (_, retired))| retired.is_some());
        retired.map(|(name, _)| name.clone()).collect()
    };
    let mut number = 0;
    while retired().is_empty() {
        let proposal =
            propose(&store, StateId::Tip, common::hash(0, number), &some_changes(number)).unwrap();
        common::commit(&store, &kv, &[proposal]).unwrap();
        number += 1;
    }
    store.wait_idle().unwrap();
    fs::write(dir.path().join("half"), [0; 9]).unwrap();
    let scratch: Arc<dyn KvStore> = Arc::new(MemoryStore::new());
    let mut faults = FileFaults::default();
    let done = store.check(&scratch, &mut faults).unwrap();
    assert_eq!(faults.0, Vec::<String>::new());
    let stats = store.stats().unwrap();
    assert_eq!(done.file_bytes, stats.file_bytes + stats.retained_file_bytes);
    assert_eq!(done.files, lives.lock().len() as u64);
    assert!(done.leftover_files >= 1 && done.leftover_bytes >= 9, "{done:?}");

    // Only a retained block needs it.
    let gone = retired().pop_first().unwrap();
    fs::remove_file(dir.path().join(&gone)).unwrap();
    let mut faults = FileFaults::default();
    store.check(&scratch, &mut faults).unwrap();
    assert!(faults.0.iter().any(|fault| fault.contains(&gone)), "{:?}", faults.0);
}
