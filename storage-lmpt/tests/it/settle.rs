//! What commits write ahead and remove has no say in roots, is there when it is needed, and gone when it
//! is not.

use crate::common;

use common::{Chain, NEVER, changes, every, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{
    At, KvStore, MemoryStore, StateError, StateStore, StoreOptions,
    testkit::{FaultStore, Faults},
};
use retrie_storage_lmpt::{LAYERS, LISTS, Lmpt, META, Params, SNAPSHOT};
use std::{sync::Arc, time::Duration};

const KEYS: u64 = 300;

fn all_keys() -> Vec<retrie_state::StateKey> {
    (0..KEYS + 3).map(key).collect()
}

#[test]
fn merges_are_written_before_they_are_published_and_what_is_useless_goes() {
    let (retention, interval) = (5, 20);
    let mut chain = Chain::new(every(interval), retention);
    let random = &mut StdRng::seed_from_u64(1);
    for n in 0..250 {
        chain.block(&changes(random, KEYS, 40));
        chain.settle();
        if n % 50 == 49 {
            assert_eq!(chain.faults(), [""; 0], "block {n}");
        }
    }
    // Settled rows end in 1. Nearly all of later merges are.
    let rows = chain.rows(SNAPSHOT);
    let of = |origin: u8| {
        rows.iter().filter(|(key, _)| key.ends_with(&[origin]) && key[key.len() - 2] != 0).count()
    };
    assert!(of(1) > 50 && of(0) == 0, "{} settled, {} not", of(1), of(0));
    // Of the live generations, and of one that is being removed at most.
    let generations: std::collections::BTreeSet<_> =
        chain.rows(LAYERS).iter().map(|(key, _)| key[..8].to_vec()).collect();
    assert!(generations.len() <= 3, "{generations:?}");
    assert!(chain.rows(LISTS).len() <= 2 && chain.rows(META).len() <= 5);
    // As few as one merge of all needs, and what is ahead of the next.
    let branches = rows.iter().filter(|(key, _)| key.len() > 10).count();
    assert!(branches < 2 * KEYS as usize, "{branches} rows of {KEYS} keys");
}

/// The same blocks have the same roots, however far jobs come, with clean-up or without, in all kinds of
/// intervals.
#[test]
fn roots_do_not_depend_on_speed_or_on_what_was_settled() {
    let by_keys = Params { interval: NEVER, keys: 60, least: 3 };
    for params in [every(1), every(4), every(17), by_keys] {
        let run = |retention: u64, slow: bool, reopen: bool| {
            let mut chain = Chain::new(params, retention);
            let random = &mut StdRng::seed_from_u64(2);
            for n in 0..90 {
                if reopen && n % 7 == 3 {
                    chain.reopen();
                }
                if slow {
                    chain.store().jobs().set_delay(Duration::from_millis(2));
                } else if n % 3 == 0 {
                    chain.settle();
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

/// The same for merges of many steps into the snapshot of a young chain, which restarts cut short.
#[test]
fn merges_of_many_steps_go_on_after_restarts_to_the_same_roots() {
    let run = |retention: u64, slow: bool, restarts: bool| {
        let mut chain = Chain::new(every(12), retention);
        let random = &mut StdRng::seed_from_u64(7);
        chain.block(&changes(random, 20, 20));
        for n in 1..50 {
            if restarts && n % 5 == 3 {
                chain.reopen();
            }
            chain.store().jobs().set_delay(Duration::from_millis(if slow { 3 } else { 0 }));
            if !slow && n % 4 == 0 {
                chain.settle();
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
        let mut chain = Chain::new(every(interval), retention);
        let random = &mut StdRng::seed_from_u64(interval);
        for round in 0..60 {
            for _ in 0..random.random_range(1..8) {
                chain.block(&changes(random, KEYS, 25));
                if random.random_ratio(1, 2) {
                    chain.settle();
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
        // The blocks that are left, alone.
        let tip = chain.number() - 1;
        chain.check_block(tip, &all_keys());
        let mut alone = Chain::new(every(interval), 0);
        let mut before = Default::default();
        for after in &chain.states {
            let changes = retain_changes(&before, after);
            alone.block(&changes);
            before = after.clone();
        }
        assert_eq!(alone.roots, chain.roots, "interval {interval}");
    }
}

fn retain_changes(before: &common::Entries, after: &common::Entries) -> common::Changes {
    let set = after.iter().filter(|(key, value)| before.get(*key) != Some(*value));
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    set.map(|(key, value)| (*key, Some(value.clone())))
        .chain(gone.map(|key| (*key, None)))
        .collect()
}

/// Two blocks publish one merge: one proposed before its rows were settled, one after. The first is
/// committed and reverted, which takes away the rows that it brought; the second must not miss them.
#[test]
fn a_block_that_counts_on_settled_rows_outlives_one_that_wrote_them_itself() {
    let (retention, interval) = (3, 8);
    let mut chain = Chain::new(every(interval), retention);
    let random = &mut StdRng::seed_from_u64(5);
    // Boundaries are blocks 9 and 17; blocks up to 16 are proposed before 12 is committed.
    while chain.number() < 12 {
        chain.block(&changes(random, KEYS, 60));
    }
    let mut before = chain.tip_entries();
    let mut ahead = Vec::new();
    for number in 12..=17 {
        let at = ahead.last().map_or(At::Tip, |(proposal, _)| At::Proposal(proposal));
        let made = chain.propose(at, number, &before, &changes(random, KEYS, 20)).unwrap();
        before = made.1.clone();
        ahead.push(made);
    }
    let (early, early_after) = ahead.pop().unwrap();
    chain.settle();
    for (proposal, after) in &ahead {
        chain.commit(proposal, after.clone());
    }
    drop(ahead);
    // Block 9 cannot be reverted since 12; the merge is settled.
    let settled = chain.rows(SNAPSHOT).iter().filter(|(key, _)| key.ends_with(&[1])).count();
    assert!(settled > 20, "{settled} rows");
    chain.branch += 1;
    let tip = chain.tip_entries();
    let (late, late_after) = chain.propose(At::Tip, 17, &tip, &changes(random, KEYS, 20)).unwrap();
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

/// A full disk, or a kill, at writes all along: folding, settling, publishing, cleaning up. What was
/// committed is there, and the chain goes on to the same roots.
#[test]
fn a_failing_store_loses_nothing_and_the_same_blocks_go_on_to_the_same_roots() {
    let random = &mut StdRng::seed_from_u64(6);
    let blocks: Vec<_> = (0..44).map(|_| changes(random, KEYS, 30)).collect();
    let mut whole = Chain::new(every(9), 3);
    blocks.iter().for_each(|changes| _ = whole.block(changes));
    let counted = Faults::new(0, false);
    let all = {
        let kv = MemoryStore::new();
        assert_eq!(run_on(&kv, &counted, &whole, &blocks), 44);
        counted.writes()
    };
    for n in 0..60 {
        let kv = MemoryStore::new();
        let done = run_on(&kv, &Faults::new(1 + all * n / 60, n % 2 == 0), &whole, &blocks);
        assert!(done <= 44);
        assert_eq!(run_on(&kv, &Faults::new(0, false), &whole, &blocks), 44);
        let mut again = Chain::new(every(9), 3);
        (again.states, again.hashes) = (whole.states.clone(), whole.hashes.clone());
        again.roots.clone_from(&whole.roots);
        let options = again.options.clone();
        again.replace_store(common::open(every(9), &kv, &options));
        again.check_block(43, &all_keys());
        assert_eq!(again.faults(), [""; 0], "killed at a write of {all}: {n}/60");
    }
}

/// Goes on with `blocks` from where `kv` stands until it fails; the number of blocks that are there.
fn run_on(
    kv: &MemoryStore,
    faults: &Arc<Faults>,
    whole: &Chain,
    blocks: &[common::Changes],
) -> u64 {
    let failing: Arc<dyn KvStore> = Arc::new(FaultStore::new(Arc::new(kv.clone()), faults.clone()));
    let options = StoreOptions { fold_bytes: 1, fold_commits: 3, ..whole.options.clone() };
    let backend = Arc::new(Lmpt::new(every(9)).unwrap());
    let Ok(store) = StateStore::open(backend, failing.clone(), options) else { return 0 };
    let next = |store: &StateStore| store.tip().map_or(0, |tip| tip.block.number + 1);
    while let number @ 0..44 = next(&store) {
        let at = number as usize;
        let empty = common::Entries::new();
        let before = at.checked_sub(1).map_or(&empty, |last| &whole.states[last]);
        let delta = Chain::delta(before, &blocks[at]);
        let commit = || -> Result<(), StateError> {
            let proposal = store.begin(At::Tip)?.finish_as(number, &delta)?;
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
        if number % 3 == 0 && store.settle().is_err() {
            break;
        }
    }
    next(&store)
}
