//! A block has one root, whatever the node did before.

use super::{
    TestKit,
    model::{BlockPtr, BlockSize, StateEntries, TestBlock, ValueFlavour, block_to},
    node::{KnownRoots, TestNode, options},
};
use alloy_primitives::B256;
use rand::{Rng, seq::SliceRandom};
use retrie_state::{BlockRef, KeyForm, StateError, StateKey, StateValue};
use retrie_state_store::StateId;
use std::{sync::Arc, time::Duration};

/// The same blocks have the same roots when committed one by one, in batches, with reopenings in
/// between, after being reverted and applied again, and with other retention and folding.
///
/// # Panics
/// If a block has two roots.
pub fn roots_do_not_depend_on_the_way_there(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let chain = miner.chain(None, 2 * kit.scale.blocks, BlockSize::Any);
        let tip = chain.last().expect("there are blocks");
        // The nodes compare their roots with the roots that the first node recorded.
        let node = TestNode::new(kit, &roots, options(8, true));
        node.extend_each(&chain);
        node.check_tip(tip);

        let node = TestNode::new(kit, &roots, options(0, false));
        for batch in chain.chunks(5) {
            node.extend(batch);
        }
        node.check_tip(tip);

        let mut node = TestNode::new(kit, &roots, options(3, false));
        for block in &chain {
            if miner.rng.random_bool(0.3) {
                node.reopen();
            }
            node.extend(std::slice::from_ref(block));
        }
        node.check_tip(tip);

        let node = TestNode::new(kit, &roots, options(8, true));
        let mut at: usize = 0;
        while at < chain.len() {
            let next = (at + miner.rng.random_range(1..6)).min(chain.len());
            node.extend_each(&chain[at..next]);
            at = next;
            if miner.rng.random_bool(0.4) {
                at = miner.rng.random_range(node.first_retained() as usize..at) + 1;
                node.revert(chain[at - 1].number);
                if miner.rng.random_bool(0.5) {
                    let fork = miner.chain(Some(&chain[at - 1]), 3, BlockSize::Any);
                    node.extend_each(&fork);
                    node.revert(chain[at - 1].number);
                }
            }
        }
        node.check_tip(tip);
    });
}

/// A state loaded in bulk has the root, the values and the later blocks of the same entries
/// committed as the first block, whatever that block's number. An iterator that fails leaves
/// nothing.
///
/// # Panics
/// If they differ.
pub fn a_bulk_load_equals_the_first_block(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let roots = Arc::new(KnownRoots::default());
        let is_ethereum = kit.backend().profile().ethereum_state_only;
        let other = if is_ethereum { ValueFlavour::Ethereum } else { ValueFlavour::Opaque };
        let cases =
            [(0, ValueFlavour::Ethereum, 0), (0, other, 4), (700, ValueFlavour::Ethereum, 12)];
        for (first, flavour, blocks) in cases {
            let mut miner = kit.miner(seed + first, flavour, kit.scale.changes).starting_at(first);
            let grown = miner.chain(None, blocks, BlockSize::Operations(3 * kit.scale.changes));
            let entries = grown.last().map(|block| block.entries.clone()).unwrap_or_default();
            let start = block_to(None, first, &entries);
            let mut chain = vec![start.clone()];
            chain.extend(miner.chain(Some(&start), kit.scale.blocks, BlockSize::Any));
            let tip = chain.last().expect("there are blocks");

            let committed = TestNode::new(kit, &roots, options(4, true));
            committed.extend_each(&chain);
            committed.check_tip(tip);

            let mut loaded = TestNode::new(kit, &roots, options(4, first.is_multiple_of(2)));
            let broken = || Err(StateError::corrupt("the source", "it ended too early"));
            let half = entries.iter().take(entries.len() / 2).map(owned).chain([broken()]);
            assert!(bulk_load(&loaded, &start, half).is_err(), "a failing source loads nothing");
            assert_eq!(loaded.store().tip(), None);
            let root = bulk_load(&loaded, &start, entries.iter().map(owned)).expect("bulk load");
            roots.note(&start, root);
            loaded.check_tip(&start);
            assert_eq!(loaded.store().stats().expect("stats").journal_rows, 0);
            let below = loaded.try_revert(first.saturating_sub(1));
            assert!(first == 0 || matches!(below, Err(StateError::BeyondRetention { .. })));
            loaded.reopen();
            loaded.check_tip(&start);
            loaded.extend(&chain[1..3]);
            loaded.check(StateId::Block(start.hash), &start);
            loaded.revert(start.number);
            loaded.check_tip(&start);
            loaded.extend_each(&chain[1..]);
            loaded.check_tip(tip);
        }
    });
}

fn owned((key, value): (&StateKey, &StateValue)) -> Result<(StateKey, StateValue), StateError> {
    Ok((*key, value.clone()))
}

pub(super) fn bulk_load(
    node: &TestNode<'_>,
    block: &TestBlock,
    entries: impl Iterator<Item = Result<(StateKey, StateValue), StateError>>,
) -> Result<B256, StateError> {
    let mut txn = node.kv.begin_write()?;
    let mut entries = entries;
    let at = BlockRef::new(block.number, block.hash);
    let (root, after) = node.store().bulk_load(at, &mut entries, &mut *txn)?;
    txn.commit()?;
    after.run()?;
    Ok(root)
}

/// If the capabilities say so, the root is a function of the logical state alone: states reached in
/// other orders, by detours, or from the empty state at once have the same root, and a state with
/// no entries left has the empty root.
///
/// # Panics
/// If two histories of one state have two roots.
pub fn equal_states_have_equal_roots(kit: &TestKit<'_>) {
    if !kit.backend().profile().state_determined_root {
        eprintln!("skipped: the root of this backend depends on history");
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(4, true));
        let chain = miner.chain(None, kit.scale.blocks, BlockSize::Any);
        node.extend(&chain);
        let tip = chain.last().expect("there are blocks");
        let root = roots.of(tip).expect("it was proposed");

        if kit.backend().profile().ethereum_root && kit.keys == KeyForm::Hashed {
            let plain = TestKit { keys: KeyForm::Plain, ..*kit };
            // It compares its roots with those of hashed keys.
            TestNode::new(&plain, &roots, options(4, true)).extend(&chain);
        }

        let at_once = block_to(None, 0, &tip.entries);
        let other = TestNode::new(kit, &roots, options(4, true));
        other.extend(std::slice::from_ref(&at_once));
        assert_eq!(roots.of(&at_once), Some(root), "all at once");

        // Account by account in random order, with a detour each.
        let mut accounts: Vec<_> =
            tip.entries.iter().filter(|(key, _)| matches!(key, StateKey::Account(_))).collect();
        accounts.shuffle(&mut miner.rng);
        let other = TestNode::new(kit, &roots, options(4, true));
        let mut parent: Option<BlockPtr> = None;
        let mut entries = StateEntries::new();
        for batch in accounts.chunks(accounts.len() / 6 + 1) {
            for (key, value) in batch {
                entries.insert(**key, (*value).clone());
                let slots = super::model::slots_of(&tip.entries, key.address());
                let key = |slot| StateKey::Slot(*key.address(), slot);
                entries.extend(slots.map(|(slot, value)| (key(slot), value.clone())));
            }
            let detour = miner.block(parent.as_deref(), BlockSize::Any);
            let target = block_to(Some(&detour), 0, &Arc::new(entries.clone()));
            other.extend(&[detour, target.clone()]);
            parent = Some(target);
        }
        if let Some(end) = parent {
            assert_eq!(end.entries, tip.entries);
            assert_eq!(roots.of(&end), Some(root), "in another order");
        }

        let nothing = miner.block(Some(tip), BlockSize::EraseAll);
        node.extend(std::slice::from_ref(&nothing));
        let empty_root = node.store().backend().profile().empty_root;
        assert_eq!(roots.of(&nothing), Some(empty_root), "nothing is left");
        node.check_tip(&nothing);
        let again = block_to(Some(&nothing), 0, &tip.entries);
        node.extend(std::slice::from_ref(&again));
        assert_eq!(roots.of(&again), Some(root), "everything back");
    });
}

/// Jobs that take or wait long change neither roots nor content.
///
/// # Panics
/// If a result depends on when a thread happens to finish.
pub fn slow_jobs_change_nothing(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let chain = miner.chain(None, kit.scale.blocks, BlockSize::Operations(kit.scale.changes));
        let tip = chain.last().expect("there are blocks");
        let fast = TestNode::new(kit, &roots, options(6, true));
        fast.extend_each(&chain);
        fast.check_tip(tip);

        let mut slow = TestNode::new(kit, &roots, options(6, true));
        let mut at = 0;
        while at < chain.len() {
            let micros = miner.rng.random_range(0..3000);
            slow.store().jobs().set_delay(Duration::from_micros(micros));
            slow.extend(&chain[at..=at]);
            slow.check_tip(&chain[at]);
            at += 1;
            match miner.rng.random_range(0..8) {
                0 => slow.reopen(),
                1 => {
                    at = miner.rng.random_range(slow.first_retained() as usize..at) + 1;
                    slow.revert(chain[at - 1].number);
                }
                2 => {
                    let side = miner.chain(Some(&chain[at - 1]), 3, BlockSize::Any);
                    drop(slow.propose_chain(StateId::Tip, &side));
                }
                _ => {}
            }
        }
        slow.check_tip(tip);
    });
}
