//! Following another node's JSON-RPC: a small node of ours answers, and may lie.

mod common;

use alloy_primitives::B256;
use common::{Node, Running, Setup, hash, only_head, syncing, valid};
use retrie_chainspec::primitives::Block;
use retrie_engine::{EngineConfig, FollowConfig, FollowError, Follower, Leader};
use retrie_pipeline::testkit::{CHAIN_ID, Plan, Rules, TestChain};
use retrie_sources::{
    Http, HttpOptions, RpcClient,
    testkit::{HttpServer, Reply},
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What the other node has.
#[derive(Default)]
struct Remote {
    chain_id: u64,
    canonical: Vec<Block>,
    by_hash: HashMap<B256, Block>,
    /// Numbers of the safe and the final block.
    safe: Option<u64>,
    finalized: Option<u64>,
}

impl Remote {
    /// Makes the chain that ends with `tip` canonical.
    fn lead(&mut self, chain: &TestChain, tip: B256) {
        let mut blocks = vec![chain.block(chain.genesis()).clone()];
        blocks.extend(chain.path(chain.genesis(), tip));
        self.serve(blocks);
    }

    fn serve(&mut self, blocks: Vec<Block>) {
        self.by_hash.extend(blocks.iter().map(|block| (hash(block), block.clone())));
        self.canonical = blocks;
    }

    fn answer(&self, method: &str, params: &Value) -> Value {
        let by_number = |number: u64| self.canonical.get(number as usize);
        let block = match method {
            "eth_chainId" => return json!({ "result": format!("{:#x}", self.chain_id) }),
            "eth_getBlockByNumber" => match params[0].as_str().unwrap() {
                "latest" => self.canonical.last(),
                "safe" => self.safe.and_then(by_number),
                "finalized" => self.finalized.and_then(by_number),
                number => by_number(u64::from_str_radix(&number[2..], 16).unwrap()),
            },
            "eth_getBlockByHash" => {
                let hash: B256 = serde_json::from_value(params[0].clone()).unwrap();
                self.by_hash.get(&hash)
            }
            _ => {
                let error = json!({ "code": -32601, "message": "the method does not exist" });
                return json!({ "error": error });
            }
        };
        let Some(block) = block else { return json!({ "result": null }) };
        let mut answer = serde_json::to_value(&block.header).unwrap();
        answer["hash"] = json!(hash(block));
        answer["uncles"] = json!([]);
        answer["withdrawals"] = json!(block.body.withdrawals);
        answer["transactions"] = if params[1] == true {
            json!(block.body.transactions)
        } else {
            block.body.transactions.iter().map(|tx| json!(tx.hash())).collect()
        };
        json!({ "result": answer })
    }
}

struct World {
    remote: Arc<Mutex<Remote>>,
    server: HttpServer,
    running: Running,
    stop: Arc<AtomicBool>,
}

impl World {
    fn new(chain: &TestChain, setup: Setup) -> Self {
        Self::on(Node::new(&chain.spec, setup))
    }

    fn on(node: Node) -> Self {
        let remote = Arc::new(Mutex::new(Remote { chain_id: CHAIN_ID, ..Remote::default() }));
        let shared = remote.clone();
        let server = HttpServer::start(move |request| {
            let call: Value = serde_json::from_slice(&request.body).unwrap();
            let one = |call: &Value| {
                let remote = shared.lock().unwrap();
                let mut answer = remote.answer(call["method"].as_str().unwrap(), &call["params"]);
                answer["jsonrpc"] = "2.0".into();
                answer["id"] = call["id"].clone();
                answer
            };
            let reply = match &call {
                Value::Array(calls) => calls.iter().map(one).collect(),
                call => one(call),
            };
            Reply::new(200, reply.to_string())
        });
        let running = node.start();
        Self { remote, server: server.unwrap(), running, stop: Arc::default() }
    }

    fn remote(&self, change: impl FnOnce(&mut Remote)) {
        change(&mut self.remote.lock().unwrap());
    }

    fn follower(&self, leader: Leader) -> Follower {
        let options = HttpOptions {
            timeout: Duration::from_secs(10),
            retries: 0,
            backoff: Duration::from_millis(1),
        };
        let client = RpcClient::new(&self.server.url(), Http::new(options, Arc::default()));
        Follower::new(
            self.running.engine.handle().clone(),
            client,
            FollowConfig { leader, interval: Duration::from_millis(1) },
            self.running.runtime.handle().clone(),
            self.stop.clone(),
        )
    }

    fn asked(&self, method: &str) -> usize {
        let requests = self.server.requests();
        requests.iter().filter(|one| String::from_utf8_lossy(&one.body).contains(method)).count()
    }
}

#[test]
fn follower_catches_up_and_follows_reorgs() {
    for setup in [Setup::Mpt, Setup::Lvmt, Setup::ColeNative] {
        let mut chain = setup.test_chain(Rules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, 90, 12, 1);
        let side = chain.branch(main[80], 12, 12, 2);
        let world = World::new(&chain, setup);
        let follower = world.follower(Leader::Remote);
        world.remote(|remote| {
            remote.lead(&chain, main[85]);
            (remote.safe, remote.finalized) = (Some(84), Some(70));
        });
        // More than come by hash at once.
        follower.step().unwrap();
        assert_eq!(world.running.head(), main[85], "{setup:?}");
        let view = world.running.live.view().unwrap();
        assert_eq!(view.safe().map(|block| block.hash), Some(main[83]));
        assert_eq!(view.finalized().map(|block| block.hash), Some(main[69]));
        // Nothing new.
        let before = world.server.requests().len();
        follower.step().unwrap();
        assert_eq!(world.server.requests().len(), before + 1);
        // A few more, a reorg, and back.
        for head in [main[89], side[11], main[89]] {
            world.remote(|remote| remote.lead(&chain, head));
            follower.step().unwrap();
            assert_eq!(world.running.head(), head);
        }
        // The remote node has fallen back: nothing to do.
        world.remote(|remote| remote.lead(&chain, main[88]));
        follower.step().unwrap();
        assert_eq!(world.running.head(), main[89]);
    }
}

#[test]
fn deep_gap_on_another_branch_is_found_by_hash() {
    let mut chain = Setup::Mpt.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 6, 12, 1);
    let side = chain.branch(main[1], 80, 12, 2);
    let world = World::new(&chain, Setup::Mpt);
    world.running.follow(&chain.path(genesis, main[5]));
    world.remote(|remote| remote.lead(&chain, side[79]));
    world.follower(Leader::Remote).step().unwrap();
    assert_eq!(world.running.head(), side[79]);
}

#[test]
fn invalid_block_of_the_remote_node_is_named_and_not_followed() {
    let mut chain = Setup::Mpt.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 100, 12, 1);
    for bad_number in [5, 98] {
        let world = World::new(&chain, Setup::Mpt);
        let follower = world.follower(Leader::Remote);
        let mut blocks = vec![chain.block(genesis).clone()];
        for block in chain.path(genesis, main[99]) {
            let mut block = block;
            block.header.parent_hash = hash(&blocks[blocks.len() - 1]);
            if block.header.number == bad_number {
                block.header.state_root = B256::repeat_byte(1);
            }
            blocks.push(block);
        }
        let bad = hash(&blocks[bad_number as usize]);
        world.remote(|remote| remote.serve(blocks));
        for _ in 0..2 {
            match follower.step().unwrap_err() {
                FollowError::Invalid { number, hash, endpoint, .. } => {
                    assert_eq!((number, hash), (bad_number, bad));
                    assert_eq!(endpoint, world.server.url());
                }
                other => panic!("{other}"),
            }
            assert!(world.running.live.head().number < bad_number);
        }
        // It has seen reason.
        world.remote(|remote| remote.lead(&chain, main[99]));
        follower.step().unwrap();
        assert_eq!(world.running.head(), main[99]);
    }
}

#[test]
fn other_chains_are_not_followed() {
    let mut chain = Setup::Mpt.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 3, 12, 1);
    // Another id: not a block is asked for.
    let world = World::new(&chain, Setup::Mpt);
    world.remote(|remote| {
        remote.lead(&chain, main[2]);
        remote.chain_id = 1;
    });
    let thread = world.follower(Leader::Remote).start().unwrap();
    let start = Instant::now();
    while world.asked("eth_chainId") < 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "the follower has given up");
        std::thread::yield_now();
    }
    assert_eq!((world.asked("eth_getBlock"), world.running.head()), (0, genesis));
    // It was a mistake, and is mended.
    world.remote(|remote| remote.chain_id = CHAIN_ID);
    while world.running.head() != main[2] {
        assert!(start.elapsed() < Duration::from_secs(20), "the follower has given up");
        std::thread::yield_now();
    }
    world.stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();

    // The same id, but another genesis.
    let mut other = Setup::Mpt.test_chain(Rules::Prague);
    let tip = *other.branch(other.genesis(), 3, 12, 1).last().unwrap();
    let world = World::new(&chain, Setup::Mpt);
    world.remote(|remote| remote.lead(&other, tip));
    let error = world.follower(Leader::Remote).step().unwrap_err();
    assert!(matches!(error, FollowError::Apart { number: 1, .. }), "{error}");
    assert_eq!(world.running.head(), genesis);
}

#[test]
fn remote_chain_that_left_ours_too_far_below_is_not_followed() {
    let mut chain = Setup::Mpt.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 30, 12, 1);
    let side = chain.branch(main[1], 34, 12, 2);
    let mut node = Node::new(&chain.spec, Setup::Mpt);
    node.retention = 8;
    node.config = EngineConfig { persistence_threshold: 0, memory_blocks: 0 };
    let world = World::on(node);
    world.running.follow(&chain.path(genesis, main[29]));
    world.running.flush();
    world.remote(|remote| remote.lead(&chain, side[33]));
    let error = world.follower(Leader::Remote).step().unwrap_err();
    assert!(matches!(error, FollowError::Apart { .. }), "{error}");
    assert_eq!(world.running.head(), main[29]);
    // Our own chain still grows.
    let next = chain.extend(main[29], Plan::new([]));
    world.running.follow(&[chain.block(next).clone()]);
}

#[test]
fn gap_below_the_head_of_a_consensus_client_is_filled() {
    for count in [10, 90] {
        let mut chain = Setup::Mpt.test_chain(Rules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, count, 12, 1);
        let tip = main[main.len() - 1];
        let world = World::new(&chain, Setup::Mpt);
        world.remote(|remote| remote.lead(&chain, tip));
        let follower = world.follower(Leader::ConsensusClient);
        // Nobody wants anything yet.
        follower.step().unwrap();
        assert_eq!(world.server.requests().len(), 0);
        let updated = world.running.fcu(3, only_head(tip), None).unwrap();
        assert_eq!(updated.payload_status, syncing());
        follower.step().unwrap();
        assert_eq!(world.running.send(chain.block(tip)), valid(tip), "it is there");
        world.running.lead(tip);
        assert_eq!(world.running.head(), tip);
        let before = world.server.requests().len();
        follower.step().unwrap();
        assert_eq!(world.server.requests().len(), before, "the gap is closed");
    }
}

#[test]
fn follower_that_is_told_to_stop_fetches_nothing_more() {
    let mut chain = Setup::Mpt.test_chain(Rules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 3, 12, 1);
    let world = World::new(&chain, Setup::Mpt);
    world.remote(|remote| remote.lead(&chain, main[2]));
    world.stop.store(true, Ordering::Relaxed);
    let error = world.follower(Leader::Remote).step().unwrap_err();
    assert!(matches!(error, FollowError::Stopped), "{error}");
    assert_eq!(world.running.head(), genesis);
}
