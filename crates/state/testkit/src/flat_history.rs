//! Old states by flat history: every kept block is read from the tip, from older blocks and from
//! proposals.

use super::{
    TestKit,
    model::{BlockMiner, BlockPtr, BlockSize, ValueFlavour, block_to},
    node::{KnownRoots, TestNode, check_reader, options},
    roots::bulk_load,
};
use rand::Rng;
use retrie_state::{StateError, StateReader};
use retrie_state_store::{FlatHistory, StateId, StateProvider, StoreOptions};
use std::sync::Arc;

/// The state of every kept block equals the model: seen from the tip, from retained blocks and from
/// proposals of side branches; through reverts and replaced blocks, folds and reopening; above a
/// first block of any number and above a bulk load; pruned and not. States that were opened before
/// do not change. Blocks that are not kept are refused.
///
/// # Panics
/// If an old state differs from the model, or a block that is not kept can be read.
pub fn every_kept_state_is_read_by_changes(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        for (first, bulk, changes) in [
            (0, false, FlatHistory::All),
            (0, true, FlatHistory::Last(7)),
            (700, true, FlatHistory::All),
            // History is never shorter than the retention.
            (20, false, FlatHistory::Last(1)),
        ] {
            let miner = kit.miner(seed + first, ValueFlavour::Ethereum, kit.scale.changes);
            kept_states(kit, miner.starting_at(first), first, bulk, changes);
        }
    });
}

/// A chain from its first block on, and which of its states are kept.
#[derive(Clone)]
pub(super) struct KeptChain {
    pub(super) blocks: Vec<BlockPtr>,
    pub(super) keep: FlatHistory,
    pub(super) retention: u64,
    /// First block whose state can be read.
    pub(super) start: u64,
}

impl KeptChain {
    pub(super) const fn new(keep: FlatHistory, retention: u64, start: u64) -> Self {
        Self { blocks: Vec::new(), keep, retention, start }
    }

    /// Adds committed blocks. They must be fewer than are kept.
    pub(super) fn extend(&mut self, blocks: impl IntoIterator<Item = BlockPtr>) {
        self.blocks.extend(blocks);
        if let (FlatHistory::Last(kept), Some(tip)) = (self.keep, self.blocks.last()) {
            self.start = self.start.max(tip.number.saturating_sub(kept.max(self.retention)));
        }
    }

    fn of(&self, number: u64) -> &BlockPtr {
        &self.blocks[(number - self.blocks[0].number) as usize]
    }

    /// This chain up to block `number`, followed by `blocks`.
    fn with(&self, number: u64, blocks: &[BlockPtr]) -> Self {
        let mut other = self.clone();
        other.blocks.retain(|block| block.number <= number);
        other.blocks.extend(blocks.iter().cloned());
        other
    }

    /// Compares the kept states of `node` with this chain, seen from its last block, which is `at`:
    /// the states of `count` blocks, or of all.
    pub(super) fn check(
        &self,
        node: &TestNode<'_>,
        at: StateId<'_>,
        miner: &mut BlockMiner,
        count: usize,
    ) {
        let store = node.store();
        let Some(last) = self.blocks.last() else {
            assert_eq!(store.flat_history_kept(at).expect("kept"), None);
            return is_beyond(&store.flat_history(at, self.start), self.start, None);
        };
        let kept = self.start..=last.number;
        assert_eq!(store.flat_history_kept(at).expect("kept"), Some(kept.clone()));
        let mut asked: Vec<u64> = kept.clone().collect();
        while asked.len() > count {
            asked.remove(miner.rng.random_range(0..asked.len()));
        }
        for number in asked {
            let past = store.flat_history(at, number).expect("a kept state");
            assert_eq!(past.number(), Some(number));
            let block = self.of(number);
            check_reader(&past, block, ValueFlavour::Ethereum);
            for key in last.entries.keys() {
                let expected = block.entries.get(key);
                assert_eq!(past.get(key).expect("get").as_ref(), expected, "{key} at {number}");
            }
            if number > self.start {
                let changed = store.changed_keys(at, number).expect("its changes are kept");
                let changes = block.delta.changes().iter();
                let before =
                    changes.map(|change| (node.keys().key(&change.key), change.previous.clone()));
                let mut expected: Vec<_> = before.collect();
                expected.sort_unstable();
                let changes = store.changes(at, number).expect("its changes are kept");
                assert_eq!(changes, expected, "what block {number} changed");
                let keys = expected.into_iter().map(|(key, _)| key);
                assert!(keys.eq(changed), "keys that block {number} changed");
            }
        }
        for beyond in [last.number + 1, u64::MAX] {
            is_beyond(&store.flat_history(at, beyond), beyond, Some(kept.clone()));
        }
        if let Some(before) = self.start.checked_sub(1) {
            let error = store.flat_history(at, before);
            let is_typed = matches!(error, Err(StateError::BeyondHistory { number, first })
                if (number, first) == (before, self.start));
            assert!(is_typed, "{error:?}");
        }
        let error = store.changed_keys(at, self.start);
        let is_typed = matches!(error, Err(StateError::BeyondHistory { number, first })
            if (number, first) == (self.start, self.start + 1));
        assert!(is_typed, "{error:?}");
    }
}

fn is_beyond(
    outcome: &Result<StateProvider, StateError>,
    asked: u64,
    expected: Option<std::ops::RangeInclusive<u64>>,
) {
    let is_typed = matches!(outcome, Err(StateError::NotInHistory { number, kept })
        if *number == asked && *kept == expected);
    assert!(is_typed, "{outcome:?}");
}

fn kept_states(
    kit: &TestKit<'_>,
    mut miner: BlockMiner,
    first: u64,
    bulk: bool,
    changes: FlatHistory,
) {
    let roots = Arc::new(KnownRoots::default());
    let retention = 4;
    let settings = StoreOptions { flat_history: changes, ..options(retention, bulk) };
    let mut node = TestNode::new(kit, &roots, settings);
    let mut chain = KeptChain::new(changes, retention, first);
    chain.check(&node, StateId::Tip, &mut miner, 0);
    if bulk {
        let grown = miner.chain(None, 5, BlockSize::Operations(kit.scale.changes));
        let start = block_to(None, first, &grown[4].entries);
        let entries = start.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        let root = bulk_load(&node, &start, entries).expect("bulk load");
        roots.note(&start, root);
        chain.extend([start]);
    }
    let mut held: Vec<(StateProvider, BlockPtr)> = Vec::new();
    for n in 0..kit.scale.blocks {
        let size = if n == kit.scale.blocks / 2 { BlockSize::EraseAll } else { BlockSize::Any };
        let blocks = miner.chain(chain.blocks.last(), 1 + n % 2, size);
        let proposals = node.propose_chain(StateId::Tip, &blocks);
        if !chain.blocks.is_empty() {
            let tip = chain.blocks[chain.blocks.len() - 1].number;
            let seen = chain.with(tip, &blocks);
            seen.check(&node, StateId::Proposal(&proposals[n % 2]), &mut miner, 1);

            // A side branch, and the block at which it forks.
            let fork = miner.rng.random_range(node.first_retained()..=tip);
            let below = chain.of(fork).clone();
            chain.with(fork, &[]).check(&node, StateId::Block(below.hash), &mut miner, 1);
            let side = miner.chain(Some(&below), 2, BlockSize::Any);
            let side_proposals = node.propose_chain(StateId::Block(below.hash), &side);
            let seen = chain.with(fork, &side);
            seen.check(&node, StateId::Proposal(&side_proposals[1]), &mut miner, 2);
        }
        node.commit(&proposals);
        chain.extend(blocks);
        chain.check(&node, StateId::Tip, &mut miner, 2);
        let tip = chain.blocks[chain.blocks.len() - 1].number;
        if n % 3 == 0 {
            let number = miner.rng.random_range(chain.start..=tip);
            let past = node.store().flat_history(StateId::Tip, number).expect("a kept state");
            held.push((past, chain.of(number).clone()));
        }
        match miner.rng.random_range(0..7) {
            0 => node.reopen(),
            1 => node.store().flush().expect("fold"),
            2 | 3 => {
                let to = miner.rng.random_range(node.first_retained()..=tip);
                node.revert(to);
                chain = chain.with(to, &[]);
                chain.check(&node, StateId::Tip, &mut miner, 2);
            }
            _ => {}
        }
    }
    for reopen in [false, true] {
        if reopen {
            node.reopen();
        }
        chain.check(&node, StateId::Tip, &mut miner, usize::MAX);
    }
    // Old readers still show their blocks, even reverted ones.
    for (past, block) in &held {
        check_reader(past, block, ValueFlavour::Ethereum);
    }
}
