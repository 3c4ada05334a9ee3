//! Batches of blocks that are applied at once.

use super::{
    TestKit,
    flat_history::KeptChain,
    model::{BlockMiner, BlockPtr, BlockSize, ValueFlavour},
    node::{KnownRoots, TestNode, options},
};
use rand::Rng;
use retrie_state::StateError;
use retrie_state_store::{FlatHistory, StateId, StoreOptions};
use std::sync::Arc;

/// If the backend applies batches, blocks that are applied at once have the same effect as one by
/// one: root, values, proofs, flat history, and later blocks. The end of a committed batch is then
/// the oldest retained block: blocks inside the batch and below are refused, and blocks above are
/// reverted as usual. Other backends refuse batches.
///
/// # Panics
/// If a batch differs from its blocks.
pub fn a_run_equals_its_blocks(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        for (changes, retention, fold_often) in [
            (FlatHistory::Off, 4, true),
            (FlatHistory::All, 3, false),
            (FlatHistory::Last(20), 2, true),
            (FlatHistory::Off, 0, false),
        ] {
            let mut miner = kit.miner(seed + retention, ValueFlavour::Ethereum, kit.scale.changes);
            let chain = miner.chain(None, 2 * kit.scale.blocks, BlockSize::Any);
            let settings = StoreOptions { flat_history: changes, ..options(retention, fold_often) };
            if kit.backend().applies_batches() {
                in_runs(kit, &mut miner, &chain, &settings);
            } else {
                refused(kit, &chain, &settings);
            }
        }
    });
}

fn refused(kit: &TestKit<'_>, chain: &[BlockPtr], settings: &StoreOptions) {
    let node = TestNode::new(kit, &Arc::new(KnownRoots::default()), settings.clone());
    node.extend(&chain[..1]);
    let error = node.try_propose_batch(StateId::Tip, &chain[1..4]).map(drop);
    assert!(matches!(error, Err(StateError::Unsupported { .. })), "{error:?}");
    node.extend(&chain[1..4]);
    node.check_tip(&chain[3]);
}

fn in_runs(kit: &TestKit<'_>, miner: &mut BlockMiner, chain: &[BlockPtr], settings: &StoreOptions) {
    // The nodes compare their roots with the roots that the first node recorded.
    let roots = Arc::new(KnownRoots::default());
    let singly = TestNode::new(kit, &roots, settings.clone());
    singly.extend_each(chain);
    let mut node = TestNode::new(kit, &roots, settings.clone());
    let first = node.try_propose_batch(StateId::Tip, &chain[..2]).map(drop);
    assert!(matches!(first, Err(StateError::Unsupported { .. })), "on nothing: {first:?}");
    node.extend(&chain[..1]);
    let mut kept = KeptChain::new(settings.flat_history, settings.retention, 0);
    kept.extend([chain[0].clone()]);
    let mut at = 1;
    while at < chain.len() {
        let mut proposals = Vec::new();
        let (before, mut last_run) = (at, None);
        for _ in 0..miner.rng.random_range(1..4) {
            let count = miner.rng.random_range(1..6).min(chain.len() - at);
            let blocks = &chain[at..at + count];
            let parent = proposals.last().map_or(StateId::Tip, StateId::Proposal);
            if miner.rng.random_bool(0.6) {
                let run = node.try_propose_batch(parent, blocks).expect("a run");
                node.check(StateId::Proposal(&run), blocks.last().expect("it has blocks"));
                proposals.push(run);
                last_run = if count > 1 { Some(at + count - 1) } else { last_run };
            } else {
                let above = node.propose_chain(parent, blocks);
                proposals.extend(above);
            }
            at += count;
            if at == chain.len() {
                break;
            }
        }
        node.commit(&proposals);
        drop(proposals);
        kept.extend(chain[before..at].iter().cloned());
        let tip = &chain[at - 1];
        node.check_tip(tip);
        if settings.flat_history != FlatHistory::Off {
            kept.check(&node, StateId::Tip, miner, 3);
        }
        let deepest = tip.number.saturating_sub(settings.retention);
        if let Some(run) = last_run {
            let run = chain[run].number.max(deepest);
            assert_eq!(node.first_retained(), run, "the oldest retained block");
            let inner = &chain[run as usize - 1];
            let gone = node.store().at(StateId::Block(inner.hash)).map(drop);
            assert!(matches!(gone, Err(StateError::UnknownBlock { .. })), "{gone:?}");
            let gone = node.try_revert(run - 1);
            assert!(matches!(gone, Err(StateError::BeyondRetention { number, first, .. })
                if (number, first) == (run - 1, run)));
        }
        if miner.rng.random_bool(0.3) {
            let first = node.first_retained();
            node.reopen();
            assert_eq!(node.first_retained(), first, "found again");
        }
        if miner.rng.random_bool(0.3) {
            let back = miner.rng.random_range(node.first_retained()..=tip.number) as usize;
            node.revert(back as u64);
            node.check_tip(&chain[back]);
            node.extend(&chain[back + 1..at]);
            node.check_tip(tip);
        }
        for number in node.first_retained()..=tip.number {
            node.check(StateId::Block(chain[number as usize].hash), &chain[number as usize]);
        }
    }
    let tip = &chain[chain.len() - 1];
    if node.store().backend().profile().proofs {
        let keys = miner.keys(&tip.entries, 12);
        let proof = |node: &TestNode<'_>| {
            node.store().at(StateId::Tip).and_then(|state| state.prove(&keys))
        };
        let [in_runs, one_by_one] = [&node, &singly].map(|node| proof(node).expect("a proof"));
        assert_eq!(in_runs.bytes, one_by_one.bytes, "proofs");
    }
    for node in [&node, &singly] {
        node.store().flush().expect("fold");
    }
    let stats = |node: &TestNode<'_>| node.store().stats().expect("stats").backend;
    assert_eq!(stats(&node), stats(&singly), "rows of the backend");
}
