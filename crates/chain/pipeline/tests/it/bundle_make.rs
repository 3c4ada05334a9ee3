//! Bundles made from mock nodes that serve real blocks: an honest node, and nodes that lie.

use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use retrie_chainspec::parse_chain;
use retrie_pipeline::{
    PipelineError,
    replay::{BundleMaker, MadeBundle},
};
use retrie_sources::{
    BlockingClient, Bundle, BundleKind, HttpOptions, RpcClient, WitnessBundle, list_bundles,
    testkit::{HttpServer, RecordedRequest, ScriptedReply},
};
use retrie_state::AnyBackend;
use retrie_state_testkit::sample;
use retrie_storage_mpt::Mpt;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// The witness bundles; `None`, after a message, if they are missing.
fn witness_folder() -> Option<PathBuf> {
    retrie_state_testkit::data::find("mainnet/witness")
}

fn load(number: u64) -> Option<Bundle> {
    Some(Bundle::load(witness_folder()?.join(format!("{number}.json.gz"))).unwrap())
}

/// An archive node with one block, its ancestors, and the state that a witness bundle lists.
#[derive(Clone)]
struct MockArchiveNode {
    bundle: Arc<Bundle>,
    gives_proofs: bool,
    /// Whether batch requests are answered.
    takes_batches: bool,
}

type RpcAnswer = Result<Value, (i64, &'static str)>;

impl MockArchiveNode {
    fn of(bundle: Bundle) -> Self {
        Self { bundle: Arc::new(bundle), gives_proofs: true, takes_batches: true }
    }

    fn witness(&self) -> &WitnessBundle {
        match &self.bundle.kind {
            BundleKind::Witness(witness) => witness,
            BundleKind::Prestate(_) => panic!("a witness bundle is needed"),
        }
    }

    fn answer(&self, method: &str, params: &Value) -> RpcAnswer {
        let address = || -> Address { serde_json::from_value(params[0].clone()).unwrap() };
        let account = || self.bundle.pre().unwrap().get(&address()).cloned().flatten();
        let parent = json!(format!("{:#x}", self.bundle.number - 1));
        let state_block = match method {
            "eth_getStorageAt" | "eth_getProof" => &params[2],
            _ => &params[1],
        };
        let is_state = matches!(
            method,
            "eth_getBalance"
                | "eth_getTransactionCount"
                | "eth_getCode"
                | "eth_getStorageAt"
                | "eth_getProof"
        );
        assert!(!is_state || *state_block == parent, "{method} {params}");
        Ok(match method {
            "eth_chainId" => json!("0x1"),
            "eth_getBlockByNumber" => self.block(params),
            "eth_getUncleByBlockHashAndIndex" => {
                assert_eq!(params[0], json!(self.bundle.hash));
                let index: U256 = serde_json::from_value(params[1].clone()).unwrap();
                json!(self.bundle.block.body.ommers[index.to::<usize>()])
            }
            "eth_getBalance" => json!(account().map_or(U256::ZERO, |account| account.balance)),
            "eth_getTransactionCount" => {
                json!(format!("{:#x}", account().map_or(0, |account| account.nonce)))
            }
            "eth_getCode" => {
                let hash = account().map(|account| account.code_hash);
                json!(
                    hash.and_then(|hash| self.bundle.codes().get(&hash).cloned())
                        .unwrap_or_default()
                )
            }
            "eth_getStorageAt" => {
                let slot: B256 = serde_json::from_value(params[1].clone()).unwrap();
                let value = account().and_then(|account| account.storage.get(&slot).copied());
                json!(B256::from(value.unwrap_or_default()))
            }
            // More nodes than needed do no harm.
            "eth_getProof" if self.gives_proofs => {
                let first = params[0] == json!(self.bundle.pre().unwrap().keys().next().unwrap());
                let nodes = if first { self.witness().state.as_slice() } else { &[] };
                json!({"accountProof": nodes, "storageProof": []})
            }
            _ => return Err((-32601, "the method does not exist")),
        })
    }

    fn block(&self, params: &Value) -> Value {
        let number: U256 = serde_json::from_value(params[0].clone()).unwrap();
        let number: u64 = number.to();
        let block = &self.bundle.block;
        if number == block.header.number {
            let mut json = json!(block.header);
            json["hash"] = json!(self.bundle.hash);
            json["uncles"] = json!(block.body.ommers_hashes().collect::<Vec<_>>());
            json["withdrawals"] = json!(block.body.withdrawals);
            json["transactions"] = match params[1] {
                Value::Bool(true) => json!(block.body.transactions),
                _ => json!([]),
            };
            return json;
        }
        let Some(header) = self.witness().headers.iter().find(|h| h.number == number) else {
            return Value::Null;
        };
        let mut json = json!(header);
        json["hash"] = json!(header.hash_slow());
        json["transactions"] = json!([]);
        json
    }

    /// Serves the true answers, changed by `twist`.
    fn serve(
        self,
        twist: impl Fn(&str, &Value, RpcAnswer) -> RpcAnswer + Send + Sync + 'static,
    ) -> HttpServer {
        let one = move |node: &Self, call: &Value| {
            let method = call["method"].as_str().unwrap();
            let mut answer = json!({"jsonrpc": "2.0", "id": call["id"]});
            match twist(method, &call["params"], node.answer(method, &call["params"])) {
                Ok(result) => answer["result"] = result,
                Err((code, message)) => {
                    answer["error"] = json!({"code": code, "message": message});
                }
            }
            answer
        };
        HttpServer::start(move |request| {
            let call: Value = serde_json::from_slice(&request.body).unwrap();
            let answer = match &call {
                Value::Array(calls) if self.takes_batches => {
                    // In another order than the requests.
                    calls.iter().rev().map(|call| one(&self, call)).collect()
                }
                Value::Array(_) => json!({
                    "jsonrpc": "2.0",
                    "id": null,
                    "error": {"code": -32600, "message": "batches are not supported"},
                }),
                call => one(&self, call),
            };
            ScriptedReply::new(200, answer.to_string()).with("content-type", "application/json")
        })
        .unwrap()
    }

    fn honest(self) -> HttpServer {
        self.serve(|_, _, answer| answer)
    }
}

fn client(url: &str) -> RpcClient {
    let options = HttpOptions {
        timeout: Duration::from_secs(10),
        retries: 2,
        backoff: Duration::from_millis(1),
        ..HttpOptions::default()
    };
    RpcClient::new(url, BlockingClient::new(options, Arc::default()))
}

fn make(server: &HttpServer, number: u64) -> Result<MadeBundle, PipelineError> {
    make_from(&server.url(), number)
}

fn make_from(url: &str, number: u64) -> Result<MadeBundle, PipelineError> {
    let client = client(url);
    let opener = Mpt::default();
    let maker = BundleMaker {
        client: &client,
        spec: parse_chain("mainnet").unwrap(),
        backend: Arc::new(retrie_storage_raw::Raw),
        opener: opener.extensions().partial_state,
    };
    maker.make(number, Path::new("made.json.gz"))
}

fn refuses(server: &HttpServer, number: u64, what: &[&str]) {
    let line = make(server, number).unwrap_err().to_string();
    assert!(!line.contains('\n'), "{line}");
    assert!(line.contains(&server.url()), "{line}");
    assert!(line.contains(&format!("block {number}")), "{line}");
    for part in what {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
}

/// The bundle has the same content as its source, for everything that the block reads.
fn assert_same(made: &MadeBundle, source: &Bundle) {
    let number = source.number;
    assert_eq!(made.bundle.block, source.block, "{number}");
    assert_eq!((made.bundle.hash, made.bundle.tx_count), (source.hash, source.tx_count));
    let (pre, expected) = (made.bundle.pre().unwrap(), source.pre().unwrap());
    for (address, account) in pre {
        let account = account.as_ref().unwrap();
        let expected = expected[address].as_ref().unwrap();
        assert_eq!(
            (account.nonce, account.balance, account.code_hash),
            (expected.nonce, expected.balance, expected.code_hash),
            "{number} {address}"
        );
        for (slot, value) in &account.storage {
            assert_eq!(expected.storage[slot], *value, "{number} {address} {slot}");
        }
    }
    for (address, account) in expected {
        let Some(account) = account else { continue };
        let Some(Some(made)) = pre.get(address) else { continue };
        let lost = account.storage.iter().filter(|(slot, value)| {
            !value.is_zero() && made.storage.contains_key(*slot) && made.storage[*slot] != **value
        });
        assert_eq!(lost.count(), 0, "{number} {address}");
    }
    for (hash, code) in made.bundle.codes() {
        assert_eq!(keccak256(&code), hash);
    }
}

#[test]
fn real_blocks_of_every_fork_come_out_as_they_went_in() {
    let Some(folder) = witness_folder() else { return };
    let mut forks = std::collections::BTreeSet::new();
    for file in list_bundles(folder).unwrap() {
        let bundle = file.load().unwrap();
        // Where the file lists no plain state, there is nothing to serve.
        if bundle.pre().is_none() {
            continue;
        }
        if forks.contains(&bundle.fork) && !sample::is_everything() {
            continue;
        }
        let node = MockArchiveNode::of(bundle);
        let made = make(&node.clone().honest(), file.number).unwrap();
        assert!(made.proved);
        assert_same(&made, &node.bundle);
        assert_eq!(Bundle::parse("again", &made.json).unwrap().hash, node.bundle.hash);
        forks.insert(made.bundle.fork.clone());
        // The referee's backend replays it too.
        let client = client("http://127.0.0.1:9");
        let mpt = BundleMaker {
            client: &client,
            spec: parse_chain("mainnet").unwrap(),
            backend: Arc::new(Mpt::default()),
            opener: None,
        };
        mpt.check(&made.bundle).unwrap();
    }
    assert!(forks.len() >= 9, "{forks:?}");
}

#[test]
fn node_without_batches_and_proofs_will_do() {
    let Some(bundle) = load(18884864) else { return };
    let node = MockArchiveNode {
        gives_proofs: false,
        takes_batches: false,
        ..MockArchiveNode::of(bundle)
    };
    let server = node.clone().honest();
    let made = make(&server, 18884864).unwrap();
    assert!(!made.proved);
    assert_same(&made, &node.bundle);
    let batched =
        make(&MockArchiveNode { takes_batches: true, ..node }.honest(), 18884864).unwrap();
    assert_eq!(made.json, batched.json, "the same bundle whatever the node offers");
}

#[test]
fn access_lists_of_the_node_are_a_hint_only() {
    let Some(bundle) = load(18884864) else { return };
    let node = MockArchiveNode::of(bundle);
    let plain = make(&node.clone().honest(), 18884864).unwrap();
    let keys: Vec<_> = node
        .bundle
        .pre()
        .unwrap()
        .iter()
        .filter_map(|(address, account)| {
            let slots: Vec<_> = account.as_ref()?.storage.keys().copied().collect();
            Some(json!({"address": address, "storageKeys": slots}))
        })
        .collect();
    let strange = Address::repeat_byte(0x77);
    for list in [
        json!({"accessList": keys, "gasUsed": "0x1"}),
        json!({"accessList": [{"address": strange, "storageKeys": [B256::ZERO]}]}),
        json!({"error": "execution reverted"}),
        json!("nonsense"),
    ] {
        let server = node.clone().serve(move |method, _, answer| match method {
            "eth_createAccessList" => Ok(list.clone()),
            _ => answer,
        });
        assert_eq!(make(&server, 18884864).unwrap().json, plain.json);
    }
}

#[test]
fn lies_about_state_are_found() {
    let Some(bundle) = load(18884864) else { return };
    let sender = make(&MockArchiveNode::of(bundle.clone()).honest(), 18884864).unwrap();
    let BundleKind::Prestate(state) = &sender.bundle.kind else { panic!("not a prestate bundle") };
    let sender = state.senders[0];
    let is_sender = move |params: &Value| params[0] == json!(sender);
    let honest = MockArchiveNode::of(bundle);
    let blind = MockArchiveNode { gives_proofs: false, ..honest.clone() };

    // One more wei changes nothing in the block: only a proof finds it.
    let richer = move |method: &str, params: &Value, answer: RpcAnswer| match method {
        "eth_getBalance" if is_sender(params) => {
            let balance: U256 = serde_json::from_value(answer?).unwrap();
            Ok(json!(balance + U256::from(1)))
        }
        _ => answer,
    };
    refuses(&honest.clone().serve(richer), 18884864, &["eth_getProof", "account"]);

    let poorer = move |method: &str, params: &Value, answer: RpcAnswer| match method {
        "eth_getBalance" if is_sender(params) => Ok(json!("0x1")),
        _ => answer,
    };
    refuses(&blind.clone().serve(poorer), 18884864, &["transaction", "eth_getBalance"]);

    let empty_slots = |method: &str, _: &Value, answer: RpcAnswer| match method {
        "eth_getStorageAt" => Ok(json!("0x0")),
        _ => answer,
    };
    refuses(&blind.clone().serve(empty_slots), 18884864, &["receiptsRoot", "eth_getStorageAt"]);
    // The block then takes another path, to keys without a proof in the bundle.
    refuses(&honest.clone().serve(empty_slots), 18884864, &["eth_getProof"]);

    let other_code = |method: &str, _: &Value, answer: RpcAnswer| match answer {
        Ok(code) if method == "eth_getCode" && code != json!("0x") => Ok(json!("0x00")),
        answer => answer,
    };
    refuses(&blind.serve(other_code), 18884864, &["gasUsed", "eth_getCode"]);
    refuses(&honest.clone().serve(other_code), 18884864, &["eth_getProof"]);

    // Proofs of another state.
    let no_nodes = |method: &str, _: &Value, answer: RpcAnswer| match method {
        "eth_getProof" => Ok(json!({"accountProof": [], "storageProof": []})),
        _ => answer,
    };
    refuses(&honest.serve(no_nodes), 18884864, &["eth_getProof", "witness"]);
}

#[test]
fn lies_about_blocks_are_found() {
    let Some(bundle) = load(18884864) else { return };
    let node = MockArchiveNode::of(bundle);
    let change = |field: &'static str, value: Value| {
        move |method: &str, params: &Value, answer: RpcAnswer| {
            let mut answer = answer?;
            if method == "eth_getBlockByNumber" && params[1] == json!(true) {
                answer[field] = value.clone();
            }
            Ok(answer)
        }
    };
    for (field, value, what) in [
        ("gasUsed", json!("0x1"), "block hash"),
        ("hash", json!(B256::ZERO), "block hash"),
        ("number", json!("0x1"), "block number"),
        ("transactions", json!([]), "transactionsRoot"),
        ("withdrawals", json!([]), "withdrawalsRoot"),
        ("withdrawals", Value::Null, "withdrawals"),
        ("uncles", json!([B256::ZERO]), "eth_getUncle"),
        ("stateRoot", json!("0x12"), "not what the method gives"),
    ] {
        refuses(&node.clone().serve(change(field, value)), 18884864, &[what]);
    }
    // Another parent: a load balancer over two forks, say.
    let mut other = node.witness().headers.last().unwrap().clone();
    other.extra_data = Bytes::from_static(b"other");
    let hash = other.hash_slow();
    let server = node.clone().serve(move |method, params, answer| {
        let mut answer = answer?;
        if method == "eth_getBlockByNumber" && params[0] == json!(format!("{:#x}", 18884863)) {
            answer["extraData"] = json!(other.extra_data);
            answer["hash"] = json!(hash);
        }
        Ok(answer)
    });
    let line = make(&server, 18884864).unwrap_err().to_string();
    assert!(line.contains("hash of the parent") && line.contains(&hash.to_string()), "{line}");
    // Fields that are missing in the JSON are taken from the block's own bytes, if their hash is
    // right.
    let raw = alloy_primitives::hex::encode_prefixed(alloy_rlp_of(&node.bundle));
    for (bytes, good) in [(json!(raw), true), (json!("0xc0"), false)] {
        let server = node.clone().serve(move |method, params, answer| match method {
            "debug_getRawBlock" => Ok(bytes.clone()),
            "eth_getBlockByNumber" if params[1] == json!(true) => {
                let mut answer = answer?;
                answer["transactions"] = json!([{"type": "0x7e"}]);
                Ok(answer)
            }
            _ => answer,
        });
        match good {
            true => assert_same(&make(&server, 18884864).unwrap(), &node.bundle),
            false => refuses(&server, 18884864, &["debug_getRawBlock"]),
        }
    }
}

fn alloy_rlp_of(bundle: &Bundle) -> Vec<u8> {
    // The data's own bytes, not our encoding of them.
    let file = witness_folder().unwrap().join(format!("{}.json.gz", bundle.number));
    let json = std::process::Command::new("gzip").arg("-dc").arg(file).output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    hex::decode(json["block"].as_str().unwrap()).unwrap()
}

#[test]
fn nodes_that_cannot_answer_are_named() {
    let Some(bundle) = load(18884864) else { return };
    let node = MockArchiveNode::of(bundle);
    let refuse_state = |code, message| {
        move |method: &str, _: &Value, answer: RpcAnswer| match method {
            "eth_getBalance" | "eth_getStorageAt" => Err((code, message)),
            _ => answer,
        }
    };
    let pruned = node.clone().serve(refuse_state(-32000, "missing trie node 0102 (path )"));
    let line = make(&pruned, 18884864).unwrap_err().to_string();
    for part in [&*pruned.url(), "eth_getBalance", "block 18884863", "archive node"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let refused = node.clone().serve(refuse_state(-32000, "no thanks"));
    let line = make(&refused, 18884864).unwrap_err().to_string();
    assert!(line.contains("no thanks") && line.contains("-32000"), "{line}");
    let server = node.honest();
    let line = make(&server, 5).unwrap_err().to_string();
    assert!(line.contains("no such block") && line.contains("block 5"), "{line}");
    let line = make(&server, 0).unwrap_err().to_string();
    assert!(line.contains("genesis"), "{line}");

    let sepolia = parse_chain("sepolia").unwrap();
    let line = client(&server.url()).check_chain(&sepolia).unwrap_err().to_string();
    assert!(line.contains("chain id 1") && line.contains("11155111"), "{line}");
    client(&server.url()).check_chain(&parse_chain("mainnet").unwrap()).unwrap();

    let line = make_from("http://127.0.0.1:9/secret", 7).unwrap_err().to_string();
    assert!(line.contains("http://127.0.0.1:9") && line.contains("cannot connect"), "{line}");
    assert!(!line.contains("secret"), "{line}");
    type NodeReaction = fn(&RecordedRequest) -> ScriptedReply;
    let replies: [(NodeReaction, &str); 5] = [
        (|_| ScriptedReply::new(200, "<html>hello</html>"), "not JSON-RPC"),
        (
            |_| ScriptedReply::new(200, "{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":\"0x1\"}"),
            "not JSON-RPC",
        ),
        (|_| ScriptedReply::new(401, "no"), "401"),
        (|_| ScriptedReply::new(502, "bad gateway"), "502"),
        (|_| ScriptedReply::new(200, "[1,2").cut(2), "broke"),
    ];
    for (reply, what) in replies {
        let server = HttpServer::start(reply).unwrap();
        let line = make(&server, 7).unwrap_err().to_string();
        assert!(line.contains(what) && line.contains(&server.url()), "{what}: {line}");
    }
    let silent = HttpServer::start(|_| ScriptedReply::new(200, "{}").cut(0).hanging()).unwrap();
    let options =
        HttpOptions { timeout: Duration::from_millis(100), retries: 0, ..HttpOptions::default() };
    let client = RpcClient::new(&silent.url(), BlockingClient::new(options, Arc::default()));
    let line = client.block(7).unwrap_err().to_string();
    assert!(line.contains("no answer within 0.1 s") && line.contains("block 7"), "{line}");
}

#[test]
fn rate_limits_are_waited_for() {
    let Some(bundle) = load(21429992) else { return };
    let node = MockArchiveNode::of(bundle);
    let asked = AtomicU32::new(0);
    // The rate limit is returned for one call in forty, alone or within a batch.
    let server =
        node.clone().serve(move |_, _, answer| match asked.fetch_add(1, Ordering::Relaxed) % 40 {
            3 => Err((-32005, "too many requests")),
            _ => answer,
        });
    assert_same(&make(&server, 21429992).unwrap(), &node.bundle);
}
