//! `debug_executionWitness`: executing a block on its witness alone gives the block's state root.

use crate::common::{NodeFixture, backends, lvmt, test_chain};
use alloy_primitives::{B256, Bytes, keccak256, map::HashMap};
use alloy_rlp::Decodable;
use alloy_rpc_types_debug::ExecutionWitness;
use retrie_chainspec::primitives::{Header, RecoveredBlock};
use retrie_execution::{ExecutionInput, execute_block};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, write_blocks,
};
use retrie_state::AnyBackend;
use retrie_storage_mpt::Mpt;
use serde_json::json;

fn node_on(chain: &TestChain, tip: B256, backend: std::sync::Arc<dyn AnyBackend>) -> NodeFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), tip));
    NodeFixture::with_file(&chain.spec, backend, Some(&file))
}

/// Executes `block` on what `witness` holds.
fn execute(chain: &TestChain, block: &RecoveredBlock, witness: &ExecutionWitness) {
    let parent = Header::decode(&mut witness.headers.last().unwrap().as_ref()).unwrap();
    assert_eq!(parent.hash_slow(), block.parent_hash);
    let backend = Mpt::default();
    let partial = backend.extensions().partial_state.unwrap();
    let state = partial.open_witness(parent.state_root, &witness.state).unwrap();
    let codes: HashMap<B256, Bytes> =
        witness.codes.iter().map(|code| (keccak256(code), code.clone())).collect();
    let spec = chain.spec.for_header(block.header());
    let input = ExecutionInput::new(&*state, &codes, &());
    let outcome = execute_block(&spec, block, input).unwrap();
    let after = state.apply(&outcome.delta).unwrap();
    assert_eq!(after.root(), block.state_root, "block {}", block.number);
}

#[tokio::test]
async fn every_block_comes_to_its_root_on_its_witness_alone() {
    for rules in [TestRules::Byzantium, TestRules::Cancun, TestRules::Prague] {
        let mut chain = test_chain(rules);
        let mut hashes = chain.branch(chain.genesis(), 8, 12, 1);
        // Slots are cleared until the trie is one leaf and then empty: branches merge.
        for slots in [[1, 2], [3, 4]] {
            let clear = |slot| TestCall::store(3, GENESIS_CONTRACT, slot, 0);
            let tip = *hashes.last().unwrap();
            hashes.push(chain.extend(tip, BlockPlan::new(slots.map(clear))));
        }
        for backend in backends() {
            let has_trie = backend.extensions().account_proofs.is_some();
            let node = node_on(&chain, *hashes.last().unwrap(), backend);
            let view = node.live().view().unwrap();
            for (number, hash) in (1..).zip(&hashes) {
                let at = json!([format!("{number:#x}")]);
                if !has_trie {
                    let (code, message) = node.fail("debug_executionWitness", at).await;
                    assert!(code == -32000 && message.contains("no witnesses"), "{message}");
                    continue;
                }
                let witness = node.call("debug_executionWitness", at).await;
                for (method, params) in [
                    ("debug_executionWitness", json!([hash])),
                    ("debug_executionWitness", json!([{ "blockHash": hash }, "canonical"])),
                    ("debug_executionWitnessByBlockHash", json!([hash])),
                ] {
                    assert_eq!(node.call(method, params).await, witness, "{method}");
                }
                let witness = serde_json::from_value(witness).unwrap();
                execute(&chain, &view.block(hash).unwrap().unwrap(), &witness);
            }
        }
    }
    assert!(lvmt().extensions().account_proofs.is_none());
}

#[tokio::test]
async fn blocks_without_a_witness_and_other_forms_of_it_are_refused() {
    let mut chain = test_chain(TestRules::Cancun);
    let tip = *chain.branch(chain.genesis(), 2, 12, 1).last().unwrap();
    let node = node_on(&chain, tip, std::sync::Arc::new(Mpt::default()));
    for (params, code, what) in [
        (json!(["earliest"]), -32000, "genesis"),
        (json!(["pending"]), -32000, "pending"),
        (json!(["0x9"]), -32000, "not found"),
        (json!([B256::repeat_byte(9)]), -32000, "not found"),
        (json!(["latest", "legacy"]), -32602, "canonical"),
        (json!([]), -32602, "missing"),
    ] {
        let (got, message) = node.fail("debug_executionWitness", params.clone()).await;
        assert!(got == code && message.contains(what), "{params}: {got}, {message}");
    }
}

/// Cause: the witness of a block that touches nothing had no node, not even the parent's root.
#[tokio::test]
async fn the_witness_of_an_empty_block_has_the_root_of_its_parent() {
    // Before Cancun there are no system calls, and proof of stake has no rewards.
    let mut chain = test_chain(TestRules::Merge(1));
    let (mut tip, plan) = (chain.genesis(), || BlockPlan::new(Vec::new()));
    for _ in 0..3 {
        tip = chain.extend(tip, plan());
    }
    let node = node_on(&chain, tip, std::sync::Arc::new(Mpt::default()));
    let block = node.live().view().unwrap().block(&tip).unwrap().unwrap();
    assert!(block.difficulty.is_zero() && block.body().transactions.is_empty());
    let witness = node.call("debug_executionWitness", json!(["latest"])).await;
    // It touches nothing, and leaves `keys` out.
    let mut witness = witness;
    witness["keys"] = json!([]);
    let witness: ExecutionWitness = serde_json::from_value(witness).unwrap();
    let hashes: Vec<B256> = witness.state.iter().map(keccak256).collect();
    assert_eq!(hashes, [block.state_root], "the block leaves the root of its parent");
    execute(&chain, &block, &witness);
}
