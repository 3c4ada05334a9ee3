//! Rows that commits write ahead and remove: they do not change roots, are there when they are
//! needed, and are removed afterwards.

use crate::common;

use common::{NEVER, TestChain, changes, every, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::StateError;
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_state_testkit::{FaultPlan, FaultStore};
use retrie_storage_lmpt::{LAYERS, LISTS, Lmpt, LmptParams, META, SNAPSHOT};
use std::{sync::Arc, time::Duration};

const KEYS: u64 = 300;

fn all_keys() -> Vec<retrie_state::StateKey> {
    (0..KEYS + 3).map(key).collect()
}

#[test]
fn merges_are_written_before_they_are_published_and_what_is_useless_goes() {
    let (retention, interval) = (5, 20);
    let mut chain = TestChain::new(every(interval), retention);
    let random = &mut StdRng::seed_from_u64(1);
    for n in 0..250 {
        chain.block(&changes(random, KEYS, 40));
        chain.wait_idle();
        if n % 50 == 49 {
            assert_eq!(chain.faults(), [""; 0], "block {n}");
        }
    }
    // Keys of rows written ahead end in 1. Nearly all rows of later merges were written ahead.
    let rows = chain.rows(SNAPSHOT);
    let of = |origin: u8| {
        rows.iter().filter(|(key, _)| key.ends_with(&[origin]) && key[key.len() - 2] != 0).count()
    };
    assert!(of(1) > 50 && of(0) == 0, "{} settled, {} not", of(1), of(0));
    // The live generations, and at most one that is being removed.
    let generations: std::collections::BTreeSet<_> =
        chain.rows(LAYERS).iter().map(|(key, _)| key[..8].to_vec()).collect();
    assert!(generations.len() <= 3, "{generations:?}");
    assert!(chain.rows(LISTS).len() <= 2 && chain.rows(META).len() <= 5);
    // About the rows of one merge of all keys, and the rows ahead of the next merge.
    let branches = rows.iter().filter(|(key, _)| key.len() > 10).count();
    assert!(branches < 2 * KEYS as usize, "{branches} rows of {KEYS} keys");
}

/// The same blocks give the same roots, for any speed of jobs, with garbage removal or without, for
/// different intervals.
#[test]
fn roots_do_not_depend_on_speed_or_on_what_was_settled() {
    let by_keys = LmptParams { interval: NEVER, keys: 60, least: 3 };
    for params in [every(1), every(4), every(17), by_keys] {
        let run = |retention: u64, slow: bool, reopen: bool| {
            let mut chain = TestChain::new(params, retention);
            let random = &mut StdRng::seed_from_u64(2);
            for n in 0..90 {
                if reopen && n % 7 == 3 {
                    chain.reopen();
                }
                if slow {
                    chain.store().jobs().set_delay(Duration::from_millis(2));
                } else if n % 3 == 0 {
                    chain.wait_idle();
                }
                chain.block(&changes(random, KEYS, 25));
            }
            chain.check_block(89, &all_keys());
            assert_eq!(chain.faults(), [""; 0]);
            chain.roots
        };
        let expected = run(0, false, false);
        for (retention, slow, reopen) in
            [(0, true, true), (3, false, true), (3, true, false), (64, false, false)]
        {
            assert_eq!(run(retention, slow, reopen), expected, "{params} {retention}");
        }
    }
}

/// The same for merges in many steps into the snapshot of a young chain, interrupted by restarts.
#[test]
fn merges_of_many_steps_go_on_after_restarts_to_the_same_roots() {
    let run = |retention: u64, slow: bool, restarts: bool| {
        let mut chain = TestChain::new(every(12), retention);
        let random = &mut StdRng::seed_from_u64(7);
        chain.block(&changes(random, 20, 20));
        for n in 1..50 {
            if restarts && n % 5 == 3 {
                chain.reopen();
            }
            chain.store().jobs().set_delay(Duration::from_millis(if slow { 3 } else { 0 }));
            if !slow && n % 4 == 0 {
                chain.wait_idle();
            }
            chain.block(&changes(random, 4_000, 300));
        }
        assert_eq!(chain.faults(), [""; 0], "{retention} {slow} {restarts}");
        chain.roots
    };
    let expected = run(0, false, false);
    for (retention, slow, restarts) in [(0, true, true), (3, false, true), (3, true, false)] {
        assert_eq!(run(retention, slow, restarts), expected);
    }
}

#[test]
fn reorganisations_across_boundaries_end_in_the_same_roots_and_sound_rows() {
    for (interval, retention) in [(1, 9), (3, 9), (8, 9), (13, 9), (20, 9)] {
        let mut chain = TestChain::new(every(interval), retention);
        let random = &mut StdRng::seed_from_u64(interval);
        for round in 0..60 {
            for _ in 0..random.random_range(1..8) {
                chain.block(&changes(random, KEYS, 25));
                if random.random_ratio(1, 2) {
                    chain.wait_idle();
                }
            }
            let tip = chain.number() - 1;
            let first = *chain.store().retained().unwrap().start();
            match random.random_range(0..4) {
                0 => chain.reopen(),
                1 | 2 => chain.revert(random.random_range(first..=tip)),
                _ => {
                    for number in first..=tip {
                        chain.check_block(number, &[key(1), key(2), key(5), key(KEYS + 1)]);
                    }
                }
            }
            if round % 10 == 9 {
                assert_eq!(chain.faults(), [""; 0], "interval {interval}, round {round}");
            }
        }
        // The remaining blocks on a chain of their own.
        let tip = chain.number() - 1;
        chain.check_block(tip, &all_keys());
        let mut alone = TestChain::new(every(interval), 0);
        let mut before = Default::default();
        for after in &chain.states {
            let changes = retain_changes(&before, after);
            alone.block(&changes);
            before = after.clone();
        }
        assert_eq!(alone.roots, chain.roots, "interval {interval}");
    }
}

fn retain_changes(
    before: &common::StateEntries,
    after: &common::StateEntries,
) -> common::BlockChanges {
    let set = after.iter().filter(|(key, value)| before.get(*key) != Some(*value));
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    set.map(|(key, value)| (*key, Some(value.clone())))
        .chain(gone.map(|key| (*key, None)))
        .collect()
}

/// Two blocks publish one merge: one was proposed before its rows were written ahead, one after.
/// The first is committed and reverted, which removes the rows that it wrote. The second must still
/// find its rows.
#[test]
fn a_block_that_counts_on_settled_rows_outlives_one_that_wrote_them_itself() {
    let (retention, interval) = (3, 8);
    let mut chain = TestChain::new(every(interval), retention);
    let random = &mut StdRng::seed_from_u64(5);
    // Boundaries are blocks 9 and 17; blocks up to 16 are proposed before 12 is committed.
    while chain.number() < 12 {
        chain.block(&changes(random, KEYS, 60));
    }
    let mut before = chain.tip_entries();
    let mut ahead = Vec::new();
    for number in 12..=17 {
        let at = ahead.last().map_or(StateId::Tip, |(proposal, _)| StateId::Proposal(proposal));
        let made = chain.propose(at, number, &before, &changes(random, KEYS, 20)).unwrap();
        before = made.1.clone();
        ahead.push(made);
    }
    let (early, early_after) = ahead.pop().unwrap();
    chain.wait_idle();
    for (proposal, after) in &ahead {
        chain.commit(proposal, after.clone());
    }
    drop(ahead);
    // Since block 12, block 9 cannot be reverted; the rows of the merge are written ahead.
    let settled = chain.rows(SNAPSHOT).iter().filter(|(key, _)| key.ends_with(&[1])).count();
    assert!(settled > 20, "{settled} rows");
    chain.branch += 1;
    let tip = chain.tip_entries();
    let (late, late_after) =
        chain.propose(StateId::Tip, 17, &tip, &changes(random, KEYS, 20)).unwrap();
    chain.commit(&early, early_after);
    chain.check_block(17, &all_keys());
    chain.revert(16);
    drop(early);
    chain.commit(&late, late_after);
    chain.check_block(17, &all_keys());
    assert_eq!(chain.faults(), [""; 0]);
    chain.reopen();
    for _ in 0..20 {
        chain.block(&changes(random, KEYS, 20));
    }
    chain.check_block(37, &all_keys());
    assert_eq!(chain.faults(), [""; 0]);
}

/// A full disk or a kill at many different writes: folding, writing ahead, publishing, removing
/// garbage. All committed blocks are there, and the chain continues with the same roots.
#[test]
fn a_failing_store_loses_nothing_and_the_same_blocks_go_on_to_the_same_roots() {
    let random = &mut StdRng::seed_from_u64(6);
    let blocks: Vec<_> = (0..44).map(|_| changes(random, KEYS, 30)).collect();
    let mut whole = TestChain::new(every(9), 3);
    blocks.iter().for_each(|changes| _ = whole.block(changes));
    let counted = FaultPlan::new(0, false);
    let all = {
        let kv = MemoryStore::new();
        assert_eq!(run_on(&kv, &counted, &whole, &blocks), 44);
        counted.writes()
    };
    for n in 0..60 {
        let kv = MemoryStore::new();
        let done = run_on(&kv, &FaultPlan::new(1 + all * n / 60, n % 2 == 0), &whole, &blocks);
        assert!(done <= 44);
        assert_eq!(run_on(&kv, &FaultPlan::new(0, false), &whole, &blocks), 44);
        let mut again = TestChain::new(every(9), 3);
        (again.states, again.hashes) = (whole.states.clone(), whole.hashes.clone());
        again.roots.clone_from(&whole.roots);
        let options = again.options.clone();
        again.replace_store(common::open(every(9), &kv, &options));
        again.check_block(43, &all_keys());
        assert_eq!(again.faults(), [""; 0], "killed at a write of {all}: {n}/60");
    }
}

/// Continues with `blocks` from the tip of `kv` until the store fails. Returns the number of blocks
/// on it.
fn run_on(
    kv: &MemoryStore,
    faults: &Arc<FaultPlan>,
    whole: &TestChain,
    blocks: &[common::BlockChanges],
) -> u64 {
    let failing: Arc<dyn KvStore> = Arc::new(FaultStore::new(Arc::new(kv.clone()), faults.clone()));
    let options = StoreOptions { fold_bytes: 1, fold_commits: 3, ..whole.options.clone() };
    let backend = Arc::new(Lmpt::new(every(9)).unwrap());
    let Ok(store) = StateStore::open(backend, failing.clone(), options) else { return 0 };
    let next = |store: &StateStore| store.tip().map_or(0, |tip| tip.block.number + 1);
    while let number @ 0..44 = next(&store) {
        let at = number as usize;
        let empty = common::StateEntries::new();
        let before = at.checked_sub(1).map_or(&empty, |last| &whole.states[last]);
        let delta = TestChain::delta(before, &blocks[at]);
        let commit = || -> Result<(), StateError> {
            let proposal = store.begin(StateId::Tip)?.finish_as(number, &delta)?;
            assert_eq!(proposal.root(), whole.roots[at], "block {number}");
            store.seal(&proposal, whole.hashes[at]);
            let mut txn = failing.begin_write()?;
            let after = store.commit(&[proposal], &mut *txn)?;
            txn.commit()?;
            after.run()
        };
        if commit().is_err() {
            assert!(faults.is_dead());
            break;
        }
        if number % 3 == 0 && store.wait_idle().is_err() {
            break;
        }
    }
    next(&store)
}
