//! The history of an address: pages, blocks that are not indexed, reorganisations, restarts, states
//! that are not kept.

use super::scene::{OtsScene, TARGET, UNUSED, index, set_durable_head, step, stores};
use crate::common::{NodeFixture, lvmt, mpt};
use alloy_primitives::{Address, B256};
use retrie_chainspec::DEV_ACCOUNTS;
use retrie_engine::{IndexerConfig, start_indexer};
use retrie_pipeline::testkit::{BlockPlan, TestCall, TestWallet, write_blocks};
use retrie_state_store::StoreOptions;
use serde_json::{Value, json};
use std::time::Duration;

const BEFORE: &str = "ots_searchTransactionsBefore";
const AFTER: &str = "ots_searchTransactionsAfter";

async fn page(node: &NodeFixture, method: &str, block: u64, size: u64) -> Value {
    node.call(method, json!([TARGET, block, size])).await
}

fn hashes(page: &Value) -> Vec<B256> {
    let hash = |one: &Value| one["hash"].as_str().unwrap().parse().unwrap();
    page["txs"].as_array().unwrap().iter().map(hash).collect()
}

fn number(transaction: &Value) -> u64 {
    let digits = transaction["blockNumber"].as_str().unwrap().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).unwrap()
}

/// All transactions of the target, the newest first, page by page.
async fn walk_down(node: &NodeFixture, size: u64) -> Vec<B256> {
    let (mut all, mut block) = (Vec::new(), 0);
    loop {
        let page = page(node, BEFORE, block, size).await;
        assert_eq!(page["firstPage"], json!(block == 0));
        let txs = page["txs"].as_array().unwrap();
        all.extend(hashes(&page));
        for (transaction, receipt) in txs.iter().zip(page["receipts"].as_array().unwrap()) {
            assert_eq!(transaction["hash"], receipt["transactionHash"]);
            assert!(receipt["timestamp"].is_string() && receipt["logs"].is_array());
        }
        if page["lastPage"] == true {
            return all;
        }
        assert!(txs.len() as u64 >= size, "only the last page is short");
        block = number(txs.last().unwrap());
    }
}

/// The same, from the oldest on.
async fn walk_up(node: &NodeFixture, size: u64) -> Vec<B256> {
    let (mut all, mut block) = (Vec::new(), 0);
    loop {
        let page = page(node, AFTER, block, size).await;
        assert_eq!(page["lastPage"], json!(block == 0));
        let txs = page["txs"].as_array().unwrap();
        // Within a page the newest come first.
        all.extend(hashes(&page).into_iter().rev());
        if page["firstPage"] == true {
            return all;
        }
        assert!(txs.len() as u64 >= size);
        block = number(txs.first().unwrap());
    }
}

async fn assert_history(node: &NodeFixture, expected: &[B256]) {
    let mut newest_first = expected.to_vec();
    newest_first.reverse();
    for size in [1, 2, 5, 100] {
        assert_eq!(walk_down(node, size).await, newest_first, "pages of {size}");
        assert_eq!(walk_up(node, size).await, expected, "pages of {size}");
    }
}

#[tokio::test]
async fn pages_have_every_transaction_once_also_of_blocks_that_are_not_indexed() {
    let scene = OtsScene::new(14);
    let expected = scene.of_target();
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        let (code, message) = node.fail(BEFORE, json!([TARGET, 0, 25])).await;
        assert!(code == -32000 && message.contains("--index.addresses"), "{name}: {message}");
        // The newest blocks first.
        assert!(step(&node));
        let partly = page(&node, BEFORE, 0, 100).await;
        let shown = hashes(&partly);
        let mut newest_first = expected.clone();
        newest_first.reverse();
        assert_eq!(shown, newest_first[..shown.len()]);
        assert!(shown.len() < expected.len() && partly["indexedFrom"].is_string(), "{partly}");
        index(&node);
        assert_history(&node, &expected).await;
        let whole = page(&node, BEFORE, 0, 100).await;
        assert!(whole.get("indexedFrom").is_none() && whole.get("internalCallsFrom").is_none());
        // A block beyond the head is the head.
        let beyond = page(&node, BEFORE, 1_000_000, 100).await;
        assert_eq!((hashes(&beyond), &beyond["firstPage"]), (newest_first, &json!(true)));
        let nothing = node.call(BEFORE, json!([UNUSED, 0, 25])).await;
        let empty = json!({ "txs": [], "receipts": [], "firstPage": true, "lastPage": true });
        assert_eq!(nothing, empty);
        for size in [json!(0), json!(251), json!("many")] {
            assert_eq!(node.fail(BEFORE, json!([TARGET, 0, size])).await.0, -32602);
        }
    }
}

/// Who calls whom, and who creates whom, is in the history of both.
#[tokio::test]
async fn callers_callees_creators_and_beneficiaries_take_part() {
    let scene = OtsScene::new(1);
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        index(&node);
        let wallet = |n| TestWallet::new(n).address;
        for (account, expected) in [
            (wallet(2), vec![(3, 0), (2, 0)]),
            (scene.reverter, vec![(3, 0), (1, 3)]),
            (scene.children[0], vec![(2, 1)]),
            (scene.children[1], vec![(2, 2)]),
            (scene.short_lived, vec![(3, 2)]),
            (scene.factory, vec![(3, 2), (2, 1), (1, 1)]),
        ] {
            let page = node.call(BEFORE, json!([account, 0, 25])).await;
            let expected: Vec<B256> = expected
                .into_iter()
                .map(|(block, index)| scene.transaction(block, index))
                .collect();
            assert_eq!(hashes(&page), expected, "{name}: {account}");
        }
    }
}

#[tokio::test]
async fn a_reorganisation_takes_its_transactions_along() {
    let mut scene = OtsScene::new(9);
    let main = scene.of_target();
    // A branch from block 8 on, with other payments.
    let (fork, mut at) = (scene.blocks[8], scene.blocks[8]);
    for number in 0..7 {
        at = scene.chain.extend(at, BlockPlan::new([TestCall::transfer(3, TARGET, 70 + number)]));
    }
    let path = scene.chain.path(fork, at);
    let branch: Vec<B256> =
        path.iter().map(|block| *block.body.transactions[0].tx_hash()).collect();
    let old = scene.head();
    let is_shared = |hash: &&B256| {
        scene.blocks[..=8].iter().any(|block| {
            let transactions = &scene.chain.block(*block).body.transactions;
            transactions.iter().any(|one| one.tx_hash() == *hash)
        })
    };
    let shared = main.iter().filter(is_shared);
    let other: Vec<B256> = shared.copied().chain(branch.iter().copied()).collect();
    for (name, backend) in stores() {
        let node = scene.node(backend).await;
        node.add(&path).await;
        set_durable_head(&node, old).await;
        index(&node);
        assert_history(&node, &main).await;
        for (head, expected) in [(at, &other), (old, &main), (at, &other)] {
            set_durable_head(&node, head).await;
            // Before the index follows, and after.
            assert_history(&node, expected).await;
            step(&node);
            index(&node);
            assert_history(&node, expected).await;
        }
        let sender = TestWallet::new(3).address;
        let nonce = json!([sender, "0x4"]);
        let found = node.call("ots_getTransactionBySenderAndNonce", nonce.clone()).await;
        assert_eq!(found, json!(branch[0]), "{name}");
        set_durable_head(&node, old).await;
        let found = node.call("ots_getTransactionBySenderAndNonce", nonce).await;
        assert_eq!(found, Value::Null, "{name}: of a block that is not canonical");
    }
}

/// Blocks whose states are not kept show senders, recipients and logs alone, and the answer says so.
#[tokio::test]
async fn without_old_states_internal_calls_are_missing_and_the_answer_says_from_where_on_they_are_not()
 {
    let scene = OtsScene::new(14);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &scene.chain.path(scene.chain.genesis(), scene.head()));
    let store = StoreOptions { retention: 4, ..StoreOptions::default() };
    let node = NodeFixture::with_store(&scene.chain.spec, mpt(), Some(&file), store);
    index(&node);
    let page = page(&node, BEFORE, 0, 100).await;
    let traced_from = page["internalCallsFrom"].as_str().expect("they are missing somewhere");
    let traced_from = u64::from_str_radix(&traced_from[2..], 16).unwrap();
    assert!((10..18).contains(&traced_from), "{traced_from}");
    let shown = hashes(&page);
    let (forwarded, direct) = (scene.transaction(2, 0), scene.transaction(5, 0));
    assert!(!shown.contains(&forwarded) && shown.contains(&direct));
    // Neither the index nor a state knows who created the child of the factory.
    let direct = node.call("ots_getContractCreator", json!([scene.forwarder])).await;
    assert_eq!(direct["hash"], json!(scene.transaction(1, 0)));
    let (code, message) = node.fail("ots_getContractCreator", json!([scene.children[0]])).await;
    assert!(code == -32000 && message.contains("--index.addresses"), "{message}");
}

async fn pay(node: &NodeFixture, to: Address) -> Value {
    let request = json!([{ "from": DEV_ACCOUNTS[1], "to": to, "value": "0x1" }]);
    node.call("eth_sendTransaction", request).await
}

/// The hashes of all transactions of the target, the newest first, once the index has no older ones
/// to come.
async fn settled(node: &NodeFixture, count: usize) -> Vec<B256> {
    let mut tries = 0;
    loop {
        let answer = node.ask(BEFORE, json!([TARGET, 0, 100])).await;
        let page = &answer["result"];
        if page.is_object() && hashes(page).len() == count && page.get("indexedFrom").is_none() {
            return hashes(page);
        }
        tries += 1;
        assert!(tries < 500, "{answer}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_thread_follows_the_chain_and_goes_on_after_a_restart() {
    let addresses = Some(retrie_db::AddressBounds { participants: 4, blocks: 3 });
    let config = IndexerConfig { addresses, ..IndexerConfig::default() };
    for backend in [mpt(), lvmt()] {
        let node = NodeFixture::dev(backend.clone());
        let mut sent = Vec::new();
        for _ in 0..12 {
            sent.push(pay(&node, TARGET).await);
        }
        let indexer = start_indexer(node.live().clone(), config).unwrap();
        let found = settled(&node, 12).await;
        assert_eq!(json!(found.iter().rev().collect::<Vec<_>>()), json!(sent));
        drop(indexer);
        let dir = node.stop().await;

        let node = NodeFixture::dev_in(dir, backend);
        // What was indexed is there before the thread starts.
        assert_eq!(settled(&node, 12).await, found);
        sent.push(pay(&node, TARGET).await);
        let indexer = start_indexer(node.live().clone(), config).unwrap();
        let found = settled(&node, 13).await;
        assert_eq!(json!(found[0]), sent[12]);
        assert!(indexer.is_running() && indexer.last_error().is_none());
        drop(indexer);
        node.stop().await;
    }
}
