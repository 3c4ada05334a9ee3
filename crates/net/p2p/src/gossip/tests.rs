use super::*;
use crate::{
    eth::{BlockRange, EthRequest, EthResponse, EthVersion},
    gossip_queue::{self, GossipLimits, GossipSender, GossipShare},
    handle::BoxFuture,
    handle::{EthRequestHandler, PeerInfo, PeerNetwork, RequestError},
    testkit::{PeerBehaviour, ScriptedNetwork},
};
use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar, TxLegacy};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Signature, U256};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;

mod cells;
mod hostile;

const SIGNATURE: Signature = Signature::new(U256::ONE, U256::ONE, false);

fn transaction(nonce: u64) -> PooledTransaction {
    TxLegacy { nonce, ..TxLegacy::default() }.into_signed(SIGNATURE).into()
}

fn blob_transaction(nonce: u64) -> PooledTransaction {
    let sidecar = BlobTransactionSidecarVariant::Eip4844(Default::default());
    let tx = TxEip4844 { nonce, ..TxEip4844::default() };
    TxEip4844WithSidecar { tx, sidecar }.into_signed(SIGNATURE).into()
}

fn announced(transaction: &PooledTransaction) -> TxAnnouncement {
    let (hash, size) = (*transaction.tx_hash(), transaction.encode_2718_len() as u64);
    TxAnnouncement { hash, ty: transaction.ty(), size }
}

fn hashes(all: &[TxAnnouncement]) -> TxGossip {
    TxGossip::Hashes(NewPooledTransactionHashes {
        types: all.iter().map(|one| one.ty).collect(),
        sizes: all.iter().map(|one| one.size).collect(),
        hashes: all.iter().map(|one| one.hash).collect(),
        ..Default::default()
    })
}

/// A pool that accepts everything, except for the verdicts that a test has set.
#[derive(Debug)]
struct MockPool {
    contents: Mutex<PoolContents>,
    fresh: broadcast::Sender<TxAnnouncement>,
    /// A test closes it to stop judging.
    gate: PoolGate,
}

#[derive(Debug, Default)]
struct PoolGate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl PoolGate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock() = is_closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        self.opened.wait_while(&mut self.is_closed.lock(), |is_closed| *is_closed);
    }
}

#[derive(Debug, Default)]
struct PoolContents {
    order: Vec<TxAnnouncement>,
    transactions: HashMap<B256, PooledTransaction>,
    verdicts: HashMap<B256, Vec<PoolVerdict>>,
    added: Vec<B256>,
    is_closed: bool,
    max_size: Option<u64>,
}

impl MockPool {
    fn new() -> Arc<Self> {
        // So small a channel that updates are missed.
        let fresh = broadcast::channel(256).0;
        Arc::new(Self { contents: Mutex::default(), fresh, gate: PoolGate::default() })
    }

    fn put(&self, transaction: PooledTransaction) {
        let one = announced(&transaction);
        let mut contents = self.contents.lock();
        if contents.transactions.insert(one.hash, transaction).is_none() {
            contents.order.push(one);
            let _ = self.fresh.send(one);
        }
    }

    fn len(&self) -> usize {
        self.contents.lock().order.len()
    }

    fn added(&self) -> usize {
        self.contents.lock().added.len()
    }
}

#[derive(Debug)]
struct FreshSubscription(broadcast::Receiver<TxAnnouncement>);

impl FreshTransactions for FreshSubscription {
    fn next(&mut self) -> FreshFuture<'_> {
        Box::pin(async {
            match self.0.recv().await {
                Ok(one) => Some(FreshUpdate::One(one)),
                Err(RecvError::Lagged(_)) => Some(FreshUpdate::Missed),
                Err(RecvError::Closed) => None,
            }
        })
    }
}

impl TxPool for MockPool {
    fn is_open(&self) -> bool {
        !self.contents.lock().is_closed
    }

    fn max_size(&self, _: u8) -> u64 {
        self.contents.lock().max_size.unwrap_or(u64::MAX)
    }

    fn contains(&self, hash: &B256) -> bool {
        self.contents.lock().transactions.contains_key(hash)
    }

    fn pooled(&self, hash: &B256) -> Option<PooledTransaction> {
        self.contents.lock().transactions.get(hash).cloned()
    }

    fn size_without_blobs(&self, hash: &B256) -> Option<u64> {
        cells::size_without_blobs(&self.pooled(hash)?)
    }

    fn newest(&self, most: usize) -> Vec<TxAnnouncement> {
        self.contents.lock().order.iter().rev().take(most).copied().collect()
    }

    fn fresh(&self) -> Box<dyn FreshTransactions> {
        Box::new(FreshSubscription(self.fresh.subscribe()))
    }

    fn add(&self, transaction: PooledTransaction) -> PoolVerdict {
        self.gate.pass();
        let mut contents = self.contents.lock();
        contents.added.push(*transaction.tx_hash());
        let verdicts = contents.verdicts.get_mut(transaction.tx_hash());
        if let Some(verdict) = verdicts.and_then(Vec::pop) {
            return verdict;
        }
        if contents.transactions.contains_key(transaction.tx_hash()) {
            return PoolVerdict::Known;
        }
        drop(contents);
        self.put(transaction);
        PoolVerdict::Taken
    }
}

/// A peer that has these transactions.
#[derive(Debug)]
struct TxHolder(Vec<PooledTransaction>);

impl EthRequestHandler for TxHolder {
    fn answer(&self, _: &PeerInfo, request: EthRequest) -> EthResponse {
        let EthRequest::PooledTransactions(hashes) = request else {
            return request.empty_response();
        };
        let find = |hash: &B256| self.0.iter().find(|one| one.tx_hash() == hash).cloned();
        EthResponse::PooledTransactions(hashes.iter().filter_map(find).collect())
    }
}

/// A peer that answers every request with these transactions.
#[derive(Debug)]
struct FixedResponder(Vec<PooledTransaction>);

impl EthRequestHandler for FixedResponder {
    fn answer(&self, _: &PeerInfo, _: EthRequest) -> EthResponse {
        EthResponse::PooledTransactions(self.0.clone())
    }
}

fn options() -> GossipOptions {
    GossipOptions {
        interval: Duration::from_millis(1),
        delay: Duration::ZERO,
        patience: Duration::from_millis(20),
    }
}

/// A gossip task with scripted peers.
struct GossipHarness {
    peers: ScriptedNetwork,
    pool: Arc<MockPool>,
    figures: Arc<GossipFigures>,
    tell: GossipSender,
    shares: Mutex<HashMap<PeerId, GossipShare>>,
}

impl GossipHarness {
    fn start() -> Self {
        Self::on(MockPool::new())
    }

    fn on(pool: Arc<MockPool>) -> Self {
        Self::with_options(pool, options())
    }

    fn with_options(pool: Arc<MockPool>, options: GossipOptions) -> Self {
        let peers = ScriptedNetwork::default();
        let (tell, heard) = gossip_queue::channel(GossipLimits::default());
        let gossiper =
            TxGossiper::new(NetworkHandle::new(peers.clone()), heard, pool.clone(), options);
        let figures = gossiper.figures();
        tokio::spawn(gossiper.run());
        Self { peers, pool, figures, tell, shares: Mutex::default() }
    }

    fn connect(
        &self,
        name: u8,
        manner: PeerBehaviour,
        serve: impl EthRequestHandler + 'static,
    ) -> PeerId {
        self.peers.connect_to(name, manner, Arc::new(serve), BlockRange::default())
    }

    fn hear(&self, peer: PeerId, gossip: TxGossip) {
        let mut shares = self.shares.lock();
        shares.entry(peer).or_insert_with(|| self.tell.share(peer)).push(gossip);
    }

    /// The full transactions and the hashes that a peer has got so far.
    fn told(&self, peer: PeerId) -> (Vec<B256>, Vec<B256>) {
        let (mut whole, mut named) = (Vec::new(), Vec::new());
        for gossip in self.peers.take_gossip(peer) {
            match gossip {
                TxGossip::Transactions(all) => whole.extend(all.iter().map(|one| *one.tx_hash())),
                TxGossip::Hashes(all) => named.extend(all.hashes),
            }
        }
        (whole, named)
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not come to that");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn whole_ones_go_to_few_and_hashes_to_the_others() {
    let world = GossipHarness::start();
    let peers: Vec<PeerId> = (1..=9)
        .map(|name| world.connect(name, PeerBehaviour::Honest, TxHolder(Vec::new())))
        .collect();
    world.pool.put(transaction(1));
    world.pool.put(blob_transaction(2));
    let figures = world.figures.clone();
    let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    until(|| (get(&figures.sent), get(&figures.announced)) == (3, 15)).await;
    let (plain, blob) = (*transaction(1).tx_hash(), *blob_transaction(2).tx_hash());
    for peer in peers {
        let (whole, named) = world.told(peer);
        assert!(named.contains(&blob), "by its hash alone");
        assert!(whole.iter().all(|hash| *hash == plain));
        assert_eq!(whole.len() + named.len(), 2);
    }
}

#[tokio::test]
async fn nobody_is_told_what_he_has_told() {
    let world = GossipHarness::start();
    let (one, two) = (transaction(1), transaction(2));
    let first = world.connect(1, PeerBehaviour::Honest, TxHolder(vec![one.clone()]));
    let second = world.connect(2, PeerBehaviour::Honest, TxHolder(Vec::new()));
    world.hear(first, hashes(&[announced(&one)]));
    world.hear(first, TxGossip::Transactions(vec![two.clone()]));
    until(|| world.pool.len() == 2).await;
    let mut told = Vec::new();
    until(|| {
        let (whole, named) = world.told(second);
        told.extend(whole.into_iter().chain(named));
        told.len() == 2
    })
    .await;
    assert_eq!(world.told(first), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn who_comes_late_gets_the_newest_hashes() {
    let pool = MockPool::new();
    (0..5_000).for_each(|nonce| pool.put(transaction(nonce)));
    let world = GossipHarness::on(pool);
    let peer = world.connect(1, PeerBehaviour::Honest, TxHolder(Vec::new()));
    let mut named = Vec::new();
    until(|| {
        named.extend(world.told(peer).1);
        named.len() >= 4096
    })
    .await;
    let newest: Vec<B256> = (904..5_000).map(|nonce| *transaction(nonce).tx_hash()).collect();
    assert_eq!(named, newest);
}

/// A peer that does not read gets the transactions later, by hash.
#[tokio::test]
async fn nothing_is_lost_on_who_does_not_read_at_once() {
    let world = GossipHarness::start();
    let peer = world.connect(1, PeerBehaviour::Honest, TxHolder(Vec::new()));
    world.peers.reads(peer, false);
    for nonce in 0..20 {
        world.pool.put(transaction(nonce));
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(world.told(peer), (Vec::new(), Vec::new()));
    world.peers.reads(peer, true);
    let mut told = HashSet::new();
    until(|| {
        let (whole, named) = world.told(peer);
        told.extend(whole.into_iter().chain(named));
        told.len() == 20
    })
    .await;
}

#[tokio::test]
async fn whoever_announces_one_thing_and_sends_another_is_reported() {
    let good = transaction(1);
    let of = announced(&good);
    let lies = [
        TxAnnouncement { ty: 2, ..of },
        TxAnnouncement { size: of.size + 10, ..of },
        TxAnnouncement { size: 0, ..of },
        TxAnnouncement { size: u64::MAX, ..of },
    ];
    for lie in lies {
        let world = GossipHarness::start();
        let liar = world.connect(1, PeerBehaviour::Honest, TxHolder(vec![good.clone()]));
        world.hear(liar, hashes(&[lie]));
        until(|| !world.peers.reports().is_empty()).await;
        assert_eq!(world.peers.reports(), [(liar, PeerOffence::BadAnnouncement)], "{lie:?}");
        assert_eq!(world.pool.len(), 0);
        // An honest peer has it, too.
        let honest = world.connect(2, PeerBehaviour::Honest, TxHolder(vec![good.clone()]));
        world.hear(honest, hashes(&[of]));
        until(|| world.pool.len() == 1).await;
        assert_eq!(world.peers.reports().len(), 1);
    }
    // An unrequested transaction, or one twice.
    for answer in [vec![transaction(2)], vec![good.clone(), good.clone()]] {
        let world = GossipHarness::start();
        let liar = world.connect(1, PeerBehaviour::Honest, FixedResponder(answer));
        world.hear(liar, hashes(&[of]));
        until(|| !world.peers.reports().is_empty()).await;
        assert_eq!(world.peers.reports(), [(liar, PeerOffence::BadAnnouncement)]);
    }
}

#[tokio::test]
async fn another_is_asked_when_one_is_silent_or_has_nothing() {
    for useless in [PeerBehaviour::Silent, PeerBehaviour::Empty] {
        let world = GossipHarness::start();
        let all: Vec<_> = (0..300).map(transaction).collect();
        let told: Vec<_> = all.iter().map(announced).collect();
        let first = world.connect(1, useless, TxHolder(Vec::new()));
        let second = world.connect(2, PeerBehaviour::Honest, TxHolder(all));
        world.hear(first, hashes(&told));
        until(|| !world.peers.requests(first).is_empty()).await;
        world.hear(second, hashes(&told));
        until(|| world.pool.len() == 300).await;
        for request in world.peers.requests(second) {
            let EthRequest::PooledTransactions(hashes) = request else { panic!("{request:?}") };
            assert!(hashes.len() <= 256);
        }
        assert!(world.peers.reports().is_empty());
        assert_eq!(world.pool.added(), 300, "each once");
    }
}

#[tokio::test]
async fn a_peer_without_what_it_announces_is_asked_more_rarely() {
    let world = GossipHarness::start();
    let peer = world.connect(1, PeerBehaviour::Empty, TxHolder(Vec::new()));
    let start = Instant::now();
    for nonce in 0..6 {
        world.hear(peer, hashes(&[announced(&transaction(nonce))]));
        until(|| world.peers.requests(peer).len() as u64 == nonce + 1).await;
    }
    // After the fourth and the fifth answer it rests.
    assert!(start.elapsed() >= Duration::from_millis(250 + 500));
    // On a chain with short slots an honest peer's transactions are mined before they are requested.
    assert!(world.peers.reports().is_empty());
}

#[tokio::test]
async fn a_wrong_sidecar_costs_its_sender_and_not_the_transaction() {
    let world = GossipHarness::start();
    let blob = blob_transaction(1);
    let hash = *blob.tx_hash();
    world.pool.contents.lock().verdicts.insert(hash, vec![PoolVerdict::BadSidecar]);
    let liar = world.connect(1, PeerBehaviour::Honest, TxHolder(vec![blob.clone()]));
    let honest = world.connect(
        2,
        PeerBehaviour::Slow(Duration::from_millis(1)),
        TxHolder(vec![blob.clone()]),
    );
    world.hear(liar, hashes(&[announced(&blob)]));
    world.hear(honest, hashes(&[announced(&blob)]));
    until(|| world.pool.len() == 1).await;
    assert_eq!(world.peers.reports(), [(liar, PeerOffence::BadTransaction)]);
}

#[tokio::test]
async fn blob_transactions_that_nobody_has_asked_for_are_an_offence() {
    let world = GossipHarness::start();
    let peer = world.connect(1, PeerBehaviour::Honest, TxHolder(Vec::new()));
    world.hear(peer, TxGossip::Transactions(vec![transaction(1), blob_transaction(2)]));
    until(|| world.peers.reports() == [(peer, PeerOffence::BadTransaction)]).await;
    assert_eq!(world.pool.added(), 0);
}

#[tokio::test]
async fn what_was_refused_for_good_is_not_fetched_again() {
    let world = GossipHarness::start();
    let (bad, full, invalid) = (transaction(1), transaction(2), transaction(3));
    let all = [bad.clone(), full.clone(), invalid.clone()];
    {
        let mut contents = world.pool.contents.lock();
        let mut judge = |tx: &PooledTransaction, verdict| {
            contents.verdicts.insert(*tx.tx_hash(), vec![verdict]);
        };
        judge(&bad, PoolVerdict::Refused { for_good: true });
        judge(&full, PoolVerdict::Refused { for_good: false });
        judge(&invalid, PoolVerdict::Invalid);
    }
    let told: Vec<_> = all.iter().map(announced).collect();
    let peer = world.connect(1, PeerBehaviour::Honest, TxHolder(all.to_vec()));
    world.hear(peer, hashes(&told));
    until(|| world.figures.refused.load(Ordering::Relaxed) == 3).await;
    until(|| world.peers.reports() == [(peer, PeerOffence::BadTransaction)]).await;
    let second = world.connect(2, PeerBehaviour::Honest, TxHolder(all.to_vec()));
    world.hear(second, hashes(&told));
    until(|| world.pool.len() == 1).await;
    assert!(world.pool.contains(full.tx_hash()));
    assert_eq!(
        world.peers.requests(second),
        [EthRequest::PooledTransactions(vec![*full.tx_hash()])]
    );
    world.hear(second, TxGossip::Transactions(vec![bad, transaction(9)]));
    until(|| world.pool.len() == 2).await;
    assert_eq!(world.pool.added(), 5);
}

#[tokio::test]
async fn announcements_without_end_are_bounded() {
    let world = GossipHarness::start();
    let peer = world.connect(1, PeerBehaviour::Silent, TxHolder(Vec::new()));
    for from in [0, 4_000, 8_000] {
        let told = (from..from + 4_000).map(|nonce| announced(&transaction(nonce)));
        let told: Vec<_> = told.collect();
        world.hear(peer, hashes(&told));
    }
    let figures = world.figures.clone();
    let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    until(|| get(&figures.heard) + get(&figures.overheard) == 12_000).await;
    until(|| get(&figures.wanted) > 0).await;
    assert!(get(&figures.wanted) <= 4_096, "{}", get(&figures.wanted));
    // Other peers are heard all the same.
    let all: Vec<_> = (20_000..20_010).map(transaction).collect();
    let told: Vec<_> = all.iter().map(announced).collect();
    let honest = world.connect(2, PeerBehaviour::Honest, TxHolder(all));
    world.hear(honest, hashes(&told));
    until(|| world.pool.len() == 10).await;
    // When it disconnects, the hashes that only it has announced are forgotten.
    world.peers.disconnect(peer);
    until(|| get(&figures.wanted) == 0).await;
}

#[tokio::test]
async fn a_node_that_is_far_behind_asks_for_nothing() {
    let world = GossipHarness::start();
    world.pool.contents.lock().is_closed = true;
    let (one, two) = (transaction(1), transaction(2));
    let peer = world.connect(1, PeerBehaviour::Honest, TxHolder(vec![one.clone()]));
    world.hear(peer, hashes(&[announced(&one)]));
    world.hear(peer, TxGossip::Transactions(vec![two]));
    let most = GossipLimits::default().bytes;
    until(|| world.shares.lock()[&peer].room() == most).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(world.peers.requests(peer).is_empty());
    assert_eq!(world.pool.added(), 0);
}

/// A member of the mesh accepts gossip while it has this much room.
const FULL: usize = 256 << 10;

/// Nodes, each connected with some of the others.
#[derive(Clone, Debug, Default)]
struct PeerMesh(Arc<Mutex<HashMap<PeerId, MeshMember>>>);

#[derive(Debug)]
struct MeshMember {
    neighbours: Vec<PeerId>,
    pool: Arc<MockPool>,
    tell: HashMap<PeerId, GossipShare>,
    events: broadcast::Sender<PeerEvent>,
}

#[derive(Debug)]
struct MeshNode {
    mesh: PeerMesh,
    me: PeerId,
}

fn info(id: PeerId) -> Arc<PeerInfo> {
    Arc::new(PeerInfo {
        id,
        address: ([127, 0, 0, 1], 1).into(),
        local_address: ([127, 0, 0, 1], 2).into(),
        version: EthVersion::Eth69,
        inbound: false,
        trusted: false,
        is_static: false,
        name: String::new(),
        speaks_rchk: false,
        snap: None,
        capabilities: Vec::new(),
        range: BlockRange::default(),
    })
}

impl PeerNetwork for MeshNode {
    fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.mesh.0.lock()[&self.me].neighbours.iter().map(|id| info(*id)).collect()
    }

    fn request(
        &self,
        peer: PeerId,
        request: EthRequest,
    ) -> BoxFuture<Result<EthResponse, RequestError>> {
        let pool = self.mesh.0.lock()[&peer].pool.clone();
        Box::pin(async move {
            let EthRequest::PooledTransactions(hashes) = request else {
                return Ok(request.empty_response());
            };
            let found = hashes.iter().filter_map(|hash| pool.pooled(hash));
            Ok(EthResponse::PooledTransactions(found.collect()))
        })
    }

    fn send(&self, peer: PeerId, gossip: TxGossip) -> bool {
        let mut members = self.mesh.0.lock();
        let member = members.get_mut(&peer).unwrap();
        let share = member.tell.get_mut(&self.me).unwrap();
        // As over a connection: a message without room is dropped.
        share.room() >= FULL && share.push(gossip) == 0
    }

    fn report(&self, peer: PeerId, offence: PeerOffence) {
        panic!("{peer} is reported for {offence:?}");
    }

    fn events(&self) -> broadcast::Receiver<PeerEvent> {
        self.mesh.0.lock()[&self.me].events.subscribe()
    }
}

impl PeerMesh {
    fn start(links: &[&[u8]]) -> Vec<Arc<MockPool>> {
        let mesh = Self::default();
        let (mut pools, mut gossipers) = (Vec::new(), Vec::new());
        for (name, neighbours) in links.iter().enumerate() {
            let me = PeerId::with_last_byte(name as u8);
            let neighbours: Vec<PeerId> =
                neighbours.iter().map(|name| PeerId::with_last_byte(*name)).collect();
            // Small limits, so that some messages are dropped.
            let limits = GossipLimits { bytes: 2 * FULL, ..GossipLimits::default() };
            let (tell, heard) = gossip_queue::channel(limits);
            let tell = neighbours.iter().map(|peer| (*peer, tell.share(*peer))).collect();
            let (pool, events) = (MockPool::new(), broadcast::channel(4).0);
            let member = MeshMember { neighbours, pool: pool.clone(), tell, events };
            mesh.0.lock().insert(me, member);
            let peers = NetworkHandle::new(MeshNode { mesh: mesh.clone(), me });
            gossipers.push(TxGossiper::new(peers, heard, pool.clone(), options()));
            pools.push(pool);
        }
        for gossiper in gossipers {
            tokio::spawn(gossiper.run());
        }
        pools
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transaction_gets_through_three_hops() {
    const COUNT: u64 = 3_000;
    let pools = PeerMesh::start(&[&[1], &[0, 2], &[1, 3], &[2]]);
    for nonce in 0..COUNT {
        let made = if nonce % 100 == 0 { blob_transaction(nonce) } else { transaction(nonce) };
        pools[0].put(made);
        if nonce % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    until(|| pools[3].len() == COUNT as usize).await;
    assert!(pools.iter().all(|pool| pool.len() == COUNT as usize));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transaction_gets_to_all_of_a_mesh() {
    const COUNT: u64 = 200;
    let all: Vec<Vec<u8>> =
        (0..8_u8).map(|me| (0..8).filter(|other| *other != me).collect()).collect();
    let links: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let pools = PeerMesh::start(&links);
    for nonce in 0..COUNT {
        pools[nonce as usize % 8].put(transaction(nonce));
    }
    until(|| pools.iter().all(|pool| pool.len() == COUNT as usize)).await;
}
