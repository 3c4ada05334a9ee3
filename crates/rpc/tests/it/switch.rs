//! What a node answers on a chain that switches to the partitioned binary tree (EIP-8297).

use crate::common::{NodeFixture, mpt, pbt, raw, test_chain};
use alloy_primitives::B256;
use retrie_chainspec::ChainSpec;
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestChain, TestRules};
use serde_json::{Value, json};
use std::sync::Arc;

/// Seconds after genesis. The fifth block is the first with the binary tree's root.
const TIME: u64 = 60;

/// Eight blocks, with genesis, on a chain that switches.
fn chain() -> (TestChain, Vec<B256>) {
    let mut chain = TestChain::switching(TestRules::Cancun, mpt(), pbt(), TIME);
    let genesis = chain.genesis();
    let hashes = [vec![genesis], chain.branch(genesis, 8, 12, 1)].concat();
    (chain, hashes)
}

#[tokio::test]
async fn shadow_roots_and_progress_follow_the_head_across_the_switch() {
    let (chain, hashes) = chain();
    for (own, referee) in [(mpt(), pbt()), (pbt(), mpt())] {
        let mut node = NodeFixture::with_referee(&chain.spec, own, referee);
        node.add(&chain.path(hashes[0], hashes[8])).await;
        let progress =
            async |node: &NodeFixture| node.call("debug_migrationProgress", json!([])).await;
        let tree = |phase: &str, number: usize, root: B256| {
            json!({
                "phase": phase,
                "cursor": number,
                "cursorHash": hashes[number],
                "shadowRoot": root,
                "error": "",
            })
        };
        for number in 1..=8 {
            node.set_head(hashes[number], B256::ZERO, B256::ZERO).await;
            let roots = chain.roots(hashes[number]);
            let (merkle, binary) = (roots.own, roots.referee.unwrap());
            let (carried, shadow) = if number < 5 { (merkle, binary) } else { (binary, merkle) };
            let header = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
            assert_eq!(header["stateRoot"], json!(carried));
            for block in [json!(hashes[number]), json!(format!("{number:#x}")), json!("latest")] {
                let got = node.call("debug_shadowStateRoot", json!([block])).await;
                assert_eq!(got, json!(shadow), "block {number}");
            }
            let expected = match number {
                0..5 => json!({
                    "phase": "running",
                    "binary": tree("synced", number, binary),
                    "merkle": null,
                }),
                _ => json!({
                    "phase": "running",
                    "binary": tree("parked", 4, chain.roots(hashes[4]).referee.unwrap()),
                    "merkle": tree("synced", number, merkle),
                }),
            };
            assert_eq!(progress(&node).await, expected, "block {number}");
        }
        let unknown = json!([B256::repeat_byte(9)]);
        assert_eq!(node.call("debug_shadowStateRoot", unknown).await, Value::Null);
        node.set_head(hashes[8], hashes[4], hashes[4]).await;
        assert_eq!(progress(&node).await["phase"], "running");
        node.set_head(hashes[8], hashes[5], hashes[5]).await;
        let done = json!({ "phase": "done", "binary": null, "merkle": null });
        assert_eq!(progress(&node).await, done);
    }
}

#[tokio::test]
async fn chain_that_never_switches_has_no_progress() {
    let chain = test_chain(TestRules::Cancun);
    for (backend, has_shadow) in [(mpt(), false), (raw(), false), (pbt(), true)] {
        let node = NodeFixture::new(&chain.spec, backend);
        let progress = node.call("debug_migrationProgress", json!([])).await;
        assert_eq!(progress, json!({ "phase": "inactive", "binary": null, "merkle": null }));
        let root = node.call("debug_shadowStateRoot", json!(["latest"])).await;
        assert_eq!(root.is_string(), has_shadow, "{root}");
    }
}

#[tokio::test]
async fn proofs_of_the_merkle_trie_end_with_its_roots() {
    let (chain, hashes) = chain();
    let mut node = NodeFixture::with_referee(&chain.spec, mpt(), pbt());
    node.add(&chain.path(hashes[0], hashes[8])).await;
    node.set_head(hashes[8], B256::ZERO, B256::ZERO).await;
    let proof = |number: u64| json!([GENESIS_CONTRACT, ["0x1"], format!("{number:#x}")]);
    node.call("eth_getProof", proof(4)).await;
    node.call("debug_executionWitness", json!(["0x4"])).await;
    for number in [5, 8] {
        let at = json!([format!("{number:#x}")]);
        for (method, params) in
            [("eth_getProof", proof(number)), ("debug_executionWitness", at.clone())]
        {
            let (code, message) = node.fail(method, params).await;
            assert_eq!(code, -32000);
            for part in ["partitioned binary tree", "state_getProof", &format!("block {number} ")] {
                assert!(message.contains(part), "{message}");
            }
        }
    }
    // The own proofs of the binary tree lead to the header's root.
    let mut node = NodeFixture::with_referee(&chain.spec, pbt(), mpt());
    node.add(&chain.path(hashes[0], hashes[8])).await;
    node.set_head(hashes[8], B256::ZERO, B256::ZERO).await;
    let (_, message) = node.fail("eth_getProof", proof(8)).await;
    assert!(message.contains("state_getProof proves against it"), "{message}");
    let own = node.call("state_getProof", proof(8)).await;
    let header = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(own["root"], header["stateRoot"]);
}

#[tokio::test]
async fn simulated_blocks_have_the_root_of_their_time() {
    let (chain, hashes) = chain();
    for (own, referee) in [(mpt(), pbt()), (pbt(), mpt())] {
        let mut node = NodeFixture::with_referee(&chain.spec, own, referee);
        node.add(&chain.path(hashes[0], hashes[4])).await;
        node.set_head(hashes[4], B256::ZERO, B256::ZERO).await;
        // No call and no fee, but the beacon root changes with the block.
        let at = |time: u64| json!({ "blockOverrides": { "time": format!("{time:#x}") } });
        let asked = json!([{ "blockStateCalls": [at(TIME - 1), at(TIME)] }, "latest"]);
        let simulated = node.call("eth_simulateV1", asked).await;
        let root = |index: usize| simulated[index]["stateRoot"].clone();
        let zero = json!(B256::ZERO);
        assert!(root(0) != root(1) && root(0) != zero && root(1) != zero, "{simulated}");
    }
}

#[tokio::test]
async fn dev_chain_switches_with_the_time_of_its_blocks() {
    const LATER: u64 = 4_000_000_000;
    let spec = Arc::new(ChainSpec::clone(&ChainSpec::dev()).with_binary_tree_time(Some(LATER)));
    for (own, referee, is_binary) in [(mpt(), pbt(), false), (pbt(), mpt(), true)] {
        let node = NodeFixture::dev_with_referee(&spec, own, referee);
        let mut carried = Vec::new();
        for time in [LATER - 10, LATER - 1, LATER, LATER + 1] {
            node.call("evm_setNextBlockTimestamp", json!([time])).await;
            node.call("evm_mine", json!([])).await;
            let header = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
            assert_eq!(header["timestamp"], format!("{time:#x}"));
            let own = node.call("state_getRoot", json!(["latest"])).await;
            let shadow = node.call("debug_shadowStateRoot", json!(["latest"])).await;
            let is_own = own["root"] == header["stateRoot"];
            assert_eq!(is_own, is_binary == (time >= LATER), "time {time}");
            assert_ne!(shadow, header["stateRoot"]);
            assert_eq!(is_own, shadow != own["root"]);
            carried.push(header["stateRoot"].clone());
        }
        assert_ne!(carried[1], carried[2]);
    }
}
