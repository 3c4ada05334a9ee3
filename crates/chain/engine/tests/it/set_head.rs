//! Setting the head back by hand:
//! [`EngineHandle::set_head`](retrie_engine::EngineHandle::set_head).

use crate::common::{NodeSetup, RunningNode, TestNode, hash, line, valid};
use alloy_primitives::B256;
use alloy_rpc_types_engine::ForkchoiceState;
use retrie_chainspec::primitives::Block;
use retrie_engine::{EngineConfig, EngineError, pool::PoolStatus};
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestChain, TestRules};
use retrie_state::StateReader;
use retrie_state_testkit::sample;
use std::time::{Duration, Instant};

/// All blocks in memory, half of them, and none.
const THRESHOLDS: [u64; 3] = [100, 4, 0];

fn set_head(running: &RunningNode, hash: B256) -> Result<(), EngineError> {
    running.runtime.block_on(running.engine.handle().set_head(hash))
}

/// Checks that the head is `hash` in all views, with its state and no block above it.
fn assert_head(running: &RunningNode, chain: &TestChain, hash: B256) {
    let view = running.live.view().unwrap();
    assert_eq!(view.head().hash(), hash);
    let number = chain.block(hash).header.number;
    assert_eq!(view.canonical_hash(number).unwrap(), Some(hash));
    assert_eq!(view.canonical_hash(number + 1).unwrap(), None);
    let state = view.state(&hash).unwrap();
    let contract = StateReader::account(&state, &GENESIS_CONTRACT).unwrap();
    assert_eq!(contract, chain.account(hash, GENESIS_CONTRACT));
}

/// A node that follows `blocks` one by one.
fn node(
    chain: &TestChain,
    setup: NodeSetup,
    persistence_threshold: u64,
    blocks: &[Block],
) -> (TestNode, RunningNode) {
    let mut node = TestNode::new(&chain.spec, setup);
    node.config = EngineConfig { persistence_threshold, ..EngineConfig::default() };
    let running = node.start();
    for block in blocks {
        running.follow(std::slice::from_ref(block));
    }
    if persistence_threshold == 0 {
        running.flush();
    }
    (node, running)
}

#[test]
fn chain_goes_back_and_on_from_there_in_memory_and_on_disk() {
    for setup in sample::of(NodeSetup::all(), 3) {
        let mut chain = setup.test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, 10, 12, 1);
        let other = chain.branch(main[3], 4, 12, 2);
        let blocks = chain.path(genesis, main[9]);
        for threshold in THRESHOLDS {
            let (node, running) = node(&chain, setup, threshold, &blocks);
            // The head itself is no change.
            set_head(&running, main[9]).unwrap();
            for back in [main[7], main[3]] {
                set_head(&running, back).unwrap();
                assert_head(&running, &chain, back);
            }
            running.follow(&chain.path(main[3], other[3]));
            assert_head(&running, &chain, other[3]);
            set_head(&running, other[0]).unwrap();
            // The consensus client can make the removed blocks canonical again.
            running.lead(main[9]);
            assert_head(&running, &chain, main[9]);
            set_head(&running, main[4]).unwrap();
            running.stop();

            let running = node.start();
            assert_head(&running, &chain, main[4]);
            // All of it is durable now.
            set_head(&running, main[1]).unwrap();
            assert_head(&running, &chain, main[1]);
            running.stop();
            let running = node.start();
            assert_head(&running, &chain, main[1]);
            set_head(&running, genesis).unwrap();
            assert_head(&running, &chain, genesis);
            running.follow(&blocks);
            assert_head(&running, &chain, main[9]);
        }
    }
}

#[test]
fn what_is_safe_or_final_does_not_hold_it_and_is_lowered() {
    for threshold in THRESHOLDS {
        let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 8);
        let (node, running) = node(&chain, NodeSetup::MPT, threshold, &blocks);
        let named = ForkchoiceState {
            head_block_hash: hash(&blocks[7]),
            safe_block_hash: hash(&blocks[5]),
            finalized_block_hash: hash(&blocks[2]),
        };
        assert_eq!(running.fcu(3, named, None).unwrap().payload_status, valid(hash(&blocks[7])));
        let names = |running: &RunningNode| {
            let view = running.live.view().unwrap();
            [view.safe(), view.finalized()].map(|block| block.map(|block| block.number))
        };
        assert_eq!(names(&running), [Some(6), Some(3)]);
        set_head(&running, hash(&blocks[4])).unwrap();
        assert_eq!(names(&running), [Some(5), Some(3)], "only what lies above it is lowered");
        let below = hash(&blocks[1]);
        set_head(&running, below).unwrap();
        assert_head(&running, &chain, below);
        assert_eq!(names(&running), [Some(2), Some(2)]);
        running.stop();
        let running = node.start();
        assert_head(&running, &chain, below);
        assert_eq!(names(&running), [Some(2), Some(2)]);
        running.follow(&blocks[2..]);
        assert_head(&running, &chain, hash(&blocks[7]));
    }
}

#[test]
fn beyond_the_retention_depth_it_is_refused_and_nothing_changes() {
    for setup in sample::of(NodeSetup::on_headers(), 3) {
        let (chain, blocks) = line(setup, TestRules::Cancun, 24);
        let mut node = TestNode::new(&chain.spec, setup);
        node.retention = 8;
        node.config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
        let running = node.start();
        for block in &blocks {
            running.follow(std::slice::from_ref(block));
        }
        running.flush();
        let (head, deepest) = (hash(&blocks[23]), hash(&blocks[15]));
        for too_deep in [hash(&blocks[14]), hash(&blocks[0]), chain.genesis()] {
            let error = set_head(&running, too_deep).unwrap_err();
            assert!(matches!(&error, EngineError::TooDeepReorg { hash, .. } if *hash == too_deep));
            let text = error.to_string();
            assert!(text.contains("retention window") && text.contains("depth 8"), "{text}");
            assert_head(&running, &chain, head);
        }
        set_head(&running, deepest).unwrap();
        assert_head(&running, &chain, deepest);
        // The retention depth is used up until there are new blocks.
        assert!(set_head(&running, hash(&blocks[14])).is_err());
        running.follow(&blocks[16..20]);
        running.flush();
        set_head(&running, deepest).unwrap();
        assert_head(&running, &chain, deepest);
    }
}

#[test]
fn blocks_that_are_not_canonical_are_refused() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 4, 12, 1);
    let side = chain.branch(main[0], 2, 12, 2);
    for threshold in THRESHOLDS {
        let (_node, running) =
            node(&chain, NodeSetup::MPT, threshold, &chain.path(genesis, main[3]));
        for block in chain.path(main[0], side[1]) {
            assert_eq!(running.send(&block), valid(hash(&block)));
        }
        set_head(&running, main[2]).unwrap();
        for wrong in [side[1], main[3], B256::repeat_byte(1)] {
            let error = set_head(&running, wrong).unwrap_err();
            assert!(matches!(error, EngineError::NotCanonical { hash } if hash == wrong));
            assert_head(&running, &chain, main[2]);
        }
    }
}

#[test]
fn subscribers_and_pool_hear_of_it() {
    for threshold in THRESHOLDS {
        let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 6);
        let (_node, running) = node(&chain, NodeSetup::MPT, threshold, &blocks);
        let mut changes = running.live.subscribe();
        let mut maintainer = running.maintainer();
        assert_eq!(running.pool.status().pending, 0);
        let target = hash(&blocks[3]);
        set_head(&running, target).unwrap();

        let change = changes.try_recv().unwrap();
        assert_eq!((change.head.hash(), change.ancestor), (target, 4));
        let went: Vec<_> = change.reverted.iter().map(|block| block.block.hash()).collect();
        assert_eq!(went, [hash(&blocks[4]), hash(&blocks[5])]);
        assert!(change.committed.is_empty() && changes.try_recv().is_err());

        let start = Instant::now();
        running.runtime.block_on(async {
            let limit = Duration::from_secs(20);
            tokio::time::timeout(limit, maintainer.wait_for(target)).await.unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(20));
        // As in geth: the operator wants to remove these transactions.
        assert!(change.is_dropped);
        assert_eq!(running.pool.status(), PoolStatus::default());
    }
}
