//! Values, listings and counts against the model.

use super::{
    TestKit,
    model::{BlockPtr, BlockSize, ValueFlavour},
    node::{KnownRoots, TestNode, check_reader, options},
};
use rand::Rng;
use retrie_state_store::StateId;
use std::sync::Arc;

/// Values, `slots_of`, `entries` and the count of live keys equal a `BTreeMap` model, on the
/// proposal and after its commit, block by block, whatever a block does: creations, updates,
/// deletions, storage wiped and set again, no changes, all entries deleted.
///
/// # Panics
/// If they differ.
pub fn values_listings_and_counts_match_a_model(kit: &TestKit<'_>) {
    kit.each_seed(|seed| match_a_model(kit, seed, ValueFlavour::Ethereum));
}

/// As [`values_listings_and_counts_match_a_model`] with values that are not Ethereum's: any bytes,
/// and slots without accounts. It skips backends that hold only Ethereum's accounts and slots.
///
/// # Panics
/// If they differ.
pub fn opaque_values_match_a_model(kit: &TestKit<'_>) {
    if kit.backend().profile().ethereum_state_only {
        eprintln!("skipped: this backend holds only Ethereum's accounts and slots");
        return;
    }
    kit.each_seed(|seed| match_a_model(kit, seed, ValueFlavour::Opaque));
}

fn match_a_model(kit: &TestKit<'_>, seed: u64, flavour: ValueFlavour) {
    let mut miner = kit.miner(seed, flavour, kit.scale.changes);
    let roots = Arc::new(KnownRoots::default());
    let node = TestNode::new(kit, &roots, options(4, seed.is_multiple_of(2)));
    assert_eq!(node.store().tip(), None);
    let empty_root = node.store().root(StateId::Tip).expect("root of the empty state");
    assert_eq!(empty_root, node.store().backend().profile().empty_root);
    assert_eq!(
        node.store().at(StateId::Tip).and_then(|state| state.entries(None, 10)).expect("entries"),
        []
    );
    let mut parent: Option<BlockPtr> = None;
    for n in 0..2 * kit.scale.blocks {
        let size = if n == kit.scale.blocks { BlockSize::EraseAll } else { BlockSize::Any };
        let block = miner.block(parent.as_deref(), size);
        let proposal = node.propose(StateId::Tip, &block);
        node.check(StateId::Proposal(&proposal), &block);
        assert_eq!(node.store().tip().map(|tip| tip.block.hash), parent.as_ref().map(|p| p.hash));
        node.commit(&[proposal]);
        node.check_tip(&block);
        check_reader(&node.store().at(StateId::Tip).expect("reader"), &block, flavour);
        let count = miner.rng.random_range(1..6);
        let starts = miner.keys(&block.entries, count);
        node.check_pages(StateId::Tip, &block, &starts);
        if miner.rng.random_bool(0.1) {
            node.store().flush().expect("fold");
            node.check_tip(&block);
        }
        parent = Some(block);
    }
}
