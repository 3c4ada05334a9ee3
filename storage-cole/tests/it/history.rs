//! Old states and provenance compared with a model, across flushes, merges and pruning.

use crate::common::{TestChain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{ProofError, StateError, StateKey, StateProof, StateReader, ValueVersion};
use retrie_storage_cole::ColeParams;
use std::ops::RangeInclusive;

const KEYS: u64 = 90;

fn small(async_merge: bool) -> ColeParams {
    ColeParams { async_merge, memory_pairs: 20, size_ratio: 2, ..ColeParams::default() }
}

/// The versions that a proof shows for a range that may differ from the range it was made for.
fn shown(
    chain: &TestChain,
    proof: &StateProof,
    keys: &[StateKey],
    blocks: RangeInclusive<u64>,
) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
    let provenance = chain.store().backend().extensions().provenance.unwrap();
    provenance.verify_versions(
        proof.root,
        &retrie_state::KeyForm::Plain.keys(keys),
        blocks,
        &proof.bytes,
    )
}

/// Compares versions and their proof at the tip with the model.
fn check_versions(chain: &TestChain, keys: &[StateKey], blocks: RangeInclusive<u64>) -> usize {
    let (versions, proof) = chain.tip().versions(keys, blocks.clone()).unwrap();
    let (from, to) = (*blocks.start(), *blocks.end());
    let expected: Vec<_> = keys.iter().map(|key| chain.versions(key, from, to)).collect();
    assert_eq!(versions, expected, "blocks {blocks:?}");
    assert_eq!(shown(chain, &proof, keys, blocks.clone()).unwrap(), expected, "blocks {blocks:?}");
    proof.bytes.len()
}

#[test]
fn versions_in_any_range_are_those_of_the_model() {
    for async_merge in [false, true] {
        let mut chain = TestChain::new(small(async_merge), 6);
        let mut random = StdRng::seed_from_u64(3);
        for n in 0..150 {
            chain.random_block(&mut random, KEYS, 12);
            match n % 11 {
                3 => chain.revert(chain.number - 1 - random.random_range(1..5)),
                7 => chain.reopen(),
                _ => {}
            }
            let tip = chain.number - 1;
            for _ in 0..3 {
                let keys: Vec<_> = (0..random.random_range(1..5))
                    .map(|_| key(random.random_range(0..KEYS + 10)))
                    .collect();
                let from = random.random_range(0..=tip);
                check_versions(&chain, &keys, from..=random.random_range(from..=tip));
                check_versions(&chain, &keys, from..=from);
                check_versions(&chain, &keys, 0..=tip);
            }
        }
        assert_eq!(chain.faults(), [""; 0]);
    }
}

#[test]
fn a_proof_of_one_range_shows_nothing_false_for_another() {
    let mut chain = TestChain::new(small(true), 6);
    let mut random = StdRng::seed_from_u64(4);
    for _ in 0..80 {
        chain.random_block(&mut random, 30, 12);
    }
    let tip = chain.number - 1;
    for _ in 0..300 {
        let keys = [key(random.random_range(0..30)), key(random.random_range(0..40))];
        let mut range = || {
            let from = random.random_range(0..=tip);
            from..=random.random_range(from..=tip)
        };
        let (made, asked) = (range(), range());
        let (_, proof) = chain.tip().versions(&keys, made).unwrap();
        if let Ok(shown) = shown(&chain, &proof, &keys, asked.clone()) {
            let of = |key| chain.versions(key, *asked.start(), *asked.end());
            assert_eq!(shown, keys.iter().map(of).collect::<Vec<_>>());
        }
    }
}

#[test]
fn merges_drop_what_is_older_than_the_history_that_is_kept() {
    for async_merge in [false, true] {
        let mut chain = TestChain::new(ColeParams { keep_history: 15, ..small(async_merge) }, 3);
        let mut whole = TestChain::new(small(async_merge), 3);
        let mut random = StdRng::seed_from_u64(5);
        let mut twin = StdRng::seed_from_u64(5);
        for n in 0..250 {
            chain.random_block(&mut random, KEYS, 12);
            whole.random_block(&mut twin, KEYS, 12);
            if n % 40 == 39 {
                chain.reopen();
            }
            let tip = chain.number - 1;
            let kept = chain.store().history_kept().unwrap().unwrap();
            // All requested history is there.
            assert!(*kept.start() <= tip.saturating_sub(15) && *kept.end() == tip);
            for number in [*kept.start(), (*kept.start() + tip) / 2, tip] {
                let past = chain.past(number).unwrap();
                for n in 0..KEYS {
                    assert_eq!(past.get(&key(n)).unwrap(), chain.value(&key(n), number));
                }
            }
            if let Some(before) = kept.start().checked_sub(1) {
                let error = chain.past(before).map(drop).unwrap_err();
                assert!(matches!(error, StateError::NotInHistory { .. }), "{error}");
                let keys = [key(1)];
                let error = chain.tip().versions(&keys, before..=tip).map(drop);
                assert!(error.is_err());
            }
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            let proof = chain.tip().prove(&keys).unwrap();
            let shown = chain
                .store()
                .backend()
                .verify(proof.root, &retrie_state::KeyForm::Plain.keys(&keys), &proof.bytes)
                .unwrap();
            let expected: Vec<_> = keys.iter().map(|key| chain.value(key, tip)).collect();
            assert_eq!(shown, expected);
        }
        assert!(*chain.store().history_kept().unwrap().unwrap().start() > 100);
        let bytes = |chain: &TestChain| {
            chain.store().wait_idle().unwrap();
            chain.store().stats().unwrap().file_bytes
        };
        assert!(bytes(&chain) < bytes(&whole), "{} of {}", bytes(&chain), bytes(&whole));
        assert_eq!((chain.faults(), whole.faults()), (vec![], vec![]));
    }
}

fn versions_of(
    chain: &TestChain,
    keys: &[StateKey],
    blocks: &RangeInclusive<u64>,
) -> Vec<Vec<ValueVersion>> {
    keys.iter().map(|key| chain.versions(key, *blocks.start(), *blocks.end())).collect()
}

/// The very property of version trees (COLE+).
#[test]
fn with_version_trees_roots_and_proofs_do_not_depend_on_the_history_that_is_kept() {
    for async_merge in [false, true] {
        let params = ColeParams { version_trees: true, ..small(async_merge) };
        let keep = |blocks| ColeParams { keep_history: blocks, ..params };
        let mut whole = TestChain::new(params, 3);
        let mut pruned = [keep(15), keep(60)].map(|params| TestChain::new(params, 3));
        let mut random = StdRng::seed_from_u64(9);
        for n in 0..220 {
            let seed = random.random();
            let block = |chain: &mut TestChain| {
                let root = chain.random_block(&mut StdRng::seed_from_u64(seed), KEYS, 12);
                match n % 40 {
                    19 => chain.reopen(),
                    29 => chain.revert(chain.number - 3),
                    _ => {}
                }
                root
            };
            let root = block(&mut whole);
            let tip = whole.number - 1;
            let keys: Vec<_> = (0..4).map(|_| key(random.random_range(0..KEYS + 9))).collect();
            for chain in &mut pruned {
                assert_eq!(block(chain), root, "block {n}");
                let first = *chain.store().history_kept().unwrap().unwrap().start();
                let from = random.random_range(first..=tip);
                for blocks in [tip..=tip, first..=first, first..=tip, from..=tip] {
                    let of_pruned = chain.tip().versions(&keys, blocks.clone()).unwrap();
                    assert_eq!(of_pruned.0, versions_of(chain, &keys, &blocks));
                    let of_whole = whole.tip().versions(&keys, blocks.clone()).unwrap();
                    assert_eq!(of_pruned.0, of_whole.0);
                    assert!(of_pruned.1.bytes == of_whole.1.bytes, "blocks {blocks:?}");
                    // Each is checked under the parameters of the other.
                    let shown = shown(&whole, &of_pruned.1, &keys, blocks).unwrap();
                    assert_eq!(shown, of_whole.0);
                }
                if let Some(before) = first.checked_sub(1) {
                    assert!(chain.tip().versions(&keys, before..=tip).is_err());
                    let (_, proof) = whole.tip().versions(&keys, 0..=before).unwrap();
                    let shown = shown(chain, &proof, &keys, 0..=before).unwrap();
                    assert_eq!(shown, versions_of(&whole, &keys, &(0..=before)));
                }
            }
        }
        let first = |chain: &TestChain| *chain.store().history_kept().unwrap().unwrap().start();
        let [short, long] = &pruned;
        let firsts = [first(&whole), first(long), first(short)];
        assert!(firsts[0] == 0 && firsts[1] > 50 && firsts[2] > 100, "{firsts:?}");
        for chain in [&whole, short, long] {
            assert_eq!(chain.faults(), [""; 0]);
        }
    }
}

#[test]
fn with_version_trees_the_history_that_is_kept_may_change_at_an_opening() {
    let params = ColeParams { version_trees: true, ..small(true) };
    let (mut chain, mut whole) = (TestChain::new(params, 3), TestChain::new(params, 3));
    let first = |chain: &TestChain| *chain.store().history_kept().unwrap().unwrap().start();
    let mut firsts = Vec::new();
    for keep_history in [0, 10, 0, 40] {
        chain.params.keep_history = keep_history;
        chain.reopen();
        for n in 0..60 {
            let seed = 100 * firsts.len() as u64 + n;
            let [root, expected] = [&mut chain, &mut whole]
                .map(|chain| chain.random_block(&mut StdRng::seed_from_u64(seed), KEYS, 12));
            assert_eq!(root, expected);
        }
        firsts.push(first(&chain));
    }
    assert!(firsts[0] == 0 && firsts[1] > 40 && firsts[3] > 160, "{firsts:?}");
    // Merges that had been started before the second opening still drop pairs.
    assert!(firsts[2] < 120, "{firsts:?}");
    assert_eq!(chain.faults(), [""; 0]);
}

#[test]
fn a_single_key_with_many_versions_is_read_at_every_block() {
    let mut chain = TestChain::new(small(true), 2);
    for n in 0..400u64 {
        let value = (n % 7 > 0).then(|| n.to_be_bytes().to_vec().into());
        chain.block(&[(key(1), value), (key(2 + n % 5), Some(vec![n as u8].into()))]);
    }
    for number in 0..400 {
        let past = chain.past(number).unwrap();
        assert_eq!(past.get(&key(1)).unwrap(), chain.value(&key(1), number));
    }
    // Proofs grow with the number of versions shown, not with the number of all versions.
    let size = |blocks| check_versions(&chain, &[key(1)], blocks);
    assert!(size(200..=202) < size(200..=264) / 2);
}

#[test]
fn nothing_is_shown_of_blocks_before_the_first_one() {
    let mut chain = TestChain::new(small(true), 6);
    // As in a datadir that begins with the state of a later block. The first block changes nothing.
    chain.number = 20;
    chain.block(&[]);
    let mut random = StdRng::seed_from_u64(6);
    for _ in 0..30 {
        chain.random_block(&mut random, KEYS, 12);
        let keys = [key(1), key(2)];
        let (_, proof) = chain.tip().versions(&keys, 20..=20).unwrap();
        let shown = |blocks| shown(&chain, &proof, &keys, blocks);
        assert_eq!(shown(20..=20).unwrap(), [vec![], vec![]]);
        // The store does not know these blocks.
        for blocks in [19..=19, 0..=0, 5..=20] {
            assert!(shown(blocks.clone()).is_err(), "blocks {blocks:?}");
        }
    }
}
