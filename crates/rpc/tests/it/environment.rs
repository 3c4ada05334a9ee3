//! What code sees of its transaction and block: every method that executes a call shows the same as
//! a mined transaction.

use crate::common::{NodeFixture, mpt};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use retrie_pipeline::testkit::{
    BlockPlan, TestCall, TestChain, TestRules, TestWallet, signed, write_blocks,
};
use serde_json::{Value, json};

const OBSERVER: Address = Address::repeat_byte(0x0e);
const VERIFIER: Address = Address::repeat_byte(0x0f);
const INPUT: [u8; 36] = [0xab; 36];

/// The name of each environment opcode, and code that evaluates it. Opcodes that copy put one word
/// of the copied bytes on the stack.
fn observations(rules: TestRules) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        ("ADDRESS", "30"),
        ("BALANCE", "3031"),
        ("ORIGIN", "32"),
        ("CALLER", "33"),
        ("CALLVALUE", "34"),
        ("CALLDATALOAD", "5f35"),
        ("CALLDATASIZE", "36"),
        ("CALLDATACOPY", "60205f5f375f51"),
        ("CODESIZE", "38"),
        ("CODECOPY", "60205f5f395f51"),
        ("GASPRICE", "3a"),
        ("EXTCODESIZE", "303b"),
        ("EXTCODECOPY", "60205f5f303c5f51"),
        // The precompile at 4 returns its input.
        ("RETURNDATASIZE", "5f5f60245f60045afa503d"),
        ("RETURNDATACOPY", "60245f5f3e5f51"),
        ("EXTCODEHASH", "303f"),
        ("BLOCKHASH", "6001430340"),
        ("COINBASE", "41"),
        ("TIMESTAMP", "42"),
        ("NUMBER", "43"),
        ("PREVRANDAO", "44"),
        ("GASLIMIT", "45"),
        ("CHAINID", "46"),
        ("SELFBALANCE", "47"),
        ("BASEFEE", "48"),
        ("BLOBHASH", "5f49"),
        ("BLOBBASEFEE", "4a"),
    ];
    if rules == TestRules::Amsterdam {
        all.push(("SLOTNUM", "4b"));
    }
    all
}

/// When another account calls it, the observer calls itself with value and input, logs the output
/// and returns it. When it calls itself, it returns one word per observation.
fn observer(rules: TestRules) -> Vec<u8> {
    let observations = observations(rules);
    // The words start at 0x40; the memory below serves the opcodes that copy.
    let size = 32 * observations.len();
    let mut inner = String::new();
    for (index, (_, code)) in observations.iter().enumerate() {
        inner += &format!("{code}61{:04x}52", 0x40 + 32 * index);
    }
    inner += &format!("61{size:04x}6040f3");
    // If CALLER == ADDRESS, jumps to the inner part at byte 30.
    let head = "333014601e57";
    // CALL(gas, ADDRESS, 7, input), then LOG0 and RETURN of the output.
    let outer = "365f5f375f5f365f6007305af1503d5f5f3e3d5fa03d5ff3";
    hex::decode(format!("{head}{outer}5b{inner}")).unwrap()
}

/// Calls the observer with its own input, and reverts if the output is not `expected`.
fn verifier(expected: &[u8]) -> String {
    let (hash, address) = (hex::encode(keccak256(expected)), hex::encode(OBSERVER));
    let call = format!("365f5f375f5f365f5f73{address}5af1503d5f5f3e3d5f20");
    // Behind PUSH32, EQ, PUSH1, JUMPI and the revert.
    let end = call.len() / 2 + 33 + 1 + 2 + 1 + 3;
    format!("0x{call}7f{hash}1460{end:02x}575f5ffd5b00")
}

struct MinedFixture {
    node: NodeFixture,
    chain: TestChain,
    block: B256,
    /// The words that the mined transaction has logged.
    words: Vec<u8>,
}

async fn mined(rules: TestRules) -> MinedFixture {
    let mut chain = TestChain::with_contract(rules, mpt(), OBSERVER, &observer(rules));
    let first = chain.extend(chain.genesis(), BlockPlan::new([TestCall::transfer(1, VERIFIER, 5)]));
    let call = TestCall { from: 0, to: OBSERVER.into(), value: 0, input: INPUT.into() };
    let plan = BlockPlan::new([call]).after(77).paid_to(Address::repeat_byte(0xc0));
    let block = chain.extend(first, plan);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), block));
    let node = NodeFixture::with_file(&chain.spec, mpt(), Some(&file));
    let receipts = node.call("eth_getBlockReceipts", json!([block])).await;
    let words = bytes(&receipts[0]["logs"][0]["data"]);
    assert_eq!(words.len(), 32 * observations(rules).len(), "{receipts}");
    MinedFixture { node, chain, block, words }
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap_or_else(|| panic!("{value}"))).unwrap()
}

/// Names of the observations that differ from the mined transaction.
fn differing(rules: TestRules, words: &[u8], answer: &Value) -> Vec<&'static str> {
    let seen = bytes(answer);
    assert_eq!(seen.len(), words.len(), "{answer}");
    let pairs = words.chunks(32).zip(seen.chunks(32)).zip(observations(rules));
    pairs.filter(|((mined, seen), _)| mined != seen).map(|(_, (name, _))| name).collect()
}

impl MinedFixture {
    /// The mined transaction as a call.
    fn request(&self) -> Value {
        let transaction = &self.chain.block(self.block).body.transactions[0];
        let shown = serde_json::to_value(transaction).unwrap();
        json!({
            "from": TestWallet::new(0).address, "to": OBSERVER, "input": Bytes::from(INPUT),
            "gas": "0x30d40", "maxFeePerGas": shown["maxFeePerGas"],
            "maxPriorityFeePerGas": shown["maxPriorityFeePerGas"],
        })
    }
}

/// Cause: BLOBBASEFEE was 0 in every method, even with a block override.
#[tokio::test]
async fn every_opcode_of_the_environment_is_in_every_method_that_of_a_mined_transaction() {
    for rules in [TestRules::Prague, TestRules::Amsterdam] {
        let mined = mined(rules).await;
        let (node, words, block) = (&mined.node, &mined.words, json!(mined.block));
        let request = mined.request();
        let same = |method: &str, answer: &Value| {
            let none: [&str; 0] = [];
            assert_eq!(differing(rules, words, answer), none, "{rules:?} {method}");
        };
        same("eth_call", &node.call("eth_call", json!([request, block])).await);
        let bundle = json!([{ "transactions": [request] }]);
        let at = json!({ "blockNumber": "0x2" });
        let many = node.call("eth_callMany", json!([bundle, at])).await;
        same("eth_callMany", &many[0][0]["value"]);
        let trace = node.call("debug_traceCall", json!([request, block])).await;
        same("debug_traceCall", &trace["returnValue"]);
        let calls = json!({ "tracer": "callTracer" });
        let trace = node.call("debug_traceCall", json!([request, block, calls])).await;
        same("debug_traceCall", &trace["output"]);
        let many = node.call("debug_traceCallMany", json!([bundle, at, calls])).await;
        same("debug_traceCallMany", &many[0][0]["output"]);
        let kinds = json!(["trace"]);
        let trace = node.call("trace_call", json!([request, kinds, block])).await;
        same("trace_call", &trace["output"]);
        let many = node.call("trace_callMany", json!([[[request, kinds]], block])).await;
        same("trace_callMany", &many[0]["output"]);
        // The same transaction again, on top of the block.
        let header = &mined.chain.block(mined.block).header;
        let call = TestCall { from: 0, to: OBSERVER.into(), value: 0, input: INPUT.into() };
        let next = signed(&TestWallet::new(0), &call, 1, header.base_fee_per_gas);
        let raw = Bytes::from(next.encoded_2718());
        let trace = node.call("trace_rawTransaction", json!([raw, kinds, block])).await;
        same("trace_rawTransaction", &trace["output"]);
        // The block simulated on its parent.
        let overrides = json!({
            "time": U256::from(header.timestamp), "feeRecipient": header.beneficiary,
            "prevRandao": header.mix_hash, "baseFeePerGas": U256::from(header.base_fee_per_gas.unwrap()),
            "gasLimit": U256::from(header.gas_limit),
        });
        for validation in [false, true] {
            let calls = json!([request]);
            let blocks = json!([{ "blockOverrides": overrides, "calls": calls }]);
            let simulation = json!({ "blockStateCalls": blocks, "validation": validation });
            let simulated = node.call("eth_simulateV1", json!([simulation, "0x1"])).await;
            same("eth_simulateV1", &simulated[0]["calls"][0]["returnData"]);
        }
        // These two methods return no output, so the code reverts if the output differs.
        let mut request = request;
        request["to"] = json!(VERIFIER);
        for is_same in [true, false] {
            let mut expected = words.clone();
            expected[0] ^= u8::from(!is_same);
            let code = json!({ VERIFIER.to_string(): { "code": verifier(&expected) } });
            let params = json!([request, block, code]);
            let estimate = node.ask("eth_estimateGas", params.clone()).await;
            assert_eq!(estimate.get("error").is_none(), is_same, "{rules:?} {estimate}");
            let list = node.call("eth_createAccessList", params).await;
            assert_eq!(list.get("error").is_none(), is_same, "{rules:?} {list}");
        }
    }
}

/// As in geth: a call without a price sees no base fee, and one with a blob fee of zero no blob
/// base fee.
#[tokio::test]
async fn what_is_free_costs_no_fee_of_the_block() {
    let rules = TestRules::Prague;
    let mined = mined(rules).await;
    let mut request = mined.request();
    for field in ["maxFeePerGas", "maxPriorityFeePerGas"] {
        request.as_object_mut().unwrap().remove(field);
    }
    let seen = mined.node.call("eth_call", json!([request, mined.block])).await;
    assert_eq!(differing(rules, &mined.words, &seen), ["GASPRICE", "BASEFEE"]);

    let fee = json!({ "data": "0x4a5f5260205ff3" });
    let word = |value: u64| json!(B256::from(U256::from(value)));
    assert_eq!(mined.node.call("eth_call", json!([fee, "latest"])).await, word(1));
    let overridden = json!({ "blobBaseFee": "0x5" });
    let params = json!([fee, "latest", {}, overridden]);
    assert_eq!(mined.node.call("eth_call", params).await, word(5));
    let mut hash = B256::repeat_byte(7);
    hash.0[0] = 1;
    let code = json!({ VERIFIER.to_string(): { "code": "0x4a5f525f4960205260405ff3" } });
    for (max_fee, seen) in [(Value::Null, 0), (json!("0x0"), 0), (json!("0x9"), 5)] {
        let call = json!({
            "from": TestWallet::new(0).address, "to": VERIFIER, "blobVersionedHashes": [hash],
            "maxFeePerBlobGas": max_fee,
        });
        let params = json!([call, "latest", code, overridden]);
        let answer = bytes(&mined.node.call("eth_call", params).await);
        assert_eq!(json!(B256::from_slice(&answer[..32])), word(seen), "{max_fee}");
        assert_eq!(answer[32..], hash[..], "BLOBHASH");
    }
}

/// Cause: estimates used the beneficiary and the blob base fee of the head.
#[tokio::test]
async fn a_dev_chain_shows_the_next_block_as_it_will_be() {
    let rules = TestRules::Prague;
    let node = NodeFixture::dev(mpt());
    let code = Bytes::from(observer(rules));
    node.call("hardhat_setCode", json!([OBSERVER, code])).await;
    node.call("hardhat_setBalance", json!([OBSERVER, "0x64"])).await;
    node.call("hardhat_mine", json!(["0x3"])).await;
    node.call("hardhat_setCoinbase", json!([Address::repeat_byte(0xc1)])).await;
    node.call("hardhat_setPrevRandao", json!([B256::repeat_byte(0xc2)])).await;
    node.call("evm_setBlockGasLimit", json!(["0x1c9c380"])).await;
    node.call("evm_setNextBlockTimestamp", json!(["0x7fffffff"])).await;
    let accounts = node.call("eth_accounts", json!([])).await;
    let request = json!({
        "from": accounts[0], "to": OBSERVER, "input": Bytes::from(INPUT), "gas": "0x30d40",
        "gasPrice": "0x77359400",
    });
    let seen = node.call("eth_call", json!([request, "pending"])).await;
    let hash = node.call("eth_sendTransaction", json!([request])).await;
    let receipt = node.call("eth_getTransactionReceipt", json!([hash])).await;
    let words = bytes(&receipt["logs"][0]["data"]);
    let none: [&str; 0] = [];
    assert_eq!(differing(rules, &words, &seen), none);
}
