//! Versions of keys over ranges of blocks, and proofs of them.

use super::{
    Kit,
    model::{Block, BlockPtr, Flavour, Miner, Size, block_to},
    node::{Node, Roots, options},
    proofs::refuses_mutations,
    roots::bulk_load,
};
use crate::{At, StateError, StateKey, Version};
use alloy_primitives::B256;
use rand::Rng;
use std::{ops::RangeInclusive, sync::Arc};

/// Where there is [`Provenance`](crate::Provenance), the versions of present, absent, deleted and
/// wiped keys over any range of blocks are those of the model, and proven: on proposals, at the tip
/// and at retained blocks, after reverts and other blocks in their place, after reopening, above a
/// bulk load. Mutated proofs are refused, those of another root too; a proof of one range shows
/// nothing wrong of another. Ranges that are not there are refused.
///
/// # Panics
/// If versions differ from the model, or a verifier is fooled.
pub fn versions_are_those_of_the_model_and_proven(kit: &Kit<'_>) {
    if kit.backend().provenance().is_none() {
        let node = Node::new(kit, &Arc::default(), options(3, true));
        let error = node.store().at(At::Tip).and_then(|state| state.versions(&[], 0..=0)).map(drop);
        assert!(matches!(error, Err(StateError::Unsupported { .. })), "{error:?}");
        eprintln!("skipped: this backend has no provenance");
        return;
    }
    kit.each_seed(|seed| {
        for (first, bulk) in [(0, false), (0, true), (700, true), (20, false)] {
            let miner = Miner::new(seed + first, Flavour::Ethereum, kit.scale.changes);
            Walk::begin(kit, miner.starting_at(first), first, bulk).run();
        }
    });
}

/// A chain under way.
struct Walk<'k> {
    kit: &'k Kit<'k>,
    miner: Miner,
    node: Node<'k>,
    first: u64,
    chain: Vec<BlockPtr>,
}

const RETENTION: u64 = 3;

impl<'k> Walk<'k> {
    fn begin(kit: &'k Kit<'k>, mut miner: Miner, first: u64, bulk: bool) -> Self {
        let node = Node::new(kit, &Arc::new(Roots::default()), options(RETENTION, bulk));
        let mut chain: Vec<BlockPtr> = Vec::new();
        if bulk {
            let grown = miner.chain(None, 5, Size::Operations(kit.scale.changes));
            let start = block_to(None, first, &grown[4].entries);
            let entries = start.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
            let root = bulk_load(&node, &start, entries).expect("bulk load");
            node.roots.note(&start, root);
            chain.push(start);
        }
        Self { kit, miner, node, first, chain }
    }

    fn run(mut self) {
        for n in 0..2 * self.kit.scale.blocks {
            let size = if n == self.kit.scale.blocks { Size::EraseAll } else { Size::Any };
            let block = self.miner.block(self.chain.last().map(|block| &**block), size);
            let proposal = self.node.propose(At::Tip, &block);
            self.chain.push(block.clone());
            self.check(At::Proposal(&proposal), &block, 3);
            self.check(At::Block(block.hash), &block, 1);
            self.node.commit(&[proposal]);
            for count in [0, 1, 2, 8] {
                self.check(At::Tip, &block, count);
            }
            for old in self.chain.clone().iter().rev().take(1 + RETENTION as usize) {
                if old.number >= self.node.first_retained() {
                    self.check(At::Block(old.hash), old, 2);
                }
            }
            self.refuses(&block);
            if n % 8 == 5 {
                self.forge(&block);
            }
            match self.miner.rng.random_range(0..8) {
                0 => self.node.reopen(),
                1 => self.node.store().flush().expect("fold"),
                2 | 3 => self.turn_back(),
                _ => {}
            }
        }
        self.node.reopen();
        let tip = self.chain[self.chain.len() - 1].clone();
        self.check(At::Tip, &tip, 20);
        self.forge(&tip);
    }

    /// Other blocks will take the place of the last ones.
    fn turn_back(&mut self) {
        let last = self.first + self.chain.len() as u64 - 1;
        let depth = (last - self.node.first_retained()).min(RETENTION);
        let to = last - self.miner.rng.random_range(0..=depth);
        self.chain.truncate((to - self.first) as usize + 1);
        self.node.revert(to);
    }

    /// Keys that are there, were there, or never were.
    fn keys(&mut self, block: &Block, count: usize) -> Vec<StateKey> {
        let mut keys = self.miner.keys(&block.entries, count);
        for key in &mut keys {
            let of = &self.chain[self.miner.rng.random_range(0..self.chain.len())].delta;
            if self.miner.rng.random_bool(0.5) && !of.is_empty() && !of.changes().is_empty() {
                *key = of.changes()[self.miner.rng.random_range(0..of.len())].key;
            }
        }
        keys
    }

    /// Blocks up to `block`, often few of them.
    fn range(&mut self, from: u64, block: &Block) -> RangeInclusive<u64> {
        let rng = &mut self.miner.rng;
        let lo = rng.random_range(from..=block.number);
        let most = if rng.random_bool(0.5) { (lo + 3).min(block.number) } else { block.number };
        lo..=rng.random_range(lo..=most)
    }

    fn prunes(&self) -> bool {
        self.node.store().backend().history().is_some_and(|history| history.prunes())
    }

    /// First block that is kept in the state `at`.
    fn first_kept(&self, at: At<'_>) -> u64 {
        if !self.prunes() {
            return self.first;
        }
        match self
            .node
            .store()
            .at(at)
            .and_then(|state| state.versions(&[], self.first..=self.first))
        {
            Ok(_) => self.first,
            Err(StateError::NotInHistory { kept: Some(kept), .. }) => *kept.start(),
            Err(error) => panic!("versions: {error}"),
        }
    }

    /// What the blocks say.
    fn expected(&self, key: &StateKey, blocks: &RangeInclusive<u64>) -> Vec<Version> {
        let mut versions: Vec<Version> = Vec::new();
        for block in self.chain.iter().take_while(|block| block.number <= *blocks.end()) {
            let changes = block.delta.changes();
            if let Ok(at) = changes.binary_search_by_key(key, |change| change.key) {
                if block.number <= *blocks.start() {
                    versions.clear();
                }
                versions.push(Version { block: block.number, value: changes[at].next.clone() });
            }
        }
        versions.reverse();
        versions
    }

    /// Compares with the blocks, of which those from `kept` on are kept: a deletion there or below
    /// it, which nothing lies under, may be gone.
    fn assert_true(
        &self,
        shown: &[Vec<Version>],
        keys: &[StateKey],
        blocks: &RangeInclusive<u64>,
        kept: u64,
    ) {
        assert_eq!(shown.len(), keys.len());
        for (key, shown) in keys.iter().zip(shown) {
            let mut expected = self.expected(key, blocks);
            let is_bare = |of: &Version| of.value.is_none() && of.block <= kept;
            if self.prunes() && shown.len() < expected.len() && expected.last().is_some_and(is_bare)
            {
                expected.pop();
            }
            assert_eq!(*shown, expected, "versions of {key} in blocks {blocks:?}");
        }
    }

    /// Asks for `count` keys over a range and checks answer and proof, which are returned.
    fn check(&mut self, at: At<'_>, block: &Block, count: usize) -> Proven {
        let kept = self.first_kept(at);
        let (keys, blocks) = (self.keys(block, count), self.range(kept, block));
        let store = self.node.store();
        let (versions, proof) =
            store.at(at).and_then(|state| state.versions(&keys, blocks.clone())).expect("versions");
        self.assert_true(&versions, &keys, &blocks, kept);
        proof.check_kind(store.identity()).expect("its own kind");
        assert_eq!((proof.block.number, proof.block.hash), (block.number, block.hash));
        assert_eq!((Some(proof.root), proof.as_of), (self.node.roots.of(block), None));
        let proven =
            Proven { keys, blocks, root: proof.root, bytes: proof.bytes.to_vec(), versions };
        let shown = self.verify(proven.root, &proven.keys, &proven.blocks, &proven.bytes);
        assert_eq!(shown, Some(proven.versions.clone()), "what the proof shows");
        proven
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: &RangeInclusive<u64>,
        bytes: &[u8],
    ) -> Option<Vec<Vec<Version>>> {
        let provenance = self.node.store().backend().provenance().expect("it has it");
        provenance.verify_versions(root, keys, blocks.clone(), bytes).ok()
    }

    /// Nothing but what is true is accepted at the tip `block`.
    fn forge(&mut self, block: &Block) {
        let kept = self.first_kept(At::Tip);
        for count in [1, 1, 4] {
            let proven = self.check(At::Tip, block, count);
            let Proven { keys, blocks, root, bytes, .. } = &proven;
            let mut rng = self.miner.rng.clone();
            let accepts = |bytes: &[u8]| self.verify(*root, keys, blocks, bytes).is_some();
            let what = format!("{keys:?} in blocks {blocks:?}");
            refuses_mutations(&mut rng, bytes, self.kit.scale.mutations, &what, &accepts);
            let others = self.chain.iter().filter_map(|block| self.node.roots.of(block));
            for other in others.chain([B256::ZERO, *root ^ B256::with_last_byte(1)]) {
                let shown = self.verify(other, keys, blocks, bytes);
                assert!(other == *root || shown.is_none(), "a proof for {root} holds for {other}");
            }
            self.miner.rng = rng;
            for _ in 0..20 {
                let range = self.range(kept, block);
                if let Some(shown) = self.verify(*root, keys, &range, bytes) {
                    self.assert_true(&shown, keys, &range, kept);
                }
                let asked = self.keys(block, count);
                if let Some(shown) = self.verify(*root, &asked, blocks, bytes) {
                    self.assert_true(&shown, &asked, blocks, kept);
                }
            }
            let newest = self.verify(*root, keys, &(u64::MAX..=u64::MAX), bytes);
            if let Some(shown) = newest {
                self.assert_true(&shown, keys, &(block.number..=block.number), kept);
            }
        }
    }

    /// Ranges that are empty, end above the tip `block`, or begin too early.
    fn refuses(&self, block: &Block) {
        let store = self.node.store();
        let (number, kept) = (block.number, self.first_kept(At::Tip));
        let empty = store
            .at(At::Tip)
            .and_then(|state| state.versions(&[], RangeInclusive::new(number + 1, number)));
        assert!(matches!(empty, Err(StateError::NoBlocks { .. })), "{empty:?}");
        let before = kept.checked_sub(1).map(|before| (before, before..=number));
        let beyond = [(number + 1, number..=number + 1), (u64::MAX, u64::MAX..=u64::MAX)];
        for (outside, range) in beyond.into_iter().chain(before) {
            match store.at(At::Tip).and_then(|state| state.versions(&[], range.clone())) {
                Err(StateError::NotInHistory { number: asked, kept: Some(blocks) }) => {
                    assert_eq!((asked, blocks), (outside, kept..=number));
                }
                other => panic!("{range:?}: NotInHistory expected, not {other:?}"),
            }
        }
    }
}

/// Versions and their proof.
struct Proven {
    keys: Vec<StateKey>,
    blocks: RangeInclusive<u64>,
    root: B256,
    bytes: Vec<u8>,
    versions: Vec<Vec<Version>>,
}
