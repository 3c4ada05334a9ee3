//! Logs in pages: the same as without pages, over reorganisations too.

use crate::common::{NodeFixture, ask, mpt, test_chain};
use alloy_primitives::{Address, B256, U256};
use jsonrpsee::Methods;
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules};
use retrie_rpc::{ApiNamespace, RequestLimits, build_methods};
use serde_json::{Value, json};

const METHOD: &str = "eth_getLogsWithCursor";

/// Extends `parent` with blocks of no log up to three, with five different topics.
fn grow(chain: &mut TestChain, parent: B256, count: u64, wallet: u8) -> Vec<B256> {
    let mut at = parent;
    let mut extend = |number: u64| {
        let store = |slot| TestCall::store(wallet, GENESIS_CONTRACT, slot, 7 + number + slot);
        let calls: Vec<_> = (0..number % 4).map(|call| store((number + call) % 5)).collect();
        // Blocks without calls differ by their times.
        at = chain.extend(at, BlockPlan::new(calls).after(12 + u64::from(wallet)));
        at
    };
    (0..count).map(&mut extend).collect()
}

fn topic(slot: u64) -> Value {
    json!(B256::from(U256::from(slot)))
}

/// One page.
async fn page(methods: &Methods, filter: &Value, cursor: Option<&Value>) -> Value {
    let answer = ask(methods, METHOD, json!([filter, cursor])).await;
    assert!(answer.get("error").is_none(), "{filter}: {answer}");
    answer["result"].clone()
}

/// The logs of all pages, on a chain that does not change.
async fn all_pages(methods: &Methods, filter: &Value) -> Vec<Value> {
    let mut logs = Vec::new();
    let mut cursor = None;
    loop {
        let page = page(methods, filter, cursor.as_ref()).await;
        assert_eq!(page["undone"], json!([]));
        let found = page["logs"].as_array().unwrap();
        if let Some(most) = filter["logLimit"].as_u64() {
            assert!(found.len() as u64 <= most);
        }
        logs.extend(found.iter().cloned());
        match page.get("cursor") {
            Some(next) => cursor = Some(next.clone()),
            None => return logs,
        }
    }
}

fn random_filter(random: &mut StdRng, blocks: &[B256]) -> Value {
    let mut filter = json!({});
    if random.random_bool(0.2) {
        filter["blockHash"] = json!(blocks[random.random_range(0..blocks.len())]);
    } else {
        let from = random.random_range(0..=blocks.len());
        filter["fromBlock"] = json!(format!("{from:#x}"));
        if random.random_bool(0.7) {
            let to = random.random_range(from..=blocks.len());
            filter["toBlock"] = json!(format!("{to:#x}"));
        }
    }
    if random.random_bool(0.3) {
        let other = Address::repeat_byte(0x77);
        filter["address"] = json!([GENESIS_CONTRACT, other]);
    }
    match random.random_range(0..3) {
        0 => filter["topics"] = json!([topic(random.random_range(0..6))]),
        1 => filter["topics"] = json!([[topic(random.random_range(0..6)), topic(1)]]),
        _ => {}
    }
    filter
}

#[tokio::test]
async fn pages_together_are_what_one_search_finds() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let blocks = grow(&mut chain, genesis, 24, 1);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.add(&chain.path(genesis, blocks[23])).await;
    node.set_head(blocks[23], B256::ZERO, B256::ZERO).await;
    let random = &mut StdRng::seed_from_u64(42);
    let mut total = 0;
    for _ in 0..120 {
        let mut filter = random_filter(random, &blocks);
        let whole = node.call("eth_getLogs", json!([filter])).await;
        // Pages end at the limits of logs, of blocks and of bytes.
        let limits = RequestLimits {
            max_blocks_per_filter: random.random_range(0..9),
            max_logs_per_response: random.random_range(0..5),
            max_response_size: random.random_range(1..4_000),
            ..RequestLimits::default()
        };
        let limited = build_methods(&node.rpc.clone().with_limits(limits), &[ApiNamespace::Eth]);
        if random.random_bool(0.5) {
            filter["logLimit"] = json!(random.random_range(1..9));
        }
        let paged = all_pages(&limited, &filter).await;
        assert_eq!(json!(paged), whole, "{filter} {limits:?}");
        total += paged.len();
    }
    assert!(total > 100, "{total}");
}

#[tokio::test]
async fn a_page_after_a_reorg_names_the_blocks_that_were_undone() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let trunk = grow(&mut chain, genesis, 6, 1);
    let main = grow(&mut chain, trunk[5], 6, 1);
    let other = grow(&mut chain, trunk[5], 9, 2);
    let tips = [main[5], other[8]];
    let random = &mut StdRng::seed_from_u64(7);
    let mut undone = 0;
    for round in 0..12 {
        let mut node = NodeFixture::new(&chain.spec, mpt());
        node.add(&chain.path(genesis, tips[0])).await;
        node.add(&chain.path(trunk[5], tips[1])).await;
        let (mut cursor, mut known) = (None, Vec::<Value>::new());
        let mut side = 0;
        node.set_head(tips[side], B256::ZERO, B256::ZERO).await;
        // The shorter branch is always whole in the range.
        let mut filter = json!({ "fromBlock": "0x2", "toBlock": "0xc" });
        loop {
            filter["logLimit"] = json!(random.random_range(1..4));
            let page = page(node.methods(), &filter, cursor.as_ref()).await;
            let gone = page["undone"].as_array().unwrap();
            undone += gone.len();
            let numbers: Vec<_> = gone.iter().map(|block| block["number"].clone()).collect();
            let from = trunk.len() + gone.len();
            let expected: Vec<_> = (trunk.len() + 1..=from)
                .rev()
                .map(|number| json!(format!("{number:#x}")))
                .collect();
            assert_eq!(numbers, expected, "highest first, down to the fork");
            known.retain(|log| gone.iter().all(|block| block["hash"] != log["blockHash"]));
            known.extend(page["logs"].as_array().unwrap().iter().cloned());
            match page.get("cursor") {
                Some(next) => cursor = Some(next.clone()),
                None => break,
            }
            if random.random_bool(0.4) {
                side = 1 - side;
                node.set_head(tips[side], B256::ZERO, B256::ZERO).await;
            }
        }
        filter["logLimit"] = Value::Null;
        let whole = node.call("eth_getLogs", json!([filter])).await;
        assert_eq!(json!(known), whole, "round {round}");
    }
    assert!(undone > 5, "{undone}");
}

#[tokio::test]
async fn cursors_that_do_not_belong_here_are_refused() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = grow(&mut chain, genesis, 8, 1);
    let other = grow(&mut chain, main[1], 7, 2);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.add(&chain.path(genesis, main[7])).await;
    node.set_head(main[7], B256::ZERO, B256::ZERO).await;
    let filter = json!({ "fromBlock": "0x0", "logLimit": 6 });
    let first = page(node.methods(), &filter, None).await;
    let cursor = first["cursor"].as_str().unwrap().to_owned();
    // The cursor may also stand in the filter, and the size of pages may change.
    let again = json!([{ "fromBlock": "0x0", "cursor": cursor, "logLimit": "0x1" }]);
    assert_eq!(node.call(METHOD, again).await["logs"].as_array().unwrap().len(), 1);

    let mut flipped = cursor.clone().into_bytes();
    flipped[40] = if flipped[40] == b'0' { b'1' } else { b'0' };
    let flipped = String::from_utf8(flipped).unwrap();
    for (filter, cursor, words) in [
        (json!({ "fromBlock": "0x0" }), json!("0x1234"), "not one that"),
        (json!({ "fromBlock": "0x0" }), json!(flipped), "not one that"),
        (json!({ "fromBlock": "0x1" }), json!(cursor), "another filter"),
        (json!({ "fromBlock": "0x0", "topics": [topic(1)] }), json!(cursor), "another filter"),
        (json!({ "blockHash": main[0] }), json!(cursor), "another filter"),
        (json!({ "fromBlock": "0x0", "cursor": "0x" }), json!(cursor), "two cursors"),
        (json!({ "fromBlock": "0x0", "logLimit": 0 }), Value::Null, "at least 1"),
        (json!({ "fromBlock": "0x0", "logLimit": [] }), Value::Null, "accepted forms"),
        (json!({ "fromBlock": "0x0" }), json!(7), "invalid argument 1"),
        (json!({ "fromBlock": "0x5", "toBlock": "0x1" }), Value::Null, "invalid block range"),
    ] {
        let (code, message) = node.fail(METHOD, json!([filter, cursor])).await;
        assert!(code == -32602 && message.contains(words), "{filter}: {code} {message}");
    }
    // A cursor of another node, whose branch this node does not have: nothing says which blocks to
    // take back.
    let mut second = NodeFixture::new(&chain.spec, mpt());
    second.add(&chain.path(genesis, other[6])).await;
    second.set_head(other[6], B256::ZERO, B256::ZERO).await;
    let page = page(second.methods(), &filter, None).await;
    let (code, message) = node.fail(METHOD, json!([filter, page["cursor"]])).await;
    assert!(code == -32000 && message.contains("is not known"), "{code} {message}");
}

#[tokio::test]
async fn a_range_whose_blocks_are_gone_for_now_stays_open() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = grow(&mut chain, genesis, 8, 1);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.add(&chain.path(genesis, main[7])).await;
    node.set_head(main[7], B256::ZERO, B256::ZERO).await;
    let filter = json!({ "fromBlock": "0x1", "logLimit": 8 });
    let first = page(node.methods(), &filter, None).await;
    let short = node.engine.handle().set_head(main[1]).await;
    short.unwrap();
    let second = page(node.methods(), &filter, first.get("cursor")).await;
    assert_eq!(second["logs"], json!([]));
    assert!(!second["undone"].as_array().unwrap().is_empty());
    node.set_head(main[7], B256::ZERO, B256::ZERO).await;
    let mut filter = filter;
    filter["logLimit"] = json!(100);
    let third = page(node.methods(), &filter, second.get("cursor")).await;
    assert_eq!(third.get("cursor"), None);
    let rest = json!([{ "fromBlock": "0x3" }]);
    assert_eq!(third["logs"], node.call("eth_getLogs", rest).await);
}
