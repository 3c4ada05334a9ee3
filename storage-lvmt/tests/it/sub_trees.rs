//! Proofs from the trees of sub-AMTs that blocks maintain, compared with proofs that are computed
//! from all entries.

use crate::common;

use common::chain::{TestChain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_storage_lvmt::ProofShard;
use std::time::Duration;

const HEIGHT: u8 = 5;
const KEYS: u64 = 600;

/// The store of `chain`, opened by a node that has no trees yet.
fn reopened(chain: &TestChain) -> TestChain {
    let backend = common::lvmt(HEIGHT, ProofShard::All);
    let mut other = TestChain::on(chain.kv.clone(), backend, 16);
    other.values = chain.values.clone();
    other
}

/// Compares proofs at the tip with those of a node that reads all entries. Returns how many records
/// `chain` and the other node have read for it.
fn compare(chain: &TestChain, random: &mut StdRng) -> [u64; 2] {
    let other = reopened(chain);
    let records = |chain: &TestChain| chain.store.counts().table("LvmtKeys").reads;
    // Makes the tree of the root AMT.
    other.prove(&[key(0)]);
    let before = [chain, &other].map(records);
    for count in [1, 1, 1, 8] {
        // Some of the keys are absent.
        let keys: Vec<_> = (0..count).map(|_| key(random.random_range(0..KEYS + 100))).collect();
        assert_eq!(chain.prove(&keys).bytes, other.prove(&keys).bytes);
    }
    let after = [chain, &other].map(records);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn maintained_trees_prove_what_all_entries_do() {
    let mut random = StdRng::seed_from_u64(17);
    // Made from the first block on, or after opening by jobs of different durations.
    for delay in [None, Some(0), Some(200), Some(4_000)] {
        let mut chain = TestChain::new(common::lvmt(HEIGHT, ProofShard::All), 16);
        for _ in 0..12 {
            chain.random_block(&mut random, KEYS, 80, 5);
        }
        if let Some(delay) = delay {
            chain.store.wait_idle().unwrap();
            let first = chain;
            chain = reopened(&first);
            drop(first);
            chain.store.jobs().set_delay(Duration::from_micros(delay));
        }
        for n in 0..12 {
            chain.random_block(&mut random, KEYS, 30, 5);
            if n % 4 == 3 {
                // Other blocks instead of the last few.
                let (number, values) = (chain.number - 1, chain.values.clone());
                for _ in 0..random.random_range(1..4) {
                    chain.random_block(&mut random, KEYS, 30, 5);
                }
                chain.revert(number, values);
                compare(&chain, &mut random);
            }
        }
        // All pieces are ready now, whatever the jobs took.
        chain.store.jobs().set_delay(Duration::ZERO);
        for _ in 0..8 {
            chain.store.wait_idle().unwrap();
            chain.random_block(&mut random, KEYS, 30, 5);
        }
        let [own, all] = compare(&chain, &mut random);
        // Both read the occupants of the root AMT's entries.
        assert!(3 * own < 2 * all, "{own} records with the trees, {all} without, {delay:?}");
    }
}
