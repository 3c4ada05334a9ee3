use super::*;
use crate::{
    eth::{BlockRange, Version},
    handle::BoxFuture,
    heard::{self, GossipLimits, GossipSender, GossipShare},
    peers::{Network, PeerInfo, Serve},
    testkit::{Manner, ScriptedPeers},
};
use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar, TxLegacy};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Signature, U256};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;

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

fn announced(transaction: &PooledTransaction) -> Announced {
    let (hash, size) = (*transaction.tx_hash(), transaction.encode_2718_len() as u64);
    Announced { hash, ty: transaction.ty(), size }
}

fn hashes(all: &[Announced]) -> Gossip {
    Gossip::Hashes(NewPooledTransactionHashes {
        types: all.iter().map(|one| one.ty).collect(),
        sizes: all.iter().map(|one| one.size).collect(),
        hashes: all.iter().map(|one| one.hash).collect(),
    })
}

/// A pool that takes everything, but for what it was told to judge otherwise.
#[derive(Debug)]
struct MadePool {
    contents: Mutex<Contents>,
    fresh: broadcast::Sender<Announced>,
    /// Closed by a test while nothing shall be judged.
    gate: Gate,
}

#[derive(Debug, Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock() = is_closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        self.opened.wait_while(&mut self.is_closed.lock(), |is_closed| *is_closed);
    }
}

#[derive(Debug, Default)]
struct Contents {
    order: Vec<Announced>,
    transactions: HashMap<B256, PooledTransaction>,
    verdicts: HashMap<B256, Vec<Verdict>>,
    added: Vec<B256>,
    is_closed: bool,
    max_size: Option<u64>,
}

impl MadePool {
    fn new() -> Arc<Self> {
        // So few that some are missed.
        let fresh = broadcast::channel(256).0;
        Arc::new(Self { contents: Mutex::default(), fresh, gate: Gate::default() })
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
struct Subscription(broadcast::Receiver<Announced>);

impl FreshTransactions for Subscription {
    fn next(&mut self) -> FreshFuture<'_> {
        Box::pin(async {
            match self.0.recv().await {
                Ok(one) => Some(Fresh::One(one)),
                Err(RecvError::Lagged(_)) => Some(Fresh::Missed),
                Err(RecvError::Closed) => None,
            }
        })
    }
}

impl TxPool for MadePool {
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

    fn newest(&self, most: usize) -> Vec<Announced> {
        self.contents.lock().order.iter().rev().take(most).copied().collect()
    }

    fn fresh(&self) -> Box<dyn FreshTransactions> {
        Box::new(Subscription(self.fresh.subscribe()))
    }

    fn add(&self, transaction: PooledTransaction) -> Verdict {
        self.gate.pass();
        let mut contents = self.contents.lock();
        contents.added.push(*transaction.tx_hash());
        let verdicts = contents.verdicts.get_mut(transaction.tx_hash());
        if let Some(verdict) = verdicts.and_then(Vec::pop) {
            return verdict;
        }
        if contents.transactions.contains_key(transaction.tx_hash()) {
            return Verdict::Known;
        }
        drop(contents);
        self.put(transaction);
        Verdict::Taken
    }
}

/// A peer that has these transactions.
#[derive(Debug)]
struct Has(Vec<PooledTransaction>);

impl Serve for Has {
    fn answer(&self, _: &PeerInfo, request: Request) -> Response {
        let Request::PooledTransactions(hashes) = request else { return request.nothing() };
        let find = |hash: &B256| self.0.iter().find(|one| one.tx_hash() == hash).cloned();
        Response::PooledTransactions(hashes.iter().filter_map(find).collect())
    }
}

/// A peer that answers with these whatever it is asked for.
#[derive(Debug)]
struct Always(Vec<PooledTransaction>);

impl Serve for Always {
    fn answer(&self, _: &PeerInfo, _: Request) -> Response {
        Response::PooledTransactions(self.0.clone())
    }
}

fn options() -> GossipOptions {
    GossipOptions {
        interval: Duration::from_millis(1),
        delay: Duration::ZERO,
        patience: Duration::from_millis(20),
    }
}

/// One that gossips with scripted peers.
struct World {
    peers: ScriptedPeers,
    pool: Arc<MadePool>,
    figures: Arc<GossipFigures>,
    tell: GossipSender,
    shares: Mutex<HashMap<PeerId, GossipShare>>,
}

impl World {
    fn start() -> Self {
        Self::on(MadePool::new())
    }

    fn on(pool: Arc<MadePool>) -> Self {
        let peers = ScriptedPeers::default();
        let (tell, heard) = heard::channel(GossipLimits::default());
        let gossiper = Gossiper::new(Peers::new(peers.clone()), heard, pool.clone(), options());
        let figures = gossiper.figures();
        tokio::spawn(gossiper.run());
        Self { peers, pool, figures, tell, shares: Mutex::default() }
    }

    fn connect(&self, name: u8, manner: Manner, serve: impl Serve + 'static) -> PeerId {
        self.peers.connect_to(name, manner, Arc::new(serve), BlockRange::default())
    }

    fn hear(&self, peer: PeerId, gossip: Gossip) {
        let mut shares = self.shares.lock();
        shares.entry(peer).or_insert_with(|| self.tell.share(peer)).push(gossip);
    }

    /// What a peer was told up to now, whole and by hash.
    fn told(&self, peer: PeerId) -> (Vec<B256>, Vec<B256>) {
        let (mut whole, mut named) = (Vec::new(), Vec::new());
        for gossip in self.peers.told(peer) {
            match gossip {
                Gossip::Transactions(all) => whole.extend(all.iter().map(|one| *one.tx_hash())),
                Gossip::Hashes(all) => named.extend(all.hashes),
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
    let world = World::start();
    let peers: Vec<PeerId> =
        (1..=9).map(|name| world.connect(name, Manner::Honest, Has(Vec::new()))).collect();
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
    let world = World::start();
    let (one, two) = (transaction(1), transaction(2));
    let first = world.connect(1, Manner::Honest, Has(vec![one.clone()]));
    let second = world.connect(2, Manner::Honest, Has(Vec::new()));
    world.hear(first, hashes(&[announced(&one)]));
    world.hear(first, Gossip::Transactions(vec![two.clone()]));
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
    let pool = MadePool::new();
    (0..5_000).for_each(|nonce| pool.put(transaction(nonce)));
    let world = World::on(pool);
    let peer = world.connect(1, Manner::Honest, Has(Vec::new()));
    let mut named = Vec::new();
    until(|| {
        named.extend(world.told(peer).1);
        named.len() >= 4096
    })
    .await;
    let newest: Vec<B256> = (904..5_000).map(|nonce| *transaction(nonce).tx_hash()).collect();
    assert_eq!(named, newest);
}

/// Whoever does not read is told later, by hash.
#[tokio::test]
async fn nothing_is_lost_on_who_does_not_read_at_once() {
    let world = World::start();
    let peer = world.connect(1, Manner::Honest, Has(Vec::new()));
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
        Announced { ty: 2, ..of },
        Announced { size: of.size + 10, ..of },
        Announced { size: 0, ..of },
        Announced { size: u64::MAX, ..of },
    ];
    for lie in lies {
        let world = World::start();
        let liar = world.connect(1, Manner::Honest, Has(vec![good.clone()]));
        world.hear(liar, hashes(&[lie]));
        until(|| !world.peers.reports().is_empty()).await;
        assert_eq!(world.peers.reports(), [(liar, Offence::BadAnnouncement)], "{lie:?}");
        assert_eq!(world.pool.len(), 0);
        // An honest one has it too.
        let honest = world.connect(2, Manner::Honest, Has(vec![good.clone()]));
        world.hear(honest, hashes(&[of]));
        until(|| world.pool.len() == 1).await;
        assert_eq!(world.peers.reports().len(), 1);
    }
    // Something that nobody has asked for, or the same twice.
    for answer in [vec![transaction(2)], vec![good.clone(), good.clone()]] {
        let world = World::start();
        let liar = world.connect(1, Manner::Honest, Always(answer));
        world.hear(liar, hashes(&[of]));
        until(|| !world.peers.reports().is_empty()).await;
        assert_eq!(world.peers.reports(), [(liar, Offence::BadAnnouncement)]);
    }
}

#[tokio::test]
async fn another_is_asked_when_one_is_silent_or_has_nothing() {
    for useless in [Manner::Silent, Manner::Empty] {
        let world = World::start();
        let all: Vec<_> = (0..300).map(transaction).collect();
        let told: Vec<_> = all.iter().map(announced).collect();
        let first = world.connect(1, useless, Has(Vec::new()));
        let second = world.connect(2, Manner::Honest, Has(all));
        world.hear(first, hashes(&told));
        until(|| !world.peers.asked(first).is_empty()).await;
        world.hear(second, hashes(&told));
        until(|| world.pool.len() == 300).await;
        for request in world.peers.asked(second) {
            let Request::PooledTransactions(hashes) = request else { panic!("{request:?}") };
            assert!(hashes.len() <= 256);
        }
        let reports = world.peers.reports();
        assert!(reports.iter().all(|report| *report == (first, Offence::Empty)), "{reports:?}");
        assert_eq!(world.pool.added(), 300, "each once");
    }
}

#[tokio::test]
async fn whoever_never_has_what_it_announces_is_reported() {
    let world = World::start();
    let peer = world.connect(1, Manner::Empty, Has(Vec::new()));
    for nonce in 0..4 {
        assert!(world.peers.reports().is_empty(), "a few are forgiven");
        world.hear(peer, hashes(&[announced(&transaction(nonce))]));
        until(|| world.peers.asked(peer).len() as u64 == nonce + 1).await;
    }
    until(|| world.peers.reports() == [(peer, Offence::Empty)]).await;
}

#[tokio::test]
async fn a_wrong_sidecar_costs_its_sender_and_not_the_transaction() {
    let world = World::start();
    let blob = blob_transaction(1);
    let hash = *blob.tx_hash();
    world.pool.contents.lock().verdicts.insert(hash, vec![Verdict::BadSidecar]);
    let liar = world.connect(1, Manner::Honest, Has(vec![blob.clone()]));
    let honest = world.connect(2, Manner::Slow(Duration::from_millis(1)), Has(vec![blob.clone()]));
    world.hear(liar, hashes(&[announced(&blob)]));
    world.hear(honest, hashes(&[announced(&blob)]));
    until(|| world.pool.len() == 1).await;
    assert_eq!(world.peers.reports(), [(liar, Offence::BadTransaction)]);
}

#[tokio::test]
async fn blob_transactions_that_nobody_has_asked_for_are_an_offence() {
    let world = World::start();
    let peer = world.connect(1, Manner::Honest, Has(Vec::new()));
    world.hear(peer, Gossip::Transactions(vec![transaction(1), blob_transaction(2)]));
    until(|| world.peers.reports() == [(peer, Offence::BadTransaction)]).await;
    assert_eq!(world.pool.added(), 0);
}

#[tokio::test]
async fn what_was_refused_for_good_is_not_fetched_again() {
    let world = World::start();
    let (bad, full, invalid) = (transaction(1), transaction(2), transaction(3));
    let all = [bad.clone(), full.clone(), invalid.clone()];
    {
        let mut contents = world.pool.contents.lock();
        let mut judge = |tx: &PooledTransaction, verdict| {
            contents.verdicts.insert(*tx.tx_hash(), vec![verdict]);
        };
        judge(&bad, Verdict::Refused { for_good: true });
        judge(&full, Verdict::Refused { for_good: false });
        judge(&invalid, Verdict::Invalid);
    }
    let told: Vec<_> = all.iter().map(announced).collect();
    let peer = world.connect(1, Manner::Honest, Has(all.to_vec()));
    world.hear(peer, hashes(&told));
    until(|| world.figures.refused.load(Ordering::Relaxed) == 3).await;
    until(|| world.peers.reports() == [(peer, Offence::BadTransaction)]).await;
    let second = world.connect(2, Manner::Honest, Has(all.to_vec()));
    world.hear(second, hashes(&told));
    until(|| world.pool.len() == 1).await;
    assert!(world.pool.contains(full.tx_hash()));
    assert_eq!(world.peers.asked(second), [Request::PooledTransactions(vec![*full.tx_hash()])]);
    world.hear(second, Gossip::Transactions(vec![bad, transaction(9)]));
    until(|| world.pool.len() == 2).await;
    assert_eq!(world.pool.added(), 5);
}

#[tokio::test]
async fn announcements_without_end_are_bounded() {
    let world = World::start();
    let peer = world.connect(1, Manner::Silent, Has(Vec::new()));
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
    // Others are heard all the same.
    let all: Vec<_> = (20_000..20_010).map(transaction).collect();
    let told: Vec<_> = all.iter().map(announced).collect();
    let honest = world.connect(2, Manner::Honest, Has(all));
    world.hear(honest, hashes(&told));
    until(|| world.pool.len() == 10).await;
    // With its going all that only it has had is forgotten.
    world.peers.disconnect(peer);
    until(|| get(&figures.wanted) == 0).await;
}

#[tokio::test]
async fn a_node_that_is_far_behind_asks_for_nothing() {
    let world = World::start();
    world.pool.contents.lock().is_closed = true;
    let (one, two) = (transaction(1), transaction(2));
    let peer = world.connect(1, Manner::Honest, Has(vec![one.clone()]));
    world.hear(peer, hashes(&[announced(&one)]));
    world.hear(peer, Gossip::Transactions(vec![two]));
    let most = GossipLimits::default().bytes;
    until(|| world.shares.lock()[&peer].room() == most).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(world.peers.asked(peer).is_empty());
    assert_eq!(world.pool.added(), 0);
}

/// Bytes for which a member of a mesh has room if it is told more.
const FULL: usize = 256 << 10;

/// Nodes, each of which is a peer of some others.
#[derive(Clone, Debug, Default)]
struct Mesh(Arc<Mutex<HashMap<PeerId, Member>>>);

#[derive(Debug)]
struct Member {
    neighbours: Vec<PeerId>,
    pool: Arc<MadePool>,
    tell: HashMap<PeerId, GossipShare>,
    events: broadcast::Sender<Event>,
}

#[derive(Debug)]
struct Place {
    mesh: Mesh,
    me: PeerId,
}

fn info(id: PeerId) -> Arc<PeerInfo> {
    Arc::new(PeerInfo {
        id,
        address: ([127, 0, 0, 1], 1).into(),
        local_address: ([127, 0, 0, 1], 2).into(),
        version: Version::Eth69,
        inbound: false,
        trusted: false,
        is_static: false,
        name: String::new(),
        speaks_rchk: false,
        capabilities: Vec::new(),
        range: BlockRange::default(),
    })
}

impl Network for Place {
    fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.mesh.0.lock()[&self.me].neighbours.iter().map(|id| info(*id)).collect()
    }

    fn request(&self, peer: PeerId, request: Request) -> BoxFuture<Result<Response, RequestError>> {
        let pool = self.mesh.0.lock()[&peer].pool.clone();
        Box::pin(async move {
            let Request::PooledTransactions(hashes) = request else { return Ok(request.nothing()) };
            let found = hashes.iter().filter_map(|hash| pool.pooled(hash));
            Ok(Response::PooledTransactions(found.collect()))
        })
    }

    fn send(&self, peer: PeerId, gossip: Gossip) -> bool {
        let mut members = self.mesh.0.lock();
        let member = members.get_mut(&peer).unwrap();
        let share = member.tell.get_mut(&self.me).unwrap();
        // As over a connection: what there is no room for is not told later.
        share.room() >= FULL && share.push(gossip) == 0
    }

    fn report(&self, peer: PeerId, offence: Offence) {
        panic!("{peer} is reported for {offence:?}");
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.mesh.0.lock()[&self.me].events.subscribe()
    }
}

impl Mesh {
    fn start(links: &[&[u8]]) -> Vec<Arc<MadePool>> {
        let mesh = Self::default();
        let (mut pools, mut gossipers) = (Vec::new(), Vec::new());
        for (name, neighbours) in links.iter().enumerate() {
            let me = PeerId::with_last_byte(name as u8);
            let neighbours: Vec<PeerId> =
                neighbours.iter().map(|name| PeerId::with_last_byte(*name)).collect();
            // Little: some messages find no room.
            let limits = GossipLimits { bytes: 2 * FULL, ..GossipLimits::default() };
            let (tell, heard) = heard::channel(limits);
            let tell = neighbours.iter().map(|peer| (*peer, tell.share(*peer))).collect();
            let (pool, events) = (MadePool::new(), broadcast::channel(4).0);
            let member = Member { neighbours, pool: pool.clone(), tell, events };
            mesh.0.lock().insert(me, member);
            let peers = Peers::new(Place { mesh: mesh.clone(), me });
            gossipers.push(Gossiper::new(peers, heard, pool.clone(), options()));
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
    let pools = Mesh::start(&[&[1], &[0, 2], &[1, 3], &[2]]);
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
    let pools = Mesh::start(&links);
    for nonce in 0..COUNT {
        pools[nonce as usize % 8].put(transaction(nonce));
    }
    until(|| pools.iter().all(|pool| pool.len() == COUNT as usize)).await;
}
