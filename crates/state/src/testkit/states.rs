//! Values, listings and counts against the model.

use super::{
    Kit,
    model::{BlockPtr, Flavour, Miner, Size},
    node::{Node, Roots, check_reader, options},
};
use crate::At;
use rand::Rng;
use std::sync::Arc;

/// Values, `slots_of`, `entries` and the count of live keys are those of a `BTreeMap`, on the
/// proposal and after its commit, block by block, whatever a block does: creations, updates,
/// deletions, storage wiped and set again, nothing at all, everything at once.
///
/// # Panics
/// If they are not.
pub fn values_listings_and_counts_match_a_model(kit: &Kit<'_>) {
    kit.each_seed(|seed| match_a_model(kit, seed, Flavour::Ethereum));
}

/// As [`values_listings_and_counts_match_a_model`] with values that are not Ethereum's: any bytes,
/// and slots without accounts. Backends that hold
/// Ethereum's alone are excused.
///
/// # Panics
/// If they are not.
pub fn opaque_values_match_a_model(kit: &Kit<'_>) {
    if kit.backend().ethereum_state_only() {
        eprintln!("skipped: this backend holds Ethereum's accounts and slots alone");
        return;
    }
    kit.each_seed(|seed| match_a_model(kit, seed, Flavour::Opaque));
}

fn match_a_model(kit: &Kit<'_>, seed: u64, flavour: Flavour) {
    let mut miner = Miner::new(seed, flavour, kit.scale.changes);
    let roots = Arc::new(Roots::default());
    let node = Node::new(kit, &roots, options(4, seed.is_multiple_of(2)));
    assert_eq!(node.store().tip(), None);
    let empty_root = node.store().root(At::Tip).expect("root of the empty state");
    assert_eq!(empty_root, node.store().backend().empty_root());
    assert_eq!(
        node.store().at(At::Tip).and_then(|state| state.entries(None, 10)).expect("entries"),
        []
    );
    let mut parent: Option<BlockPtr> = None;
    for n in 0..2 * kit.scale.blocks {
        let size = if n == kit.scale.blocks { Size::EraseAll } else { Size::Any };
        let block = miner.block(parent.as_deref(), size);
        let proposal = node.propose(At::Tip, &block);
        node.check(At::Proposal(&proposal), &block);
        assert_eq!(node.store().tip().map(|tip| tip.block.hash), parent.as_ref().map(|p| p.hash));
        node.commit(&[proposal]);
        node.check_tip(&block);
        check_reader(&node.store().at(At::Tip).expect("reader"), &block, flavour);
        let count = miner.rng.random_range(1..6);
        let starts = miner.keys(&block.entries, count);
        node.check_pages(At::Tip, &block, &starts);
        if miner.rng.random_bool(0.1) {
            node.store().flush().expect("fold");
            node.check_tip(&block);
        }
        parent = Some(block);
    }
}
