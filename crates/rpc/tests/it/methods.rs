//! Methods beyond the standard that tools of geth and reth expect.

use crate::common;

use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, hex, keccak256};
use alloy_rpc_types_engine::{ExecutionPayloadEnvelopeV6, ForkchoiceState, PayloadStatusEnum};
use common::{NodeFixture, backends, mpt, raw, signed_transfer, test_chain};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_engine::{BuilderConfig, EngineApi, NodeStatus, PayloadBuilder};
use retrie_pipeline::testkit::{
    GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, signed, write_blocks,
};
use retrie_rpc::{ApiNamespace, build_methods};
use retrie_state::AnyBackend;
use serde_json::{Value, json};
use std::sync::Arc;

/// A chain of six blocks that use every kind of call, and a node on it.
fn node_on(backend: Arc<dyn AnyBackend>) -> (TestChain, Vec<B256>, NodeFixture) {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), 6, 12, 1);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), hashes[5]));
    let node = NodeFixture::with_file(&chain.spec, backend, Some(&file));
    (chain, hashes, node)
}

fn word(value: u64) -> B256 {
    B256::from(alloy_primitives::U256::from(value))
}

#[tokio::test]
async fn the_storage_of_a_contract_is_paged_in_the_order_of_hashes() {
    for backend in backends() {
        let (_, hashes, node) = node_on(backend);
        let range = async |block: &B256, index: u64, start: Value, count: u64| {
            let params = json!([block, index, GENESIS_CONTRACT, start, count]);
            node.call("debug_storageRangeAt", params).await
        };
        // Before the first transaction of block 1 the storage is that of genesis.
        let whole = range(&hashes[0], 0, json!("0x"), 100).await;
        assert_eq!(whole["nextKey"], Value::Null);
        let storage = whole["storage"].as_object().unwrap();
        assert_eq!(storage.len(), 3);
        for slot in 1..=3 {
            let entry = json!({ "key": word(slot), "value": word(0x11 * slot) });
            assert_eq!(storage[&keccak256(word(slot)).to_string()], entry);
        }
        let mut order: Vec<&String> = storage.keys().collect();
        order.sort();
        let page = range(&hashes[0], 0, json!("0x"), 2).await;
        assert_eq!(page["storage"].as_object().unwrap().len(), 2);
        assert_eq!(page["nextKey"], json!(order[2]));
        let page = range(&hashes[0], 0, page["nextKey"].clone(), 2).await;
        assert_eq!(page["storage"], json!({ order[2].as_str(): storage[order[2]] }));
        assert_eq!(page["nextKey"], Value::Null);

        // Transaction 3 of block 1 sets slot 2.
        let slot = keccak256(word(2)).to_string();
        let before = range(&hashes[0], 3, json!("0x"), 100).await;
        assert_eq!(before["storage"][&slot]["value"], json!(word(0x22)));
        let after = range(&hashes[1], 0, json!("0x"), 100).await;
        assert_eq!(after["storage"][&slot]["value"], json!(word(1)));

        let none = json!([hashes[0], 0, Address::repeat_byte(9), "0x", 5]);
        let none = node.call("debug_storageRangeAt", none).await;
        assert_eq!(none, json!({ "storage": {}, "nextKey": null }));
        let beyond = json!([hashes[0], 99, GENESIS_CONTRACT, "0x", 5]);
        let (code, message) = node.fail("debug_storageRangeAt", beyond).await;
        assert!(code == -32000 && message.contains("out of range"), "{message}");
        let long = json!([hashes[0], 0, GENESIS_CONTRACT, Bytes::from(vec![0; 33]), 5]);
        assert_eq!(node.fail("debug_storageRangeAt", long).await.0, -32602);
    }
}

#[tokio::test]
async fn modified_accounts_are_those_that_blocks_have_changed() {
    let (_, hashes, node) = node_on(mpt());
    let known: Vec<Address> =
        (0..8).map(|wallet| TestWallet::new(wallet).address).chain([GENESIS_CONTRACT]).collect();
    let account = async |address: &Address, number: u64| {
        let proof = node.call("eth_getProof", json!([address, [], format!("{number:#x}")])).await;
        ["balance", "nonce", "codeHash", "storageHash"].map(|field| proof[field].clone())
    };
    for (first, last) in [(0, 1), (1, 2), (2, 5), (0, 6)] {
        let modified = node.call("debug_getModifiedAccountsByNumber", json!([first, last])).await;
        let modified: Vec<Address> = serde_json::from_value(modified).unwrap();
        assert!(modified.is_sorted_by_key(keccak256) && !modified.is_empty(), "{modified:?}");
        for address in modified.iter().chain(&known) {
            let differs = account(address, first).await != account(address, last).await;
            assert_eq!(modified.contains(address), differs, "{address} in {first}..{last}");
        }
    }
    let hash = |number: usize| json!(hashes[number - 1]);
    let one = node.call("debug_getModifiedAccountsByHash", json!([hash(3)])).await;
    assert_eq!(one, node.call("debug_getModifiedAccountsByHash", json!([hash(2), hash(3)])).await);
    assert_eq!(one, node.call("debug_getModifiedAccountsByNumber", json!([3])).await);
    for (params, code) in [
        (json!([3, 3]), -32000),
        (json!([5, 2]), -32000),
        (json!([0]), -32000),
        (json!([1, 99]), -32000),
        (json!([]), -32602),
    ] {
        let (got, message) = node.fail("debug_getModifiedAccountsByNumber", params).await;
        assert_eq!(got, code, "{message}");
    }
}

#[tokio::test]
async fn a_bad_block_is_traced_as_if_it_were_good() {
    struct MockBadBlocks(Arc<RecoveredBlock>);
    impl NodeStatus for MockBadBlocks {
        fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
            vec![self.0.clone()]
        }
    }
    let (_, hashes, mut node) = node_on(mpt());
    let block = node.live().view().unwrap().block(&hashes[0]).unwrap().unwrap();
    node.rpc = node.rpc.clone().with_node(Arc::new(MockBadBlocks(block)));
    let options = json!({ "tracer": "callTracer" });
    assert_eq!(
        node.call("debug_traceBadBlock", json!([hashes[0], options])).await,
        node.call("debug_traceBlockByHash", json!([hashes[0], options])).await
    );
    let (code, message) = node.fail("debug_traceBadBlock", json!([hashes[1]])).await;
    assert!(code == -32000 && message.contains("not found"), "{message}");
}

#[tokio::test]
async fn wrong_arguments_are_told_in_words_that_are_not_the_decoders() {
    let (_, hashes, node) = node_on(mpt());
    let account = TestWallet::new(1).address;
    let at = |block: Value| json!([account, block]);
    for block in [
        json!({ "blockHash": hashes[1], "more": 1 }),
        json!({ "blockNumber": "0x2", "requireCanonical": true }),
        json!({ "blockNumber": null, "blockHash": hashes[1] }),
    ] {
        let balance = node.call("eth_getBalance", at(block.clone())).await;
        assert_eq!(balance, node.call("eth_getBalance", at(json!("0x2"))).await, "{block}");
    }
    for (method, params, words) in [
        ("eth_getBalance", at(json!("0xffffffffffffffff")), "invalid argument 1: block number"),
        ("eth_getBlockByNumber", json!(["0xffffffffffffffff", false]), "invalid argument 0"),
        ("eth_getBalance", at(json!({})), "invalid argument 1: must specify either"),
        ("eth_getBalance", at(json!(5)), "invalid argument 1: invalid type: integer `5`, expected"),
        ("eth_getBlockByNumber", json!(["0x1", "yes"]), "invalid argument 1"),
        ("eth_call", json!([[], "latest"]), "invalid argument 0: it is a list, expected an object"),
        ("eth_call", json!(["call"]), "invalid argument 0: "),
        ("eth_call", json!([{ "to": "0x12" }]), "invalid argument 0: "),
        ("eth_call", json!([{}, "latest", 5]), "invalid argument 2: "),
        ("eth_simulateV1", json!([{}]), "invalid argument 0: missing field `blockStateCalls`"),
        ("eth_simulateV1", json!([5]), "invalid argument 0: "),
        ("eth_feeHistory", json!([{}, "latest"]), "invalid argument 0: "),
        (
            "eth_feeHistory",
            json!([1, "latest", [null]]),
            "invalid argument 2: invalid type: null, expected a number",
        ),
        ("eth_call", json!([{}, "latest", {}, { "coinbase": 5 }]), "expected 20 bytes"),
        ("web3_sha3", json!([[[]]]), "invalid argument 0: "),
        (
            "web3_sha3",
            json!([{}]),
            "invalid argument 0: invalid type: object, expected a variable number of bytes",
        ),
        ("debug_traceCall", json!([{}, "latest", { "tracer": 5 }]), "invalid argument 2: "),
        ("debug_traceTransaction", json!([hashes[0], 5]), "invalid argument 1: "),
        ("debug_getBadBlocks", json!(["file"]), "invalid argument 0: "),
        ("eth_chainId", json!([null]), "too many arguments, want at most 0"),
    ] {
        let (code, message) = node.fail(method, params.clone()).await;
        assert!(code == -32602 && message.contains(words), "{method} {params}: {code} {message}");
        for own in ["column", "struct", "variant", "untagged", "f64", "u8", "sequence"] {
            assert!(!message.contains(own), "{method} {params}: {message}");
        }
    }
    assert_eq!(node.call("debug_getBadBlocks", json!([null])).await, json!([]));
}

/// The test chain with Prague, and with more forks.
fn spec_with(forks: &[(&str, u64)]) -> Arc<ChainSpec> {
    let mut genesis: Value = serde_json::from_str(&TestRules::Prague.genesis_json()).unwrap();
    for (fork, time) in forks {
        genesis["config"][*fork] = (*time).into();
    }
    Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).unwrap())
}

#[tokio::test]
async fn the_last_fork_is_the_furthest_that_is_planned() {
    let node = NodeFixture::new(&spec_with(&[]), raw());
    let config = node.call("eth_config", json!([])).await;
    assert!(config["next"].is_null() && config["last"].is_null(), "{config}");
    let config = node.call("debug_chainConfig", json!([])).await;
    assert!(config["chainId"] == 7331 && config["pragueTime"] == 0, "{config}");

    let node = NodeFixture::new(&spec_with(&[("osakaTime", 1000), ("amsterdamTime", 2000)]), raw());
    let config = node.call("eth_config", json!([])).await;
    assert_eq!(config["current"]["activationTime"], 0);
    assert_eq!(config["next"]["activationTime"], 1000);
    assert_eq!(config["last"]["activationTime"], 2000);
    let node = NodeFixture::new(&spec_with(&[("osakaTime", 1000)]), raw());
    let config = node.call("eth_config", json!([])).await;
    assert!(!config["next"].is_null() && config["next"] == config["last"], "{config}");
}

/// Builds a block at second `time` on the head, with the namespace `testing`.
async fn built(node: &NodeFixture, time: u64, transactions: Value) -> Value {
    let head = node.live().head();
    let attributes = json!({
        "timestamp": format!("{time:#x}"),
        "prevRandao": B256::ZERO,
        "suggestedFeeRecipient": Address::repeat_byte(0xfe),
        "withdrawals": [],
        "parentBeaconBlockRoot": B256::repeat_byte(1),
        "slotNumber": "0x7",
    });
    let methods = build_methods(&node.rpc, &[ApiNamespace::Testing]);
    let params = json!([head.hash(), attributes, transactions, "0x7265"]);
    let request = common::request("testing_buildBlockV1", params);
    let (answer, _) = methods.raw_json_request(&request.to_string(), 1).await.unwrap();
    serde_json::from_str(answer.get()).unwrap()
}

#[tokio::test]
async fn blocks_are_built_as_a_test_wants_them() {
    let node = NodeFixture::new(&test_chain(TestRules::Prague).spec, mpt());
    let head = node.live().head();
    let (first, second) = (signed_transfer(1, 0), signed_transfer(1, 1));
    let answer = built(&node, 12, json!([first, second])).await;
    let payload = &answer["result"]["executionPayload"];
    assert_eq!(payload["transactions"], json!([first, second]), "{answer}");
    assert_eq!(payload["extraData"], "0x7265");
    assert_eq!(payload["parentHash"], json!(head.hash()));
    assert_eq!(answer["result"]["executionRequests"], json!([]));
    assert_ne!(answer["result"]["blockValue"], "0x0");
    // Transactions in the wrong order, an invalid one, a block in the past.
    let answer = built(&node, 12, json!([second, first])).await;
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
    assert_eq!(built(&node, 12, json!(["0x1234"])).await["error"]["code"], -32602);
    assert_eq!(built(&node, 0, json!([])).await["error"]["code"], -32602);
    let empty = built(&node, 12, json!([])).await;
    assert_eq!(empty["result"]["executionPayload"]["transactions"], json!([]));
    // The chain is unchanged, and the namespace is served only if it is named.
    assert_eq!(node.live().head(), head);
    assert_eq!(node.fail("testing_buildBlockV1", json!([])).await.0, -32601);

    let shadow = NodeFixture::new(&test_chain(TestRules::Prague).spec, raw());
    let answer = built(&shadow, 12, json!([])).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("no referee"), "{answer}");
}

#[tokio::test]
async fn a_node_says_what_holds_the_writes_of_blocks() {
    for (rules, backend, mode, checked_by) in [
        (TestRules::Prague, mpt(), "header", "stateRoot"),
        (TestRules::Amsterdam, mpt(), "header", "stateRoot"),
        (TestRules::Prague, raw(), "shadow", "nothing"),
        (TestRules::Amsterdam, raw(), "shadow", "blockAccessList"),
    ] {
        let node = NodeFixture::new(&test_chain(rules).spec, backend);
        let answer = node.call("state_backend", json!([])).await;
        assert_eq!(answer["stateRoot"], mode);
        assert_eq!(answer["writesCheckedBy"], checked_by, "{rules:?}: {answer}");
    }
}

#[tokio::test]
async fn accesses_of_a_block_are_shown_from_amsterdam_on() {
    let mut node = NodeFixture::new(&test_chain(TestRules::Amsterdam).spec, mpt());
    // To an existing account: creating one takes more gas from Amsterdam on (EIP-8037).
    let payment = TestCall::transfer(1, TestWallet::new(2).address, 1000);
    let payment = signed(&TestWallet::new(1), &payment, 0, Some(1_000_000_000));
    let answer = built(&node, 12, json!([Bytes::from(payment.encoded_2718())])).await;
    let envelope: ExecutionPayloadEnvelopeV6 =
        serde_json::from_value(answer["result"].clone()).unwrap_or_else(|_| panic!("{answer}"));
    let payload = envelope.execution_payload;
    let hash: B256 =
        serde_json::from_value(answer["result"]["executionPayload"]["blockHash"].clone()).unwrap();
    let payloads =
        PayloadBuilder::new(node.live().clone(), node.pool.clone(), BuilderConfig::default());
    let api = EngineApi::new(node.engine.handle().clone(), payloads, node.pool.clone());
    let status = api.new_payload_v5(payload, vec![], B256::repeat_byte(1), vec![]).await.unwrap();
    assert_eq!(status.status, PayloadStatusEnum::Valid);
    let state = ForkchoiceState { head_block_hash: hash, ..Default::default() };
    node.engine.handle().forkchoice(state).await.unwrap();
    node.maintainer.wait_for(hash).await;

    let raw = node.call("debug_getRawBlockAccessList", json!(["latest"])).await;
    let header = node.call("eth_getHeaderByNumber", json!(["latest"])).await;
    let digest = keccak256(hex::decode(raw.as_str().unwrap()).unwrap());
    assert_eq!(header["blockAccessListHash"], json!(digest));
    let list = node.call("eth_getBlockAccessList", json!([hash])).await;
    let list = list.as_array().unwrap();
    let receiver = TestWallet::new(2).address;
    let balance = node.call("eth_getBalance", json!([receiver, "latest"])).await;
    let receiver = receiver.to_string().to_lowercase();
    let received = list.iter().find(|one| one["address"] == json!(receiver)).unwrap();
    assert_eq!(received["balanceChanges"], json!([{ "index": "0x1", "value": balance }]));
    let sender = TestWallet::new(1).address.to_string().to_lowercase();
    let sent = list.iter().find(|one| one["address"] == json!(sender)).unwrap();
    assert_eq!(sent["nonceChanges"], json!([{ "index": "0x1", "value": "0x1" }]));
    // The beacon root is written before the transactions.
    let written = list.iter().flat_map(|one| one["storageChanges"].as_array().unwrap());
    let written: Vec<_> = written.collect();
    assert!(written.iter().all(|slot| slot["key"].as_str().unwrap().len() == 66), "{written:?}");
    let root = json!([{ "index": "0x0", "value": B256::repeat_byte(1) }]);
    assert!(written.iter().any(|slot| slot["changes"] == root), "{written:?}");

    assert_eq!(node.call("eth_getBlockAccessList", json!(["0x0"])).await, Value::Null);
    assert_eq!(node.call("eth_getBlockAccessList", json!(["0x99"])).await, Value::Null);
}
