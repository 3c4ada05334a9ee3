//! Connections between nodes over TCP, and with peers that misbehave.

use crate::manual_peer::{ManualPeer, id_of};

use alloy_eip2124::{ForkHash, ForkId};
use alloy_eips::BlockHashOrNumber;
use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex};
use retrie_chainspec::{CellMask, primitives::Header};
use retrie_p2p::{
    discovery::Enode,
    eth::{
        self, EthMessage, EthRequest, EthResponse, GetBlockHeaders, NewPooledTransactionHashes,
        TxGossip,
    },
    handle::{
        EthRequestHandler, PeerEvent, PeerInfo, PeerOffence, RequestError, StateAudience,
        StateRequestHandler,
    },
    peers::{NetworkConfig, NetworkManager},
    rchk,
    rlpx::{self, BASE_MESSAGES, DisconnectReason},
    session::SessionTiming,
    testkit::local::{self, config, enode, eventually, node, range},
};
use secp256k1::SecretKey;
use std::{
    net::{Ipv4Addr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::net::TcpListener;

fn headers(limit: u64) -> EthRequest {
    let start = BlockHashOrNumber::Number(0);
    EthRequest::Headers(GetBlockHeaders { start, limit, skip: 0, reverse: false })
}

fn hashes(count: usize) -> TxGossip {
    TxGossip::Hashes(NewPooledTransactionHashes {
        types: vec![2; count],
        sizes: vec![100; count],
        hashes: vec![B256::repeat_byte(9); count],
        ..Default::default()
    })
}

/// Waits until the node has read the peer's status. The node has sent its own status before.
fn there(manager: &NetworkManager, mouth: &ManualPeer) {
    let id = id_of(&mouth.key);
    eventually("the peer", || manager.peers().connected().iter().any(|peer| peer.id == id));
}

fn peers(manager: &NetworkManager) -> usize {
    manager.peers().connected().len()
}

#[test]
fn two_nodes_find_a_way_to_each_other_and_talk() {
    let mut one = node(config());
    let two = node(NetworkConfig { static_nodes: vec![enode(&one.manager)], ..config() });
    let (a, b) = (one.manager.peers(), two.manager.peers());
    eventually("a connection", || peers(&one.manager) == 1 && peers(&two.manager) == 1);
    let [seen_by_a, seen_by_b] = [a.connected(), b.connected()].map(|mut all| all.pop().unwrap());
    assert!(seen_by_a.inbound && !seen_by_b.inbound && seen_by_b.is_static);
    assert_eq!(seen_by_b.version, eth::EthVersion::Eth72);
    assert_eq!(seen_by_b.name, "test/v1");
    assert_eq!(seen_by_b.range, range(10));
    assert_eq!((one.manager.slots(), two.manager.slots()), ((1, 0), (0, 0)));

    let runtime = two.manager.runtime().clone();
    let id = one.manager.id();
    let answer = runtime.block_on(b.request(id, headers(3))).unwrap();
    let EthResponse::Headers(three) = answer else { panic!("{answer:?}") };
    assert_eq!(three.iter().map(|header| header.number).collect::<Vec<_>>(), [0, 1, 2]);
    let nothing = runtime.block_on(b.request(id, EthRequest::Bodies(vec![B256::ZERO]))).unwrap();
    assert_eq!(nothing, EthResponse::Bodies(vec![]));
    let mask = CellMask::BLOB;
    let cells = EthRequest::Cells { hashes: vec![B256::ZERO], mask };
    let nothing = runtime.block_on(b.request(id, cells)).unwrap();
    assert_eq!(nothing, EthResponse::Cells { cells: vec![], mask });

    assert!(b.send(id, hashes(2)));
    let heard = runtime.block_on(one.heard.recv()).unwrap();
    assert_eq!((heard.peer, heard.gossip), (two.manager.id(), hashes(2)));

    let mut events = a.events();
    two.manager.set_range(range(41), 0);
    two.manager.set_range(range(42), 0);
    let event = runtime.block_on(events.recv()).unwrap();
    assert!(matches!(event, PeerEvent::RangeUpdate(_, told) if told == range(42)), "{event:?}");
    two.manager.disconnect_all();
    let event = runtime.block_on(events.recv()).unwrap();
    let PeerEvent::Disconnected(ended) = event else { panic!("{event:?}") };
    assert_eq!((ended.info.id, ended.info.inbound), (two.manager.id(), true));
    assert!(ended.cause.contains("client quitting"), "{}", ended.cause);
}

#[test]
fn a_connection_that_was_lost_is_made_again() {
    let one = node(config());
    let two = node(NetworkConfig { static_nodes: vec![enode(&one.manager)], ..config() });
    eventually("a connection", || peers(&one.manager) == 1);
    let mut events = one.manager.peers().events();
    assert!(one.manager.remove_peer(&two.manager.id()));
    let runtime = two.manager.runtime();
    assert!(matches!(runtime.block_on(events.recv()).unwrap(), PeerEvent::Disconnected(_)));
    assert!(matches!(runtime.block_on(events.recv()).unwrap(), PeerEvent::Connected(_)));
    // A removed static node is not dialled any more.
    assert!(two.manager.remove_peer(&one.manager.id()));
    assert!(matches!(runtime.block_on(events.recv()).unwrap(), PeerEvent::Disconnected(_)));
    assert!(!two.manager.remove_peer(&one.manager.id()));
}

#[test]
fn who_is_removed_while_it_is_dialled_does_not_stay() {
    let one = node(config());
    let mut events = one.manager.peers().events();
    let runtime = one.manager.runtime();
    let target = one.manager.local_address().unwrap();
    let way = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let enode = Enode { tcp: way.local_addr().unwrap().port(), ..enode(&one.manager) };
    let two = node(NetworkConfig { static_nodes: vec![enode], ..config() });
    runtime.block_on(async {
        let (mut dialled, _) = way.accept().await.unwrap();
        assert!(two.manager.remove_peer(&one.manager.id()));
        let mut target = tokio::net::TcpStream::connect(target).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut dialled, &mut target).await });
        assert!(matches!(events.recv().await.unwrap(), PeerEvent::Connected(_)));
        let ended = tokio::time::timeout(Duration::from_secs(20), events.recv()).await;
        assert!(matches!(ended, Ok(Ok(PeerEvent::Disconnected(_)))), "{ended:?}");
    });
}

#[tokio::test]
async fn those_of_other_chains_are_told_that_they_are_of_no_use() {
    let one = node(config());
    let other_fork = ForkId { hash: ForkHash([9; 4]), next: 0 };
    let changes: [fn(&mut eth::Status); 2] =
        [|status| status.network = 1, |status| status.genesis = B256::ZERO];
    for change in changes {
        let mut mouth = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
        mouth.hello(&[69, 71]).await;
        mouth.status(change).await;
        assert_eq!(mouth.end().await, DisconnectReason::UselessPeer);
    }
    let mut mouth = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
    mouth.hello(&[71]).await;
    mouth.status(|status| status.fork_id = other_fork).await;
    assert_eq!(mouth.end().await, DisconnectReason::UselessPeer);
    // A node without a common protocol.
    let mut mouth = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
    mouth.hello(&[68, 73]).await;
    assert_eq!(mouth.end().await, DisconnectReason::UselessPeer);
    assert_eq!(peers(&one.manager), 0);
}

#[tokio::test]
async fn slots_are_kept_to_and_the_trusted_need_none() {
    let trusted = rlpx::random_key();
    let one = node(NetworkConfig { max_inbound: 1, ..config() });
    let first = rlpx::random_key();
    let mut there = ManualPeer::peer(&one.manager, first).await;
    let mut refused = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
    assert_eq!(refused.end().await, DisconnectReason::TooManyPeers);
    let mut again = ManualPeer::dial(&one.manager, first).await;
    assert_eq!(again.end().await, DisconnectReason::AlreadyConnected);
    let mut nobody = enode(&one.manager);
    (nobody.id, nobody.tcp) = (id_of(&trusted), 1);
    one.manager.add_trusted(nobody);
    let _trusted = ManualPeer::peer(&one.manager, trusted).await;
    eventually("two peers", || peers(&one.manager) == 2);
    assert_eq!(one.manager.slots(), (1, 0));
    there.say(EthMessage::Request(7, headers(1))).await;
    assert!(matches!(there.hear().await, EthMessage::Response(7, _)), "nobody else was harmed");
}

#[tokio::test]
async fn a_node_does_not_connect_with_itself() {
    let config = config();
    let key = config.key;
    let one = node(config);
    let mut itself = ManualPeer::dial(&one.manager, key).await;
    assert_eq!(itself.end().await, DisconnectReason::ConnectedToSelf);
}

/// Invalid messages of a peer, and the disconnect reason that each one causes.
#[tokio::test]
async fn breaches_end_the_connection_with_their_reason() {
    let one = node(config());
    let breach: DisconnectReason = DisconnectReason::ProtocolBreach;
    let eth_breach = DisconnectReason::SubprotocolError;
    let status = BASE_MESSAGES + eth::id::STATUS;
    let range_update = BASE_MESSAGES + eth::id::BLOCK_RANGE_UPDATE;
    let hashes = BASE_MESSAGES + eth::id::NEW_POOLED_TRANSACTION_HASHES;
    let answer =
        EthMessage::Response(5, EthResponse::Headers(vec![])).encode(eth::EthVersion::Eth71);
    let (answer_id, answer) = answer.unwrap();
    for (id, payload, reason) in [
        (0x05, vec![0xc0], breach),
        (rlpx::id::HELLO, vec![0xc0], breach),
        (rlpx::id::PING, vec![0; 300], breach),
        (status, vec![0; 300], breach),
        (status, vec![0xc0], eth_breach),
        (range_update, vec![0xc2, 0x05, 0x01], eth_breach),
        (hashes, vec![0xff; 100], eth_breach),
        (BASE_MESSAGES + 0x01, vec![0xc0], breach),
        (BASE_MESSAGES + 0x30, vec![0xc0], breach),
        // An answer without a request is not even read.
        (BASE_MESSAGES + answer_id, answer, breach),
    ] {
        let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
        mouth.writer.write(id, &payload).await.unwrap();
        assert_eq!(mouth.end().await, reason, "{id:#x} {payload:?}");
        // The peer is banned for an hour.
        let mut again = ManualPeer::dial(&one.manager, mouth.key).await;
        assert_eq!(again.end().await, DisconnectReason::UselessPeer);
    }
    eventually("the end", || peers(&one.manager) == 0);
}

#[tokio::test]
async fn who_does_not_answer_is_given_up() {
    let one = node(config());
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    let handle = one.manager.peers();
    let id = id_of(&mouth.key);
    eventually("a peer", || peers(&one.manager) == 1);
    let timeout = RequestError::Timeout(Duration::from_millis(200));
    assert_eq!(handle.request(id, headers(2)).await, Err(timeout));
    // A late answer is no offence.
    let EthMessage::Request(number, _) = mouth.hear().await else { panic!("no request") };
    mouth.say(EthMessage::Response(number, EthResponse::Headers(vec![]))).await;
    let (asked, answered) = tokio::join!(handle.request(id, headers(2)), async {
        let EthMessage::Request(number, request) = mouth.hear().await else { panic!("no request") };
        assert_eq!(request, headers(2));
        mouth
            .say(EthMessage::Response(number, EthResponse::Headers(vec![Header::default()])))
            .await;
    });
    assert_eq!((asked, answered), (Ok(EthResponse::Headers(vec![Header::default()])), ()));
    for _ in 0..3 {
        // The last request finds the peer disconnected.
        let failed = handle.request(id, headers(1)).await.unwrap_err();
        assert!(failed == timeout || failed == RequestError::NotConnected, "{failed}");
    }
    assert_eq!(mouth.end().await, DisconnectReason::Timeout);
    assert_eq!(handle.request(id, headers(1)).await, Err(RequestError::NotConnected));
    assert_eq!(one.manager.stats().timeouts.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn who_answers_more_than_was_asked_is_disconnected() {
    let one = node(config());
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    let handle = one.manager.peers();
    eventually("a peer", || peers(&one.manager) == 1);
    let (asked, ()) = tokio::join!(handle.request(id_of(&mouth.key), headers(1)), async {
        let EthMessage::Request(number, _) = mouth.hear().await else { panic!("no request") };
        let two = vec![Header::default(), Header::default()];
        mouth.say(EthMessage::Response(number, EthResponse::Headers(two))).await;
    });
    assert_eq!(asked, Err(RequestError::WrongAnswer));
    assert_eq!(mouth.end().await, DisconnectReason::SubprotocolError);
}

#[tokio::test]
async fn a_peer_has_sixteen_requests_at_most() {
    let one = node(NetworkConfig {
        timing: SessionTiming { request: Duration::from_secs(20), ..local::timing() },
        ..config()
    });
    let mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    let handle = one.manager.peers();
    eventually("a peer", || peers(&one.manager) == 1);
    let id = id_of(&mouth.key);
    let asked: Vec<_> = (0..16)
        .map(|_| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.request(id, headers(1)).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let busy = loop {
        // Waits until all requests have arrived.
        match tokio::time::timeout(Duration::from_millis(20), handle.request(id, headers(1))).await
        {
            Ok(answer) => break answer,
            Err(_) => continue,
        }
    };
    assert_eq!(busy, Err(RequestError::Busy(16)));
    drop(mouth);
    for one in asked {
        let answer = one.await.unwrap();
        assert!(
            matches!(answer, Err(RequestError::NotConnected | RequestError::Busy(_))),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn liars_are_disconnected_and_the_honest_are_not() {
    let one = node(config());
    let mut liar = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    let mut honest = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    eventually("both", || peers(&one.manager) == 2);
    let handle = one.manager.peers();
    handle.report(id_of(&liar.key), PeerOffence::WrongData);
    assert_eq!(liar.end().await, DisconnectReason::SubprotocolError);
    honest.say(EthMessage::Request(1, headers(1))).await;
    assert!(matches!(honest.hear().await, EthMessage::Response(1, _)));
    assert_eq!(one.manager.stats().banned.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn who_says_nothing_is_timed_out() {
    let timing = SessionTiming { idle: Duration::from_millis(150), ..local::timing() };
    let one = node(NetworkConfig { timing, ..config() });
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    // Pings arrive, and are not answered.
    let raw = mouth.read().await.unwrap();
    assert_eq!(raw.id, rlpx::id::PING);
    assert_eq!(mouth.end().await, DisconnectReason::Timeout);
    // The same before hello and status.
    let mut silent = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
    assert_eq!(silent.end().await, DisconnectReason::Timeout);
}

#[test]
fn half_open_connections_keep_nobody_out_for_long() {
    let one = node(config());
    let address = one.manager.local_address().unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let mut silent: Vec<_> = (0..300).map(|_| connect()).collect();
    let stats = one.manager.stats();
    // On a busy machine the first ones may have timed out before the last ones connect.
    eventually("throttling", || {
        silent.push(connect());
        stats.throttled.load(Ordering::Relaxed) > 0
    });
    let two = node(NetworkConfig { static_nodes: vec![enode(&one.manager)], ..config() });
    eventually("an honest peer", || peers(&two.manager) == 1);
    assert_eq!(one.manager.slots(), (1, 0));
    drop(silent);
}

#[tokio::test]
async fn a_node_that_is_stopped_says_so() {
    let one = node(config());
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    eventually("a peer", || peers(&one.manager) == 1);
    let stopping = std::thread::spawn(move || {
        one.manager.disconnect_all();
        one
    });
    assert_eq!(mouth.end().await, DisconnectReason::Quitting);
    drop(mouth);
    let one = stopping.join().unwrap();
    assert_eq!(peers(&one.manager), 0);
}

#[test]
fn a_port_that_is_taken_is_an_error_unless_another_will_do() {
    let one = node(config());
    let taken = one.manager.local_address();
    let busy = NetworkConfig { listen: taken, ..config() };
    let error = retrie_p2p::peers::start(busy, std::sync::Arc::new(local::HeaderResponder));
    assert!(error.unwrap_err().to_string().contains("127.0.0.1"));
    let other = node(NetworkConfig { listen: taken, any_port: true, ..config() });
    assert_ne!(other.manager.local_address(), taken);
}

/// Timeouts for a test in which answers wait on a busy machine.
fn patient() -> SessionTiming {
    SessionTiming {
        request: Duration::from_secs(30),
        idle: Duration::from_secs(60),
        ..local::timing()
    }
}

async fn pong(mouth: &mut ManualPeer) {
    mouth.writer.write(rlpx::id::PING, &[0xc0]).await.unwrap();
    while mouth.read().await.unwrap().id != rlpx::id::PONG {}
}

/// Regression: sessions waited for room for gossip. Then peers got no pongs, their answers were not
/// read, and they were banned for that.
#[tokio::test]
async fn gossip_that_is_not_looked_at_holds_up_neither_pings_nor_answers() {
    let one = node(NetworkConfig { timing: patient(), ..config() });
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    eventually("a peer", || peers(&one.manager) == 1);
    for _ in 0..600 {
        mouth.say(EthMessage::Gossip(hashes(100))).await;
    }
    pong(&mut mouth).await;
    mouth.say(EthMessage::Request(1, headers(1))).await;
    assert!(matches!(mouth.hear().await, EthMessage::Response(1, _)));
    let handle = one.manager.peers();
    let (asked, ()) = tokio::join!(handle.request(id_of(&mouth.key), headers(1)), async {
        let EthMessage::Request(number, _) = mouth.hear().await else { panic!("no request") };
        mouth.say(EthMessage::Response(number, EthResponse::Headers(vec![]))).await;
    });
    assert_eq!(asked, Ok(EthResponse::Headers(vec![])));
    assert_eq!(one.manager.stats().timeouts.load(Ordering::Relaxed), 0);
}

/// Regression: all peers shared the room, first come, first served.
#[tokio::test]
async fn no_peer_takes_the_room_of_another() {
    let mut one = node(NetworkConfig { timing: patient(), ..config() });
    let mut flooder = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    let mut honest = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    for _ in 0..20 {
        flooder.say(EthMessage::Gossip(hashes(10_000))).await;
    }
    pong(&mut flooder).await;
    honest.say(EthMessage::Gossip(hashes(1))).await;
    pong(&mut honest).await;
    let mut heard = Vec::new();
    for _ in 0..2 {
        let next = one.heard.recv().await.unwrap();
        heard.push((next.peer, next.gossip));
    }
    assert_eq!(heard[1], (id_of(&honest.key), hashes(1)), "its turn is the second");
    assert_eq!(heard[0].0, id_of(&flooder.key));
}

/// Answers requests once the sender is dropped.
#[derive(Debug)]
struct HeldRequests(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl EthRequestHandler for HeldRequests {
    fn answer(&self, _: &PeerInfo, request: EthRequest) -> EthResponse {
        assert!(self.0.lock().unwrap().recv().is_err());
        request.empty_response()
    }
}

/// Regression: a session waited until its peer's requests were answered, and so for the requests of
/// all other peers.
#[tokio::test]
async fn requests_that_wait_hold_up_nothing_else() {
    let (held, wait) = std::sync::mpsc::channel();
    let config = NetworkConfig { timing: patient(), ..config() };
    let one = retrie_p2p::peers::start(config, Arc::new(HeldRequests(wait.into()))).unwrap();
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    for number in 0..100 {
        mouth.say(EthMessage::Request(number, headers(1))).await;
    }
    pong(&mut mouth).await;
    let unserved = one.manager.stats().unserved.load(Ordering::Relaxed);
    assert!((100 - 33..=100 - 32).contains(&unserved), "{unserved}");
    drop(held);
    for _ in 0..100 - unserved {
        assert!(matches!(mouth.hear().await, EthMessage::Response(number, _) if number < 100));
    }
    mouth.say(EthMessage::Request(100, headers(1))).await;
    assert!(matches!(mouth.hear().await, EthMessage::Response(100, _)));
}

/// Regression: any peer could answer a short request with 16 MiB.
#[tokio::test]
async fn an_answer_longer_than_what_was_asked_for_is_not_read() {
    let one = node(NetworkConfig { timing: patient(), ..config() });
    let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
    eventually("a peer", || peers(&one.manager) == 1);
    let handle = one.manager.peers();
    let request = handle.request_within(id_of(&mouth.key), headers(9), 1_000);
    let (asked, ()) = tokio::join!(request, async {
        let EthMessage::Request(number, _) = mouth.hear().await else { panic!("no request") };
        let long = EthResponse::Headers(vec![Header::default(); 9]);
        mouth.say(EthMessage::Response(number, long)).await;
    });
    assert_eq!(asked, Err(RequestError::NotConnected));
    assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);
}

/// Answers `rchk` requests once a gate is open for the peer, and counts waiting ones.
#[derive(Debug, Default)]
struct GatedStates {
    waiting: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl GatedStates {
    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }
}

impl StateRequestHandler for GatedStates {
    fn answer(&self, peer: &PeerInfo, request: rchk::RchkRequest) -> rchk::RchkResponse {
        if !peer.trusted {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let mut is_open = self.is_open.lock();
            while !*is_open {
                self.opened.wait(&mut is_open);
            }
        }
        request.answer(Err(rchk::RchkRefusal::NoState))
    }
}

async fn speak_rchk(manager: &NetworkManager, key: SecretKey) -> ManualPeer {
    let mut mouth = ManualPeer::dial(manager, key).await;
    mouth.hello_as(&[("eth", 71), ("rchk", 1)]).await;
    mouth.status(|_| {}).await;
    mouth
}

async fn ask_for_state(mouth: &mut ManualPeer, number: u64) {
    let request = rchk::RchkRequest::Codes(vec![B256::repeat_byte(1)]);
    let (id, payload) = rchk::RchkMessage::Request(number, request).encode();
    mouth.writer.write(RCHK + id, &payload).await.unwrap();
}

/// The next message of `rchk`, or else of `eth`.
async fn hear_either(mouth: &mut ManualPeer) -> Result<rchk::RchkMessage, EthMessage> {
    loop {
        let raw = mouth.read().await.unwrap();
        match (raw.id.checked_sub(RCHK), raw.id.checked_sub(BASE_MESSAGES)) {
            (Some(id), _) => return Ok(rchk::RchkMessage::decode(id, &raw.payload).unwrap()),
            (None, Some(id)) => {
                return Err(EthMessage::decode(eth::EthVersion::Eth71, id, &raw.payload).unwrap());
            }
            (None, None) if raw.id == rlpx::id::PING => {
                mouth.writer.write(rlpx::id::PONG, &[0xc0]).await.unwrap();
            }
            (None, None) => {}
        }
    }
}

/// Regression: `rchk` requests used the threads of all other requests, and the queue of the same
/// peer: an honest request for a header was answered after 374 s.
#[test]
fn headers_are_served_while_requests_for_states_wait_and_strangers_keep_no_trusted_peer_waiting() {
    let gated = Arc::new(GatedStates::default());
    let states = Some(gated.clone() as Arc<dyn StateRequestHandler>);
    let key = rlpx::random_key();
    let friend = Enode { id: id_of(&key), ip: Ipv4Addr::LOCALHOST.into(), tcp: 9, udp: 0 };
    let timing = SessionTiming { idle: Duration::from_secs(30), ..local::timing() };
    let config =
        NetworkConfig { states, trusted: vec![friend], max_inbound: 40, timing, ..config() };
    let one = node(config);
    let runtime = one.manager.runtime().clone();
    runtime.block_on(async {
        // More peers than there are threads, each with more requests than may wait.
        let mut hostile = Vec::new();
        for _ in 0..20 {
            let mut mouth = speak_rchk(&one.manager, rlpx::random_key()).await;
            for number in 0..40 {
                ask_for_state(&mut mouth, number).await;
            }
            hostile.push(mouth);
        }
        let mut honest = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
        for number in 0..5 {
            honest.say(EthMessage::Request(number, headers(2))).await;
            assert!(matches!(honest.hear().await, EthMessage::Response(n, _) if n == number));
        }
        // The same from a peer that asked for states; requests beyond its queue are refused as
        // busy.
        let mouth = &mut hostile[3];
        mouth.say(EthMessage::Request(99, headers(2))).await;
        let mut refused = 0;
        loop {
            match hear_either(mouth).await {
                Err(EthMessage::Response(99, EthResponse::Headers(two))) => {
                    break assert_eq!(two.len(), 2);
                }
                Ok(rchk::RchkMessage::Response(_, answer)) => {
                    assert_eq!(*answer.parts(), Err(rchk::RchkRefusal::Busy));
                    refused += 1;
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
        assert!((5..10).contains(&refused), "{refused} of 40 were refused");
        // Trusted peers have permits of their own.
        let mut trusted = speak_rchk(&one.manager, key).await;
        ask_for_state(&mut trusted, 7).await;
        let answer = rchk::RchkResponse::Codes(Err(rchk::RchkRefusal::NoState));
        let heard = async {
            loop {
                if let Ok(heard) = hear_either(&mut trusted).await {
                    return heard;
                }
            }
        };
        assert_eq!(heard.await, rchk::RchkMessage::Response(7, answer));
        assert_eq!(gated.waiting.load(Ordering::Relaxed), 2, "as many as there are permits");
        // Then each peer gets answers to its waiting requests; the others were refused.
        gated.open();
        let mut answered = 0;
        while answered < 40 {
            answered += usize::from(hear_either(&mut hostile[19]).await.is_ok());
        }
    });
}

/// Regression: any peer could make the node sort its state.
#[test]
fn rchk_is_spoken_with_peers_that_the_operator_has_named_and_with_no_other() {
    let states = Some(Arc::new(GatedStates::default()) as Arc<dyn StateRequestHandler>);
    let [trusted, fixed] = [rlpx::random_key(), rlpx::random_key()];
    let enode = |key| Enode { id: id_of(key), ip: Ipv4Addr::LOCALHOST.into(), tcp: 9, udp: 0 };
    let config = NetworkConfig {
        states,
        state_audience: StateAudience::Named,
        trusted: vec![enode(&trusted)],
        static_nodes: vec![enode(&fixed)],
        ..config()
    };
    let one = node(config);
    let runtime = one.manager.runtime().clone();
    runtime.block_on(async {
        for (key, is_named) in [(trusted, true), (fixed, true), (rlpx::random_key(), false)] {
            let mut mouth = ManualPeer::dial(&one.manager, key).await;
            let hello = mouth.hello_as(&[("eth", 71), ("rchk", 1)]).await;
            let offers = hello.capabilities.iter().any(|offered| offered.name == rchk::NAME);
            assert_eq!(offers, is_named);
            mouth.status(|_| {}).await;
            if !is_named {
                ask_for_state(&mut mouth, 1).await;
                assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);
            }
        }
    });
}

/// The ids of `rchk` follow those of eth/71.
const RCHK: u8 = BASE_MESSAGES + 0x14;

#[test]
fn parts_of_states_are_asked_for_and_nothing_else_of_rchk_is_taken() {
    let states = Some(Arc::new(retrie_p2p::serve::EmptyRequestHandler) as _);
    let one = node(NetworkConfig { states, ..config() });
    let runtime = one.manager.runtime().clone();
    let codes = |count| rchk::RchkRequest::Codes(vec![B256::repeat_byte(1); count]);
    runtime.block_on(async {
        let speak = async || {
            let mut mouth = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
            mouth.hello_as(&[("eth", 71), ("rchk", 1), ("snap", 1)]).await;
            mouth.status(|_| {}).await;
            there(&one.manager, &mouth);
            mouth
        };
        let say = async |mouth: &mut ManualPeer, message: rchk::RchkMessage| {
            let (id, payload) = message.encode();
            mouth.writer.write(RCHK + id, &payload).await.unwrap();
        };
        let hear = async |mouth: &mut ManualPeer| loop {
            let raw = mouth.read().await.unwrap();
            if let Some(id) = raw.id.checked_sub(RCHK) {
                return rchk::RchkMessage::decode(id, &raw.payload).unwrap();
            }
        };
        // The node answers requests, and sends its own.
        let mut mouth = speak().await;
        say(&mut mouth, rchk::RchkMessage::Request(3, codes(2))).await;
        let refused = rchk::RchkResponse::Codes(Err(rchk::RchkRefusal::NoState));
        assert_eq!(hear(&mut mouth).await, rchk::RchkMessage::Response(3, refused));
        let peers = one.manager.peers();
        let id = id_of(&mouth.key);
        assert!(peers.connected()[0].speaks_rchk);
        let asked = tokio::spawn(async move { peers.request_state(id, codes(1)).await });
        let rchk::RchkMessage::Request(number, request) = hear(&mut mouth).await else { panic!() };
        assert_eq!(request, codes(1));
        let answer = rchk::RchkResponse::Codes(Ok(vec![None]));
        say(&mut mouth, rchk::RchkMessage::Response(number, answer.clone())).await;
        assert_eq!(asked.await.unwrap(), Ok(answer.clone()));

        // An answer without a request, an answer with too many items, and an invalid message end
        // the session.
        say(&mut mouth, rchk::RchkMessage::Response(number, answer)).await;
        assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);
        let mut mouth = speak().await;
        let (peers, id) = (one.manager.peers(), id_of(&mouth.key));
        let asked = tokio::spawn(async move { peers.request_state(id, codes(1)).await });
        let rchk::RchkMessage::Request(number, _) = hear(&mut mouth).await else { panic!() };
        let answer = rchk::RchkResponse::Codes(Ok(vec![None, None]));
        say(&mut mouth, rchk::RchkMessage::Response(number, answer)).await;
        assert_eq!(mouth.end().await, DisconnectReason::SubprotocolError);
        assert_eq!(asked.await.unwrap(), Err(RequestError::WrongAnswer));
        for (id, payload) in [(0x00, vec![0xc1, 9]), (0x02, vec![0x80]), (0x04, vec![0xc0])] {
            let mut mouth = speak().await;
            mouth.writer.write(RCHK + id, &payload).await.unwrap();
            let end = mouth.end().await;
            let breach = [DisconnectReason::SubprotocolError, DisconnectReason::ProtocolBreach];
            assert!(breach.contains(&end), "{id}: {end:?}");
        }

        // A peer that does not offer `rchk` is not asked, and may not use it.
        let mut mouth = ManualPeer::peer(&one.manager, rlpx::random_key()).await;
        there(&one.manager, &mouth);
        let (peers, id) = (one.manager.peers(), id_of(&mouth.key));
        assert_eq!(peers.request_state(id, codes(1)).await, Err(RequestError::NoStates));
        say(&mut mouth, rchk::RchkMessage::Request(3, codes(2))).await;
        assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);
    });
}
