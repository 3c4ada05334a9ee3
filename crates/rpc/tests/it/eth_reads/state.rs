//! Accounts and slots at every block.

use crate::common::{NodeFixture, ask, backends, mpt, test_chain};
use alloy_primitives::{Address, B256, U64, U256, keccak256};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestRules, TestWallet};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Regression: a request had resolved `latest` to a block whose state a reorg then removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_at_the_head_are_answered_during_reorgs() {
    for backend in backends() {
        let name = backend.identity().name;
        let mut chain = test_chain(TestRules::Cancun);
        let mut node = NodeFixture::new(&chain.spec, backend);
        let genesis = chain.genesis();
        let tips = [1, 2].map(|seed| *chain.branch(genesis, 6, 4, seed).last().unwrap());
        for tip in tips {
            node.add(&chain.path(genesis, tip)).await;
        }
        let wallet = TestWallet::new(0).address;
        let (methods, stop) = (node.methods().clone(), Arc::new(AtomicBool::new(false)));
        let call = json!([{ "to": GENESIS_CONTRACT }, "latest"]);
        let asked = [("eth_getBalance", json!([wallet, "latest"])), ("eth_call", call)];
        let clients = asked.map(|(method, params)| {
            let (methods, stop) = (methods.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(&methods, method, params.clone()).await;
                    assert!(answer.get("error").is_none(), "{name}: {method}: {answer}");
                }
            })
        });
        for head in tips.into_iter().cycle().take(40) {
            node.set_head(head, B256::ZERO, B256::ZERO).await;
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
    }
}

#[tokio::test]
async fn accounts_are_as_each_block_left_them() {
    for backend in backends() {
        let name = backend.identity().name;
        let mut chain = test_chain(TestRules::Cancun);
        let mut node = NodeFixture::new(&chain.spec, backend);
        let genesis = chain.genesis();
        let blocks = chain.branch(genesis, 9, 12, 1);
        let head = *blocks.last().unwrap();
        node.add(&chain.path(genesis, head)).await;
        node.set_head(head, blocks[3], blocks[1]).await;

        let wallet = TestWallet::new(0).address;
        for (number, block) in [genesis].iter().chain(&blocks).enumerate() {
            let account = chain.account(*block, wallet).unwrap();
            let by_number = json!(U64::from(number));
            let by_hash = json!({ "blockHash": block, "requireCanonical": true });
            for at in [by_number, by_hash, json!(block)] {
                let got = node.call("eth_getBalance", json!([wallet, at])).await;
                assert_eq!(got, json!(account.balance), "{name}: block {number}");
                let got = node.call("eth_getTransactionCount", json!([wallet, at])).await;
                assert_eq!(got, json!(U64::from(account.nonce)), "{name}: block {number}");
            }
        }
        let at = async |tag: &str| node.call("eth_getTransactionCount", json!([wallet, tag])).await;
        let nonce = |block: &B256| json!(U64::from(chain.account(*block, wallet).unwrap().nonce));
        assert_eq!(at("latest").await, nonce(&head));
        assert_eq!(at("safe").await, nonce(&blocks[3]));
        assert_eq!(at("finalized").await, nonce(&blocks[1]));
        assert_eq!(at("earliest").await, json!("0x0"));
        assert_eq!(at("pending").await, nonce(&head));
    }
}

#[tokio::test]
async fn code_and_slots_are_read_by_any_form_of_key() {
    for backend in backends() {
        let mut chain = test_chain(TestRules::Cancun);
        let mut node = NodeFixture::new(&chain.spec, backend);
        let genesis = chain.genesis();
        let plan = BlockPlan::new([
            TestCall::store(1, GENESIS_CONTRACT, 2, 0),
            TestCall::store(1, GENESIS_CONTRACT, 300, 5),
        ]);
        let block = chain.extend(genesis, plan);
        node.add(&chain.path(genesis, block)).await;
        node.set_head(block, B256::ZERO, B256::ZERO).await;

        let word = |value: u64| json!(B256::from(U256::from(value)));
        let slot = async |key: Value, at: &str| {
            node.call("eth_getStorageAt", json!([GENESIS_CONTRACT, key, at])).await
        };
        for key in [json!("0x12c"), json!("0x012c"), word(300)] {
            assert_eq!(slot(key, "latest").await, word(5));
        }
        assert_eq!(slot(json!("0x2"), "latest").await, word(0), "it was cleared");
        assert_eq!(slot(json!("0x2"), "0x0").await, word(0x22));
        let code = node.call("eth_getCode", json!([GENESIS_CONTRACT])).await;
        let code: alloy_primitives::Bytes = serde_json::from_value(code).unwrap();
        let account = chain.account(block, GENESIS_CONTRACT).unwrap();
        assert_eq!(keccak256(code), account.code_hash);
        let nobody = Address::repeat_byte(0x77);
        assert_eq!(node.call("eth_getCode", json!([nobody])).await, "0x");
        let values = json!({ GENESIS_CONTRACT.to_string(): ["0x1", "0x12c"] });
        let values = node.call("eth_getStorageValues", json!([values])).await;
        let address = GENESIS_CONTRACT.to_string().to_lowercase();
        assert_eq!(values[address], json!([word(0x11), word(5)]));
    }
}

#[tokio::test]
async fn a_block_that_is_not_there_is_an_error_that_says_so() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    let a = chain.extend(genesis, BlockPlan::new([]));
    let b = chain.extend(genesis, BlockPlan::new([]).after(13));
    node.add(&chain.path(genesis, a)).await;
    node.add(&chain.path(genesis, b)).await;
    node.set_head(a, B256::ZERO, B256::ZERO).await;
    let wallet = TestWallet::new(0).address;
    let fail = async |at: Value| node.fail("eth_getBalance", json!([wallet, at])).await;
    assert_eq!(fail(json!("0x9")).await, (-32000, "header not found".into()));
    assert_eq!(fail(json!(B256::repeat_byte(9))).await.0, -32000);
    assert_eq!(fail(json!("safe")).await, (-32000, "safe block not found".into()));
    assert_eq!(fail(json!("finalized")).await.1, "finalized block not found");
    let side = json!({ "blockHash": b, "requireCanonical": true });
    assert_eq!(fail(side).await, (-32000, "hash is not currently canonical".into()));
    // The state of a side block can still be read.
    let side = json!({ "blockHash": b });
    assert!(node.call("eth_getBalance", json!([wallet, side])).await.is_string());
    let long = format!("0x{}", "0".repeat(65));
    let key = node.fail("eth_getStorageAt", json!([wallet, long, "latest"])).await;
    assert_eq!(key.0, -32602);
    assert!(key.1.contains("storage key too long"), "{}", key.1);
}
