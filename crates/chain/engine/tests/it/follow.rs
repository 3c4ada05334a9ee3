//! Following another node by JSON-RPC: a test server answers, and may give wrong answers.

use crate::common::{NodeSetup, RunningNode, TestNode, hash, only_head, syncing, valid};
use alloy_primitives::B256;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use retrie_db::ChainRead;
use retrie_engine::{
    ChainFollower, EngineConfig, EngineHandle, FollowConfig, FollowError, HeadSource, SyncProgress,
    WaitReason,
};
use retrie_pipeline::testkit::{BlockPlan, CHAIN_ID, TestChain, TestRules};
use retrie_sources::{
    BlockFetcher, BlockTag, BlockingClient, FetchError, HttpOptions, RpcClient,
    testkit::{HttpServer, ScriptedReply},
};
use retrie_state_testkit::sample;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The chain of the remote node.
#[derive(Default)]
struct RemoteChain {
    chain_id: u64,
    canonical: Vec<Block>,
    by_hash: HashMap<B256, Block>,
    /// Numbers of the safe and the final block.
    safe: Option<u64>,
    finalized: Option<u64>,
}

impl RemoteChain {
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

struct FollowFixture {
    remote: Arc<Mutex<RemoteChain>>,
    server: HttpServer,
    running: RunningNode,
    stop: Arc<AtomicBool>,
}

impl FollowFixture {
    fn new(chain: &TestChain, setup: NodeSetup) -> Self {
        Self::on(TestNode::new(&chain.spec, setup))
    }

    fn on(node: TestNode) -> Self {
        let remote =
            Arc::new(Mutex::new(RemoteChain { chain_id: CHAIN_ID, ..RemoteChain::default() }));
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
            ScriptedReply::new(200, reply.to_string())
        });
        let running = node.start();
        Self { remote, server: server.unwrap(), running, stop: Arc::default() }
    }

    fn remote(&self, change: impl FnOnce(&mut RemoteChain)) {
        change(&mut self.remote.lock().unwrap());
    }

    fn follower(&self, leader: HeadSource) -> ChainFollower {
        let options = HttpOptions {
            timeout: Duration::from_secs(10),
            retries: 0,
            backoff: Duration::from_millis(1),
            ..HttpOptions::default()
        };
        let client =
            RpcClient::new(&self.server.url(), BlockingClient::new(options, Arc::default()));
        follower(&self.running, client, leader, &self.stop)
    }

    fn asked(&self, method: &str) -> usize {
        let requests = self.server.requests();
        requests.iter().filter(|one| String::from_utf8_lossy(&one.body).contains(method)).count()
    }
}

fn follower(
    running: &RunningNode,
    remote: impl BlockFetcher + 'static,
    leader: HeadSource,
    stop: &Arc<AtomicBool>,
) -> ChainFollower {
    ChainFollower::new(
        running.engine.handle().clone(),
        remote,
        FollowConfig { head_source: leader, interval: Duration::from_millis(1) },
        running.runtime.handle().clone(),
        stop.clone(),
    )
}

/// A scripted remote node without a network.
#[derive(Clone, Debug, Default)]
struct ScriptedNode(Arc<Mutex<NodeScript>>);

#[derive(Debug, Default)]
struct NodeScript {
    head: Option<(B256, Header)>,
    headers: HashMap<B256, Header>,
    blocks: HashMap<B256, Block>,
    numbers: HashMap<u64, Block>,
    /// Number of requests.
    headers_asked: usize,
    blocks_asked: usize,
    /// Engine whose progress is recorded at each request for a block by number.
    watched: Option<EngineHandle>,
    progress: Vec<Option<SyncProgress>>,
}

impl ScriptedNode {
    fn new(headers: &[Header]) -> Self {
        let headers: Vec<_> =
            headers.iter().map(|header| (header.hash_slow(), header.clone())).collect();
        let head = headers.last().cloned();
        let headers = headers.into_iter().collect();
        Self(Arc::new(Mutex::new(NodeScript { head, headers, ..NodeScript::default() })))
    }

    /// A node that answers correctly from these blocks.
    fn honest(blocks: &[Block]) -> Self {
        let headers: Vec<_> = blocks.iter().map(|block| block.header.clone()).collect();
        let scripted = Self::new(&headers);
        scripted.change(|script| {
            script.blocks = blocks.iter().map(|block| (hash(block), block.clone())).collect();
            script.numbers =
                blocks.iter().map(|block| (block.header.number, block.clone())).collect();
        });
        scripted
    }

    fn change<T>(&self, change: impl FnOnce(&mut NodeScript) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }
}

fn found<T: Clone>(found: Option<&T>) -> Result<T, FetchError> {
    found.cloned().ok_or_else(|| FetchError::new("there is no such block"))
}

impl BlockFetcher for ScriptedNode {
    fn name(&self) -> &str {
        "a script"
    }

    fn check_chain(&self, _: &ChainSpec, _: Option<Duration>) -> Result<(), FetchError> {
        Ok(())
    }

    fn tagged(&self, tag: BlockTag) -> Result<(B256, Header), FetchError> {
        self.change(|script| found(script.head.as_ref().filter(|_| tag == BlockTag::Head)))
    }

    fn header_by_hash(&self, hash: B256) -> Result<Header, FetchError> {
        self.change(|script| {
            script.headers_asked += 1;
            found(script.headers.get(&hash))
        })
    }

    fn block_by_hash(&self, hash: B256) -> Result<Block, FetchError> {
        self.change(|script| {
            script.blocks_asked += 1;
            found(script.blocks.get(&hash))
        })
    }

    fn block_by_number(&self, number: u64) -> Result<Block, FetchError> {
        self.change(|script| {
            script.blocks_asked += 1;
            let progress = script.watched.as_ref().map(EngineHandle::syncing);
            script.progress.extend(progress);
            found(script.numbers.get(&number))
        })
    }
}

/// `count` headers, each the child of the one before it; `number(n)` is the number in the n-th.
fn forged(count: u64, number: impl Fn(u64) -> u64) -> Vec<Header> {
    let mut parent_hash = B256::repeat_byte(0x66);
    let mut headers = Vec::new();
    for n in 0..count {
        let header = Header { parent_hash, number: number(n), ..Header::default() };
        parent_hash = header.hash_slow();
        headers.push(header);
    }
    headers
}

/// Regression: such a chain was fetched and kept block by block for as long as the remote node went
/// on.
#[test]
fn a_remote_chain_whose_numbers_lie_is_left_at_the_first_lie() {
    let chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let constant = forged(5_000, |_| 40);
    let liars = [
        // All headers have the same number, or one has a lower number than its position, or a
        // parent has a higher number than its child.
        (constant.clone(), 40, 40, 1),
        (forged(5_000, |n| if n % 10 == 5 { 20 } else { 40 + n % 10 }), 20, 46, 4),
        (forged(5_000, |n| 5_030 - n), 32, 31, 1),
    ];
    for (headers, number, child, most) in liars {
        let liar = ScriptedNode::new(&headers);
        let follower = follower(&running, liar.clone(), HeadSource::Remote, &Arc::default());
        match follower.step().unwrap_err() {
            FollowError::WrongNumber { number: got, child: of, endpoint, .. } => {
                assert_eq!((got, of), (number, child));
                assert_eq!(endpoint, "a script");
            }
            other => panic!("{other}"),
        }
        liar.change(|script| {
            assert!(script.headers_asked <= most, "{} headers asked for", script.headers_asked);
            assert_eq!(script.blocks_asked, 0, "headers come first");
        });
    }
    // The consensus client names one of them.
    let liar = ScriptedNode::new(&constant);
    let named = constant[4_000].hash_slow();
    assert_eq!(running.fcu(3, only_head(named), None).unwrap().payload_status, syncing());
    let follower = follower(&running, liar.clone(), HeadSource::ConsensusClient, &Arc::default());
    let error = follower.step().unwrap_err();
    assert!(matches!(error, FollowError::WrongNumber { number: 40, child: 40, .. }), "{error}");
    assert!(liar.change(|script| script.headers_asked) <= 2);
}

#[test]
fn a_remote_chain_that_meets_ours_nowhere_is_left_where_ours_begins() {
    let chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let liar = ScriptedNode::new(&forged(60, |n| n + 1));
    let one = follower(&running, liar.clone(), HeadSource::Remote, &Arc::default());
    let error = one.step().unwrap_err();
    assert!(matches!(error, FollowError::Apart { number: 1, .. }), "{error}");
    assert_eq!(liar.change(|script| (script.headers_asked, script.blocks_asked)), (59, 0));
    // A head with the largest number: blocks are fetched by number, and the first one is missing.
    let liar = ScriptedNode::new(&forged(1, |_| u64::MAX));
    let one = follower(&running, liar.clone(), HeadSource::Remote, &Arc::default());
    let error = one.step().unwrap_err();
    assert!(matches!(error, FollowError::Fetch(_)), "{error}");
    assert_eq!(liar.change(|script| (script.headers_asked, script.blocks_asked)), (0, 1));
}

#[test]
fn a_block_of_another_hash_than_asked_for_is_refused() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 3, 12, 1);
    let blocks = chain.path(genesis, main[2]);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let other = |asked: usize, change: fn(&mut NodeScript, B256, &[Block])| {
        let remote = ScriptedNode::honest(&blocks);
        remote.change(|script| change(script, main[asked], &blocks));
        let error =
            follower(&running, remote, HeadSource::Remote, &Arc::default()).step().unwrap_err();
        match error {
            FollowError::OtherBlock { asked: hash, number: 1, got, .. } => {
                assert_eq!((hash, got), (main[asked], main[0]));
            }
            other => panic!("{other}"),
        }
        assert_eq!(running.live.head().number, 0);
    };
    other(2, |script, hash, blocks| script.head = Some((hash, blocks[0].header.clone())));
    other(1, |script, hash, blocks| {
        script.headers.insert(hash, blocks[0].header.clone());
    });
    other(1, |script, hash, blocks| {
        script.blocks.insert(hash, blocks[0].clone());
    });
}

#[test]
fn a_node_that_is_behind_says_so_and_how_far() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 90, 12, 1);
    let blocks = chain.path(genesis, main[89]);
    for leader in [HeadSource::Remote, HeadSource::ConsensusClient] {
        let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
        let engine = running.engine.handle().clone();
        let remote = ScriptedNode::honest(&blocks);
        remote.change(|script| script.watched = Some(engine.clone()));
        let follower = follower(&running, remote.clone(), leader, &Arc::default());
        // No head is named yet. A consensus client need not name one; the remote node will.
        let unknown = SyncProgress { starting: 0, current: 0, highest: 0 };
        let expected = (leader == HeadSource::Remote).then_some(unknown);
        assert_eq!(engine.syncing(), expected, "{leader:?}");
        if leader == HeadSource::ConsensusClient {
            assert_eq!(running.send(&blocks[89]), syncing());
            assert_eq!(engine.syncing(), None, "a block is no head");
            let updated = running.fcu(3, only_head(main[89]), None).unwrap();
            assert_eq!(updated.payload_status, syncing());
            let progress = SyncProgress { starting: 0, current: 0, highest: 90 };
            assert_eq!(engine.syncing(), Some(progress), "the block has told how high it is");
        }
        follower.step().unwrap();
        let seen = remote.change(|script| std::mem::take(&mut script.progress));
        assert_eq!(seen.len(), 26, "{leader:?}");
        for progress in &seen {
            let progress = progress.expect("behind");
            assert_eq!((progress.starting, progress.highest), (0, 90), "{leader:?}");
        }
        assert!(seen[25].is_some_and(|progress| progress.current > 15), "{leader:?}: {seen:?}");
        if leader == HeadSource::ConsensusClient {
            running.lead(main[89]);
        }
        assert_eq!(running.head(), main[89]);
        assert_eq!(engine.syncing(), None, "{leader:?}");
        // One new block does not count as behind; the consensus client's head has priority.
        follower.step().unwrap();
        assert_eq!(engine.syncing(), None, "{leader:?}");
    }
}

#[test]
fn a_follower_that_gets_nowhere_says_why_after_a_while() {
    let chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let stop = Arc::<AtomicBool>::default();
    let following =
        follower(&running, ScriptedNode::default(), HeadSource::Remote, &stop).start().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(following.last_error(), None, "it may pass");
    assert!(!following.is_finished());
    stop.store(true, Ordering::Relaxed);
    following.join().unwrap();
}

#[test]
fn follower_catches_up_and_follows_reorgs() {
    for setup in sample::of([NodeSetup::on_headers(), NodeSetup::native()].concat(), 3) {
        let mut chain = setup.test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, 90, 12, 1);
        let side = chain.branch(main[80], 12, 12, 2);
        let world = FollowFixture::new(&chain, setup);
        let follower = world.follower(HeadSource::Remote);
        world.remote(|remote| {
            remote.lead(&chain, main[85]);
            (remote.safe, remote.finalized) = (Some(84), Some(70));
        });
        // More than are fetched by hash.
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
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 6, 12, 1);
    let side = chain.branch(main[1], 80, 12, 2);
    let world = FollowFixture::new(&chain, NodeSetup::MPT);
    world.running.follow(&chain.path(genesis, main[5]));
    world.remote(|remote| remote.lead(&chain, side[79]));
    world.follower(HeadSource::Remote).step().unwrap();
    assert_eq!(world.running.head(), side[79]);
}

#[test]
fn invalid_block_of_the_remote_node_is_named_and_not_followed() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 100, 12, 1);
    for bad_number in [5, 98] {
        let world = FollowFixture::new(&chain, NodeSetup::MPT);
        let follower = world.follower(HeadSource::Remote);
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
        // The remote node answers correctly now.
        world.remote(|remote| remote.lead(&chain, main[99]));
        follower.step().unwrap();
        assert_eq!(world.running.head(), main[99]);
    }
}

/// Blocks are verified in batches: each is executed before the root of the one below is known.
#[test]
fn invalid_block_of_a_run_leaves_the_one_below_it_the_head() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 80, 12, 1);
    let damages: [fn(&mut Block); 2] = [
        |block| block.header.state_root = B256::repeat_byte(1),
        |block| block.header.gas_used += 1,
    ];
    for bad_number in 1..=12 {
        let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
        let mut blocks = chain.path(genesis, main[79]);
        damages[bad_number as usize % 2](&mut blocks[bad_number as usize - 1]);
        for at in 1..blocks.len() {
            blocks[at].header.parent_hash = hash(&blocks[at - 1]);
        }
        let bad = hash(&blocks[bad_number as usize - 1]);
        let remote = ScriptedNode::honest(&blocks);
        let error =
            follower(&running, remote, HeadSource::Remote, &Arc::default()).step().unwrap_err();
        match error {
            FollowError::Invalid { number, hash, .. } => {
                assert_eq!((number, hash), (bad_number, bad))
            }
            other => panic!("{other}"),
        }
        assert_eq!(running.live.head().number, bad_number - 1);
        let view = running.live.view().unwrap();
        for block in &blocks[bad_number as usize - 1..] {
            assert!(view.header(&hash(block)).unwrap().is_none(), "block {}", block.header.number);
        }
        let remote = ScriptedNode::honest(&chain.path(genesis, main[79]));
        follower(&running, remote, HeadSource::Remote, &Arc::default()).step().unwrap();
        assert_eq!(running.head(), main[79]);
    }
}

/// Far behind the head one root is computed for many blocks: an error still names the wrong block.
#[test]
fn gap_deeper_than_states_are_retained_is_filled_with_one_root_for_many_blocks() {
    const COUNT: u64 = 300;
    for setup in [NodeSetup::MPT, NodeSetup::RAW] {
        let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, COUNT, 12, 1);
        let good = chain.path(genesis, main[COUNT as usize - 1]);
        let node = TestNode { retention: 10, ..TestNode::new(&chain.spec, setup) };
        let running = node.start();
        let mut bad = good.clone();
        bad[149].header.gas_used += 1;
        for at in 1..bad.len() {
            bad[at].header.parent_hash = hash(&bad[at - 1]);
        }
        let remote = ScriptedNode::honest(&bad);
        let error =
            follower(&running, remote, HeadSource::Remote, &Arc::default()).step().unwrap_err();
        let is_named = matches!(error, FollowError::Invalid { number: 150, .. });
        assert!(is_named, "{setup:?}: {error}");
        assert_eq!(running.live.head().number, 149, "{setup:?}");

        let mut heads = running.live.subscribe();
        let remote = ScriptedNode::honest(&good);
        follower(&running, remote, HeadSource::Remote, &Arc::default()).step().unwrap();
        assert_eq!(running.head(), main[COUNT as usize - 1], "{setup:?}");
        let told = std::iter::from_fn(|| heads.try_recv().ok());
        let told: Vec<_> = told.flat_map(|change| change.committed.clone()).collect();
        let told = told.iter().map(|block| block.block.header().number);
        assert!(told.eq(150..=COUNT), "{setup:?}: each block is told once");
        running.flush();
        let read = running.live.chain().db().begin_read().unwrap();
        let has_root = |number: &u64| {
            let hash = hash(&good[*number as usize - 1]);
            !read.roots(&hash).unwrap().is_empty()
        };
        let with_roots: Vec<u64> = (1..=COUNT).filter(has_root).collect();
        // Two batches, the blocks of the third one by one, another batch, and the latest blocks.
        let expected: Vec<u64> = [64, 128].into_iter().chain(129..150).chain(213..=COUNT).collect();
        assert_eq!(with_roots, expected, "{setup:?}");
    }
}

#[test]
fn other_chains_are_not_followed() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 3, 12, 1);
    // Another chain id: no block is requested.
    let world = FollowFixture::new(&chain, NodeSetup::MPT);
    world.remote(|remote| {
        remote.lead(&chain, main[2]);
        remote.chain_id = 1;
    });
    let thread = world.follower(HeadSource::Remote).start().unwrap();
    let start = Instant::now();
    while world.asked("eth_chainId") < 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "the follower has given up");
        std::thread::yield_now();
    }
    assert_eq!((world.asked("eth_getBlock"), world.running.head()), (0, genesis));
    // The remote node is corrected.
    world.remote(|remote| remote.chain_id = CHAIN_ID);
    while world.running.head() != main[2] {
        assert!(start.elapsed() < Duration::from_secs(20), "the follower has given up");
        std::thread::yield_now();
    }
    world.stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();

    // The same id, but another genesis.
    let mut other = NodeSetup::MPT.test_chain(TestRules::Prague);
    let tip = *other.branch(other.genesis(), 3, 12, 1).last().unwrap();
    let world = FollowFixture::new(&chain, NodeSetup::MPT);
    world.remote(|remote| remote.lead(&other, tip));
    let error = world.follower(HeadSource::Remote).step().unwrap_err();
    assert!(matches!(error, FollowError::Apart { number: 1, .. }), "{error}");
    assert_eq!(world.running.head(), genesis);
}

#[test]
fn remote_chain_that_left_ours_too_far_below_is_not_followed() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 30, 12, 1);
    let side = chain.branch(main[1], 34, 12, 2);
    let mut node = TestNode::new(&chain.spec, NodeSetup::MPT);
    node.retention = 8;
    node.config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
    let world = FollowFixture::on(node);
    world.running.follow(&chain.path(genesis, main[29]));
    world.running.flush();
    world.remote(|remote| remote.lead(&chain, side[33]));
    let error = world.follower(HeadSource::Remote).step().unwrap_err();
    assert!(matches!(error, FollowError::Apart { .. }), "{error}");
    assert_eq!(world.running.head(), main[29]);
    // Our own chain still grows.
    let next = chain.extend(main[29], BlockPlan::new([]));
    world.running.follow(&[chain.block(next).clone()]);
}

/// Regression: peers have the deep branch, which cannot be executed. The consensus client got
/// SYNCING for ever, and the same headers were requested four times a second.
#[test]
fn a_branch_too_far_below_is_told_to_the_consensus_client_once_its_headers_have_come() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 30, 12, 1);
    for length in [34, 120] {
        let side = chain.branch(main[1], length, 12, length as u8);
        let tip = side[side.len() - 1];
        let mut node = TestNode::new(&chain.spec, NodeSetup::MPT);
        node.retention = 8;
        node.config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
        let world = FollowFixture::on(node);
        world.running.follow(&chain.path(genesis, main[29]));
        world.running.flush();
        world.remote(|remote| remote.lead(&chain, tip));
        let follower = world.follower(HeadSource::ConsensusClient);
        let updated = world.running.fcu(3, only_head(tip), None).unwrap();
        assert_eq!(updated.payload_status, syncing());
        let error = follower.step().unwrap_err();
        assert!(matches!(error, FollowError::Apart { .. }), "{error}");
        let error = world.running.fcu(3, only_head(tip), None).unwrap_err();
        assert_eq!(error.code(), -38006, "{error}");
        let wait = world.running.engine.handle().waiting().unwrap();
        assert_eq!(wait.head, Some(tip));
        assert!(matches!(wait.reason, WaitReason::TooDeepReorg(..)), "{wait:?}");
        let before = world.server.requests().len();
        follower.step().unwrap();
        assert_eq!(world.server.requests().len(), before, "nothing more is asked");
        assert_eq!(world.running.head(), main[29]);
    }
}

#[test]
fn gap_below_the_head_of_a_consensus_client_is_filled() {
    for count in [10, 90] {
        let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, count, 12, 1);
        let tip = main[main.len() - 1];
        let world = FollowFixture::new(&chain, NodeSetup::MPT);
        world.remote(|remote| remote.lead(&chain, tip));
        let follower = world.follower(HeadSource::ConsensusClient);
        // No head is wanted yet.
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
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 3, 12, 1);
    let world = FollowFixture::new(&chain, NodeSetup::MPT);
    world.remote(|remote| remote.lead(&chain, main[2]));
    world.stop.store(true, Ordering::Relaxed);
    let error = world.follower(HeadSource::Remote).step().unwrap_err();
    assert!(matches!(error, FollowError::Stopped), "{error}");
    assert_eq!(world.running.head(), genesis);
}
