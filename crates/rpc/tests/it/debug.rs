//! Raw chain data, and traces in geth's forms, on small chains of every kind of transaction.

use crate::common::{NodeFixture, backends, mpt, test_chain};
use alloy_primitives::{Address, B256, hex};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::NodeStatus;
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestChain, TestRules, TestWallet, write_blocks};
use retrie_rpc::RequestLimits;
use retrie_state::AnyBackend;
use serde_json::{Value, json};
use std::sync::Arc;

/// A chain of six blocks that use every kind of call, and a node on it.
fn node_with(
    rules: TestRules,
    backend: Arc<dyn AnyBackend>,
) -> (TestChain, Vec<B256>, NodeFixture) {
    let mut chain = test_chain(rules);
    let hashes = chain.branch(chain.genesis(), 6, 12, 1);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), hashes[5]));
    let node = NodeFixture::with_file(&chain.spec, backend, Some(&file));
    (chain, hashes, node)
}

fn node() -> (TestChain, Vec<B256>, NodeFixture) {
    node_with(TestRules::Prague, mpt())
}

/// Hash of a transaction of a block.
fn transaction(chain: &TestChain, block: B256, index: usize) -> B256 {
    *chain.block(block).body.transactions[index].hash()
}

fn number(value: &Value) -> u64 {
    u64::from_str_radix(&value.as_str().unwrap()[2..], 16).unwrap()
}

#[tokio::test]
async fn what_is_replayed_uses_the_gas_of_its_receipt_under_all_rules_and_on_all_backends() {
    let rules = [TestRules::Frontier, TestRules::Byzantium, TestRules::Cancun, TestRules::Prague];
    let on_mpt = rules.map(|rules| (rules, mpt()));
    let on_others = backends().into_iter().skip(1).map(|backend| (TestRules::Prague, backend));
    for (rules, backend) in on_mpt.into_iter().chain(on_others) {
        let (chain, hashes, node) = node_with(rules, backend);
        for block in hashes {
            let traces = node.call("debug_traceBlockByHash", json!([block])).await;
            let traces = traces.as_array().unwrap();
            assert_eq!(traces.len(), chain.block(block).body.transactions.len());
            for (index, trace) in traces.iter().enumerate() {
                let hash = transaction(&chain, block, index);
                assert_eq!(trace["txHash"], json!(hash));
                let receipt = node.call("eth_getTransactionReceipt", json!([hash])).await;
                assert_eq!(trace["result"]["gas"], number(&receipt["gasUsed"]), "{rules:?}");
                assert_eq!(trace["result"]["failed"], false);
            }
        }
    }
}

#[tokio::test]
async fn the_struct_logger_shows_what_its_options_ask_for() {
    let (chain, hashes, node) = node();
    // Block 1: a transfer, a creation, and two calls of contracts.
    let hash = transaction(&chain, hashes[0], 3);
    let trace = node.call("debug_traceTransaction", json!([hash])).await;
    let steps = trace["structLogs"].as_array().unwrap();
    assert_eq!(steps[0]["op"], "CALLDATASIZE");
    assert_eq!(steps[0]["depth"], 1);
    assert_eq!(steps[1]["stack"], json!(["0x40"]));
    let store = steps.iter().find(|step| step["op"] == "SSTORE").unwrap();
    assert!(store["storage"].is_object() && store.get("memory").is_none(), "{store}");
    assert_eq!(steps.last().unwrap()["op"], "STOP");

    let options =
        json!({ "disableStack": true, "disableStorage": true, "enableMemory": true, "limit": 130 });
    let trace = node.call("debug_traceTransaction", json!([hash, options])).await;
    let steps = trace["structLogs"].as_array().unwrap();
    // As in geth, the limit is in bytes: with steps of about 60 bytes the third one exceeds it.
    assert_eq!(steps.len(), 3);
    assert!(steps.iter().all(|step| step.get("stack").is_none()), "{steps:?}");
    assert!(steps.iter().all(|step| step.get("storage").is_none()), "{steps:?}");
}

#[tokio::test]
async fn the_native_tracers_tell_calls_states_and_selectors() {
    let (chain, hashes, node) = node();
    let store = transaction(&chain, hashes[0], 3);
    let trace = |hash: B256, options: Value| {
        let node = &node;
        async move { node.call("debug_traceTransaction", json!([hash, options])).await }
    };
    let call =
        trace(store, json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } })).await;
    assert_eq!(call["type"], "CALL");
    assert_eq!(call["to"], json!(GENESIS_CONTRACT));
    assert_eq!(call["from"], json!(TestWallet::new(2).address));
    assert_eq!(call["logs"][0]["topics"].as_array().unwrap().len(), 1);

    let creation = transaction(&chain, hashes[0], 1);
    let call = trace(creation, json!({ "tracer": "callTracer" })).await;
    assert_eq!(call["type"], "CREATE");
    assert!(call["output"].as_str().unwrap().len() > 2);

    let before = trace(store, json!({ "tracer": "prestateTracer" })).await;
    let account = &before[GENESIS_CONTRACT.to_string().to_lowercase()];
    let slot = B256::with_last_byte(2).to_string();
    assert_eq!(account["storage"][&slot], json!(B256::with_last_byte(0x22)));
    let diff = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
    let diff = trace(store, diff).await;
    let after = &diff["post"][GENESIS_CONTRACT.to_string().to_lowercase()];
    assert_eq!(after["storage"][&slot], json!(B256::with_last_byte(1)));

    for tracer in ["4byteTracer", "noopTracer"] {
        assert!(trace(store, json!({ "tracer": tracer })).await.is_object());
    }
    let flat = trace(store, json!({ "tracer": "flatCallTracer" })).await;
    assert_eq!(flat[0]["action"]["callType"], "call");
    let mux =
        json!({ "tracer": "muxTracer", "tracerConfig": { "callTracer": {}, "4byteTracer": null } });
    let mux = trace(store, mux).await;
    assert!(mux["callTracer"]["gasUsed"].is_string() && mux["4byteTracer"].is_object(), "{mux}");
}

#[cfg(feature = "js-tracer")]
#[tokio::test]
async fn a_tracer_in_javascript_sees_every_step_and_cannot_run_for_ever() {
    let (chain, hashes, node) = node();
    let hash = transaction(&chain, hashes[0], 3);
    let steps = node.call("debug_traceTransaction", json!([hash])).await;
    let script = |step: &str| {
        let code = format!(
            "{{ ops: [], step: function(log) {{ {step} }}, fault: function() {{}}, \
             result: function() {{ return this.ops; }} }}"
        );
        json!([hash, { "tracer": code, "timeout": "20s" }])
    };
    let names = script("this.ops.push(log.op.toString())");
    let names = node.call("debug_traceTransaction", names).await;
    let expected = steps["structLogs"].as_array().unwrap().iter().map(|step| step["op"].clone());
    assert_eq!(names, Value::from_iter(expected));
    let endless = node.fail("debug_traceTransaction", script("while (true) {}")).await;
    assert!(endless.1.contains("limit of iterations"), "{endless:?}");
    let throws = node.fail("debug_traceTransaction", script("throw new Error('no more')")).await;
    assert!(throws.1.contains("no more"), "{throws:?}");
    let mut late = script("for (let i = 0; i < 100000; i++) {}");
    late[1]["timeout"] = json!("1ms");
    let late = node.fail("debug_traceTransaction", late).await;
    assert!(!late.1.is_empty(), "{late:?}");
    assert_eq!(
        node.fail("debug_traceTransaction", json!([hash, { "tracer": "{" }])).await.0,
        -32000
    );
}

#[tokio::test]
async fn what_cannot_be_traced_is_refused_in_words() {
    let (chain, hashes, node) = node();
    let hash = transaction(&chain, hashes[0], 0);
    let genesis = node.fail("debug_traceBlockByNumber", json!(["0x0"])).await;
    assert_eq!(genesis, (-32000, "genesis is not traceable".into()));
    let unknown = node.fail("debug_traceTransaction", json!([B256::ZERO])).await;
    assert_eq!(unknown, (-32000, "transaction not found".into()));
    let script = json!([hash, { "tracer": "{ step: function() {} }" }]);
    let (code, message) = node.fail("debug_traceTransaction", script).await;
    if cfg!(not(feature = "js-tracer")) {
        assert!(code == -32602 && message.contains("JavaScript"), "{message}");
    }
    let wrong = json!([hash, { "timeout": "soon" }]);
    assert_eq!(node.fail("debug_traceTransaction", wrong).await.0, -32000);
    let config = json!([hash, { "tracer": "callTracer", "tracerConfig": 5 }]);
    let wrong = "invalid tracer configuration: invalid type: integer `5`, expected an object";
    assert_eq!(node.fail("debug_traceTransaction", config).await, (-32000, wrong.into()));
    let late = json!([hash, { "timeout": "0s" }]);
    let (_, message) = node.fail("debug_traceTransaction", late).await;
    assert!(message.contains("execution timeout"), "{message}");
    assert_eq!(node.fail("debug_traceBlock", json!(["0x1234"])).await.0, -32000);
    let call = |index: &str| json!([{}, json!(hashes[0]), { "txIndex": index }]);
    node.call("debug_traceCall", call("0x0")).await;
    let beyond = node.fail("debug_traceCall", call("0x99")).await;
    assert!(beyond.0 == -32000 && beyond.1.contains("out of range"), "{beyond:?}");
    assert_eq!(node.fail("debug_traceBlockByNumber", json!(["0x99"])).await.0, -32000);
}

#[tokio::test]
async fn a_block_is_traced_from_its_bytes_as_from_its_number() {
    let (_, _, node) = node();
    for number in 1..=6 {
        let number = json!(format!("{number:#x}"));
        let raw = node.call("debug_getRawBlock", json!([number])).await;
        let options = json!({ "tracer": "callTracer" });
        let from_bytes = node.call("debug_traceBlock", json!([raw, options])).await;
        assert_eq!(
            from_bytes,
            node.call("debug_traceBlockByNumber", json!([number, options])).await
        );
    }
}

#[tokio::test]
async fn calls_are_traced_after_and_within_blocks() {
    let (_, _, node) = node();
    let reader = Address::repeat_byte(0x66);
    // The balance of account 5, to which transaction 0 of block 5 pays 1005 wei.
    let code = format!("0x73{}3160005260206000f3", hex::encode(Address::with_last_byte(5)));
    let call = json!({ "to": reader, "gas": "0x10000" });
    for (index, output) in [(Some(0), 0), (Some(1), 1005), (None, 1005)] {
        let mut options = json!({
            "tracer": "callTracer",
            "stateOverrides": { reader.to_string(): { "code": code } },
        });
        if let Some(index) = index {
            options["txIndex"] = json!(format!("{index:#x}"));
        }
        let trace = node.call("debug_traceCall", json!([call, "0x5", options])).await;
        let expected = B256::from(alloy_primitives::U256::from(output));
        assert_eq!(trace["output"], json!(expected), "{index:?}");
    }
    let bundles = json!([{ "transactions": [call, call] }]);
    let many =
        node.call("debug_traceCallMany", json!([bundles, {}, { "tracer": "callTracer" }])).await;
    assert_eq!(many[0].as_array().unwrap().len(), 2);
    let looping = json!({ reader.to_string(): { "code": "0x5b600056" } });
    let options = json!({ "tracer": "callTracer", "stateOverrides": looping });
    let trace = node.call("debug_traceCall", json!([call, "latest", options])).await;
    assert_eq!(trace["error"], "out of gas");
}

#[tokio::test]
async fn raw_data_hashes_to_what_names_it() {
    for rules in [TestRules::Frontier, TestRules::Prague] {
        let (chain, hashes, node) = node_with(rules, mpt());
        for (number, hash) in (1..).zip(hashes) {
            let at = json!([format!("{number:#x}")]);
            let bytes = |value: Value| hex::decode(value.as_str().unwrap()).unwrap();
            let header = bytes(node.call("debug_getRawHeader", at.clone()).await);
            assert_eq!(alloy_primitives::keccak256(header), hash);
            let raw = node.call("debug_getRawReceipts", at.clone()).await;
            let receipts: Vec<_> =
                raw.as_array().unwrap().iter().map(|one| bytes(one.clone())).collect();
            let root = alloy_trie_root(&receipts);
            assert_eq!(root, chain.block(hash).header.receipts_root, "{rules:?} {number}");
            let first = transaction(&chain, hash, 0);
            let raw = bytes(node.call("debug_getRawTransaction", json!([first])).await);
            assert_eq!(alloy_primitives::keccak256(raw), first);
        }
    }
}

/// Root over encoded items.
fn alloy_trie_root(items: &[Vec<u8>]) -> B256 {
    alloy_consensus::proofs::ordered_trie_root_with_encoder(items, |item, out| {
        alloy_rlp::BufMut::put_slice(out, item);
    })
}

#[tokio::test]
async fn bad_blocks_are_shown_as_they_came() {
    struct MockBadBlockNode(Arc<RecoveredBlock>);
    impl NodeStatus for MockBadBlockNode {
        fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
            vec![self.0.clone()]
        }
    }
    let (_, hashes, mut node) = node();
    let block = node.live().view().unwrap().block(&hashes[0]).unwrap().unwrap();
    node.rpc = node.rpc.clone().with_node(Arc::new(MockBadBlockNode(block)));
    let bad = node.call("debug_getBadBlocks", json!([])).await;
    assert_eq!(bad[0]["hash"], json!(hashes[0]));
    assert_eq!(bad[0]["rlp"], node.call("debug_getRawBlock", json!(["0x1"])).await);
    assert_eq!(bad[0]["block"]["number"], "0x1");
}

#[tokio::test]
async fn traces_end_where_no_answer_could_hold_them() {
    let (chain, hashes, mut node) = node();
    let limits = RequestLimits { max_response_size: 1500, ..RequestLimits::default() };
    node.rpc = node.rpc.clone().with_limits(limits);
    let hash = transaction(&chain, hashes[0], 3);
    let vm = json!([hash, ["vmTrace"]]);
    let call = json!([{ "to": GENESIS_CONTRACT, "data": "0x01" }, "latest"]);
    for (method, params) in [
        ("debug_traceTransaction", json!([hash])),
        ("debug_traceBlockByNumber", json!(["0x1"])),
        ("debug_traceCall", call),
        ("trace_replayTransaction", vm),
    ] {
        let (code, message) = node.fail(method, params).await;
        assert_eq!(code, -32008, "{method}: {message}");
        assert!(message.contains("--rpc.max-response-size"), "{message}");
    }
    // Small traces of long executions are allowed.
    let calls = json!([hash, { "tracer": "callTracer" }]);
    node.call("debug_traceTransaction", calls).await;
    node.call("debug_traceTransaction", json!([hash, { "limit": 3 }])).await;
}
