//! `debug_setHead`, and memory statistics of the process.

use crate::common::{NodeFixture, backends, mpt, test_chain};
use alloy_primitives::B256;
use retrie_engine::{HeapStats, NodeStatus};
use retrie_pipeline::testkit::{TestRules, TestWallet};
use retrie_rpc::RpcContext;
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn the_chain_goes_back_with_its_state_and_without_its_transactions() {
    for backend in backends() {
        let name = backend.identity().name;
        let mut chain = test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let hashes = chain.branch(genesis, 6, 12, 1);
        let mut node = NodeFixture::new(&chain.spec, backend);
        node.rpc = RpcContext::clone(&node.rpc).with_engine(node.engine.handle().clone());
        node.add(&chain.path(genesis, hashes[5])).await;
        node.set_head(hashes[5], hashes[4], hashes[3]).await;
        let sender = TestWallet::new(0).address;
        let nonce = json!([sender, "latest"]);
        assert_eq!(node.call("eth_getTransactionCount", nonce.clone()).await, "0x6", "{name}");

        for future in ["0x6", "0x7", "0xffffffffffffffff"] {
            let refused = node.fail("debug_setHead", json!([future])).await;
            assert_eq!(refused, (-32000, "not allowed to rewind to a future block".into()));
        }
        assert_eq!(node.fail("debug_setHead", json!([])).await.0, -32602);
        assert_eq!(node.fail("debug_setHead", json!(["two"])).await.0, -32602);

        assert_eq!(node.call("debug_setHead", json!(["0x2"])).await, Value::Null);
        node.maintainer.wait_for(hashes[1]).await;
        assert_eq!(node.call("eth_blockNumber", json!([])).await, "0x2", "{name}");
        assert_eq!(node.call("eth_getTransactionCount", nonce).await, "0x2", "{name}");
        for tag in ["latest", "safe", "finalized"] {
            let block = node.call("eth_getBlockByNumber", json!([tag, false])).await;
            assert_eq!(block["hash"], json!(hashes[1]), "{name}: {tag}");
        }
        assert_eq!(node.call("eth_getBlockByNumber", json!(["0x3", false])).await, Value::Null);
        let gone = chain.block(hashes[2]).body.transactions[0].hash();
        let waiting = node.call("eth_getTransactionByHash", json!([gone])).await;
        assert_eq!(waiting, Value::Null, "{name}: it is not wanted any more");
        // The consensus client can go on from there.
        node.set_head(hashes[5], B256::ZERO, B256::ZERO).await;
        assert_eq!(node.call("eth_blockNumber", json!([])).await, "0x6", "{name}");
    }
}

#[tokio::test]
async fn a_node_that_nobody_gave_its_engine_says_so() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let hashes = chain.branch(genesis, 2, 12, 1);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.add(&chain.path(genesis, hashes[1])).await;
    node.set_head(hashes[1], B256::ZERO, B256::ZERO).await;
    let (code, message) = node.fail("debug_setHead", json!(["0x1"])).await;
    assert_eq!(code, -32000);
    assert!(message.contains("cannot rewind"), "{message}");
}

#[tokio::test]
async fn memory_is_told_in_the_form_of_go() {
    struct MockHeapNode;
    impl NodeStatus for MockHeapNode {
        fn heap(&self) -> Option<HeapStats> {
            Some(HeapStats { allocated: 5, mapped: 8, retained: 1, ..HeapStats::default() })
        }
    }
    let chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.rpc = RpcContext::clone(&node.rpc).with_node(Arc::new(MockHeapNode));
    let stats = node.call("debug_memStats", json!([])).await;
    assert_eq!((&stats["Alloc"], &stats["HeapSys"]), (&json!(5), &json!(9)));
    assert_eq!(stats["NumGC"], 0);
    let stats = node.call("debug_gcStats", json!([])).await;
    assert_eq!((&stats["NumGC"], &stats["Pause"]), (&json!(0), &json!([])));
}
