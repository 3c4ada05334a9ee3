//! Fees of past blocks, and suggestions.

use crate::common::{NodeFixture, mpt, raw, test_chain};
use alloy_primitives::{B256, U64};
use retrie_pipeline::testkit::TestRules;
use serde_json::{Value, json};
use std::{sync::mpsc, time::Duration};

async fn node(rules: TestRules) -> (NodeFixture, Vec<B256>) {
    let mut chain = test_chain(rules);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let blocks = chain.branch(genesis, 6, 12, 1);
    node.add(&chain.path(genesis, blocks[5])).await;
    node.set_head(blocks[5], B256::ZERO, B256::ZERO).await;
    (node, blocks)
}

fn number(value: &Value) -> u64 {
    serde_json::from_value::<U64>(value.clone()).unwrap().to()
}

#[tokio::test]
async fn the_fee_history_agrees_with_the_blocks() {
    let (node, _) = node(TestRules::Cancun).await;
    let history = node.call("eth_feeHistory", json!(["0x3", "0x5", [0, 50, 100]])).await;
    assert_eq!(history["oldestBlock"], "0x3");
    for at in 0..3 {
        let block = json!([format!("{:#x}", at + 3), false]);
        let block = node.call("eth_getBlockByNumber", block).await;
        assert_eq!(history["baseFeePerGas"][at], block["baseFeePerGas"]);
        let ratio = number(&block["gasUsed"]) as f64 / number(&block["gasLimit"]) as f64;
        assert_eq!(history["gasUsedRatio"][at], json!(ratio));
        // All wallets of the test-kit pay the same tip.
        assert_eq!(history["reward"][at], json!(["0x3b9aca00", "0x3b9aca00", "0x3b9aca00"]));
    }
    let next = node.call("eth_getBlockByNumber", json!(["0x6", false])).await;
    assert_eq!(history["baseFeePerGas"][3], next["baseFeePerGas"]);
    assert_eq!(history["baseFeePerBlobGas"], json!(["0x1", "0x1", "0x1", "0x1"]));

    let all = node.call("eth_feeHistory", json!([1000, "latest"])).await;
    assert_eq!((&all["oldestBlock"], all.get("reward")), (&json!("0x0"), None));
    assert_eq!(all["gasUsedRatio"].as_array().unwrap().len(), 7);
    let none = node.call("eth_feeHistory", json!(["0x0", "latest", []])).await;
    assert_eq!(none["gasUsedRatio"], json!([]));
    for (params, code) in [
        (json!(["0x1", "0x7", []]), -32000),
        (json!(["0x1", "0xffffffffffffffff", []]), -32602),
        (json!(["0x1", "latest", [50, 10]]), -32000),
        (json!(["0x1", "latest", [50, 50]]), -32000),
        (json!(["0x1", "latest", [101]]), -32000),
        (json!(["0x1", "latest", [-1]]), -32000),
        (json!(["0x1", "latest", vec![1; 101]]), -32000),
        (json!(["0x1", "latest", ["50"]]), -32602),
        (json!(["x", "latest", []]), -32602),
        (json!(["0x+1", "latest", []]), -32602),
    ] {
        assert_eq!(node.fail("eth_feeHistory", params.clone()).await.0, code, "{params}");
    }
}

/// A history of 1,024 blocks and 100 percentiles reads all their receipts. Cause: it took a read
/// permit, of which there are 64, and requests for state chunks took heavy permits.
#[tokio::test]
async fn histories_wait_for_permits_of_heavy_requests_and_parts_of_states_do_not() {
    let (node, blocks) = node(TestRules::Cancun).await;
    let heavy: Vec<_> = (0..4)
        .map(|_| {
            let (release, gate) = mpsc::channel::<()>();
            let rpc = node.rpc.clone();
            let work = move |_| {
                // Until the other end is dropped.
                let _ = gate.recv();
                Ok(())
            };
            (release, tokio::spawn(async move { rpc.run_heavy(work).await.unwrap() }))
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let history = node.call("eth_feeHistory", json!(["0x3", "latest", [50]]));
    tokio::pin!(history);
    let others = async {
        for _ in 0..5 {
            node.call("eth_gasPrice", json!([])).await;
        }
        let none = node.call("sync_getChunks", json!([blocks[5], ["0x07"]])).await;
        assert_eq!(none, json!([null]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    tokio::select! {
        biased;
        history = &mut history => panic!("it has not waited: {history}"),
        () = others => {}
    }
    for (release, working) in heavy {
        drop(release);
        working.await.unwrap();
    }
    assert_eq!(history.await["reward"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn suggestions_follow_the_tips_of_recent_blocks() {
    let (node, _) = node(TestRules::Cancun).await;
    let head = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    let tip = node.call("eth_maxPriorityFeePerGas", json!([])).await;
    assert_eq!(tip, "0x3b9aca00", "everybody pays a gwei");
    let price = node.call("eth_gasPrice", json!([])).await;
    assert_eq!(number(&price), 1_000_000_000 + number(&head["baseFeePerGas"]));
    assert_eq!(node.call("eth_blobBaseFee", json!([])).await, "0x1");
    let base_fee = node.call("eth_baseFee", json!([])).await;
    let history = node.call("eth_feeHistory", json!(["0x1", "latest"])).await;
    assert_eq!(base_fee, history["baseFeePerGas"][1]);
}

#[tokio::test]
async fn chains_without_these_fees_say_so() {
    let (node, _) = node(TestRules::Byzantium).await;
    assert_eq!(node.call("eth_blobBaseFee", json!([])).await, Value::Null);
    assert_eq!(node.call("eth_baseFee", json!([])).await, Value::Null);
    let history = node.call("eth_feeHistory", json!(["0x2", "latest", [50]])).await;
    assert_eq!(history["baseFeePerGas"], json!(["0x0", "0x0", "0x0"]));
    let price = node.call("eth_gasPrice", json!([])).await;
    assert_eq!(price, "0x3b9aca00");
    let empty = NodeFixture::new(&test_chain(TestRules::Cancun).spec, raw());
    let tip = node_tip(&empty).await;
    assert_eq!(tip, "0xf4240", "nobody has bid yet");
}

async fn node_tip(node: &NodeFixture) -> Value {
    node.call("eth_maxPriorityFeePerGas", json!([])).await
}
