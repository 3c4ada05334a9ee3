//! Peers that work, are gone, slow, behind, or lie: over HTTP, with proofs of one number for each
//! of four shards.

use super::{
    GatherError, NameResolver, PartRequest, PeerUrl, ProofAssembler, ProofPeers, ProofPeersConfig,
    peer::ReplicaStanding, system_resolver,
};
use crate::RpcResult;
use alloy_primitives::{Address, B256, Bytes};
use parking_lot::Mutex;
use retrie_light_client::AccountReads;
use retrie_sources::testkit::{HttpServer, ScriptedReply};
use retrie_state::{ProofError, ProofHole};
use retrie_telemetry::Metrics;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The true number of each shard. A part has zero in its holes.
const TRUTH: [u8; 4] = [11, 22, 33, 44];
/// Long enough for the slowest machine; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);
const HOLE: &str = "number";

/// A node of shard 0.
struct TestProofPart;

impl TestProofPart {
    /// The parts combined with this node's own.
    fn merged(others: &[Bytes]) -> Result<[u8; 4], ProofError> {
        const ODD: ProofError =
            ProofError::Malformed { what: "its parts belong to different proofs" };
        let mut whole = [TRUTH[0], 0, 0, 0];
        for part in others {
            let part: [u8; 4] = part[..].try_into().map_err(|_| ODD)?;
            for (mine, theirs) in whole.iter_mut().zip(part) {
                match (*mine, theirs) {
                    (_, 0) => {}
                    (0, theirs) => *mine = theirs,
                    (mine, theirs) if mine == theirs => {}
                    _ => return Err(ODD),
                }
            }
        }
        Ok(whole)
    }
}

impl ProofAssembler for TestProofPart {
    fn holes(&self, others: &[Bytes]) -> Result<Vec<ProofHole>, ProofError> {
        let holes = (0..).zip(Self::merged(others)?).filter(|(_, number)| *number == 0);
        Ok(holes.map(|(number, _)| ProofHole { what: HOLE, number }).collect())
    }

    fn fills(&self, shard: &str, hole: &ProofHole) -> bool {
        assert_eq!(hole.what, HOLE);
        shard == "all" || shard == format!("{}/4", hole.number)
    }

    fn finish(&self, others: &[Bytes]) -> Result<Bytes, ProofError> {
        let whole = Self::merged(others)?;
        if whole == TRUTH { Ok(whole.into()) } else { Err(ProofError::RootMismatch) }
    }

    fn check(&self, part: &Bytes) -> RpcResult<Result<(), ProofError>> {
        let is_true = part.iter().zip(TRUTH).all(|(theirs, truth)| [0, truth].contains(theirs));
        Ok(if is_true { Ok(()) } else { Err(ProofError::RootMismatch) })
    }
}

/// How a mock peer responds.
#[derive(Clone, Copy, PartialEq)]
enum MockBehavior {
    Right,
    /// After this delay.
    Slow(Duration),
    /// A wrong number.
    Lying,
    /// Bytes that are no part.
    Babbling,
    /// It lacks the block.
    Behind,
    /// Its part has a hole in its own shard.
    Lacking,
    /// No response at all.
    Gone,
    /// No response to probes.
    Mute,
    /// Healthy by its probes, but it fails to prove.
    Failing,
}

/// A peer of one shard, whose behaviour can change.
struct MockPeer {
    server: HttpServer,
    mood: Arc<Mutex<MockBehavior>>,
    head: Arc<AtomicU64>,
}

impl MockPeer {
    fn new(shard: usize, mood: MockBehavior) -> Self {
        let (shared, head) = (Arc::new(Mutex::new(mood)), Arc::new(AtomicU64::new(100)));
        let (now, number) = (shared.clone(), head.clone());
        let server = HttpServer::start(move |request| {
            let mood = *now.lock();
            if mood == MockBehavior::Gone
                || (mood == MockBehavior::Mute && request.path == "/health")
            {
                return ScriptedReply::new(200, "gone").cut(0);
            }
            if request.path == "/health" {
                let shard = format!("{shard}/4");
                let head = number.load(Ordering::Relaxed);
                let health = json!({ "syncing": false, "head": head, "shard": shard });
                return ScriptedReply::new(200, health.to_string());
            }
            let call: Value = serde_json::from_slice(&request.body).unwrap();
            assert_eq!(call["method"], "state_getProofPart");
            assert_eq!(call["params"][2]["blockHash"], json!(B256::repeat_byte(7)));
            let mut part = [TRUTH[0], 0, 0, 0];
            part[shard] = TRUTH[shard];
            match mood {
                MockBehavior::Slow(time) => std::thread::sleep(time),
                MockBehavior::Lying => part[shard] ^= 1,
                MockBehavior::Babbling => part[0] ^= 1,
                MockBehavior::Lacking => part[shard] = 0,
                _ => {}
            }
            let answer = match mood {
                MockBehavior::Behind => {
                    json!({ "error": { "code": -32000, "message": "header not found" } })
                }
                MockBehavior::Failing => {
                    json!({ "error": { "code": -32603, "message": "out of order" } })
                }
                _ => json!({ "result": Bytes::from(part) }),
            };
            let mut answer = answer;
            (answer["jsonrpc"], answer["id"]) = (json!("2.0"), call["id"].clone());
            ScriptedReply::new(200, answer.to_string())
        });
        Self { server: server.unwrap(), mood: shared, head }
    }

    fn url(&self) -> PeerUrl {
        self.server.url().parse().unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.server.url().trim_start_matches("http://").parse().unwrap()
    }

    /// Number of part requests to it.
    fn asked(&self) -> usize {
        self.server.requests().iter().filter(|request| request.method == "POST").count()
    }

    fn turns(&self, mood: MockBehavior) {
        *self.mood.lock() = mood;
    }
}

/// Two replicas of each of the shards 1 to 3. `moods` lists those that do not work, by shard and
/// replica.
fn fleet(moods: &[(usize, usize, MockBehavior)]) -> Vec<[MockPeer; 2]> {
    let mood = |shard, replica| {
        let named = moods.iter().find(|(s, r, _)| (*s, *r) == (shard, replica));
        named.map_or(MockBehavior::Right, |(.., mood)| *mood)
    };
    (1..4).map(|shard| [0, 1].map(|replica| MockPeer::new(shard, mood(shard, replica)))).collect()
}

struct PeersFixture {
    peers: ProofPeers,
    metrics: Metrics,
}

impl PeersFixture {
    fn new(urls: Vec<PeerUrl>, config: ProofPeersConfig, resolver: NameResolver) -> Self {
        let metrics = Metrics::new().unwrap();
        let config = ProofPeersConfig { urls, ..config };
        let peers = ProofPeers::start(config, resolver, metrics.proofs.clone(), || 100);
        Self { peers, metrics }
    }

    /// The set of all peers of a fleet, after all were probed.
    async fn of(fleet: &[[MockPeer; 2]], config: ProofPeersConfig) -> Self {
        let urls: Vec<_> = fleet.iter().flatten().map(MockPeer::url).collect();
        let count = urls.len();
        let door = Self::new(urls, config, system_resolver());
        door.until("all are probed", |standings| {
            standings.len() == count && standings.iter().all(|(shard, _)| shard.is_some())
        })
        .await;
        door
    }

    fn standings(&self) -> Vec<(Option<String>, ReplicaStanding)> {
        let peers = self.peers.0.set.peers.read();
        peers.iter().map(|peer| (peer.shard(), peer.standing())).collect()
    }

    fn standing_of(&self, fake: &MockPeer) -> ReplicaStanding {
        let name = fake.address().to_string();
        let peers = self.peers.0.set.peers.read();
        peers.iter().find(|peer| peer.name() == name).unwrap().standing()
    }

    async fn until(
        &self,
        what: &str,
        is_so: impl Fn(&[(Option<String>, ReplicaStanding)]) -> bool,
    ) {
        let start = Instant::now();
        while !is_so(&self.standings()) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.standings());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn proves(&self) -> Result<Bytes, GatherError> {
        let block = B256::repeat_byte(7);
        let reads = vec![AccountReads { address: Address::ZERO, slots: Vec::new() }];
        let ask = PartRequest { reads, block };
        self.peers.gather(ask, Arc::new(TestProofPart)).await
    }

    async fn must_prove(&self) {
        assert_eq!(self.proves().await.unwrap()[..], TRUTH);
    }

    /// The sum of a metric over all peers.
    fn sum(&self, name: &str) -> u64 {
        let text = String::from_utf8(self.metrics.encode().unwrap()).unwrap();
        let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
    }
}

/// No hedging, and probes only at the start.
fn calm() -> ProofPeersConfig {
    ProofPeersConfig {
        hedge: Some(PATIENCE),
        timeout: PATIENCE,
        probe: 4 * PATIENCE,
        resolve: 4 * PATIENCE,
        ..ProofPeersConfig::default()
    }
}

#[tokio::test]
async fn one_node_of_each_shard_is_asked_and_the_work_is_spread() {
    let fleet = fleet(&[]);
    let door = PeersFixture::of(&fleet, calm()).await;
    for _ in 0..40 {
        door.must_prove().await;
    }
    for replicas in &fleet {
        let asked = [0, 1].map(|replica| replicas[replica].asked());
        assert_eq!(asked.iter().sum::<usize>(), 40, "{asked:?}");
        assert!(asked.iter().all(|asked| *asked > 0), "{asked:?}");
    }
    assert_eq!(door.sum("retrie_proof_gathered_total"), 40);
    assert_eq!(door.sum("retrie_proof_peer_requests_total"), 120);
    assert_eq!(door.sum("retrie_proof_peer_request_seconds_count"), 120);
    assert_eq!(door.sum("retrie_proof_peer_healthy"), 6);
}

#[tokio::test]
async fn who_is_gone_is_not_asked_until_it_is_back() {
    let fleet = fleet(&[]);
    let door = PeersFixture::of(&fleet, calm()).await;
    fleet[0][0].turns(MockBehavior::Gone);
    for _ in 0..20 {
        door.must_prove().await;
    }
    // At most the request that found out.
    assert!(fleet[0][0].asked() <= 1, "{}", fleet[0][0].asked());
    fleet[0][0].turns(MockBehavior::Right);
    door.until("it is found again", |standings| {
        standings.iter().all(|(_, standing)| *standing == ReplicaStanding::Healthy)
    })
    .await;
    // The other replica is gone at once, before a probe notices.
    fleet[0][1].turns(MockBehavior::Gone);
    for _ in 0..5 {
        door.must_prove().await;
    }
    assert!(fleet[0][0].asked() >= 5);
}

#[tokio::test]
async fn who_lags_or_cannot_answer_is_not_asked_while_others_can() {
    let fleet = fleet(&[(2, 0, MockBehavior::Failing)]);
    fleet[0][1].head.store(90, Ordering::Relaxed);
    let door = PeersFixture::of(&fleet, calm()).await;
    assert_eq!(door.standing_of(&fleet[0][1]), ReplicaStanding::Doubtful);
    for _ in 0..20 {
        door.must_prove().await;
    }
    assert_eq!(fleet[0][1].asked(), 0);
    // It rests after its first failure.
    assert!(fleet[1][0].asked() <= 2, "{}", fleet[1][0].asked());
    // A lagging peer is better than none.
    fleet[0][0].turns(MockBehavior::Gone);
    door.must_prove().await;
    assert_eq!(fleet[0][1].asked(), 1);
}

/// As after a start of all nodes: a peer's shard shows only in its parts.
#[tokio::test]
async fn who_has_not_said_what_it_keeps_is_asked_all_the_same() {
    let all = [1, 2, 3].map(|shard| [0, 1].map(|replica| (shard, replica, MockBehavior::Mute)));
    let fleet = fleet(all.as_flattened());
    let urls = fleet.iter().flatten().map(MockPeer::url).collect();
    let door = PeersFixture::new(urls, calm(), system_resolver());
    door.until("all are known", |standings| standings.len() == 6).await;
    for _ in 0..5 {
        door.must_prove().await;
    }
    assert!(door.standings().iter().all(|(shard, _)| shard.is_none()));
    assert_eq!(door.sum("retrie_proof_peer_set_aside_total"), 0);
    // Now one peer responds to probes.
    fleet[1][0].turns(MockBehavior::Right);
    door.until("one is probed", |standings| standings.iter().any(|(shard, _)| shard.is_some()))
        .await;
    for _ in 0..5 {
        door.must_prove().await;
    }
}

#[tokio::test]
async fn a_second_replica_is_asked_when_one_is_slow() {
    let slow = MockBehavior::Slow(Duration::from_secs(2));
    let fleet = fleet(&[(1, 0, slow)]);
    let hedge = Some(Duration::from_millis(20));
    let door = PeersFixture::of(&fleet, ProofPeersConfig { hedge, ..calm() }).await;
    let start = Instant::now();
    for _ in 0..6 {
        door.must_prove().await;
    }
    let took = start.elapsed();
    assert!(took < Duration::from_millis(1900), "{took:?}");
    let hedges = door.sum("retrie_proof_peer_hedges_total");
    assert!((1..=18).contains(&hedges), "{hedges}");
    assert_eq!(door.sum("retrie_proof_peer_set_aside_total"), 0);
}

#[tokio::test]
async fn who_lies_costs_time_and_is_set_aside() {
    for mood in [MockBehavior::Lying, MockBehavior::Babbling] {
        let fleet = fleet(&[(1, 0, mood), (2, 1, mood), (3, 0, mood)]);
        let door = PeersFixture::of(&fleet, calm()).await;
        for _ in 0..30 {
            door.must_prove().await;
        }
        for liar in [&fleet[0][0], &fleet[1][1], &fleet[2][0]] {
            assert_eq!(liar.asked(), 1);
            assert_eq!(door.standing_of(liar), ReplicaStanding::SetAside);
        }
        for honest in [&fleet[0][1], &fleet[1][0], &fleet[2][1]] {
            assert_eq!(door.standing_of(honest), ReplicaStanding::Healthy);
        }
        assert_eq!(door.sum("retrie_proof_peer_set_aside_total"), 3);
        assert_eq!(door.sum("retrie_proof_peer_healthy"), 3);
    }
}

#[tokio::test]
async fn who_was_set_aside_gets_another_chance_and_then_waits_longer() {
    let fleet =
        fleet(&[(1, 0, MockBehavior::Lying), (1, 1, MockBehavior::Slow(Duration::from_millis(1)))]);
    let set_aside = Duration::from_millis(100);
    let door = PeersFixture::of(&fleet, ProofPeersConfig { set_aside, ..calm() }).await;
    let liar = &fleet[0][0];
    let start = Instant::now();
    while liar.asked() < 3 {
        assert!(start.elapsed() < PATIENCE);
        door.must_prove().await;
    }
    // Set aside for 100 ms, then for 200 ms.
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
}

#[tokio::test]
async fn who_is_behind_is_asked_again_and_not_blamed() {
    let fleet = fleet(&[(1, 0, MockBehavior::Behind), (1, 1, MockBehavior::Behind)]);
    let door = PeersFixture::of(&fleet, calm()).await;
    let catches_up = async {
        tokio::time::sleep(Duration::from_millis(120)).await;
        fleet[0][1].turns(MockBehavior::Right);
    };
    tokio::join!(door.must_prove(), catches_up);
    assert!(fleet[0][0].asked() > 1);
    assert!(door.standings().iter().all(|(_, standing)| *standing == ReplicaStanding::Healthy));
    assert_eq!(door.sum("retrie_proof_peer_set_aside_total"), 0);
}

#[tokio::test]
async fn a_replica_with_holes_is_passed_over() {
    let fleet = fleet(&[(3, 0, MockBehavior::Lacking)]);
    let door = PeersFixture::of(&fleet, calm()).await;
    for _ in 0..10 {
        door.must_prove().await;
    }
    assert_eq!(fleet[2][1].asked(), 10);
    assert_eq!(door.sum("retrie_proof_peer_set_aside_total"), 0);
}

#[tokio::test]
async fn a_name_stands_for_all_its_addresses_and_follows_them() {
    let fleet = fleet(&[]);
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let all: Vec<_> = fleet.iter().flatten().map(MockPeer::address).collect();
    *addresses.lock() = all[..4].to_vec();
    let known = addresses.clone();
    let resolver: NameResolver = Arc::new(move |host, port| {
        assert_eq!((host, port), ("proofs.svc", 8545));
        Ok(known.lock().clone())
    });
    let resolve = Duration::from_millis(20);
    let timeout = Duration::from_millis(200);
    let config = ProofPeersConfig { resolve, timeout, ..calm() };
    let url = "http://proofs.svc:8545".parse().unwrap();
    let door = PeersFixture::new(vec![url], config, resolver);
    let probed = |count| {
        move |standings: &[(Option<String>, ReplicaStanding)]| {
            standings.len() == count && standings.iter().all(|(shard, _)| shard.is_some())
        }
    };
    door.until("four addresses", probed(4)).await;
    // No peer has shard 3 yet.
    let error = door.proves().await.unwrap_err().to_string();
    assert!(error.contains("no peer keeps") && error.contains("number 3"), "{error}");
    *addresses.lock() = all[2..].to_vec();
    door.until("shard 3", |standings| standings.iter().any(|(s, _)| s.as_deref() == Some("3/4")))
        .await;
    let error = door.proves().await.unwrap_err().to_string();
    assert!(error.contains("number 1"), "{error}");
    *addresses.lock() = all;
    door.until("six addresses", probed(6)).await;
    door.must_prove().await;
    assert_eq!(door.sum("retrie_proof_not_gathered_total"), 2);
    // An empty response of the name server removes no peer.
    addresses.lock().clear();
    tokio::time::sleep(Duration::from_millis(100)).await;
    door.must_prove().await;
}

#[tokio::test]
async fn a_shard_without_any_node_is_named() {
    let fleet = fleet(&[]);
    let timeout = Duration::from_millis(400);
    let door = PeersFixture::of(&fleet, ProofPeersConfig { timeout, ..calm() }).await;
    fleet[1].iter().for_each(|fake| fake.turns(MockBehavior::Gone));
    let start = Instant::now();
    let error = door.proves().await.unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(error.contains("shard 2/4"), "{error}");
    for fake in &fleet[1] {
        assert!(error.contains(&fake.address().to_string()), "{error}");
    }
    assert!(!error.contains(&fleet[0][0].address().to_string()), "{error}");
}

#[tokio::test]
async fn what_is_slow_everywhere_ends_in_time() {
    let slow = MockBehavior::Slow(Duration::from_millis(1500));
    let fleet = fleet(&[(1, 0, slow), (1, 1, slow)]);
    let timeout = Duration::from_millis(300);
    let door = PeersFixture::of(&fleet, ProofPeersConfig { timeout, ..calm() }).await;
    let start = Instant::now();
    let error = door.proves().await.unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_millis(1400), "{:?}", start.elapsed());
    assert!(error.contains("shard 1/4"), "{error}");
}
