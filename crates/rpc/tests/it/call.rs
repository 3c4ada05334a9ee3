//! `eth_call`, `eth_estimateGas`, `eth_createAccessList`, `eth_callMany` and `eth_simulateV1` on
//! small chains: results, overrides, geth's error texts, and limits.

use crate::common::{NodeFixture, backends, mpt, test_chain};
use alloy_primitives::{Address, B256, Bytes, U256, hex};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, write_blocks,
};
use retrie_rpc::RequestLimits;
use retrie_state::AnyBackend;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Returns slot 1.
const READ_SLOT_1: &str = "0x60015460005260206000f3";
/// Jumps to itself for ever.
const LOOP: &str = "0x5b600056";

/// Reverts with `Error("no")`.
fn revert_no() -> String {
    let (head, text) = ("00".repeat(28), "00".repeat(30));
    format!("0x7f08c379a0{head}600052602060045260026024527f6e6f{text}60445260646000fd")
}

fn address(n: u8) -> Address {
    Address::repeat_byte(n)
}

fn wallet(n: u8) -> Address {
    TestWallet::new(n).address
}

/// A node that has imported the chain up to `tip`.
fn imported(chain: &TestChain, tip: B256, backend: Arc<dyn AnyBackend>) -> NodeFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), tip));
    NodeFixture::with_file(&chain.spec, backend, Some(&file))
}

/// A chain of `rules` whose blocks use every kind of call, and a node on it.
fn node_with(
    rules: TestRules,
    backend: Arc<dyn AnyBackend>,
) -> (TestChain, Vec<B256>, NodeFixture) {
    let mut chain = test_chain(rules);
    let hashes = chain.branch(chain.genesis(), 6, 12, 1);
    let node = imported(&chain, hashes[5], backend);
    (chain, hashes, node)
}

fn node() -> (TestChain, Vec<B256>, NodeFixture) {
    node_with(TestRules::Prague, mpt())
}

/// A word as a result.
fn word(value: u64) -> Value {
    json!(B256::from(U256::from(value)))
}

#[tokio::test]
async fn calls_read_the_state_of_the_block_they_name_on_every_backend() {
    for backend in backends() {
        let (_, _, node) = node_with(TestRules::Prague, backend);
        let call = json!({ "to": GENESIS_CONTRACT });
        let code = json!({ GENESIS_CONTRACT.to_string(): { "code": READ_SLOT_1 } });
        // The contract of genesis has 0x11 in slot 1; the code reads it.
        let result = node.call("eth_call", json!([call, "latest", code])).await;
        assert_eq!(result, word(0x11));
        // Slot 2 was set by blocks 1 and 5.
        let slot_2 =
            json!({ GENESIS_CONTRACT.to_string(): { "code": "0x60025460005260206000f3" } });
        for (block, value) in [("0x0", 0x22), ("0x1", 1), ("0x4", 1), ("0x5", 5)] {
            let result = node.call("eth_call", json!([call, block, slot_2])).await;
            assert_eq!(result, word(value), "block {block}");
        }
    }
}

#[tokio::test]
async fn overrides_change_accounts_slots_and_blocks_and_leave_no_trace() {
    let (_, _, node) = node();
    let target = address(0x77);
    let call = json!({ "to": target });
    let run = |account: Value| json!([call, "latest", { target.to_string(): account }]);
    let slot = |n: u64| B256::from(U256::from(n)).to_string();
    let diff = run(json!({ "code": READ_SLOT_1, "stateDiff": { slot(1): slot(9) } }));
    assert_eq!(node.call("eth_call", diff).await, word(9));
    let balance = run(json!({ "code": "0x4760005260206000f3", "balance": "0x5" }));
    assert_eq!(node.call("eth_call", balance).await, word(5));
    // `state` replaces the whole storage.
    let replaced = json!({ GENESIS_CONTRACT.to_string(): { "code": READ_SLOT_1, "state": { slot(2): slot(7) } } });
    let params = json!([{ "to": GENESIS_CONTRACT }, "latest", replaced]);
    assert_eq!(node.call("eth_call", params).await, word(0));
    let both = run(json!({ "state": {}, "stateDiff": {} }));
    assert_eq!(node.fail("eth_call", both).await.0, -32000);
    // Number, time, coinbase.
    let block = json!({ "number": "0x1234", "time": "0x99999", "feeRecipient": address(3) });
    for (opcode, value) in [("43", 0x1234), ("42", 0x99999)] {
        let code = json!({ target.to_string(): { "code": format!("0x{opcode}60005260206000f3") } });
        let result = node.call("eth_call", json!([call, "latest", code, block])).await;
        assert_eq!(result, word(value));
    }
    assert_eq!(node.call("eth_getCode", json!([target, "latest"])).await, json!("0x"));
}

#[tokio::test]
async fn the_nonce_of_a_call_is_nobodys_business() {
    let (_, _, node) = node();
    for nonce in ["0x0", "0x7", "0xffffffffffffffff"] {
        let call = json!({ "from": wallet(0), "to": address(0x66), "nonce": nonce });
        assert_eq!(node.call("eth_call", json!([call, "latest"])).await, "0x", "{nonce}");
        assert_eq!(node.call("eth_estimateGas", json!([call])).await, "0x5208", "{nonce}");
        let list = node.call("eth_createAccessList", json!([call])).await;
        assert_eq!(list["error"], Value::Null, "{nonce}");
        let trace = node.call("debug_traceCall", json!([call, "latest", {}])).await;
        assert_eq!(trace["failed"], false, "{nonce}");
        let blocks = json!({ "blockStateCalls": [{ "calls": [call] }], "validation": null });
        let simulated = node.call("eth_simulateV1", json!([blocks])).await;
        assert_eq!(simulated[0]["calls"][0]["status"], "0x1", "{nonce}");
    }
}

#[tokio::test]
async fn a_precompile_can_be_moved_and_replaced() {
    let (_, _, node) = node();
    let (identity, elsewhere) = ("0x0000000000000000000000000000000000000004", address(0x44));
    let moved = json!({ identity: { "movePrecompileToAddress": elsewhere, "code": READ_SLOT_1 } });
    let at = |to: Value| json!([{ "to": to, "input": "0xabcd" }, "latest", moved]);
    assert_eq!(node.call("eth_call", at(json!(elsewhere))).await, json!("0xabcd"));
    assert_eq!(node.call("eth_call", at(json!(identity))).await, word(0));
    let none = json!([{ "to": elsewhere }, "latest", { elsewhere.to_string(): { "movePrecompileToAddress": address(1) } }]);
    let (code, message) = node.fail("eth_call", none).await;
    assert_eq!((code, message), (-32000, format!("account {elsewhere} is not a precompile")));
}

#[tokio::test]
async fn failures_have_geths_codes_and_words() {
    let (_, _, node) = node();
    let target = address(0x77);
    let with = |code: &str| json!([{ "to": target, "gas": "0x30000" }, "latest", { target.to_string(): { "code": code } }]);
    let cases = [
        ("0x60006000fd", 3, "execution reverted"),
        (&revert_no(), 3, "execution reverted: no"),
        ("0xfe", -32000, "invalid opcode: INVALID"),
        ("0x600056", -32000, "invalid jump destination"),
        (LOOP, -32000, "out of gas"),
        ("0x50", -32000, "stack underflow (0 <=> 1)"),
        ("0x81", -32000, "stack underflow (0 <=> 2)"),
        ("0x5b6000600056", -32000, "stack limit reached 1024 (1023)"),
        ("0x0c", -32000, "invalid opcode: opcode 0xc not defined"),
    ];
    for (code, number, words) in cases {
        let (got, message) = node.fail("eth_call", with(code)).await;
        assert_eq!((got, message.as_str()), (number, words), "{code}");
        if number == -32000 && code != LOOP {
            let (_, message) = node.fail("eth_estimateGas", with(code)).await;
            assert_eq!(message, words, "{code}");
        }
        let list = node.call("eth_createAccessList", with(code)).await;
        assert_eq!(list["error"], words, "{code}");
    }
    let large = json!([{ "input": Bytes::from(vec![0; 50_000]) }, "latest"]);
    let (_, message) = node.fail("eth_call", large).await;
    let words = "max initcode size exceeded: code size 50000 limit 49152";
    assert!(message.contains(words), "{message}");
    let panic = format!("0x7f4e487b71{}60005260116004526024{}", "00".repeat(28), "6000fd");
    let (_, message) = node.fail("eth_call", with(&panic)).await;
    assert_eq!(message, "execution reverted: arithmetic underflow or overflow");

    let poor = address(0x55);
    let invalid = [
        (
            json!({ "from": poor, "to": target, "value": "0x5" }),
            format!(
                "err: insufficient funds for gas * price + value: address {poor} have 0 want 5 (supplied gas 50000000)"
            ),
        ),
        (
            json!({ "to": target, "gas": "0x5" }),
            "err: intrinsic gas too low: have 5, want 21000 (supplied gas 5)".into(),
        ),
        (
            json!({ "to": target, "gasPrice": "0x1", "maxFeePerGas": "0x1" }),
            "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified".into(),
        ),
        (
            json!({ "to": target, "chainId": "0x1" }),
            "chainId does not match node's (have=1, want=7331)".into(),
        ),
    ];
    for (call, words) in invalid {
        let (code, message) = node.fail("eth_call", json!([call, "latest"])).await;
        assert_eq!((code, message), (-32000, words));
    }
    let cheap = json!([{ "from": wallet(0), "to": target, "maxFeePerGas": "0x1" }, "latest"]);
    let (_, message) = node.fail("eth_call", cheap).await;
    assert!(message.contains("max fee per gas less than block base fee: address"), "{message}");
    assert_eq!(
        node.fail("eth_call", json!([{}, "0x99"])).await,
        (-32000, "header not found".into())
    );
}

#[tokio::test]
async fn a_call_that_never_ends_is_ended() {
    let (_, _, mut node) = node();
    let limits = RequestLimits {
        gas_cap: 0,
        evm_timeout: Duration::from_millis(50),
        ..RequestLimits::default()
    };
    node.rpc = node.rpc.clone().with_limits(limits);
    let target = address(0x77);
    let params = json!([{ "to": target }, "latest", { target.to_string(): { "code": LOOP } }]);
    let (code, message) = node.fail("eth_call", params).await;
    assert_eq!((code, message.as_str()), (-32000, "execution aborted (timeout = 50ms)"));
    // Recursion without a loop: the contract calls itself twice.
    let twice = format!("0x{}", "60006000600060006000305af150".repeat(2));
    let params = json!([{ "to": target }, "latest", { target.to_string(): { "code": twice } }]);
    let (_, message) = node.fail("eth_call", params).await;
    assert_eq!(message, "execution aborted (timeout = 50ms)");
}

#[tokio::test]
async fn gas_is_estimated_within_the_margin_and_reverts_are_told() {
    for rules in [TestRules::Frontier, TestRules::Byzantium, TestRules::Cancun, TestRules::Prague] {
        let (_, _, node) = node_with(rules, mpt());
        let transfer = json!([{ "from": wallet(0), "to": address(9), "value": "0x1" }]);
        assert_eq!(node.call("eth_estimateGas", transfer).await, json!("0x5208"), "{rules:?}");
        let input = [B256::from(U256::from(77)), B256::from(U256::from(1))].concat();
        let store =
            json!({ "from": wallet(0), "to": GENESIS_CONTRACT, "input": Bytes::from(input) });
        let estimate = node.call("eth_estimateGas", json!([store])).await;
        let gas = u64::from_str_radix(&estimate.as_str().unwrap()[2..], 16).unwrap();
        let with = |gas: u64| {
            let mut call = store.clone();
            call["gas"] = json!(format!("{gas:#x}"));
            json!([call, "latest"])
        };
        node.call("eth_call", with(gas)).await;
        node.fail("eth_call", with(gas * 97 / 100)).await;
    }
    let (_, _, node) = node();
    let target = address(0x77);
    let with =
        |code: &str| json!([{ "to": target }, "latest", { target.to_string(): { "code": code } }]);
    let (code, message) = node.fail("eth_estimateGas", with(&revert_no())).await;
    assert_eq!((code, message.as_str()), (3, "execution reverted: no"));
    let (code, message) = node.fail("eth_estimateGas", with(LOOP)).await;
    assert_eq!((code, message.as_str()), (-32000, "gas required exceeds allowance (30000000)"));
    let poor = json!([{ "from": address(5), "to": target, "value": "0x1" }]);
    let (_, message) = node.fail("eth_estimateGas", poor).await;
    assert!(message.contains("insufficient funds"), "{message}");
}

#[tokio::test]
async fn state_gas_is_estimated_beyond_the_cap_of_other_gas() {
    let (_, _, node) = node_with(TestRules::Amsterdam, mpt());
    // Returns a code of 12,000 zeros, each of which takes state gas (EIP-8037).
    let creation = json!({ "from": wallet(0), "input": "0x612ee05ff3" });
    let estimate = node.call("eth_estimateGas", json!([creation])).await;
    let gas = u64::from_str_radix(&estimate.as_str().unwrap()[2..], 16).unwrap();
    assert!(gas > 1 << 24, "{gas}");
    let with = |gas: u64| {
        let mut call = creation.clone();
        call["gas"] = json!(format!("{gas:#x}"));
        json!([call, "latest"])
    };
    node.call("eth_call", with(gas)).await;
    node.fail("eth_call", with(gas * 97 / 100)).await;
    // The cap on all other gas still holds.
    let looping =
        json!([{ "to": address(0x77) }, "latest", { address(0x77).to_string(): { "code": LOOP } }]);
    let (code, message) = node.fail("eth_estimateGas", looping).await;
    assert_eq!((code, message.as_str()), (-32000, "gas required exceeds allowance (30000000)"));
}

#[tokio::test]
async fn an_access_list_names_what_a_call_touches() {
    let (_, _, node) = node();
    let input = [B256::from(U256::from(77)), B256::from(U256::from(1))].concat();
    let call = json!({ "from": wallet(0), "to": GENESIS_CONTRACT, "input": Bytes::from(input) });
    let list = node.call("eth_createAccessList", json!([call, "latest"])).await;
    let expected = json!([{
        "address": GENESIS_CONTRACT,
        "storageKeys": [B256::from(U256::from(77))],
    }]);
    assert_eq!(list["accessList"], expected);
    assert!(list.get("error").is_none(), "{list}");
    let failing =
        json!([call, "latest", { GENESIS_CONTRACT.to_string(): { "code": "0x60006000fd" } }]);
    let list = node.call("eth_createAccessList", failing).await;
    assert_eq!(list["error"], "execution reverted");
}

#[tokio::test]
async fn calls_of_a_bundle_see_each_others_changes_and_may_stand_within_a_block() {
    let (_, _, node) = node();
    let input = [B256::from(U256::from(1)), B256::from(U256::from(0x99))].concat();
    let store = json!({ "from": wallet(0), "to": GENESIS_CONTRACT, "input": Bytes::from(input) });
    let reader = address(0x66);
    let balance = json!({ "to": reader });
    let code = format!("0x73{}3160005260206000f3", hex::encode(address(0x67)));
    let pay = json!({ "from": wallet(0), "to": address(0x67), "value": "0x7" });
    let bundles = json!([{ "transactions": [balance, pay, balance, store] }]);
    let overrides = json!({ reader.to_string(): { "code": code } });
    let answer = node.call("eth_callMany", json!([bundles, {}, overrides])).await;
    assert_eq!(answer[0][0]["value"], word(0));
    assert_eq!(answer[0][2]["value"], word(7));
    assert!(answer[0][3]["value"].is_string());
    // Block 5: transaction 0 pays 1005 wei to account 5, others follow.
    let code = format!("0x73{}3160005260206000f3", hex::encode(Address::with_last_byte(5)));
    let overrides = json!({ reader.to_string(): { "code": code } });
    let bundles = json!([{ "transactions": [balance] }]);
    for (index, value) in [(0, 0), (1, 1005), (-1, 1005)] {
        let context = json!({ "blockNumber": "0x5", "transactionIndex": index });
        let answer = node.call("eth_callMany", json!([bundles, context, overrides])).await;
        assert_eq!(answer[0][0]["value"], word(value), "index {index}");
    }
}

#[tokio::test]
async fn simulated_blocks_follow_each_other_on_every_backend() {
    for backend in backends() {
        let (_, _, node) = node_with(TestRules::Prague, backend);
        let head = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
        let request = json!({
            "blockStateCalls": [
                {
                    "stateOverrides": { address(1).to_string(): { "balance": "0x64" } },
                    "calls": [{ "from": address(1), "to": address(2), "value": "0x1e" }],
                },
                { "calls": [
                    { "from": address(2), "to": address(3), "value": "0x1e" },
                    { "from": address(1), "to": address(3), "value": "0x46" },
                ] },
            ],
            "traceTransfers": true,
        });
        let blocks = node.call("eth_simulateV1", json!([request, "latest"])).await;
        assert_eq!(blocks[0]["parentHash"], head["hash"]);
        assert_eq!(blocks[1]["parentHash"], blocks[0]["hash"]);
        assert_eq!(blocks[1]["calls"].as_array().unwrap().len(), 2);
        for call in blocks[1]["calls"].as_array().unwrap() {
            assert_eq!(call["status"], "0x1");
            assert_eq!(call["logs"].as_array().unwrap().len(), 1);
        }
        let roots = (&blocks[0]["stateRoot"], &blocks[1]["stateRoot"]);
        let is_raw = node.call("state_backend", json!([])).await.to_string().contains("raw");
        assert!(is_raw || roots.0 != roots.1);
        // The simulation left nothing behind.
        let balance = node.call("eth_getBalance", json!([address(3), "latest"])).await;
        assert_eq!(balance, json!("0x0"));
    }
}

#[tokio::test]
async fn a_simulated_block_is_the_block_that_would_be_built() {
    let mut chain = test_chain(TestRules::Cancun);
    let parent = chain.branch(chain.genesis(), 2, 12, 1)[1];
    let empty = chain.extend(parent, BlockPlan::new(Vec::<TestCall>::new()));
    let node = imported(&chain, parent, mpt());
    let block = chain.block(empty);
    let overrides = json!({
        "feeRecipient": block.header.beneficiary,
        "prevRandao": block.header.mix_hash,
        "parentBeaconBlockRoot": block.header.parent_beacon_block_root,
    });
    let request =
        json!({ "blockStateCalls": [{ "blockOverrides": overrides }], "validation": true });
    let blocks = node.call("eth_simulateV1", json!([request, "latest"])).await;
    assert_eq!(blocks[0]["stateRoot"], json!(block.header.state_root));
    assert_eq!(blocks[0]["hash"], json!(empty), "{}", blocks[0]);
}

/// Simulated blocks skip nonce checks, so the maximum nonce wraps to zero, as in geth.
#[tokio::test]
async fn the_last_nonce_of_a_simulated_sender_wraps_unless_blocks_must_be_valid() {
    let (_, _, node) = node();
    // A sender with code, which creates a contract (with nothing in it) and returns its address.
    let creator = "0x600060006000f060005260206000f3";
    let accounts = json!({
        address(1).to_string(): { "nonce": "0xffffffffffffffff" },
        address(2).to_string(): { "nonce": "0xffffffffffffffff", "code": creator },
    });
    let call = |from: u8, to: u8| json!({ "from": address(from), "to": address(to) });
    let calls = json!([call(1, 3), call(1, 3), call(2, 2), { "from": address(4) }]);
    let block = json!({ "stateOverrides": accounts, "calls": calls });
    let request = json!({ "blockStateCalls": [block], "returnFullTransactions": true });
    let blocks = node.call("eth_simulateV1", json!([request, "latest"])).await;
    let nonce = |at: usize| blocks[0]["transactions"][at]["nonce"].clone();
    assert_eq!([nonce(0), nonce(1)], ["0xffffffffffffffff", "0x0"]);
    for at in 0..4 {
        assert_eq!(blocks[0]["calls"][at]["status"], "0x1", "{}", blocks[0]["calls"][at]);
    }
    // A contract that the sender creates gets the wrapped nonce.
    let created = address(2).create(0).into_word();
    assert_eq!(blocks[0]["calls"][2]["returnData"], json!(created));

    // A creation at the maximum nonce has no address.
    let block = json!({ "stateOverrides": accounts, "calls": [{ "from": address(1) }] });
    let request = json!({ "blockStateCalls": [block] });
    let blocks = node.call("eth_simulateV1", json!([request, "latest"])).await;
    let failed = &blocks[0]["calls"][0];
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("0x0"), &json!(-32015)));
    assert_eq!(failed["error"]["message"], "nonce uint64 overflow");

    let block = json!({ "stateOverrides": accounts, "calls": [call(1, 3)] });
    let request = json!({ "blockStateCalls": [block], "validation": true });
    let (code, message) = node.fail("eth_simulateV1", json!([request, "latest"])).await;
    assert!(code == -32603 && message.contains("nonce has max value"), "{code}: {message}");
}
