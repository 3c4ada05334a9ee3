//! Prefetch: an import leaves the same rows with it and without it, and rows that cannot be read
//! fail the execution that needs them, not the prefetch.

use crate::common::{DatadirContents, NodeSetup, TestNode, batches, import_into, test_chain};
use alloy_primitives::{Address, Bytes};
use retrie_chainspec::primitives::Block;
use retrie_pipeline::{
    ChainOptions, ChainStore,
    testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, write_blocks},
};
use retrie_sources::BlockSource;
use retrie_state::{KeyRange, ScanDirection};
use retrie_state_store::{StateStore, StoreOptions};
use retrie_state_testkit::sample;
use std::{collections::BTreeMap, sync::atomic::AtomicBool};

/// Blocks that pay many accounts, most of them new, and call a contract.
fn straight(rules: TestRules, count: u64) -> (TestChain, Vec<Block>) {
    let mut chain = test_chain(rules);
    let genesis = chain.genesis();
    let mut tip = genesis;
    for number in 1..=count {
        let paid = |n: u64| Address::repeat_byte((40 + number * 5 + n) as u8);
        let mut calls: Vec<_> = (0..20).map(|n| TestCall::transfer(0, paid(n), 1000 + n)).collect();
        calls.push(TestCall::store(1, GENESIS_CONTRACT, number % 3, number));
        tip = chain.extend(tip, BlockPlan::new(calls).after(12));
    }
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

/// A chain whose keys are prefetched by `read_threads` threads, as if reads waited for the disk.
fn open(node: &TestNode, read_threads: usize) -> ChainStore {
    let options = node.options(node.setup);
    let store = StoreOptions { read_threads, ..options.store };
    let chain = ChainStore::open(ChainOptions { store, ..options }).unwrap();
    chain.state().prefetch_as_from_disk();
    chain
}

/// Imports blocks; returns how many rows of the state were read.
fn import(node: &TestNode, chain: &ChainStore, blocks: &[Block]) -> u64 {
    let file = node.dir.path().join("blocks.rlp");
    write_blocks(&file, blocks);
    let (sources, never) = (vec![BlockSource::open(&file).unwrap()], AtomicBool::new(false));
    let reads = chain.state().counts().reads;
    let report =
        import_into(chain, sources, 0..=u64::MAX, batches(3), &never, &mut |_| {}).unwrap();
    assert_eq!(report.blocks, blocks.len() as u64);
    chain.state().counts().reads - reads
}

/// Tables in which `lvmt` keeps its trees of blocks until a job has collected them. The job's
/// timing decides which rows are there, so they differ between two imports without any prefetch,
/// too.
const COLLECTED: [&str; 3] = ["LvmtBlocks", "LvmtMeta", "LvmtTrees"];

/// All rows of the backend's and the framework's tables, folded; except undo rows, whose content
/// has no fixed order, and [`COLLECTED`].
fn rows(chain: &ChainStore) -> BTreeMap<(&'static str, Bytes), Bytes> {
    chain.flush().unwrap();
    let snapshot = chain.db().state_store().snapshot().unwrap();
    let tables = StateStore::tables(chain.state().backend());
    let is_compared = |name| name != "Undo" && !COLLECTED.contains(&name);
    let tables = tables.into_iter().filter(|table| is_compared(table.name));
    let of =
        |table| snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
    let rows = tables
        .flat_map(|table| of(table).into_iter().map(move |(key, row)| ((table.name, key), row)));
    rows.collect()
}

#[test]
fn chain_is_the_same_to_the_row_with_keys_read_ahead_and_without() {
    let mut all_reads = [0, 0];
    for rules in [TestRules::Frontier, TestRules::Prague, TestRules::Amsterdam] {
        let (chain, blocks) = straight(rules, 14);
        for setup in sample::of(NodeSetup::all(), 3) {
            let nodes = [0, 4].map(|threads| (threads, TestNode::new(&chain.spec, setup)));
            let [without, with] = nodes.map(|(threads, node)| {
                let chain = open(&node, threads);
                let reads = import(&node, &chain, &blocks);
                let seen = (DatadirContents::of(&chain, &blocks), rows(&chain));
                // It closes while keys may still be read.
                drop(chain);
                (seen, reads)
            });
            assert_eq!(without.0.0, with.0.0, "{rules:?} {setup:?}");
            assert!(without.0.1 == with.0.1, "{rules:?} {setup:?}: other rows");
            all_reads[0] += without.1;
            all_reads[1] += with.1;
        }
    }
    // A single import may have no prefetch: its blocks may be executed before any thread has read a
    // key.
    assert!(all_reads[0] < all_reads[1], "{all_reads:?}: nothing was read ahead");
}
