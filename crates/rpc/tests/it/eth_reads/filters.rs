//! Logs, and filters over reorganisations.

use crate::common::{NodeFixture, backends, mpt, signed_transfer, test_chain};
use alloy_primitives::{B256, U256};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules};
use retrie_rpc::{RequestLimits, RpcContext};
use serde_json::{Value, json};
use std::time::Duration;

/// Stores one value in a slot of the contract of genesis, which logs it.
fn store(wallet: u8, slot: u64) -> BlockPlan {
    BlockPlan::new([TestCall::store(wallet, GENESIS_CONTRACT, slot, 7)])
}

/// Genesis, a branch of two blocks and a branch of three. All blocks have one log, except the
/// second block of the longer branch.
fn two_branches(chain: &mut TestChain) -> ([B256; 2], [B256; 3]) {
    let genesis = chain.genesis();
    let a1 = chain.extend(genesis, store(1, 1));
    let a2 = chain.extend(a1, store(1, 2));
    let b1 = chain.extend(genesis, store(2, 3).after(13));
    let b2 = chain.extend(b1, BlockPlan::new([]));
    let b3 = chain.extend(b2, store(2, 4));
    ([a1, a2], [b1, b2, b3])
}

fn blocks_of(logs: &Value) -> Vec<(Value, bool)> {
    let log = |log: &Value| (log["blockHash"].clone(), log["removed"].as_bool().unwrap());
    logs.as_array().unwrap().iter().map(log).collect()
}

#[tokio::test]
async fn filters_tell_what_came_and_what_was_taken_back() {
    for backend in backends() {
        let name = backend.identity().name;
        let mut chain = test_chain(TestRules::Cancun);
        let mut node = NodeFixture::new(&chain.spec, backend);
        let genesis = chain.genesis();
        let ([a1, a2], [b1, b2, b3]) = two_branches(&mut chain);
        node.add(&chain.path(genesis, a2)).await;
        node.add(&chain.path(genesis, b3)).await;
        let heads = node.call("eth_newBlockFilter", json!([])).await;
        let logs = node.call("eth_newFilter", json!([{ "address": GENESIS_CONTRACT }])).await;
        let late = node.call("eth_newFilter", json!([{ "fromBlock": "0x3" }])).await;
        let changes = async |id: &Value| node.call("eth_getFilterChanges", json!([id])).await;
        assert_eq!(changes(&heads).await, json!([]));

        let mut engine = NodeHead(&node);
        engine.set(a2).await;
        assert_eq!(changes(&heads).await, json!([a1, a2]), "{name}");
        assert_eq!(changes(&heads).await, json!([]), "each is told once");
        assert_eq!(blocks_of(&changes(&logs).await), [(json!(a1), false), (json!(a2), false)]);
        engine.set(b3).await;
        assert_eq!(changes(&heads).await, json!([b1, b2, b3]), "{name}");
        let expected =
            [(json!(a2), true), (json!(a1), true), (json!(b1), false), (json!(b3), false)];
        assert_eq!(blocks_of(&changes(&logs).await), expected, "{name}");
        assert_eq!(blocks_of(&changes(&late).await), [(json!(b3), false)], "{name}");
        let all = node.call("eth_getFilterLogs", json!([late])).await;
        assert_eq!(blocks_of(&all), [(json!(b3), false)]);

        assert_eq!(node.call("eth_uninstallFilter", json!([heads])).await, true);
        assert_eq!(node.call("eth_uninstallFilter", json!([heads])).await, false);
        let gone = node.fail("eth_getFilterChanges", json!([heads])).await;
        assert_eq!(gone, (-32000, "filter not found".into()));
        node.set_head(b3, B256::ZERO, B256::ZERO).await;
    }
}

/// Moves the head without waiting for the pool.
struct NodeHead<'a>(&'a NodeFixture);

impl NodeHead<'_> {
    async fn set(&mut self, head: B256) {
        let state = alloy_rpc_types_engine::ForkchoiceState {
            head_block_hash: head,
            safe_block_hash: B256::ZERO,
            finalized_block_hash: B256::ZERO,
        };
        self.0.engine.handle().forkchoice(state).await.unwrap();
    }
}

#[tokio::test]
async fn logs_are_found_by_address_topic_and_block() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let ([a1, _], [b1, b2, b3]) = two_branches(&mut chain);
    node.add(&chain.path(genesis, a1)).await;
    node.add(&chain.path(genesis, b3)).await;
    node.set_head(b3, B256::ZERO, B256::ZERO).await;
    let search = async |filter: Value| blocks_of(&node.call("eth_getLogs", json!([filter])).await);
    let found = |blocks: &[B256]| -> Vec<(Value, bool)> {
        blocks.iter().map(|block| (json!(block), false)).collect()
    };
    let all = json!({ "fromBlock": "earliest", "toBlock": "latest" });
    assert_eq!(search(all).await, found(&[b1, b3]));
    assert_eq!(search(json!({})).await, found(&[b3]), "the latest block alone");
    assert_eq!(search(json!({ "blockHash": b1 })).await, found(&[b1]));
    assert_eq!(search(json!({ "blockHash": a1 })).await, found(&[a1]), "side blocks too");
    assert_eq!(search(json!({ "blockHash": b2 })).await, []);
    let topic = |slot: u64| json!(B256::from(U256::from(slot)));
    let topics =
        async |topics: Value| search(json!({ "fromBlock": "0x0", "topics": topics })).await;
    assert_eq!(topics(json!([topic(3)])).await, found(&[b1]));
    assert_eq!(topics(json!([[topic(3), topic(4)]])).await, found(&[b1, b3]));
    assert_eq!(topics(json!([null])).await, found(&[b1, b3]));
    assert_eq!(topics(json!([topic(9)])).await, []);
    let other = json!({ "fromBlock": "0x0", "address": B256::repeat_byte(1).to_string()[..42] });
    assert_eq!(search(other).await, []);

    for (filter, words) in [
        (json!({ "fromBlock": "0x2", "toBlock": "0x1" }), "invalid block range params"),
        (json!({ "fromBlock": "0x1", "toBlock": "0x9" }), "beyond current head block"),
        (json!({ "blockHash": b1, "fromBlock": "0x1" }), "blockHash"),
    ] {
        let (code, message) = node.fail("eth_getLogs", json!([filter])).await;
        assert_eq!(code, -32602, "{message}");
        assert!(message.to_lowercase().contains(&words.to_lowercase()), "{message}");
    }
    // Unknown fields are ignored, and a null in a topic list matches every topic.
    let more = json!({ "fromBlock": "0x0", "more": [{}], "limit": 1, "blockHash": null });
    assert_eq!(search(more).await, found(&[b1, b3]));
    assert_eq!(topics(json!([[topic(3), null]])).await, found(&[b1, b3]));
    assert_eq!(topics(json!([[]])).await, found(&[b1, b3]));
    for (wrong, words) in [
        (json!({ "fromBlock": "pending", "toBlock": "pending" }), "pending logs are not supported"),
        (json!({ "toBlock": "pending" }), "pending logs are not supported"),
        (json!({ "fromBlock": "0xffffffffffffffff" }), "is larger than 2^63 - 1"),
        (json!({ "fromBlock": 1 }), "expected a tag, or a number of a block"),
        (json!({ "topics": vec![Value::Null; 5] }), "exceed max topics"),
        (json!({ "topics": "0x12" }), "expected a list"),
        (json!({ "topics": [7] }), "expected a string in hexadecimal, or a list of them"),
        (json!({ "address": [null] }), "null is no address"),
        (json!(["0x1"]), "expected an object with blockHash"),
    ] {
        let (code, message) = node.fail("eth_getLogs", json!([wrong])).await;
        assert!(code == -32602 && message.contains(words), "{wrong}: {code} {message}");
        assert!(!message.contains("column"), "{message}");
    }
    let unknown = json!([{ "blockHash": B256::repeat_byte(9) }]);
    assert_eq!(node.fail("eth_getLogs", unknown).await, (-32000, "unknown block".into()));
}

#[tokio::test]
async fn a_filter_is_of_a_range_in_which_logs_can_come() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let (_, [_, _, b3]) = two_branches(&mut chain);
    node.add(&chain.path(genesis, b3)).await;
    node.set_head(b3, b3, b3).await;
    for (from, to) in [
        (Some("0x5"), Some("0x1")),
        (Some("pending"), Some("pending")),
        (None, Some("pending")),
        (None, Some("0x9")),
        (Some("latest"), Some("0x9")),
        (Some("safe"), None),
        (Some("0x1"), Some("finalized")),
        (Some("earliest"), Some("earliest")),
    ] {
        let filter = json!([{ "fromBlock": from, "toBlock": to }]);
        let (code, message) = node.fail("eth_newFilter", filter).await;
        assert_eq!(code, -32602, "{from:?}..{to:?}: {message}");
    }
    for (from, to) in [
        (None, None),
        (Some("0x1"), Some("0x5")),
        (Some("0x5"), Some("0x5")),
        (Some("earliest"), Some("0x5")),
        (Some("earliest"), None),
        (Some("0x7"), Some("latest")),
    ] {
        let filter = json!([{ "fromBlock": from, "toBlock": to, "more": 1 }]);
        assert!(node.call("eth_newFilter", filter).await.is_string(), "{from:?}..{to:?}");
    }
}

#[tokio::test]
async fn searches_and_filters_have_limits() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let limits = RequestLimits {
        max_blocks_per_filter: 3,
        max_logs_per_response: 1,
        filter_lifetime: Duration::ZERO,
        ..RequestLimits::default()
    };
    node.rpc = RpcContext::clone(&node.rpc).with_limits(limits);
    let genesis = chain.genesis();
    let (_, [_, _, b3]) = two_branches(&mut chain);
    node.add(&chain.path(genesis, b3)).await;
    node.set_head(b3, B256::ZERO, B256::ZERO).await;
    let range = |from: &str| json!([{ "fromBlock": from }]);
    let (code, words) = node.fail("eth_getLogs", range("0x0")).await;
    assert_eq!((code, &*words), (-32602, "query exceeds max block range 3"));
    let (code, words) = node.fail("eth_getLogs", range("0x1")).await;
    assert_eq!(code, -32602);
    assert!(words.contains("query exceeds max results 1"), "{words}");
    node.call("eth_getLogs", range("0x2")).await;
    let addresses: Vec<_> =
        (0..1001u64).map(|n| alloy_primitives::Address::from_word(U256::from(n).into())).collect();
    assert_eq!(node.fail("eth_getLogs", json!([{ "address": addresses }])).await.0, -32000);

    let first = node.call("eth_newBlockFilter", json!([])).await;
    node.call("eth_newBlockFilter", json!([])).await;
    let expired = node.fail("eth_getFilterChanges", json!([first])).await;
    assert_eq!(expired.1, "filter not found");
}

#[tokio::test]
async fn filters_tell_of_transactions_that_wait() {
    let chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.set_head(chain.genesis(), B256::ZERO, B256::ZERO).await;
    let hashes = node.call("eth_newPendingTransactionFilter", json!([])).await;
    let full = node.call("eth_newPendingTransactionFilter", json!([true])).await;
    let hash = node.call("eth_sendRawTransaction", json!([signed_transfer(0, 0)])).await;
    let changes = async |id: &Value| node.call("eth_getFilterChanges", json!([id])).await;
    assert_eq!(changes(&hashes).await, json!([hash]));
    assert_eq!(changes(&hashes).await, json!([]));
    assert_eq!(changes(&full).await[0]["hash"], hash);
}

#[tokio::test]
async fn a_filter_goes_on_where_its_branch_was_forgotten() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let ([_, a2], [b1, b2, b3]) = two_branches(&mut chain);
    node.add(&chain.path(genesis, a2)).await;
    node.add(&chain.path(genesis, b3)).await;
    node.set_head(a2, B256::ZERO, B256::ZERO).await;
    let heads = node.call("eth_newBlockFilter", json!([])).await;
    // Branches off the finalized chain are pruned.
    node.set_head(b3, b3, b3).await;
    let changes = node.call("eth_getFilterChanges", json!([heads])).await;
    assert_eq!(changes, json!([b1, b2, b3]));
    assert_eq!(node.call("eth_getFilterChanges", json!([heads])).await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_are_told_each_block_once() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let mut blocks = vec![chain.genesis()];
    for _ in 0..20 {
        let last = *blocks.last().unwrap();
        blocks.push(chain.extend(last, BlockPlan::new([])));
    }
    node.add(&chain.path(blocks[0], blocks[20])).await;
    let id = node.call("eth_newBlockFilter", json!([])).await;
    let mut told = Vec::new();
    for head in &blocks[1..] {
        node.set_head(*head, B256::ZERO, B256::ZERO).await;
        let asked = (0..4).map(|_| node.call("eth_getFilterChanges", json!([id])));
        for answer in futures::future::join_all(asked).await {
            told.extend(answer.as_array().unwrap().clone());
        }
    }
    let expected: Vec<Value> = blocks[1..].iter().map(|block| json!(block)).collect();
    assert_eq!(told, expected);
}
