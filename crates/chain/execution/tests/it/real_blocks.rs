//! Real mainnet blocks: gas, receipts, post-state and deltas of every fork.

use crate::common;

use alloy_consensus::proofs::calculate_receipt_root;
use alloy_primitives::keccak256;
use common::{MapState, RealBlock, paid_after_transactions, prestate_blocks, witness_blocks};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::{
    AccessRecorder, CodeCache, ExecutionInput, ExecutionOutcome, execute_block,
    execute_block_with_observer,
};
use retrie_state::{StateDelta, StateReader};

const BYZANTIUM: u64 = 4_370_000;

fn execute(spec: &ChainSpec, real: &RealBlock, cache: &CodeCache) -> ExecutionOutcome {
    let input = ExecutionInput::new(&real.state, &real.codes, &real.hashes).with_code_cache(cache);
    execute_block(spec, &real.block, input).unwrap_or_else(|e| panic!("{}: {e}", real.file))
}

fn check_header(file: &str, block: &RecoveredBlock, outcome: &ExecutionOutcome) {
    let header = block.header();
    assert_eq!(outcome.gas_used, header.gas_used, "{file}: gas");
    assert_eq!(outcome.logs_bloom(), header.logs_bloom, "{file}: bloom");
    assert_eq!(outcome.blob_gas_used, header.blob_gas_used.unwrap_or_default(), "{file}: blobs");
    assert!(outcome.timing.storage < outcome.timing.total, "{file}");
    for (hash, code) in &outcome.codes {
        assert_eq!(keccak256(code), *hash, "{file}");
    }
    if header.number >= BYZANTIUM {
        let receipts: Vec<_> =
            outcome.receipts.iter().map(alloy_consensus::TxReceipt::with_bloom_ref).collect();
        assert_eq!(calculate_receipt_root(&receipts), header.receipts_root, "{file}: receipts");
    }
    if let Some(hash) = header.requests_hash {
        assert_eq!(outcome.requests.requests_hash(), hash, "{file}: requests");
    }
}

/// The per-transaction deltas chain up, and add up to the block's delta but for payments after the
/// transactions.
fn check_transactions(spec: &ChainSpec, real: &RealBlock, delta: &StateDelta) -> MapState {
    let mut state = real.state.clone();
    let mut next = 0;
    let input = ExecutionInput::new(&real.state, &real.codes, &real.hashes);
    let outcome = execute_block_with_observer(spec, &real.block, input, &mut |index, delta| {
        assert_eq!(index, next);
        next += 1;
        state.apply(&delta);
        Ok(())
    })
    .unwrap();
    assert_eq!(next, real.block.body().transactions.len());
    assert_eq!(outcome.delta, *delta, "{}: an observer changes the delta", real.file);

    let mut after = real.state.clone();
    after.apply(delta);
    let paid = paid_after_transactions(&real.block);
    let keys = state.values.keys().chain(after.values.keys());
    for key in keys.filter(|key| !paid.contains(key.address())) {
        assert_eq!(state.values.get(key), after.values.get(key), "{}: {key}", real.file);
    }
    after
}

#[test]
fn prestate_blocks_reproduce_header_and_chain_of_deltas() {
    let Some(data) = common::data() else { return };
    let (spec, cache) = (ChainSpec::mainnet(), CodeCache::default());
    let mut blocks = 0;
    for real in prestate_blocks(&data) {
        let outcome = execute(&spec, &real, &cache);
        check_header(&real.file, &real.block, &outcome);
        check_transactions(&spec, &real, &outcome.delta);
        blocks += 1;
    }
    assert_eq!(blocks, 43);
    assert!(!cache.is_empty());
}

#[test]
fn witness_blocks_reproduce_header_and_post_state() {
    let Some(data) = common::data() else { return };
    let (spec, cache) = (ChainSpec::mainnet(), CodeCache::default());
    let (mut blocks, mut with_post) = (0, 0);
    for real in witness_blocks(&data) {
        let outcome = execute(&spec, &real, &cache);
        check_header(&real.file, &real.block, &outcome);
        let after = check_transactions(&spec, &real, &outcome.delta);
        blocks += 1;
        let Some(post) = &real.post else { continue };
        with_post += 1;
        for (key, value) in post {
            assert_eq!(after.values.get(key), value.as_ref(), "{}: {key}", real.file);
        }
        for change in outcome.delta.changes() {
            assert_eq!(
                post.get(&change.key),
                Some(&change.next),
                "{}: {} is not among the touched keys",
                real.file,
                change.key
            );
        }
    }
    assert_eq!((blocks, with_post), (24, 10));
}

#[test]
fn recorded_accesses_are_enough_to_execute_again() {
    let Some(data) = common::data() else { return };
    let (spec, cache) = (ChainSpec::mainnet(), CodeCache::default());
    for real in witness_blocks(&data).filter(|real| real.block.number % 3 != 0) {
        let full = execute(&spec, &real, &cache);
        let recorder = AccessRecorder::new(&real.state);
        let input = ExecutionInput::new(&recorder, &real.codes, &real.hashes);
        assert_eq!(execute_block(&spec, &real.block, input).unwrap().delta, full.delta);
        let recorded = recorder.into_accesses();
        for (key, value) in &recorded.values {
            assert_eq!(&real.state.get(key).unwrap(), value);
        }
        for change in full.delta.changes() {
            // Slots that are wiped or created over are listed, all others were read.
            let known = recorded.values.contains_key(&change.key)
                || recorded.listed.contains(change.key.address());
            assert!(known, "{}: {} was never read", real.file, change.key);
        }
        let values = recorded.values.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let small =
            RealBlock { state: MapState { values: values.collect(), partial: false }, ..real };
        assert_eq!(execute(&spec, &small, &cache).delta, full.delta, "{}", small.file);
    }
}
