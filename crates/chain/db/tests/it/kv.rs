//! The state contract's key-value traits on MDBX, against a model and under threads.

use alloy_primitives::{B256, Bytes, keccak256};
use proptest::prelude::*;
use retrie_db::{DatabaseEnv, DbError, OpenOptions, StorageError, SyncMode, TableError};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError, TableRow};
use retrie_state_store::{KvRead, KvWrite, TableNamespace};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

const A: RowTable = RowTable::new(1, "Accounts");
const B: RowTable = RowTable::new(2, "Slots");

fn fresh() -> (tempfile::TempDir, DatabaseEnv) {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &options).unwrap();
    (dir, db)
}

fn cause(error: &StoreError) -> &DbError {
    error.source.downcast_ref().expect("the cause is a DbError")
}

type RowModel = BTreeMap<Vec<u8>, Vec<u8>>;

fn model_scan(
    model: &RowModel,
    range: KeyRange<'_>,
    direction: ScanDirection,
    limit: usize,
) -> Vec<TableRow> {
    let inside = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        range.contains(key).then(|| (Bytes::from(key.clone()), Bytes::from(value.clone())))
    };
    match direction {
        ScanDirection::Forward => model.iter().filter_map(inside).take(limit).collect(),
        ScanDirection::Backward => model.iter().rev().filter_map(inside).take(limit).collect(),
    }
}

fn assert_like_model(read: &dyn KvRead, table: RowTable, model: &RowModel, probes: &[Vec<u8>]) {
    assert_eq!(read.count(table).unwrap(), model.len() as u64);
    for direction in [ScanDirection::Forward, ScanDirection::Backward] {
        let all = read.scan(table, KeyRange::ALL, direction, usize::MAX).unwrap();
        assert_eq!(all, model_scan(model, KeyRange::ALL, direction, usize::MAX));
        assert_eq!(read.seek(table, None, direction).unwrap().as_ref(), all.first());
    }
    for probe in probes {
        let expected = model.get(probe).map(|value| Bytes::from(value.clone()));
        assert_eq!(read.get(table, probe).unwrap(), expected, "get {probe:?}");
        let at_or_after = model_scan(model, KeyRange::from(probe), ScanDirection::Forward, 1);
        let found = read.seek(table, Some(probe), ScanDirection::Forward).unwrap();
        assert_eq!(found, at_or_after.first().cloned(), "seek forward {probe:?}");
        let mut beyond = probe.clone();
        beyond.push(0);
        let up_to = KeyRange { start: &[], end: Some(&beyond) };
        let at_or_before = model_scan(model, up_to, ScanDirection::Backward, 1);
        let found = read.seek(table, Some(probe), ScanDirection::Backward).unwrap();
        assert_eq!(found, at_or_before.first().cloned(), "seek backward {probe:?}");
    }
    for (start, other) in probes.iter().zip(probes.iter().rev()) {
        for end in [None, Some(other.as_slice())] {
            for direction in [ScanDirection::Forward, ScanDirection::Backward] {
                for limit in [0, 1, 3, usize::MAX] {
                    let range = KeyRange { start, end };
                    assert_eq!(
                        read.scan(table, range, direction, limit).unwrap(),
                        model_scan(model, range, direction, limit),
                        "scan {range:?} {direction:?} {limit}"
                    );
                }
            }
        }
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    // Few different bytes, so that keys collide and are prefixes of each other.
    prop::collection::vec(prop::sample::select(vec![0, 1, 0x7f, 0xff]), 0..4)
}

#[derive(Clone, Debug)]
enum KvStep {
    Put(Vec<u8>, usize),
    Delete(Vec<u8>),
    Clear,
    Commit,
    Abort,
}

fn step() -> impl Strategy<Value = KvStep> {
    prop_oneof![
        10 => (key(), prop::sample::select(vec![0, 1, 40, 1500, 5000]))
            .prop_map(|(key, len)| KvStep::Put(key, len)),
        4 => key().prop_map(KvStep::Delete),
        1 => Just(KvStep::Clear),
        2 => Just(KvStep::Commit),
        1 => Just(KvStep::Abort),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn store_behaves_like_a_sorted_map(
        steps in prop::collection::vec(step(), 1..60),
        probes in prop::collection::vec(key(), 12),
    ) {
        let (_dir, db) = fresh();
        let store = db.state_store();
        let mut committed = RowModel::new();
        let mut model = RowModel::new();
        let mut txn = store.begin_write().unwrap();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                KvStep::Put(key, len) => {
                    let value = vec![i as u8; len];
                    txn.put(A, &key, &value).unwrap();
                    // The other table must not matter.
                    txn.put(B, &key, b"other").unwrap();
                    model.insert(key, value);
                }
                KvStep::Delete(key) => {
                    prop_assert_eq!(txn.delete(A, &key).unwrap(), model.remove(&key).is_some());
                }
                KvStep::Clear => {
                    txn.clear(A).unwrap();
                    model.clear();
                }
                KvStep::Commit => {
                    txn.commit().unwrap();
                    committed = model.clone();
                    txn = store.begin_write().unwrap();
                }
                KvStep::Abort => {
                    drop(txn);
                    model = committed.clone();
                    txn = store.begin_write().unwrap();
                }
            }
        }
        assert_like_model(&*txn, A, &model, &probes);
        let snapshot = store.snapshot().unwrap();
        assert_like_model(&*snapshot, A, &committed, &probes);
        txn.commit().unwrap();
        assert_like_model(&*snapshot, A, &committed, &probes);
        assert_like_model(&*store.snapshot().unwrap(), A, &model, &probes);
    }
}

#[test]
fn snapshot_does_not_see_later_commits_nor_tables_created_later() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let empty = store.snapshot().unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.put(A, b"k", b"1").unwrap();
    assert_eq!(store.snapshot().unwrap().get(A, b"k").unwrap(), None, "not committed yet");
    txn.commit().unwrap();
    let one = store.snapshot().unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.put(A, b"k", b"2").unwrap();
    txn.put(B, b"new", b"table").unwrap();
    txn.commit().unwrap();
    for _ in 0..2 {
        assert_eq!(empty.get(A, b"k").unwrap(), None);
        assert_eq!(empty.count(A).unwrap(), 0);
        assert_eq!(empty.seek(A, None, ScanDirection::Forward).unwrap(), None);
        assert_eq!(empty.scan(A, KeyRange::ALL, ScanDirection::Backward, 9).unwrap(), []);
        assert_eq!(one.get(A, b"k").unwrap().unwrap(), b"1"[..]);
        assert_eq!(one.get(B, b"new").unwrap(), None);
    }
    assert_eq!(store.snapshot().unwrap().get(A, b"k").unwrap().unwrap(), b"2"[..]);
}

/// Each reader must find the table's handle before it can see the table's first row.
#[test]
fn rows_of_a_new_table_are_seen_from_the_moment_of_its_commit() {
    const NAMES: [&str; 40] = [
        "00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14",
        "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29",
        "30", "31", "32", "33", "34", "35", "36", "37", "38", "39",
    ];
    let tables: Vec<_> =
        (0_u8..).zip(NAMES).map(|(id, name)| RowTable::new(id + 10, name)).collect();
    let (_dir, db) = fresh();
    let store = db.state_store();
    let mut txn = store.begin_write().unwrap();
    txn.put(A, b"last", &[0]).unwrap();
    txn.commit().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (i, table) in (0_u8..).zip(&tables) {
                let mut txn = store.begin_write().unwrap();
                txn.put(*table, b"k", b"v").unwrap();
                txn.put(A, b"last", &[i + 1]).unwrap();
                txn.commit().unwrap();
            }
        });
        loop {
            let snapshot = store.snapshot().unwrap();
            let last = usize::from(snapshot.get(A, b"last").unwrap().unwrap()[0]);
            if let Some(newest) = last.checked_sub(1) {
                let row = snapshot.get(tables[newest], b"k").unwrap();
                assert!(row.is_some(), "table {newest} was committed, but is not found");
            }
            if last == tables.len() {
                break;
            }
        }
    });
}

#[test]
fn table_of_an_aborted_transaction_does_not_come_into_being() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let mut txn = store.begin_write().unwrap();
    txn.put(A, b"k", b"1").unwrap();
    drop(txn);
    assert_eq!(store.snapshot().unwrap().get(A, b"k").unwrap(), None);
    // MDBX may give the aborted handle to the next new table.
    let mut txn = store.begin_write().unwrap();
    txn.put(B, b"k", b"b").unwrap();
    assert_eq!(txn.get(A, b"k").unwrap(), None);
    txn.put(A, b"k", b"a").unwrap();
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.get(A, b"k").unwrap().unwrap(), b"a"[..]);
    assert_eq!(snapshot.get(B, b"k").unwrap().unwrap(), b"b"[..]);
}

#[test]
fn threads_share_one_snapshot_while_commits_go_on() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let mut txn = store.begin_write().unwrap();
    for i in 0..2000_u32 {
        // The rows that the writer below changes are all alike at any time.
        let value = if i.is_multiple_of(40) { 0 } else { i };
        txn.append(A, &i.to_be_bytes(), &value.to_le_bytes()).unwrap();
    }
    txn.commit().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let mut txn = store.begin_write().unwrap();
                for i in 0..50_u32 {
                    txn.put(A, &(i * 40).to_be_bytes(), &round.to_be_bytes()).unwrap();
                    txn.put(B, &round.to_be_bytes(), b"x").unwrap();
                }
                txn.commit().unwrap();
                round += 1;
            }
        });
        let readers: Vec<_> = (0..4)
            .map(|thread| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let snapshot = store.snapshot().unwrap();
                    let first = snapshot.get(A, &0_u32.to_be_bytes()).unwrap().unwrap();
                    let stable = Barrier::new(3);
                    std::thread::scope(|inner| {
                        for part in 0..3_u32 {
                            let (snapshot, first, stable) = (&snapshot, &first, &stable);
                            inner.spawn(move || {
                                stable.wait();
                                for i in 0..3000_u32 {
                                    let i = (i * 7 + part * 13 + thread) % 2000;
                                    let value = snapshot.get(A, &i.to_be_bytes()).unwrap().unwrap();
                                    if i.is_multiple_of(40) {
                                        assert_eq!(value, *first, "two commits in one snapshot");
                                    } else {
                                        assert_eq!(*value, i.to_le_bytes()[..]);
                                    }
                                    if i.is_multiple_of(97) {
                                        let row = snapshot
                                            .seek(
                                                A,
                                                Some(&i.to_be_bytes()),
                                                ScanDirection::Backward,
                                            )
                                            .unwrap()
                                            .unwrap();
                                        assert_eq!(*row.0, i.to_be_bytes()[..]);
                                    }
                                }
                            });
                        }
                    });
                })
            })
            .collect();
        for reader in readers {
            reader.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
}

#[test]
fn writer_that_keeps_coming_back_does_not_starve_others() {
    let (_dir, db) = fresh();
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut txn = db.begin_write().unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
                txn.put(A, b"folder", b"busy").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
                txn.commit().unwrap();
            }
        });
        while rounds.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let mut overtaken = Vec::new();
        for _ in 0..30 {
            let before = rounds.load(Ordering::Relaxed);
            drop(db.begin_write().unwrap());
            overtaken.push(rounds.load(Ordering::Relaxed) - before);
        }
        // Before the assertion, as the scope waits for the other thread.
        stop.store(true, Ordering::Relaxed);
        // A busy machine may delay this thread before it queues; a starved thread would wait each
        // time.
        let in_turn = overtaken.iter().filter(|between| **between <= 2).count();
        assert!(in_turn >= 15, "too many transactions of another thread came first: {overtaken:?}");
    });
}

#[test]
fn second_transaction_of_one_thread_is_refused_instead_of_hanging() {
    let (_dir, db) = fresh();
    let txn = db.begin_write().unwrap();
    assert!(matches!(db.begin_write(), Err(StorageError::Nested { .. })));
    drop(txn);
    db.begin_write().unwrap();
}

#[test]
fn appending_keeps_order_and_refuses_disorder() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let mut txn = store.begin_write().unwrap();
    for i in 0..1000_u32 {
        txn.append(A, &i.to_be_bytes(), &[1; 100]).unwrap();
    }
    for key in [500_u32, 999] {
        let refused = txn.append(A, &key.to_be_bytes(), &[2; 100]).unwrap_err();
        assert!(
            matches!(cause(&refused), DbError::Table(TableError::OutOfOrder { .. })),
            "{refused}"
        );
        assert!(refused.to_string().contains("Accounts"), "{refused}");
    }
    // The refused rows have changed nothing, and the transaction is still good.
    txn.append(A, &1000_u32.to_be_bytes(), &[1; 100]).unwrap();
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    let rows = snapshot.scan(A, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
    assert_eq!(rows.len(), 1001);
    assert!(rows.iter().all(|(_, value)| **value == [1; 100][..]));
}

#[test]
fn longest_key_works_and_a_longer_one_is_an_error_not_an_abort() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let longest = vec![7; db.max_key_len()];
    let longer = vec![7; db.max_key_len() + 1];
    let mut txn = store.begin_write().unwrap();
    txn.put(A, &longest, b"v").unwrap();
    let too_long = |error: StoreError| {
        assert!(matches!(
            cause(&error),
            DbError::Table(TableError::KeyTooLong { len: 2023, max: 2022, .. })
        ));
        assert!(error.to_string().contains("Accounts"), "{error}");
    };
    too_long(txn.put(A, &longer, b"v").unwrap_err());
    too_long(txn.append(A, &longer, b"v").unwrap_err());
    too_long(txn.delete(A, &longer).unwrap_err());
    too_long(txn.get(A, &longer).unwrap_err());
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.get(A, &longest).unwrap().unwrap(), b"v"[..]);
    too_long(snapshot.get(A, &longer).unwrap_err());
    too_long(snapshot.seek(A, Some(&longer), ScanDirection::Forward).unwrap_err());
    for range in [KeyRange::from(&longer), KeyRange::new(&[], &longer)] {
        too_long(snapshot.scan(A, range, ScanDirection::Backward, 1).unwrap_err());
    }
}

#[test]
fn one_id_cannot_stand_for_two_tables() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let impostor = RowTable::new(A.id, "Impostor");
    let mut txn = store.begin_write().unwrap();
    txn.put(A, b"k", b"v").unwrap();
    let refused = txn.put(impostor, b"k", b"v").unwrap_err();
    assert!(
        matches!(cause(&refused), DbError::Table(TableError::IdTaken { id: 1, .. })),
        "{refused}"
    );
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    let refused = snapshot.get(impostor, b"k").unwrap_err();
    assert!(matches!(cause(&refused), DbError::Table(TableError::IdTaken { .. })), "{refused}");
}

#[test]
fn reads_and_deletes_of_a_missing_table_find_nothing() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let mut txn = store.begin_write().unwrap();
    assert_eq!(txn.get(A, b"k").unwrap(), None);
    assert!(!txn.delete(A, b"k").unwrap());
    txn.clear(A).unwrap();
    assert_eq!(txn.count(A).unwrap(), 0);
    txn.commit().unwrap();
    let names: Vec<_> = db.stats().unwrap().tables.into_iter().map(|t| t.name).collect();
    assert!(!names.contains(&"StateAccounts".to_owned()), "{names:?}");
}

#[test]
fn state_and_chain_change_in_one_transaction() {
    let (_dir, db) = fresh();
    let mut txn = db.begin_write().unwrap();
    let state: &mut dyn KvWrite = &mut txn;
    state.put(A, b"k", b"v").unwrap();
    txn.put_note("n", b"1").unwrap();
    drop(txn);
    assert_eq!(db.state_store().snapshot().unwrap().get(A, b"k").unwrap(), None);
    let mut txn = db.begin_write().unwrap();
    txn.put(A, b"k", b"v").unwrap();
    txn.put_note("n", b"1").unwrap();
    txn.commit().unwrap();
    assert!(db.state_store().snapshot().unwrap().get(A, b"k").unwrap().is_some());
}

#[test]
fn disk_bytes_count_state_pages_and_not_the_sparse_file() {
    let (_dir, db) = fresh();
    let store = db.state_store();
    let empty = store.disk_bytes().unwrap();
    assert!(empty <= 4096, "{empty}");
    let mut txn = store.begin_write().unwrap();
    for i in 0..1000_u32 {
        txn.append(A, &i.to_be_bytes(), &[3; 1000]).unwrap();
    }
    txn.commit().unwrap();
    let full = store.disk_bytes().unwrap();
    assert!((1_000_000..1_600_000).contains(&full), "{full}");
    let stats = db.stats().unwrap();
    assert!(stats.file_bytes > stats.used_bytes, "the file is not sparse: {stats:?}");
    let table = stats.tables.iter().find(|t| t.name == "StateAccounts").unwrap();
    assert_eq!((table.rows, table.bytes), (1000, full));
    let mut txn = store.begin_write().unwrap();
    txn.clear(A).unwrap();
    txn.commit().unwrap();
    assert_eq!(store.disk_bytes().unwrap(), 0);
    assert!(db.stats().unwrap().free_pages > 200);
}

/// MDBX's test for a dirty page counts pages in 32 bits: with other maps of 8 TiB between the own
/// map and a new value in memory, it may take that value for a page of the map and fail. (Whether
/// it does depends on the layout of memory; the sizes here hit it on Linux.)
#[test]
fn several_large_environments_in_one_process_do_not_disturb_each_other() {
    let options = OpenOptions {
        sync: SyncMode::NoSync,
        map_limit: (8 << 40) - (96 << 20),
        ..OpenOptions::default()
    };
    // Memory above the maps, free again when the values below look for some.
    let hole = vec![1_u8; 64 << 20];
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let stores =
        folders.each_ref().map(|folder| DatabaseEnv::create(folder.path(), &options).unwrap());
    drop(hole);
    let value = vec![7; 1 << 20];
    for db in &stores {
        let mut txn = db.begin_write().unwrap();
        for i in 0..80_u8 {
            txn.put(A, &[i], &value).unwrap();
        }
        for i in 0..80_u8 {
            assert_eq!(
                txn.seek(A, Some(&[i]), ScanDirection::Forward).unwrap().unwrap().0[..],
                [i]
            );
            let next = [i + 1];
            let rows = txn.scan(A, KeyRange::new(&[i], &next), ScanDirection::Backward, 2).unwrap();
            assert_eq!((rows.len(), rows[0].1.len()), (1, value.len()));
            assert!(txn.get(A, &[i]).unwrap().is_some());
        }
    }
}

/// A bulk load reads the codes that its own transaction has written, and `db verify` those of a
/// snapshot, also through the names of a referee.
#[test]
fn codes_are_found_where_the_state_is() {
    let (_dir, db) = fresh();
    let (code, kv) = (Bytes::from_static(b"a code"), db.state_store());
    let (hash, absent) = (keccak256(&code), B256::repeat_byte(7));
    let names = TableNamespace::new("Referee", 50, &[A]);
    let before = kv.snapshot().unwrap();
    let mut txn = db.begin_write().unwrap();
    txn.insert_code(&hash, &code).unwrap();
    assert_eq!(KvRead::code(&txn, &hash).unwrap(), Some(code.clone()));
    assert_eq!(names.txn(&mut txn).code(&hash).unwrap(), Some(code.clone()));
    txn.commit().unwrap();
    let read = Arc::new(db.begin_read().unwrap());
    for store in [kv.clone(), names.store(kv), read.state_store()] {
        let after = store.snapshot().unwrap();
        assert_eq!(after.code(&hash).unwrap(), Some(code.clone()));
        assert_eq!(after.code(&absent).unwrap(), None);
    }
    assert_eq!(before.code(&hash).unwrap(), None);
}
