//! `debug_accountRange` and `debug_dumpBlock`.

use crate::common::{NodeFixture, backends, mpt, raw, test_chain};
use alloy_primitives::{Address, B256, hex, keccak256};
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestChain, TestRules, write_blocks};
use retrie_rpc::{RequestLimits, RpcContext};
use retrie_state::{AnyBackend, StateReader};
use retrie_state_store::{FlatHistory, StoreOptions};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const BLOCKS: u64 = 6;

fn node_on(
    backend: Arc<dyn AnyBackend>,
    store: StoreOptions,
) -> (TestChain, Vec<B256>, NodeFixture) {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), BLOCKS, 12, 1);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), hashes[5]));
    let node = NodeFixture::with_store(&chain.spec, backend, Some(&file), store);
    (chain, hashes, node)
}

/// All accounts by hash, read in pages of `count`.
async fn pages(node: &NodeFixture, block: &Value, count: u64) -> BTreeMap<B256, Value> {
    let mut all = BTreeMap::new();
    let mut start = json!("0x");
    loop {
        let params = json!([block, start, count, false, false, false]);
        let page = node.call("debug_accountRange", params).await;
        let accounts = page["accounts"].as_object().unwrap();
        assert!(accounts.len() as u64 <= count);
        for (address, account) in accounts {
            assert_eq!(account["address"], json!(address.to_lowercase()), "{account}");
            let address: Address = address.parse().unwrap();
            assert_eq!(account["key"], json!(keccak256(address)));
            assert!(all.insert(keccak256(address), account.clone()).is_none(), "{address} twice");
        }
        match page.get("next") {
            None => return all,
            Some(next) => {
                assert_eq!(accounts.len() as u64, count, "a page is full if there is another");
                let next_hash: B256 = serde_json::from_value(next.clone()).unwrap();
                assert!(all.keys().all(|key| *key < next_hash), "in the order of hashes");
                start = next.clone();
            }
        }
    }
}

#[tokio::test]
async fn accounts_come_in_the_order_of_their_hashes_as_they_are_on_every_backend() {
    for backend in backends() {
        let name = backend.identity().name;
        let has_tries = backend.extensions().account_proofs.is_some();
        let (chain, hashes, node) = node_on(backend, StoreOptions::default());
        for number in 0..=BLOCKS {
            let hash = match number {
                0 => chain.genesis(),
                number => hashes[number as usize - 1],
            };
            let by_number = json!(format!("{number:#x}"));
            let all = pages(&node, &by_number, 3).await;
            assert_eq!(all, pages(&node, &json!(hash), 200).await, "{name}, block {number}");
            let dump = node.call("debug_dumpBlock", json!([by_number])).await;
            let header = &chain.block(hash).header;
            assert_eq!(dump["root"], json!(hex::encode(header.state_root)), "{name}");
            assert!(dump.get("next").is_none());
            let dumped = dump["accounts"].as_object().unwrap();
            assert_eq!(dumped.len(), all.len(), "{name}");

            // Each account equals the one in the state.
            let view = node.live().view().unwrap();
            let state = view.state(&hash).unwrap();
            for account in all.values() {
                let address: Address = serde_json::from_value(account["address"].clone()).unwrap();
                assert_eq!(dumped[&address.to_checksum(None)], *account);
                let kept = state.account(&address).unwrap().unwrap();
                assert_eq!(account["balance"], json!(kept.balance.to_string()));
                assert_eq!(account["nonce"], json!(kept.nonce));
                assert_eq!(account["codeHash"], json!(kept.code_hash));
                let slots = state.slots_of(&address).unwrap();
                let shown = account.get("storage").and_then(Value::as_object);
                assert_eq!(shown.map_or(0, |shown| shown.len()), slots.len(), "{account}");
                for (slot, value) in slots {
                    let shown = &account["storage"][slot.to_string()];
                    assert_eq!(*shown, json!(hex::encode(&value)), "{name}: {slot} of {address}");
                }
                assert_eq!(account.get("root").is_some(), has_tries, "{name}");
                if has_tries {
                    let proof = node.call("eth_getProof", json!([address, [], by_number])).await;
                    assert_eq!(account["root"], proof["storageHash"]);
                }
            }
            let expected = chain.account(hash, GENESIS_CONTRACT).unwrap();
            let contract = &all[&keccak256(GENESIS_CONTRACT)];
            assert_eq!(contract["balance"], json!(expected.balance.to_string()));
            let code = node.call("eth_getCode", json!([GENESIS_CONTRACT, by_number])).await;
            assert_eq!(contract["code"], code);
        }
    }
}

#[tokio::test]
async fn what_is_not_wanted_is_left_out_and_what_is_wrong_is_told() {
    let (_, _, node) = node_on(mpt(), StoreOptions::default());
    let contract = GENESIS_CONTRACT.to_checksum(None);
    let params = json!(["latest", "0x", 0, true, true, true]);
    let page = node.call("debug_accountRange", params).await;
    let account = &page["accounts"][&contract];
    assert!(account.get("code").is_none() && account.get("storage").is_none(), "{account}");
    let start = keccak256(GENESIS_CONTRACT);
    for (count, most) in [(json!(1), 1), (json!("0x1"), 1), (json!(-1), 256), (json!(1000), 256)] {
        let params = json!(["latest", start, count, false, false, false]);
        let page = node.call("debug_accountRange", params).await;
        let accounts = page["accounts"].as_object().unwrap();
        assert!(accounts.contains_key(&contract) && accounts.len() <= most, "{page}");
    }
    for (method, params, code, words) in [
        ("debug_dumpBlock", json!(["0x7"]), -32000, "block #7 not found"),
        ("debug_dumpBlock", json!(["finalized"]), -32000, "not found"),
        ("debug_dumpBlock", json!([]), -32602, "missing value for required argument 0"),
        ("debug_accountRange", json!(["latest"]), -32602, "required argument 1"),
        ("debug_accountRange", json!([B256::ZERO, "0x", 1, true, true, true]), -32000, "not found"),
        (
            "debug_accountRange",
            json!(["latest", format!("0x{:066x}", 1), 1, true, true, true]),
            -32602,
            "33 bytes",
        ),
    ] {
        let refused = node.fail(method, params).await;
        assert_eq!(refused.0, code, "{refused:?}");
        assert!(refused.1.contains(words), "{refused:?}");
    }
    let limits = RequestLimits { max_response_size: 200, ..RequestLimits::default() };
    let (_, _, mut node) = node_on(mpt(), StoreOptions::default());
    node.rpc = RpcContext::clone(&node.rpc).with_limits(limits);
    let (_, message) = node.fail("debug_dumpBlock", json!(["latest"])).await;
    assert!(message.contains("--rpc.max-response-size"), "{message}");
    let params = json!(["latest", "0x", 256, true, true, true]);
    node.call("debug_accountRange", params).await;
}

#[tokio::test]
async fn a_state_that_is_not_kept_whole_is_an_error_that_names_the_limit() {
    // Flat history finds old values by key, but cannot list keys.
    for backend in [mpt(), raw()] {
        let store = StoreOptions {
            retention: 2,
            flat_history: FlatHistory::All,
            ..StoreOptions::default()
        };
        let (_, _, node) = node_on(backend, store);
        node.call("debug_dumpBlock", json!(["0x4"])).await;
        node.call("eth_getBalance", json!([GENESIS_CONTRACT, "0x3"])).await;
        let (code, message) = node.fail("debug_dumpBlock", json!(["0x3"])).await;
        assert_eq!(code, -32000);
        assert!(message.contains("block 3 lies below the retention"), "{message}");
    }
}
