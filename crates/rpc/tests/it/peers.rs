//! Methods about the node's peers, and changing them.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_primitives::{B256, B512};
use parking_lot::Mutex;
use retrie_engine::{NodeAddress, NodeNetwork, NodeStatus, PeerStatus};
use retrie_pipeline::testkit::TestRules;
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};

/// A node with one peer; it remembers changes of the peer set.
#[derive(Clone, Default)]
struct MockNetwork(Arc<Mutex<Vec<String>>>);

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
