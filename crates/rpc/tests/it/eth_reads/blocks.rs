//! Blocks, transactions and receipts.

use crate::common::{NodeFixture, backends, mpt, test_chain};
use alloy_consensus::constants::EMPTY_OMMER_ROOT_HASH;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U64};
use retrie_pipeline::testkit::{BlockPlan, TestRules};
use serde_json::{Value, json};

#[tokio::test]
async fn blocks_transactions_and_receipts_fit_together() {
    for backend in backends() {
        let mut chain = test_chain(TestRules::Prague);
        let mut node = NodeFixture::new(&chain.spec, backend);
        let genesis = chain.genesis();
        let blocks = chain.branch(genesis, 5, 12, 2);
        let head = *blocks.last().unwrap();
        node.add(&chain.path(genesis, head)).await;
        node.set_head(head, B256::ZERO, B256::ZERO).await;
        for hash in &blocks {
            let built = chain.block(*hash);
            let number = json!(U64::from(built.header.number));
            let block = node.call("eth_getBlockByHash", json!([hash, true])).await;
            assert_eq!(block, node.call("eth_getBlockByNumber", json!([number, true])).await);
            assert_eq!(block["hash"], json!(hash));
            assert_eq!(block["requestsHash"], json!(built.header.requests_hash));
            assert_eq!(block["withdrawals"], json!([]));
            assert_eq!(block.get("totalDifficulty"), None);
            assert_eq!(block["size"], json!(U64::from(alloy_rlp::encode(built).len())));
            let short = node.call("eth_getBlockByHash", json!([hash, false])).await;
            let receipts = node.call("eth_getBlockReceipts", json!([number])).await;
            let transactions = &built.body.transactions;
            let count = json!(U64::from(transactions.len()));
            let counted = node.call("eth_getBlockTransactionCountByHash", json!([hash])).await;
            assert_eq!(counted, count);
            let (mut gas, mut logs) = (0, 0);
            for (at, transaction) in transactions.iter().enumerate() {
                let own = json!(transaction.hash());
                assert_eq!(short["transactions"][at], own);
                let shown = &block["transactions"][at];
                assert_eq!(shown["hash"], own);
                assert_eq!(*shown, node.call("eth_getTransactionByHash", json!([own])).await);
                let index = json!(U64::from(at));
                let by_index = "eth_getTransactionByBlockNumberAndIndex";
                assert_eq!(*shown, node.call(by_index, json!([number, index])).await);
                let raw = node.call("eth_getRawTransactionByHash", json!([own])).await;
                assert_eq!(raw, json!(Bytes::from(transaction.encoded_2718())));

                let receipt = node.call("eth_getTransactionReceipt", json!([own])).await;
                assert_eq!(receipt, receipts[at]);
                let quantity = |key: &str| {
                    serde_json::from_value::<U64>(receipt[key].clone()).unwrap().to::<u64>()
                };
                gas += quantity("gasUsed");
                assert_eq!(quantity("cumulativeGasUsed"), gas);
                assert_eq!(receipt["status"], "0x1");
                for log in receipt["logs"].as_array().unwrap() {
                    assert_eq!(log["logIndex"], json!(U64::from(logs)));
                    assert_eq!(log["transactionHash"], own);
                    logs += 1;
                }
            }
            assert_eq!(json!(U64::from(gas)), block["gasUsed"]);
        }
    }
}

/// Cause: `pending` was the head, so tools computed fees from a base fee that was one block old.
#[tokio::test]
async fn the_pending_block_is_the_next_one_without_transactions() {
    for rules in [TestRules::Frontier, TestRules::Cancun, TestRules::Prague] {
        let mut chain = test_chain(rules);
        let mut node = NodeFixture::new(&chain.spec, mpt());
        let genesis = chain.genesis();
        let head = *chain.branch(genesis, 3, 12, 1).last().unwrap();
        node.add(&chain.path(genesis, head)).await;
        node.set_head(head, B256::ZERO, B256::ZERO).await;
        let latest = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
        let pending = node.call("eth_getBlockByNumber", json!(["pending", true])).await;
        assert_eq!((&pending["number"], &pending["parentHash"]), (&json!("0x4"), &latest["hash"]));
        for absent in ["hash", "nonce", "miner"] {
            assert_eq!(pending.get(absent), Some(&Value::Null), "{absent}, as in geth");
        }
        let next = node.call("eth_baseFee", json!([])).await;
        assert_eq!(pending.get("baseFeePerGas").unwrap_or(&Value::Null), &next);
        if !next.is_null() {
            assert_ne!(next, latest["baseFeePerGas"]);
        }
        let time =
            |block: &Value| serde_json::from_value::<U64>(block["timestamp"].clone()).unwrap();
        assert!(time(&pending) > time(&latest));
        assert_eq!((&pending["transactions"], &pending["gasUsed"]), (&json!([]), &json!("0x0")));
        let fields =
            |block: &Value| -> Vec<String> { block.as_object().unwrap().keys().cloned().collect() };
        assert_eq!(fields(&pending), fields(&latest), "the fork's own");
        let count = node.call("eth_getBlockTransactionCountByNumber", json!(["pending"])).await;
        assert_eq!(count, "0x0");
        assert!(node.call("eth_getHeaderByNumber", json!(["pending"])).await.is_null());
    }
}

#[tokio::test]
async fn receipts_before_byzantium_hold_the_root_after_their_transaction() {
    let mut chain = test_chain(TestRules::Frontier);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let blocks = chain.branch(genesis, 4, 12, 1);
    node.add(&chain.path(genesis, blocks[3])).await;
    node.set_head(blocks[3], B256::ZERO, B256::ZERO).await;
    for block in blocks {
        let built = chain.block(block);
        let receipts = node.call("eth_getBlockReceipts", json!([block])).await;
        let receipts = receipts.as_array().unwrap();
        let roots: Vec<B256> = (receipts.iter())
            .map(|receipt| {
                assert_eq!(receipt.get("status"), None);
                serde_json::from_value(receipt["root"].clone()).unwrap()
            })
            .collect();
        let view = node.live().view().unwrap();
        let stored = view.receipts(&block).unwrap().unwrap();
        let root = retrie_consensus::pre_byzantium_receipts_root(&stored, &roots);
        assert_eq!(root, Some(built.header.receipts_root), "they are those of the header");
    }
}

#[tokio::test]
async fn ommers_are_shown_as_headers() {
    let mut chain = test_chain(TestRules::Byzantium);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let a = chain.extend(genesis, BlockPlan::new([]));
    let side = chain.extend(genesis, BlockPlan::new([]).paid_to(Address::repeat_byte(7)));
    let ommer = chain.block(side).header.clone();
    let head = chain.extend(a, BlockPlan::new([]).with_ommers([ommer.clone()]));
    node.add(&chain.path(genesis, head)).await;
    node.set_head(head, B256::ZERO, B256::ZERO).await;
    let block = node.call("eth_getBlockByHash", json!([head, false])).await;
    assert_eq!(block["uncles"], json!([side]));
    assert_ne!(block["sha3Uncles"], json!(EMPTY_OMMER_ROOT_HASH));
    assert_eq!(node.call("eth_getUncleCountByBlockHash", json!([head])).await, "0x1");
    assert_eq!(node.call("eth_getUncleCountByBlockNumber", json!(["0x1"])).await, "0x0");
    let shown = node.call("eth_getUncleByBlockHashAndIndex", json!([head, "0x0"])).await;
    assert_eq!((&shown["hash"], &shown["miner"]), (&json!(side), &json!(ommer.beneficiary)));
    assert_eq!(shown.get("transactions"), None);
    let none = node.call("eth_getUncleByBlockNumberAndIndex", json!(["latest", "0x1"])).await;
    assert_eq!(none, Value::Null);
}

#[tokio::test]
async fn what_is_not_there_is_null() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let nowhere = B256::repeat_byte(1);
    for (method, params) in [
        ("eth_getBlockByHash", json!([nowhere, true])),
        ("eth_getBlockByNumber", json!(["0x1", true])),
        ("eth_getHeaderByHash", json!([nowhere])),
        ("eth_getBlockReceipts", json!(["0x1"])),
        ("eth_getBlockTransactionCountByHash", json!([nowhere])),
        ("eth_getUncleCountByBlockNumber", json!(["0x1"])),
        ("eth_getTransactionByHash", json!([nowhere])),
        ("eth_getTransactionReceipt", json!([nowhere])),
        ("eth_getRawTransactionByHash", json!([nowhere])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x0", "0x0"])),
    ] {
        assert_eq!(node.call(method, params).await, Value::Null, "{method}");
    }
    for (method, words) in [("eth_getBlockByNumber", "finalized block not found")] {
        assert_eq!(node.fail(method, json!(["finalized", false])).await.1, words);
    }
    let bare = nowhere.to_string()[2..].to_string();
    assert_eq!(node.fail("eth_getTransactionByHash", json!([bare])).await.0, -32602);
}
