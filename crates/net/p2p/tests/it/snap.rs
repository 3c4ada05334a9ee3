//! Sessions that speak `snap`: which version, and what each of them has.

use crate::manual_peer::{ManualPeer, id_of};

use alloy_primitives::{B256, Bytes};
use retrie_p2p::{
    handle::{PeerInfo, RequestError, SnapRequestHandler},
    peers::{NetworkConfig, StartedNetwork},
    rlpx::{self, BASE_MESSAGES, DisconnectReason},
    serve,
    snap::{SnapMessage, SnapRequest, SnapResponse, SnapVersion},
    testkit::local::{config, enode, eventually, node},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The ids of `snap` follow those of eth/71.
const SNAP: u8 = BASE_MESSAGES + 0x14;

/// Has access lists of 100 bytes, of the blocks whose hash begins with 1.
#[derive(Debug, Default)]
struct AccessListResponder {
    /// How often it still says that it is not ready.
    preparing: AtomicUsize,
}

fn list(hash: &B256) -> Option<Bytes> {
    (hash[0] == 1).then(|| [&[0xf8, 98][..], &[hash[31]; 98]].concat().into())
}

impl SnapRequestHandler for AccessListResponder {
    fn answer(&self, _: &PeerInfo, request: SnapRequest) -> Option<SnapResponse> {
        let one_less = |left: usize| left.checked_sub(1);
        if self.preparing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return None;
        }
        Some(match &request {
            SnapRequest::AccessLists { hashes, bytes } => {
                let lists = serve::access_lists(hashes, *bytes as usize, |hash| Ok(list(hash)));
                SnapResponse::AccessLists(lists)
            }
            _ => request.empty_answer(),
        })
    }
}

fn server(snap_versions: &[SnapVersion]) -> StartedNetwork {
    server_that_prepares(0, snap_versions)
}

fn server_that_prepares(rounds: usize, snap_versions: &[SnapVersion]) -> StartedNetwork {
    let responder = AccessListResponder { preparing: AtomicUsize::new(rounds) };
    let ranges = Some(Arc::new(responder) as Arc<dyn SnapRequestHandler>);
    node(NetworkConfig { ranges, snap_versions: snap_versions.to_vec(), ..config() })
}

/// A peer that offers these versions, and the version that the node uses with it.
async fn speak(one: &StartedNetwork, versions: &[u64]) -> (ManualPeer, Option<SnapVersion>) {
    let mut mouth = ManualPeer::dial(&one.manager, rlpx::random_key()).await;
    let snap = versions.iter().map(|version| ("snap", *version));
    mouth.hello_as(&[("eth", 71)].into_iter().chain(snap).collect::<Vec<_>>()).await;
    mouth.status(|_| {}).await;
    let (id, peers) = (id_of(&mouth.key), one.manager.peers());
    let found = || peers.connected().into_iter().find(|peer| peer.id == id);
    eventually("the peer", || found().is_some());
    let version = found().unwrap().snap;
    (mouth, version)
}

async fn say(mouth: &mut ManualPeer, message: SnapMessage) {
    let (id, payload) = message.encode();
    mouth.writer.write(SNAP + id, &payload).await.unwrap();
}

async fn hear(mouth: &mut ManualPeer, version: SnapVersion) -> SnapMessage {
    loop {
        let raw = mouth.read().await.unwrap();
        if let Some(id) = raw.id.checked_sub(SNAP) {
            return SnapMessage::decode(version, id, &raw.payload).unwrap();
        }
    }
}

fn hash(kind: u8, number: u8) -> B256 {
    let mut hash = B256::repeat_byte(kind);
    hash[31] = number;
    hash
}

fn lists_of(hashes: Vec<B256>, bytes: u64) -> SnapRequest {
    SnapRequest::AccessLists { hashes, bytes }
}

fn nodes() -> SnapRequest {
    SnapRequest::Nodes { root: B256::ZERO, paths: vec![vec![Bytes::from_static(&[0])]], bytes: 99 }
}

#[test]
fn both_sides_use_the_newest_version_that_both_offer() {
    use SnapVersion::{Snap1, Snap2};
    for (ours, theirs, used) in [
        (&[Snap2, Snap1][..], &[1, 2][..], Some(Snap2)),
        (&[Snap2, Snap1], &[2], Some(Snap2)),
        (&[Snap2, Snap1], &[1], Some(Snap1)),
        (&[Snap2, Snap1], &[3, 1], Some(Snap1)),
        (&[Snap1], &[1, 2], Some(Snap1)),
        (&[Snap2], &[1], None),
        (&[Snap2, Snap1], &[], None),
    ] {
        let one = server(ours);
        let runtime = one.manager.runtime().clone();
        let (_mouth, version) = runtime.block_on(speak(&one, theirs));
        assert_eq!(version, used, "{ours:?} {theirs:?}");
    }
    // Two nodes, and a request from one to the other.
    let one = server(&SnapVersion::ALL);
    let ranges = Some(Arc::new(serve::EmptyRequestHandler) as Arc<dyn SnapRequestHandler>);
    let static_nodes = vec![enode(&one.manager)];
    let two = node(NetworkConfig { ranges, static_nodes, ..config() });
    let peers = two.manager.peers();
    eventually("a connection", || peers.connected().len() == 1);
    let id = peers.connected()[0].id;
    assert_eq!(peers.connected()[0].snap, Some(Snap2));
    let ask = |request| two.manager.runtime().block_on(peers.request_snap(id, request));
    let answer = ask(lists_of(vec![hash(2, 7), hash(1, 8)], 1 << 20));
    assert_eq!(answer, Ok(SnapResponse::AccessLists(vec![None, list(&hash(1, 8))])));
    assert_eq!(ask(nodes()), Err(RequestError::UnsupportedSnap(Snap2)));
}

/// Regression: while a state was prepared, geth got answers with nothing, and asked for it never again.
#[test]
fn a_peer_waits_for_a_state_that_is_prepared() {
    let one = server_that_prepares(4, &SnapVersion::ALL);
    one.manager.runtime().clone().block_on(async {
        let (mut mouth, _) = speak(&one, &[1, 2]).await;
        say(&mut mouth, SnapMessage::Request(7, lists_of(vec![hash(1, 5)], 1000))).await;
        let lists = SnapResponse::AccessLists(vec![list(&hash(1, 5))]);
        assert_eq!(hear(&mut mouth, SnapVersion::Snap2).await, SnapMessage::Response(7, lists));
    });
}

#[test]
fn access_lists_come_in_order_and_are_cut_at_the_tail() {
    let one = server(&SnapVersion::ALL);
    let runtime = one.manager.runtime().clone();
    runtime.block_on(async {
        let (mut mouth, _) = speak(&one, &[1, 2]).await;
        let [known, unknown] = [hash(1, 5), hash(9, 5)];
        let ask = async |mouth: &mut ManualPeer, hashes: Vec<B256>, bytes| {
            say(mouth, SnapMessage::Request(7, lists_of(hashes, bytes))).await;
            match hear(mouth, SnapVersion::Snap2).await {
                SnapMessage::Response(7, SnapResponse::AccessLists(lists)) => lists,
                other => panic!("{other:?}"),
            }
        };
        let [full, none] = [list(&known), None];
        for (hashes, bytes, expected) in [
            (vec![], 1 << 20, vec![]),
            (vec![unknown; 3], 1 << 20, vec![none.clone(); 3]),
            (vec![unknown, known, unknown, known], 1 << 20, {
                vec![none.clone(), full.clone(), none.clone(), full.clone()]
            }),
            (vec![known; 3], 1 << 20, vec![full.clone(); 3]),
            (vec![hash(1, 2), hash(1, 1)], u64::MAX, vec![list(&hash(1, 2)), list(&hash(1, 1))]),
            // The first entry comes in any case, then as many as fit.
            (vec![known; 3], 0, vec![full.clone()]),
            (vec![known; 3], 1, vec![full.clone()]),
            (vec![unknown; 3], 0, vec![none.clone()]),
            (vec![unknown, known, known], 2, vec![none.clone(), full.clone()]),
            (vec![known; 30], 950, vec![full.clone(); 10]),
            // At most 1,024 are looked up.
            (vec![unknown; 4096], 1 << 20, vec![none.clone(); 1024]),
        ] {
            let asked = hashes.len();
            assert_eq!(ask(&mut mouth, hashes, bytes).await, expected, "{asked} {bytes}");
        }
    });
}

#[test]
fn a_version_has_no_messages_of_the_other_one() {
    let one = server(&SnapVersion::ALL);
    let runtime = one.manager.runtime().clone();
    runtime.block_on(async {
        // Trie nodes are answered in version 1 alone, access lists in version 2 alone.
        let (mut mouth, _) = speak(&one, &[1]).await;
        say(&mut mouth, SnapMessage::Request(3, nodes())).await;
        let nothing = SnapMessage::Response(3, SnapResponse::Nodes(Vec::new()));
        assert_eq!(hear(&mut mouth, SnapVersion::Snap1).await, nothing);
        let (peers, id) = (one.manager.peers(), id_of(&mouth.key));
        assert_eq!(
            peers.request_snap(id, lists_of(vec![hash(1, 1)], 1)).await,
            Err(RequestError::UnsupportedSnap(SnapVersion::Snap1))
        );
        say(&mut mouth, SnapMessage::Request(4, lists_of(vec![hash(1, 1)], 1))).await;
        assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);

        let trie_nodes = SnapMessage::Response(4, SnapResponse::Nodes(Vec::new()));
        for message in [SnapMessage::Request(4, nodes()), trie_nodes] {
            let (mut mouth, _) = speak(&one, &[2]).await;
            say(&mut mouth, message).await;
            assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);
        }
        // An id after the last one.
        let (mut mouth, _) = speak(&one, &[2]).await;
        mouth.writer.write(SNAP + 0x0a, &[0xc0]).await.unwrap();
        assert_eq!(mouth.end().await, DisconnectReason::ProtocolBreach);

        // A peer that does not speak it is not asked.
        let (mouth, _) = speak(&one, &[]).await;
        let asked = peers.request_snap(id_of(&mouth.key), lists_of(vec![], 1)).await;
        assert_eq!(asked, Err(RequestError::NoSnap));
    });
}

#[test]
fn an_answer_has_no_more_lists_than_were_asked_for() {
    let one = server(&SnapVersion::ALL);
    let runtime = one.manager.runtime().clone();
    runtime.block_on(async {
        let (mut mouth, _) = speak(&one, &[2]).await;
        let (peers, id) = (one.manager.peers(), id_of(&mouth.key));
        let asked = tokio::spawn(async move {
            peers.request_snap(id, lists_of(vec![hash(1, 1), hash(1, 2)], 5)).await
        });
        let SnapMessage::Request(number, request) = hear(&mut mouth, SnapVersion::Snap2).await
        else {
            panic!("no request")
        };
        assert_eq!(request, lists_of(vec![hash(1, 1), hash(1, 2)], 5));
        let answer = SnapResponse::AccessLists(vec![None; 3]);
        say(&mut mouth, SnapMessage::Response(number, answer)).await;
        assert_eq!(asked.await.unwrap(), Err(RequestError::WrongAnswer));
        assert_eq!(mouth.end().await, DisconnectReason::SubprotocolError);
    });
}
