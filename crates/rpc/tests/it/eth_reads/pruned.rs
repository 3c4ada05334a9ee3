//! What a node answers for blocks whose bodies or receipts it has dropped.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_primitives::{B256, U64};
use retrie_db::{ChainRead, HistoryKept, KeptBlocks};
use retrie_engine::start_history_pruner;
use retrie_pipeline::testkit::{TestChain, TestRules, write_blocks};
use serde_json::{Value, json};
use std::time::Duration;

/// The durable tip.
const TIP: u64 = 40;
/// The first block with a body, and the first one with receipts.
const BODIES: u64 = 30;
const RECEIPTS: u64 = 35;

fn last(blocks: u64) -> KeptBlocks {
    KeptBlocks { from: u64::MAX, last: blocks }
}

/// A block from `first` on that has transactions.
fn block_with_transactions(chain: &TestChain, blocks: &[B256], first: u64) -> (u64, B256) {
    let has_some = |hash: &&B256| !chain.block(**hash).body.transactions.is_empty();
    let found = blocks[first as usize..].iter().find(has_some).unwrap();
    (chain.block(*found).header.number, *found)
}

async fn assert_pruned(node: &NodeFixture, method: &str, params: Value) {
    let says = node.fail(method, params.clone()).await;
    assert_eq!(says, (4444, "pruned history unavailable".to_owned()), "{method} {params}");
}

/// Asks for all kinds of parts of a block without its body, one without its receipts, and a whole one.
async fn assert_answers(node: &NodeFixture, chain: &TestChain, blocks: &[B256]) {
    let number = |number: u64| json!(U64::from(number));
    let (old, old_hash) = block_with_transactions(chain, blocks, 5);
    let (thin, thin_hash) = block_with_transactions(chain, blocks, BODIES);
    let (whole, _) = block_with_transactions(chain, blocks, RECEIPTS);
    assert!(old < BODIES && thin < RECEIPTS && whole <= TIP);
    let transaction = |hash: B256| json!([*chain.block(hash).body.transactions[0].tx_hash()]);

    for (method, params) in [
        ("eth_getBlockByNumber", json!([number(old), false])),
        ("eth_getBlockByHash", json!([old_hash, true])),
        ("eth_getBlockTransactionCountByNumber", json!([number(old)])),
        ("eth_getUncleCountByBlockHash", json!([old_hash])),
        ("eth_getTransactionByBlockNumberAndIndex", json!([number(old), "0x0"])),
        ("eth_getBlockReceipts", json!([number(old)])),
        ("eth_getBlockReceipts", json!([thin_hash])),
        ("eth_getTransactionReceipt", transaction(thin_hash)),
        ("debug_getRawBlock", json!([number(old)])),
        ("debug_getRawReceipts", json!([number(thin)])),
        ("eth_getLogs", json!([{ "fromBlock": "0x0" }])),
        ("eth_getLogs", json!([{ "fromBlock": number(old), "toBlock": number(old) }])),
        ("eth_getLogs", json!([{ "fromBlock": number(thin), "toBlock": "latest" }])),
        ("eth_getLogs", json!([{ "blockHash": old_hash }])),
    ] {
        assert_pruned(node, method, params).await;
    }
    // The rows of the lookup table go with the bodies.
    for method in ["eth_getTransactionByHash", "eth_getTransactionReceipt"] {
        assert_eq!(node.call(method, transaction(old_hash)).await, Value::Null);
    }
    // Headers stay, and all else of later blocks.
    let header = node.call("eth_getHeaderByNumber", json!([number(old)])).await;
    assert_eq!(header["hash"], json!(old_hash));
    let block = node.call("eth_getBlockByNumber", json!([number(thin), false])).await;
    assert_eq!(block["hash"], json!(thin_hash));
    let receipts = node.call("eth_getBlockReceipts", json!([number(whole)])).await;
    assert!(!receipts.as_array().unwrap().is_empty());
    let earliest = node.call("eth_getBlockByNumber", json!(["earliest", false])).await;
    assert_eq!(earliest["number"], number(BODIES));
    let first = node.live().view().unwrap().durable().receipts_pruned_below().unwrap();
    let from_first = json!([{ "fromBlock": number(first), "toBlock": "latest" }]);
    let from_earliest = json!([{ "fromBlock": "earliest", "toBlock": "latest" }]);
    let logs = node.call("eth_getLogs", from_first).await;
    assert_eq!(node.call("eth_getLogs", from_earliest).await, logs);
    let kept = node.call("eth_capabilities", json!([])).await;
    for (kind, oldest) in [("blocks", BODIES), ("tx", BODIES), ("receipts", first), ("logs", first)]
    {
        assert_eq!(kept[kind]["oldestBlock"], number(oldest), "{kind}: {kept}");
    }
}

#[tokio::test]
async fn dropped_blocks_are_said_to_be_dropped_also_after_a_restart() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let blocks = [vec![genesis], chain.branch(genesis, TIP, 12, 1)].concat();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("blocks.rlp");
    write_blocks(&file, &chain.path(genesis, blocks[TIP as usize]));
    let node = NodeFixture::with_file(&chain.spec, mpt(), Some(&file));
    let (old, _) = block_with_transactions(&chain, &blocks, 5);
    let whole = node.call("eth_getBlockByNumber", json!([U64::from(old), true])).await;
    assert_eq!(whole["number"], json!(U64::from(old)));
    let dir = node.stop().await;

    // The flags have changed: a thread deletes what is too old now.
    let kept = HistoryKept {
        bodies: last(TIP - BODIES),
        receipts: last(TIP - RECEIPTS),
        ..HistoryKept::default()
    };
    let node = NodeFixture::reopened(dir, &chain.spec, mpt(), kept);
    let pruner = start_history_pruner(node.live().chain().clone()).unwrap();
    let mut tries = 0;
    while node.live().view().unwrap().durable().bodies_pruned_below().unwrap() < BODIES {
        tries += 1;
        assert!(tries < 1000, "{:?}", pruner.last_error());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(pruner);
    assert_answers(&node, &chain, &blocks).await;
    let dir = node.stop().await;
    let node = NodeFixture::reopened(dir, &chain.spec, mpt(), HistoryKept::default());
    assert_answers(&node, &chain, &blocks).await;
}
