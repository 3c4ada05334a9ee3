//! Block witnesses: a verifier without a store reads the right values and reaches the next root, and
//! is not fooled.

use super::{
    TestKit,
    model::{BlockMiner, BlockSize, TestBlock, ValueFlavour, slots_of},
    node::{KnownRoots, TestNode, options},
    proofs::refuses_mutations,
};
use alloy_primitives::{Address, B256};
use rand::seq::IteratorRandom;
use retrie_state::{
    AnyBackend, BackendDelta, StateError, StateKey, StateWitness, WitnessMaker, WitnessSupport,
    descriptor::{OpenedWitness, WitnessResult},
};
use retrie_state_store::StateId;
use std::sync::Arc;

/// A block on its parent, with what its witness is asked.
struct WitnessCase<'a> {
    node: &'a TestNode<'a>,
    parent: &'a TestBlock,
    block: &'a TestBlock,
    reads: Vec<StateKey>,
    listed: Vec<Address>,
}

impl WitnessCase<'_> {
    fn make(&self) -> Result<StateWitness, StateError> {
        let store = self.node.store();
        let state = store.at(StateId::Block(self.parent.hash)).expect("the parent");
        let delta = self.node.known(&self.block.delta);
        state.witness(self.block.number, &self.reads, &self.listed, &delta)
    }

    fn delta_of(&self, block: &TestBlock) -> BackendDelta {
        self.node.keys().delta(&block.delta)
    }

    /// What `opened` says that is not true, if anything.
    fn wrong(&self, opened: &dyn OpenedWitness) -> Option<String> {
        let changed = self.block.delta.changes().iter().map(|change| &change.key);
        for key in self.reads.iter().chain(changed) {
            let shown = opened.value(&self.node.keys().key(key));
            if shown.is_ok_and(|value| value.as_ref() != self.parent.entries.get(key)) {
                return Some(format!("a value of {key}"));
            }
        }
        let next = opened.apply(self.block.number, &self.delta_of(self.block));
        let expected = self.node.roots.of(self.block);
        next.is_ok_and(|next| Some(next) != expected).then(|| "the next root".into())
    }

    /// Checks all that `opened` has to say.
    fn check(&self, opened: &dyn OpenedWitness) {
        let form = self.node.keys();
        let delta = self.delta_of(self.block);
        for key in &self.reads {
            let shown = opened.value(&form.key(key)).expect("a key that was asked for");
            assert_eq!(shown.as_ref(), self.parent.entries.get(key), "{key}");
        }
        let next = opened.apply(self.block.number, &delta).expect("the next root");
        assert_eq!(Some(next), self.node.roots.of(self.block), "block {}", self.block.number);
        for address in &self.listed {
            if let Ok(shown) = opened.slots_of(&form.account(address)) {
                let slots = slots_of(&self.parent.entries, address);
                let mut slots: Vec<_> =
                    slots.map(|(slot, value)| (form.slot(&slot), value.clone())).collect();
                slots.sort_unstable();
                assert_eq!(shown, slots, "slots of {address}");
            }
        }
    }
}

/// Creates blocks. A root that commits to codes does not say how many accounts have each, so that a
/// block in which an account loses its code has no witness.
fn miner(kit: &TestKit<'_>, seed: u64, usual: usize) -> BlockMiner {
    let miner = kit.miner(seed, ValueFlavour::Ethereum, usual);
    match kit.backend().profile().needs_codes {
        true => miner.without_codes(),
        false => miner,
    }
}

/// The backend of `node`, if it makes witnesses; prints a note if not.
fn maker<'n>(node: &'n TestNode<'_>) -> Option<&'n dyn AnyBackend> {
    let backend = node.store().backend();
    match backend.extensions().witnesses {
        WitnessSupport::Maker(_) => Some(backend),
        WitnessSupport::Unsupported(why) => {
            assert!(!why.is_empty());
            eprintln!("skipped: this backend has no witnesses: {why}");
            None
        }
    }
}

fn case<'a>(
    node: &'a TestNode<'a>,
    miner: &mut BlockMiner,
    parent: &'a TestBlock,
    block: &'a TestBlock,
) -> WitnessCase<'a> {
    let reads = miner.keys(&parent.entries, 4);
    let listed = parent.entries.keys().map(|key| *key.address()).choose(&mut miner.rng);
    WitnessCase { node, parent, block, reads, listed: listed.into_iter().collect() }
}

/// A witness of a block with insertions, updates and removals shows the values that the block reads,
/// and gives the root that the store computes; for another block on the same parent it gives that
/// block's root, or an error.
///
/// # Panics
/// If it gives another value or root, or if no block has a witness.
pub fn witnesses_give_the_values_and_the_next_root(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = miner(kit, seed, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(5, true));
        let Some(backend) = maker(&node) else { return };
        let first = miner.block(None, BlockSize::Any);
        node.extend(std::slice::from_ref(&first));
        let (mut parent, mut made) = (first, 0);
        for n in 0..kit.scale.blocks {
            let size = match n % 8 {
                2 => BlockSize::Tiny,
                5 => BlockSize::Operations(4 * kit.scale.changes),
                7 => BlockSize::EraseAll,
                _ => BlockSize::Any,
            };
            let block = miner.block(Some(&parent), size);
            let other = miner.block(Some(&parent), BlockSize::Tiny);
            drop(node.propose(StateId::Tip, &other));
            node.extend(std::slice::from_ref(&block));
            let case = case(&node, &mut miner, &parent, &block);
            match case.make() {
                Err(StateError::NoWitness { .. }) => {}
                Err(error) => panic!("block {}: {error}", block.number),
                Ok(witness) => {
                    made += 1;
                    let opened = open(backend, witness.root, &witness.bytes);
                    let opened = opened.expect("the witness opens");
                    case.check(&*opened);
                    let root = opened.apply(other.number, &case.delta_of(&other));
                    assert!(root.is_err() || root.ok() == roots.of(&other), "another block's root");
                }
            }
            parent = block;
        }
        // A store may have none of many blocks: LMPT has none of boundaries.
        assert!(made > 0, "no block has a witness");
    });
}

fn open(backend: &dyn AnyBackend, root: B256, bytes: &[u8]) -> WitnessResult {
    let maker: &dyn WitnessMaker =
        backend.extensions().witness_maker(backend.identity()).expect("it makes witnesses");
    maker.open_witness(root, bytes)
}

/// A changed witness, or one of another state, is refused, or says nothing wrong.
///
/// # Panics
/// If a verifier is fooled, or panics.
pub fn mutated_witnesses_say_nothing_wrong(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = miner(kit, seed, kit.scale.changes.min(8));
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(5, true));
        let Some(backend) = maker(&node) else { return };
        let chain = miner.chain(None, 7, BlockSize::Operations(kit.scale.changes.min(8)));
        node.extend(&chain);
        let known: Vec<B256> = chain.iter().filter_map(|block| roots.of(block)).collect();
        for pair in chain.windows(2).skip(3) {
            let case = case(&node, &mut miner, &pair[0], &pair[1]);
            let Ok(StateWitness { root, bytes, .. }) = case.make() else { continue };
            let fools = |bytes: &[u8]| {
                open(backend, root, bytes).is_ok_and(|opened| case.wrong(&*opened).is_some())
            };
            assert!(!fools(&bytes));
            let what = format!("block {}", case.block.number);
            refuses_mutations(&mut miner.rng, &bytes, kit.scale.mutations / 10, &what, &fools);
            for other in known.iter().chain([&B256::ZERO, &B256::repeat_byte(7)]) {
                assert_eq!(open(backend, *other, &bytes).is_ok(), *other == root, "a foreign root");
            }
        }
    });
}
