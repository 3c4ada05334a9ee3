//! Sending transactions, and methods about the node itself.

use crate::common::{NodeFixture, mpt, raw, signed_transfer, test_chain};
use alloy_primitives::{B256, Bytes};
use retrie_pipeline::testkit::{BlockPlan, TestCall, TestRules, TestWallet, signed};
use retrie_rpc::{RequestLimits, RpcContext};
use serde_json::{Value, json};

async fn node() -> NodeFixture {
    let chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, raw());
    node.set_head(chain.genesis(), B256::ZERO, B256::ZERO).await;
    node
}

#[tokio::test]
async fn a_transaction_that_is_sent_waits_where_everybody_sees_it() {
    let node = node().await;
    let sender = TestWallet::new(0).address;
    let first = node.call("eth_sendRawTransaction", json!([signed_transfer(0, 0)])).await;
    let gap = node.call("eth_sendRawTransaction", json!([signed_transfer(0, 2)])).await;
    let shown = node.call("eth_getTransactionByHash", json!([first])).await;
    assert_eq!((&shown["hash"], &shown["blockNumber"]), (&first, &Value::Null));
    let raw = node.call("eth_getRawTransactionByHash", json!([first])).await;
    assert_eq!(raw, json!(signed_transfer(0, 0)));
    let nonce = async |at: &str| node.call("eth_getTransactionCount", json!([sender, at])).await;
    assert_eq!((nonce("latest").await, nonce("pending").await), (json!("0x0"), json!("0x1")));
    let status = node.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({ "pending": "0x1", "queued": "0x1" }));
    let content = node.call("txpool_content", json!([])).await;
    let address = sender.to_string();
    assert_eq!(content["pending"][&address]["0"]["hash"], first, "{content}");
    assert_eq!(content["queued"][&address]["2"]["hash"], gap);
    let own = node.call("txpool_contentFrom", json!([sender])).await;
    assert_eq!(own["pending"]["0"]["hash"], first);
    let summary = node.call("txpool_inspect", json!([])).await;
    let line = summary["pending"][&address]["0"].as_str().unwrap();
    assert!(line.contains("1000 wei + 200000 gas"), "{line}");
}

#[tokio::test]
async fn what_is_sent_with_more_than_it_takes_is_not_sent() {
    let node = node().await;
    for method in ["eth_sendRawTransaction", "eth_sendRawTransactionSync"] {
        let params = json!([signed_transfer(0, 0), "0x1", "0x2"]);
        let (code, message) = node.fail(method, params).await;
        assert!(code == -32602 && message.starts_with("too many arguments"), "{message}");
        let status = node.call("txpool_status", json!([])).await;
        assert_eq!(status, json!({ "pending": "0x0", "queued": "0x0" }), "{method}");
    }
}

#[tokio::test]
async fn what_the_pool_refuses_is_told_in_geths_words() {
    let mut node = node().await;
    node.rpc = RpcContext::clone(&node.rpc)
        .with_limits(RequestLimits { tx_fee_cap: 10_u128.pow(15), ..RequestLimits::default() });
    node.call("eth_sendRawTransaction", json!([signed_transfer(0, 0)])).await;
    let (wallet, call) = (TestWallet::new(3), TestCall::transfer(3, TestWallet::new(1).address, 1));
    let dear = signed(&wallet, &call, 0, Some(10_u64.pow(13)));
    let dear = Bytes::from(alloy_eips::eip2718::Encodable2718::encoded_2718(&dear));
    for (raw, words) in [
        (signed_transfer(0, 0), "already known"),
        (Bytes::new(), "could not be decoded"),
        (Bytes::from_static(&[2, 0xc0]), "could not be decoded"),
        (Bytes::from_static(&[0x7f]), "could not be decoded"),
        (dear, "exceeds the configured cap"),
        (signed_transfer(200, 0), "insufficient funds"),
    ] {
        let (code, message) = node.fail("eth_sendRawTransaction", json!([raw])).await;
        assert_eq!(code, -32000, "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn sending_can_wait_for_the_receipt() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    node.set_head(genesis, B256::ZERO, B256::ZERO).await;
    let recipient = alloy_primitives::Address::with_last_byte(0xaa);
    let block = chain.extend(genesis, BlockPlan::new([TestCall::transfer(0, recipient, 1000)]));
    node.add(&chain.path(genesis, block)).await;
    let transaction = chain.block(block).body.transactions[0].clone();
    let raw = Bytes::from(alloy_eips::eip2718::Encodable2718::encoded_2718(&transaction));
    // Cause of `data`: a client needs the transaction's hash (EIP-7966), and the message is no
    // place for it.
    let early = node.ask("eth_sendRawTransactionSync", json!([raw, "0x1"])).await;
    assert_eq!(early["error"]["code"], 4, "{early}");
    assert_eq!(early["error"]["data"], json!(transaction.hash()), "{early}");
    node.pool.remove(transaction.hash());
    // As in geth, zero means the default timeout.
    let waiting = node.call("eth_sendRawTransactionSync", json!([raw, "0x0"]));
    let mined = async {
        while node.pool.get(transaction.hash()).is_none() {
            tokio::task::yield_now().await;
        }
        let state = alloy_rpc_types_engine::ForkchoiceState {
            head_block_hash: block,
            ..Default::default()
        };
        node.engine.handle().forkchoice(state).await.unwrap();
    };
    let (receipt, ()) = tokio::join!(waiting, mined);
    assert_eq!(receipt["transactionHash"], json!(transaction.hash()));
    assert_eq!(receipt["blockHash"], json!(block));
}

#[tokio::test]
async fn the_node_tells_who_it_is() {
    let node = node().await;
    assert_eq!(node.call("net_version", json!([])).await, "7331");
    assert_eq!(node.call("net_listening", json!([])).await, false);
    assert_eq!(node.call("net_peerCount", json!([])).await, "0x0");
    let empty = "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470";
    assert_eq!(node.call("web3_sha3", json!(["0x"])).await, empty);
    let info = node.call("admin_nodeInfo", json!([])).await;
    assert_eq!(info["protocols"]["eth"]["network"], 7331);
    assert_eq!(node.call("admin_peers", json!([])).await, json!([]));
    assert_eq!(node.call("eth_accounts", json!([])).await, json!([]));
    assert_eq!(node.call("eth_syncing", json!([])).await, false);
    assert_eq!(node.fail("eth_coinbase", json!([])).await.0, -32000);
    let modules = node.call("rpc_modules", json!([])).await;
    assert_eq!(modules["state"], "1.0");
    let config = node.call("eth_config", json!([])).await;
    assert_eq!(config["current"]["activationTime"], 0);
    assert_eq!(config["current"]["precompiles"]["ECREC"], json!(format!("0x{:040x}", 1)));
    let capabilities = node.call("eth_capabilities", json!([])).await;
    assert_eq!(capabilities["head"]["number"], "0x0");
    assert_eq!(capabilities["stateproofs"], json!({ "disabled": true }), "raw proves nothing");
}
