//! Rows of pairs go once no retained state can see them, without undo; and no earlier.

use crate::common::{Chain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{At, Direction, KeyRange, KvStore, StateReader, Table};
use retrie_storage_cole::Params;

const KEYS: u64 = 70;

/// The blocks that have rows of pairs, oldest first.
fn blocks_with_rows(chain: &Chain) -> Vec<u64> {
    chain.store().flush().unwrap();
    let table = Table::new(0x40, "ColeMemory");
    let snapshot = chain.kv.snapshot().unwrap();
    let rows = snapshot.scan(table, KeyRange::ALL, Direction::Forward, usize::MAX).unwrap();
    let block = |key: &[u8]| u64::from_be_bytes(*key.first_chunk().unwrap());
    let mut blocks: Vec<_> = rows.iter().map(|(key, _)| block(key)).collect();
    blocks.dedup();
    blocks
}

fn params(async_merge: bool) -> Params {
    Params { async_merge, memory_pairs: 30, size_ratio: 2, ..Params::default() }
}

#[test]
fn rows_stay_in_proportion_to_retention_and_the_memory_level() {
    for async_merge in [false, true] {
        for retention in [0, 5, 40] {
            let mut chain = Chain::new(params(async_merge), retention);
            let random = &mut StdRng::seed_from_u64(retention);
            for n in 0..300u64 {
                chain.random_block(random, KEYS, 12);
                if n % 50 == 49 {
                    let blocks = blocks_with_rows(&chain);
                    // A group fills in six blocks or so, and there are two of them. Checkpoints that
                    // lie further back are remembered less closely.
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
        let mut chain = Chain::new(params(async_merge), retention);
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
                    // Not one of those in memory: opened from rows below the tip.
                    let state = chain.store().at(At::Block(Chain::hash(number))).unwrap();
                    assert_eq!(state.root(), roots[number as usize]);
                    for n in 0..KEYS {
                        assert_eq!(state.get(&key(n)).unwrap(), chain.value(&key(n), number));
                    }
                    let keys = [key(1), key(2), key(KEYS + 1)];
                    let proof = state.prove(&keys).unwrap();
                    let shown = chain.store().backend().verify(proof.root, &keys, &proof.bytes);
                    assert_eq!(shown.unwrap(), keys.map(|key| chain.value(&key, number)));
                }
                chain.reopen();
                chain.revert(tip - random.random_range(0..=retention.min(tip)));
            }
        }
        assert_eq!(chain.faults(), [""; 0]);
    }
}

/// Clean-up is no part of a block: the same blocks in one commit or in many leave the same roots, and
/// in the end the same rows but for those that wait.
#[test]
fn what_waits_to_be_removed_has_no_say_in_roots() {
    let run = |retention: u64, reopen: bool| {
        let mut chain = Chain::new(params(true), retention);
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
