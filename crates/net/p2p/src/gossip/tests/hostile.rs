//! Attacks by connected peers. Each test is a regression.

use super::*;
use alloy_consensus::TxEip7702;
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar},
    eip7702::{Authorization, SignedAuthorization},
};

/// Blob transactions of 128 KiB.
fn long_blob_transaction(nonce: u64) -> PooledTransaction {
    let sidecar = BlobTransactionSidecar {
        blobs: vec![Blob::repeat_byte(1)],
        commitments: vec![Default::default()],
        proofs: vec![Default::default()],
    };
    let sidecar = BlobTransactionSidecarVariant::Eip4844(sidecar);
    let tx = TxEip4844 { nonce, blob_versioned_hashes: vec![B256::ZERO], ..TxEip4844::default() };
    TxEip4844WithSidecar { tx, sidecar }.into_signed(SIGNATURE).into()
}

fn delegating_transaction(nonce: u64, authorizations: usize) -> PooledTransaction {
    let authorization =
        Authorization { chain_id: U256::ONE, address: Default::default(), nonce: 0 };
    let signed = SignedAuthorization::new_unchecked(authorization, 0, U256::ONE, U256::ONE);
    let authorization_list = vec![signed; authorizations];
    TxEip7702 { nonce, authorization_list, ..TxEip7702::default() }.into_signed(SIGNATURE).into()
}

fn all_announced(all: &[PooledTransaction]) -> TxGossip {
    hashes(&all.iter().map(announced).collect::<Vec<_>>())
}

fn was_asked_for(world: &GossipHarness, peer: PeerId, hash: &B256) -> bool {
    world.peers.requests(peer).iter().any(|request| match request {
        EthRequest::PooledTransactions(hashes) => hashes.contains(hash),
        _ => false,
    })
}

/// `Refused` made the node forget all announcers: one peer with a sidecar of the other form kept
/// the transaction out.
#[tokio::test]
async fn a_sidecar_of_the_other_form_costs_its_sender_and_not_the_transaction() {
    let world = GossipHarness::start();
    let blob = blob_transaction(1);
    let verdicts = vec![PoolVerdict::SidecarForm; 3];
    world.pool.contents.lock().verdicts.insert(*blob.tx_hash(), verdicts);
    let liars: Vec<PeerId> = (1..=3)
        .map(|name| world.connect(name, PeerBehaviour::Honest, TxHolder(vec![blob.clone()])))
        .collect();
    // The verdicts are used up by the first three senders.
    let honest = world.connect(
        4,
        PeerBehaviour::Slow(Duration::from_millis(10)),
        TxHolder(vec![blob.clone()]),
    );
    for peer in liars.iter().chain([&honest]) {
        world.hear(*peer, all_announced(std::slice::from_ref(&blob)));
    }
    until(|| world.pool.len() == 1).await;
    let reports = world.peers.reports();
    assert_eq!(reports.len(), 3);
    assert!(reports.iter().all(|(_, offence)| *offence == PeerOffence::SidecarForm), "{reports:?}");
}

/// An unlimited number of blob transactions was fetched, and waited in memory for the thread that
/// checks proofs.
#[tokio::test]
async fn no_more_blobs_are_fetched_while_the_pool_is_behind() {
    let world = GossipHarness::start();
    let (hostile, honest): (Vec<_>, Vec<_>) =
        ((0..20).map(long_blob_transaction).collect(), (20..22).map(transaction).collect());
    world.pool.gate.set_closed(true);
    let first = world.connect(1, PeerBehaviour::Honest, TxHolder(hostile.clone()));
    world.hear(first, all_announced(&hostile));
    until(|| world.figures.fetched.load(Ordering::Relaxed) == 1).await;
    // Other peers are asked meanwhile.
    let second = world.connect(2, PeerBehaviour::Honest, TxHolder(honest.clone()));
    world.hear(second, all_announced(&honest));
    until(|| world.figures.fetched.load(Ordering::Relaxed) == 3).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(world.peers.requests(first).len(), 1);
    world.pool.gate.set_closed(false);
    until(|| world.pool.len() == 22).await;
    assert_eq!(world.peers.requests(first).len(), 20, "one after the other");
}

/// Transactions of impossible size were requested, and answers of any length were read.
#[tokio::test]
async fn what_is_announced_with_more_bytes_than_there_can_be_is_not_fetched() {
    let world = GossipHarness::start();
    world.pool.contents.lock().max_size = Some(1 << 10);
    let (one, two) = (transaction(1), transaction(2));
    let liar = world.connect(1, PeerBehaviour::Honest, TxHolder(vec![one.clone(), two.clone()]));
    let too_long = TxAnnouncement { size: (1 << 10) + 1, ..announced(&one) };
    world.hear(liar, hashes(&[too_long, announced(&two)]));
    until(|| world.pool.len() == 1).await;
    assert!(!was_asked_for(&world, liar, one.tx_hash()));
    assert_eq!(world.figures.overheard.load(Ordering::Relaxed), 1);
    assert!(world.peers.reports().is_empty());
}

/// All transactions waited in one queue: cheap to send ones that cost 600 signatures came first.
#[tokio::test]
async fn a_peer_whose_transactions_cost_much_delays_no_other() {
    let world = GossipHarness::start();
    world.pool.gate.set_closed(true);
    let first = world.connect(1, PeerBehaviour::Honest, TxHolder(Vec::new()));
    let costly: Vec<_> = (0..10).map(|nonce| delegating_transaction(nonce, 600)).collect();
    world.hear(first, TxGossip::Transactions(costly));
    let second = world.connect(2, PeerBehaviour::Honest, TxHolder(Vec::new()));
    let plain: Vec<_> = (0..100).map(transaction).collect();
    world.hear(second, TxGossip::Transactions(plain.clone()));
    // Waits until the task knows both.
    world.hear(second, all_announced(&[transaction(1000)]));
    until(|| world.figures.heard.load(Ordering::Relaxed) == 1).await;
    world.pool.gate.set_closed(false);
    until(|| world.pool.len() == 110).await;
    let order = world.pool.contents.lock().added.clone();
    let last = order.iter().position(|hash| hash == plain[99].tx_hash()).unwrap();
    // One of the other peers' may be in progress, and one arrives at the same time.
    assert!(last <= 101, "{last}");
}

/// An unrequested transaction counted as present in the pool: while it waited behind others of its
/// peer, no other peer was asked for it.
#[tokio::test]
async fn a_body_that_waits_for_its_sender_does_not_keep_others_from_being_asked() {
    let world = GossipHarness::start();
    let victim = transaction(7);
    world.pool.gate.set_closed(true);
    let hostile = world.connect(1, PeerBehaviour::Honest, TxHolder(Vec::new()));
    world.hear(
        hostile,
        TxGossip::Transactions(vec![delegating_transaction(1, 600), victim.clone()]),
    );
    let honest = world.connect(2, PeerBehaviour::Honest, TxHolder(vec![victim.clone()]));
    world.hear(honest, all_announced(std::slice::from_ref(&victim)));
    until(|| was_asked_for(&world, honest, victim.tx_hash())).await;
    world.pool.gate.set_closed(false);
    until(|| world.pool.contains(victim.tx_hash())).await;
    assert_eq!(world.peers.reports(), []);
}

/// Announcements of one peer beyond its budget kept the task busy for minutes.
#[tokio::test]
async fn a_flood_of_announcements_delays_no_other_peer() {
    let world = GossipHarness::start();
    let hostile = world.connect(1, PeerBehaviour::Silent, TxHolder(Vec::new()));
    let made = |from: u64| {
        let of = |n: u64| TxAnnouncement { hash: B256::from(U256::from(n)), ty: 2, size: 200 };
        hashes(&(from..from + 13_000).map(of).collect::<Vec<_>>())
    };
    for message in 0..64 {
        world.hear(hostile, made(message * 13_000));
    }
    let one = transaction(1);
    let honest = world.connect(2, PeerBehaviour::Honest, TxHolder(vec![one.clone()]));
    world.hear(honest, all_announced(&[one]));
    until(|| world.pool.len() == 1).await;
    // The session of the hostile peer dropped most of it.
    assert!(world.shares.lock()[&honest].room() > 0);
    let figures = world.figures.clone();
    let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    until(|| get(&figures.heard) + get(&figures.overheard) == 64 * 13_000 + 1).await;
    assert!(get(&figures.heard) <= 4096 + 1);
}

/// Gossip that was handled after its peer had left made the peer known again, for ever.
#[tokio::test]
async fn the_last_words_of_a_peer_are_heard_and_it_is_forgotten() {
    let world = GossipHarness::start();
    let peer = world.connect(1, PeerBehaviour::Honest, TxHolder(Vec::new()));
    until(|| world.shares.lock().is_empty()).await;
    world.peers.disconnect(peer);
    tokio::time::sleep(Duration::from_millis(5)).await;
    world.hear(peer, TxGossip::Transactions(vec![transaction(1)]));
    world.hear(peer, all_announced(&[transaction(2)]));
    until(|| world.pool.len() == 1).await;
    let most = GossipLimits::default().bytes;
    until(|| world.shares.lock()[&peer].room() == most).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(world.figures.heard.load(Ordering::Relaxed), 0, "it cannot be asked");
    assert_eq!(world.figures.wanted.load(Ordering::Relaxed), 0);
}
