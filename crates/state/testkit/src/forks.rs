//! Forks, proposals and readers side by side.

use super::{
    TestKit,
    model::{BlockPtr, BlockSize, ValueFlavour},
    node::{KnownRoots, TestNode, check_reader, options},
};
use rand::Rng;
use retrie_state::{KeyRange, RowTable, ScanDirection, TableRow};
use retrie_state_store::{Proposal, StateId, StateProvider, StateStore};
use std::sync::Arc;

fn last(blocks: &[BlockPtr]) -> &BlockPtr {
    blocks.last().expect("there are blocks")
}

/// Two children of one block are proposed side by side; one is committed, the other extended. Then
/// the chain switches to the other branch and back.
///
/// # Panics
/// If one branch sees the other's writes, or a switch does not restore a branch.
pub fn siblings_do_not_see_each_other(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        for fold_often in [true, false] {
            let node = TestNode::new(kit, &roots, options(16, fold_often));
            let trunk = miner.chain(None, 4, BlockSize::Any);
            node.extend_each(&trunk);
            let fork = last(&trunk);
            let a = miner.chain(Some(fork), 4, BlockSize::Any);
            let b = miner.chain(Some(fork), 5, BlockSize::Any);

            // Side by side, on the tip.
            let a1 = node.propose(StateId::Tip, &a[0]);
            let b1 = node.propose(StateId::Block(fork.hash), &b[0]);
            node.check(StateId::Proposal(&a1), &a[0]);
            node.check(StateId::Block(b[0].hash), &b[0]);
            node.check_tip(fork);

            // One becomes durable: the parent of the other is now below the tip.
            node.commit(std::slice::from_ref(&a1));
            node.check_tip(&a[0]);
            node.check(StateId::Proposal(&a1), &a[0]);
            node.check(StateId::Proposal(&b1), &b[0]);
            // The durable block is proposed once more, and extended.
            let a1_again = node.propose(StateId::Block(fork.hash), &a[0]);
            let beside = node.propose(StateId::Proposal(&a1_again), &a[1]);
            node.check(StateId::Proposal(&beside), &a[1]);
            drop((a1_again, beside));
            let b2 = node.propose(StateId::Block(b[0].hash), &b[1]);
            node.check(StateId::Block(b[1].hash), &b[1]);
            let b1_again = node.propose(StateId::Block(fork.hash), &b[0]);
            node.check(StateId::Proposal(&b1_again), &b[0]);
            drop(b1_again);
            node.check(StateId::Block(b[0].hash), &b[0]);
            // Its parent is durable now, and will be reverted.
            let a2 = node.propose(StateId::Tip, &a[1]);
            node.extend_each(&a[1..3]);
            node.check(StateId::Proposal(&b2), &b[1]);
            let b3 = node.propose(StateId::Proposal(&b2), &b[2]);
            node.check(StateId::Proposal(&b3), &b[2]);
            node.check(StateId::Block(fork.hash), fork);
            node.check_tip(&a[2]);

            // Switch to the other branch, with the proposals made beside the first.
            node.revert(fork.number);
            node.check_tip(fork);
            node.check(StateId::Proposal(&b3), &b[2]);
            node.check(StateId::Proposal(&a2), &a[1]);
            node.check(StateId::Block(a[1].hash), &a[1]);
            drop(a2);
            node.commit(&[b1, b2]);
            node.check_tip(&b[1]);
            node.commit(&[b3]);
            node.check_tip(&b[2]);
            // The proposals of the first branch are dropped, except one.
            node.check(StateId::Block(a[0].hash), &a[0]);
            assert!(node.store().at(StateId::Block(a[1].hash)).is_err(), "it was dropped");
            node.extend(&b[3..]);
            node.check_tip(last(&b));

            // And switch back.
            node.revert(fork.number);
            let more = node.propose_chain(StateId::Proposal(&a1), &a[1..]);
            node.check(StateId::Block(a[3].hash), &a[3]);
            node.commit(&[a1]);
            node.check(StateId::Block(a[3].hash), &a[3]);
            node.commit(&more[..2]);
            node.commit(&more[2..]);
            node.check_tip(&a[3]);
            for block in trunk.iter().chain(&a) {
                node.check(StateId::Block(block.hash), block);
            }
        }
    });
}

/// Proposals that were dropped change neither the tables nor what comes after them.
///
/// # Panics
/// If they do.
pub fn dropped_proposals_leave_no_trace(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(8, true));
        let plain = TestNode::new(kit, &roots, options(8, true));
        let mut parent: Option<BlockPtr> = None;
        for _ in 0..kit.scale.blocks / 2 {
            node.store().flush().expect("fold");
            let before = dump(&node);
            let dropped = miner.chain(parent.as_ref(), 3, BlockSize::Any);
            let proposals = node.propose_chain(StateId::Tip, &dropped);
            // Parents are dropped first, so that the children hold the last references.
            drop(proposals);
            let unsealed = node.store().begin(StateId::Tip).expect("session");
            let proposal = unsealed.finish_as(dropped[0].number, &dropped[0].delta);
            drop(proposal.expect("proposal"));
            drop(node.store().begin(StateId::Tip).expect("session"));
            assert!(dump(&node) == before, "a dropped proposal has changed the tables");
            for block in &dropped {
                assert!(node.store().at(StateId::Block(block.hash)).is_err(), "it was dropped");
            }
            let block = miner.block(parent.as_deref(), BlockSize::Any);
            for node in [&node, &plain] {
                node.extend(std::slice::from_ref(&block));
                node.check_tip(&block);
            }
            parent = Some(block);
        }
    });
}

/// All rows of all tables.
fn dump(node: &TestNode<'_>) -> Vec<(RowTable, Vec<TableRow>)> {
    let snapshot = node.kv.snapshot().expect("snapshot");
    let tables = StateStore::tables(node.store().backend());
    let rows = |table| {
        let rows = snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX);
        (table, rows.expect("rows"))
    };
    tables.into_iter().map(rows).collect()
}

/// Hundreds of proposals on top of each other, none durable, all readable.
///
/// # Panics
/// If one of them shows another state than its own.
pub fn deep_chains_of_proposals_read_through(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(8, true));
        let base = miner.chain(None, 2, BlockSize::Any);
        node.extend(&base);
        let chain = miner.chain(base.last(), kit.scale.depth, BlockSize::Tiny);
        let proposals = node.propose_chain(StateId::Tip, &chain);
        for n in (0..chain.len()).step_by(chain.len() / 10 + 1).chain([chain.len() - 1]) {
            node.check(StateId::Proposal(&proposals[n]), &chain[n]);
        }
        node.check_tip(last(&base));
        // A fork in the middle.
        let middle = chain.len() / 2;
        let side = miner.chain(Some(&chain[middle]), 10, BlockSize::Any);
        let side_proposals = node.propose_chain(StateId::Block(chain[middle].hash), &side);
        node.check(StateId::Proposal(last_of(&side_proposals)), last(&side));
        // All of one branch in a single commit.
        let way: Vec<_> = proposals[..=middle].iter().chain(&side_proposals).cloned().collect();
        node.commit(&way);
        node.check_tip(last(&side));
        if side.len() > 8 {
            // The other branch forked beyond the retention depth, so it cannot be reached any more.
            assert!(node.store().at(StateId::Proposal(last_of(&proposals))).is_err());
        }
    });
}

fn last_of(proposals: &[Proposal]) -> &Proposal {
    proposals.last().expect("there are proposals")
}

/// Proposals are committed from the front, in commits of random size, while later ones stay alive,
/// are read, and extended.
///
/// # Panics
/// If a commit disturbs a proposal above it.
pub fn batches_commit_while_later_proposals_live_on(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(5, seed.is_multiple_of(2)));
        let mut blocks = miner.chain(None, 6, BlockSize::Any);
        let mut proposals = node.propose_chain(StateId::Tip, &blocks);
        let mut durable: Option<BlockPtr> = None;
        for _ in 0..kit.scale.blocks {
            let batch = miner.rng.random_range(0..=blocks.len().min(4));
            node.commit(&proposals[..batch]);
            if let Some(block) = batch.checked_sub(1).map(|n| &blocks[n]) {
                durable = Some(block.clone());
            }
            blocks.drain(..batch);
            proposals.drain(..batch);
            for (block, proposal) in blocks.iter().zip(&proposals) {
                node.check(StateId::Proposal(proposal), block);
            }
            if let Some(durable) = &durable {
                node.check_tip(durable);
            }
            let count = miner.rng.random_range(1..4);
            let parent = blocks.last().or(durable.as_ref()).cloned();
            let more = miner.chain(parent.as_ref(), count, BlockSize::Any);
            let at = proposals.last().map_or(StateId::Tip, StateId::Proposal);
            let more_proposals = node.propose_chain(at, &more);
            blocks.extend(more);
            proposals.extend(more_proposals);
        }
    });
}

/// A branch that forks at the oldest retained block is built from there, then replaces everything
/// above it.
///
/// # Panics
/// If the branch reads another state than its own, before or after the switch.
pub fn deep_forks_replace_the_whole_retained_chain(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let retention = kit.scale.blocks / 2;
        let node = TestNode::new(kit, &roots, options(retention as u64, true));
        let mut chain = miner.chain(None, retention + 3, BlockSize::Any);
        node.extend_each(&chain);
        for _ in 0..3 {
            let fork = chain[chain.len() - 1 - retention].clone();
            node.check(StateId::Block(fork.hash), &fork);
            let branch = miner.chain(Some(&fork), retention + 1, BlockSize::Any);
            let proposals = node.propose_chain(StateId::Block(fork.hash), &branch);
            for (block, proposal) in branch.iter().zip(&proposals) {
                node.check(StateId::Proposal(proposal), block);
            }
            node.check_tip(last(&chain));
            node.revert(fork.number);
            node.check_tip(&fork);
            for (block, proposal) in branch.iter().zip(&proposals) {
                node.check(StateId::Proposal(proposal), block);
            }
            node.commit(&proposals);
            node.check_tip(last(&branch));
            chain = branch;
        }
    });
}

/// Readers opened on tips, older blocks and proposals show their own block's state to the end,
/// through commits, folds and reverts.
///
/// # Panics
/// If one does not.
pub fn readers_stay_at_their_block(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        readers_stay(kit, seed, true);
        readers_stay(kit, seed, false);
    });
}

fn readers_stay(kit: &TestKit<'_>, seed: u64, fold_often: bool) {
    let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
    let roots = Arc::new(KnownRoots::default());
    let node = TestNode::new(kit, &roots, options(6, fold_often));
    let mut chain = miner.chain(None, 3, BlockSize::Any);
    node.extend_each(&chain);
    let mut readers: Vec<(StateProvider, BlockPtr)> = Vec::new();
    for n in 0..kit.scale.blocks {
        let parent = last(&chain).clone();
        let block = miner.block(Some(&parent), BlockSize::Any);
        let proposal = node.propose(StateId::Tip, &block);
        let mut open = |at, block: &BlockPtr| {
            readers.push((node.store().at(at).expect("reader"), block.clone()));
        };
        open(StateId::Tip, &parent);
        open(StateId::Proposal(&proposal), &block);
        let first = node.first_retained() as usize;
        let old = &chain[miner.rng.random_range(first..chain.len())];
        open(StateId::Block(old.hash), old);
        node.commit(&[proposal]);
        chain.push(block);
        match miner.rng.random_range(0..5) {
            0 if fold_often => node.store().flush().expect("fold"),
            1 => {
                let first = node.first_retained() as usize;
                chain.truncate(miner.rng.random_range(first..chain.len()) + 1);
                node.revert(last(&chain).number);
            }
            _ => {}
        }
        node.check_tip(last(&chain));
        let (reader, block) = &readers[miner.rng.random_range(0..readers.len())];
        check_reader(reader, block, ValueFlavour::Ethereum);
        if n % 7 == 6 {
            // Dropped readers release the versions kept for them.
            readers.drain(..readers.len() / 3);
        }
    }
    for (reader, block) in &readers {
        check_reader(reader, block, ValueFlavour::Ethereum);
    }
}
