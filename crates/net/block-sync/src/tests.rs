use crate::{BlockSyncOptions, PeerBlocks};
use alloy_consensus::{SignableTransaction, TxLegacy, proofs};
use alloy_primitives::{B256, Signature, U256};
use retrie_chainspec::primitives::{Block, BlockBody, Header, Transaction};
use retrie_p2p::{
    eth::{EthRequest, PeerId},
    handle::{NetworkHandle, PeerOffence},
    serve::MemoryChain,
    testkit::{PeerBehaviour, ScriptedNetwork},
};
use retrie_sources::{BlockFetcher, BlockTag, FetchError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// A chain of `count` blocks above genesis; every third block is empty.
fn chain(count: u64) -> Vec<Block> {
    let mut parent_hash = B256::ZERO;
    let mut blocks = Vec::new();
    for number in 0..=count {
        let mut body = BlockBody::default();
        if number % 3 != 0 {
            let tx = TxLegacy { nonce: number, ..TxLegacy::default() };
            let signature = Signature::new(U256::from(1), U256::from(1), false);
            body.transactions.push(Transaction::Legacy(tx.into_signed(signature)));
        }
        if number % 7 == 1 {
            body.ommers.push(Header { number, ..Header::default() });
        }
        let header = Header {
            number,
            parent_hash,
            transactions_root: proofs::calculate_transaction_root(&body.transactions),
            ommers_hash: proofs::calculate_ommers_root(&body.ommers),
            ..Header::default()
        };
        parent_hash = header.hash_slow();
        blocks.push(Block { header, body });
    }
    blocks
}

struct SyncHarness {
    peers: ScriptedNetwork,
    blocks: Vec<Block>,
    from_peers: PeerBlocks,
    stop: Arc<AtomicBool>,
    _runtime: Runtime,
}

impl SyncHarness {
    fn new(count: u64, manners: &[PeerBehaviour]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let peers = ScriptedNetwork::default();
        let blocks = chain(count);
        let served = Arc::new(MemoryChain::new(blocks.clone()));
        for (name, manner) in manners.iter().enumerate() {
            peers.connect(name as u8 + 1, *manner, served.clone());
        }
        let options = BlockSyncOptions {
            patience: Duration::from_millis(20),
            stalled: Duration::from_millis(500),
            ..BlockSyncOptions::default()
        };
        let stop = Arc::<AtomicBool>::default();
        let handle = runtime.handle().clone();
        let from_peers =
            PeerBlocks::new(NetworkHandle::new(peers.clone()), options, handle, stop.clone());
        Self { peers, blocks, from_peers, stop, _runtime: runtime }
    }

    fn hash(&self, number: usize) -> B256 {
        self.blocks[number].header.hash_slow()
    }

    /// Syncs as the follower does: the head's header, blocks by number, and the last ones by hash.
    fn sync(&self, from: usize, to: usize, by_hash: usize) -> Result<(), FetchError> {
        assert_eq!(self.from_peers.header_by_hash(self.hash(to))?, self.blocks[to].header);
        for number in from..=to - by_hash {
            assert_eq!(self.from_peers.block_by_number(number as u64)?, self.blocks[number]);
        }
        for number in (to - by_hash..to).rev() {
            let header = self.from_peers.header_by_hash(self.hash(number))?;
            assert_eq!(header, self.blocks[number].header);
        }
        for number in to - by_hash + 1..=to {
            assert_eq!(self.from_peers.block_by_hash(self.hash(number))?, self.blocks[number]);
        }
        Ok(())
    }
}

fn id(name: u8) -> PeerId {
    PeerId::repeat_byte(name)
}

#[test]
fn blocks_of_one_honest_peer_come_whole_and_in_order() {
    for (count, by_hash) in [(1, 0), (5, 4), (64, 63), (65, 64), (3_000, 64)] {
        let world = SyncHarness::new(count, &[PeerBehaviour::Honest]);
        world.sync(1, count as usize, by_hash).unwrap();
        assert!(world.peers.reports().is_empty());
    }
}

#[test]
fn bodies_come_from_many_peers_at_once() {
    let world = SyncHarness::new(3_000, &[PeerBehaviour::Slow(Duration::from_millis(2)); 4]);
    world.sync(1, 3_000, 64).unwrap();
    for name in 1..=4 {
        let bodies = |request: &EthRequest| matches!(request, EthRequest::Bodies(_));
        let asked = world.peers.requests(id(name)).into_iter().filter(bodies).count();
        assert!(asked >= 2, "peer {name} was asked {asked} times");
    }
    let bodies = world.from_peers.figures().bodies.load(Ordering::Relaxed);
    let not_empty = world.blocks.iter().filter(|block| !block.body.transactions.is_empty());
    let ommers = world
        .blocks
        .iter()
        .filter(|block| block.body.transactions.is_empty() && !block.body.ommers.is_empty());
    assert_eq!(bodies as usize, not_empty.count() + ommers.count(), "each once");
}

#[test]
fn whoever_lies_is_reported_and_does_no_harm() {
    for liar in
        [PeerBehaviour::WrongHeaders, PeerBehaviour::WrongBodies, PeerBehaviour::OtherAnswers]
    {
        let world = SyncHarness::new(1_500, &[liar, PeerBehaviour::Honest, PeerBehaviour::Honest]);
        world.sync(1, 1_500, 64).unwrap();
        assert_eq!(world.peers.reports(), [(id(1), PeerOffence::WrongData)], "{liar:?}");
        assert_eq!(world.from_peers.figures().wrong.load(Ordering::Relaxed), 1);
    }
    // No other peer is connected.
    for liar in [PeerBehaviour::WrongHeaders, PeerBehaviour::WrongBodies] {
        let world = SyncHarness::new(1_500, &[liar]);
        let error = world.sync(1, 1_500, 64).unwrap_err();
        assert_eq!(world.peers.reports(), [(id(1), PeerOffence::WrongData)]);
        assert!(error.to_string().contains("peer"), "{error}");
    }
}

#[test]
fn whoever_is_silent_or_has_nothing_is_passed_over() {
    for useless in [PeerBehaviour::Silent, PeerBehaviour::Empty, PeerBehaviour::Busy] {
        let world = SyncHarness::new(1_500, &[useless, useless, PeerBehaviour::Honest]);
        world.sync(1, 1_500, 64).unwrap();
        assert!(world.peers.reports().is_empty(), "{useless:?}");
    }
}

#[test]
fn a_peer_that_goes_is_no_loss() {
    let world = SyncHarness::new(
        2_000,
        &[PeerBehaviour::Slow(Duration::from_millis(1)), PeerBehaviour::Honest],
    );
    world.sync(1, 700, 64).unwrap();
    world.peers.disconnect(id(1));
    world.sync(701, 1_400, 64).unwrap();
    world.peers.connect(3, PeerBehaviour::Honest, Arc::new(MemoryChain::new(world.blocks.clone())));
    world.peers.disconnect(id(2));
    world.sync(1_401, 2_000, 64).unwrap();
}

#[test]
fn what_nobody_has_is_said() {
    let message = |result: Result<(), FetchError>| result.unwrap_err().to_string();
    let world = SyncHarness::new(100, &[]);
    assert!(!world.from_peers.is_available());
    assert_eq!(message(world.sync(1, 100, 64)), "no peer is connected");
    for useless in [PeerBehaviour::Silent, PeerBehaviour::Empty] {
        let world = SyncHarness::new(100, &[useless, useless]);
        let said = message(world.sync(1, 100, 64));
        assert!(said.starts_with("none of 2 peers has given block 0x"), "{said}");
    }
    // Bodies that no peer has.
    let world = SyncHarness::new(100, &[PeerBehaviour::Honest]);
    world.from_peers.header_by_hash(world.hash(100)).unwrap();
    world.peers.behave(id(1), PeerBehaviour::Empty);
    // The headers of the last 64 blocks are in memory.
    let said = world.from_peers.block_by_number(50).unwrap_err().to_string();
    assert_eq!(said, "no peer has sent block 50 or a later one for 0 s");
    // A number above the head, and a number before a head is known.
    let said = world.from_peers.block_by_number(101).unwrap_err().to_string();
    assert_eq!(said, "block 101 was asked for before a head at or above it");
    let world = SyncHarness::new(100, &[PeerBehaviour::Honest]);
    assert!(world.from_peers.block_by_number(1).is_err());
    assert!(world.from_peers.tagged(BlockTag::Head).is_err());
}

#[test]
fn whoever_waits_is_let_go_when_the_node_stops() {
    let world = SyncHarness::new(100, &[PeerBehaviour::Silent]);
    world.stop.store(true, Ordering::Relaxed);
    let error = world.from_peers.header_by_hash(world.hash(100)).unwrap_err();
    assert_eq!(error.to_string(), "stopped");
}

/// Regression: the peer that answered for headers first was asked for all of them, even if it gave
/// one at a time.
#[test]
fn headers_and_bodies_are_not_left_to_a_peer_that_drips() {
    let drips = PeerBehaviour::Drips(Duration::from_millis(15), 1);
    let world = SyncHarness::new(600, &[drips, PeerBehaviour::Honest]);
    world.sync(1, 600, 64).unwrap();
    let asked = world.peers.requests(id(1));
    assert!(asked.len() <= 40, "{} requests", asked.len());
}

/// Regression: bodies stopped at each segment of dropped headers until it was fetched again.
#[test]
fn headers_that_were_let_go_are_fetched_ahead_of_their_bodies() {
    const COUNT: u64 = 40_000;
    let world = SyncHarness::new(COUNT, &[PeerBehaviour::Honest]);
    world.from_peers.header_by_hash(world.hash(COUNT as usize)).unwrap();
    // The lowest 32 segments of 1,024 are in memory, and bodies are fetched ahead of block 31,000.
    world.from_peers.header_at(1).unwrap();
    let asked = || world.from_peers.figures().headers.load(Ordering::Relaxed);
    let before = asked();
    world.from_peers.block_by_number(31_000).unwrap();
    let begun = Instant::now();
    while asked() == before {
        assert!(begun.elapsed() < Duration::from_secs(30), "no segment above comes");
        world.from_peers.block_by_number(31_000).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A consensus client names a new head every 12 s: headers below it are not fetched twice.
#[test]
fn a_later_head_goes_on_with_what_is_known() {
    let world = SyncHarness::new(3_000, &[PeerBehaviour::Honest]);
    world.from_peers.header_by_hash(world.hash(2_900)).unwrap();
    world.from_peers.block_by_number(1).unwrap();
    let headers = || world.from_peers.figures().headers.load(Ordering::Relaxed);
    assert_eq!(headers(), 2_900);
    for head in [2_910, 2_990] {
        world.from_peers.header_by_hash(world.hash(head)).unwrap();
        assert_eq!(world.from_peers.block_by_number(2).unwrap(), world.blocks[2]);
    }
    assert!(headers() <= 2_900 + 64 + 64 + 1024, "{}", headers());
    world.sync(2, 3_000, 64).unwrap();
}
