//! Methods about the node's peers, and changing them.

use crate::common::{NodeFixture, WsClient, mpt, request, test_chain};
use alloy_primitives::{B256, B512, hex, keccak256};
use parking_lot::Mutex;
use retrie_engine::{NodeAddress, NodeNetwork, NodeStatus, PeerChange, PeerStatus};
use retrie_pipeline::testkit::TestRules;
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};
use tokio::sync::broadcast;

/// A node with one peer; it remembers changes of the peer set.
#[derive(Clone)]
struct MockNetwork(Arc<Mutex<Vec<String>>>, broadcast::Sender<Arc<PeerChange>>);

impl Default for MockNetwork {
    fn default() -> Self {
        Self(Arc::default(), broadcast::Sender::new(4))
    }
}

impl MockNetwork {
    fn change(&self, id: u8, dropped: Option<&str>) {
        let dropped = dropped.map(str::to_owned);
        let (id, remote, local) = (B512::repeat_byte(id), at(1), at(2));
        self.1.send(Arc::new(PeerChange { id, remote, local, dropped })).unwrap();
    }
}

impl NodeStatus for MockNetwork {
    fn network(&self) -> Option<&dyn NodeNetwork> {
        Some(self)
    }
}

fn at(port: u16) -> SocketAddr {
    ([10, 0, 0, 1], port).into()
}

impl NodeNetwork for MockNetwork {
    fn address(&self) -> NodeAddress {
        NodeAddress {
            id: B512::repeat_byte(1),
            enode: "enode://01@10.0.0.1:30303".into(),
            enr: Some("enr:-abc".into()),
            ip: at(0).ip(),
            listens: Some(at(30303)),
            discovery_port: 30301,
        }
    }

    fn protocol_version(&self) -> u64 {
        71
    }

    fn peer_count(&self) -> usize {
        1
    }

    fn peers(&self) -> Vec<PeerStatus> {
        vec![PeerStatus {
            id: B512::repeat_byte(2),
            name: "geth".into(),
            capabilities: vec!["eth/69".into()],
            remote: at(1),
            local: at(2),
            inbound: true,
            trusted: false,
            is_static: true,
            version: 69,
            snap: Some(1),
            blocks: [3, 4],
            head: B256::repeat_byte(5),
        }]
    }

    fn changes(&self) -> broadcast::Receiver<Arc<PeerChange>> {
        self.1.subscribe()
    }

    fn add(&self, url: &str, trusted: bool) -> Result<(), String> {
        if url.starts_with("enode://") {
            self.0.lock().push(format!("add {url} {trusted}"));
            Ok(())
        } else {
            Err("no URL".into())
        }
    }

    fn remove(&self, url: &str, only_trust: bool) -> Result<(), String> {
        self.0.lock().push(format!("remove {url} {only_trust}"));
        Ok(())
    }
}

fn node() -> NodeFixture {
    NodeFixture::with_file(&test_chain(TestRules::Prague).spec, mpt(), None)
}

#[tokio::test]
async fn peers_are_listed_and_changed() {
    let network = MockNetwork::default();
    let mut node = node();
    node.rpc = node.rpc.clone().with_node(Arc::new(network.clone()));
    assert_eq!(node.call("net_peerCount", json!([])).await, json!("0x1"));
    assert_eq!(node.call("net_listening", json!([])).await, json!(true));
    assert_eq!(node.call("eth_protocolVersion", json!([])).await, json!("0x47"));
    let info = node.call("admin_nodeInfo", json!([])).await;
    assert_eq!(info["ports"], json!({ "discovery": 30301, "listener": 30303 }));
    assert_eq!(info["listenAddr"], json!("10.0.0.1:30303"));
    assert_eq!(info["enode"], json!("enode://01@10.0.0.1:30303"));
    assert_eq!(info["enr"], json!("enr:-abc"));
    assert_eq!(info["protocols"]["eth"]["network"], json!(node.rpc.live.spec().chain_id()));
    let peers = node.call("admin_peers", json!([])).await;
    let peer = &peers[0];
    assert_eq!(peer["network"]["remoteAddress"], json!("10.0.0.1:1"));
    assert_eq!(peer["network"]["inbound"], json!(true));
    assert_eq!(peer["protocols"]["eth"]["latestBlock"], json!(4));
    assert_eq!(peer["protocols"]["snap"], json!({ "version": 1 }));
    assert!(peer["enode"].as_str().unwrap().ends_with("02@10.0.0.1:1"));

    for method in ["addPeer", "addTrustedPeer", "removePeer", "removeTrustedPeer"] {
        let answer = node.call(&format!("admin_{method}"), json!(["enode://x"])).await;
        assert_eq!(answer, json!(true));
    }
    let expected = [
        "add enode://x false",
        "add enode://x true",
        "remove enode://x false",
        "remove enode://x true",
    ];
    assert_eq!(*network.0.lock(), expected);
    let (code, message) = node.fail("admin_addPeer", json!(["http://x"])).await;
    assert!(code == -32602 && message.contains("no URL"), "{message}");
}

#[tokio::test]
async fn subscribers_hear_which_peers_come_and_go() {
    let network = MockNetwork::default();
    let mut node = node();
    node.rpc = node.rpc.clone().with_node(Arc::new(network.clone()));
    let servers = node.serve(&node.config()).await;
    let mut ws = WsClient::connect(servers.ws_addr().unwrap(), &[]).await.unwrap();
    for (params, code) in
        [(json!([]), -32602), (json!(["peerevents"]), -32601), (json!(["peerEvents", 1]), -32602)]
    {
        let refused = ws.call("admin_subscribe", params).await;
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    let id = ws.call("admin_subscribe", json!(["peerEvents"])).await["result"].clone();
    assert!(id.is_string(), "{id}");
    network.change(7, None);
    network.change(7, Some("too many peers"));
    for kind in ["add", "drop"] {
        let event = ws.next().await;
        assert_eq!(event["method"], "admin_subscription");
        assert_eq!(event["params"]["subscription"], id);
        let event = &event["params"]["result"];
        assert_eq!(event["type"], kind);
        assert_eq!(event["peer"], json!(hex::encode(keccak256(B512::repeat_byte(7)))));
        assert_eq!(
            (&event["remote"], &event["local"]),
            (&json!("10.0.0.1:1"), &json!("10.0.0.1:2"))
        );
        let cause = if kind == "drop" { json!("too many peers") } else { json!(null) };
        assert_eq!(event["error"], cause);
    }
    assert_eq!(ws.call("admin_unsubscribe", json!([id])).await["result"], true);
    drop(servers);
}

#[tokio::test]
async fn a_subscriber_that_misses_changes_of_peers_loses_its_subscription() {
    let network = MockNetwork::default();
    let mut node = node();
    node.rpc = node.rpc.clone().with_node(Arc::new(network.clone()));
    let request = request("admin_subscribe", json!(["peerEvents"])).to_string();
    let (answer, mut events) = node.methods().raw_json_request(&request, 4).await.unwrap();
    assert!(answer.get().contains("result"), "{answer}");
    // Nothing runs between these changes, and the buffer has four places.
    for id in 0..9 {
        network.change(id, None);
    }
    let mut count = 0;
    while let Some(event) = events.recv().await {
        assert!(!event.get().contains("\"add\""), "{event}");
        count += 1;
        assert!(count < 3, "the subscription has not ended");
    }
}

#[tokio::test]
async fn a_node_without_a_network_says_so() {
    let node = node();
    assert_eq!(node.call("net_peerCount", json!([])).await, json!("0x0"));
    assert_eq!(node.call("net_listening", json!([])).await, json!(false));
    assert_eq!(node.call("admin_peers", json!([])).await, json!([]));
    assert!(node.call("admin_nodeInfo", json!([])).await.get("enode").is_none());
    for (method, params) in [("eth_protocolVersion", json!([])), ("admin_addPeer", json!(["x"]))] {
        let (_, message) = node.fail(method, params).await;
        assert!(message.contains("no part"), "{message}");
    }
}
