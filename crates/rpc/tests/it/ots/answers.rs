//! What each method answers, on two stores.

use super::scene::{OtsScene, TARGET, UNUSED, index, stores};
use crate::common::{NodeFixture, mpt, signed_transfer, test_chain};
use alloy_primitives::{Address, B256, U64, U256};
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestRules, TestWallet, write_blocks};
use serde_json::{Value, json};

fn wallet(n: u8) -> Address {
    TestWallet::new(n).address
}

fn operation(kind: u8, from: Address, to: Address, value: u64) -> Value {
    json!({ "type": kind, "from": from, "to": to, "value": U256::from(value) })
}

#[tokio::test]
async fn internal_operations_are_transfers_creations_and_destructions_within_a_transaction() {
    let scene = OtsScene::new(3);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        let operations = async |block, index| {
            let hash = scene.transaction(block, index);
            node.call("ots_getInternalOperations", json!([hash])).await
        };
        // The creation by the transaction itself is no internal one.
        assert_eq!(operations(1, 0).await, json!([]), "{name}");
        let OtsScene { forwarder, factory, children, short_lived, lost, .. } = scene;
        assert_eq!(operations(2, 0).await, json!([operation(0, forwarder, TARGET, 1000)]));
        assert_eq!(operations(2, 1).await, json!([operation(2, factory, children[0], 0)]));
        let created = operations(2, 2).await;
        assert_eq!((&created[0]["type"], &created[0]["to"]), (&json!(3), &json!(children[1])));
        // One that a revert took back is shown too, as Erigon does.
        let reverted = operations(3, 1).await;
        assert_eq!((&reverted[0]["type"], &reverted[0]["to"]), (&json!(2), &json!(lost)));
        let destroyed =
            [operation(2, factory, short_lived, 0), operation(1, short_lived, factory, 0)];
        assert_eq!(operations(3, 2).await, json!(destroyed));
        let (code, message) = node.fail("ots_getInternalOperations", json!([B256::ZERO])).await;
        assert_eq!((code, &*message), (-32000, "transaction not found"));
    }
}

#[tokio::test]
async fn a_trace_has_the_calls_of_call_tracer_in_the_order_of_their_start() {
    let scene = OtsScene::new(3);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        for (block, index) in [(1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (5, 0)] {
            let hash = scene.transaction(block, index);
            let entries = node.call("ots_traceTransaction", json!([hash])).await;
            let tracer = json!([hash, { "tracer": "callTracer" }]);
            let tree = node.call("debug_traceTransaction", tracer).await;
            let mut expected = Vec::new();
            flatten(&tree, 0, &mut expected);
            let shown: Vec<Value> = entries
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| {
                    let fields = ["type", "depth", "from", "input", "value"];
                    json!(fields.map(|field| &entry[field]))
                })
                .collect();
            assert_eq!(shown, expected, "{name}, transaction {index} of block {block}");
        }
        let forwarded = node.call("ots_traceTransaction", json!([scene.transaction(2, 0)])).await;
        assert_eq!(forwarded[1]["to"], json!(TARGET));
        let reverted = node.call("ots_traceTransaction", json!([scene.transaction(3, 0)])).await;
        assert_eq!(reverted[0]["output"], json!(B256::from(U256::from(42))));
    }
}

/// The calls of a tree with their depths, as `ots_traceTransaction` shows them.
fn flatten(call: &Value, depth: usize, all: &mut Vec<Value>) {
    all.push(json!([call["type"], depth, call["from"], call["input"], call["value"]]));
    for inner in call["calls"].as_array().into_iter().flatten() {
        flatten(inner, depth + 1, all);
    }
}

#[tokio::test]
async fn errors_codes_and_levels() {
    let scene = OtsScene::new(3);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        assert_eq!(node.call("ots_getApiLevel", json!([])).await, 8, "{name}");
        let error = async |block, index| {
            let hash = scene.transaction(block, index);
            node.call("ots_getTransactionError", json!([hash])).await
        };
        assert_eq!(error(2, 0).await, "0x");
        assert_eq!(error(3, 0).await, json!(B256::from(U256::from(42))));
        assert_eq!(error(3, 1).await, "0x", "a revert without data");
        let has_code = async |params| node.call("ots_hasCode", params).await;
        assert_eq!(has_code(json!([scene.forwarder, "latest"])).await, true);
        assert_eq!(has_code(json!([scene.forwarder])).await, true);
        assert_eq!(has_code(json!([scene.forwarder, 0])).await, false, "a JSON number");
        assert_eq!(has_code(json!([scene.forwarder, "0x1"])).await, true);
        assert_eq!(has_code(json!([scene.forwarder, scene.blocks[0]])).await, false);
        assert_eq!(has_code(json!([TARGET, "latest"])).await, false);
        assert_eq!(node.fail("ots_hasCode", json!([TARGET, 999])).await.0, -32000);
        assert_eq!(node.fail("ots_hasCode", json!(["0x12", "latest"])).await.0, -32602);
    }
}

#[tokio::test]
async fn details_of_a_block_have_its_fees_and_no_transactions() {
    let scene = OtsScene::new(3);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        let details = node.call("ots_getBlockDetails", json!([2])).await;
        assert_eq!(node.call("ots_getBlockDetails", json!(["0x2"])).await, details, "{name}");
        let by_hash = json!([scene.blocks[2]]);
        assert_eq!(node.call("ots_getBlockDetailsByHash", by_hash).await, details);
        let block = node.call("eth_getBlockByNumber", json!(["0x2", false])).await;
        let shown = &details["block"];
        for field in ["hash", "miner", "gasUsed", "size", "stateRoot", "withdrawals", "uncles"] {
            assert_eq!(shown[field], block[field], "{field}");
        }
        assert_eq!(shown["transactionCount"], 3);
        assert_eq!(shown["logsBloom"], Value::Null);
        assert!(shown.get("transactions").is_none());
        let nothing = json!({ "blockReward": "0x0", "uncleReward": "0x0", "issuance": "0x0" });
        assert_eq!(details["issuance"], nothing);
        let receipts = node.call("eth_getBlockReceipts", json!(["0x2"])).await;
        let quantity = |value: &Value| value.as_str().unwrap().parse::<U256>().unwrap();
        let fee = |receipt: &Value| {
            quantity(&receipt["gasUsed"]) * quantity(&receipt["effectiveGasPrice"])
        };
        let fees: U256 = receipts.as_array().unwrap().iter().map(fee).sum();
        assert_eq!(details["totalFees"], json!(fees));
        for (method, unknown) in [
            ("ots_getBlockDetails", json!([999])),
            ("ots_getBlockDetailsByHash", json!([B256::ZERO])),
            ("ots_getBlockTransactions", json!([999, 0, 10])),
            ("erigon_getHeaderByNumber", json!([999])),
        ] {
            assert_eq!(node.call(method, unknown).await, Value::Null, "{method}");
        }
        let header = node.call("erigon_getHeaderByNumber", json!(["latest"])).await;
        assert_eq!(header, node.call("eth_getHeaderByNumber", json!(["latest"])).await);
        assert_eq!(node.call("erigon_getHeaderByNumber", json!([2])).await["number"], "0x2");
    }
}

#[tokio::test]
async fn rewards_before_the_merge_are_issued() {
    let mut chain = test_chain(TestRules::Byzantium);
    let tip = *chain.branch(chain.genesis(), 2, 12, 1).last().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), tip));
    let node = NodeFixture::with_file(&chain.spec, mpt(), Some(&file));
    let details = node.call("ots_getBlockDetails", json!([1])).await;
    let three = json!(U256::from(3_000_000_000_000_000_000_u64));
    let expected = json!({ "blockReward": three, "uncleReward": "0x0", "issuance": three });
    assert_eq!(details["issuance"], expected);
}

#[tokio::test]
async fn transactions_of_a_block_come_in_pages_from_its_end() {
    let scene = OtsScene::new(3);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        let page = async |number: u64, size: u64| {
            node.call("ots_getBlockTransactions", json!([1, number, size])).await
        };
        let expected = [(0, vec![3, 4]), (1, vec![1, 2]), (2, vec![0]), (3, vec![])];
        for (number, indexes) in expected {
            let page = page(number, 2).await;
            let transactions = page["fullblock"]["transactions"].as_array().unwrap();
            let receipts = page["receipts"].as_array().unwrap();
            assert_eq!((transactions.len(), receipts.len()), (indexes.len(), indexes.len()));
            for ((transaction, receipt), index) in transactions.iter().zip(receipts).zip(indexes) {
                assert_eq!(transaction["transactionIndex"], json!(U64::from(index)), "{name}");
                let hash = scene.transaction(1, index);
                let whole = node.call("eth_getTransactionReceipt", json!([hash])).await;
                for field in ["gasUsed", "status", "contractAddress", "transactionHash", "from"] {
                    assert_eq!(receipt[field], whole[field], "{field}");
                }
                let input = transaction["input"].as_str().unwrap();
                assert_eq!(input.len(), 10, "the selector alone: {input}");
                assert_eq!((&receipt["logs"], &receipt["logsBloom"]), (&Value::Null, &Value::Null));
            }
            assert_eq!(page["fullblock"]["transactionCount"], 5);
        }
        let (code, message) = node.fail("ots_getBlockTransactions", json!([1, 0, 0])).await;
        assert!(code == -32602 && message.contains("1 to 250"), "{message}");
        let far = json!([1, "0xffffffffffffffff", 250]);
        let page = node.call("ots_getBlockTransactions", far).await;
        assert_eq!(page["receipts"], json!([]));
    }
}

/// The same with the index, and without it by old states.
#[tokio::test]
async fn nonces_and_creators_are_found_with_and_without_an_index() {
    let scene = OtsScene::new(6);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        for is_indexed in [false, true] {
            let what = format!("{name}, indexed: {is_indexed}");
            let creator = async |contract: Address| {
                node.call("ots_getContractCreator", json!([contract])).await
            };
            let expected =
                |hash: B256, creator: Address| json!({ "hash": hash, "creator": creator });
            let direct = expected(scene.transaction(1, 0), wallet(1));
            assert_eq!(creator(scene.forwarder).await, direct, "{what}");
            let child = expected(scene.transaction(2, 1), scene.factory);
            assert_eq!(creator(scene.children[0]).await, child, "{what}");
            let child = creator(scene.children[1]).await;
            assert_eq!(child["hash"], json!(scene.transaction(2, 2)), "{what}");
            // Destroyed, reverted, no contract, of genesis.
            let none = [scene.short_lived, scene.lost, TARGET, UNUSED, GENESIS_CONTRACT];
            for address in none {
                assert_eq!(creator(address).await, Value::Null, "{what}: {address}");
            }

            let by_nonce = async |sender: Address, nonce: u64| {
                node.call("ots_getTransactionBySenderAndNonce", json!([sender, nonce])).await
            };
            for (nonce, index) in [(0, 0), (1, 1), (4, 4)] {
                let hash = json!(scene.transaction(1, index));
                assert_eq!(by_nonce(wallet(1), nonce).await, hash, "{what}");
            }
            let hash = scene.transaction(3, 0);
            assert_eq!(by_nonce(wallet(2), 1).await, json!(hash), "{what}");
            // Not used yet; a contract's, by which it has created another one.
            for (sender, nonce) in [(wallet(1), 5), (UNUSED, 0), (scene.factory, 1)] {
                assert_eq!(by_nonce(sender, nonce).await, Value::Null, "{what}");
            }
            let whole = node.call("eth_getTransactionByHash", json!([hash])).await;
            let params = json!([wallet(2), "0x1"]);
            let found = node.call("eth_getTransactionBySenderAndNonce", params).await;
            assert_eq!(found, whole, "{what}");
            // The last block's, which is in memory.
            let last = scene.transaction(scene.blocks.len() - 1, 0);
            assert_eq!(by_nonce(wallet(4), 5).await, json!(last), "{what}");
            index(&node);
        }
    }
}

#[tokio::test]
async fn a_transaction_of_the_pool_is_found_by_sender_and_nonce() {
    let scene = OtsScene::new(1);
    let node = scene.node(mpt()).await;
    let raw = signed_transfer(7, 0);
    let hash = node.call("eth_sendRawTransaction", json!([raw])).await;
    let params = json!([wallet(7), "0x0"]);
    let found = node.call("eth_getTransactionBySenderAndNonce", params.clone()).await;
    assert_eq!((&found["hash"], &found["blockHash"]), (&hash, &Value::Null));
    assert_eq!(node.call("ots_getTransactionBySenderAndNonce", params).await, Value::Null);
}
