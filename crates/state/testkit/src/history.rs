//! Old states: read and proven at every block, far beyond the retention depth.

use super::{
    TestKit,
    model::{BlockMiner, BlockPtr, BlockSize, TestBlock, ValueFlavour, block_to, in_form},
    node::{KnownRoots, TestNode, check_reader, options},
    roots::bulk_load,
};
use rand::{Rng, seq::IndexedRandom};
use retrie_state::{BlockRef, StateError, ValueVersion};
use retrie_state_store::{StateId, StateProvider};
use std::{ops::RangeInclusive, sync::Arc};

/// If the backend has [`StateHistory`](retrie_state::StateHistory), the state of every block of the
/// durable chain that the backend has not forgotten can be read, listed and proven, however old:
/// beyond retention, after reverts and replaced blocks, after reopening, above a bulk load. Old
/// states that were opened before do not change. Blocks that do not exist are refused.
///
/// # Panics
/// If an old state differs from the model, or a block that does not exist can be read.
pub fn every_old_state_can_be_read_and_proven(kit: &TestKit<'_>) {
    let backend = kit.backend();
    if backend.extensions().history.is_none() {
        let node = TestNode::new(kit, &Arc::default(), options(3, true));
        for error in [
            node.store().history(BlockRef::default()).map(drop),
            node.store().history_kept().map(drop),
        ] {
            assert!(matches!(error, Err(StateError::Unsupported { .. })), "{error:?}");
        }
        eprintln!("skipped: this backend has no history");
        return;
    }
    kit.each_seed(|seed| {
        for (first, bulk) in [(0, false), (0, true), (700, true), (20, false)] {
            old_states(
                kit,
                kit.miner(seed + first, ValueFlavour::Ethereum, kit.scale.changes),
                first,
                bulk,
            );
        }
    });
}

fn old_states(kit: &TestKit<'_>, miner: BlockMiner, first: u64, bulk: bool) {
    let mut miner = miner.starting_at(first);
    let roots = Arc::new(KnownRoots::default());
    let retention = 3;
    let mut node = TestNode::new(kit, &roots, options(retention, bulk));
    assert_eq!(node.store().history_kept().expect("kept"), None);
    is_refused(&node, first, None);

    let mut chain: Vec<BlockPtr> = Vec::new();
    if bulk {
        let grown = miner.chain(None, 5, BlockSize::Operations(kit.scale.changes));
        let start = block_to(None, first, &grown[4].entries);
        let entries = start.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        let root = bulk_load(&node, &start, entries).expect("bulk load");
        roots.note(&start, root);
        chain.push(start);
    }
    let mut held: Vec<(StateProvider, BlockPtr)> = Vec::new();
    for n in 0..2 * kit.scale.blocks {
        let size = if n == kit.scale.blocks { BlockSize::EraseAll } else { BlockSize::Any };
        let block = miner.block(chain.last().map(|block| &**block), size);
        let proposal = node.propose(StateId::Tip, &block);
        // A proposal is not part of the history.
        let kept = (!chain.is_empty()).then(|| first..=first + chain.len() as u64 - 1);
        is_refused(&node, block.number, kept);
        node.commit(&[proposal]);
        chain.push(block);

        let kept = kept_of(&node, Some(first..=first + chain.len() as u64 - 1)).expect("the tip");
        let block = chain[(kept.start() - first) as usize..].choose(&mut miner.rng).expect("tip");
        let past =
            node.store().history(BlockRef::new(block.number, block.hash)).expect("an old state");
        check(kit, &node, &mut miner, &past, block);
        if n % 3 == 0 {
            held.push((past, block.clone()));
        }
        match miner.rng.random_range(0..8) {
            0 => node.reopen(),
            1 => node.store().flush().expect("fold"),
            2 | 3 => {
                // Other blocks will replace the last ones.
                let depth = chain.len().min(1 + retention as usize);
                let depth =
                    depth.min((chain.len() as u64 + first - node.first_retained()) as usize);
                chain.truncate(chain.len() - miner.rng.random_range(0..depth));
                node.revert(first + chain.len() as u64 - 1);
                is_refused(
                    &node,
                    first + chain.len() as u64,
                    Some(first..=first + chain.len() as u64 - 1),
                );
            }
            _ => {}
        }
    }
    for reopen in [false, true] {
        if reopen {
            node.reopen();
        }
        let last = first + chain.len() as u64 - 1;
        let kept = kept_of(&node, Some(first..=last)).expect("the tip");
        for block in &chain {
            if !kept.contains(&block.number) {
                is_refused(&node, block.number, Some(first..=last));
                continue;
            }
            let past = node
                .store()
                .history(BlockRef::new(block.number, block.hash))
                .expect("an old state");
            check(kit, &node, &mut miner, &past, block);
        }
        for beyond in [last + 1, u64::MAX].into_iter().chain(first.checked_sub(1)) {
            is_refused(&node, beyond, Some(first..=last));
        }
    }
    // Old readers still show their blocks, even reverted ones.
    for (past, block) in &held {
        check_reader(past, block, ValueFlavour::Ethereum);
    }
}

/// The blocks that the history keeps: all of `blocks`, or the last of them if the backend forgets
/// old ones.
fn kept_of(
    node: &TestNode<'_>,
    blocks: Option<RangeInclusive<u64>>,
) -> Option<RangeInclusive<u64>> {
    let kept = node.store().history_kept().expect("kept");
    match (&kept, &blocks) {
        (Some(kept), Some(blocks))
            if node
                .store()
                .backend()
                .extensions()
                .history
                .is_some_and(|history| history.prunes()) =>
        {
            assert_eq!(kept.end(), blocks.end(), "the tip is kept");
            assert!(blocks.contains(kept.start()), "{kept:?} of {blocks:?}");
        }
        _ => assert_eq!(kept, blocks),
    }
    kept
}

fn is_refused(node: &TestNode<'_>, number: u64, blocks: Option<RangeInclusive<u64>>) {
    let expected = kept_of(node, blocks);
    match node.store().history(BlockRef { number, ..BlockRef::default() }) {
        Err(StateError::NotInHistory { number: asked, kept }) => {
            assert_eq!((asked, kept), (number, expected));
        }
        other => panic!("history of block {number}: NotInHistory expected, not {other:?}"),
    }
}

/// Compares an old state, just opened, with the whole `block`.
fn check(
    kit: &TestKit<'_>,
    node: &TestNode<'_>,
    miner: &mut BlockMiner,
    past: &StateProvider,
    block: &TestBlock,
) {
    let backend = node.store().backend();
    let tip = node.store().tip().expect("there are blocks");
    let by_tip = backend.extensions().history.is_some_and(|history| history.proven_by_view());
    let root = if by_tip { Some(tip.root) } else { node.roots.of(block) };
    let seen = (past.number(), past.opened_from(), Some(past.root()));
    assert_eq!(seen, (Some(block.number), Some(tip.block), root));
    let entries = past.entries(None, usize::MAX).expect("entries");
    let (form, expected) = (node.keys(), in_form(node.keys(), &block.entries));
    assert!(
        entries.iter().map(|(key, value)| (key, value)).eq(&expected),
        "old entries of block {}",
        block.number
    );
    if let Some(start) = miner.keys(&block.entries, 1).first() {
        let start = form.key(start);
        let page = past.entries(Some(&start), 5).expect("entries");
        let expected = expected.range(start..).take(5);
        assert!(page.iter().map(|(k, v)| (k, v)).eq(expected), "old page from {start}");
    }
    check_reader(past, block, ValueFlavour::Ethereum);
    let capabilities = kit.backend().profile();
    if capabilities.proofs {
        let mut keys = miner.keys(&block.entries, 5);
        keys.retain(|key| capabilities.absence_proofs || block.entries.contains_key(key));
        let proof = past.prove(&keys).expect("a proof");
        proof.check_kind(node.store().identity()).expect("its own kind");
        let at = if by_tip { tip.block } else { BlockRef::new(block.number, block.hash) };
        let as_of = (at.number != block.number).then_some(block.number);
        assert_eq!((proof.block, proof.root, proof.as_of), (at, past.root(), as_of));
        let own = form.keys(&keys);
        let shown = match as_of {
            None => backend.verify(proof.root, &own, &proof.bytes).expect("the proof holds"),
            Some(number) => {
                let provenance =
                    backend.extensions().provenance.expect("what verifies such proofs");
                let shown =
                    provenance.verify_versions(proof.root, &own, number..=number, &proof.bytes);
                let value = |of: Vec<ValueVersion>| of.into_iter().next()?.value;
                shown.expect("the proof holds").into_iter().map(value).collect()
            }
        };
        let expected: Vec<_> = keys.iter().map(|key| block.entries.get(key).cloned()).collect();
        assert_eq!(shown, expected, "what an old proof shows");
    }
}
