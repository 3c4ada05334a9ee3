//! Conformance test of key-value stores.

use super::{StoreFactory, env};
use alloy_primitives::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{KeyRange, RowTable, ScanDirection, TableRow};
use retrie_state_store::{KvRead, KvWrite};
use std::collections::BTreeMap;

type ModelRows = BTreeMap<Vec<u8>, Vec<u8>>;
type StoreModel = BTreeMap<RowTable, ModelRows>;

/// A key-value store reads, scans, counts and writes as a `BTreeMap` does. A transaction sees its
/// own writes, and other readers do not before it commits; a dropped transaction leaves nothing;
/// snapshots do not change. `tables` are the tables of the store.
///
/// # Panics
/// If the store differs from the model.
pub fn a_key_value_store_matches_a_model(stores: &StoreFactory<'_>, tables: &[RowTable]) {
    let seed = env("RETRIE_TESTKIT_SEED").unwrap_or(1);
    eprintln!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let kv = stores();
    let mut model: StoreModel = tables.iter().map(|table| (*table, ModelRows::new())).collect();
    let mut snapshots = vec![(kv.snapshot().expect("snapshot"), model.clone())];
    for round in 0..40 {
        let mut txn = kv.begin_write().expect("transaction");
        let mut draft = model.clone();
        for _ in 0..rng.random_range(0..60) {
            write(&mut rng, &mut *txn, &mut draft, tables);
        }
        compare(&mut rng, &*txn, &draft);
        compare(&mut rng, &*kv.snapshot().expect("snapshot"), &model);
        if round % 4 == 3 {
            drop(txn);
        } else {
            txn.commit().expect("commit");
            model = draft;
        }
        let snapshot = kv.snapshot().expect("snapshot");
        compare(&mut rng, &*snapshot, &model);
        if round % 10 == 0 {
            snapshots.push((snapshot, model.clone()));
        }
        for (snapshot, model) in &snapshots {
            compare(&mut rng, &**snapshot, model);
        }
    }
    kv.disk_bytes().expect("bytes on disk");
}

/// A short key from few byte values, so that keys often collide or are prefixes of each other.
fn key(rng: &mut StdRng) -> Vec<u8> {
    let len = rng.random_range(1..5);
    (0..len).map(|_| [0, 1, 0x7f, 0xff][rng.random_range(0..4)]).collect()
}

fn write(rng: &mut StdRng, txn: &mut dyn KvWrite, draft: &mut StoreModel, tables: &[RowTable]) {
    let table = tables[rng.random_range(0..tables.len())];
    let rows = draft.entry(table).or_default();
    match rng.random_range(0..20) {
        0..10 => {
            let len = if rng.random_bool(0.05) { 10_000 } else { rng.random_range(0..50) };
            let (key, value) = (key(rng), vec![rng.random(); len]);
            txn.put(table, &key, &value).expect("put");
            rows.insert(key, value);
        }
        10..16 => {
            let key = key(rng);
            let was_there = txn.delete(table, &key).expect("delete");
            assert_eq!(was_there, rows.remove(&key).is_some(), "delete says what it did");
        }
        16..19 => {
            let mut last = rows.last_key_value().map(|(key, _)| key.clone()).unwrap_or_default();
            last.push(rng.random());
            let last = if last.len() > 40 { vec![0xff; 50] } else { last };
            if rows.last_key_value().is_none_or(|(key, _)| *key < last) {
                txn.append(table, &last, b"appended").expect("append");
                rows.insert(last, b"appended".to_vec());
            }
        }
        _ => {
            txn.clear(table).expect("clear");
            rows.clear();
        }
    }
}

fn compare(rng: &mut StdRng, read: &(impl KvRead + ?Sized), model: &StoreModel) {
    let own = |(key, value): (&Vec<u8>, &Vec<u8>)| -> TableRow {
        (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))
    };
    for (&table, rows) in model {
        assert_eq!(read.count(table).expect("count"), rows.len() as u64, "count of {}", table.name);
        for _ in 0..6 {
            let (a, b) = (key(rng), key(rng));
            let value = read.get(table, &a).expect("get");
            assert_eq!(value, rows.get(&a).map(|value| Bytes::copy_from_slice(value)), "get");

            let forward = read.seek(table, Some(&a), ScanDirection::Forward).expect("seek");
            assert_eq!(forward, rows.range(a.clone()..).next().map(own), "seek to {a:?}");
            let backward = read.seek(table, Some(&a), ScanDirection::Backward).expect("seek");
            assert_eq!(backward, rows.range(..=a.clone()).next_back().map(own), "back to {a:?}");

            let limit = [0, 1, 3, 1000, usize::MAX][rng.random_range(0..5)];
            let end = rng.random_bool(0.7).then_some(&b[..]);
            let range = KeyRange { start: &a, end };
            let inside: Vec<TableRow> =
                rows.iter().filter(|(k, _)| range.contains(k)).map(own).collect();
            let forward = read.scan(table, range, ScanDirection::Forward, limit).expect("scan");
            assert!(forward.iter().eq(inside.iter().take(limit)), "scan of {range:?}");
            let backward = read.scan(table, range, ScanDirection::Backward, limit).expect("scan");
            assert!(backward.iter().eq(inside.iter().rev().take(limit)), "back scan of {range:?}");
        }
        let first = read.seek(table, None, ScanDirection::Forward).expect("seek");
        assert_eq!(first, rows.iter().next().map(own), "first row");
        let first = read.seek(table, Some(&[]), ScanDirection::Forward).expect("seek");
        assert_eq!(first, rows.iter().next().map(own), "first row, from the empty key");
        let last = read.seek(table, None, ScanDirection::Backward).expect("seek");
        assert_eq!(last, rows.iter().next_back().map(own), "last row");
        let all =
            read.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).expect("scan");
        assert!(all.into_iter().eq(rows.iter().map(own)), "all of {}", table.name);
    }
}
