//! Comparison with geth's tracers: requests of `scripts/compare/geth-tracers` with geth's responses,
//! and regressions.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_eips::eip7702::Authorization;
use alloy_primitives::{Address, U256, hex};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::testkit::{CHAIN_ID, TestRules, TestWallet};
use retrie_rpc::RequestLimits;
use serde_json::{Value, json};
use std::sync::Arc;

const GOLDEN: &str = include_str!("../data/geth-traces.json");
const HERE: Address = Address::repeat_byte(0xa1);
const OTHER: Address = Address::repeat_byte(0xb2);

/// A sample of what `scripts/compare/geth-tracers --golden` compares: every tracer on single opcodes
/// and on programs with calls, for each fork since the merge.
#[tokio::test]
async fn the_answers_of_geth_are_ours() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let requests = golden["requests"].as_array().unwrap();
    let mut asked = 0;
    for (fork, genesis) in golden["genesis"].as_object().unwrap() {
        let spec = Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).unwrap());
        let mut node = NodeFixture::new(&spec, mpt());
        let limits = RequestLimits { gas_cap: 0, ..RequestLimits::default() };
        node.rpc = node.rpc.clone().with_limits(limits);
        for request in requests.iter().filter(|request| request["fork"] == json!(fork)) {
            let answer = node.call("debug_traceCall", request["request"].clone()).await;
            let what = format!("{fork}, {}, {}", request["case"], request["tracer"]);
            assert_eq!(answer, request["answer"], "{what}");
            asked += 1;
        }
    }
    assert_eq!(asked, requests.len());
    assert!(asked > 80, "{asked}");
}

fn node() -> NodeFixture {
    NodeFixture::new(&test_chain(TestRules::Prague).spec, mpt())
}

fn account(code: &str) -> Value {
    json!({ "code": format!("0x{code}"), "balance": "0x9" })
}

/// The trace of a call of `code`, with other accounts overridden.
async fn traced(node: &NodeFixture, code: &str, gas: &str, options: Value, others: Value) -> Value {
    let call = json!({ "from": TestWallet::new(0).address, "to": HERE, "gas": gas });
    let mut options = options;
    options["stateOverrides"] = json!({ HERE.to_string(): account(code) });
    let overrides = options["stateOverrides"].as_object_mut().unwrap();
    overrides.extend(others.as_object().unwrap().clone());
    node.call("debug_traceCall", json!([call, "latest", options])).await
}

/// The steps of this opcode.
fn steps<'a>(trace: &'a Value, op: &str) -> Vec<&'a Value> {
    trace["structLogs"].as_array().unwrap().iter().filter(|step| step["op"] == op).collect()
}

/// Cause: the cost of CREATE included its frame's gas; a failed step cost all remaining gas or
/// nothing; an SSTORE showed the refund counter before it (erigon#23733).
#[tokio::test]
async fn a_step_costs_what_geth_says_whether_it_is_executed_or_not() {
    let node = node();
    let none = || json!({});
    let trace = traced(&node, "60205f5ff000", "0x60000", none(), none()).await;
    assert_eq!(steps(&trace, "CREATE")[0]["gasCost"], 32_005);
    let trace = traced(&node, "60005f5fa100", "0x5320", none(), none()).await;
    let log = steps(&trace, "LOG1")[0];
    assert_eq!((&log["gasCost"], &log["error"]), (&json!(750), &json!("out of gas")));
    let trace = traced(&node, "60015f5f3e00", "0x60000", none(), none()).await;
    let copy = steps(&trace, "RETURNDATACOPY")[0];
    assert_eq!((&copy["gasCost"], &copy["error"]), (&json!(9), &Value::Null));
    let trace = traced(&node, "6001600055", "0x5500", none(), none()).await;
    let store = steps(&trace, "SSTORE")[0];
    let refused = "out of gas: not enough gas for reentrancy sentry";
    assert_eq!((&store["gasCost"], &store["error"]), (&json!(0), &json!(refused)));
    // The slot is 1 before the step.
    let slot = format!("0x{:064x}", 0);
    let set = json!({ "code": "0x5f5f5500", "stateDiff": { slot: format!("0x{:064x}", 1) } });
    let trace = traced(&node, "", "0x60000", none(), json!({ HERE.to_string(): set })).await;
    assert_eq!(steps(&trace, "SSTORE")[0]["refund"], 4_800);
}

fn authorization(wallet: u8, to: Address) -> Value {
    let nonce = 0;
    let unsigned = Authorization { chain_id: U256::from(CHAIN_ID), address: to, nonce };
    let signature = TestWallet::new(wallet).sign(unsigned.signature_hash());
    serde_json::to_value(unsigned.into_signed(signature)).unwrap()
}

/// Cause: the refund counter lacked the refunds of authorizations, and the post-state lacked a
/// cleared delegation (erigon#23733).
#[tokio::test]
async fn authorizations_are_refunded_before_the_first_step_and_cleared_delegations_shown() {
    let node = node();
    let authority = TestWallet::new(1).address;
    let delegated = account(&format!("ef0100{}", hex::encode(OTHER)));
    let overrides = json!({ HERE.to_string(): account("5f00"), authority.to_string(): delegated });
    let list = json!([authorization(1, Address::ZERO), authorization(9, OTHER)]);
    let call = json!({
        "from": TestWallet::new(0).address, "to": HERE, "gas": "0x60000", "authorizationList": list,
    });
    let ask = async |options: Value| {
        let mut options = options;
        options["stateOverrides"] = overrides.clone();
        node.call("debug_traceCall", json!([call, "latest", options])).await
    };
    // One of the two authorities existed before.
    let trace = ask(json!({})).await;
    assert_eq!(trace["structLogs"][0]["refund"], 12_500);
    let diff = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
    let trace = ask(diff).await;
    let key = authority.to_string().to_lowercase();
    let (before, after) = (&trace["pre"][&key], &trace["post"][&key]);
    assert!(before["code"].as_str().unwrap().starts_with("0xef0100"), "{trace}");
    assert_eq!((&after["code"], &after["nonce"]), (&json!("0x"), &json!(1)), "{trace}");
}

#[tokio::test]
async fn accounts_that_are_not_there_are_shown_on_request() {
    let node = node();
    let code = format!("73{}315000", hex::encode(OTHER));
    for (includes, count) in [(false, 2), (true, 4)] {
        let config = json!({ "includeEmpty": includes });
        let options = json!({ "tracer": "prestateTracer", "tracerConfig": config });
        let trace = traced(&node, &code, "0x60000", options, json!({})).await;
        assert_eq!(trace.as_object().unwrap().len(), count, "{trace}");
    }
    let config = json!({ "includeEmpty": true, "diffMode": true });
    let options = json!({ "tracer": "prestateTracer", "tracerConfig": config });
    let call = json!([{ "to": HERE }, "latest", options]);
    assert!(node.fail("debug_traceCall", call).await.1.contains("includeEmpty"));
}

/// Cause: opcodes ignored by default were counted, and so was GAS before a call; the sizes of
/// called contracts and the frames of SELFDESTRUCT were missing (base#2987).
#[tokio::test]
async fn the_rules_of_erc_7562_get_what_they_ask_for() {
    let node = node();
    let callee = hex::encode(OTHER);
    let code = format!("5f5f5f5f5f73{callee}5af1505a5030ff");
    let options = json!({ "tracer": "erc7562Tracer" });
    let others = json!({ OTHER.to_string(): account("00") });
    let trace = traced(&node, &code, "0x60000", options, others).await;
    // CALL, a GAS that is not before a call, ADDRESS and SELFDESTRUCT.
    let used = json!({ "0xf1": 1, "0x5a": 1, "0x30": 1, "0xff": 1 });
    assert_eq!(trace["usedOpcodes"], used, "{trace}");
    let size = json!({ OTHER.to_string().to_lowercase(): { "contractSize": 1, "opcode": 0xf1 } });
    assert_eq!(trace["contractSize"], size);
    let kinds: Vec<_> =
        trace["calls"].as_array().unwrap().iter().map(|call| call["type"].clone()).collect();
    assert_eq!(kinds, ["CALL", "SELFDESTRUCT"]);
}

/// Cause: `flatCallTracer` had OpenEthereum's gas, i.e. without the intrinsic gas, and showed
/// precompile calls with value. The `trace_` methods keep OpenEthereum's gas.
#[tokio::test]
async fn flat_calls_have_the_gas_of_the_transaction_and_no_precompiles() {
    let node = node();
    // Calls the identity precompile with one wei, then statically.
    let code = "5f5f5f5f600160045af1505f5f5f5f60045afa00";
    let flat = |config: Value| json!({ "tracer": "flatCallTracer", "tracerConfig": config });
    let trace = traced(&node, code, "0x60000", flat(json!({})), json!({})).await;
    assert_eq!(trace.as_array().unwrap().len(), 1, "{trace}");
    assert_eq!(trace[0]["action"]["gas"], "0x60000");
    let struct_log = traced(&node, code, "0x60000", json!({}), json!({})).await;
    let used = format!("{:#x}", struct_log["gas"].as_u64().unwrap());
    assert_eq!(trace[0]["result"]["gasUsed"], used);
    let all = flat(json!({ "includePrecompiles": true }));
    let trace = traced(&node, code, "0x60000", all, json!({})).await;
    assert_eq!(trace.as_array().unwrap().len(), 3, "{trace}");
    let overrides = json!({ HERE.to_string(): account(code) });
    let call = json!({ "from": TestWallet::new(0).address, "to": HERE, "gas": "0x60000" });
    let parity = node.call("trace_call", json!([call, ["trace"], "latest", overrides])).await;
    assert_eq!(parity["trace"][0]["action"]["gas"], format!("{:#x}", 0x60000 - 21_000));
}
