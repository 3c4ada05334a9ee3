//! Nodes as peers of each other: flags, keys, slots, and JSON-RPC about peers.

use crate::common;

use common::{retrie, words};
use retrie_pipeline::testkit::TestRules;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A node that listens for peers on loopback.
struct PeerNode {
    child: Child,
    url: String,
    enode: String,
}

impl Drop for PeerNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl PeerNode {
    fn start(folder: &Path, flags: &str) -> Self {
        let genesis = folder.join("genesis.json");
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(&genesis, TestRules::Prague.genesis_json()).unwrap();
        let line = format!(
            "node --datadir {} --chain {} --http --http.port 0 --http.api eth,net,admin,state \
             --authrpc.port 0 --ipcdisable --disable-discovery --nat none {flags}",
            folder.display(),
            genesis.display(),
        );
        let mut child = retrie(words(&line)).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let url = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the node has ended:\n{seen}");
            if let Some((_, address)) = line.split_once("HTTP server started addr=") {
                break format!("http://{}", address.trim());
            }
            seen.push_str(&line);
        };
        // A node blocks if its log is not read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let mut node = Self { child, url, enode: String::new() };
        node.enode = node.call("admin_nodeInfo", json!([]))["enode"].as_str().unwrap().to_owned();
        node
    }

    fn call(&self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut response = ureq::post(&self.url)
            .header("content-type", "application/json")
            .send(request.to_string())
            .unwrap();
        let answer: Value =
            serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn wait_for_peers(&self, count: &str) {
        let start = Instant::now();
        while self.call("net_peerCount", json!([])) != count {
            assert!(start.elapsed() < Duration::from_secs(60), "no {count} peers");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for_block(&self, number: u64) -> Value {
        let start = Instant::now();
        loop {
            let block = self.call("eth_getBlockByNumber", json!(["latest", false]));
            if block["number"] == json!(format!("{number:#x}")) {
                return block["hash"].clone();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no block {number}: {block}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_healthy(&self) -> bool {
        ureq::get(format!("{}/health", self.url)).call().is_ok()
    }
}

/// A dev node among peers, with some blocks.
fn with_blocks(folder: &Path, flags: &str) -> PeerNode {
    let node = PeerNode::start(folder, &format!("--chain dev --dev {LOOPBACK} {flags}"));
    let from = node.call("eth_accounts", json!([]))[0].clone();
    for n in 1..=6 {
        // A contract with a slot and a code of one byte.
        let deploy = json!({ "from": from, "data": "0x600160005560016000f3" });
        node.call("eth_sendTransaction", json!([deploy]));
        node.wait_for_block(n);
    }
    node
}

const LOOPBACK: &str = "--addr 127.0.0.1 --port 0";

#[test]
fn nodes_become_peers_and_tell_of_each_other() {
    let folder = TempDir::new().unwrap();
    let one = PeerNode::start(&folder.path().join("one"), LOOPBACK);
    assert!(one.is_healthy(), "a node is not unwell for having no peers");
    assert_eq!(one.call("net_listening", json!([])), json!(true));
    assert_eq!(one.call("eth_protocolVersion", json!([])), json!("0x48"));
    let flags = format!("{LOOPBACK} --trusted-peers {}", one.enode);
    let two = PeerNode::start(&folder.path().join("two"), &flags);
    one.wait_for_peers("0x1");
    two.wait_for_peers("0x1");
    let seen = one.call("admin_peers", json!([]));
    assert_eq!(seen[0]["network"]["inbound"], json!(true));
    assert!(seen[0]["name"].as_str().unwrap().starts_with("retrie/v"));
    let seen = two.call("admin_peers", json!([]));
    assert_eq!(seen[0]["network"]["trusted"], json!(true));
    // The dialled node sees the other end of the connection.
    assert_eq!(seen[0]["enode"], json!(one.enode.split('?').next()));
    assert_eq!(seen[0]["protocols"]["eth"]["latestBlock"], json!(0));

    // A third peer is dialled on request.
    let three = PeerNode::start(&folder.path().join("three"), LOOPBACK);
    assert_eq!(three.call("admin_addPeer", json!([one.enode])), json!(true));
    three.wait_for_peers("0x1");
    one.wait_for_peers("0x2");
    assert_eq!(three.call("admin_removePeer", json!([one.enode])), json!(true));
    three.wait_for_peers("0x0");
    one.wait_for_peers("0x1");
}

#[test]
fn a_node_keeps_its_key_and_slots_are_limited() {
    let folder = TempDir::new().unwrap();
    let id = |node: &PeerNode| node.enode.split('@').next().unwrap().to_owned();
    let one = PeerNode::start(&folder.path().join("one"), LOOPBACK);
    let before = id(&one);
    drop(one);
    assert!(folder.path().join("one/discovery-secret").is_file());
    let flags = format!("{LOOPBACK} --max-inbound-peers 0");
    let one = PeerNode::start(&folder.path().join("one"), &flags);
    assert_eq!(id(&one), before);
    let key = folder.path().join("one/discovery-secret");
    let flags = format!("{LOOPBACK} --p2p-secret-key {}", key.display());
    assert_eq!(id(&PeerNode::start(&folder.path().join("two"), &flags)), before);
    let flags = format!("{LOOPBACK} --trusted-peers {}", one.enode);
    let three = PeerNode::start(&folder.path().join("three"), &flags);
    // There is no slot for the dialling node until it is trusted.
    assert_eq!(one.call("admin_addTrustedPeer", json!([three.enode])), json!(true));
    one.wait_for_peers("0x1");
    three.wait_for_peers("0x1");
}

#[test]
fn a_new_node_begins_with_the_state_that_a_peer_hands_out() {
    for backend in ["mpt", "bavl"] {
        let folder = TempDir::new().unwrap();
        let state = format!("--chain dev --state-backend {backend} --state-root native");
        let flags = format!("{state} --rchk.serve all");
        let origin = with_blocks(&folder.path().join("origin"), &flags);
        let checkpoint = origin.wait_for_block(6);
        let checkpoint = checkpoint.as_str().unwrap();
        let flags = format!(
            "{LOOPBACK} {state} --checkpoint {checkpoint} --trusted-peers {}",
            origin.enode
        );
        let new = folder.path().join("new");
        let node = PeerNode::start(&new, &flags);
        assert_eq!(node.call("eth_blockNumber", json!([])), json!("0x6"), "{backend}");
        let root = json!(["latest"]);
        assert_eq!(
            node.call("state_getRoot", root.clone())["root"],
            origin.call("state_getRoot", root)["root"],
            "{backend}"
        );
        assert!(!new.join("sync").exists(), "nothing of it is left");
        let created = origin.call("eth_getBlockByNumber", json!(["0x6", true]));
        let created =
            origin.call("eth_getTransactionReceipt", json!([created["transactions"][0]["hash"]]));
        let created = json!([created["contractAddress"], "latest"]);
        assert_eq!(node.call("eth_getCode", created.clone()), origin.call("eth_getCode", created));
        // The node stays connected to its first peers, and a second start ignores the flags.
        node.wait_for_peers("0x1");
        drop(node);
        let node = PeerNode::start(&new, &flags);
        assert_eq!(node.call("eth_blockNumber", json!([])), json!("0x6"), "{backend}");
    }
}

#[test]
fn without_a_peer_that_has_the_block_a_new_node_gives_up_and_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let origin = with_blocks(&folder.path().join("origin"), "--state-root native --rchk.serve all");
    let new = folder.path().join("new");
    let line = format!(
        "node --datadir {} --chain dev {LOOPBACK} --state-root native --disable-discovery --nat none \
         --ipcdisable --disable-auth-server --checkpoint 0x{} --sync.patience 3s --trusted-peers {}",
        new.display(),
        "07".repeat(32),
        origin.enode
    );
    let error = common::fails_saying(&mut retrie(words(&line)), &["no peer gives the header"]);
    assert!(error.contains("127.0.0.1"), "the peer is named: {error}");
    assert!(!new.join("db").exists());
    let line = line.replace("--checkpoint", "--sync.trusted-root");
    common::fails_saying(&mut retrie(words(&line)), &["--checkpoint"]);
}
