//! The same questions to nodes with plain keys, with hashed keys and their preimages, and with
//! hashed keys alone.

use crate::common::{NodeFixture, backends, mpt, test_chain};
use alloy_primitives::{Address, B256, keccak256};
use retrie_light_client::StateProofResponse;
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestRules, TestWallet, write_blocks};
use retrie_state::{AnyBackend, KeyForm};
use retrie_state_store::{FlatHistory, StoreOptions};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const BLOCKS: u64 = 6;
/// Of these blocks as many are imported, the others come from the engine.
const IMPORTED: u64 = 4;

/// Nodes on the same chain.
struct KeyNodes {
    plain: NodeFixture,
    kept: NodeFixture,
    bare: NodeFixture,
}

impl KeyNodes {
    async fn on(backend: &Arc<dyn AnyBackend>) -> Self {
        let mut chain = test_chain(TestRules::Prague);
        let genesis = chain.genesis();
        let hashes = chain.branch(genesis, BLOCKS, 12, 1);
        let blocks = chain.path(genesis, hashes[BLOCKS as usize - 1]);
        let (imported, added) = blocks.split_at(IMPORTED as usize);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chain.rlp");
        write_blocks(&file, imported);
        let mut nodes = Vec::new();
        for (keys, preimages) in
            [(KeyForm::Plain, None), (KeyForm::Hashed, Some(true)), (KeyForm::Hashed, None)]
        {
            let flat_history = FlatHistory::All;
            let store = StoreOptions { flat_history, keys, ..StoreOptions::default() };
            let file = Some(&*file);
            let mut node =
                NodeFixture::with_preimages(&chain.spec, backend.clone(), file, store, preimages);
            node.add(added).await;
            node.set_head(hashes[5], hashes[3], hashes[3]).await;
            nodes.push(node);
        }
        let [plain, kept, bare] = nodes.try_into().unwrap_or_else(|_| unreachable!());
        Self { plain, kept, bare }
    }

    /// All three nodes give one answer, which may be an error.
    async fn agree(&self, method: &str, params: Value) -> Value {
        let expected = self.plain.ask(method, params.clone()).await;
        for node in [&self.kept, &self.bare] {
            let answer = node.ask(method, params.clone()).await;
            assert_eq!(answer, expected, "{method} {params}");
        }
        expected["result"].clone()
    }

    /// The nodes that know all plain keys give one answer.
    async fn known(&self, method: &str, params: Value) -> Value {
        let expected = self.plain.call(method, params.clone()).await;
        assert_eq!(self.kept.call(method, params.clone()).await, expected, "{method} {params}");
        expected
    }
}

/// The accounts of a block by address, with their slots.
async fn accounts(nodes: &KeyNodes, block: &Value) -> BTreeMap<Address, Vec<B256>> {
    let dump = nodes.known("debug_dumpBlock", json!([block])).await;
    let slots = |account: &Value| {
        let storage = account.get("storage").and_then(Value::as_object);
        let slots = storage.into_iter().flat_map(|slots| slots.keys());
        slots.map(|slot| slot.parse().unwrap()).collect::<Vec<B256>>()
    };
    let dumped = dump["accounts"].as_object().unwrap().iter();
    dumped.map(|(name, of)| (name.parse().unwrap(), slots(of))).collect()
}

#[tokio::test]
async fn all_keys_are_answered_alike_by_every_backend() {
    for backend in backends() {
        let nodes = KeyNodes::on(&backend).await;
        for number in 0..=BLOCKS {
            let block = json!(format!("{number:#x}"));
            let accounts = accounts(&nodes, &block).await;
            assert!(accounts.len() > 3 && accounts.values().any(|slots| slots.len() > 2));
            values(&nodes, &block, &accounts).await;
            proofs(&nodes, &backend, &block, &accounts).await;
            pages(&nodes, &block, &accounts).await;
            if number > 0 {
                traces(&nodes, &block).await;
                changes(&nodes, number).await;
            }
        }
    }
}

async fn values(nodes: &KeyNodes, block: &Value, accounts: &BTreeMap<Address, Vec<B256>>) {
    let absent = Address::repeat_byte(0xab);
    for (address, slots) in accounts.iter().chain([(&absent, &vec![B256::ZERO])]) {
        for method in ["eth_getBalance", "eth_getTransactionCount", "eth_getCode"] {
            nodes.agree(method, json!([address, block])).await;
        }
        let some: Vec<_> = slots.iter().copied().take(3).chain([B256::repeat_byte(9)]).collect();
        for slot in &some {
            nodes.agree("eth_getStorageAt", json!([address, slot, block])).await;
        }
        let wanted = json!({ address.to_string(): some });
        nodes.agree("eth_getStorageValues", json!([wanted, block])).await;
    }
    let call = json!({"from": TestWallet::new(0).address, "to": GENESIS_CONTRACT, "input": format!("0x{}{}", "00".repeat(31) + "01", "00".repeat(31) + "05")});
    nodes.agree("eth_call", json!([call, block])).await;
    nodes.agree("eth_estimateGas", json!([call, block])).await;
    nodes.agree("eth_createAccessList", json!([call, block])).await;
    let overrides = json!({ GENESIS_CONTRACT.to_string(): {"state": {}} });
    nodes.agree("eth_estimateGas", json!([call, block, overrides])).await;
    let tracer = json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}});
    nodes.agree("debug_traceCall", json!([call, block, tracer])).await;
    nodes.agree("trace_call", json!([call, ["trace", "stateDiff"], block])).await;
}

async fn proofs(
    nodes: &KeyNodes,
    backend: &Arc<dyn AnyBackend>,
    block: &Value,
    accounts: &BTreeMap<Address, Vec<B256>>,
) {
    let absent = Address::repeat_byte(0xcd);
    for (address, slots) in accounts.iter().take(3).chain([(&absent, &vec![])]) {
        let slots: Vec<_> = slots.iter().copied().take(2).chain([B256::repeat_byte(9)]).collect();
        let params = json!([address, slots, block]);
        nodes.agree("eth_getProof", params.clone()).await;
        if !backend.profile().proofs {
            nodes.agree("state_getProof", params).await;
            continue;
        }
        let plain = nodes.plain.call("state_getProof", params.clone()).await;
        assert_eq!(plain.get("keys"), None);
        for node in [&nodes.kept, &nodes.bare] {
            let json = node.call("state_getProof", params.clone()).await;
            assert_eq!(json["keys"], "hashed");
            for same in ["address", "account", "storage", "block", "blockHash", "backend"] {
                assert_eq!(json[same], plain[same], "{same}");
            }
            let is_ethereum = backend.profile().ethereum_root;
            assert_eq!(json["root"] == plain["root"], is_ethereum);
            let answer: StateProofResponse = serde_json::from_value(json.clone()).unwrap();
            let (proof, keys) = (answer.to_proof(), KeyForm::Hashed.keys(&answer.keys()));
            // Some backends prove old states under the root of a later block.
            if proof.as_of.is_none() {
                let shown = backend.verify(answer.root, &keys, &proof.bytes).unwrap();
                let shown = shown.iter().map(Option::is_some);
                let stated = [answer.account.is_some()].into_iter();
                assert!(
                    shown.eq(stated.chain(answer.storage.iter().map(|of| !of.value.is_zero())))
                );
            }
        }
        if backend.extensions().provenance.is_some() && *block != json!("0x0") {
            let params = json!([address, null, "0x1", block]);
            let [plain, hashed] = [&nodes.plain, &nodes.bare]
                .map(|node| node.call("state_getProvenance", params.clone()));
            let (plain, hashed) = (plain.await, hashed.await);
            assert_eq!(hashed["versions"], plain["versions"]);
            assert_eq!(hashed["keys"], "hashed");
        }
    }
}

/// Accounts and slots by their hashes: a node that lacks preimages has the same, and says so.
async fn pages(nodes: &KeyNodes, block: &Value, accounts: &BTreeMap<Address, Vec<B256>>) {
    for count in [1, 2, 5, 0] {
        let page = json!([block, "0x", count, false, false, false]);
        let known = nodes.known("debug_accountRange", page).await;
        let next = known.get("next").cloned().unwrap_or_else(|| json!("0xff"));
        nodes.known("debug_accountRange", json!([block, next, count, true, true, true])).await;
    }
    let all = nodes.known("debug_accountRange", json!([block, "0x", 0, false, false, true])).await;
    let page = json!([block, "0x", 0, false, false, true]);
    let hashed = nodes.bare.call("debug_accountRange", page).await;
    assert_eq!(nodes.bare.call("debug_dumpBlock", json!([block])).await, hashed);
    assert_eq!(hashed["root"], all["root"]);
    assert_eq!(hashed["accounts"].as_object().unwrap().len(), accounts.len());
    for (address, slots) in accounts {
        let hash = keccak256(address);
        let of = &hashed["accounts"][format!("pre({hash})")];
        let known = &all["accounts"][address.to_checksum(None)];
        assert_eq!((of.get("address"), of.get("storage")), (None, None), "{of}");
        for same in ["balance", "nonce", "codeHash", "code", "root", "key"] {
            assert_eq!(of.get(same), known.get(same), "{same} of {address}");
        }
        let by_hash = of.get("storageByHash").and_then(Value::as_object);
        assert_eq!(by_hash.map_or(0, |slots| slots.len()), slots.len());
        for slot in slots {
            let value = &of["storageByHash"][keccak256(slot).to_string()];
            assert_eq!(*value, known["storage"][slot.to_string()], "{slot} of {address}");
        }
    }
    // Accounts without address are left out, if geth's flag says so.
    let page = json!([block, "0x", 2, false, false, false]);
    let none = nodes.bare.call("debug_accountRange", page).await;
    assert_eq!((&none["accounts"], none.get("next")), (&json!({}), None), "{none}");
}

async fn traces(nodes: &KeyNodes, block: &Value) {
    for tracer in [
        json!({"tracer": "callTracer"}),
        json!({"tracer": "prestateTracer"}),
        json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}}),
        json!({"enableMemory": true}),
    ] {
        nodes.agree("debug_traceBlockByNumber", json!([block, tracer])).await;
    }
    nodes.agree("trace_block", json!([block])).await;
    let all = json!(["trace", "stateDiff", "vmTrace"]);
    nodes.agree("trace_replayBlockTransactions", json!([block, all])).await;
    nodes.agree("debug_executionWitness", json!([block])).await;
    nodes.agree("debug_intermediateRoots", json!([block])).await;

    let stored = nodes.agree("eth_getBlockByNumber", json!([block, false])).await;
    let transactions = stored["transactions"].as_array().unwrap().len();
    for index in 0..transactions.max(1) {
        for (contract, count) in
            [(GENESIS_CONTRACT, 100), (GENESIS_CONTRACT, 1), (Address::ZERO, 9)]
        {
            let params = json!([block, index, contract, "0x", count]);
            let known = nodes.known("debug_storageRangeAt", params.clone()).await;
            let hashed = nodes.bare.call("debug_storageRangeAt", params).await;
            assert_eq!(hashed["nextKey"], known["nextKey"]);
            let (of, known) = (&hashed["storage"], known["storage"].as_object().unwrap());
            assert_eq!(of.as_object().unwrap().len(), known.len());
            for (hash, entry) in known {
                assert_eq!(of[hash]["value"], entry["value"]);
                // Known is what the block itself has touched before.
                let key = &of[hash]["key"];
                assert!(key.is_null() || *key == entry["key"], "{key}");
                assert!(index > 0 || key.is_null(), "{key}");
            }
        }
    }
}

/// The addresses of changed accounts.
async fn changes(nodes: &KeyNodes, number: u64) {
    let (block, first) = (json!(number), json!(0));
    for params in [json!([block]), json!([first, block])] {
        let method = "debug_getModifiedAccountsByNumber";
        let known = nodes.known(method, params.clone()).await;
        let (_, error) = nodes.bare.fail(method, params).await;
        assert!(error.contains("no preimage found for hash 0x"), "{error}");
        for address in known.as_array().unwrap() {
            let address: Address = serde_json::from_value(address.clone()).unwrap();
            let hash = json!([keccak256(address)]);
            let preimage = nodes.kept.call("debug_preimage", hash.clone()).await;
            assert_eq!(preimage, json!(address));
            assert_eq!(nodes.bare.fail("debug_preimage", hash).await.1, "unknown preimage");
        }
    }
}

#[tokio::test]
async fn preimages_of_slots_are_found_and_nothing_else() {
    let nodes = KeyNodes::on(&mpt()).await;
    let slot = B256::with_last_byte(1);
    let found = nodes.kept.call("debug_preimage", json!([keccak256(slot)])).await;
    assert_eq!(found, json!(slot));
    for unknown in [slot, keccak256([1])] {
        let (_, error) = nodes.kept.fail("debug_preimage", json!([unknown])).await;
        assert_eq!(error, "unknown preimage");
    }
    assert_eq!(nodes.kept.fail("debug_preimage", json!(["0x12"])).await.0, -32602);
}
