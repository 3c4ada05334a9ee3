//! Rows of pairs are removed when no retained state can read them, without undo; and not earlier.

use crate::common::{TestChain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateReader};
use retrie_state_store::{KvStore, StateId};
use retrie_storage_cole::ColeParams;

const KEYS: u64 = 70;

/// The blocks that have rows of pairs, oldest first.
fn blocks_with_rows(chain: &TestChain) -> Vec<u64> {
    chain.store().flush().unwrap();
    let table = RowTable::new(0x40, "ColeMemory");
    let snapshot = chain.kv.snapshot().unwrap();
    let rows = snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
    let block = |key: &[u8]| u64::from_be_bytes(*key.first_chunk().unwrap());
    let mut blocks: Vec<_> = rows.iter().map(|(key, _)| block(key)).collect();
    blocks.dedup();
    blocks
}

fn params(async_merge: bool) -> ColeParams {
    ColeParams { async_merge, memory_pairs: 30, size_ratio: 2, ..ColeParams::default() }
}

#[test]
fn rows_stay_in_proportion_to_retention_and_the_memory_level() {
    for async_merge in [false, true] {
        for retention in [0, 5, 40] {
            let mut chain = TestChain::new(params(async_merge), retention);
            let random = &mut StdRng::seed_from_u64(retention);
            for n in 0..300u64 {
                chain.random_block(random, KEYS, 12);
                if n % 50 == 49 {
                    let blocks = blocks_with_rows(&chain);
                    // A group fills in about six blocks, and there are two groups. Older
                    // checkpoints are remembered less precisely.
                    let most = retention + retention / 3 + 40;
                    assert!(blocks.iter().all(|block| block + most >= n), "{n}: {blocks:?}");
                }
            }
            assert_eq!(chain.faults(), [""; 0]);
        }
    }
}

#[test]
fn every_retained_state_is_there_after_reopening_and_reverting() {
    for async_merge in [false, true] {
        let retention = 9;
        let mut chain = TestChain::new(params(async_merge), retention);
        let random = &mut StdRng::seed_from_u64(8);
        let mut roots = Vec::new();
        for n in 0..200u64 {
            roots.truncate(chain.number as usize);
            roots.push(chain.random_block(random, KEYS, 12));
            if n % 13 == 5 {
                chain.reopen();
            }
            if n % 17 == 11 {
                let tip = chain.number - 1;
                for number in tip.saturating_sub(retention)..=tip {
                    // Not a state in memory: opened from rows below the tip.
                    let state = chain.store().at(StateId::Block(TestChain::hash(number))).unwrap();
                    assert_eq!(state.root(), roots[number as usize]);
                    for n in 0..KEYS {
                        assert_eq!(state.get(&key(n)).unwrap(), chain.value(&key(n), number));
                    }
                    let keys = [key(1), key(2), key(KEYS + 1)];
                    let proof = state.prove(&keys).unwrap();
                    let shown = chain.store().backend().verify(
                        proof.root,
                        &retrie_state::KeyForm::Plain.keys(&keys),
                        &proof.bytes,
                    );
                    assert_eq!(shown.unwrap(), keys.map(|key| chain.value(&key, number)));
                }
                chain.reopen();
                chain.revert(tip - random.random_range(0..=retention.min(tip)));
            }
        }
        assert_eq!(chain.faults(), [""; 0]);
    }
}

/// Removing rows is no part of a block. The same blocks in one commit or in many give the same
/// roots, and in the end the same rows except for rows that wait to be removed.
#[test]
fn what_waits_to_be_removed_has_no_say_in_roots() {
    let run = |retention: u64, reopen: bool| {
        let mut chain = TestChain::new(params(true), retention);
        let random = &mut StdRng::seed_from_u64(9);
        let roots: Vec<_> = (0..120)
            .map(|n| {
                if reopen && n % 7 == 3 {
                    chain.reopen();
                }
                chain.random_block(random, KEYS, 12)
            })
            .collect();
        let rows = blocks_with_rows(&chain).len();
        (roots, rows)
    };
    let (expected, few) = run(0, false);
    for (retention, reopen) in [(0, true), (8, false), (200, false), (200, true)] {
        let (roots, rows) = run(retention, reopen);
        assert_eq!(roots, expected);
        assert!(rows >= few, "{rows} of {few}");
    }
    assert!(run(200, false).1 > 90, "nothing may go that a retained state can see");
}
