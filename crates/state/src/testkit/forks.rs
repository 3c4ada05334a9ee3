//! Forks, proposals and readers side by side.

use super::{
    Kit,
    model::{BlockPtr, Flavour, Miner, Size},
    node::{Node, Roots, check_reader, options},
};
use crate::{At, Direction, KeyRange, Proposal, Row, StateAt, StateStore, Table};
use rand::Rng;
use std::sync::Arc;

fn last(blocks: &[BlockPtr]) -> &BlockPtr {
    blocks.last().expect("there are blocks")
}

/// Two children of one block, proposed side by side, one committed, the other extended; then the
/// chain switches to the other branch and back.
///
/// # Panics
/// If one branch shows in the other, or a switch does not restore a branch.
pub fn siblings_do_not_see_each_other(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(Roots::default());
        for fold_often in [true, false] {
            let node = Node::new(kit, &roots, options(16, fold_often));
            let trunk = miner.chain(None, 4, Size::Any);
            node.extend_each(&trunk);
            let fork = last(&trunk);
            let a = miner.chain(Some(fork), 4, Size::Any);
            let b = miner.chain(Some(fork), 5, Size::Any);

            // Side by side, on the tip.
            let a1 = node.propose(At::Tip, &a[0]);
            let b1 = node.propose(At::Block(fork.hash), &b[0]);
            node.check(At::Proposal(&a1), &a[0]);
            node.check(At::Block(b[0].hash), &b[0]);
            node.check_tip(fork);

            // One becomes durable: the other now stands on a block below the tip.
            node.commit(std::slice::from_ref(&a1));
            node.check_tip(&a[0]);
            node.check(At::Proposal(&a1), &a[0]);
            node.check(At::Proposal(&b1), &b[0]);
            let b2 = node.propose(At::Block(b[0].hash), &b[1]);
            node.check(At::Block(b[1].hash), &b[1]);
            let b1_again = node.propose(At::Block(fork.hash), &b[0]);
            node.check(At::Proposal(&b1_again), &b[0]);
            drop(b1_again);
            node.check(At::Block(b[0].hash), &b[0]);
            // It stands on a block that is durable now, and will be reverted.
            let a2 = node.propose(At::Tip, &a[1]);
            node.extend_each(&a[1..3]);
            node.check(At::Proposal(&b2), &b[1]);
            let b3 = node.propose(At::Proposal(&b2), &b[2]);
            node.check(At::Proposal(&b3), &b[2]);
            node.check(At::Block(fork.hash), fork);
            node.check_tip(&a[2]);

            // To the other branch, with what was proposed beside the first.
            node.revert(fork.number);
            node.check_tip(fork);
            node.check(At::Proposal(&b3), &b[2]);
            node.check(At::Proposal(&a2), &a[1]);
            node.check(At::Block(a[1].hash), &a[1]);
            drop(a2);
            node.commit(&[b1, b2]);
            node.check_tip(&b[1]);
            node.commit(&[b3]);
            node.check_tip(&b[2]);
            // The first branch was let go, except for the proposal still held.
            node.check(At::Block(a[0].hash), &a[0]);
            assert!(node.store().at(At::Block(a[1].hash)).is_err(), "nobody holds it");
            node.extend(&b[3..]);
            node.check_tip(last(&b));

            // And back.
            node.revert(fork.number);
            let more = node.propose_chain(At::Proposal(&a1), &a[1..]);
            node.check(At::Block(a[3].hash), &a[3]);
            node.commit(&[a1]);
            node.check(At::Block(a[3].hash), &a[3]);
            node.commit(&more[..2]);
            node.commit(&more[2..]);
            node.check_tip(&a[3]);
            for block in trunk.iter().chain(&a) {
                node.check(At::Block(block.hash), block);
            }
        }
    });
}

/// Proposals that were dropped change neither the tables nor what comes after them.
///
/// # Panics
/// If they do.
pub fn dropped_proposals_leave_no_trace(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(Roots::default());
        let node = Node::new(kit, &roots, options(8, true));
        let plain = Node::new(kit, &roots, options(8, true));
        let mut parent: Option<BlockPtr> = None;
        for _ in 0..kit.scale.blocks / 2 {
            node.store().flush().expect("fold");
            let before = dump(&node);
            let dropped = miner.chain(parent.as_ref(), 3, Size::Any);
            let proposals = node.propose_chain(At::Tip, &dropped);
            // Parents first, so that children are the last to hold them.
            drop(proposals);
            let unsealed = node.store().begin(At::Tip).expect("session");
            let proposal = unsealed.finish_as(dropped[0].number, &dropped[0].delta);
            drop(proposal.expect("proposal"));
            drop(node.store().begin(At::Tip).expect("session"));
            assert!(dump(&node) == before, "a dropped proposal has changed the tables");
            for block in &dropped {
                assert!(node.store().at(At::Block(block.hash)).is_err(), "it was dropped");
            }
            let block = miner.block(parent.as_deref(), Size::Any);
            for node in [&node, &plain] {
                node.extend(std::slice::from_ref(&block));
                node.check_tip(&block);
            }
            parent = Some(block);
        }
    });
}

/// All rows of all tables.
fn dump(node: &Node<'_>) -> Vec<(Table, Vec<Row>)> {
    let snapshot = node.kv.snapshot().expect("snapshot");
    let tables = StateStore::tables(node.store().backend());
    let rows = |table| {
        let rows = snapshot.scan(table, KeyRange::ALL, Direction::Forward, usize::MAX);
        (table, rows.expect("rows"))
    };
    tables.into_iter().map(rows).collect()
}

/// Hundreds of proposals on top of each other, none durable, all readable.
///
/// # Panics
/// If one of them shows another state than its own.
pub fn deep_chains_of_proposals_read_through(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(Roots::default());
        let node = Node::new(kit, &roots, options(8, true));
        let base = miner.chain(None, 2, Size::Any);
        node.extend(&base);
        let chain = miner.chain(base.last(), kit.scale.depth, Size::Tiny);
        let proposals = node.propose_chain(At::Tip, &chain);
        for n in (0..chain.len()).step_by(chain.len() / 10 + 1).chain([chain.len() - 1]) {
            node.check(At::Proposal(&proposals[n]), &chain[n]);
        }
        node.check_tip(last(&base));
        // A fork in the middle.
        let middle = chain.len() / 2;
        let side = miner.chain(Some(&chain[middle]), 10, Size::Any);
        let side_proposals = node.propose_chain(At::Block(chain[middle].hash), &side);
        node.check(At::Proposal(last_of(&side_proposals)), last(&side));
        // All of one branch in a single commit.
        let way: Vec<_> = proposals[..=middle].iter().chain(&side_proposals).cloned().collect();
        node.commit(&way);
        node.check_tip(last(&side));
        if side.len() > 8 {
            // The other branch forked beyond the retention depth, so it cannot be reached any more.
            assert!(node.store().at(At::Proposal(last_of(&proposals))).is_err());
        }
    });
}

fn last_of(proposals: &[Proposal]) -> &Proposal {
    proposals.last().expect("there are proposals")
}

/// Proposals are committed in batches of random size from the front while later ones live on, are
/// read, and extended.
///
/// # Panics
/// If a commit disturbs a proposal above it.
pub fn batches_commit_while_later_proposals_live_on(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(Roots::default());
        let node = Node::new(kit, &roots, options(5, seed.is_multiple_of(2)));
        let mut blocks = miner.chain(None, 6, Size::Any);
        let mut proposals = node.propose_chain(At::Tip, &blocks);
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
                node.check(At::Proposal(proposal), block);
            }
            if let Some(durable) = &durable {
                node.check_tip(durable);
            }
            let count = miner.rng.random_range(1..4);
            let parent = blocks.last().or(durable.as_ref()).cloned();
            let more = miner.chain(parent.as_ref(), count, Size::Any);
            let at = proposals.last().map_or(At::Tip, At::Proposal);
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
pub fn deep_forks_replace_the_whole_retained_chain(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(Roots::default());
        let retention = kit.scale.blocks / 2;
        let node = Node::new(kit, &roots, options(retention as u64, true));
        let mut chain = miner.chain(None, retention + 3, Size::Any);
        node.extend_each(&chain);
        for _ in 0..3 {
            let fork = chain[chain.len() - 1 - retention].clone();
            node.check(At::Block(fork.hash), &fork);
            let branch = miner.chain(Some(&fork), retention + 1, Size::Any);
            let proposals = node.propose_chain(At::Block(fork.hash), &branch);
            for (block, proposal) in branch.iter().zip(&proposals) {
                node.check(At::Proposal(proposal), block);
            }
            node.check_tip(last(&chain));
            node.revert(fork.number);
            node.check_tip(&fork);
            for (block, proposal) in branch.iter().zip(&proposals) {
                node.check(At::Proposal(proposal), block);
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
pub fn readers_stay_at_their_block(kit: &Kit<'_>) {
    kit.each_seed(|seed| {
        readers_stay(kit, seed, true);
        readers_stay(kit, seed, false);
    });
}

fn readers_stay(kit: &Kit<'_>, seed: u64, fold_often: bool) {
    let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
    let roots = Arc::new(Roots::default());
    let node = Node::new(kit, &roots, options(6, fold_often));
    let mut chain = miner.chain(None, 3, Size::Any);
    node.extend_each(&chain);
    let mut readers: Vec<(StateAt, BlockPtr)> = Vec::new();
    for n in 0..kit.scale.blocks {
        let parent = last(&chain).clone();
        let block = miner.block(Some(&parent), Size::Any);
        let proposal = node.propose(At::Tip, &block);
        let mut open = |at, block: &BlockPtr| {
            readers.push((node.store().at(at).expect("reader"), block.clone()));
        };
        open(At::Tip, &parent);
        open(At::Proposal(&proposal), &block);
        let first = node.first_retained() as usize;
        let old = &chain[miner.rng.random_range(first..chain.len())];
        open(At::Block(old.hash), old);
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
        check_reader(reader, block, Flavour::Ethereum);
        if n % 7 == 6 {
            // Those that go free the versions kept for them.
            readers.drain(..readers.len() / 3);
        }
    }
    for (reader, block) in &readers {
        check_reader(reader, block, Flavour::Ethereum);
    }
}
