//! Versions of keys over ranges of blocks, and their proofs.

use super::{
    TestKit,
    model::{BlockMiner, BlockPtr, BlockSize, TestBlock, ValueFlavour, block_to},
    node::{KnownRoots, TestNode, options},
    proofs::refuses_mutations,
    roots::bulk_load,
};
use alloy_primitives::B256;
use rand::Rng;
use retrie_state::{StateError, StateKey, ValueVersion};
use retrie_state_store::StateId;
use std::{ops::RangeInclusive, sync::Arc};

/// If the backend has [`ProvenanceQueries`](retrie_state::ProvenanceQueries), the versions of present,
/// absent, deleted and wiped keys over any range of blocks equal the model and are proven: on
/// proposals, at the tip and at retained blocks, after reverts and replaced blocks, after
/// reopening, above a bulk load. Mutated proofs are refused, and so are proofs under another root.
/// A proof of one range shows nothing false about another range. Ranges that do not exist are
/// refused.
///
/// # Panics
/// If versions differ from the model, or the verifier accepts something false.
pub fn versions_are_those_of_the_model_and_proven(kit: &TestKit<'_>) {
    if kit.backend().extensions().provenance.is_none() {
        let node = TestNode::new(kit, &Arc::default(), options(3, true));
        let error =
            node.store().at(StateId::Tip).and_then(|state| state.versions(&[], 0..=0)).map(drop);
        assert!(matches!(error, Err(StateError::Unsupported { .. })), "{error:?}");
        eprintln!("skipped: this backend has no provenance");
        return;
    }
    kit.each_seed(|seed| {
        for (first, bulk) in [(0, false), (0, true), (700, true), (20, false)] {
            let miner = kit.miner(seed + first, ValueFlavour::Ethereum, kit.scale.changes);
            ProvenanceTest::begin(kit, miner.starting_at(first), first, bulk).run();
        }
    });
}

/// A node, its chain, and the checks on them.
struct ProvenanceTest<'k> {
    kit: &'k TestKit<'k>,
    miner: BlockMiner,
    node: TestNode<'k>,
    first: u64,
    chain: Vec<BlockPtr>,
}

const RETENTION: u64 = 3;

impl<'k> ProvenanceTest<'k> {
    fn begin(kit: &'k TestKit<'k>, mut miner: BlockMiner, first: u64, bulk: bool) -> Self {
        let node = TestNode::new(kit, &Arc::new(KnownRoots::default()), options(RETENTION, bulk));
        let mut chain: Vec<BlockPtr> = Vec::new();
        if bulk {
            let grown = miner.chain(None, 5, BlockSize::Operations(kit.scale.changes));
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
            let size =
                if n == self.kit.scale.blocks { BlockSize::EraseAll } else { BlockSize::Any };
            let block = self.miner.block(self.chain.last().map(|block| &**block), size);
            let proposal = self.node.propose(StateId::Tip, &block);
            self.chain.push(block.clone());
            self.check(StateId::Proposal(&proposal), &block, 3);
            self.check(StateId::Block(block.hash), &block, 1);
            self.node.commit(&[proposal]);
            for count in [0, 1, 2, 8] {
                self.check(StateId::Tip, &block, count);
            }
            for old in self.chain.clone().iter().rev().take(1 + RETENTION as usize) {
                if old.number >= self.node.first_retained() {
                    self.check(StateId::Block(old.hash), old, 2);
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
        self.check(StateId::Tip, &tip, 20);
        self.forge(&tip);
    }

    /// Reverts some blocks, which other blocks will replace.
    fn turn_back(&mut self) {
        let last = self.first + self.chain.len() as u64 - 1;
        let depth = (last - self.node.first_retained()).min(RETENTION);
        let to = last - self.miner.rng.random_range(0..=depth);
        self.chain.truncate((to - self.first) as usize + 1);
        self.node.revert(to);
    }

    /// Keys that exist, existed, or never existed.
    fn keys(&mut self, block: &TestBlock, count: usize) -> Vec<StateKey> {
        let mut keys = self.miner.keys(&block.entries, count);
        for key in &mut keys {
            let of = &self.chain[self.miner.rng.random_range(0..self.chain.len())].delta;
            if self.miner.rng.random_bool(0.5) && !of.is_empty() && !of.changes().is_empty() {
                *key = of.changes()[self.miner.rng.random_range(0..of.len())].key;
            }
        }
        keys
    }

    /// A range of blocks up to `block`, often a short one.
    fn range(&mut self, from: u64, block: &TestBlock) -> RangeInclusive<u64> {
        let rng = &mut self.miner.rng;
        let lo = rng.random_range(from..=block.number);
        let most = if rng.random_bool(0.5) { (lo + 3).min(block.number) } else { block.number };
        lo..=rng.random_range(lo..=most)
    }

    fn prunes(&self) -> bool {
        self.node.store().backend().extensions().history.is_some_and(|history| history.prunes())
    }

    /// First block that the state `at` keeps.
    fn first_kept(&self, at: StateId<'_>) -> u64 {
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

    /// The versions according to the model.
    fn expected(&self, key: &StateKey, blocks: &RangeInclusive<u64>) -> Vec<ValueVersion> {
        let mut versions: Vec<ValueVersion> = Vec::new();
        for block in self.chain.iter().take_while(|block| block.number <= *blocks.end()) {
            let changes = block.delta.changes();
            if let Ok(at) = changes.binary_search_by_key(key, |change| change.key) {
                if block.number <= *blocks.start() {
                    versions.clear();
                }
                versions
                    .push(ValueVersion { block: block.number, value: changes[at].next.clone() });
            }
        }
        versions.reverse();
        versions
    }

    /// Compares `shown` with the model. Blocks from `kept` on are kept: an oldest version that is a
    /// deletion at `kept` or below may be forgotten.
    fn assert_true(
        &self,
        shown: &[Vec<ValueVersion>],
        keys: &[StateKey],
        blocks: &RangeInclusive<u64>,
        kept: u64,
    ) {
        assert_eq!(shown.len(), keys.len());
        for (key, shown) in keys.iter().zip(shown) {
            let mut expected = self.expected(key, blocks);
            let is_bare = |of: &ValueVersion| of.value.is_none() && of.block <= kept;
            if self.prunes() && shown.len() < expected.len() && expected.last().is_some_and(is_bare)
            {
                expected.pop();
            }
            assert_eq!(*shown, expected, "versions of {key} in blocks {blocks:?}");
        }
    }

    /// Asks for `count` keys over a range, checks versions and proof, and returns them.
    fn check(&mut self, at: StateId<'_>, block: &TestBlock, count: usize) -> ProvenVersions {
        let kept = self.first_kept(at);
        let (keys, blocks) = (self.keys(block, count), self.range(kept, block));
        let store = self.node.store();
        let (versions, proof) =
            store.at(at).and_then(|state| state.versions(&keys, blocks.clone())).expect("versions");
        self.assert_true(&versions, &keys, &blocks, kept);
        proof.check_kind(store.identity()).expect("its own kind");
        assert_eq!((proof.block.number, proof.block.hash), (block.number, block.hash));
        assert_eq!((Some(proof.root), proof.as_of), (self.node.roots.of(block), None));
        let proven = ProvenVersions {
            keys,
            blocks,
            root: proof.root,
            bytes: proof.bytes.to_vec(),
            versions,
        };
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
    ) -> Option<Vec<Vec<ValueVersion>>> {
        let provenance = self.node.store().backend().extensions().provenance.expect("it has it");
        let keys = self.node.keys().keys(keys);
        provenance.verify_versions(root, &keys, blocks.clone(), bytes).ok()
    }

    /// The verifier accepts nothing false at the tip `block`.
    fn forge(&mut self, block: &TestBlock) {
        let kept = self.first_kept(StateId::Tip);
        for count in [1, 1, 4] {
            let proven = self.check(StateId::Tip, block, count);
            let ProvenVersions { keys, blocks, root, bytes, .. } = &proven;
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

    /// Ranges that are empty, end above the tip `block`, or begin too early are refused.
    fn refuses(&self, block: &TestBlock) {
        let store = self.node.store();
        // Without a history of its own a backend has the versions of all blocks since it began.
        let kept = match store.backend().extensions().history {
            Some(_) => self.first_kept(StateId::Tip),
            None => 0,
        };
        let number = block.number;
        let empty = store
            .at(StateId::Tip)
            .and_then(|state| state.versions(&[], RangeInclusive::new(number + 1, number)));
        assert!(matches!(empty, Err(StateError::NoBlocks { .. })), "{empty:?}");
        let before = kept.checked_sub(1).map(|before| (before, before..=number));
        let beyond = [(number + 1, number..=number + 1), (u64::MAX, u64::MAX..=u64::MAX)];
        for (outside, range) in beyond.into_iter().chain(before) {
            match store.at(StateId::Tip).and_then(|state| state.versions(&[], range.clone())) {
                Err(StateError::NotInHistory { number: asked, kept: Some(blocks) }) => {
                    assert_eq!((asked, blocks), (outside, kept..=number));
                }
                other => panic!("{range:?}: NotInHistory expected, not {other:?}"),
            }
        }
    }
}

/// Versions and their proof.
struct ProvenVersions {
    keys: Vec<StateKey>,
    blocks: RangeInclusive<u64>,
    root: B256,
    bytes: Vec<u8>,
    versions: Vec<Vec<ValueVersion>>,
}
