//! `eth_simulateV1` compared with geth: hashes, types and logs of geth 1.17.8 for the same
//! requests.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_pipeline::testkit::{TestRules, TestWallet};
use serde_json::{Value, json};

fn node() -> NodeFixture {
    NodeFixture::new(&test_chain(TestRules::Prague).spec, mpt())
}

/// Simulates one block with transfer logs.
async fn simulated(node: &NodeFixture, block: Value) -> Value {
    let simulation = json!({
        "blockStateCalls": [block], "traceTransfers": true, "returnFullTransactions": true,
    });
    node.call("eth_simulateV1", json!([simulation, "latest"])).await[0].clone()
}

const CALLER: Address = Address::repeat_byte(0xca);
const CALLEE: Address = Address::repeat_byte(0xce);

async fn logs_of(node: &NodeFixture, code: &str) -> Vec<Value> {
    let accounts = json!({
        CALLER.to_string(): { "code": code, "balance": "0x9" },
        CALLEE.to_string(): { "code": "0x00" },
    });
    let call = json!({ "from": TestWallet::new(0).address, "to": CALLER });
    let block = simulated(node, json!({ "stateOverrides": accounts, "calls": [call] })).await;
    assert_eq!(block["calls"][0]["status"], "0x1", "{block}");
    block["calls"][0]["logs"].as_array().unwrap().clone()
}

/// Cause: a CALLCODE with value was shown as a transfer, and a SELFDESTRUCT to the contract itself
/// was not (revm#3833).
#[tokio::test]
async fn only_what_geth_takes_for_a_transfer_has_a_log() {
    let node = node();
    let to = format!("73{}", alloy_primitives::hex::encode(CALLEE));
    let of = |opcode: &str| format!("0x5f5f5f5f6001{to}5a{opcode}5000");
    let call = logs_of(&node, &of("f1")).await;
    assert_eq!(call.len(), 1, "{call:?}");
    assert_eq!(call[0]["topics"][2], json!(CALLEE.into_word()));
    assert_eq!(logs_of(&node, &of("f2")).await, Vec::<Value>::new());
    let own_heir = logs_of(&node, "0x30ff").await;
    assert_eq!(own_heir.len(), 1, "{own_heir:?}");
    assert_eq!(own_heir[0]["topics"][1], json!(CALLER.into_word()));
    assert_eq!(own_heir[0]["topics"][2], json!(CALLER.into_word()));
    assert_eq!(own_heir[0]["data"], json!(B256::from(U256::from(9))));
    // A transfer that fails has no log.
    let failing = logs_of(&node, &format!("0x5f5f5f5f600a{to}5af15000")).await;
    assert_eq!(failing, Vec::<Value>::new());
}

/// Cause: an unsigned legacy transaction was hashed with a `v` of 27, and one with an access list
/// was shown as type 1 (besu#9960).
#[tokio::test]
async fn a_gas_price_makes_a_legacy_transaction_without_a_signature() {
    let node = node();
    let sender = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let to = "0x000000000000000000000000000000000000bb01";
    let call = |more: Value| {
        let mut call = json!({ "from": sender, "to": to, "gas": "0xaf79e0", "nonce": "0x0" });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    for more in [json!({ "gasPrice": "0x0" }), json!({ "gasPrice": "0x0", "accessList": [] })] {
        let block = simulated(&node, json!({ "calls": [call(more)] })).await;
        let transaction = &block["transactions"][0];
        assert_eq!((&transaction["type"], &transaction["v"]), (&json!("0x0"), &json!("0x0")));
        let geth = "0x1f9f2896c9f64211f3d95c01212c703b75903d20c6756c3a528dd985e789f530";
        assert_eq!(transaction["hash"], geth);
    }
    let block = simulated(&node, json!({ "calls": [call(json!({ "accessList": [] }))] })).await;
    assert_eq!(block["transactions"][0]["type"], "0x2");
}

/// Cause: with an overridden base fee, a free transaction was shown with the base fee as its price.
#[tokio::test]
async fn a_free_transaction_costs_nothing_under_a_base_fee() {
    let node = node();
    let call = json!({ "from": TestWallet::new(0).address, "to": CALLER });
    let code = json!({ CALLER.to_string(): { "code": "0x3a5f524860205260405ff3" } });
    let overrides = json!({ "baseFeePerGas": "0x7" });
    let block = json!({ "blockOverrides": overrides, "stateOverrides": code, "calls": [call] });
    let block = simulated(&node, block).await;
    assert_eq!(block["transactions"][0]["gasPrice"], "0x0", "{block}");
    let seen = [B256::ZERO, B256::with_last_byte(7)].concat();
    assert_eq!(block["calls"][0]["returnData"], json!(Bytes::from(seen)), "GASPRICE, BASEFEE");
}

/// Cause: a block after the merge had the request's difficulty, and so another hash.
#[tokio::test]
async fn after_the_merge_there_is_no_difficulty_to_override() {
    let node = node();
    let plain = simulated(&node, json!({})).await;
    let overrides = json!({ "difficulty": "0x7" });
    let overridden = simulated(&node, json!({ "blockOverrides": overrides })).await;
    assert_eq!(overridden["difficulty"], "0x0");
    assert_eq!(overridden["hash"], plain["hash"]);
}
