//! `eth_fillTransaction`.

use crate::common::{NodeFixture, mpt, raw, signed_transfer, test_chain};
use alloy_eips::eip4844::BYTES_PER_BLOB;
use alloy_primitives::{Address, B256, Bytes, hex, keccak256};
use retrie_chainspec::ChainSpec;
use retrie_engine::pool::PooledTransaction;
use retrie_pipeline::testkit::{CHAIN_ID, GENESIS_CONTRACT, TestRules, TestWallet};
use serde_json::{Value, json};
use std::sync::Arc;

const GWEI: u128 = 1_000_000_000;

async fn node(rules: TestRules) -> NodeFixture {
    let chain = test_chain(rules);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    node.set_head(chain.genesis(), B256::ZERO, B256::ZERO).await;
    node
}

/// The request of a transfer with other fields.
fn transfer(change: Value) -> Value {
    let mut request = json!({
        "from": TestWallet::new(0).address,
        "to": Address::repeat_byte(0xee),
        "value": "0x1",
    });
    for (name, value) in change.as_object().unwrap() {
        request[name] = value.clone();
    }
    json!([request])
}

fn number(value: &Value) -> u128 {
    u128::from_str_radix(value.as_str().unwrap().strip_prefix("0x").unwrap(), 16).unwrap()
}

fn raw_of(filled: &Value) -> Vec<u8> {
    hex::decode(filled["raw"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn what_is_missing_is_filled_in() {
    let node = node(TestRules::Cancun).await;
    let filled = node.call("eth_fillTransaction", transfer(json!({}))).await;
    let tx = &filled["tx"];
    let tip = node.call("eth_maxPriorityFeePerGas", json!([])).await;
    let head = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    let most = number(&tip) + 2 * number(&head["baseFeePerGas"]);
    for (field, value) in [
        ("type", json!("0x2")),
        ("chainId", json!(format!("{CHAIN_ID:#x}"))),
        ("nonce", json!("0x0")),
        ("gas", json!("0x5208")),
        ("gasPrice", Value::Null),
        ("maxPriorityFeePerGas", tip),
        ("maxFeePerGas", json!(format!("{most:#x}"))),
        ("value", json!("0x1")),
        ("input", json!("0x")),
        ("accessList", json!([])),
        ("v", json!("0x0")),
        ("r", json!("0x0")),
        ("s", json!("0x0")),
        ("yParity", json!("0x0")),
        ("hash", json!(keccak256(raw_of(&filled)))),
    ] {
        assert_eq!(tx.get(field), Some(&value), "{field} of {tx}");
    }
    for absent in ["maxFeePerBlobGas", "blobVersionedHashes", "blobs", "authorizationList"] {
        assert!(tx.get(absent).is_none(), "{tx}");
    }
    // Type 2, and three zeros where the signature goes.
    let raw = raw_of(&filled);
    assert_eq!((raw[0], &raw[raw.len() - 3..]), (2, &[0x80; 3][..]));

    // Pooled transactions count for the nonce, and a call gets its estimated gas.
    node.call("eth_sendRawTransaction", json!([signed_transfer(0, 0)])).await;
    let input = format!("0x{:064x}{:064x}", 9, 7);
    let call = json!({ "to": GENESIS_CONTRACT, "input": input, "value": "0x0" });
    let filled = node.call("eth_fillTransaction", transfer(call.clone())).await;
    assert_eq!(filled["tx"]["nonce"], "0x1");
    let estimate = node.call("eth_estimateGas", transfer(call)).await;
    assert_eq!(filled["tx"]["gas"], estimate);
    assert!(number(&estimate) > 40_000);
}

#[tokio::test]
async fn what_is_given_stays() {
    let node = node(TestRules::Prague).await;
    let authority = json!({
        "chainId": "0x0",
        "address": GENESIS_CONTRACT,
        "nonce": "0x0",
        "yParity": "0x0",
        "r": "0x1",
        "s": "0x1",
    });
    let list = json!([{ "address": GENESIS_CONTRACT, "storageKeys": [B256::ZERO] }]);
    let fees = json!({ "maxFeePerGas": "0x77359400", "maxPriorityFeePerGas": "0x1" });
    let given = |more: Value| {
        let mut all = json!({ "nonce": "0x5", "gas": "0x186a0", "chainId": "0x1ca3" });
        for part in [&fees, &more] {
            for (name, value) in part.as_object().unwrap() {
                all[name] = value.clone();
            }
        }
        for (name, value) in all.clone().as_object().unwrap() {
            if value.is_null() {
                all.as_object_mut().unwrap().remove(name);
            }
        }
        all
    };
    let without = json!({ "maxFeePerGas": null, "maxPriorityFeePerGas": null });
    let mut legacy = without.clone();
    legacy["gasPrice"] = json!("0x77359400");
    let mut listed = legacy.clone();
    listed["accessList"] = list.clone();
    for (kind, request) in [
        (0, given(legacy)),
        (1, given(listed)),
        (2, given(json!({ "accessList": list }))),
        (3, given(json!({ "blobVersionedHashes": [B256::repeat_byte(1)] }))),
        (4, given(json!({ "authorizationList": [authority] }))),
    ] {
        let filled = node.call("eth_fillTransaction", transfer(request.clone())).await;
        let tx = &filled["tx"];
        assert_eq!(tx["type"], json!(format!("{kind:#x}")), "{tx}");
        for (name, value) in request.as_object().unwrap() {
            // A legacy transaction has its chain id only in the signature.
            let expected = if kind == 0 && name == "chainId" { &Value::Null } else { value };
            assert_eq!(&tx[name], expected, "{name} of {tx}");
        }
        assert_eq!(tx.get("maxFeePerBlobGas").is_some(), kind == 3, "{tx}");
        assert_eq!(tx["hash"], json!(keccak256(raw_of(&filled))));
        assert_eq!(tx.get("yParity").is_some(), kind > 0);
    }
    // An unsigned legacy transaction has nine fields; the last three are empty.
    let request = transfer(json!({ "gasPrice": "0x1", "gas": "0x5208", "nonce": "0x0" }));
    let filled = node.call("eth_fillTransaction", request).await;
    let expected = "df8001825208".to_owned() + "94" + &"ee".repeat(20) + "0180808080";
    assert_eq!(filled["raw"], json!(format!("0x{expected}")));
}

#[tokio::test]
async fn blobs_get_their_proofs_and_hashes() {
    let blob = Bytes::from({
        let mut blob = vec![0; BYTES_PER_BLOB];
        blob[1] = 42;
        blob
    });
    let mut osaka: Value = serde_json::from_str(&TestRules::Prague.genesis_json()).unwrap();
    osaka["config"]["osakaTime"] = json!(0);
    let osaka = Arc::new(ChainSpec::from_genesis_json(&osaka.to_string()).unwrap());
    let cases = [(test_chain(TestRules::Cancun).spec, 1), (osaka, 128)];
    for (spec, proofs) in cases {
        let node = NodeFixture::new(&spec, raw());
        let request = json!({ "blobs": [blob, blob] });
        let filled = node.call("eth_fillTransaction", transfer(request)).await;
        let tx = &filled["tx"];
        assert_eq!(tx["type"], "0x3");
        assert_eq!(tx["maxFeePerBlobGas"], "0x2", "twice that of the head");
        assert_eq!(tx["proofs"].as_array().unwrap().len(), 2 * proofs);
        assert_eq!(tx["commitments"].as_array().unwrap().len(), 2);
        assert_eq!(tx["blobs"][1], json!(blob));
        let hashes = tx["blobVersionedHashes"].clone();
        assert!(hashes[0].as_str().unwrap().starts_with("0x01"), "{hashes}");
        // With a signature it has the network's form.
        let pooled = <PooledTransaction as alloy_eips::eip2718::Decodable2718>::decode_2718_exact(
            &raw_of(&filled),
        );
        assert_eq!(json!(pooled.unwrap().hash()), tx["hash"]);

        // The same request with the computed sidecar.
        let whole = json!({
            "blobs": tx["blobs"],
            "commitments": tx["commitments"],
            "proofs": tx["proofs"],
            "blobVersionedHashes": hashes,
        });
        let again = node.call("eth_fillTransaction", transfer(whole.clone())).await;
        assert_eq!(again, filled);
        let wrong = |field: &str, value: Value| {
            let mut request = whole.clone();
            request[field] = value;
            request
        };
        let zeros = |count: usize| json!(vec![Bytes::from(vec![0; 48]); count]);
        for (request, words) in [
            (
                wrong("blobVersionedHashes", json!([hashes[0]])),
                "number of blobs and hashes mismatch (have=1, want=2)".to_owned(),
            ),
            (
                wrong("blobVersionedHashes", json!([hashes[0], B256::ZERO])),
                "blob hash verification failed".into(),
            ),
            (
                wrong("commitments", zeros(1)),
                "number of blobs and commitments mismatch (have=1, want=2)".into(),
            ),
            (
                wrong("commitments", Value::Null),
                "blob proofs provided while commitments were not".into(),
            ),
            (
                wrong("proofs", Value::Null),
                "blob commitments provided while proofs were not".into(),
            ),
            (
                wrong("proofs", zeros(5)),
                format!("number of blobs and proofs mismatch (have=5, want={})", 2 * proofs),
            ),
            (wrong("proofs", zeros(2 * proofs)), "failed to verify blob proof".into()),
            (json!({ "blobs": [] }), "need at least 1 blob for a blob transaction".into()),
            (
                json!({ "blobs": vec![blob.clone(); 7] }),
                "too many blobs in transaction (have=7, max=6)".into(),
            ),
        ] {
            let (code, message) = node.fail("eth_fillTransaction", transfer(request)).await;
            assert_eq!(code, -32000, "{message}");
            assert!(message.contains(&words), "{message}, not {words}");
        }
        let short = json!({ "blobs": ["0x00"] });
        assert_eq!(node.fail("eth_fillTransaction", transfer(short)).await.0, -32602);
    }
}

#[tokio::test]
async fn what_makes_no_transaction_is_refused_in_geths_words() {
    let cancun = node(TestRules::Cancun).await;
    let hashes = |count: usize| json!(vec![B256::repeat_byte(1); count]);
    let dear = format!("{:#x}", 100 * GWEI);
    for (change, words) in [
        (
            json!({ "gasPrice": "0x1", "maxFeePerGas": "0x1" }),
            "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified",
        ),
        (
            json!({ "gasPrice": "0x1", "authorizationList": [] }),
            "both gasPrice and authorizationList specified",
        ),
        (json!({ "gasPrice": "0x1", "blobVersionedHashes": hashes(1) }), "both gasPrice and blobs"),
        (json!({ "gasPrice": "0x0" }), "gasPrice must be non-zero after london fork"),
        (
            json!({ "maxFeePerGas": "0x0", "maxPriorityFeePerGas": "0x0" }),
            "maxFeePerGas must be non-zero",
        ),
        (
            json!({ "maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2" }),
            "maxFeePerGas (1) < maxPriorityFeePerGas (2)",
        ),
        (json!({ "maxFeePerGas": "0x1" }), "maxFeePerGas (1) < maxPriorityFeePerGas ("),
        (json!({ "maxFeePerBlobGas": "0x0" }), "maxFeePerBlobGas, if specified, must be non-zero"),
        (
            json!({ "input": "0x01", "data": "0x02" }),
            "both \"data\" and \"input\" are set and not equal",
        ),
        (json!({ "blobVersionedHashes": [] }), "need at least 1 blob for a blob transaction"),
        (
            json!({ "blobVersionedHashes": hashes(7) }),
            "too many blobs in transaction (have=7, max=6)",
        ),
        (
            json!({ "to": null, "blobVersionedHashes": hashes(1) }),
            "missing \"to\" in blob transaction",
        ),
        (json!({ "to": null }), "contract creation without any data provided"),
        (
            json!({ "to": null, "input": "0x00", "authorizationList": [] }),
            "\"to\" field is missing",
        ),
        (json!({ "chainId": "0x1" }), "chainId does not match node's (have=1, want=7331)"),
        (
            json!({ "from": Address::repeat_byte(0x77), "maxFeePerGas": dear }),
            "insufficient funds for transfer",
        ),
    ] {
        let (code, message) = cancun.fail("eth_fillTransaction", transfer(change)).await;
        assert_eq!(code, -32000, "{message}");
        assert!(message.contains(words), "{message}, not {words}");
    }
    assert_eq!(cancun.fail("eth_fillTransaction", json!([])).await.0, -32602);
    assert_eq!(cancun.fail("eth_fillTransaction", json!([7])).await.0, -32602);
    // The gas of a call that reverts cannot be estimated.
    let revert = json!({ "to": null, "input": "0x60006000fd" });
    assert_eq!(cancun.fail("eth_fillTransaction", transfer(revert)).await.0, 3);

    let byzantium = node(TestRules::Byzantium).await;
    let filled = byzantium.call("eth_fillTransaction", transfer(json!({}))).await;
    assert_eq!(filled["tx"]["type"], "0x0");
    assert!(number(&filled["tx"]["gasPrice"]) > 0);
    for (change, words) in [
        (json!({ "maxFeePerGas": "0x1" }), "not valid before London is active"),
        (json!({ "blobVersionedHashes": hashes(1) }), "not valid before Cancun is active"),
    ] {
        let (_, message) = byzantium.fail("eth_fillTransaction", transfer(change)).await;
        assert!(message.contains(words), "{message}, not {words}");
    }
}
