//! `retrie node` as a process: dev chains, kills, following, proofs from several nodes.

use crate::common;
use retrie_state_testkit::sample;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U64, U256, hex};
use common::{backends, fails_saying, misused_saying, retrie, succeeds, words};
use retrie_chainspec::primitives::Header;
use retrie_pipeline::testkit::{
    BlockPlan, CHAIN_ID, TestCall, TestChain, TestRules, TestWallet, WALLETS, write_blocks,
};
use retrie_sources::testkit::{HttpServer, ScriptedReply};
use retrie_storage_mpt::Mpt;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Long enough for the slowest machine. No test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tests run many nodes on one machine, so discovery is off.
const ALONE: &str = "--addr 127.0.0.1 --port 0 --disable-discovery";

/// A running node, killed at the end of a test.
pub(crate) struct NodeProcess {
    child: Child,
    url: String,
    /// Its log up to the start of the servers.
    log: String,
    /// The log after that.
    later: Arc<Mutex<String>>,
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl NodeProcess {
    /// Starts a node with HTTP on a free port.
    pub(crate) fn start(datadir: &Path, flags: &str) -> Self {
        // A dev chain has no peers without flags.
        let alone = if flags.contains("--dev") || flags.contains("--port") { "" } else { ALONE };
        let line = format!(
            "node --datadir {} --http --http.port 0 \
             --http.api eth,net,web3,state,txpool,debug,sync,admin --authrpc.port 0 {alone} {flags}",
            datadir.display()
        );
        let mut command = retrie(words(&line));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
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
        let later = Arc::<Mutex<String>>::default();
        let rest = later.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while log.read_line(&mut line).is_ok_and(|length| length > 0) {
                rest.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Self { child, url, log: seen, later }
    }

    /// Waits until the log contains this text.
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(text, || {
            let later = self.later.lock().unwrap();
            (self.log.contains(text) || later.contains(text)).then_some(())
        });
    }

    fn answer(&self, method: &str, params: &Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut response = ureq::post(&self.url)
            .header("content-type", "application/json")
            .send(request.to_string())
            .unwrap();
        serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap()
    }

    pub(crate) fn call(&self, method: &str, params: &Value) -> Value {
        let answer = self.answer(method, params);
        assert!(answer.get("error").is_none(), "{method}{params}: {answer}");
        answer["result"].clone()
    }

    fn head(&self) -> (u64, B256) {
        let block = self.call("eth_getBlockByNumber", &json!(["latest", false]));
        let number: U64 = serde_json::from_value(block["number"].clone()).unwrap();
        (number.to(), serde_json::from_value(block["hash"].clone()).unwrap())
    }

    /// Number, hash and root of the latest state, which can be read even if the block cannot.
    fn state(&self) -> (U64, B256, B256) {
        let got = self.call("state_getRoot", &json!(["latest"]));
        let field = |name| serde_json::from_value::<B256>(got[name].clone()).unwrap();
        let number = serde_json::from_value(got["block"].clone()).unwrap();
        (number, field("blockHash"), field("root"))
    }

    fn hash(&self, number: u64) -> Value {
        let block = self.call("eth_getBlockByNumber", &json!([U64::from(number), false]));
        block["hash"].clone()
    }

    fn send(&self, from: &TestWallet, nonce: u64, to: TxKind, input: Bytes) -> B256 {
        let tx = TxEip1559 {
            chain_id: CHAIN_ID,
            nonce,
            gas_limit: 200_000,
            max_fee_per_gas: 100_000_000_000,
            max_priority_fee_per_gas: 1_000_000_000,
            to,
            value: U256::from(7),
            input,
            ..Default::default()
        };
        let signature = from.sign(tx.signature_hash());
        let raw = tx.into_signed(signature).encoded_2718();
        serde_json::from_value(self.call("eth_sendRawTransaction", &json!([Bytes::from(raw)])))
            .unwrap()
    }

    /// Status and body of `GET /health`.
    fn health(&self) -> (u16, Value) {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let agent = ureq::Agent::new_with_config(config);
        let mut response = agent.get(format!("{}/health", self.url)).call().unwrap();
        let body = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&body).unwrap())
    }

    /// Stops it with SIGINT and waits.
    fn interrupt(mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: the child is ours and has not been waited for.
        unsafe { libc::kill(pid, libc::SIGINT) };
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// Kills it with SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Waits until `ready` returns a value.
fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn genesis(folder: &TempDir) -> String {
    let file = folder.path().join("genesis.json");
    std::fs::write(&file, TestRules::Prague.genesis_json()).unwrap();
    file.display().to_string()
}

#[test]
fn a_node_without_ethereums_root_says_what_its_verdicts_mean() {
    let folder = TempDir::new().unwrap();
    let said = |rules: TestRules, flags: &str| {
        let name = format!("{rules:?}{}", flags.len());
        let genesis = folder.path().join(format!("{name}.json"));
        std::fs::write(&genesis, rules.genesis_json()).unwrap();
        let flags = format!("--chain {} --ipcdisable {flags}", genesis.display());
        NodeProcess::start(&folder.path().join(name), &flags).log.clone()
    };
    let whole =
        "VALID means from Amsterdam on (time 0) the whole state but for the form of its root";
    let log = said(TestRules::Amsterdam, "--state-backend raw");
    assert!(log.contains(whole), "{log}");
    let log = said(TestRules::Prague, "--state-backend raw");
    assert!(log.contains("VALID means everything but the state root"), "{log}");
    for flags in ["", "--state-backend raw --referee mpt"] {
        let log = said(TestRules::Amsterdam, flags);
        assert!(!log.contains("VALID means"), "{log}");
    }
}

#[test]
fn dev_chain_seals_what_is_sent_on_every_backend_and_goes_on_after_a_restart() {
    for backend in sample::of(backends(), 3) {
        let folder = TempDir::new().unwrap();
        let flags = format!("--dev --chain {} --state-backend {backend}", genesis(&folder));
        let datadir = folder.path().join("data");
        let node = NodeProcess::start(&datadir, &flags);
        let wallet = TestWallet::new(0);
        let to = Address::repeat_byte(0x77);
        for nonce in 0..3 {
            let hash = node.send(&wallet, nonce, to.into(), Bytes::new());
            let receipt = wait_for("a receipt", || {
                let receipt = node.call("eth_getTransactionReceipt", &json!([hash]));
                (!receipt.is_null()).then_some(receipt)
            });
            assert_eq!(receipt["status"], "0x1", "{backend}");
        }
        let balance = |block: &str| node.call("eth_getBalance", &json!([to, block]));
        assert_eq!([balance("0x0"), balance("latest")], ["0x0", "0x15"], "{backend}");
        let (number, hash) = node.head();
        let below = node.call("eth_getBalance", &json!([to, U64::from(number - 1)]));
        assert_eq!(below, "0xe", "{backend}");
        node.interrupt();

        let node = NodeProcess::start(&datadir, &flags);
        assert_eq!(node.head(), (number, hash), "{backend}");
        node.send(&wallet, 3, to.into(), Bytes::new());
        wait_for("the next block", || (node.head().0 > number).then_some(()));
        let heap = node.call("debug_memStats", &json!([]));
        assert!(heap["HeapAlloc"].as_u64().unwrap() > 1 << 20, "{backend}: {heap}");
        // The whole chain is reverted, and grows again without its former transactions.
        let genesis = node.hash(0);
        assert_eq!(node.call("debug_setHead", &json!(["0x0"])), Value::Null, "{backend}");
        assert_eq!(node.hash(0), genesis);
        assert_eq!(node.call("eth_getBalance", &json!([to, "latest"])), "0x0", "{backend}");
        node.send(&wallet, 0, to.into(), Bytes::new());
        node.interrupt();
        let node = NodeProcess::start(&datadir, &flags);
        assert_eq!(node.head().0, 1, "{backend}: what was dropped stays so");
        assert_eq!(node.call("eth_getBalance", &json!([to, "latest"])), "0x7", "{backend}");
        node.interrupt();
    }
}

#[test]
fn the_index_of_addresses_is_kept_if_its_flag_is_set() {
    let dir = TempDir::new().unwrap();
    let flags = "--dev --state-backend lvmt --http.api eth,ots";
    let target = Address::repeat_byte(0x77);
    let search = json!([target, 0, 25]);
    let node = NodeProcess::start(dir.path(), flags);
    let from = node.call("eth_accounts", &json!([]))[0].clone();
    let request = json!([{ "from": from, "to": target, "value": "0x1" }]);
    let hash = node.call("eth_sendTransaction", &request);
    let refused = node.answer("ots_searchTransactionsBefore", &search);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("--index.addresses"), "{message}");
    drop(node);
    let node = NodeProcess::start(dir.path(), &format!("{flags} --index.addresses"));
    let page = wait_for("the index", || {
        let answer = node.answer("ots_searchTransactionsBefore", &search);
        answer.get("result").filter(|page| page.get("indexedFrom").is_none()).cloned()
    });
    // A node that is killed may lose its last block.
    assert!(page["txs"].as_array().unwrap().iter().all(|one| one["hash"] == hash));
    let hash = node.call("eth_sendTransaction", &request);
    let page = node.call("ots_searchTransactionsBefore", &search);
    assert_eq!(page["txs"][0]["hash"], hash);
}

#[test]
fn a_killed_node_keeps_what_was_durable_and_resumes() {
    for backend in sample::of(backends(), 3) {
        println!("{backend}");
        keeps_what_was_durable(&backend);
    }
}

#[test]
fn accepted_transactions_outlive_kills_and_restarts() {
    for backend in sample::of(backends(), 3) {
        let folder = TempDir::new().unwrap();
        let flags = format!("--dev --chain {} --state-backend {backend}", genesis(&folder));
        let slow = format!("{flags} --dev.block-time 1h");
        let datadir = folder.path().join("data");
        let to = TxKind::Call(Address::repeat_byte(0x77));
        let mut sent = Vec::new();
        let node = NodeProcess::start(&datadir, &slow);
        for (from, nonce) in (0..4).flat_map(|from| (0..5).map(move |nonce| (from, nonce))) {
            sent.push(node.send(&TestWallet::new(from), nonce, to, Bytes::new()));
        }
        // A transaction behind a nonce gap.
        let queued = node.send(&TestWallet::new(5), 9, to, Bytes::new());
        node.kill();
        let node = NodeProcess::start(&datadir, &slow);
        let status = node.call("txpool_status", &json!([]));
        assert_eq!(status, json!({"pending": "0x14", "queued": "0x1"}), "{backend}");
        node.interrupt();

        let node = NodeProcess::start(&datadir, &flags);
        for hash in &sent {
            wait_for("a receipt", || {
                let receipt = node.call("eth_getTransactionReceipt", &json!([hash]));
                (!receipt.is_null()).then_some(())
            });
        }
        // These blocks need not be durable.
        node.kill();
        let node = NodeProcess::start(&datadir, &flags);
        for hash in &sent {
            wait_for("a receipt after a kill", || {
                let receipt = node.call("eth_getTransactionReceipt", &json!([hash]));
                (!receipt.is_null()).then_some(())
            });
        }
        let still = node.call("eth_getTransactionByHash", &json!([queued]));
        assert!(still["blockHash"].is_null() && !still["hash"].is_null(), "{backend}: {still}");
        node.interrupt();
    }
}

/// Hashes of the blocks that a file of records ends with, by number.
fn streamed(file: &Path) -> Vec<Value> {
    let mut hashes: Vec<Value> = Vec::new();
    let text = std::fs::read_to_string(file).unwrap();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    for (index, line) in whole.enumerate() {
        let record: Value = serde_json::from_str(line).unwrap();
        let sequence = format!("{}-", index + 1);
        assert!(record["cursor"].as_str().unwrap().starts_with(&sequence), "{line}");
        if record["type"] == "block" {
            let parent = &record["block"]["parentHash"];
            assert!(hashes.last().is_none_or(|last| last == parent), "{line}");
            assert_eq!(record["number"], json!(U64::from(hashes.len())));
            hashes.push(record["hash"].clone());
        } else {
            assert_eq!(record["type"], "revert");
            for undone in record["undone"].as_array().unwrap() {
                assert_eq!(hashes.pop().unwrap(), undone["hash"]);
            }
        }
    }
    hashes
}

#[test]
fn the_stream_of_a_killed_node_has_no_gap_and_no_double() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("out.ndjson");
    let flags = format!(
        "--dev --dev.block-time 20ms --chain {} --stream file:{} --stream.from earliest \
         --stream.records block",
        genesis(&folder),
        file.display()
    );
    let datadir = folder.path().join("data");
    for _ in 0..4 {
        let node = NodeProcess::start(&datadir, &flags);
        let length = streamed(&file).len();
        wait_for("records", || (streamed(&file).len() > length + 5).then_some(()));
        node.kill();
    }
    let node = NodeProcess::start(&datadir, &flags);
    let (start, _) = node.head();
    wait_for("the head", || (streamed(&file).len() as u64 > start + 20).then_some(()));
    for (number, hash) in streamed(&file).iter().enumerate() {
        assert_eq!(node.hash(number as u64), *hash, "block {number}");
    }
    node.interrupt();
    for (flags, says) in [
        ("--stream out.ndjson", "no target of a stream"),
        ("--stream ws://example.org:1", "no target of a stream"),
        ("--stream.records logs", "none of block, receipts, delta"),
        ("--stream.from head", "neither the number of a block"),
    ] {
        misused_saying(&mut retrie(words(&format!("node --dev {flags}"))), &[says]);
    }
}

/// Kills a node repeatedly while blocks, state and old states are read.
fn keeps_what_was_durable(backend: &str) {
    let folder = TempDir::new().unwrap();
    let genesis = genesis(&folder);
    let flags = format!("--dev --dev.block-time 30ms --chain {genesis} --state-backend {backend}");
    let datadir = folder.path().join("data");
    let mut floor = 0;
    let mut durable: Vec<(u64, (Value, Value))> = Vec::new();
    for round in 0..4 {
        let node = NodeProcess::start(&datadir, &flags);
        let (start, _) = node.head();
        let balance = |number| {
            let asked = json!([TestWallet::new(0).address, U64::from(number)]);
            node.call("eth_getBalance", &asked)
        };
        assert!(start >= floor, "round {round}: block {start} after {floor}");
        for (number, known) in &durable {
            let now = (node.hash(*number), balance(*number));
            assert_eq!(now, *known, "{backend}: block {number} in round {round}");
        }
        let goal = start + 12;
        let wallet = TestWallet::new(round);
        for nonce in 0..20 {
            node.send(&wallet, nonce, Address::repeat_byte(nonce as u8).into(), Bytes::new());
        }
        wait_for("blocks", || (node.head().0 >= goal).then_some(()));
        // With the default threshold at most a few blocks are not durable yet.
        floor = goal - 8;
        durable = (1..=floor).map(|n| (n, (node.hash(n), balance(n)))).collect();
        node.kill();
    }
    let check = format!("db verify --datadir {} --chain {genesis}", datadir.display());
    succeeds(&mut retrie(words(&check)));
}

/// An unreachable address must be reported at the start, without a long wait.
#[test]
fn a_dead_address_to_follow_is_told_at_once_and_tried_on() {
    let folder = TempDir::new().unwrap();
    // A port that was free a moment ago has no listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let line = format!(
        "node --datadir {} --chain dev --authrpc.port 0 --ipcdisable {ALONE} --follow {url}",
        folder.path().display()
    );
    let mut child = retrie(words(&line)).stderr(Stdio::piped()).spawn().unwrap();
    let mut node = BufReader::new(child.stderr.take().unwrap()).lines();
    let later = Arc::default();
    let _node = NodeProcess { child, url: String::new(), log: String::new(), later };
    let mut hear = |what: &str| loop {
        let line = node.next().expect("the node has ended").unwrap();
        if line.contains(what) {
            return line;
        }
    };
    hear("following http");
    let start = Instant::now();
    let line = hear("cannot follow yet");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(line.contains(&url) && line.contains("refused"), "{line}");
    // The node continues, and logs it.
    assert!(hear("WARN").contains(&url));
}

#[test]
fn a_follower_has_the_same_chain_and_goes_on_with_it() {
    let folder = TempDir::new().unwrap();
    let chain = format!("--chain {} --state-backend lvmt --state-root native", genesis(&folder));
    let leader = NodeProcess::start(&folder.path().join("leader"), &format!("--dev {chain}"));
    let wallet = TestWallet::new(1);
    for nonce in 0..5 {
        leader.send(&wallet, nonce, Address::repeat_byte(9).into(), Bytes::new());
        wait_for("a block", || (leader.head().0 > nonce).then_some(()));
    }
    let flags = format!("--follow {} --follow.interval 50ms {chain}", leader.url);
    let follower = NodeProcess::start(&folder.path().join("follower"), &flags);
    wait_for("the follower", || (follower.head() == leader.head()).then_some(()));
    leader.send(&wallet, 5, Address::repeat_byte(9).into(), Bytes::new());
    wait_for("the next block", || (leader.head().0 > 5).then_some(()));
    wait_for("the follower", || (follower.head() == leader.head()).then_some(()));
    let balance = json!([Address::repeat_byte(9), "latest"]);
    assert_eq!(follower.call("eth_getBalance", &balance), leader.call("eth_getBalance", &balance));
    assert_eq!(follower.call("eth_syncing", &json!([])), json!(false));
    let (status, health) = follower.health();
    assert_eq!((status, &health["syncing"], &health["head"]), (200, &json!(false), &json!(6)));
    assert_eq!((&health["hash"], &health["shard"]), (&follower.hash(6), &json!("none")));
    assert_eq!(health["node"], follower.call("web3_clientVersion", &json!([])));
}

/// While the node is far behind, a load balancer must not send requests to it.
#[test]
fn a_follower_that_is_behind_says_so_to_load_balancers_and_wallets() {
    let folder = TempDir::new().unwrap();
    // A leader with a head far away, which has none of the blocks below it.
    let head = Header { number: 1000, ..Header::default() };
    let mut head_json = serde_json::to_value(&head).unwrap();
    head_json["hash"] = json!(head.hash_slow());
    head_json["uncles"] = json!([]);
    head_json["transactions"] = json!([]);
    let leader = HttpServer::start(move |request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        let result = match call["method"].as_str().unwrap() {
            "eth_chainId" => json!(U64::from(CHAIN_ID)),
            _ if call["params"][0] == "latest" => head_json.clone(),
            _ => Value::Null,
        };
        let answer = json!({ "jsonrpc": "2.0", "id": call["id"], "result": result });
        ScriptedReply::new(200, answer.to_string())
    });
    let leader = leader.unwrap();
    let flags =
        format!("--chain {} --follow {} --follow.interval 50ms", genesis(&folder), leader.url());
    let node = NodeProcess::start(&folder.path().join("data"), &flags);
    let progress = wait_for("the follower's first look", || {
        // Behind from the start, by an unknown number of blocks.
        let progress = node.call("eth_syncing", &json!([]));
        assert_ne!(progress, json!(false));
        (progress["highestBlock"] != "0x0").then_some(progress)
    });
    assert_eq!(progress["startingBlock"], "0x0");
    assert_eq!(
        (&progress["currentBlock"], &progress["highestBlock"]),
        (&json!("0x0"), &json!("0x3e8"))
    );
    let (status, health) = node.health();
    assert_eq!((status, &health["syncing"], &health["head"]), (503, &json!(true), &json!(0)));
    assert_eq!(health["shard"], json!(null));
    node.interrupt();
}

#[test]
fn four_nodes_prove_together_what_none_can_prove_alone() {
    let folder = TempDir::new().unwrap();
    let mut made = TestChain::new(TestRules::Prague, Arc::new(Mpt::default()));
    let mut at = made.genesis();
    for n in 0..24 {
        let call = TestCall::transfer(n % WALLETS, Address::repeat_byte(n), 5);
        at = made.extend(at, BlockPlan::new([call]));
    }
    let blocks = folder.path().join("chain.rlp");
    write_blocks(&blocks, &made.path(made.genesis(), at));
    let chain = genesis(&folder);
    let shard = |n: usize| format!("--state-backend lvmt --lvmt.proof-shard {n}/4");
    for n in 0..4 {
        let line = format!(
            "import --chain {chain} --datadir {} {} {}",
            folder.path().join(n.to_string()).display(),
            shard(n),
            blocks.display()
        );
        succeeds(&mut retrie(words(&line)));
    }
    let start = |n: usize, more: &str| {
        let flags = format!("--chain {chain} {} {more}", shard(n));
        NodeProcess::start(&folder.path().join(n.to_string()), &flags)
    };
    let mut others: Vec<NodeProcess> = (1..4).map(|n| start(n, "")).collect();
    let urls: Vec<_> = others.iter().map(|node| node.url.clone()).collect();
    let node = start(0, &format!("--proof-peers {}", urls.join(",")));
    let lonely = &others[0];
    // An entry node without any shard. One of its peers is gone, and one changes the bytes that it
    // forwards.
    let door = {
        let liar = liar(&others[1].url, "state_getProofPart", |bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        });
        let peers = format!("{},http://127.0.0.1:1,{},{}", liar.url(), node.url, urls.join(","));
        let line = format!(
            "import --chain {chain} --datadir {} --state-backend lvmt {}",
            folder.path().join("door").display(),
            blocks.display()
        );
        succeeds(&mut retrie(words(&line)));
        let flags = format!(
            "--chain {chain} --state-backend lvmt --proof-peers {peers} --proof-peers.probe 200ms \
             --metrics 127.0.0.1:0"
        );
        (NodeProcess::start(&folder.path().join("door"), &flags), liar)
    };
    let mut alone = 0;
    for n in 0..24 {
        let address = Address::repeat_byte(n);
        let request = json!([address, [], "latest"]);
        let proof = node.call("state_getProof", &request);
        assert_eq!(proof["account"]["balance"], "0x5", "{n}: {proof}");
        // Through each entry node, with each liar.
        assert_eq!(door.0.call("state_getProof", &request), proof, "{n}");
        let file = folder.path().join("proof.json");
        std::fs::write(&file, proof.to_string()).unwrap();
        let root = proof["root"].as_str().unwrap();
        let verify = format!("proof verify {} --root {root} --insecure-dev", file.display());
        succeeds(&mut retrie(words(&verify)));
        alone += u32::from(lonely.answer("state_getProof", &request).get("error").is_none());
    }
    assert!(alone < 20, "a node with a quarter of the proofs proved {alone} of 24 by itself");
    // A call that reads all 24 balances, and returns their sum.
    let balances = (0..24u8).map(|n| format!("73{}3101", hex::encode([n; 20])));
    let code = format!("0x5f{}5f5260205ff3", balances.collect::<String>());
    let call = node.call("state_call", &json!([{ "data": code }, "latest"]));
    assert_eq!(call["output"], json!(B256::with_last_byte(120)), "{call}");
    assert_eq!(door.0.call("state_call", &json!([{ "data": code }, "latest"])), call);
    let error = lonely.answer("state_call", &json!([{ "data": code }, "latest"]));
    assert!(error["error"]["message"].as_str().unwrap().contains("shard"), "{error}");
    let file = folder.path().join("call.json");
    std::fs::write(&file, call.to_string()).unwrap();
    let [hash, root] = ["blockHash", "root"].map(|member| call[member].as_str().unwrap());
    let trusted = format!("--block-hash {hash} --root {root} --insecure-dev --chain {chain}");
    let verify = format!("proof verify {} {trusted}", file.display());
    let mut verify = retrie(words(&verify));
    succeeds(verify.args(["--request", &json!({ "data": code }).to_string()]));
    // The entry node asks any peer that has a part, so it finds the liar sooner or later.
    let (_, metrics) = door.0.log.split_once("metrics on ").expect("it says where");
    let metrics = metrics.split_whitespace().next().unwrap();
    let set_aside =
        format!("retrie_proof_peer_set_aside_total{{peer=\"{}\"}} 1\n", &door.1.url()[7..]);
    wait_for("the liar to be found", || {
        for n in 0..24 {
            door.0.call("state_getProof", &json!([Address::repeat_byte(n), [], "latest"]));
        }
        let text = ureq::get(metrics).call().unwrap().body_mut().read_to_string().unwrap();
        text.contains(&set_aside).then_some(())
    });
    // Without the last node of a shard, the error names the shard.
    others.pop().unwrap().interrupt();
    let errors = (0..24).filter_map(|n| {
        let answer = node.answer("state_getProof", &json!([Address::repeat_byte(n), [], "latest"]));
        answer["error"]["message"].as_str().map(str::to_owned)
    });
    let error = errors.into_iter().next().expect("some proof takes shard 3/4");
    assert!(error.contains("shard 3/4") && error.contains(&urls[2][7..]), "{error}");
}

#[test]
fn old_states_and_versions_are_fetched_from_a_node_and_verified_without_it() {
    let folder = TempDir::new().unwrap();
    let flags = "--state-backend cole --cole.memory-pairs 40 --cole.size-ratio 2";
    let flags = format!("--dev --retention 4 --chain {} {flags}", genesis(&folder));
    let node = NodeProcess::start(&folder.path().join("data"), &flags);
    let (wallet, to) = (TestWallet::new(0), Address::repeat_byte(0x77));
    for nonce in 0..30 {
        node.send(&wallet, nonce, to.into(), Bytes::new());
        wait_for("a block", || (node.head().0 > nonce).then_some(()));
    }
    // Beyond the retention window, states are proven by the root of the durable tip.
    let shown_later = || node.call("state_getProof", &json!([to, [], "0x5"]))["asOf"] == "0x5";
    wait_for("a later root", || shown_later().then_some(()));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let ask = |line: &str, name: &str| {
        let line = format!("proof {line} --rpc {} --address {to} -o {}", node.url, file(name));
        let out = succeeds(&mut retrie(words(&line)));
        assert!(out.contains("by cole") && out.contains("nothing is verified yet"), "{out}");
        let answer: Value = serde_json::from_slice(&std::fs::read(file(name)).unwrap()).unwrap();
        let number: U64 = serde_json::from_value(answer["block"].clone()).unwrap();
        // The file must not decide what is trusted.
        (answer, node.hash(number.to()).as_str().unwrap().to_owned())
    };
    let (old, old_hash) = ask("get --block 5", "old.json");
    let (versions, later_hash) = ask("provenance --from 2 --to 8", "versions.json");
    let params = node.call("state_backend", &json!([]))["params"].as_str().unwrap().to_owned();
    node.interrupt();

    let verify = |name: &str, hash: &str, more: &str| {
        let line = format!("proof verify {} --block-hash {hash} {more}", file(name));
        retrie(words(&line))
    };
    let pinned = format!("--cole-params {params}");
    let out = succeeds(&mut verify("old.json", &old_hash, &pinned));
    assert!(out.contains("state after block 5:") && out.contains("balance 35 wei"), "{out}");
    assert!(out.contains("in the header of the trusted hash"), "{out}");
    let out = succeeds(&mut verify("versions.json", &later_hash, &pinned));
    assert!(out.contains("blocks 2 to 8: 7 versions"), "{out}");
    for block in 2..=8 {
        let line = format!("set by block {block}: account {to}: balance {} wei", 7 * block);
        assert!(out.contains(&line), "{out}");
    }
    // Parameters come from a trusted source, not from the proof.
    let hint = [&params[..], "--cole-params"];
    fails_saying(&mut verify("old.json", &old_hash, ""), &hint);

    let refuses = |answer: &Value, hash: &str, field: &str, value: Value, says: &str| {
        let mut forged = answer.clone();
        forged[field] = value;
        std::fs::write(file("forged.json"), forged.to_string()).unwrap();
        fails_saying(&mut verify("forged.json", hash, &pinned), &["forged.json is refused", says]);
    };
    refuses(&old, &old_hash, "asOf", json!("0x6"), "");
    refuses(&old, &old_hash, "asOf", json!("0xffff"), "65535");
    refuses(&old, &old_hash, "asOf", Value::Null, "");
    let mut account = old["account"].clone();
    account["balance"] = json!("0x1");
    refuses(&old, &old_hash, "account", account, "another value of account");
    refuses(&old, &old_hash, "proof", versions["proof"].clone(), "");
    let mut fewer = versions["versions"].clone();
    fewer.as_array_mut().unwrap().remove(3);
    refuses(&versions, &later_hash, "versions", fewer, "another value of account");
    refuses(&versions, &later_hash, "to", json!("0x9"), "");
    refuses(&versions, &later_hash, "from", json!("0x1"), "");
}

/// A node that forwards requests, and changes the bytes of one method's responses, alone or in a
/// batch.
fn liar(
    url: &str,
    method: &'static str,
    bend: impl Fn(&mut Vec<u8>) + Send + Sync + 'static,
) -> HttpServer {
    let url = url.to_owned();
    let server = HttpServer::start(move |request| {
        if request.method == "GET" {
            let url = format!("{url}{}", request.path);
            let Ok(mut answer) = ureq::get(url).call() else { return ScriptedReply::new(502, "") };
            return ScriptedReply::new(200, answer.body_mut().read_to_vec().unwrap());
        }
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        let post = ureq::post(&url).header("content-type", "application/json");
        let Ok(mut answer) = post.send(&request.body[..]) else {
            return ScriptedReply::new(502, "");
        };
        let answer = answer.body_mut().read_to_vec().unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        if call["method"] == method {
            let all = match &mut answer["result"] {
                Value::Array(all) => &mut all[..],
                one => std::slice::from_mut(one),
            };
            for chunk in all.iter_mut().filter(|chunk| chunk.is_string()) {
                let bytes: Bytes = serde_json::from_value(chunk.clone()).unwrap();
                let mut bent = bytes.to_vec();
                bend(&mut bent);
                *chunk = json!(Bytes::from(bent));
            }
        }
        ScriptedReply::new(200, answer.to_string())
    });
    server.unwrap()
}

#[test]
fn a_new_node_begins_with_the_state_of_one_honest_node_among_liars_and_goes_on() {
    for backend in sample::of(vec!["mpt", "bavl", "prefix"], 2) {
        let folder = TempDir::new().unwrap();
        let chain =
            format!("--chain {} --state-backend {backend} --state-root native", genesis(&folder));
        let origin = NodeProcess::start(&folder.path().join("origin"), &format!("--dev {chain}"));
        let wallet = TestWallet::new(1);
        // A contract with a slot and a code of one byte.
        let create = Bytes::from_static(&[0x60, 1, 0x60, 0, 0x55, 0x60, 1, 0x60, 0, 0xf3]);
        origin.send(&wallet, 0, TxKind::Create, create);
        for nonce in 1..6 {
            wait_for("a block", || (origin.head().0 >= nonce).then_some(()));
            origin.send(&wallet, nonce, Address::with_last_byte(nonce as u8).into(), Bytes::new());
        }
        wait_for("a block", || (origin.head().0 >= 6).then_some(()));
        let (number, head, root) = origin.state();

        let chunks = "sync_getChunks";
        let flips = liar(&origin.url, chunks, |bytes| bytes[0] ^= 1);
        let cuts = liar(&origin.url, chunks, |bytes| bytes.truncate(bytes.len() / 2));
        let grows = liar(&origin.url, chunks, |bytes| bytes.resize(3 << 20, 7));
        let garbage = HttpServer::start(|_| ScriptedReply::new(200, "[1, 2")).unwrap();
        let endless = HttpServer::start(|_| ScriptedReply::new(200, vec![b' '; 64 << 20])).unwrap();
        let gone = "http://127.0.0.1:1";
        let liars = [&flips, &cuts, &grows, &garbage, &endless].map(HttpServer::url).join(",");
        let from = format!("--sync.from {liars},{gone},{}", origin.url);

        // With lying nodes only: a clear error, and no datadir that could be taken for a state.
        let data = folder.path().join("new");
        let line = format!(
            "node --datadir {} {chain} --sync.from {liars},{gone} --checkpoint {head} \
             --sync.patience 2s --disable-auth-server",
            data.display()
        );
        let error = fails_saying(&mut retrie(words(&line)), &["no peer gives the state of block"]);
        assert!(error.contains("is not what it sent"), "{error}");
        assert!(!data.join("db").exists());

        let flags = format!("{chain} {from} --checkpoint {head}");
        let node = NodeProcess::start(&data, &flags);
        assert_eq!(node.state(), (number, head, root), "{backend}");
        assert!(!data.join("sync").exists(), "nothing of it is left");
        let created = wallet.address.create(0);
        for (method, params) in [
            ("eth_getCode", json!([created, "latest"])),
            ("eth_getStorageAt", json!([created, "0x0", "latest"])),
            ("eth_getTransactionCount", json!([wallet.address, "latest"])),
        ] {
            let theirs = origin.call(method, &params);
            assert_eq!(node.call(method, &params), theirs, "{backend}: {method}");
        }
        node.interrupt();

        // The node continues with the blocks above; the state is not fetched again.
        let flags = format!("{flags} --follow {} --follow.interval 50ms", origin.url);
        let node = NodeProcess::start(&data, &flags);
        for nonce in 6..10 {
            origin.send(&wallet, nonce, TxKind::Create, Bytes::from_static(&[0x43, 0x40]));
            wait_for("a block", || (origin.head().0 > nonce).then_some(()));
        }
        wait_for("the new node", || (node.state() == origin.state()).then_some(()));

        // The root alone is enough to find the block.
        let (_, head, root) = origin.state();
        let flags = format!("{chain} --sync.from {} --sync.trusted-root {root}", origin.url);
        let other = NodeProcess::start(&folder.path().join("other"), &flags);
        assert_eq!(other.state().1, head, "{backend}");
        for node in [node, other, origin] {
            node.interrupt();
        }
    }
}

#[test]
fn wrong_flags_and_files_are_one_line() {
    let folder = TempDir::new().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0x12").unwrap();
    let node = |flags: &str| {
        let line = format!("node --datadir {}/d {flags}", folder.path().display());
        common::fails(&mut retrie(words(&line)))
    };
    let text = node(&format!("--dev --authrpc.jwtsecret {}", secret.display()));
    assert!(text.contains("secret") && text.contains("32 bytes"), "{text}");
    assert!(node("--dev --chain sepolia").contains("--dev is a chain of its own"));
    // Wrong flags leave no datadir behind.
    let other = format!("--datadir {}/other", folder.path().display());
    let node = |flags: &str| common::fails(&mut retrie(words(&format!("node {other} {flags}"))));
    let text = node("--sync.from http://127.0.0.1:1");
    assert!(text.contains("--checkpoint"), "{text}");
    let from = format!("--sync.from http://127.0.0.1:1 --checkpoint {}", B256::repeat_byte(7));
    let text = node(&from);
    assert!(text.contains("no peer gives the header"), "{text}");
    let text = node(&format!("{from} --state-backend lmpt"));
    assert!(text.contains("cannot be fetched in chunks"), "{text}");
    let config = folder.path().join("c.toml");
    std::fs::write(&config, "nonsense = 1\n").unwrap();
    assert!(node(&format!("--config {}", config.display())).contains("--nonsense"));
}
