use super::*;
use crate::{
    discovery::{Bootnode, Discovery, DiscoveryConfig, ForkTracker},
    handle::Candidate,
};
use alloy_primitives::keccak256;
use retrie_chainspec::ChainSpec;
use tokio::{runtime::Handle, sync::watch};

/// A node with version 4 alone, or with both versions on one port.
struct TestNode {
    discovery: Discovery,
    candidates: mpsc::Receiver<Candidate>,
    want: watch::Sender<bool>,
    forks: Arc<ForkTracker>,
}

/// Longer than any answer on one machine takes. With it, nothing happens by a timer.
const LONG: Duration = Duration::from_secs(20);

fn quiet() -> DiscoveryTiming {
    let pace = DiscoveryTiming::default();
    DiscoveryTiming { reply: LONG, check_new: LONG, check: LONG, ..pace }
}

impl TestNode {
    fn start(pace: DiscoveryTiming, v5: bool, bootnodes: Vec<Bootnode>) -> Self {
        let forks = Arc::new(ForkTracker::new(&ChainSpec::mainnet(), 0, 0));
        let (want, wants) = watch::channel(false);
        let config = DiscoveryConfig {
            key: NodeKey::random(),
            listen: ([127, 0, 0, 1], 0).into(),
            tcp_port: 30303,
            nat: NatMode::None,
            bootnodes,
            forks: Arc::clone(&forks),
            nodes_file: None,
            v4: true,
            v5,
            dns: vec![],
            dns_server: None,
            want: wants,
            pace,
        };
        let (discovery, candidates) = Discovery::start(config, &Handle::current()).unwrap();
        Self { discovery, candidates, want, forks }
    }

    fn table(&self) -> Vec<Enode> {
        self.discovery.v4.as_ref().unwrap().live_nodes()
    }
}

/// A remote node that sends packets by hand.
struct ManualNode {
    key: NodeKey,
    socket: UdpSocket,
    node: Enode,
}

impl ManualNode {
    async fn new(node: &TestNode) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let asker = Self { key: NodeKey::random(), socket, node: node.discovery.local_enode() };
        asker.met().await;
        asker
    }

    fn enode(&self) -> Enode {
        let address = self.socket.local_addr().unwrap();
        Enode { id: self.key.id(), ip: address.ip(), tcp: 7, udp: address.port() }
    }

    async fn send_bytes(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.node.udp_address()).await.unwrap();
    }

    async fn send(&self, packet: &Discv4Packet) -> (B256, usize) {
        let (bytes, hash) = packet.encode(&self.key);
        self.send_bytes(&bytes).await;
        (hash, bytes.len())
    }

    async fn read(&self) -> (Discv4Packet, B256, usize) {
        self.read_within(LONG).await.unwrap()
    }

    async fn read_within(&self, wait: Duration) -> Option<(Discv4Packet, B256, usize)> {
        let mut buffer = [0; 2048];
        let (length, from) = timeout(wait, self.socket.recv_from(&mut buffer)).await.ok()?.unwrap();
        assert_eq!(from, self.node.udp_address());
        assert!(length <= MAX_PACKET_BYTES);
        let (packet, id, hash) = Discv4Packet::decode(&buffer[..length]).unwrap();
        assert_eq!(id, self.node.id);
        Some((packet, hash, length))
    }

    fn a_ping(&self) -> Discv4Packet {
        // Another sequence number each time, so that no two pings are the same.
        let from = NodeEndpoint::new(self.enode().udp_address(), 7);
        let to = NodeEndpoint::new(self.node.udp_address(), 0);
        Discv4Packet::Ping { from, to, expiration: expiration(), seq: Some(rand::random()) }
    }

    /// All packets until the node answers a ping. It answers that after all earlier packets.
    async fn all_until_pong(&self) -> Vec<(Discv4Packet, B256, usize)> {
        let (ping, _) = self.send(&self.a_ping()).await;
        let mut all = Vec::new();
        loop {
            match self.read().await {
                (Discv4Packet::Pong { ping: of, .. }, ..) if of == ping => return all,
                other => all.push(other),
            }
        }
    }

    async fn pong(&self, ping: B256) {
        let to = NodeEndpoint::new(self.node.udp_address(), 0);
        self.send(&Discv4Packet::Pong { to, ping, expiration: expiration(), seq: None }).await;
    }

    /// Proves the endpoint.
    async fn bond(&self) {
        let (ours, _) = self.send(&self.a_ping()).await;
        let (mut pinged, mut ponged) = (false, false);
        while !(pinged && ponged) {
            match self.read().await {
                (Discv4Packet::Ping { .. }, hash, _) => {
                    self.pong(hash).await;
                    pinged = true;
                }
                (Discv4Packet::Pong { ping, to, .. }, ..) => {
                    assert_eq!(ping, ours);
                    let own = self.enode();
                    assert_eq!((to.ip, to.udp), (Some(own.ip), own.udp));
                    ponged = true;
                }
                (other, ..) => panic!("{other:?}"),
            }
        }
        assert_eq!(self.all_until_pong().await, vec![]);
    }

    /// Waits until the node listens. Packets are lost while version 5 starts, so another key pings
    /// until it gets an answer.
    async fn met(&self) {
        let somebody = Self {
            key: NodeKey::random(),
            socket: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            node: self.node,
        };
        for _ in 0..100 {
            somebody.send(&somebody.a_ping()).await;
            if somebody.read_within(LONG / 100).await.is_some() {
                return;
            }
        }
        panic!("the node does not answer");
    }

    fn find(&self, target: PeerId) -> Discv4Packet {
        Discv4Packet::FindNode { target, expiration: expiration() }
    }

    async fn neighbours(&self, target: PeerId) -> Vec<Vec<Enode>> {
        self.send(&self.find(target)).await;
        let all = self.all_until_pong().await.into_iter();
        all.map(|(packet, ..)| match packet {
            Discv4Packet::Neighbours { nodes, .. } => nodes,
            other => panic!("{other:?}"),
        })
        .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_proven_where_he_is_gets_nothing_larger_than_his_question() {
    for v5 in [false, true] {
        let node = TestNode::start(quiet(), v5, vec![]);
        let asker = ManualNode::new(&node).await;
        let mut pings = 0;
        for question in [
            asker.find(asker.key.id()),
            Discv4Packet::EnrRequest { expiration: expiration() },
            Discv4Packet::Neighbours { nodes: vec![asker.enode(); 12], expiration: expiration() },
            Discv4Packet::Pong {
                to: NodeEndpoint::new(asker.node.udp_address(), 0),
                ping: B256::ZERO,
                expiration: expiration(),
                seq: None,
            },
        ] {
            asker.send(&question).await;
            let answers = asker.all_until_pong().await;
            // The node pings a node that pings it, once; `all_until_pong` pings it.
            pings += answers.len();
            assert!(answers.iter().all(|(packet, ..)| matches!(packet, Discv4Packet::Ping { .. })));
        }
        assert!(pings <= 1);
        let (mut asked, mut got) = (0, 0);
        for _ in 0..50 {
            let (ping, length) = asker.send(&asker.a_ping()).await;
            asked += length;
            loop {
                let (packet, _, length) = asker.read().await;
                got += length;
                match packet {
                    Discv4Packet::Pong { ping: of, .. } => {
                        assert_eq!(of, ping);
                        break;
                    }
                    Discv4Packet::Ping { .. } => pings += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(pings, 1, "it is pinged once, while it does not answer");
        // A pong has the hash of the ping: it is at most a fifth longer.
        assert!(got * 5 <= asked * 6 + 5 * 200, "{got} bytes for {asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_proven_it_gets_nodes_and_the_record() {
    let node = TestNode::start(quiet(), false, vec![]);
    let asker = ManualNode::new(&node).await;
    asker.bond().await;
    // The only known node is the asker itself.
    assert_eq!(asker.neighbours(PeerId::ZERO).await, vec![vec![asker.enode()]]);
    let (request, _) = asker.send(&Discv4Packet::EnrRequest { expiration: expiration() }).await;
    let (Discv4Packet::EnrResponse { request: of, record }, ..) = asker.read().await else {
        panic!("a record")
    };
    assert_eq!((of, *record), (request, node.discovery.local_record()));
    // The same key at another address needs a new proof; so does another key at this address.
    let other = ManualNode::new(&node).await;
    other.send(&other.find(PeerId::ZERO)).await;
    let answers = other.all_until_pong().await;
    assert!(answers.iter().all(|(packet, ..)| matches!(packet, Discv4Packet::Ping { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pong_that_answers_another_ping_proves_nothing() {
    let node = TestNode::start(quiet(), false, vec![]);
    let (asker, thief) = (ManualNode::new(&node).await, ManualNode::new(&node).await);
    asker.send(&asker.a_ping()).await;
    asker.pong(B256::ZERO).await;
    let ping = loop {
        match asker.read().await {
            (Discv4Packet::Ping { .. }, hash, _) => break hash,
            (Discv4Packet::Pong { .. }, ..) => {}
            other => panic!("{other:?}"),
        }
    };
    asker.send(&asker.find(PeerId::ZERO)).await;
    let answers = asker.all_until_pong().await;
    assert!(answers.iter().all(|(packet, ..)| matches!(packet, Discv4Packet::Pong { .. })));
    // An answer by another key proves nothing either.
    thief.pong(ping).await;
    assert_eq!(thief.all_until_pong().await.len() + node.table().len(), 0);
    asker.send(&asker.find(PeerId::ZERO)).await;
    assert_eq!(asker.all_until_pong().await, vec![]);
    asker.pong(ping).await;
    assert_eq!(asker.neighbours(PeerId::ZERO).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_expired_packets_and_garbage_are_as_if_they_had_not_come() {
    for v5 in [false, true] {
        let node = TestNode::start(quiet(), v5, vec![]);
        let asker = ManualNode::new(&node).await;
        asker.bond().await;
        let (good, _) = asker.find(PeerId::ZERO).encode(&asker.key);
        for at in [0, 31, 32, 95, 96, 97, 98, good.len() - 1] {
            let mut forged = good.clone();
            forged[at] ^= 1;
            asker.send_bytes(&forged).await;
            let hash = keccak256(&forged[32..]);
            forged[..32].copy_from_slice(hash.as_slice());
            // With a correct hash, the packet is signed by a key without a proof.
            if at >= 32 {
                asker.send_bytes(&forged).await;
            }
        }
        asker.send(&Discv4Packet::FindNode { target: PeerId::ZERO, expiration: 1 }).await;
        asker.send(&Discv4Packet::EnrRequest { expiration: u64::MAX }).await;
        for length in [0, 1, 62, 63, 97, 98, 1280, 1281, 1500] {
            asker.send_bytes(&vec![0x5a; length]).await;
        }
        assert_eq!(asker.all_until_pong().await, vec![]);
        assert_eq!(asker.neighbours(PeerId::ZERO).await.len(), 1, "and goes on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_nobody_has_asked_for_are_not_told_to_others() {
    let node = TestNode::start(quiet(), false, vec![]);
    let (asker, fake) = (ManualNode::new(&node).await, ManualNode::new(&node).await);
    asker.bond().await;
    asker
        .send(&Discv4Packet::Neighbours { nodes: vec![fake.enode()], expiration: expiration() })
        .await;
    assert_eq!(asker.neighbours(fake.key.id()).await, vec![vec![asker.enode()]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_nodes_come_in_two_packets() {
    let node = TestNode::start(quiet(), false, vec![]);
    let mut askers = Vec::new();
    for _ in 0..24 {
        let asker = ManualNode::new(&node).await;
        asker.bond().await;
        askers.push(asker);
    }
    let target = askers[3].key.id();
    let packets = askers[0].neighbours(target).await;
    let sizes: Vec<_> = packets.iter().map(Vec::len).collect();
    let live = node.table();
    assert_eq!(sizes.iter().sum::<usize>(), live.len().min(16));
    assert!(sizes[0] == 12 && sizes.len() == 2, "{sizes:?}");
    let mut nearest = live;
    nearest.sort_by_key(|node| node.hash() ^ keccak256(target));
    assert_eq!(packets.concat(), nearest[..16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_looked_for_while_nobody_wants_candidates() {
    let mut node = TestNode::start(
        DiscoveryTiming { lookup: Duration::ZERO, reply: Duration::from_secs(1), ..quiet() },
        false,
        vec![],
    );
    let asker = ManualNode::new(&node).await;
    asker.bond().await;
    assert_eq!(asker.all_until_pong().await, vec![]);
    node.want.send_replace(true);
    // It is asked for its record, too.
    while let (packet, ..) = asker.read().await
        && !matches!(packet, Discv4Packet::FindNode { .. })
    {
        assert!(matches!(packet, Discv4Packet::EnrRequest { .. }), "{packet:?}");
    }
    // One of two others is on our chain. The node learns that from their own records.
    let (friend, stranger) = (ManualNode::new(&node).await, ManualNode::new(&node).await);
    asker
        .send(&Discv4Packet::Neighbours {
            nodes: vec![friend.enode(), stranger.enode()],
            expiration: expiration(),
        })
        .await;
    let ours = node.forks.current();
    let other = ForkTracker::new(&ChainSpec::sepolia(), 0, 0).current();
    let serve = |asker: ManualNode, fork| async move {
        let udp = asker.enode().udp_address();
        let record = LocalEnr::new(&asker.key, None, 7, udp, fork).unwrap();
        loop {
            match asker.read().await {
                (Discv4Packet::Ping { .. }, hash, _) => {
                    asker.pong(hash).await;
                    asker.send(&asker.a_ping()).await;
                }
                (Discv4Packet::EnrRequest { .. }, request, _) => {
                    let record = Box::new(record.get());
                    asker.send(&Discv4Packet::EnrResponse { request, record }).await;
                }
                _ => {}
            }
        }
    };
    let (friend_enode, mut tasks) = (friend.enode(), tokio::task::JoinSet::new());
    tasks.spawn(serve(stranger, other));
    tasks.spawn(serve(friend, ours));
    let candidate = timeout(LONG, node.candidates.recv()).await.unwrap().unwrap();
    assert_eq!(candidate.id, friend_enode.id);
    assert_eq!((candidate.ip, candidate.udp_port), (friend_enode.ip, friend_enode.udp));
    assert_eq!((candidate.tcp_port, candidate.fork_id), (7, Some(ours)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_follows_the_head_past_a_fork() {
    let node = TestNode::start(quiet(), false, vec![]);
    let asker = ManualNode::new(&node).await;
    asker.bond().await;
    let before = node.discovery.local_record();
    assert_eq!(record::fork_id(&before), Some(node.forks.current()));
    node.forks.set_head(1_149_999, 0);
    node.forks.set_head(1_150_000, 0);
    let homestead = node.forks.current();
    assert_ne!(record::fork_id(&before), Some(homestead));
    let mut changes = node.discovery.local.watch();
    changes.wait_for(|record| record::fork_id(record) == Some(homestead)).await.unwrap();
    asker.send(&Discv4Packet::EnrRequest { expiration: expiration() }).await;
    let (Discv4Packet::EnrResponse { record, .. }, ..) = asker.read().await else {
        panic!("a record")
    };
    assert_eq!((record.seq(), record::fork_id(&record)), (before.seq() + 1, Some(homestead)));
}
