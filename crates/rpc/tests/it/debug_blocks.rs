//! What a block did, found by executing it again: its requests, the roots after its transactions,
//! and traces of many blocks.

use crate::common::{NodeFixture, WsClient, backends, mpt, post, raw, request, test_chain};
use alloy_eips::{eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, eip7685::Requests};
use alloy_primitives::{B256, Bytes};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::NodeStatus;
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, write_blocks,
};
use retrie_state::AnyBackend;
use retrie_state_store::{FlatHistory, StoreOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// A node with the blocks up to `tip`, whose states it can extend for `retention` blocks.
fn node_on(
    chain: &TestChain,
    tip: B256,
    backend: Arc<dyn AnyBackend>,
    retention: u64,
) -> NodeFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), tip));
    let store =
        StoreOptions { retention, flat_history: FlatHistory::All, ..StoreOptions::default() };
    NodeFixture::with_store(&chain.spec, backend, Some(&file), store)
}

#[tokio::test]
async fn the_requests_of_a_block_are_those_that_its_header_names() {
    let mut chain = test_chain(TestRules::Prague);
    let withdrawal = TestCall {
        from: 2,
        to: WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS.into(),
        value: 1,
        input: Bytes::from_static(&[0xab; 56]),
    };
    let with = chain.extend(chain.genesis(), BlockPlan::new([withdrawal]));
    let without = chain.extend(with, BlockPlan::new([]));
    let node = node_on(&chain, without, mpt(), 128);

    let requests = node.call("debug_getRawExecutionRequests", json!([with])).await;
    // The type, the sender, and the input: key and amount.
    let sender = TestWallet::new(2).address;
    let expected = Bytes::from([&[1u8][..], sender.as_slice(), &[0xab; 56]].concat());
    assert_eq!(requests, json!([expected]));
    let hash = Requests::new(vec![expected]).requests_hash();
    assert_eq!(chain.block(with).header.requests_hash, Some(hash));
    for empty in [json!("0x2"), json!("latest"), json!("0x0")] {
        assert_eq!(node.call("debug_getRawExecutionRequests", json!([empty])).await, json!([]));
    }
    let unknown = json!([B256::repeat_byte(1)]);
    let (code, message) = node.fail("debug_getRawExecutionRequests", unknown).await;
    assert!(code == -32000 && message.contains("not found"), "{message}");

    let mut chain = test_chain(TestRules::Cancun);
    let block = chain.extend(chain.genesis(), BlockPlan::new([]));
    let node = node_on(&chain, block, mpt(), 128);
    let none = node.call("debug_getRawExecutionRequests", json!(["latest"])).await;
    assert_eq!(none, Value::Null, "before Prague");
}

#[tokio::test]
async fn the_roots_before_byzantium_are_those_of_the_receipts() {
    let mut chain = test_chain(TestRules::Frontier);
    let hashes = chain.branch(chain.genesis(), 4, 12, 1);
    let node = node_on(&chain, hashes[3], mpt(), 128);
    for block in hashes {
        let receipts = node.call("eth_getBlockReceipts", json!([block])).await;
        let in_receipts = receipts.as_array().unwrap().iter().map(|one| one["root"].clone());
        let roots = node.call("debug_intermediateRoots", json!([block])).await;
        assert_eq!(roots, in_receipts.collect::<Value>());
    }
}

#[tokio::test]
async fn every_store_with_a_root_tells_it_after_each_transaction() {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), 4, 12, 1);
    for backend in backends() {
        let (name, profile) = (backend.identity().name, backend.profile());
        let node = node_on(&chain, hashes[3], backend, 128);
        for block in &hashes {
            if !profile.proofs {
                let (code, message) = node.fail("debug_intermediateRoots", json!([block])).await;
                assert!(code == -32000 && message.contains("no state root"), "{message}");
                continue;
            }
            let options = json!({ "tracer": "callTracer" });
            let roots = node.call("debug_intermediateRoots", json!([block, options])).await;
            let roots = roots.as_array().unwrap();
            assert_eq!(roots.len(), chain.block(*block).body.transactions.len(), "{name}");
            assert!(roots.windows(2).all(|pair| pair[0] != pair[1]), "{name}: {roots:?}");
            // Nothing follows the transactions of this block. Other stores' roots tell how the
            // changes were divided.
            let last = node.call("state_getRoot", json!([block])).await["root"].clone();
            if profile.state_determined_root {
                assert_eq!(roots.last(), Some(&last), "{name}");
            }
            if profile.ethereum_root {
                assert_eq!(last, json!(chain.block(*block).header.state_root));
            }
        }
        // Nothing was committed.
        let again = node.call("debug_traceBlockByHash", json!([hashes[3]])).await;
        assert!(again.is_array());
    }
}

#[tokio::test]
async fn what_has_no_roots_is_told_why() {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), 8, 12, 1);
    let node = node_on(&chain, hashes[7], mpt(), 2);
    for (params, words) in [
        (json!([chain.genesis()]), "genesis is not traceable"),
        (json!([B256::ZERO]), "not found"),
        (json!([hashes[1]]), "block 1 lies below the retention window"),
        (json!(["0x1"]), "invalid argument 0"),
        (json!([hashes[7], 5]), "invalid argument 1"),
    ] {
        let (_, message) = node.fail("debug_intermediateRoots", params.clone()).await;
        assert!(message.contains(words), "{params}: {message}");
    }
    assert!(node.call("debug_intermediateRoots", json!([hashes[7]])).await.is_array());
    // Its roots are known without the stores, but not after each transaction.
    let bare = node_on(&chain, hashes[7], raw(), 2);
    assert_eq!(bare.fail("debug_intermediateRoots", json!([hashes[7]])).await.0, -32000);
}

/// The engine's rejected blocks.
struct RejectedBlock(Arc<RecoveredBlock>);

impl NodeStatus for RejectedBlock {
    fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        vec![self.0.clone()]
    }
}

#[tokio::test]
async fn a_bad_block_has_roots_up_to_what_cannot_be_executed() {
    let mut chain = test_chain(TestRules::Prague);
    let store = |value| TestCall::store(2, GENESIS_CONTRACT, 1, value);
    let good = chain.extend(chain.genesis(), BlockPlan::new([store(5), store(6)]));
    let mut bad = chain.block(good).clone();
    // The same transaction twice: its nonce has been used.
    let again = bad.body.transactions[0].clone();
    bad.body.transactions.push(again);
    bad.header.extra_data = Bytes::from_static(b"bad");
    let sender = TestWallet::new(2).address;
    let bad = RecoveredBlock::new_unhashed(bad, vec![sender; 3]);
    let hash = bad.hash();
    let mut node = node_on(&chain, good, mpt(), 128);
    let roots = node.call("debug_intermediateRoots", json!([good])).await;
    node.rpc = node.rpc.clone().with_node(Arc::new(RejectedBlock(Arc::new(bad))));
    // The fixture's methods were made for the node without bad blocks.
    let methods = retrie_rpc::build_methods(&node.rpc, &[retrie_rpc::ApiNamespace::Debug]);
    let answer = crate::common::ask(&methods, "debug_intermediateRoots", json!([hash])).await;
    assert_eq!(answer["result"], roots, "{answer}");
}

#[tokio::test]
async fn a_chain_is_traced_block_by_block_for_a_subscriber() {
    let mut chain = test_chain(TestRules::Prague);
    let mut hashes = chain.branch(chain.genesis(), 3, 12, 1);
    // Blocks without transactions are left out, except the last one.
    for _ in 0..2 {
        hashes.push(chain.extend(*hashes.last().unwrap(), BlockPlan::new([])));
    }
    let node = node_on(&chain, hashes[4], mpt(), 128);
    let servers = node.serve(&node.config()).await;
    let mut ws = WsClient::connect(servers.ws_addr().unwrap(), &[]).await.unwrap();
    let options = json!({ "tracer": "callTracer" });
    for (start, end, blocks) in [("0x0", "latest", &[0, 1, 2, 4][..]), ("0x1", "0x3", &[1, 2])] {
        let params = json!(["traceChain", start, end, options]);
        let id = ws.call("debug_subscribe", params).await["result"].clone();
        for block in blocks {
            let message = ws.next().await;
            assert_eq!(message["method"], "debug_subscription", "{message}");
            assert_eq!(message["params"]["subscription"], id);
            let traced = &message["params"]["result"];
            let hash = hashes[*block];
            assert_eq!(traced["block"], json!(format!("{:#x}", block + 1)));
            assert_eq!(traced["hash"], json!(hash));
            let params = json!([hash, options]);
            assert_eq!(traced["traces"], node.call("debug_traceBlockByHash", params).await);
        }
    }
    let wrong = [
        (json!(["traceChain", "0x3", "0x3"]), -32000, "needs to come after"),
        (json!(["traceChain", "0x0", "0x99"]), -32000, "not found"),
        (json!(["traceChain", "0x0"]), -32602, "missing value"),
        (json!(["traceChain", "0x0", "0x1", { "tracer": 5 }]), -32602, "invalid argument 3"),
        (json!(["newHeads"]), -32601, "in debug namespace"),
    ];
    for (params, code, words) in wrong {
        let error = &ws.call("debug_subscribe", params.clone()).await["error"];
        assert_eq!(error["code"], code, "{params}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{params}: {error}");
    }
    let over_http = request("debug_subscribe", json!(["traceChain", "0x0", "0x1"])).to_string();
    let (code, _) = post(servers.http_addr().unwrap(), &over_http).await.error();
    assert_eq!(code, -32601);
}

#[tokio::test]
async fn traces_of_chains_are_few_at_a_time_and_end_with_their_client() {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), 6, 12, 1);
    let node = node_on(&chain, hashes[5], mpt(), 128);
    let servers = node.serve(&node.config()).await;
    let subscribe = json!(["traceChain", "0x0", "0x6", { "tracer": "callTracer" }]);
    // No permit is left, so no trace begins.
    let (all, _permits) = hold_heavy_permits(&node).await;
    assert!(all > 0);
    let mut first = WsClient::connect(servers.ws_addr().unwrap(), &[]).await.unwrap();
    for _ in 0..4 {
        let answer = first.call("debug_subscribe", subscribe.clone()).await;
        assert!(answer["result"].is_string(), "{answer}");
    }
    let mut other = WsClient::connect(servers.ws_addr().unwrap(), &[]).await.unwrap();
    let refused = other.call("debug_subscribe", subscribe.clone()).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("too many"), "{refused}");
    drop(first);
    // The places are free once the server has noticed.
    for _ in 0..500 {
        let answer = other.call("debug_subscribe", subscribe.clone()).await;
        if answer["result"].is_string() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the client is gone, and its places are not free");
}

/// Occupies the threads of heavy methods until the sender is dropped. Returns their number.
async fn hold_heavy_permits(node: &NodeFixture) -> (usize, std::sync::mpsc::Sender<()>) {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = Arc::new(parking_lot::Mutex::new(receiver));
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    // As many as the fixture's context has.
    for _ in 0..4 {
        let (receiver, begun, rpc) = (receiver.clone(), begun.clone(), node.rpc.clone());
        tokio::spawn(async move {
            rpc.run_heavy(move |_| {
                begun.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                // Ends with an error once the sender is dropped.
                let _ = receiver.lock().recv();
                Ok(())
            })
            .await
        });
    }
    while begun.load(std::sync::atomic::Ordering::Acquire) < 4 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    (4, sender)
}
