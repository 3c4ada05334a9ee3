//! Traces in OpenEthereum's form: trees of calls, rewards, replays, and calls.

use crate::common::{NodeFixture, backends, mpt, test_chain};
use alloy_primitives::{Address, B256, U256, hex};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, write_blocks,
};
use retrie_rpc::RequestLimits;
use retrie_state::AnyBackend;
use serde_json::{Value, json};
use std::sync::Arc;

fn imported(chain: &TestChain, tip: B256, backend: Arc<dyn AnyBackend>) -> NodeFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), tip));
    NodeFixture::with_file(&chain.spec, backend, Some(&file))
}

fn node_with(
    rules: TestRules,
    backend: Arc<dyn AnyBackend>,
) -> (TestChain, Vec<B256>, NodeFixture) {
    let mut chain = test_chain(rules);
    let hashes = chain.branch(chain.genesis(), 6, 12, 1);
    let node = imported(&chain, hashes[5], backend);
    (chain, hashes, node)
}

fn types(traces: &Value) -> Vec<&str> {
    traces.as_array().unwrap().iter().map(|trace| trace["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_block_shows_its_calls_creations_destructions_and_rewards() {
    let (_, _, node) = node_with(TestRules::Byzantium, mpt());
    let creation = node.call("trace_block", json!(["0x1"])).await;
    assert_eq!(types(&creation), ["call", "create", "call", "call", "reward"]);
    let reward = &creation[4];
    assert_eq!(reward["action"]["value"], json!(U256::from(3_000_000_000_000_000_000u64)));
    assert_eq!(reward["action"]["rewardType"], "block");
    // Block 4 destroys a contract.
    let destruction = node.call("trace_block", json!(["0x4"])).await;
    assert_eq!(types(&destruction), ["call", "call", "suicide", "reward"]);
    assert_eq!(destruction[2]["traceAddress"], json!([0]));
    assert_eq!(destruction[1]["subtraces"], 1);

    let hash = &destruction[1]["transactionHash"];
    let of_transaction = node.call("trace_transaction", json!([hash])).await;
    assert_eq!(of_transaction, json!([destruction[1], destruction[2]]));
    let one = node.call("trace_get", json!([hash, ["0x1"]])).await;
    assert_eq!(one, destruction[2]);
    assert_eq!(node.call("trace_transaction", json!([B256::ZERO])).await, Value::Null);
    assert_eq!(node.call("trace_block", json!(["0x99"])).await, Value::Null);
}

#[tokio::test]
async fn ommers_are_rewarded_too() {
    let mut chain = test_chain(TestRules::Byzantium);
    let a = chain.extend(chain.genesis(), BlockPlan::new(Vec::<TestCall>::new()));
    let ommer = chain.extend(
        chain.genesis(),
        BlockPlan::new(Vec::<TestCall>::new()).paid_to(Address::repeat_byte(7)),
    );
    let plan = BlockPlan::new(Vec::<TestCall>::new());
    let plan = plan.with_ommers(vec![chain.block(ommer).header.clone()]);
    let b = chain.extend(a, plan);
    let node = imported(&chain, b, mpt());
    let traces = node.call("trace_block", json!(["0x2"])).await;
    assert_eq!(types(&traces), ["reward", "reward"]);
    assert_eq!(traces[1]["action"]["rewardType"], "uncle");
    assert_eq!(traces[1]["action"]["author"], json!(Address::repeat_byte(7)));
}

#[tokio::test]
async fn a_filter_takes_senders_receivers_and_pages_of_a_bounded_range() {
    let (_, _, mut node) = node_with(TestRules::Cancun, mpt());
    let all = node.call("trace_filter", json!([{ "fromBlock": "0x1", "toBlock": "0x6" }])).await;
    let all = all.as_array().unwrap().clone();
    let from = json!([TestWallet::new(0).address]);
    let sent =
        node.call("trace_filter", json!([{ "fromBlock": "0x1", "fromAddress": from }])).await;
    assert_eq!(sent.as_array().unwrap().len(), 6, "one transfer in each block");
    let to = json!([GENESIS_CONTRACT]);
    let received =
        node.call("trace_filter", json!([{ "fromBlock": "0x1", "toAddress": to }])).await;
    assert_eq!(received.as_array().unwrap().len(), 2);
    let page = json!([{ "fromBlock": "0x1", "after": 2, "count": 3 }]);
    let page = node.call("trace_filter", page).await;
    assert_eq!(page.as_array().unwrap()[..], all[2..5]);
    let refused = [
        json!([{ "fromBlock": "0x3", "toBlock": "0x2" }]),
        json!([{ "fromBlock": "0x1", "toBlock": "0x99" }]),
    ];
    for params in refused {
        assert_eq!(node.fail("trace_filter", params).await.0, -32602);
    }
    let (_, _, limited) = node_with(TestRules::Cancun, mpt());
    node = limited;
    let limits = RequestLimits { max_trace_filter_blocks: 2, ..RequestLimits::default() };
    node.rpc = node.rpc.clone().with_limits(limits);
    let (code, message) = node.fail("trace_filter", json!([{ "fromBlock": "0x1" }])).await;
    assert!(code == -32602 && message.contains("block range too large"), "{message}");
}

/// Cause: the tags `earliest` and `latest` were refused, and so were strings for `after` and
/// `count`.
#[tokio::test]
async fn a_filter_takes_tags_and_numbers_of_every_form() {
    let (_, _, node) = node_with(TestRules::Cancun, mpt());
    let all = node.call("trace_filter", json!([{ "fromBlock": "0x0", "toBlock": "0x6" }])).await;
    let all = all.as_array().unwrap();
    for (from, to) in [("earliest", "latest"), ("0x0", "pending"), ("0", "6")] {
        let filter = json!([{ "fromBlock": from, "toBlock": to }]);
        assert_eq!(node.call("trace_filter", filter).await, json!(all), "{from} {to}");
    }
    assert_eq!(
        node.call("trace_filter", json!([{ "fromBlock": 0, "toBlock": null }])).await,
        json!(all)
    );
    for (after, count) in [(json!("0x2"), json!("0x3")), (json!("2"), json!(3))] {
        let page = json!([{ "after": after, "count": count }]);
        assert_eq!(node.call("trace_filter", page).await, json!(all[2..5]));
    }
    for wrong in [
        json!({ "fromBlock": "soon" }),
        json!({ "count": "many" }),
        json!({ "fromBlock": "finalized" }),
    ] {
        node.fail("trace_filter", json!([wrong])).await;
    }
    // By default both sender and receiver must match.
    let (from, to) = (json!([TestWallet::new(0).address]), json!([GENESIS_CONTRACT]));
    let both = json!({ "fromAddress": from, "toAddress": to });
    assert_eq!(node.call("trace_filter", json!([both])).await, json!([]));
    let mut one = both;
    one["mode"] = json!("union");
    assert_eq!(node.call("trace_filter", json!([one])).await.as_array().unwrap().len(), 8);
}

#[tokio::test]
async fn replays_show_steps_and_what_changed_on_every_backend() {
    let mut shown = Vec::new();
    for backend in backends() {
        let (chain, hashes, node) = node_with(TestRules::Prague, backend);
        let kinds = json!(["trace", "vmTrace", "stateDiff"]);
        let block = node.call("trace_replayBlockTransactions", json!(["0x1", kinds])).await;
        assert_eq!(block.as_array().unwrap().len(), 4);
        let store = &block[3];
        let slot = B256::with_last_byte(2).to_string();
        let contract = GENESIS_CONTRACT.to_string().to_lowercase();
        let change = &store["stateDiff"][&contract]["storage"][&slot]["*"];
        assert_eq!(change["from"], json!(B256::with_last_byte(0x22)));
        assert_eq!(change["to"], json!(B256::with_last_byte(1)));
        assert!(!store["vmTrace"]["ops"].as_array().unwrap().is_empty());
        let hash = chain.block(hashes[0]).body.transactions[3].hash();
        let one = node.call("trace_replayTransaction", json!([hash, kinds])).await;
        assert_eq!(one["stateDiff"], store["stateDiff"]);
        assert_eq!(one["trace"], store["trace"]);
        shown.push(block);
    }
    assert!(shown.windows(2).all(|pair| pair[0] == pair[1]), "the same on every backend");
}

#[tokio::test]
async fn calls_and_signed_transactions_are_traced() {
    let (chain, hashes, node) = node_with(TestRules::Prague, mpt());
    let target = Address::repeat_byte(0x77);
    // Calls itself with too little gas to go deeper: two frames, of which the inner one fails.
    let code = "0x60006000600060006000306064f100";
    let call = json!({ "to": target, "gas": "0x20000" });
    let overrides = json!({ target.to_string(): { "code": code } });
    let trace = node.call("trace_call", json!([call, ["trace"], "latest", overrides])).await;
    assert_eq!(trace["trace"].as_array().unwrap().len(), 2, "{trace}");
    assert_eq!(trace["trace"][0]["subtraces"], 1);
    assert!(trace["trace"][1]["error"].is_string());
    let pay = json!({ "from": TestWallet::new(0).address, "to": target, "value": "0x7" });
    let diff = json!(["stateDiff"]);
    let many = node.call("trace_callMany", json!([[[pay, diff], [pay, diff]], "latest"])).await;
    let balance = |at: usize| &many[at]["stateDiff"][target.to_string().to_lowercase()]["balance"];
    assert_eq!(balance(0)["+"], "0x7");
    assert_eq!(balance(1)["*"]["to"], "0xe");

    let transaction = &chain.block(hashes[5]).body.transactions[0];
    let raw = hex::encode_prefixed(alloy_eips::eip2718::Encodable2718::encoded_2718(transaction));
    let traced = node.call("trace_rawTransaction", json!([raw, ["trace"], "0x5"])).await;
    assert_eq!(types(&traced["trace"]), ["call"]);
    let (_, message) = node.fail("trace_rawTransaction", json!([raw, ["trace"], "latest"])).await;
    assert!(message.contains("nonce too low"), "{message}");
    assert_eq!(node.fail("trace_rawTransaction", json!(["0x12", ["trace"]])).await.0, -32602);
}
