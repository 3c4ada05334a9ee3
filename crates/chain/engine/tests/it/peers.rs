//! Blocks from peers, some of which send wrong blocks, do not answer, or have no blocks: the
//! follower reaches the named head, and no other.

use crate::common;

use alloy_primitives::B256;
use common::{NodeSetup, RunningNode, TestNode, hash, only_head, syncing, with};
use retrie_block_sync::{BlockSyncOptions, PeerBlocks};
use retrie_chainspec::primitives::Block;
use retrie_engine::{
    ChainFollower, EngineConfig, FollowConfig, FollowError, HeadSource, SyncProgress,
};
use retrie_p2p::{
    eth::PeerId,
    handle::{NetworkHandle, PeerOffence},
    serve::MemoryChain,
    testkit::{PeerBehaviour, ScriptedNetwork},
};
use retrie_pipeline::testkit::{TestChain, TestRules};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A chain of `count` blocks, with genesis.
fn chain(count: u64) -> (TestChain, Vec<Block>) {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, count, 12, 1);
    let mut blocks = vec![chain.block(genesis).clone()];
    blocks.extend(chain.path(genesis, main[main.len() - 1]));
    (chain, blocks)
}

fn connect(peers: &ScriptedNetwork, manners: &[PeerBehaviour], blocks: &[Block]) {
    let served = Arc::new(MemoryChain::new(blocks.to_vec()));
    for (name, manner) in manners.iter().enumerate() {
        peers.connect(name as u8 + 1, *manner, served.clone());
    }
}

fn follower(running: &RunningNode, peers: &ScriptedNetwork, leader: HeadSource) -> ChainFollower {
    follower_until(running, peers, leader, &Arc::default())
}

fn follower_until(
    running: &RunningNode,
    peers: &ScriptedNetwork,
    leader: HeadSource,
    stop: &Arc<AtomicBool>,
) -> ChainFollower {
    let options = BlockSyncOptions {
        patience: Duration::from_millis(20),
        stalled: Duration::from_millis(500),
        ..BlockSyncOptions::default()
    };
    let runtime = running.runtime.handle().clone();
    let from_peers =
        PeerBlocks::new(NetworkHandle::new(peers.clone()), options, runtime.clone(), stop.clone());
    let config = FollowConfig { head_source: leader, interval: Duration::from_millis(1) };
    ChainFollower::new(running.engine.handle().clone(), from_peers, config, runtime, stop.clone())
}

fn want(running: &RunningNode, head: B256) {
    assert_eq!(running.fcu(3, only_head(head), None).unwrap().payload_status, syncing());
}

#[test]
fn head_that_the_consensus_client_names_is_fetched_from_peers() {
    for count in [1, 10, 90, 300] {
        let (chain, blocks) = chain(count);
        let tip = hash(&blocks[blocks.len() - 1]);
        let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
        let peers = ScriptedNetwork::default();
        connect(&peers, &[PeerBehaviour::Honest; 3], &blocks);
        let follower = follower(&running, &peers, HeadSource::ConsensusClient);
        follower.step().unwrap();
        assert!((1..=3).all(|name| peers.requests(PeerId::repeat_byte(name)).is_empty()));
        want(&running, tip);
        follower.step().unwrap();
        running.lead(tip);
        assert_eq!(running.engine.handle().syncing(), None);
        assert!(peers.reports().is_empty());
    }
}

#[test]
fn one_of_three_peers_that_lies_or_is_silent_changes_nothing() {
    let (chain, blocks) = chain(300);
    let tip = hash(&blocks[300]);
    for bad in [
        PeerBehaviour::WrongBodies,
        PeerBehaviour::WrongHeaders,
        PeerBehaviour::OtherAnswers,
        PeerBehaviour::Silent,
    ] {
        for place in 0..3 {
            let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
            let peers = ScriptedNetwork::default();
            let mut manners = [PeerBehaviour::Honest; 3];
            manners[place] = bad;
            connect(&peers, &manners, &blocks);
            want(&running, tip);
            follower(&running, &peers, HeadSource::ConsensusClient).step().unwrap();
            running.lead(tip);
            let liar = PeerId::repeat_byte(place as u8 + 1);
            let reports = peers.reports();
            let is_right = reports.iter().all(|report| *report == (liar, PeerOffence::WrongData));
            assert!(is_right && reports.len() <= 1, "{bad:?} {place}: {reports:?}");
        }
    }
}

/// Only the named head counts: another chain, however long, is not followed.
#[test]
fn peers_on_another_branch_are_of_no_use_and_do_no_harm() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 6, 12, 1);
    let side = chain.branch(main[1], 90, 12, 2);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    running.follow(&chain.path(genesis, main[5]));
    let all = |tip| {
        let mut blocks = vec![chain.block(genesis).clone()];
        blocks.extend(chain.path(genesis, tip));
        blocks
    };
    let peers = ScriptedNetwork::default();
    connect(&peers, &[PeerBehaviour::Honest], &all(main[5]));
    want(&running, side[89]);
    let follower = follower(&running, &peers, HeadSource::ConsensusClient);
    let error = follower.step().unwrap_err();
    assert!(error.to_string().contains("none of 1 peers has given block"), "{error}");
    assert_eq!(running.head(), main[5]);
    // A peer with the head connects.
    peers.connect(2, PeerBehaviour::Honest, Arc::new(MemoryChain::new(all(side[89]))));
    follower.step().unwrap();
    running.lead(side[89]);
}

#[test]
fn an_invalid_block_is_named_and_its_parent_stays_the_head() {
    let (chain, mut blocks) = chain(200);
    blocks[150] = with(&blocks[150], |block| block.header.state_root = B256::repeat_byte(1));
    for number in 151..=200 {
        blocks[number].header.parent_hash = hash(&blocks[number - 1]);
    }
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let peers = ScriptedNetwork::default();
    connect(&peers, &[PeerBehaviour::Honest; 2], &blocks);
    let follower = follower(&running, &peers, HeadSource::ConsensusClient);
    for _ in 0..2 {
        want(&running, hash(&blocks[200]));
        match follower.step().unwrap_err() {
            FollowError::Invalid { number: 150, hash: bad, .. } => {
                assert_eq!(bad, hash(&blocks[150]));
            }
            other => panic!("{other}"),
        }
    }
    assert!(running.live.head().number < 150);
    assert!(peers.reports().is_empty(), "they have sent what they were asked for");
}

/// The consensus client repeats its update only after 12 s.
#[test]
fn a_head_is_not_forgotten_when_the_peers_go_half_way() {
    let (chain, blocks) = chain(300);
    let tip = hash(&blocks[300]);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let peers = ScriptedNetwork::default();
    connect(&peers, &[PeerBehaviour::Honest], &blocks);
    let only = PeerId::repeat_byte(1);
    want(&running, tip);
    let follower = follower(&running, &peers, HeadSource::ConsensusClient);
    let mut heads = running.live.subscribe();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| follower.step());
        while heads.try_recv().is_err() {
            std::thread::yield_now();
        }
        peers.behave(only, PeerBehaviour::Empty);
        // The peer may be connected already.
        if let Err(error) = step.join().unwrap() {
            assert!(matches!(error, FollowError::Fetch(_)), "{error}");
            assert_eq!(running.engine.handle().wanted_head(), Some(tip));
        }
    });
    peers.behave(only, PeerBehaviour::Honest);
    while follower.step().is_err() {}
    running.lead(tip);
}

#[test]
fn what_was_imported_before_a_restart_is_not_fetched_again() {
    let (chain, blocks) = chain(300);
    let tip = hash(&blocks[300]);
    let config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
    let node = TestNode { config, ..TestNode::new(&chain.spec, NodeSetup::MPT) };
    let running = node.start();
    let peers = ScriptedNetwork::default();
    connect(&peers, &[PeerBehaviour::Honest], &blocks[..=200]);
    // The only peer goes no further than block 200.
    want(&running, hash(&blocks[200]));
    follower(&running, &peers, HeadSource::ConsensusClient).step().unwrap();
    running.lead(hash(&blocks[200]));
    running.flush();
    running.stop();

    let running = node.start();
    assert_eq!(running.live.head().number, 200);
    let peers = ScriptedNetwork::default();
    connect(&peers, &[PeerBehaviour::Honest], &blocks);
    want(&running, tip);
    let engine = running.engine.handle().clone();
    let behind = SyncProgress { starting: 200, current: 200, highest: 200 };
    assert_eq!(engine.syncing(), Some(behind));
    let stop = Arc::default();
    follower_until(&running, &peers, HeadSource::ConsensusClient, &stop).step().unwrap();
    running.lead(tip);
    let asked = peers.requests(PeerId::repeat_byte(1));
    let bodies: usize = asked
        .iter()
        .map(|request| match request {
            retrie_p2p::eth::EthRequest::Bodies(hashes) => {
                let old =
                    |hash: &B256| blocks[..=200].iter().any(|block| common::hash(block) == *hash);
                assert!(!hashes.iter().any(old));
                hashes.len()
            }
            _ => 0,
        })
        .sum();
    assert!(bodies <= 100, "{bodies}");
}

#[test]
fn a_head_that_is_named_at_the_start_is_reached_without_a_consensus_client() {
    let (mut chain, blocks) = chain(100);
    let tip = hash(&blocks[100]);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let peers = ScriptedNetwork::default();
    let follower = follower(&running, &peers, HeadSource::Named(tip));
    follower.step().unwrap();
    assert_eq!(running.live.head().number, 0, "no peer is connected");
    connect(&peers, &[PeerBehaviour::Honest], &blocks);
    follower.step().unwrap();
    assert_eq!(running.head(), tip);
    assert_eq!(running.engine.handle().syncing(), None);
    // From here on a consensus client decides, also for another head.
    let side = chain.branch(hash(&blocks[98]), 4, 12, 2);
    running.follow(&chain.path(hash(&blocks[98]), side[3]));
    follower.step().unwrap();
    assert_eq!(running.head(), side[3]);
}

/// `/health` asks the follower: without peers it waits, and works.
#[test]
fn a_follower_without_peers_waits_and_has_no_trouble() {
    let (chain, blocks) = chain(3);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let peers = ScriptedNetwork::default();
    want(&running, hash(&blocks[3]));
    let stop = Arc::<AtomicBool>::default();
    for leader in [HeadSource::ConsensusClient, HeadSource::Named(hash(&blocks[3]))] {
        let follower = follower_until(&running, &peers, leader, &stop);
        for _ in 0..3 {
            follower.step().unwrap();
        }
    }
    let following =
        follower_until(&running, &peers, HeadSource::ConsensusClient, &stop).start().unwrap();
    connect(&peers, &[PeerBehaviour::Honest], &blocks);
    while running.live.view().unwrap().header(&hash(&blocks[3])).unwrap().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(following.last_error(), None);
    stop.store(true, Ordering::Relaxed);
    following.join().unwrap();
}
