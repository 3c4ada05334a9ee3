//! Details of traces where revm-inspectors differs from geth: log indices, error texts, refunds,
//! code hashes, tracer configurations.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_primitives::{Address, B256, hex, keccak256};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, write_blocks,
};
use serde_json::{Value, json};

const FRESH: Address = Address::repeat_byte(0xfa);

/// A chain of two blocks of calls that log, and a third that pays an address for the first time.
fn node() -> (TestChain, Vec<B256>, NodeFixture) {
    let mut chain = test_chain(TestRules::Prague);
    let store = |wallet, slot| TestCall::store(wallet, GENESIS_CONTRACT, slot, 7 + slot);
    let first =
        chain.extend(chain.genesis(), BlockPlan::new([store(0, 1), store(1, 2), store(2, 3)]));
    let second =
        chain.extend(first, BlockPlan::new([TestCall::deploy(0), store(1, 4), store(2, 5)]));
    let third = chain.extend(second, BlockPlan::new([TestCall::transfer(0, FRESH, 5)]));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), third));
    let node = NodeFixture::with_file(&chain.spec, mpt(), Some(&file));
    (chain, vec![first, second, third], node)
}

fn transaction(chain: &TestChain, block: B256, index: usize) -> B256 {
    *chain.block(block).body.transactions[index].hash()
}

/// Calls `callee` with no input, and drops whether it succeeded.
fn call_of(callee: Address) -> String {
    format!("6000600060006000600073{}5af150", hex::encode(callee))
}

/// The trace of a call of `codes[0]`; the codes lie at 0x0101.., 0x0202.. and so on.
async fn traced(node: &NodeFixture, codes: &[String], gas: &str, options: Value) -> Value {
    let at = |index: usize| Address::repeat_byte(index as u8 + 1);
    let mut options = options;
    let mut overrides = json!({});
    for (index, code) in codes.iter().enumerate() {
        let one = B256::with_last_byte(1);
        overrides[at(index).to_string()] =
            json!({ "code": format!("0x{code}"), "stateDiff": { one.to_string(): one } });
    }
    options["stateOverrides"] = overrides;
    node.call("debug_traceCall", json!([{ "to": at(0), "gas": gas }, "latest", options])).await
}

#[tokio::test]
async fn logs_have_the_numbers_of_their_receipts() {
    let (chain, hashes, node) = node();
    let options = json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } });
    for block in &hashes[..2] {
        let receipts = node.call("eth_getBlockReceipts", json!([block])).await;
        let traces = node.call("debug_traceBlockByHash", json!([block, options])).await;
        let mut seen = 0;
        for (index, receipt) in receipts.as_array().unwrap().iter().enumerate() {
            let hash = transaction(&chain, *block, index);
            let alone = node.call("debug_traceTransaction", json!([hash, options])).await;
            assert_eq!(alone, traces[index]["result"]);
            let logs = receipt["logs"].as_array().unwrap();
            for (log, shown) in logs.iter().zip(alone["logs"].as_array().into_iter().flatten()) {
                assert_eq!(log["logIndex"], shown["index"], "{alone}");
                seen += 1;
            }
        }
        assert!(seen >= 2, "{receipts}");
    }
}

#[tokio::test]
async fn logs_of_frames_that_fail_have_no_number() {
    let (_, _, node) = node();
    let log = "60006000a0";
    let outer = format!(
        "{log}{}{}{log}",
        call_of(Address::repeat_byte(2)),
        call_of(Address::repeat_byte(3))
    );
    let codes = [outer, format!("{log}60006000fd"), log.to_string()];
    let logging = |config: Value| json!({ "tracer": "callTracer", "tracerConfig": config });
    let trace = traced(&node, &codes, "0x100000", logging(json!({ "withLog": true }))).await;
    let place = |log: &Value| (log["index"].clone(), log["position"].clone());
    assert_eq!(place(&trace["logs"][0]), (json!("0x0"), json!("0x0")));
    assert_eq!(place(&trace["calls"][1]["logs"][0]), (json!("0x1"), json!("0x0")));
    assert_eq!(place(&trace["logs"][1]), (json!("0x2"), json!("0x2")));
    assert_eq!(trace["calls"][0]["error"], "execution reverted");
    assert!(trace["calls"][0].get("logs").is_none(), "{trace}");

    let top = json!({ "withLog": true, "onlyTopCall": true });
    let trace = traced(&node, &codes, "0x100000", logging(top)).await;
    assert!(trace.get("calls").is_none(), "{trace}");
    assert_eq!(place(&trace["logs"][1]), (json!("0x2"), json!("0x0")));

    let failing = [format!("{log}60006000fd")];
    let trace = traced(&node, &failing, "0x100000", logging(json!({ "withLog": true }))).await;
    assert!(trace["error"] == "execution reverted" && trace.get("logs").is_none(), "{trace}");
}

#[tokio::test]
async fn a_step_that_is_not_executed_says_why() {
    let (_, _, node) = node();
    let cases = [
        ("50", "0x100000", json!("stack underflow (0 <=> 1)")),
        ("5b6000600056", "0x100000", json!("stack limit reached 1024 (1023)")),
        ("5b600056", "0x5300", json!("out of gas")),
        // These fail during execution, after their gas was taken.
        ("0c", "0x100000", Value::Null),
        ("600056", "0x100000", Value::Null),
        ("60006000fd", "0x100000", Value::Null),
    ];
    for (code, gas, error) in cases {
        let trace = traced(&node, &[code.to_string()], gas, json!({})).await;
        let steps = trace["structLogs"].as_array().unwrap();
        assert_eq!(steps.last().unwrap()["error"], error, "{code}");
        assert!(steps[..steps.len() - 1].iter().all(|step| step.get("error").is_none()), "{code}");
        assert_eq!(trace["failed"], true);
    }
}

#[tokio::test]
async fn refunds_are_counted_through_frames_and_nothing_empty_is_shown() {
    let (_, _, node) = node();
    // Clears slot 1, calls the second contract, which clears its own slot 1, and goes on.
    let outer = format!("6000600155{}5b", call_of(Address::repeat_byte(2)));
    let codes = [outer, "6000600155600160005200".to_string()];
    let options = json!({ "enableMemory": true, "enableReturnData": true });
    let trace = traced(&node, &codes, "0x100000", options).await;
    let steps = trace["structLogs"].as_array().unwrap();
    let refunds = |depth: u64| -> Vec<Option<u64>> {
        let of_depth = steps.iter().filter(|step| step["depth"] == depth);
        of_depth.map(|step| step.get("refund").and_then(Value::as_u64)).collect()
    };
    let (outer, inner) = (refunds(1), refunds(2));
    // As in geth, a step's own refund is included.
    assert_eq!(&outer[..4], &[None, None, Some(4800), Some(4800)]);
    assert_eq!(&inner[..4], &[Some(4800), Some(4800), Some(9600), Some(9600)]);
    assert_eq!(outer.last().unwrap(), &Some(9600));
    assert!(steps.iter().all(|step| step.get("returnData").is_none()), "{steps:?}");
    assert!(steps[0].get("memory").is_none(), "{}", steps[0]);
    let with_memory = steps.iter().find(|step| step.get("memory").is_some()).unwrap();
    assert_eq!(with_memory["memory"], json!([B256::with_last_byte(1)]));
}

#[tokio::test]
async fn accounts_before_and_after_have_the_hash_of_their_code() {
    let (chain, hashes, node) = node();
    let trace = async |block: usize, index: usize, config: Value| {
        let options = json!({ "tracer": "prestateTracer", "tracerConfig": config });
        let hash = transaction(&chain, hashes[block], index);
        node.call("debug_traceTransaction", json!([hash, options])).await
    };
    let key = |address: Address| address.to_string().to_lowercase();
    let code = node.call("eth_getCode", json!([GENESIS_CONTRACT, "latest"])).await;
    let hash = keccak256(hex::decode(code.as_str().unwrap()).unwrap());
    let before = trace(0, 0, json!({})).await;
    assert_eq!(before[key(GENESIS_CONTRACT)]["codeHash"], json!(hash));
    assert_eq!(before[key(GENESIS_CONTRACT)]["code"], code);
    assert!(before[key(TestWallet::new(0).address)].get("codeHash").is_none());
    let bare = trace(0, 0, json!({ "disableCode": true })).await;
    assert_eq!(bare[key(GENESIS_CONTRACT)]["codeHash"], json!(hash));
    assert!(bare[key(GENESIS_CONTRACT)].get("code").is_none());

    // A contract is created; its code is the one above.
    let diff = trace(1, 0, json!({ "diffMode": true })).await;
    let created: Vec<_> = diff["post"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, account)| account.get("code").is_some())
        .collect();
    assert_eq!(created.len(), 1, "{diff}");
    assert_eq!(created[0].1["codeHash"], json!(hash));
    assert!(diff["pre"].get(created[0].0).is_none(), "{diff}");
    // An unchanged code has no hash in the diff.
    let diff = trace(1, 1, json!({ "diffMode": true })).await;
    assert!(diff["post"][key(GENESIS_CONTRACT)].get("codeHash").is_none());
    assert_eq!(diff["pre"][key(GENESIS_CONTRACT)]["codeHash"], json!(hash));
    // The account that is paid for the first time did not exist before.
    let diff = trace(2, 0, json!({ "diffMode": true })).await;
    assert_eq!(diff["post"][key(FRESH)], json!({ "balance": "0x5" }));
    assert!(diff["pre"].get(key(FRESH)).is_none(), "{diff}");
}

#[tokio::test]
async fn tracers_side_by_side_take_any_configuration() {
    let (chain, hashes, node) = node();
    let hash = transaction(&chain, hashes[1], 2);
    let trace = async |tracer: &str, config: Value| {
        let options = json!({ "tracer": tracer, "tracerConfig": config });
        node.call("debug_traceTransaction", json!([hash, options])).await
    };
    let all = json!({
        "callTracer": { "withLog": true },
        "prestateTracer": null,
        "4byteTracer": {},
        "noopTracer": {},
    });
    let side_by_side = trace("muxTracer", all).await;
    assert_eq!(side_by_side["callTracer"], trace("callTracer", json!({ "withLog": true })).await);
    assert_eq!(side_by_side["prestateTracer"], trace("prestateTracer", json!({})).await);
    assert_eq!(side_by_side["4byteTracer"], trace("4byteTracer", json!({})).await);
    assert_eq!(side_by_side["noopTracer"], json!({}));
}

#[tokio::test]
async fn contracts_that_destroy_themselves_for_their_own_benefit_are_told_with_their_balance() {
    let (_, _, node) = node();
    let (caller, contract) = (Address::repeat_byte(1), Address::repeat_byte(2));
    // ADDRESS SELFDESTRUCT: a contract that stays (EIP-6780), and one that is deleted in its
    // creation.
    let overrides = json!({
        caller.to_string(): { "balance": "0x64" },
        contract.to_string(): { "code": "0x30ff", "balance": "0x28" },
    });
    let call = json!({ "from": caller, "to": contract, "gas": "0x186a0", "value": "0x2" });
    let creation = json!({ "from": caller, "input": "0x30ff", "gas": "0x186a0", "value": "0x2a" });
    let trace = |request: &Value, tracer: &str| {
        let options = json!({ "tracer": tracer, "stateOverrides": overrides });
        let params = json!([request, "latest", options]);
        let node = &node;
        async move { node.call("debug_traceCall", params).await }
    };
    for request in [&call, &creation] {
        let told = trace(request, "callTracer").await;
        let frames = told["calls"].as_array().unwrap();
        assert_eq!(frames.len(), 1, "{told}");
        assert_eq!(frames[0]["type"], "SELFDESTRUCT");
        assert_eq!(frames[0]["from"], told["to"], "{told}");
        assert_eq!(frames[0]["to"], told["to"], "{told}");
        assert_eq!(frames[0]["value"], "0x2a", "{told}");
        let flat = trace(request, "flatCallTracer").await;
        let action = &flat[1]["action"];
        assert_eq!((&flat[1]["type"], &flat[2]), (&json!("suicide"), &Value::Null), "{flat}");
        assert_eq!(action["address"], told["to"], "{flat}");
        assert_eq!(action["refundAddress"], told["to"], "{flat}");
        assert_eq!(action["balance"], "0x2a", "{flat}");
    }
    // With another beneficiary there is also one frame.
    let overrides = json!({ contract.to_string(): { "code": "0x33ff", "balance": "0x28" } });
    let options = json!({ "tracer": "callTracer", "stateOverrides": overrides });
    let call = json!({ "from": caller, "to": contract, "gas": "0x186a0" });
    let told = node.call("debug_traceCall", json!([call, "latest", options])).await;
    assert_eq!(told["calls"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(told["calls"][0]["to"], json!(caller), "{told}");
    assert_eq!(told["calls"][0]["value"], "0x28", "{told}");
}
