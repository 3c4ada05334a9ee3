//! The subscription `transactionReceipts`, and `eth_pendingTransactions`.

use crate::common::{NodeFixture, WsClient, mpt, signed_transfer, test_chain};
use alloy_primitives::B256;
use retrie_pipeline::testkit::{TestRules, TestWallet};
use retrie_rpc::{RpcContext, server::ServerConfig};
use serde_json::{Value, json};

#[tokio::test]
async fn subscribers_hear_of_the_receipts_of_each_new_block() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 3, 12, 1);
    let side = chain.branch(main[0], 3, 12, 2);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let servers = node.serve(&ServerConfig { http: None, ..node.config() }).await;
    let addr = servers.ws_addr().unwrap();
    let hash = |block: B256, index: usize| *chain.block(block).body.transactions[index].hash();
    let own = hash(main[1], 1);
    let wanted = json!({ "transactionHashes": [own, own, B256::repeat_byte(1)] });
    let mut clients = Vec::new();
    for params in [
        json!(["transactionReceipts"]),
        json!(["transactionReceipts", null]),
        json!(["transactionReceipts", {}]),
        json!(["transactionReceipts", { "transactionHashes": null }]),
        json!(["transactionReceipts", { "transactionHashes": [] }]),
        json!(["transactionReceipts", wanted]),
    ] {
        let mut client = WsClient::connect(addr, &[]).await.unwrap();
        let answer = client.call("eth_subscribe", params).await;
        assert!(answer["result"].is_string(), "{answer}");
        clients.push((client, answer["result"].clone()));
    }
    node.add(&chain.path(genesis, main[2])).await;
    node.add(&chain.path(main[0], side[2])).await;
    node.set_head(main[2], B256::ZERO, B256::ZERO).await;
    node.set_head(side[2], B256::ZERO, B256::ZERO).await;
    let (mut filtered, filtered_id) = clients.pop().unwrap();
    for (mut client, id) in clients {
        // Receipts of reverted blocks are not sent; those of new blocks are.
        for block in main.iter().chain(&side) {
            let shown = client.event(&id).await;
            let told = node.call("eth_getBlockReceipts", json!([block])).await;
            assert_eq!(shown, told);
            assert_eq!(
                shown.as_array().unwrap().len(),
                chain.block(*block).body.transactions.len()
            );
        }
    }
    // One array with one receipt, and no message for other blocks.
    let shown = filtered.event(&filtered_id).await;
    assert_eq!((shown.as_array().unwrap().len(), &shown[0]["transactionHash"]), (1, &json!(own)));
    assert_eq!(shown[0]["blockHash"], json!(main[1]));
    let heads = filtered.call("eth_blockNumber", json!([])).await;
    assert_eq!(heads["result"], "0x4", "no other notification came before the answer");
}

#[tokio::test]
async fn receipts_are_asked_for_by_no_more_than_200_hashes() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let servers = node.serve(&ServerConfig { http: None, ..node.config() }).await;
    let mut client = WsClient::connect(servers.ws_addr().unwrap(), &[]).await.unwrap();
    let hashes = |count: usize| -> Value {
        let hashes: Vec<_> = (0..count).map(|n| B256::with_last_byte(n as u8)).collect();
        json!(["transactionReceipts", { "transactionHashes": hashes }])
    };
    assert!(client.call("eth_subscribe", hashes(200)).await["result"].is_string());
    let refused = client.call("eth_subscribe", hashes(201)).await;
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("exceed max number"));
    for wrong in [json!({ "transactionHashes": 7 }), json!({ "transactionHashes": ["0x01"] })] {
        let refused = client.call("eth_subscribe", json!(["transactionReceipts", wrong])).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
}

#[tokio::test]
async fn pending_transactions_are_those_of_the_accounts_of_the_node() {
    let chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.set_head(chain.genesis(), B256::ZERO, B256::ZERO).await;
    let own = [0, 2, 3].map(|wallet| TestWallet::new(wallet).address).to_vec();
    node.rpc = RpcContext::clone(&node.rpc).with_accounts(own);
    assert_eq!(node.call("eth_pendingTransactions", json!([])).await, json!([]));
    let mut hashes = Vec::new();
    for (wallet, nonce) in [(0, 0), (0, 1), (1, 0), (2, 0), (3, 1)] {
        let sent = node.call("eth_sendRawTransaction", json!([signed_transfer(wallet, nonce)]));
        hashes.push(sent.await);
    }
    // Not the transaction of another account, nor the one with a nonce gap.
    let shown = node.call("eth_pendingTransactions", json!([])).await;
    let shown: Vec<_> = shown.as_array().unwrap().iter().map(|one| one["hash"].clone()).collect();
    assert_eq!(shown, [hashes[0].clone(), hashes[1].clone(), hashes[3].clone()]);
}
