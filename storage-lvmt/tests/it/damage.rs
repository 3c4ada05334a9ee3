//! Damaged rows: the check finds each of them, nothing panics, and exhausted numbers are errors.

use crate::common;

use alloy_primitives::{Bytes, hex};
use common::chain::{TestChain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateError, StateReader};
use retrie_state_store::{KvStore, MemoryStore, StoreOptions};
use retrie_state_testkit::sample;
use retrie_storage_lvmt::ProofShard;

const TABLES: [RowTable; 9] = [
    RowTable::new(0x20, "LvmtKeys"),
    RowTable::new(0x21, "LvmtSlots"),
    RowTable::new(0x22, "LvmtAmts"),
    RowTable::new(0x23, "LvmtTrees"),
    RowTable::new(0x24, "LvmtBlocks"),
    RowTable::new(0x25, "LvmtRange"),
    RowTable::new(0x26, "LvmtMeta"),
    RowTable::new(0x27, "LvmtSecondLog"),
    RowTable::new(0x28, "LvmtSecond"),
];

fn chain() -> TestChain {
    let mut chain = TestChain::new(common::lvmt(1, ProofShard::All).with_slack(30), 0);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..70 {
        chain.random_block(&mut random, 40, 6, 6);
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    assert_eq!(chain.faults(), [""; 0]);
    chain.store.flush().unwrap();
    chain
}

fn rows(kv: &MemoryStore, table: RowTable) -> Vec<(Bytes, Bytes)> {
    kv.snapshot().unwrap().scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap()
}

fn set(kv: &MemoryStore, table: RowTable, key: &[u8], value: Option<&[u8]>) {
    let mut txn = kv.begin_write().unwrap();
    match value {
        Some(value) => txn.put(table, key, value).unwrap(),
        None => drop(txn.delete(table, key).unwrap()),
    }
    txn.commit().unwrap();
}

/// The faults of the state, found by opening it or by checking it.
fn faults(kv: &MemoryStore) -> Vec<String> {
    let backend = std::sync::Arc::new(common::lvmt(1, ProofShard::All));
    let kv = std::sync::Arc::new(kv.clone());
    match retrie_state_store::StateStore::open(backend, kv.clone(), StoreOptions::default()) {
        Err(error) => vec![error.to_string()],
        Ok(store) => {
            drop(store);
            let chain = TestChain::on((*kv).clone(), common::lvmt(1, ProofShard::All), 0);
            // Any answer is fine, but no panic.
            let _ = chain.tip().prove(&[key(1), key(2), key(99)]);
            let _ = chain.tip().get(&key(1));
            chain.faults()
        }
    }
}

#[test]
fn every_damaged_or_lost_row_is_found() {
    let TestChain { kv, store, .. } = chain();
    drop(store);
    let mut random = StdRng::seed_from_u64(2);
    for table in TABLES {
        let all = rows(&kv, table);
        assert!(!all.is_empty(), "{} is empty", table.name);
        for (key, value) in
            all.iter().enumerate().filter(|(n, _)| sample::takes(*n, 4)).map(|(_, row)| row)
        {
            let change = |changed: Option<&[u8]>, how: &str| {
                set(&kv, table, key, changed);
                let found = faults(&kv);
                let row = hex::encode(key);
                assert!(!found.is_empty(), "row {row} of {} {how}: unnoticed", table.name);
                set(&kv, table, key, Some(value));
            };
            change(None, "is lost");
            change(Some(&value[..value.len() - 1]), "is cut short");
            change(Some(&[&value[..], &[0]].concat()), "is longer");
            for _ in 0..3 {
                let mut flipped = value.to_vec();
                let bit = random.random_range(0..8 * flipped.len());
                flipped[bit / 8] ^= 1 << (bit % 8);
                change(Some(&flipped), &format!("has bit {bit} flipped"));
            }
        }
    }
    assert_eq!(faults(&kv), [""; 0]);
}

#[test]
fn versions_end_with_an_error() {
    let TestChain { kv, store, .. } = chain();
    drop(store);
    // Versions of records come after level and slot; versions of AMTs come first. Small ones have
    // one byte.
    for (table, at, key) in [(TABLES[0], 2, Some(key(5))), (TABLES[2], 0, None)] {
        let all = rows(&kv, table);
        let row = match key {
            Some(key) => all.iter().find(|(at, _)| at[..] == key.encode()[..]).unwrap(),
            None => &all[0],
        };
        assert!(row.1[at] < 0x80);
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0x1f];
        let last = [&row.1[..at], &most, &row.1[at + 1..]].concat();
        set(&kv, table, &row.0, Some(&last));
        let mut chain = TestChain::on(kv.clone(), common::lvmt(1, ProofShard::None), 0);
        let all: Vec<_> =
            (0..40).map(|n| (common::chain::key(n), Some(Bytes::from(vec![9])))).collect();
        let error = chain.try_block(&all).unwrap_err();
        let (StateError::Exhausted { backend, what, limit }, "lvmt") = (&error, "lvmt") else {
            panic!("{error}")
        };
        assert_eq!((*backend, *limit), ("lvmt", (1 << 40) - 1));
        assert!(what.starts_with("the version of"), "{what}");
        set(&kv, table, &row.0, Some(&row.1));
    }
}
