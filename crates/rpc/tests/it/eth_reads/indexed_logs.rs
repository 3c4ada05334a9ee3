//! Logs of an indexed chain.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_primitives::{Address, B256, U256};
use alloy_rpc_types_engine::ForkchoiceState;
use retrie_db::{LogBounds, LogQuery};
use retrie_engine::{IndexerConfig, start_indexer};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules};
use serde_json::{Value, json};
use std::{sync::atomic::AtomicBool, time::Duration};

const BOUNDS: LogBounds = LogBounds { postings: 30, blocks: 9, behind: 1 };

/// Extends `parent` with blocks, some of which have logs with a few topics.
fn grow(chain: &mut TestChain, parent: B256, count: u64, wallet: u8) -> Vec<B256> {
    let mut at = parent;
    (0..count)
        .map(|number| {
            let store = |slot| TestCall::store(wallet, GENESIS_CONTRACT, slot, 7 + number);
            at = chain.extend(
                at,
                match number % 4 {
                    0 => BlockPlan::new([store(number % 5)]),
                    1 => BlockPlan::new([store(20 + number), store(3)]),
                    _ => BlockPlan::new([]),
                },
            );
            at
        })
        .collect()
}

fn filters() -> Vec<Value> {
    let topic = |slot: u64| json!(B256::from(U256::from(slot)));
    let other = Address::repeat_byte(0x77);
    let topics = [
        json!([topic(3)]),
        json!([topic(21)]),
        json!([[topic(3), topic(25), topic(4)]]),
        json!([null]),
        json!([[]]),
        json!([null, topic(3)]),
        json!([topic(999)]),
    ];
    let ranges = [("0x0", "latest"), ("0x5", "0x1c"), ("0x1f", "0x22"), ("latest", "latest")];
    let mut filters = Vec::new();
    for (from, to) in ranges {
        for topics in &topics {
            filters.push(json!({ "fromBlock": from, "toBlock": to, "topics": topics }));
        }
        for address in [json!(GENESIS_CONTRACT), json!(other), json!([GENESIS_CONTRACT, other])] {
            let both = json!([topic(3)]);
            filters.push(json!({ "fromBlock": from, "toBlock": to, "address": address }));
            filters.push(json!({ "fromBlock": from, "address": address, "topics": both }));
        }
    }
    filters
}

/// Both nodes respond alike, errors included, to searches and to filters.
async fn assert_alike(indexed: &NodeFixture, plain: &NodeFixture) -> usize {
    let mut logs = 0;
    for filter in filters() {
        let [left, right] = [indexed, plain].map(|node| node.ask("eth_getLogs", json!([filter])));
        let (left, right) = (left.await, right.await);
        assert_eq!(left, right, "{filter}");
        logs += left["result"].as_array().map_or(0, Vec::len);
        let id = indexed.call("eth_newFilter", json!([filter])).await;
        assert_eq!(indexed.ask("eth_getFilterLogs", json!([id])).await, right, "{filter}");
        indexed.call("eth_uninstallFilter", json!([id])).await;
    }
    logs
}

/// Makes a block the head, and its whole chain durable.
async fn set_head(node: &NodeFixture, head: B256) {
    let engine = node.engine.handle();
    let state = ForkchoiceState {
        head_block_hash: head,
        safe_block_hash: B256::ZERO,
        finalized_block_hash: B256::ZERO,
    };
    assert!(engine.forkchoice(state).await.unwrap().status.is_valid());
    engine.flush().await.unwrap();
}

/// How many of the first blocks a search must look at one by one.
fn looked_at(node: &NodeFixture, blocks: u64) -> usize {
    let view = node.rpc.view().unwrap();
    let nobody = LogQuery::new(&[Address::repeat_byte(0x99)], [[].as_slice(); 4]);
    view.log_candidates(&nobody, 0..=blocks - 1).unwrap().map(Result::unwrap).count()
}

#[tokio::test]
async fn indexed_logs_are_those_of_a_look_at_every_block() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = grow(&mut chain, genesis, 40, 1);
    let branch = grow(&mut chain, main[29], 16, 2);
    let (tip, other) = (main[39], branch[15]);
    let nodes = [(); 2].map(|()| NodeFixture::new(&chain.spec, mpt()));
    let set_heads = async |head: B256| {
        for node in &nodes {
            set_head(node, head).await;
        }
    };
    let [indexed, plain] = &nodes;
    for node in &nodes {
        node.add(&chain.path(genesis, tip)).await;
        node.add(&chain.path(main[29], other)).await;
    }
    set_heads(tip).await;
    let db = indexed.live().chain().db();
    let step = || db.index_logs(&BOUNDS, &AtomicBool::new(false)).unwrap();
    assert_eq!(looked_at(indexed, 41), 41);
    assert!(assert_alike(indexed, plain).await > 100);
    while step() {
        assert_alike(indexed, plain).await;
    }
    assert!(looked_at(indexed, 41) <= 3, "all but what is in memory is indexed");
    for head in [other, tip, other] {
        set_heads(head).await;
        assert_alike(indexed, plain).await;
        while step() {
            assert_alike(indexed, plain).await;
        }
        assert!(looked_at(indexed, 41) <= 3);
    }
}

#[tokio::test]
async fn the_index_follows_a_node_by_itself() {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let blocks = grow(&mut chain, genesis, 60, 1);
    let node = NodeFixture::new(&chain.spec, mpt());
    let plain = NodeFixture::new(&chain.spec, mpt());
    plain.add(&chain.path(genesis, blocks[59])).await;
    let config = IndexerConfig { logs: BOUNDS, ..IndexerConfig::default() };
    let indexer = start_indexer(node.live().clone(), config).unwrap();
    for (from, to) in [(genesis, 29), (blocks[29], 59)] {
        node.add(&chain.path(from, blocks[to])).await;
        set_head(&node, blocks[to]).await;
        let mut tries = 0;
        while looked_at(&node, to as u64 + 1) > 3 {
            tries += 1;
            assert!(tries < 1000, "{:?}", indexer.last_error());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(indexer.is_running() && indexer.last_error().is_none());
    set_head(&plain, blocks[59]).await;
    assert_alike(&node, &plain).await;
    // An indexing step in progress does not keep the datadir open.
    drop(indexer);
    node.engine.stop().unwrap();
}
