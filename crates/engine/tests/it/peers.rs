//! Blocks from peers, some of which lie, are silent, or have nothing: the follower gets to the head
//! that was named, and to no other.

use crate::common;

use alloy_primitives::B256;
use common::{Node, Running, Setup, hash, only_head, syncing, with};
use retrie_chainspec::primitives::Block;
use retrie_engine::{EngineConfig, FollowConfig, FollowError, Follower, Leader, SyncProgress};
use retrie_network::{
    eth::PeerId,
    peers::{Offence, Peers},
    serve::Blocks,
    sync::{PeerBlocks, SyncOptions},
    testkit::{Manner, ScriptedPeers},
};
use retrie_pipeline::testkit::{Rules, TestChain};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A chain of so many blocks, with genesis.
fn chain(count: u64) -> (TestChain, Vec<Block>) {
    let mut chain = Setup::MPT.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, count, 12, 1);
    let mut blocks = vec![chain.block(genesis).clone()];
    blocks.extend(chain.path(genesis, main[main.len() - 1]));
    (chain, blocks)
}

fn connect(peers: &ScriptedPeers, manners: &[Manner], blocks: &[Block]) {
    let served = Arc::new(Blocks::new(blocks.to_vec()));
    for (name, manner) in manners.iter().enumerate() {
        peers.connect(name as u8 + 1, *manner, served.clone());
    }
}

fn follower(running: &Running, peers: &ScriptedPeers, leader: Leader) -> Follower {
    follower_until(running, peers, leader, &Arc::default())
}

fn follower_until(
    running: &Running,
    peers: &ScriptedPeers,
    leader: Leader,
    stop: &Arc<AtomicBool>,
) -> Follower {
    let options = SyncOptions {
        patience: Duration::from_millis(20),
        stalled: Duration::from_millis(500),
        ..SyncOptions::default()
    };
    let runtime = running.runtime.handle().clone();
    let from_peers =
        PeerBlocks::new(Peers::new(peers.clone()), options, runtime.clone(), stop.clone());
    let config = FollowConfig { leader, interval: Duration::from_millis(1) };
    Follower::new(running.engine.handle().clone(), from_peers, config, runtime, stop.clone())
}

fn want(running: &Running, head: B256) {
    assert_eq!(running.fcu(3, only_head(head), None).unwrap().payload_status, syncing());
}

#[test]
fn head_that_the_consensus_client_names_is_fetched_from_peers() {
    for count in [1, 10, 90, 300] {
        let (chain, blocks) = chain(count);
        let tip = hash(&blocks[blocks.len() - 1]);
        let running = Node::new(&chain.spec, Setup::MPT).start();
        let peers = ScriptedPeers::default();
        connect(&peers, &[Manner::Honest; 3], &blocks);
        let follower = follower(&running, &peers, Leader::ConsensusClient);
        follower.step().unwrap();
        assert!((1..=3).all(|name| peers.asked(PeerId::repeat_byte(name)).is_empty()));
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
    for bad in [Manner::WrongBodies, Manner::WrongHeaders, Manner::OtherAnswers, Manner::Silent] {
        for place in 0..3 {
            let running = Node::new(&chain.spec, Setup::MPT).start();
            let peers = ScriptedPeers::default();
            let mut manners = [Manner::Honest; 3];
            manners[place] = bad;
            connect(&peers, &manners, &blocks);
            want(&running, tip);
            follower(&running, &peers, Leader::ConsensusClient).step().unwrap();
            running.lead(tip);
            let liar = PeerId::repeat_byte(place as u8 + 1);
            let reports = peers.reports();
            let is_right = reports.iter().all(|report| *report == (liar, Offence::WrongData));
            assert!(is_right && reports.len() <= 1, "{bad:?} {place}: {reports:?}");
        }
    }
}

/// The head that was named is the only word that counts: another chain, however long, is not followed.
#[test]
fn peers_on_another_branch_are_of_no_use_and_do_no_harm() {
    let mut chain = Setup::MPT.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 6, 12, 1);
    let side = chain.branch(main[1], 90, 12, 2);
    let running = Node::new(&chain.spec, Setup::MPT).start();
    running.follow(&chain.path(genesis, main[5]));
    let all = |tip| {
        let mut blocks = vec![chain.block(genesis).clone()];
        blocks.extend(chain.path(genesis, tip));
        blocks
    };
    let peers = ScriptedPeers::default();
    connect(&peers, &[Manner::Honest], &all(main[5]));
    want(&running, side[89]);
    let follower = follower(&running, &peers, Leader::ConsensusClient);
    let error = follower.step().unwrap_err();
    assert!(error.to_string().contains("none of 1 peers has given block"), "{error}");
    assert_eq!(running.head(), main[5]);
    // One that knows it comes.
    peers.connect(2, Manner::Honest, Arc::new(Blocks::new(all(side[89]))));
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
    let running = Node::new(&chain.spec, Setup::MPT).start();
    let peers = ScriptedPeers::default();
    connect(&peers, &[Manner::Honest; 2], &blocks);
    let follower = follower(&running, &peers, Leader::ConsensusClient);
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

/// The consensus client repeats itself after 12 s only.
#[test]
fn a_head_is_not_forgotten_when_the_peers_go_half_way() {
    let (chain, blocks) = chain(300);
    let tip = hash(&blocks[300]);
    let running = Node::new(&chain.spec, Setup::MPT).start();
    let peers = ScriptedPeers::default();
    connect(&peers, &[Manner::Honest], &blocks);
    let only = PeerId::repeat_byte(1);
    want(&running, tip);
    let follower = follower(&running, &peers, Leader::ConsensusClient);
    let mut heads = running.live.subscribe();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| follower.step());
        while heads.try_recv().is_err() {
            std::thread::yield_now();
        }
        peers.behave(only, Manner::Empty);
        // It may be there already.
        if let Err(error) = step.join().unwrap() {
            assert!(matches!(error, FollowError::Fetch(_)), "{error}");
            assert_eq!(running.engine.handle().wanted(), Some(tip));
        }
    });
    peers.behave(only, Manner::Honest);
    while follower.step().is_err() {}
    running.lead(tip);
}

#[test]
fn what_was_imported_before_a_restart_is_not_fetched_again() {
    let (chain, blocks) = chain(300);
    let tip = hash(&blocks[300]);
    let config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
    let node = Node { config, ..Node::new(&chain.spec, Setup::MPT) };
    let running = node.start();
    let peers = ScriptedPeers::default();
    connect(&peers, &[Manner::Honest], &blocks[..=200]);
    // The only peer goes no further than block 200.
    want(&running, hash(&blocks[200]));
    follower(&running, &peers, Leader::ConsensusClient).step().unwrap();
    running.lead(hash(&blocks[200]));
    running.flush();
    running.stop();

    let running = node.start();
    assert_eq!(running.live.head().number, 200);
    let peers = ScriptedPeers::default();
    connect(&peers, &[Manner::Honest], &blocks);
    want(&running, tip);
    let engine = running.engine.handle().clone();
    let behind = SyncProgress { starting: 200, current: 200, highest: 200 };
    assert_eq!(engine.syncing(), Some(behind));
    let stop = Arc::default();
    follower_until(&running, &peers, Leader::ConsensusClient, &stop).step().unwrap();
    running.lead(tip);
    let asked = peers.asked(PeerId::repeat_byte(1));
    let bodies: usize = asked
        .iter()
        .map(|request| match request {
            retrie_network::eth::Request::Bodies(hashes) => {
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
    let running = Node::new(&chain.spec, Setup::MPT).start();
    let peers = ScriptedPeers::default();
    let follower = follower(&running, &peers, Leader::Named(tip));
    follower.step().unwrap();
    assert_eq!(running.live.head().number, 0, "nobody is there");
    connect(&peers, &[Manner::Honest], &blocks);
    follower.step().unwrap();
    assert_eq!(running.head(), tip);
    assert_eq!(running.engine.handle().syncing(), None);
    // A consensus client leads from here, also away from it.
    let side = chain.branch(hash(&blocks[98]), 4, 12, 2);
    running.follow(&chain.path(hash(&blocks[98]), side[3]));
    follower.step().unwrap();
    assert_eq!(running.head(), side[3]);
}

/// `/health` asks the follower: without peers it waits, and works.
#[test]
fn a_follower_without_peers_waits_and_has_no_trouble() {
    let (chain, blocks) = chain(3);
    let running = Node::new(&chain.spec, Setup::MPT).start();
    let peers = ScriptedPeers::default();
    want(&running, hash(&blocks[3]));
    let stop = Arc::<AtomicBool>::default();
    for leader in [Leader::ConsensusClient, Leader::Named(hash(&blocks[3]))] {
        let follower = follower_until(&running, &peers, leader, &stop);
        for _ in 0..3 {
            follower.step().unwrap();
        }
    }
    let following =
        follower_until(&running, &peers, Leader::ConsensusClient, &stop).start().unwrap();
    connect(&peers, &[Manner::Honest], &blocks);
    while running.live.view().unwrap().header(&hash(&blocks[3])).unwrap().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(following.trouble(), None);
    stop.store(true, Ordering::Relaxed);
    following.join().unwrap();
}
