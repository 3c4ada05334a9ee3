//! Side branches, reorgs, and fork choice by total difficulty during an import.

use crate::common::{NodeSetup, TestNode, batches, names_block, test_chain};
use alloy_primitives::{Address, B256};
use retrie_chainspec::primitives::Block;
use retrie_db::ChainRead;
use retrie_pipeline::{
    ImportOptions, PipelineError,
    testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules},
};
use retrie_state::StateError;
use retrie_state_testkit::sample;

/// A trunk of 4 blocks with two branches of 12 and 7 blocks. The shorter one is heavier. `comeback`
/// extends the longer one so that it wins again.
struct ForkedChain {
    chain: TestChain,
    trunk: Vec<Block>,
    slow: Vec<Block>,
    fast: Vec<Block>,
    comeback: Vec<Block>,
    all: Vec<Block>,
}

impl ForkedChain {
    fn new(rules: TestRules) -> Self {
        let mut chain = test_chain(rules);
        let genesis = chain.genesis();
        let trunk = *chain.branch(genesis, 4, 12, 0).last().unwrap();
        // Long gaps lower the difficulty from Homestead on, short ones raise it.
        let slow = *chain.branch(trunk, 8, 1000, 1).last().unwrap();
        let fast = *chain.branch(trunk, 7, 5, 2).last().unwrap();
        let comeback = *chain.branch(slow, 4, 12, 1).last().unwrap();
        assert!(chain.total_difficulty(fast) > chain.total_difficulty(slow));
        assert!(chain.total_difficulty(comeback) > chain.total_difficulty(fast));
        let paths = [(genesis, trunk), (trunk, slow), (trunk, fast), (slow, comeback)];
        let [trunk, slow, fast, comeback] = paths.map(|(from, to)| chain.path(from, to));
        let all = [&trunk[..], &slow, &fast, &comeback].concat();
        Self { chain, trunk, slow, fast, comeback, all }
    }
}

fn hash(block: &Block) -> B256 {
    block.header.hash_slow()
}

fn last(blocks: &[Block]) -> B256 {
    hash(blocks.last().unwrap())
}

#[test]
fn heavier_branch_of_a_file_becomes_canonical_as_if_imported_straight() {
    for rules in [TestRules::Frontier, TestRules::Byzantium] {
        let fork = ForkedChain::new(rules);
        for setup in sample::of(NodeSetup::checked(), 3) {
            let straight = TestNode::new(&fork.chain.spec, setup);
            straight.import(&[&fork.trunk[..], &fork.fast].concat()).unwrap();
            let expected = straight.picture(&fork.all);
            assert_eq!(expected.tip.hash, last(&fork.fast));
            for batch in [1, 3, 1000] {
                let node = TestNode::new(&fork.chain.spec, setup);
                let file = [&fork.trunk[..], &fork.slow, &fork.fast].concat();
                let report = node.import_with(&file, batches(batch)).unwrap();
                assert_eq!(report.tip.number, 11, "the head went from block 12 to 11");
                assert_eq!((report.blocks, report.reorgs, report.side_blocks), (19, 1, 6));
                assert_eq!(node.picture(&fork.all), expected, "{rules:?} {setup:?} batch {batch}");
            }
        }
    }
}

#[test]
fn abandoned_branch_is_executed_again_when_it_wins_after_all() {
    for rules in [TestRules::Frontier, TestRules::Byzantium] {
        let fork = ForkedChain::new(rules);
        for setup in sample::of(NodeSetup::checked(), 3) {
            let straight = TestNode::new(&fork.chain.spec, setup);
            straight.import(&[&fork.trunk[..], &fork.slow, &fork.comeback].concat()).unwrap();
            let expected = straight.picture(&fork.all);
            for batch in [1, 1000] {
                // In one import, and in two.
                for cut in [fork.all.len(), 19] {
                    let node = TestNode::new(&fork.chain.spec, setup);
                    node.import_with(&fork.all[..cut], batches(batch)).unwrap();
                    if cut < fork.all.len() {
                        assert_eq!(node.tip().hash, last(&fork.fast));
                        let report = node.import_with(&fork.all[cut..], batches(batch)).unwrap();
                        assert_eq!(report.reorgs, 1);
                    }
                    let what = format!("{rules:?} {setup:?} batch {batch} cut {cut}");
                    assert_eq!(node.picture(&fork.all), expected, "{what}");
                    // The other branch is still there, beside the chain.
                    let read = node.open().db().begin_read().unwrap();
                    assert!(read.header(&last(&fork.fast)).unwrap().is_some());
                    assert!(!read.is_canonical(&last(&fork.fast)).unwrap());
                }
            }
        }
    }
}

#[test]
fn destroyed_contract_comes_back_with_all_its_slots() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    // One branch destroys a contract whose slots are older than the fork, the other writes to it.
    let destroyed = chain.extend(genesis, BlockPlan::new([TestCall::destroy(1, GENESIS_CONTRACT)]));
    let write =
        [TestCall::store(1, GENESIS_CONTRACT, 2, 0), TestCall::store(1, GENESIS_CONTRACT, 9, 9)];
    let written = chain.extend(genesis, BlockPlan::new(write).after(5));
    let again =
        chain.extend(destroyed, BlockPlan::new([TestCall::transfer(2, GENESIS_CONTRACT, 7)]));
    let [destroyed, written] = [destroyed, written].map(|hash| chain.block(hash).clone());
    let all = [destroyed.clone(), written.clone(), chain.block(again).clone()];
    for setup in sample::of(NodeSetup::checked(), 3) {
        let straight = TestNode::new(&chain.spec, setup);
        straight.import(std::slice::from_ref(&written)).unwrap();
        let node = TestNode::new(&chain.spec, setup);
        node.import_with(std::slice::from_ref(&destroyed), batches(1)).unwrap();
        node.import_with(std::slice::from_ref(&written), batches(1)).unwrap();
        assert_eq!(node.picture(&all), straight.picture(&all), "{setup:?}");
        // And back to the branch without it.
        node.import_with(&all, batches(1)).unwrap();
        let straight = TestNode::new(&chain.spec, setup);
        straight.import(&chain.path(genesis, again)).unwrap();
        assert_eq!(node.picture(&all), straight.picture(&all), "{setup:?}");
    }
}

#[test]
fn first_of_two_equally_heavy_branches_stays_until_one_grows() {
    let mut chain = test_chain(TestRules::Frontier);
    let genesis = chain.genesis();
    let [first, second] = [1, 2]
        .map(|who| chain.extend(genesis, BlockPlan::new([]).paid_to(Address::repeat_byte(who))));
    let child = chain.extend(second, BlockPlan::new([]));
    let [a, b, c] = [first, second, child].map(|hash| chain.block(hash).clone());
    for (file, expected) in [
        (vec![a.clone(), b.clone()], first),
        (vec![b.clone(), a.clone()], second),
        (vec![a.clone(), b.clone(), c.clone()], child),
        (vec![b, a, c], child),
    ] {
        let node = TestNode::new(&chain.spec, NodeSetup::MPT);
        node.import(&file).unwrap();
        assert_eq!(node.tip().hash, expected);
        // Once more: everything is known, and known ties change nothing.
        let report = node.import(&file).unwrap();
        assert_eq!((report.blocks, report.known_blocks), (0, file.len() as u64));
        assert_eq!(node.tip().hash, expected);
    }
}

#[test]
fn branch_on_a_branch_survives_the_reorg_that_cuts_its_parent_off() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 6, 12, 0);
    // Forks off block 5, while that is canonical ...
    let twig = chain.branch(main[4], 3, 12, 1);
    // ... which the reorg to this one, off block 3, takes back.
    let other = chain.branch(main[2], 4, 5, 2);
    let path = |hashes: &[B256]| hashes.iter().map(|h| chain.block(*h).clone()).collect::<Vec<_>>();
    let file = [&path(&main)[..], &path(&twig[..1]), &path(&other), &path(&twig[1..])].concat();
    let straight = chain.path(genesis, twig[2]);
    for setup in sample::of(NodeSetup::checked(), 3) {
        let expected = TestNode::new(&chain.spec, setup);
        expected.import(&straight).unwrap();
        for batch in [1, 2, 1000] {
            let node = TestNode::new(&chain.spec, setup);
            let report = node.import_with(&file, batches(batch)).unwrap();
            assert_eq!(report.reorgs, 2, "{setup:?} batch {batch}");
            assert_eq!(node.picture(&file), expected.picture(&file), "{setup:?} batch {batch}");
        }
    }
}

#[test]
fn contract_of_a_pending_block_is_found_by_both_branches() {
    // Nothing is durable before the end, so codes and ancestors come from blocks in memory.
    let fork = ForkedChain::new(TestRules::Byzantium);
    let node = TestNode::new(&fork.chain.spec, NodeSetup::MPT);
    let mut mixed = fork.trunk.clone();
    for i in 0..8 {
        mixed.extend(fork.slow.get(i).cloned());
        mixed.extend(fork.fast.get(i).cloned());
    }
    mixed.extend(fork.comeback.iter().cloned());
    node.import_with(&mixed, batches(1000)).unwrap();
    let straight = TestNode::new(&fork.chain.spec, NodeSetup::MPT);
    straight.import(&[&fork.trunk[..], &fork.slow, &fork.comeback].concat()).unwrap();
    assert_eq!(node.picture(&fork.all), straight.picture(&fork.all));
}

fn is_beyond_retention(error: &PipelineError) -> bool {
    match error {
        PipelineError::Block { source, .. } => {
            matches!(**source, PipelineError::State(StateError::BeyondRetention { .. }))
        }
        _ => false,
    }
}

#[test]
fn branch_deeper_than_the_retention_is_refused_and_the_chain_goes_on() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let main = *chain.branch(genesis, 20, 12, 0).last().unwrap();
    let main = chain.path(genesis, main);
    let fork_at = |number: usize| hash(&main[number - 1]);
    let deep = *chain.branch(fork_at(3), 18, 5, 1).last().unwrap();
    let deep = chain.path(fork_at(3), deep);
    let shallow = *chain.branch(fork_at(8), 13, 5, 2).last().unwrap();
    let shallow = chain.path(fork_at(8), shallow);
    let expected = TestNode::new(&chain.spec, NodeSetup::MPT);
    expected.import(&main).unwrap();
    let expected = expected.picture(&main);

    let refused = |file: &[Block], options: ImportOptions, culprit: &Block, setup: NodeSetup| {
        let node = TestNode { retention: 4, ..TestNode::new(&chain.spec, setup) };
        let error = node.import_with(file, options).unwrap_err();
        let text = names_block(&error, culprit.header.number);
        assert!(is_beyond_retention(&error), "{error:?}");
        assert!(text.contains("retention window") && text.contains("depth 4"), "{text}");
        node.import(&main).unwrap();
        let picture = node.picture(&main);
        assert_eq!((picture.tip, &picture.lookup), (expected.tip, &expected.lookup));
        assert_eq!(picture.state, expected.state);
    };
    for setup in sample::of(NodeSetup::checked(), 3) {
        // The parent of the side block lies too deep.
        let file = [&main[..10], &deep].concat();
        refused(&file, batches(1), &deep[0], setup);
        // It did not when the branch began, but the chain went on.
        let file = [&main[..10], &shallow[..1], &main[10..18], &shallow[1..]].concat();
        refused(&file, batches(1), &shallow[1], setup);
        // While nothing is durable, no depth is too much: the switch is made in memory.
        let node = TestNode { retention: 4, ..TestNode::new(&chain.spec, setup) };
        node.import_with(&[&main[..], &deep].concat(), batches(1000)).unwrap();
        assert_eq!(node.tip().hash, last(&deep));
    }
}

#[test]
fn reorg_exactly_as_deep_as_the_retention_is_possible() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 6, 12, 0);
    let branch = *chain.branch(main[1], 5, 5, 1).last().unwrap();
    let file = [chain.path(genesis, main[5]), chain.path(main[1], branch)].concat();
    for setup in sample::of(NodeSetup::checked(), 3) {
        let node = TestNode { retention: 4, ..TestNode::new(&chain.spec, setup) };
        node.import_with(&file, batches(1)).unwrap();
        assert_eq!(node.tip().hash, branch);
        let node = TestNode { retention: 3, ..TestNode::new(&chain.spec, setup) };
        let error = node.import_with(&file, batches(1)).unwrap_err();
        assert!(is_beyond_retention(&error), "{error:?}");
    }
}

#[test]
fn last_valid_chain_wins_under_proof_of_stake() {
    for rules in [TestRules::Cancun, TestRules::Prague] {
        let mut chain = test_chain(rules);
        let genesis = chain.genesis();
        let trunk = *chain.branch(genesis, 3, 12, 0).last().unwrap();
        let long = chain.branch(trunk, 5, 12, 1);
        let short = chain.branch(trunk, 2, 12, 2);
        let file =
            [chain.path(genesis, trunk), chain.path(trunk, long[4]), chain.path(trunk, short[1])]
                .concat();
        for setup in sample::of(NodeSetup::checked(), 3) {
            for batch in [1, 1000] {
                let node = TestNode::new(&chain.spec, setup);
                node.import_with(&file, batches(batch)).unwrap();
                assert_eq!(node.tip().hash, short[1], "{rules:?} {setup:?}");
                let straight = TestNode::new(&chain.spec, setup);
                straight.import(&chain.path(genesis, short[1])).unwrap();
                assert_eq!(node.picture(&file), straight.picture(&file), "{rules:?} {setup:?}");
                // The same file once more ends on the same branch.
                node.import_with(&file, batches(batch)).unwrap();
                assert_eq!(node.picture(&file), straight.picture(&file), "{rules:?} {setup:?}");
                // So does a file of which the datadir has all but the end of the other branch: the
                // new blocks become the head, until the file returns to the known ones.
                let node = TestNode::new(&chain.spec, setup);
                let part = [chain.path(genesis, long[1]), chain.path(trunk, short[1])].concat();
                node.import_with(&part, batches(batch)).unwrap();
                let report = node.import_with(&file, batches(batch)).unwrap();
                assert_eq!((report.tip.hash, report.reorgs), (short[1], 2), "{rules:?} {setup:?}");
                assert_eq!(node.picture(&file), straight.picture(&file), "{rules:?} {setup:?}");
            }
        }
    }
}

#[test]
fn proof_of_stake_beats_any_work_and_cannot_begin_early_or_late() {
    let terminal = 10_000_000;
    let mut chain = test_chain(TestRules::Merge(terminal));
    let genesis = chain.genesis();
    let work = chain.branch(genesis, 8, 12, 0);
    let is_stake = |hash: &B256| chain.block(*hash).header.difficulty.is_zero();
    let last_work = *work.iter().rfind(|hash| !is_stake(hash)).unwrap();
    let stake = *work.last().unwrap();
    assert!(is_stake(&stake), "the chain has merged");
    let terminal_number = chain.block(last_work).header.number;
    // A heavier block of work beside the merged chain.
    let parent = chain.block(last_work).header.parent_hash;
    let heavier = chain.extend(parent, BlockPlan::new([]).after(1));
    assert!(chain.total_difficulty(heavier) > chain.total_difficulty(last_work));
    for setup in sample::of(NodeSetup::checked(), 3) {
        let node = TestNode::new(&chain.spec, setup);
        let mut file = chain.path(genesis, stake);
        file.push(chain.block(heavier).clone());
        let report = node.import_with(&file, batches(1)).unwrap();
        assert_eq!((report.tip.hash, report.side_blocks), (stake, 1), "{setup:?}");

        // Stake on a parent that has not reached the terminal difficulty, and work on one that has.
        let first_stake = chain.block(work[terminal_number as usize]).clone();
        let mut early = first_stake.clone();
        early.header.parent_hash = parent;
        early.header.number = terminal_number;
        early.header.timestamp -= 12;
        let mut late = first_stake;
        late.header.difficulty = chain.block(last_work).header.difficulty;
        for (bad, file) in
            [(early, chain.path(genesis, parent)), (late, chain.path(genesis, last_work))]
        {
            let node = TestNode::new(&chain.spec, setup);
            let number = bad.header.number;
            let error = node.import(&[&file[..], &[bad]].concat()).unwrap_err();
            names_block(&error, number);
            assert!(error.is_invalid_block(), "{error}");
            assert_eq!(node.tip().hash, last(&file));
        }
    }
}
