//! Garbage collection: stored rows stay in proportion to the keys, live tuples stay provable, and
//! reverts restore the rows of tuples that become live again.

use crate::common;

use common::chain::{TestChain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::RowTable;
use retrie_state_store::KvStore;
use retrie_storage_lvmt::ProofShard;

const KEYS: u64 = 60;

fn rows(chain: &TestChain) -> u64 {
    chain.rows("LvmtTrees") + chain.rows("LvmtBlocks") + chain.rows("LvmtRange")
}

#[test]
fn rows_stay_in_proportion_to_keys_and_all_keys_provable() {
    for (shard, seed) in [(ProofShard::All, 1), ("1/2".parse().unwrap(), 2)] {
        let mut chain = TestChain::new(common::lvmt(3, shard).with_slack(100), 4);
        let mut random = StdRng::seed_from_u64(seed);
        let (mut most, mut at_half) = (0, 0);
        for n in 0..2_000 {
            chain.random_block(&mut random, KEYS, 6, 10);
            // The job gets one block of time.
            chain.store.wait_idle().unwrap();
            if n % 50 == 0 {
                most = most.max(rows(&chain));
            }
            if n == 1_000 {
                at_half = most;
            }
            if n % 100 == 0 && shard == ProofShard::All {
                chain.prove(&[key(n % KEYS), key(n % KEYS + 1), key(1_000 + n)]);
            }
        }
        // Without garbage collection there would be a row for each block in two tables alone.
        assert!(most < 1_200, "{most} rows");
        assert!(most < 2 * at_half, "{most} rows, {at_half} at half the way");
        assert_eq!(chain.faults(), [""; 0]);
        if shard == ProofShard::All {
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            chain.prove(&keys);
        }
    }
}

#[test]
fn large_blocks_are_collected_as_fast_as_they_come() {
    let mut chain = TestChain::new(common::lvmt(4, ProofShard::All).with_slack(0), 0);
    let keys: Vec<_> = (0..2_000).map(key).collect();
    let mut most = 0;
    for n in 0..60 {
        let all: Vec<_> = keys.iter().map(|key| (*key, Some(vec![n, 1].into()))).collect();
        chain.block(&all);
        chain.store.wait_idle().unwrap();
        most = most.max(chain.rows("LvmtTrees"));
    }
    // A block has some 70 groups.
    assert!(most < 12 * 70, "{most} rows");
    chain.prove(&keys[..20]);
}

#[test]
fn a_shard_with_more_than_its_share_is_not_marked_again_and_again() {
    let shard = "0/4".parse().unwrap();
    let mut chain = TestChain::new(common::lvmt(3, shard).with_slack(100), 0);
    let all: Vec<_> = (0..3_000).map(|n| (key(n), Some(vec![1].into()))).collect();
    // Block 0 belongs to this shard.
    chain.block(&all);
    for n in 0..60 {
        chain.block(&[(key(n), Some(vec![2].into()))]);
        chain.store.wait_idle().unwrap();
    }
    chain.store.wait_idle().unwrap();
    let counts = chain.store.counts();
    let (_, keys) = counts.tables.iter().find(|(name, _)| *name == "LvmtKeys").unwrap();
    assert!(keys.reads < 2 * 3_000 + 60 * 10, "{} keys were read", keys.reads);
}

#[test]
fn a_collection_that_fails_is_tried_again() {
    let mut chain = TestChain::new(common::lvmt(2, ProofShard::All).with_slack(50), 0);
    let table = RowTable::new(0x20, "LvmtKeys");
    for n in 0..20 {
        chain.block(&[(key(n), Some(vec![1].into()))]);
    }
    chain.store.flush().unwrap();
    let (kv, values) = (chain.kv.clone(), chain.values.clone());
    drop(chain);
    // Reopen the store: rows that were just folded come from memory.
    let mut chain = TestChain::on(kv, common::lvmt(2, ProofShard::All).with_slack(50), 0);
    chain.values = values;
    let spoilt = key(7).encode();
    let row = chain.kv.snapshot().unwrap().get(table, &spoilt).unwrap().unwrap();
    let set = |row: &[u8]| {
        let mut txn = chain.kv.begin_write().unwrap();
        txn.put(table, &spoilt, row).unwrap();
        txn.commit().unwrap();
    };
    set(&row[..3]);
    let mut random = StdRng::seed_from_u64(4);
    let mut blocks = |chain: &mut TestChain, count| {
        for n in 0..count {
            // Keys other than the damaged one.
            let changes: Vec<_> = (0..4)
                .map(|_| (key(random.random_range(8..20)), Some(vec![3, n].into())))
                .collect();
            chain.block(&changes);
            chain.store.wait_idle().unwrap();
        }
    };
    let kv = chain.kv.clone();
    blocks(&mut chain, 100);
    assert!(chain.rows("LvmtBlocks") > 100, "nothing could be collected");
    let mut txn = kv.begin_write().unwrap();
    txn.put(table, &spoilt, &row).unwrap();
    txn.commit().unwrap();
    blocks(&mut chain, 200);
    blocks(&mut chain, 200);
    assert!(chain.rows("LvmtBlocks") < 200, "{} rows", chain.rows("LvmtBlocks"));
    assert_eq!(chain.faults(), [""; 0]);
}

#[test]
fn a_revert_brings_back_what_it_makes_live_again() {
    let mut chain = TestChain::new(common::lvmt(2, ProofShard::All).with_slack(0), 32);
    let mut random = StdRng::seed_from_u64(3);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    for round in 0..6 {
        for _ in 0..30 {
            chain.random_block(&mut random, KEYS, 8, 6);
        }
        let (before, values) = (chain.number - 1, chain.values.clone());
        let proof = chain.prove(&keys);
        // All keys change, and the old tuples are collected.
        for n in 0..20 {
            let all: Vec<_> = keys.iter().map(|key| (*key, Some(vec![n, round].into()))).collect();
            chain.block(&all);
            chain.store.wait_idle().unwrap();
        }
        chain.prove(&keys);
        chain.revert(before, values);
        assert_eq!(chain.prove(&keys), proof);
        assert_eq!(chain.faults(), [""; 0]);
    }
}
