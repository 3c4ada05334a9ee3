//! Old states by flat history: every kept block, read from the tip, from older blocks and from
//! proposals.

use super::{
    Kit,
    model::{BlockPtr, Flavour, Miner, Size, block_to},
    node::{Node, Roots, check_reader, options},
    roots::bulk_load,
};
use crate::{At, FlatHistory, StateAt, StateError, StateReader, StoreOptions};
use rand::Rng;
use std::sync::Arc;

/// The state of every kept block is that of the model: seen from the tip, from retained blocks and
/// from proposals of side branches; through reverts and other blocks in their place, through folds
/// and reopening; above a first block of any number and above a bulk load; pruned and not. States
/// that were opened before stay as they are. Blocks that are not kept are refused.
///
/// # Panics
/// If an old state differs from the model, or one is shown that is not kept.
pub fn every_kept_state_is_read_by_changes(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        for (first, bulk, changes) in [
            (0, false, FlatHistory::All),
            (0, true, FlatHistory::Last(7)),
            (700, true, FlatHistory::All),
            // Never less than can be reverted.
            (20, false, FlatHistory::Last(1)),
        ] {
            let miner = Miner::new(seed + first, Flavour::Ethereum, kit.scale.changes);
            kept_states(kit, miner.starting_at(first), first, bulk, changes);
        }
    });
}

/// Blocks from the first one on, and what is kept of their states.
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

    /// Commits blocks. They must be fewer than are kept.
    pub(super) fn extend(&mut self, blocks: impl IntoIterator<Item = BlockPtr>) {
        self.blocks.extend(blocks);
        if let (FlatHistory::Last(kept), Some(tip)) = (self.keep, self.blocks.last()) {
            self.start = self.start.max(tip.number.saturating_sub(kept.max(self.retention)));
        }
    }

    fn of(&self, number: u64) -> &BlockPtr {
        &self.blocks[(number - self.blocks[0].number) as usize]
    }

    /// This chain up to a block, and others in place of those above it.
    fn with(&self, number: u64, blocks: &[BlockPtr]) -> Self {
        let mut other = self.clone();
        other.blocks.retain(|block| block.number <= number);
        other.blocks.extend(blocks.iter().cloned());
        other
    }

    /// Compares what `node` has of this chain, seen from its last block, which is `at`: the states
    /// of `count` blocks, or of all.
    pub(super) fn check(&self, node: &Node<'_>, at: At<'_>, miner: &mut Miner, count: usize) {
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
            check_reader(&past, block, Flavour::Ethereum);
            for key in last.entries.keys() {
                let expected = block.entries.get(key);
                assert_eq!(past.get(key).expect("get").as_ref(), expected, "{key} at {number}");
            }
            if number > self.start {
                let changed = store.changed_keys(at, number).expect("its changes are kept");
                let expected = block.delta.changes().iter().map(|change| change.key);
                assert!(changed.into_iter().eq(expected), "keys that block {number} changed");
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
    outcome: &Result<StateAt, StateError>,
    asked: u64,
    expected: Option<std::ops::RangeInclusive<u64>>,
) {
    let is_typed = matches!(outcome, Err(StateError::NotInHistory { number, kept })
        if *number == asked && *kept == expected);
    assert!(is_typed, "{outcome:?}");
}

fn kept_states(kit: &Kit<'_>, mut miner: Miner, first: u64, bulk: bool, changes: FlatHistory) {
    let roots = Arc::new(Roots::default());
    let retention = 4;
    let settings = StoreOptions { flat_history: changes, ..options(retention, bulk) };
    let mut node = Node::new(kit, &roots, settings);
    let mut chain = KeptChain::new(changes, retention, first);
    chain.check(&node, At::Tip, &mut miner, 0);
    if bulk {
        let grown = miner.chain(None, 5, Size::Operations(kit.scale.changes));
        let start = block_to(None, first, &grown[4].entries);
        let entries = start.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        let root = bulk_load(&node, &start, entries).expect("bulk load");
        roots.note(&start, root);
        chain.extend([start]);
    }
    let mut held: Vec<(StateAt, BlockPtr)> = Vec::new();
    for n in 0..kit.scale.blocks {
        let size = if n == kit.scale.blocks / 2 { Size::EraseAll } else { Size::Any };
        let blocks = miner.chain(chain.blocks.last(), 1 + n % 2, size);
        let proposals = node.propose_chain(At::Tip, &blocks);
        if !chain.blocks.is_empty() {
            let tip = chain.blocks[chain.blocks.len() - 1].number;
            let seen = chain.with(tip, &blocks);
            seen.check(&node, At::Proposal(&proposals[n % 2]), &mut miner, 1);

            // A side branch, and the block that it leaves the chain at.
            let fork = miner.rng.random_range(node.first_retained()..=tip);
            let below = chain.of(fork).clone();
            chain.with(fork, &[]).check(&node, At::Block(below.hash), &mut miner, 1);
            let side = miner.chain(Some(&below), 2, Size::Any);
            let side_proposals = node.propose_chain(At::Block(below.hash), &side);
            let seen = chain.with(fork, &side);
            seen.check(&node, At::Proposal(&side_proposals[1]), &mut miner, 2);
        }
        node.commit(&proposals);
        chain.extend(blocks);
        chain.check(&node, At::Tip, &mut miner, 2);
        let tip = chain.blocks[chain.blocks.len() - 1].number;
        if n % 3 == 0 {
            let number = miner.rng.random_range(chain.start..=tip);
            let past = node.store().flat_history(At::Tip, number).expect("a kept state");
            held.push((past, chain.of(number).clone()));
        }
        match miner.rng.random_range(0..7) {
            0 => node.reopen(),
            1 => node.store().flush().expect("fold"),
            2 | 3 => {
                let to = miner.rng.random_range(node.first_retained()..=tip);
                node.revert(to);
                chain = chain.with(to, &[]);
                chain.check(&node, At::Tip, &mut miner, 2);
            }
            _ => {}
        }
    }
    for reopen in [false, true] {
        if reopen {
            node.reopen();
        }
        chain.check(&node, At::Tip, &mut miner, usize::MAX);
    }
    // Whatever has become of their blocks.
    for (past, block) in &held {
        check_reader(past, block, Flavour::Ethereum);
    }
}
