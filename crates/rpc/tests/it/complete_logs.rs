//! `state_getLogs`: it answers what `eth_getLogs` does, and shows that nothing is missing.

use crate::common::{NodeFixture, mpt, test_chain};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_rlp::Header;
use alloy_rpc_types_eth::Filter;
use retrie_light_client::{CompleteLogs, LightClientError, LogsResponse, verify_logs};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, WALLETS, write_blocks,
};
use retrie_rpc::{RequestLimits, RpcContext};
use serde_json::{Value, json};

fn topic(slot: u64) -> B256 {
    U256::from(slot).into()
}

/// Blocks with and without logs; the fourth one has more receipts than a byte of RLP can count. Their
/// hashes, from genesis on.
fn grow(chain: &mut TestChain) -> Vec<B256> {
    let store = |from, slot| TestCall::store(from, GENESIS_CONTRACT, slot, 7 + slot);
    let transfer =
        |n| TestCall::transfer((n % u64::from(WALLETS)) as u8, Address::repeat_byte(5), n);
    let many = (0..130).map(transfer).chain([store(3, 3)]).collect::<Vec<_>>();
    let plans = [
        vec![store(1, 3)],
        vec![],
        vec![store(1, 20), store(2, 3)],
        many,
        vec![transfer(5)],
        vec![store(1, 21)],
    ];
    let mut hashes = vec![chain.genesis()];
    for calls in plans {
        hashes.push(chain.extend(hashes[hashes.len() - 1], BlockPlan::new(calls)));
    }
    hashes
}

/// A node that has imported these blocks.
fn node_at(chain: &TestChain, blocks: &[B256]) -> NodeFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(blocks[0], blocks[blocks.len() - 1]));
    NodeFixture::with_file(&chain.spec, mpt(), Some(&file))
}

/// What a verifier is asked: an answer, its filter, and the trusted hash.
async fn question(node: &NodeFixture, filter: Value, hash: B256) -> Value {
    let answer = node.call("state_getLogs", json!([filter])).await;
    let logs = node.call("eth_getLogs", json!([filter])).await;
    assert_eq!(answer["logs"], logs, "{filter}");
    json!({ "filter": filter, "answer": answer, "hash": hash })
}

fn verify(question: &Value) -> Result<CompleteLogs, LightClientError> {
    let read = |name: &str| question[name].clone();
    let filter: Filter = serde_json::from_value(read("filter")).unwrap();
    let answer: LogsResponse = serde_json::from_value(read("answer")).unwrap();
    verify_logs(&answer, &filter, serde_json::from_value(read("hash")).unwrap())
}

/// What a verifier shows: the logs as they are stated, but for what it cannot show.
fn shown(verified: &CompleteLogs) -> Value {
    let quantity = |number: u64| json!(U64::from(number));
    let log = |one: &retrie_light_client::VerifiedLog| {
        json!({
            "address": one.log.address,
            "topics": one.log.topics(),
            "data": one.log.data.data,
            "blockNumber": quantity(one.block.number),
            "blockHash": one.block.hash,
            "blockTimestamp": quantity(one.timestamp),
            "transactionIndex": quantity(one.transaction_index),
            "logIndex": quantity(one.log_index),
        })
    };
    let blocks = [verified.blocks.start(), verified.blocks.end()].map(|number| quantity(*number));
    let logs: Vec<_> = verified.logs.iter().map(log).collect();
    json!({ "blocks": blocks, "parent": verified.parent, "logs": logs })
}

/// The items of a list of receipts but for the first one.
fn without_first(receipts: &Bytes) -> Bytes {
    let mut rest = &receipts[..];
    let mut items = Header::decode_bytes(&mut rest, true).unwrap();
    Header::decode_bytes(&mut items, true).unwrap();
    let mut left = Vec::new();
    Header { list: true, payload_length: items.len() }.encode(&mut left);
    left.extend_from_slice(items);
    left.into()
}

/// What is wrong, members of the answer that are replaced, the class of the error.
fn forged_answers(answer: &Value, foreign: &Value) -> Vec<(&'static str, Value, &'static str)> {
    let mut forged = Vec::new();
    let mut logs = |what, change: &dyn Fn(&mut Vec<Value>)| {
        let mut logs = answer["logs"].as_array().unwrap().clone();
        change(&mut logs);
        forged.push((what, json!({ "logs": logs }), "claim"));
    };
    logs("a log left out", &|logs| drop(logs.remove(1)));
    logs("the last log left out", &|logs| drop(logs.pop()));
    logs("a log twice", &|logs| logs.push(logs[2].clone()));
    logs("another topic", &|logs| logs[0]["topics"][0] = json!(topic(4)));
    logs("other data", &|logs| logs[0]["data"] = json!("0x00"));
    logs("another index of a log", &|logs| logs[1]["logIndex"] = json!("0x0"));
    logs("another transaction", &|logs| logs[1]["transactionIndex"] = json!("0x0"));
    logs("another time", &|logs| logs[1]["blockTimestamp"] = json!("0x0"));
    logs("a removed log", &|logs| logs[1]["removed"] = json!(true));
    let mut blocks = |what, change: &dyn Fn(&mut Vec<Value>), class| {
        let mut blocks = answer["blocks"].as_array().unwrap().clone();
        change(&mut blocks);
        forged.push((what, json!({ "blocks": blocks }), class));
    };
    let receipts = |block: &mut Value, change: &dyn Fn(Bytes) -> Bytes| {
        let before = serde_json::from_value(block["receipts"].take()).unwrap();
        block["receipts"] = json!(change(before));
    };
    let other_topic = |bytes: Bytes| -> Bytes {
        let mut bytes = bytes.to_vec();
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        bytes.into()
    };
    let cut = |bytes: Bytes| bytes.slice(..bytes.len() - 1);
    blocks("a receipt changed", &|all| receipts(&mut all[2], &other_topic), "root");
    blocks(
        "a receipt left out",
        &|all| receipts(&mut all[2], &|bytes| without_first(&bytes)),
        "root",
    );
    blocks("no receipt", &|all| all[2]["receipts"] = json!("0xc0"), "root");
    blocks(
        "receipts of another block",
        &|all| all[2]["receipts"] = all[0]["receipts"].clone(),
        "root",
    );
    blocks("receipts cut short", &|all| receipts(&mut all[2], &cut), "malformed");
    blocks("receipts that are none", &|all| all[2]["receipts"] = json!("0xc101"), "malformed");
    blocks("receipts of no block", &|all| all[2]["receipts"] = Value::Null, "missing");
    blocks("receipts too many", &|all| all[1]["receipts"] = json!("0xc0"), "unused");
    blocks("a block left out", &|all| drop(all.remove(3)), "header");
    blocks("a block without logs left out", &|all| drop(all.remove(1)), "header");
    blocks("the first block left out", &|all| drop(all.remove(0)), "block");
    blocks("the last block left out", &|all| drop(all.pop()), "header");
    blocks("two blocks swapped", &|all| all.swap(1, 2), "header");
    blocks("a block twice", &|all| all.insert(1, all[1].clone()), "header");
    blocks("a foreign header", &|all| all[2]["header"] = foreign.clone(), "header");
    blocks("no header", &|all| all[5]["header"] = json!("0x"), "header");
    blocks("no block", &|all| all.clear(), "header");
    forged.push(("another version", json!({ "version": 2 }), "kind"));
    forged
}

/// What is wrong, members of the question that are replaced, the class of the error.
fn other_questions(filter: &Value, blocks: &[B256]) -> Vec<(&'static str, Value, &'static str)> {
    let with = |member: &str, value: Value| {
        let mut filter = filter.clone();
        filter[member] = value;
        json!({ "filter": filter })
    };
    let named = json!({ "filter": { "blockHash": blocks[6] } });
    vec![
        ("a filter of another topic", with("topics", json!([topic(20)])), "unused"),
        ("a filter of another address", with("address", json!(Address::repeat_byte(9))), "unused"),
        ("a filter of a second topic", with("topics", json!([null, topic(3)])), "claim"),
        ("a filter of more topics", with("topics", json!([[topic(3), topic(21)]])), "missing"),
        ("a filter from an earlier block on", with("fromBlock", json!("0x0")), "block"),
        ("a filter from a later block on", with("fromBlock", json!("0x2")), "block"),
        ("a filter up to a later block", with("toBlock", json!("0x7")), "block"),
        (
            "a filter from a block that only the node knows",
            with("fromBlock", json!("earliest")),
            "block",
        ),
        ("a filter of one block", named, "block"),
        ("another trusted block", json!({ "hash": blocks[5] }), "header"),
    ]
}

/// The golden vectors of logs, which the verifier in TypeScript runs too.
#[tokio::test]
async fn the_vectors_of_logs_are_what_nodes_answer() {
    let mut chain = test_chain(TestRules::Prague);
    let blocks = grow(&mut chain);
    let node = node_at(&chain, &blocks);
    let mut old_chain = test_chain(TestRules::Frontier);
    let mut old_blocks = vec![old_chain.genesis()];
    old_blocks.extend(old_chain.branch(old_blocks[0], 5, 12, 3));
    let old_node = node_at(&old_chain, &old_blocks);

    let nobody = Address::repeat_byte(0x77);
    let one_topic = json!({
        "fromBlock": "0x1", "toBlock": "0x6", "address": GENESIS_CONTRACT, "topics": [topic(3)],
    });
    let several = json!({
        "fromBlock": "0x1", "address": [nobody, GENESIS_CONTRACT],
        "topics": [[topic(20), topic(21), topic(1)], null],
    });
    let head = blocks[6];
    let mut cases = Vec::new();
    for (name, node, filter, hash, count) in [
        ("one topic", &node, one_topic.clone(), head, 3),
        ("several topics and addresses", &node, several, head, 2),
        ("all logs", &node, json!({ "fromBlock": "0x0", "toBlock": "latest" }), head, 5),
        ("no log", &node, json!({ "fromBlock": "0x0", "topics": [topic(999)] }), head, 0),
        (
            "no log where blooms match",
            &node,
            json!({ "fromBlock": "0x2", "topics": [null, topic(3)] }),
            head,
            0,
        ),
        ("the last block", &node, json!({ "address": GENESIS_CONTRACT }), head, 1),
        ("a block by its hash", &node, json!({ "blockHash": blocks[3] }), blocks[3], 2),
        (
            "before Byzantium",
            &old_node,
            json!({ "fromBlock": "0x1", "toBlock": "0x5" }),
            old_blocks[5],
            10,
        ),
    ] {
        let question = question(node, filter, hash).await;
        let verified = verify(&question).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verified.logs.len(), count, "{name}");
        let expect = shown(&verified);
        cases.push(json!({ "name": name, "question": question, "expect": expect }));
    }
    let base = cases[0]["question"].clone();
    let receipts = base["answer"]["blocks"].as_array().unwrap().iter();
    let receipts: Vec<_> = receipts.map(|block| block["receipts"].is_string()).collect();
    assert_eq!(receipts, [true, false, true, true, false, false]);

    let side = chain.extend(blocks[2], BlockPlan::new([]));
    let foreign = json!(Bytes::from(alloy_rlp::encode(&chain.block(side).header)));
    let forged = forged_answers(&base["answer"], &foreign).into_iter();
    let forged = forged.map(|(what, with, class)| (what, "with", with, class));
    let asked = other_questions(&one_topic, &blocks).into_iter();
    for (what, place, members, class) in
        forged.chain(asked.map(|(what, ask, class)| (what, "ask", ask, class)))
    {
        let mut question = base.clone();
        let object = if place == "with" { &mut question["answer"] } else { &mut question };
        object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let error = verify(&question).expect_err(what);
        assert_eq!(error.class(), class, "{what}: {error}");
        let expect = json!({ "error": class });
        cases.push(json!({ "name": what, "of": "one topic", place: members, "expect": expect }));
    }

    let about = "Complete logs, and what a verifier makes of them: docs/formats/proofs.md.";
    let text = serde_json::to_string_pretty(&json!({ "about": about, "cases": cases })).unwrap();
    let text = text + "\n";
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../light-client/vectors/logs/logs.json");
    if std::env::var_os("RETRIE_WRITE_VECTORS").is_some() {
        std::fs::create_dir_all(std::path::Path::new(file).parent().unwrap()).unwrap();
        std::fs::write(file, &text).unwrap();
    }
    let stored = std::fs::read_to_string(file).unwrap();
    assert!(stored == text, "{file} differs: write it again with RETRIE_WRITE_VECTORS=1");
}

#[tokio::test]
async fn complete_logs_have_the_limits_of_searches() {
    let mut chain = test_chain(TestRules::Prague);
    let blocks = grow(&mut chain);
    let mut node = node_at(&chain, &blocks);
    let limits = RequestLimits {
        max_blocks_per_filter: 5,
        max_logs_per_response: 1,
        max_response_size: 3000,
        ..RequestLimits::default()
    };
    node.rpc = RpcContext::clone(&node.rpc).with_limits(limits);
    let range =
        |from: u64, to: u64| json!({ "fromBlock": U64::from(from), "toBlock": U64::from(to) });
    let addresses: Vec<_> = (0..1001u64).map(|n| Address::from_word(topic(n))).collect();
    for (filter, code, words) in [
        (range(1, 6), -32602, "query exceeds max block range 5"),
        (range(1, 3), -32602, "query exceeds max results 1"),
        (range(4, 6), -32602, "query exceeds max response size 3000"),
        (range(3, 2), -32602, "invalid block range"),
        (range(6, 7), -32602, "beyond current head"),
        (json!({ "blockHash": B256::repeat_byte(1) }), -32000, "unknown block"),
        (json!({ "address": addresses }), -32000, "exceed max addresses"),
    ] {
        let (told, message) = node.fail("state_getLogs", json!([filter])).await;
        assert_eq!(told, code, "{filter}: {message}");
        assert!(message.contains(words), "{filter}: {message}");
    }
    // A single block is answered in full.
    question(&node, range(3, 3), blocks[3]).await;
    question(&node, range(4, 4), blocks[4]).await;
}
