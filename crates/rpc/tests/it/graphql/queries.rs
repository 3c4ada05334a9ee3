//! What queries answer: the same as JSON-RPC, field by field.

use super::http::{post_query, serve};
use crate::common::{NodeFixture, mpt, signed_transfer, test_chain};
use alloy_primitives::{Address, B256, keccak256};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, write_blocks,
};
use retrie_rpc::server::{ConnectionLimits, GraphqlConfig, RunningServers};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A node with GraphQL.
struct GraphqlNode {
    node: NodeFixture,
    _servers: RunningServers,
    addr: SocketAddr,
}

impl GraphqlNode {
    /// A node with the blocks up to `tip`.
    async fn on(chain: &TestChain, tip: B256) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chain.rlp");
        write_blocks(&file, &chain.path(chain.genesis(), tip));
        Self::of(NodeFixture::with_file(&chain.spec, mpt(), Some(&file))).await
    }

    async fn of(node: NodeFixture) -> Self {
        let (servers, addr) =
            serve(&node, GraphqlConfig::default(), ConnectionLimits::default()).await;
        Self { node, _servers: servers, addr }
    }

    /// The data of an answer without errors.
    async fn data(&self, query: &str) -> Value {
        let answer = post_query(self.addr, query, json!(null)).await;
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        answer.json()["data"].clone()
    }

    /// An answer with one error: its data and the error.
    async fn failure(&self, query: &str) -> (Value, Value) {
        let answer = post_query(self.addr, query, json!(null)).await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        let answer = answer.json();
        assert_eq!(answer["errors"].as_array().unwrap().len(), 1, "{query}: {answer}");
        (answer["data"].clone(), answer["errors"][0].clone())
    }
}

/// Asserts that each field of `shown` that `names` pairs with one of JSON-RPC has its value.
fn assert_same(shown: &Value, known: &Value, names: &[(&str, &str)]) {
    for (name, of_rpc) in names {
        assert_eq!(shown[name], known[of_rpc], "{name}: {shown}\n{known}");
    }
}

#[tokio::test]
async fn blocks_and_transactions_are_those_of_json_rpc() {
    for rules in [TestRules::Byzantium, TestRules::Cancun, TestRules::Prague] {
        let mut chain = test_chain(rules);
        let hashes = chain.branch(chain.genesis(), 4, 12, 1);
        let graph = GraphqlNode::on(&chain, hashes[3]).await;
        let shown = graph
            .data(
                "{ blocks(from: 1) { number hash parent { hash } nonce transactionsRoot \
                 transactionCount stateRoot receiptsRoot miner { address } extraData gasLimit \
                 gasUsed baseFeePerGas timestamp logsBloom mixHash difficulty ommerCount ommerHash \
                 withdrawalsRoot blobGasUsed excessBlobGas rawHeader raw \
                 transactions { hash nonce index from { address } to { address } value gasPrice \
                 maxFeePerGas maxPriorityFeePerGas gas inputData block { hash } status gasUsed \
                 cumulativeGasUsed effectiveGasPrice createdContract { address } r s v yParity type \
                 raw rawReceipt logs { index topics data account { address } transaction { hash } } \
                 } } }",
            )
            .await;
        let shown = shown["blocks"].as_array().unwrap();
        assert_eq!(shown.len(), 4);
        for (block, hash) in shown.iter().zip(&hashes) {
            let known = graph.node.call("eth_getBlockByHash", json!([hash, true])).await;
            let same = "number hash nonce transactionsRoot stateRoot receiptsRoot extraData gasLimit \
                gasUsed baseFeePerGas timestamp logsBloom mixHash difficulty withdrawalsRoot \
                blobGasUsed excessBlobGas";
            let same: Vec<_> = same.split_whitespace().map(|name| (name, name)).collect();
            // Fields of later forks are missing there and null here.
            assert_same(block, &known, &same);
            assert_same(block, &known, &[("ommerHash", "sha3Uncles")]);
            assert_eq!(block["parent"]["hash"], known["parentHash"]);
            assert_eq!(block["miner"]["address"], known["miner"]);
            assert_eq!(block["ommerCount"], "0x0");
            for (name, method) in
                [("raw", "debug_getRawBlock"), ("rawHeader", "debug_getRawHeader")]
            {
                assert_eq!(block[name], graph.node.call(method, json!([hash])).await);
            }
            let raw_receipts = graph.node.call("debug_getRawReceipts", json!([hash])).await;
            let transactions = block["transactions"].as_array().unwrap();
            assert_eq!(block["transactionCount"], json!(format!("{:#x}", transactions.len())));
            for (index, transaction) in transactions.iter().enumerate() {
                let known = &known["transactions"][index];
                let same = [
                    ("hash", "hash"),
                    ("nonce", "nonce"),
                    ("index", "transactionIndex"),
                    ("value", "value"),
                    ("gasPrice", "gasPrice"),
                    ("maxFeePerGas", "maxFeePerGas"),
                    ("maxPriorityFeePerGas", "maxPriorityFeePerGas"),
                    ("gas", "gas"),
                    ("inputData", "input"),
                    ("r", "r"),
                    ("s", "s"),
                    ("v", "v"),
                    ("yParity", "yParity"),
                    ("type", "type"),
                ];
                assert_same(transaction, known, &same);
                assert_eq!(transaction["from"]["address"], known["from"]);
                assert_eq!(transaction["to"]["address"], known["to"]);
                assert_eq!(transaction["block"]["hash"], json!(hash));
                let params = json!([transaction["hash"]]);
                let raw = graph.node.call("debug_getRawTransaction", params.clone()).await;
                assert_eq!(transaction["raw"], raw);
                assert_eq!(transaction["rawReceipt"], raw_receipts[index]);
                let receipt = graph.node.call("eth_getTransactionReceipt", params).await;
                let same = ["status", "gasUsed", "cumulativeGasUsed", "effectiveGasPrice"];
                assert_same(transaction, &receipt, &same.map(|name| (name, name)));
                let created = &transaction["createdContract"]["address"];
                assert_eq!(created, &receipt["contractAddress"]);
                let logs = transaction["logs"].as_array().unwrap();
                assert_eq!(logs.len(), receipt["logs"].as_array().unwrap().len());
                for (log, known) in logs.iter().zip(receipt["logs"].as_array().unwrap()) {
                    let same = [("index", "logIndex"), ("topics", "topics"), ("data", "data")];
                    assert_same(log, known, &same);
                    assert_eq!(log["account"]["address"], known["address"]);
                    assert_eq!(log["transaction"]["hash"], known["transactionHash"]);
                }
            }
        }
    }
}

#[tokio::test]
async fn accounts_are_those_of_the_block_that_is_named() {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), 4, 12, 1);
    let graph = GraphqlNode::on(&chain, hashes[3]).await;
    let wallet = TestWallet::new(0).address;
    let slot = B256::with_last_byte(2);
    let fields =
        "balance transactionCount code storage(slot: \"SLOT\")".replace("SLOT", &slot.to_string());
    for number in [0, 2, 4] {
        for address in [wallet, GENESIS_CONTRACT, Address::repeat_byte(0x99)] {
            let query = format!(
                "{{ block(number: {number}) {{ account(address: \"{address}\") {{ {fields} }} }} }}"
            );
            let shown = graph.data(&query).await["block"]["account"].clone();
            let at = json!([address, format!("{number:#x}")]);
            for (name, method) in [
                ("balance", "eth_getBalance"),
                ("transactionCount", "eth_getTransactionCount"),
                ("code", "eth_getCode"),
            ] {
                assert_eq!(shown[name], graph.node.call(method, at.clone()).await, "{name}");
            }
            let params = json!([address, slot, format!("{number:#x}")]);
            assert_eq!(shown["storage"], graph.node.call("eth_getStorageAt", params).await);
        }
    }
    // Without a block an account of a transaction is the head's.
    let of_sender = |arg: &str| {
        format!(
            "{{ block(number: 1) {{ transactionAt(index: 0) {{ from{arg} {{ transactionCount }} }} }} }}"
        )
    };
    for (arg, count) in [("", "0x4"), ("(block: 2)", "0x2"), ("(block: \"0x1\")", "0x1")] {
        let shown = graph.data(&of_sender(arg)).await;
        let from = &shown["block"]["transactionAt"]["from"];
        assert_eq!(from["transactionCount"], count, "{arg}");
    }
}

#[tokio::test]
async fn calls_estimates_logs_and_prices_are_those_of_json_rpc() {
    let mut chain = test_chain(TestRules::Prague);
    let hashes = chain.branch(chain.genesis(), 4, 12, 1);
    let graph = GraphqlNode::on(&chain, hashes[3]).await;
    let wallet = TestWallet::new(1).address;
    let words = "00".repeat(31) + "01" + &"00".repeat(31) + "05";
    let data = format!(
        "{{ from: \"{wallet}\", to: \"{GENESIS_CONTRACT}\", data: \"0x{words}\", value: 0 }}"
    );
    let query = format!(
        "{{ block {{ call(data: {data}) {{ data gasUsed status }} estimateGas(data: {data}) }} \
         pending {{ call(data: {data}) {{ status }} estimateGas(data: {data}) }} \
         gasPrice maxPriorityFeePerGas chainID syncing {{ currentBlock }} }}"
    );
    let shown = graph.data(&query).await;
    let call = &shown["block"]["call"];
    assert_eq!((&call["data"], &call["status"]), (&json!("0x"), &json!("0x1")));
    // The estimate is the least gas, that of JSON-RPC at most 1.5 % more.
    let number = |value: &Value| u64::from_str_radix(&value.as_str().unwrap()[2..], 16).unwrap();
    let request = json!({ "from": wallet, "to": GENESIS_CONTRACT, "input": format!("0x{words}") });
    let estimate = number(&graph.node.call("eth_estimateGas", json!([request])).await);
    let least = number(&shown["block"]["estimateGas"]);
    assert!((least..=least + least / 50).contains(&estimate), "{least} {estimate}");
    assert!(number(&call["gasUsed"]) <= least);
    assert_eq!(shown["pending"]["estimateGas"], shown["block"]["estimateGas"]);
    for (name, method) in [
        ("gasPrice", "eth_gasPrice"),
        ("maxPriorityFeePerGas", "eth_maxPriorityFeePerGas"),
        ("chainID", "eth_chainId"),
    ] {
        assert_eq!(shown[name], graph.node.call(method, json!([])).await, "{name}");
    }
    assert_eq!(shown["syncing"], Value::Null);

    // A call that fails has a status; one that cannot be executed is an error.
    let broke = format!("{{ from: \"{}\", value: \"0x1\" }}", Address::repeat_byte(0x99));
    let query = format!("{{ block {{ call(data: {broke}) {{ status }} }} }}");
    let (_, error) = graph.failure(&query).await;
    assert!(error["message"].as_str().unwrap().contains("insufficient funds"), "{error}");
    let invalid = "{ data: \"0xfe\" }";
    let query = format!("{{ block {{ call(data: {invalid}) {{ data status }} }} }}");
    let shown = graph.data(&query).await;
    assert_eq!(shown["block"]["call"], json!({ "data": "0x", "status": "0x0" }));

    let topic = B256::with_last_byte(2);
    for (filter, params) in [
        ("fromBlock: 0".to_owned(), json!({ "fromBlock": "0x0" })),
        (
            format!("fromBlock: 1, toBlock: \"0x3\", topics: [[\"{topic}\"]]"),
            json!({ "fromBlock": "0x1", "toBlock": "0x3", "topics": [[topic]] }),
        ),
        (
            format!("fromBlock: 0, addresses: [\"{GENESIS_CONTRACT}\"], topics: [[]]"),
            json!({ "fromBlock": "0x0", "address": [GENESIS_CONTRACT], "topics": [[]] }),
        ),
    ] {
        let known = graph.node.call("eth_getLogs", json!([params])).await;
        let query = format!(
            "{{ logs(filter: {{ {filter} }}) {{ index data transaction {{ hash block {{ number }} }} }} }}"
        );
        let shown = graph.data(&query).await;
        let (shown, known) = (shown["logs"].as_array().unwrap(), known.as_array().unwrap());
        assert!(!known.is_empty() && shown.len() == known.len(), "{filter}");
        for (log, known) in shown.iter().zip(known) {
            assert_same(log, known, &[("index", "logIndex"), ("data", "data")]);
            assert_eq!(log["transaction"]["hash"], known["transactionHash"]);
            assert_eq!(log["transaction"]["block"]["number"], known["blockNumber"]);
        }
    }
    let of_block = graph.data("{ block(number: 1) { logs(filter: {}) { index } } }").await;
    let params = json!([{ "blockHash": hashes[0] }]);
    let known = graph.node.call("eth_getLogs", params).await;
    let logs = |value: &Value| value.as_array().unwrap().len();
    assert_eq!(logs(&of_block["block"]["logs"]), logs(&known));
}

#[tokio::test]
async fn transactions_are_received_and_wait_in_the_pool() {
    let chain = test_chain(TestRules::Prague);
    let graph = GraphqlNode::of(NodeFixture::new(&chain.spec, mpt())).await;
    let raw = signed_transfer(1, 0);
    let send = format!("mutation {{ sendRawTransaction(data: \"{raw}\") }}");
    let hash = keccak256(&raw);
    assert_eq!(graph.data(&send).await, json!({ "sendRawTransaction": hash }));
    let (data, error) = graph.failure(&send).await;
    assert_eq!(data, Value::Null);
    assert_eq!(error["extensions"]["errorCode"], -32000, "{error}");
    assert!(error["message"].as_str().unwrap().ends_with("already known"), "{error}");
    let (_, error) = graph.failure("mutation { sendRawTransaction(data: \"0x01\") }").await;
    assert_eq!(error["extensions"]["errorMessage"], "Invalid params");
    let reason = error["extensions"]["reason"].as_str().unwrap();
    assert!(reason.contains("could not be decoded"), "{error}");

    let wallet = TestWallet::new(1).address;
    let query = format!(
        "{{ transaction(hash: \"{hash}\") {{ nonce index block {{ hash }} status logs {{ index }} \
         effectiveTip rawReceipt raw from {{ address }} }} \
         pending {{ transactionCount transactions {{ hash }} \
         account(address: \"{wallet}\") {{ transactionCount }} }} \
         block {{ account(address: \"{wallet}\") {{ transactionCount }} }} }}"
    );
    let shown = graph.data(&query).await;
    let expected = json!({
        "nonce": "0x0", "index": null, "block": null, "status": null, "logs": null,
        "effectiveTip": null, "rawReceipt": "0x", "raw": raw,
        "from": { "address": format!("{wallet:#x}") },
    });
    assert_eq!(shown["transaction"], expected);
    let expected = json!({
        "transactionCount": "0x1",
        "transactions": [{ "hash": hash }],
        "account": { "transactionCount": "0x1" },
    });
    assert_eq!(shown["pending"], expected);
    assert_eq!(shown["block"]["account"]["transactionCount"], "0x0");
}

#[tokio::test]
async fn what_is_not_there_is_null_or_an_error_and_all_else_is_answered() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let ommer = chain.extend(genesis, BlockPlan::new([]).paid_to(Address::repeat_byte(7)));
    let first = chain.extend(genesis, BlockPlan::new([]));
    let header = chain.block(ommer).header.clone();
    let transfer = TestCall::transfer(1, Address::repeat_byte(1), 1);
    let second = chain.extend(first, BlockPlan::new([transfer]).with_ommers([header]));
    let graph = GraphqlNode::on(&chain, second).await;
    let shown = graph
        .data(
            "{ block { ommerCount ommers { hash transactionCount transactions { hash } ommerCount \
             parent { number } } ommerAt(index: 1) { hash } transactionAt(index: 9) { hash } \
             withdrawals { index } baseFeePerGas nextBaseFeePerGas totalDifficulty } \
             genesis: block(number: 0) { parent { hash } } }",
        )
        .await;
    let block = &shown["block"];
    assert_eq!(block["ommerCount"], "0x1");
    let of_ommer = json!({
        "hash": ommer, "transactionCount": null, "transactions": null, "ommerCount": null,
        "parent": { "number": "0x0" },
    });
    assert_eq!(block["ommers"], json!([of_ommer]));
    for name in ["ommerAt", "transactionAt", "withdrawals", "baseFeePerGas", "nextBaseFeePerGas"] {
        assert_eq!(block[name], Value::Null, "{name}");
    }
    let difficulty = format!("{:#x}", chain.total_difficulty(second));
    assert_eq!(block["totalDifficulty"], json!(difficulty));
    assert_eq!(shown["genesis"]["parent"], Value::Null);

    let account = "account(address: \"0x0000000000000000000000000000000000000001\") { balance }";
    let query = format!("{{ block {{ number ommers {{ number {account} }} }} }}");
    let (data, error) = graph.failure(&query).await;
    assert_eq!(error["path"], json!(["block", "ommers", 0, "account", "balance"]), "{error}");
    assert_eq!(data["block"]["number"], "0x2");
    assert_eq!(data["block"]["ommers"], json!([{ "number": "0x1", "account": null }]));

    let unknown = B256::repeat_byte(1);
    for (query, words) in [
        ("{ block(number: 3) { number } }".to_owned(), "block 3 was not found"),
        (format!("{{ block(hash: \"{unknown}\") {{ number }} }}"), "was not found"),
        (format!("{{ block(number: 1, hash: \"{first}\") {{ number }} }}"), "only one of"),
        ("{ blocks { number } }".into(), "must be specified"),
        ("{ blocks(from: 2, to: 1) { number } }".into(), "is after"),
        ("{ logs(filter: { fromBlock: 2, toBlock: 1 }) { index } }".into(), "range"),
        ("{ logs(filter: { topics: [[], [], [], [], []] }) { index } }".into(), "max topics"),
    ] {
        let (data, error) = graph.failure(&query).await;
        assert_eq!(error["extensions"]["errorCode"], -32602, "{query}: {error}");
        assert_eq!(error["extensions"]["classification"], "DataFetchingException");
        let reason = error["extensions"]["reason"].as_str().unwrap();
        assert!(reason.contains(words) && data.is_null(), "{query}: {error}");
    }
    let query = format!("{{ transaction(hash: \"{unknown}\") {{ nonce }} }}");
    assert_eq!(graph.data(&query).await, json!({ "transaction": null }));
    assert_eq!(
        graph.data("{ blocks(from: 1, to: 99) { number } }").await["blocks"][1],
        json!({ "number": "0x2" })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dev_chain_answers_once_the_transaction_is_sealed() {
    let node = NodeFixture::dev(mpt());
    let [from, to] = [0, 1].map(|index| retrie_chainspec::DEV_ACCOUNTS[index]);
    let request = json!({ "from": from, "to": to, "value": "0x1", "gas": "0x5208" });
    let signed = node.call("eth_signTransaction", json!([request])).await;
    let raw = signed["raw"].as_str().or(signed.as_str()).unwrap().to_owned();
    let graph = GraphqlNode::of(node).await;
    let sent = graph.data(&format!("mutation {{ sendRawTransaction(data: \"{raw}\") }}")).await;
    let hash = sent["sendRawTransaction"].as_str().unwrap();
    let query = format!("{{ transaction(hash: \"{hash}\") {{ block {{ number }} status }} }}");
    let shown = graph.data(&query).await;
    assert_eq!(shown["transaction"], json!({ "block": { "number": "0x1" }, "status": "0x1" }));
}
