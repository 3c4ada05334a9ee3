//! Reopening, reverting, pruning, refusals, kills and leftover files.

use super::{
    FaultPlan, FaultStore, TestKit,
    flat_history::KeptChain,
    model::{BlockMiner, BlockPtr, BlockSize, ValueFlavour},
    node::{KnownRoots, TestNode, options, temp_dir},
};
use alloy_primitives::B256;
use rand::Rng;
use retrie_state::{BlockRef, StateError, StateReader};
use retrie_state_store::{FlatHistory, StateId, StoreOptions};
use std::{collections::BTreeMap, fs, sync::Arc};

/// The store is dropped and reopened at random moments. Folds run all the time, never (the journal
/// is replayed), or sometimes.
///
/// # Panics
/// If committed data is lost, or other data appears.
pub fn reopening_loses_nothing(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let settings = [
            options(5, true),
            options(5, false),
            StoreOptions { fold_commits: 3, ..options(5, false) },
            StoreOptions { fold_bytes: 4096, ..options(5, false) },
        ];
        for setting in settings {
            let mut node = TestNode::new(kit, &roots, setting);
            node.reopen();
            assert_eq!(node.store().tip(), None);
            let mut chain: Vec<BlockPtr> = Vec::new();
            for _ in 0..kit.scale.blocks {
                let batch = miner.rng.random_range(1..3);
                let blocks = miner.chain(chain.last(), batch, BlockSize::Any);
                // Proposals that are not committed end with the process.
                let _lost = node.propose_chain(StateId::Tip, &blocks[..1]);
                node.extend(&blocks);
                chain.extend(blocks);
                if miner.rng.random_bool(0.2) {
                    let first = node.first_retained() as usize;
                    chain.truncate(miner.rng.random_range(first..chain.len()) + 1);
                    node.revert(chain[chain.len() - 1].number);
                }
                if miner.rng.random_bool(0.5) {
                    node.reopen();
                    let tip = chain.last().expect("there are blocks");
                    node.check_tip(tip);
                    let first = node.first_retained() as usize;
                    let old = &chain[miner.rng.random_range(first..chain.len())];
                    node.check(StateId::Block(old.hash), old);
                }
            }
            node.reopen();
            node.check_tip(chain.last().expect("there are blocks"));
        }
    });
}

/// The very first commit may have many blocks: each of them within retention can be read, reverted
/// to and extended, by the store that has committed it and after reopening.
///
/// # Panics
/// If a state is lost or wrong.
pub fn a_first_commit_of_many_blocks_keeps_them(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let chain = miner.chain(None, kit.scale.blocks, BlockSize::Any);
        let tip = chain.len() - 1;
        for (depth, reopen) in [(tip + 1, false), (tip, true), (tip / 2, true)] {
            let mut node =
                TestNode::new(kit, &roots, options(depth as u64, seed.is_multiple_of(2)));
            node.extend(&chain);
            if reopen {
                node.reopen();
            }
            let first = tip.saturating_sub(depth);
            assert_eq!(node.first_retained(), first as u64);
            for block in &chain[first..] {
                node.check(StateId::Block(block.hash), block);
            }
            for block in chain[first..].iter().rev() {
                node.revert(block.number);
                node.check_tip(block);
            }
            node.extend_each(&chain[first + 1..]);
            node.check_tip(&chain[tip]);
        }
    });
}

/// From the same tip, the chain is reverted to each depth within retention, extended with other
/// blocks, reverted again, and extended with the same blocks as before.
///
/// # Panics
/// If a revert does not restore the state and its cache, or a revert beyond retention does not
/// fail.
pub fn reverting_to_every_depth_restores_the_state(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let retention = 10;
        let mut node = TestNode::new(kit, &roots, options(retention, seed.is_multiple_of(2)));
        let chain = miner.chain(None, retention as usize + 4, BlockSize::Any);
        node.extend(&chain[..3]);
        node.extend_each(&chain[3..]);
        let (tip, blocks) = (chain.last().expect("there are blocks"), chain.len());
        for depth in 0..=retention as usize {
            let target = &chain[blocks - 1 - depth];
            node.revert(target.number);
            node.check_tip(target);
            if depth % 3 == 2 {
                node.reopen();
                node.check_tip(target);
            }
            // Other blocks in their place, which are reverted again.
            let others = miner.chain(Some(target), depth.min(3), BlockSize::Any);
            node.extend_each(&others);
            node.check_tip(others.last().unwrap_or(target));
            node.revert(target.number);
            node.check_tip(target);
            // The same blocks again, in one commit for each or in one for all.
            match depth % 2 {
                0 => node.extend_each(&chain[blocks - depth..]),
                _ => node.extend(&chain[blocks - depth..]),
            }
            node.check_tip(tip);
        }
        let first = tip.number - retention;
        match node.try_revert(first - 1) {
            Err(StateError::BeyondRetention { number, first: at, retention: depth }) => {
                assert_eq!((number, at, depth), (first - 1, first, retention));
            }
            other => panic!("BeyondRetention expected, not {other:?}"),
        }
        node.check_tip(tip);
        // Reverts do not extend the retained blocks.
        for number in [first + 2, first + 1, first] {
            node.revert(number);
        }
        node.check_tip(&chain[first as usize]);
        let beyond = node.try_revert(first - 1);
        assert!(matches!(beyond, Err(StateError::BeyondRetention { .. })), "{beyond:?}");
    });
}

/// `prune` deletes the undo of older blocks at once, and nothing else.
///
/// # Panics
/// If older blocks can still be reverted to, or newer ones cannot.
pub fn pruning_shortens_the_way_back(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let mut node = TestNode::new(kit, &roots, options(20, true));
        let chain = miner.chain(None, 10, BlockSize::Any);
        node.extend_each(&chain);
        let prune = |node: &TestNode<'_>, keep| {
            let mut txn = node.kv.begin_write().expect("transaction");
            let after = node.store().prune(keep, &mut *txn).expect("prune");
            txn.commit().expect("commit");
            after.run().expect("after the commit");
        };
        prune(&node, 30);
        assert_eq!(node.store().stats().expect("stats").first_retained, Some(0));
        prune(&node, 3);
        for round in 0..2 {
            node.check_tip(&chain[9]);
            assert_eq!(node.store().stats().expect("stats").first_retained, Some(6));
            let beyond = node.try_revert(5);
            assert!(
                matches!(beyond, Err(StateError::BeyondRetention { first: 6, .. })),
                "{beyond:?}"
            );
            let unknown = node.store().at(StateId::Block(chain[5].hash)).map(drop);
            assert!(matches!(unknown, Err(StateError::UnknownBlock { .. })), "{unknown:?}");
            node.check(StateId::Block(chain[6].hash), &chain[6]);
            if round == 0 {
                node.reopen();
            }
        }
        node.revert(6);
        node.check_tip(&chain[6]);
        node.extend_each(&chain[7..]);
        prune(&node, 0);
        assert_eq!(node.store().stats().expect("stats").undo_rows, 0);
        assert!(matches!(node.try_revert(8), Err(StateError::BeyondRetention { .. })));
        node.check_tip(&chain[9]);
    });
}

/// With retention 0 there are no undo rows and no reverts; forks on the tip still work, and files
/// are deleted as soon as they are retired. The depth can change from one opening to the next.
///
/// # Panics
/// If undo is kept, or a state is lost.
pub fn retention_zero_keeps_no_undo_and_no_old_files(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let mut node = TestNode::new(kit, &roots, options(0, seed.is_multiple_of(2)));
        let blocks = kit.scale.blocks.max(10);
        let chain = miner.chain(None, blocks, BlockSize::Any);
        let (first, rest) = chain.split_at(blocks / 2);
        for pair in first.chunks(2) {
            let side = node.propose(StateId::Tip, &pair[0]);
            node.extend(pair);
            node.check_tip(pair.last().expect("not empty"));
            drop(side);
            assert_eq!(node.store().stats().expect("stats").undo_rows, 0);
            assert_eq!(node.store().counts().undo_bytes, 0);
            let tip = pair.last().expect("not empty");
            for number in tip.number.saturating_sub(2)..tip.number {
                let error = node.try_revert(number);
                assert!(matches!(error, Err(StateError::BeyondRetention { .. })), "{error:?}");
            }
        }
        // Reopened with undo, then without it again.
        node.reopen_with(options(4, true));
        node.check_tip(first.last().expect("not empty"));
        node.extend_each(&rest[..3]);
        node.revert(rest[0].number);
        node.check_tip(&rest[0]);
        node.extend_each(&rest[1..3]);
        node.reopen_with(options(0, true));
        node.extend(&rest[3..4]);
        node.check_tip(&rest[3]);
        assert_eq!(node.store().stats().expect("stats").undo_rows, 0);
        assert!(matches!(node.try_revert(rest[2].number), Err(StateError::BeyondRetention { .. })));
        node.extend_each(&rest[4..]);
        node.check_tip(rest.last().expect("not empty"));
    });
}

/// An invalid request fails with an error that says why, and changes nothing.
///
/// # Panics
/// If it succeeds, or fails for another reason.
pub fn refused_requests_have_typed_errors(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(4, true));
        let store = node.store();
        let nowhere = B256::repeat_byte(0x77);
        let beyond = node.try_revert(0);
        assert!(matches!(beyond, Err(StateError::BeyondRetention { .. })), "{beyond:?}");

        // On an empty store, a child of an unsealed proposal is not the first block.
        let chain = miner.chain(None, 8, BlockSize::Operations(3));
        let first = store.begin(StateId::Tip).expect("session").finish(&chain[0].delta);
        let first = first.expect("proposal");
        let second = node.propose(StateId::Proposal(&first), &chain[1]);
        let error = node.try_commit(&[second]);
        assert!(matches!(error, Err(StateError::NotOnTip { number: 1, .. })), "{error:?}");
        let error = node.try_commit(std::slice::from_ref(&first));
        assert!(matches!(error, Err(StateError::Unsealed { number: 0 })), "{error:?}");
        if store.backend().profile().proofs {
            let error = store.at(StateId::Proposal(&first)).and_then(|state| state.prove(&[]));
            assert!(matches!(error, Err(StateError::Unsealed { number: 0 })), "{error:?}");
        } else {
            let error = store.at(StateId::Tip).and_then(|state| state.prove(&[]));
            assert!(matches!(error, Err(StateError::Unsupported { .. })), "{error:?}");
            assert!(store.backend().verify(B256::ZERO, &[], &[]).is_err());
        }
        assert_eq!(store.tip(), None);
        node.commit(&[]);
        node.extend_each(&chain[..6]);

        for error in [
            store.begin(StateId::Block(nowhere)).map(drop),
            store.at(StateId::Block(nowhere)).map(drop),
            store.root(StateId::Block(nowhere)).map(drop),
            store.at(StateId::Block(nowhere)).and_then(|state| state.entries(None, 1)).map(drop),
        ] {
            let is_unknown =
                matches!(error, Err(StateError::UnknownBlock { hash }) if hash == nowhere);
            assert!(is_unknown, "{error:?}");
        }
        let too_old = store.begin(StateId::Block(chain[0].hash)).map(drop);
        assert!(matches!(too_old, Err(StateError::UnknownBlock { .. })), "{too_old:?}");
        let above = node.try_revert(6);
        assert!(matches!(above, Err(StateError::AboveTip { number: 6, .. })), "{above:?}");
        node.revert(5);

        let (sibling, next) = (
            miner.block(Some(&chain[4]), BlockSize::Any),
            miner.block(Some(&chain[5]), BlockSize::Any),
        );
        let beside = node.propose(StateId::Block(chain[4].hash), &sibling);
        let error = node.try_commit(&[beside]);
        assert!(matches!(error, Err(StateError::NotOnTip { number: 5, .. })), "{error:?}");
        let proposals = node.propose_chain(StateId::Tip, &chain[6..]);
        let gap = node.try_commit(&proposals[1..]);
        assert!(matches!(gap, Err(StateError::NotOnTip { number: 7, .. })), "{gap:?}");
        let twice = node.try_commit(&[proposals[0].clone(), proposals[0].clone()]);
        assert!(matches!(twice, Err(StateError::NotOnTip { number: 6, .. })), "{twice:?}");
        let rival = node.propose(StateId::Tip, &next);
        let mixed = node.try_commit(&[rival, proposals[1].clone()]);
        assert!(matches!(mixed, Err(StateError::NotOnTip { number: 7, .. })), "{mixed:?}");
        let wrong = store.begin(StateId::Tip).expect("session").finish_as(9, &chain[6].delta);
        assert!(matches!(wrong, Err(StateError::NotOnTip { number: 9, .. })), "{wrong:?}");
        let mut txn = node.kv.begin_write().expect("transaction");
        let block = BlockRef::new(0, nowhere);
        let loaded = store.bulk_load(block, &mut std::iter::empty(), &mut *txn).map(drop);
        assert!(matches!(loaded, Err(StateError::NotEmpty { .. })), "{loaded:?}");
        drop(txn);

        // The failed requests changed nothing.
        node.check_tip(&chain[5]);
        node.commit(&proposals);
        node.check_tip(&chain[7]);
        let again = node.try_commit(&proposals);
        assert!(matches!(again, Err(StateError::NotOnTip { .. })), "{again:?}");
        node.check_tip(&chain[7]);
    });
}

/// An [`AfterCommit`](retrie_state_store::AfterCommit) that is dropped leaves the store poisoned, whether its
/// transaction committed or not. After reopening, the store has all that was committed.
///
/// # Panics
/// If a poisoned store still works, or data is lost.
pub fn a_dropped_after_commit_poisons_until_reopened(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let mut node = TestNode::new(kit, &roots, options(6, seed.is_multiple_of(2)));
        let mut chain = miner.chain(None, 4, BlockSize::Any);
        node.extend_each(&chain);
        for (is_revert, becomes_durable) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let tip = chain[chain.len() - 1].clone();
            let old_reader = node.store().at(StateId::Tip).expect("reader");
            let mut txn = node.kv.begin_write().expect("transaction");
            let target = if is_revert {
                drop(node.store().revert(tip.number - 2, &mut *txn).expect("revert"));
                chain[chain.len() - 3].clone()
            } else {
                let block = miner.block(Some(&tip), BlockSize::Any);
                let proposals = node.propose_chain(StateId::Tip, std::slice::from_ref(&block));
                drop(node.store().commit(&proposals, &mut *txn).expect("commit"));
                block
            };
            if becomes_durable {
                txn.commit().expect("commit");
            } else {
                drop(txn);
            }
            let store = node.store();
            for error in [
                store.begin(StateId::Tip).map(drop),
                store.at(StateId::Block(tip.hash)).map(drop),
                store.root(StateId::Tip).map(drop),
                store.stats().map(drop),
                store.flush(),
                node.try_commit(&[]),
                node.try_revert(0),
            ] {
                assert!(matches!(error, Err(StateError::Poisoned)), "{error:?}");
            }
            // A reader that was opened before still reads its own block.
            super::node::check_reader(&old_reader, &tip, ValueFlavour::Ethereum);
            drop(old_reader);
            node.reopen();
            if becomes_durable {
                if is_revert {
                    chain.truncate(chain.len() - 2);
                } else {
                    chain.push(target);
                }
            }
            node.check_tip(chain.last().expect("there are blocks"));
            let next = miner.block(chain.last().map(|block| &**block), BlockSize::Any);
            node.extend(std::slice::from_ref(&next));
            chain.push(next);
            node.check_tip(chain.last().expect("there are blocks"));
        }
    });
}

// ---------------------------------------------------------------------------------------------
// Kills
// ---------------------------------------------------------------------------------------------

/// One step of a script that a node executes.
#[derive(Clone, Debug)]
enum ScriptStep {
    /// Commits blocks, all at once.
    Commit(Vec<BlockPtr>),
    /// Commits a batch, and blocks above it.
    Batch(Vec<BlockPtr>, Vec<BlockPtr>),
    /// Reverts to a block.
    Revert(BlockPtr),
    /// Waits for the fold.
    Flush,
}

/// A random script of steps, with the chain after each step.
fn script(
    kit: &TestKit<'_>,
    miner: &mut BlockMiner,
    steps: usize,
    settings: &StoreOptions,
) -> Vec<(ScriptStep, KeptChain)> {
    let has_runs = kit.backend().applies_batches();
    let (mut script, mut first) = (Vec::new(), 0);
    let retention = settings.retention;
    let mut chain = KeptChain::new(settings.flat_history, retention, 0);
    while script.len() < steps {
        let blocks = &mut chain.blocks;
        first = first.max(blocks.len().saturating_sub(retention as usize + 1));
        let step = match miner.rng.random_range(0..8) {
            0 => ScriptStep::Flush,
            1 if blocks.len() > first + 1 => {
                blocks.truncate(miner.rng.random_range(first + 1..blocks.len()));
                ScriptStep::Revert(blocks[blocks.len() - 1].clone())
            }
            2 if has_runs && !blocks.is_empty() => {
                let (count, more) = (miner.rng.random_range(2..4), miner.rng.random_range(0..2));
                let run = miner.chain(blocks.last(), count, BlockSize::Any);
                let above = miner.chain(run.last(), more, BlockSize::Any);
                first = blocks.len() + run.len() - 1;
                chain.extend(run.iter().chain(&above).cloned());
                ScriptStep::Batch(run, above)
            }
            _ => {
                let count = miner.rng.random_range(1..4);
                let batch = miner.chain(blocks.last(), count, BlockSize::Any);
                chain.extend(batch.iter().cloned());
                ScriptStep::Commit(batch)
            }
        };
        script.push((step, chain.clone()));
    }
    script
}

fn take(node: &TestNode<'_>, step: &ScriptStep) -> Result<(), StateError> {
    match step {
        ScriptStep::Commit(blocks) => {
            node.try_commit(&node.try_propose_chain(StateId::Tip, blocks)?)
        }
        ScriptStep::Batch(run, above) => {
            let run = node.try_propose_batch(StateId::Tip, run)?;
            let above = node.try_propose_chain(StateId::Proposal(&run), above)?;
            node.try_commit(&[vec![run], above].concat())
        }
        ScriptStep::Revert(block) => node.try_revert(block.number),
        ScriptStep::Flush => node.store().flush(),
    }
}

/// A process is killed at each of its writes, including the background fold's writes. After
/// reopening, the store has the state after the last reported commit, or after the commit under way
/// if it may have become durable, with its history. From there the script continues to the same
/// end.
///
/// # Panics
/// If committed data is lost, or half a commit appears.
pub fn a_kill_at_any_write_loses_nothing_committed(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let roots = Arc::new(KnownRoots::default());
        for fold_often in [true, false] {
            let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes.min(10));
            let changes = if fold_often { FlatHistory::Last(6) } else { FlatHistory::All };
            let settings = StoreOptions { flat_history: changes, ..options(5, fold_often) };
            let steps = script(kit, &mut miner, kit.scale.blocks.min(12), &settings);
            let killed = |fatal, survives, names: &[String]| {
                run_killed(kit, &roots, &settings, &steps, fatal, survives, names)
            };
            let (writes, names) = killed(0, false, &[]);
            // Each of the first writes, then samples of the others.
            let dense = (kit.scale.kills / 4) as u64;
            let mut fatal = 1;
            while fatal <= writes {
                for survives in [false, true] {
                    killed(fatal, survives, &names);
                }
                let stride = (writes / (kit.scale.kills as u64 - dense).max(1)).max(1);
                fatal += if fatal < dense { 1 } else { miner.rng.random_range(1..=2 * stride) };
            }
        }
    });
}

/// Runs `steps`, killed at write `fatal`; returns the number of writes and the files it left.
fn run_killed(
    kit: &TestKit<'_>,
    roots: &Arc<KnownRoots>,
    settings: &StoreOptions,
    steps: &[(ScriptStep, KeptChain)],
    fatal: u64,
    survives: bool,
    plant: &[String],
) -> (u64, Vec<String>) {
    let (kv, dir) = (kit.key_value_store(), temp_dir());
    let faults = FaultPlan::new(fatal, survives);
    let faulty = Arc::new(FaultStore::new(kv.clone(), faults.clone()));
    let node = TestNode::on(kit, roots, settings.clone(), faulty, dir.clone());
    let mut done = 0;
    for (step, _) in steps {
        match take(&node, step) {
            Ok(()) => done += 1,
            Err(error) => {
                assert!(faults.is_dead(), "step {done} failed without a kill: {error}");
                break;
            }
        }
    }
    let ended_alive = !faults.is_dead();
    drop(node);

    // Files that the process may have been writing when it died.
    for (n, name) in plant.iter().enumerate() {
        let path = dir.path().join(name);
        if !path.exists() {
            fs::write(path, &b"half a fi"[..n % 10]).expect("planted file");
        }
        fs::write(dir.path().join(format!("{name}.{n}.tmp")), b"half").expect("planted file");
    }
    let mut node = TestNode::on(kit, roots, settings.clone(), kv, dir);
    let nothing = KeptChain::new(settings.flat_history, settings.retention, 0);
    let chain_after = |done: usize| done.checked_sub(1).map_or(&nothing, |n| &steps[n].1);
    let found = node.store().tip().map(|tip| tip.block.hash);
    let mut candidates = vec![chain_after(done)];
    if faults.is_dead() && done < steps.len() {
        candidates.push(chain_after(done + 1));
    }
    let at = candidates
        .iter()
        .position(|chain| chain.blocks.last().map(|block| block.hash) == found)
        .unwrap_or_else(|| {
            panic!("killed at write {fatal} in step {done}: the tip found is neither the last nor the next")
        });
    let mut miner = kit.miner(fatal, ValueFlavour::Ethereum, 1);
    match candidates[at].blocks.last() {
        Some(block) => node.check_tip(block),
        None => assert_eq!(
            node.store()
                .at(StateId::Tip)
                .and_then(|state| state.entries(None, 1))
                .expect("entries"),
            []
        ),
    }
    candidates[at].check(&node, StateId::Tip, &mut miner, 1);
    // A step that does not change the tip (such as a flush) may be repeated.
    for (step, _) in &steps[done + at..] {
        take(&node, step).expect("the run goes on after a kill");
    }
    let chain = chain_after(steps.len());
    let end = chain.blocks.last().expect("the script has blocks");
    node.check_tip(end);
    node.reopen();
    node.check_tip(end);
    chain.check(&node, StateId::Tip, &mut miner, 1);
    let names = if ended_alive {
        node.files().iter().filter_map(|path| Some(path.file_name()?.to_str()?.into())).collect()
    } else {
        Vec::new()
    };
    (faults.writes(), names)
}

/// Files that no block names (unfinished, or published by a block that was never committed) are
/// removed at opening; files that a retained block needs are kept unchanged.
///
/// # Panics
/// If an unneeded file is left, or a needed file is removed or changed.
pub fn leftover_files_are_removed_on_open(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let mut node = TestNode::new(kit, &roots, options(6, true));
        let mut chain: Vec<BlockPtr> = Vec::new();
        for _ in 0..kit.scale.blocks / 2 {
            let blocks = miner.chain(chain.last(), 2, BlockSize::Operations(kit.scale.changes));
            node.extend_each(&blocks);
            chain.extend(blocks);
            // A branch that never becomes durable, and one that is reverted, leave files.
            let lost = miner.chain(chain.last(), 4, BlockSize::Operations(kit.scale.changes));
            drop(node.propose_chain(StateId::Tip, &lost));
            node.extend_each(&lost);
            node.revert(lost[0].number - 1);
            let needed = node.needed_files();
            for name in needed.iter().map(String::as_str).chain(["merge", "run-12.data"]) {
                for leftover in [format!("{name}.3.tmp"), format!("{name}.partial"), "x".into()] {
                    fs::write(node.dir().join(leftover), b"half").expect("leftover");
                }
            }
            let before = contents(&node);
            node.reopen();
            let after = contents(&node);
            for name in &needed {
                assert_eq!(after.get(name), before.get(name), "{name} has changed");
            }
            let leftover =
                |name: &str| name == "x" || name.ends_with(".tmp") || name.ends_with(".partial");
            // A restarted job may be writing its own temporary file.
            for (name, content) in after {
                let is_planted = leftover(&name) && content == b"half";
                assert!(!is_planted, "{name} survived the opening");
            }
            let first = node.first_retained();
            for block in chain.iter().filter(|block| block.number >= first) {
                node.check(StateId::Block(block.hash), block);
            }
        }
        let key = miner.any_key(&chain[0].entries);
        node.store().at(StateId::Tip).expect("reader").get(&key).expect("get");
    });
}

fn contents(node: &TestNode<'_>) -> BTreeMap<String, Vec<u8>> {
    // Jobs rename and remove files meanwhile.
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, fs::read(path).ok()?))
    };
    node.files().iter().filter_map(read).collect()
}
