//! Proofs, in Ethereum's form and in each backend's own.

use crate::common::{NodeFixture, backends, raw, test_chain};
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_light_client::StateProofResponse;
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestRules};
use retrie_state::{Account, decode_slot, encode_slot};
use retrie_storage_mpt::verify::{AccountProof, SlotProof};
use serde_json::{Value, json};

/// A node on a few blocks, the last of which clears a slot.
async fn node(backend: std::sync::Arc<dyn retrie_state::AnyBackend>) -> (NodeFixture, Vec<B256>) {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, backend);
    let genesis = chain.genesis();
    let a = chain.extend(genesis, BlockPlan::new([TestCall::store(1, GENESIS_CONTRACT, 300, 5)]));
    let b = chain.extend(a, BlockPlan::new([TestCall::store(1, GENESIS_CONTRACT, 2, 0)]));
    node.add(&chain.path(genesis, b)).await;
    node.set_head(b, B256::ZERO, B256::ZERO).await;
    (node, vec![genesis, a, b])
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

#[tokio::test]
async fn eip_1186_proofs_lead_to_the_header_of_every_block() {
    for backend in backends().into_iter().filter(|one| one.profile().ethereum_root) {
        let (node, blocks) = node(backend).await;
        for block in blocks {
            let header = node.call("eth_getBlockByHash", json!([block, false])).await;
            let root: B256 = parse(&header["stateRoot"]);
            for address in [GENESIS_CONTRACT, Address::repeat_byte(0x77)] {
                let params =
                    json!([address, ["0x1", "0x12c", "0x2", "0x9"], { "blockHash": block }]);
                let answer = node.call("eth_getProof", params).await;
                assert_eq!(answer["storageProof"][1]["key"], "0x12c", "as it was asked for");
                let account = Account {
                    nonce: parse::<alloy_primitives::U64>(&answer["nonce"]).to(),
                    balance: parse(&answer["balance"]),
                    code_hash: parse(&answer["codeHash"]),
                };
                let storage = answer["storageProof"].as_array().unwrap().iter().map(|slot| {
                    let value: U256 = parse(&slot["value"]);
                    SlotProof {
                        slot: parse::<U256>(&slot["key"]).into(),
                        value: encode_slot(value),
                        proof: parse::<Vec<Bytes>>(&slot["proof"]),
                    }
                });
                let proof = AccountProof {
                    address,
                    account: (!account.is_empty()).then_some(account),
                    storage_root: parse(&answer["storageHash"]),
                    account_proof: parse(&answer["accountProof"]),
                    storage: storage.collect(),
                };
                proof.verify(root).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn other_backends_name_the_method_that_has_their_proofs() {
    for backend in backends().into_iter().filter(|one| !one.profile().ethereum_root) {
        let (node, _) = node(backend).await;
        let (code, words) =
            node.fail("eth_getProof", json!([GENESIS_CONTRACT, [], "latest"])).await;
        assert_eq!(code, -32000);
        assert!(words.contains("state_getProof"), "{words}");
    }
}

#[tokio::test]
async fn a_backends_own_proofs_verify_under_the_root_it_states() {
    for backend in backends().into_iter().filter(|one| one.profile().proofs) {
        let verifier = backend.clone();
        let name = backend.identity().name;
        let (node, blocks) = node(backend).await;
        for (number, block) in blocks.into_iter().enumerate() {
            let params = json!([GENESIS_CONTRACT, ["0x1", "0x12c", "0x9"], block]);
            let answer: StateProofResponse = parse(&node.call("state_getProof", params).await);
            let root = node.call("state_getRoot", json!([block])).await;
            assert_eq!(root["root"], json!(answer.root), "{name}");
            assert_eq!((answer.block.to::<usize>(), answer.block_hash), (number, block));
            let proof = answer.to_proof();
            proof.check_kind(verifier.identity()).unwrap();
            let shown = verifier
                .verify(
                    answer.root,
                    &retrie_state::KeyForm::Plain.keys(&answer.keys()),
                    &proof.bytes,
                )
                .unwrap();
            let account = Account::decode(shown[0].as_ref().unwrap()).unwrap();
            assert_eq!(answer.account.map(Account::from), Some(account));
            for (slot, shown) in answer.storage.iter().zip(&shown[1..]) {
                let shown = shown.as_ref().map_or(U256::ZERO, |value| decode_slot(value).unwrap());
                assert_eq!(slot.value, shown, "{name}: block {number}, slot {}", slot.key);
            }
        }
        let nobody: StateProofResponse =
            parse(&node.call("state_getProof", json!([Address::repeat_byte(7)])).await);
        assert_eq!(nobody.account, None);
    }
}

#[tokio::test]
async fn what_a_backend_cannot_do_it_says() {
    let (node, _) = node(raw()).await;
    let backend = node.call("state_backend", json!([])).await;
    assert_eq!((&backend["backend"], &backend["proofs"]), (&json!("raw"), &json!(false)));
    let address = json!(GENESIS_CONTRACT);
    for (method, params) in [
        ("state_getProof", json!([address, []])),
        ("state_proofShard", json!([])),
        ("state_getProvenance", json!([address, null, "0x0", "0x1"])),
    ] {
        let (code, words) = node.fail(method, params).await;
        assert_eq!(code, -32000);
        assert!(words.contains("backend raw does not support"), "{method}: {words}");
    }
    let (lvmt, _) = self::node(crate::common::lvmt()).await;
    assert_eq!(lvmt.call("state_proofShard", json!([])).await, "all");
    assert_eq!(lvmt.call("state_backend", json!([])).await["shard"], "all");
    let slots = vec!["0x1"; 1025];
    assert_eq!(lvmt.fail("state_getProof", json!([address, slots])).await.0, -32602);
}
