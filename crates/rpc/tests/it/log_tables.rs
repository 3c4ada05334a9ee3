//! `state_getLogs` in the form `tables`: index tables (EIP-8304), whose roots the blocks store in the
//! index contract, show that nothing is missing.

use crate::common::{NodeFixture, lvmt, mpt};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_rpc_types_eth::Filter;
use retrie_chainspec::ChainSpec;
use retrie_light_client::{
    LightClientError, LogTablesResponse, StateVerifier, TableSpan, TableTrust, TabledLogs,
    verify_log_tables,
};
use retrie_log_tables::{INDEX_CONTRACT, TableProof};
use retrie_pipeline::testkit::{
    BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, write_blocks,
};
use retrie_state::AnyBackend;
use serde_json::{Value, json};
use std::sync::{Arc, atomic::AtomicBool};

fn topic(slot: u64) -> B256 {
    U256::from(slot).into()
}

/// Blocks with a common topic in each third, rare ones, and none; their hashes, from genesis on.
fn grow(chain: &mut TestChain, parent: B256, blocks: u64, salt: u64) -> Vec<B256> {
    let mut hashes = vec![parent];
    for number in 1..=blocks {
        let store = |from: u64, slot| {
            TestCall::store((from % 8) as u8, GENESIS_CONTRACT, slot, number + salt)
        };
        let calls = match number % 3 {
            0 => vec![store(number, 3), store(number + 1, 100 + number + salt)],
            1 => vec![store(number, 4), TestCall::transfer(2, Address::repeat_byte(5), 9)],
            _ => vec![],
        };
        hashes.push(chain.extend(hashes[hashes.len() - 1], BlockPlan::new(calls)));
    }
    hashes
}

fn node_at(chain: &TestChain, tip: B256, backend: Arc<dyn AnyBackend>) -> NodeFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, &chain.path(chain.genesis(), tip));
    let node = NodeFixture::with_file(&chain.spec, backend, Some(&file));
    index(&node);
    node
}

fn index(node: &NodeFixture) {
    let chain = node.live().chain();
    while chain.db().keep_index_tables(0, &AtomicBool::new(false)).unwrap() {}
}

async fn ask(node: &NodeFixture, filter: &Value) -> Value {
    let answer = node.call("state_getLogs", json!([filter, "tables"])).await;
    assert_eq!(answer["form"], "tables");
    assert_eq!(answer["logs"], node.call("eth_getLogs", json!([filter])).await, "{filter}");
    answer
}

fn verify(
    answer: &Value,
    filter: &Value,
    hash: B256,
    trust: TableTrust<'_>,
) -> Result<TabledLogs, LightClientError> {
    let answer: LogTablesResponse = serde_json::from_value(answer.clone()).unwrap();
    let filter: Filter = serde_json::from_value(filter.clone()).unwrap();
    verify_log_tables(&answer, &filter, hash, trust)
}

fn in_header(verifier: &StateVerifier) -> TableTrust<'_> {
    TableTrust::State { verifier, root: None }
}

fn range(from: u64, to: u64) -> Value {
    json!({ "fromBlock": U64::from(from), "toBlock": U64::from(to) })
}

fn with(mut filter: Value, member: &str, value: Value) -> Value {
    filter[member] = value;
    filter
}

#[tokio::test]
async fn index_tables_show_all_logs_of_a_range() {
    let mut chain = TestChain::with_index_tables(TestRules::Prague, mpt());
    let genesis = chain.genesis();
    let blocks = grow(&mut chain, genesis, 44, 0);
    let node = node_at(&chain, blocks[44], mpt());
    let verifier = StateVerifier::new();
    let of_topics = |topics: Value, from, to| with(range(from, to), "topics", topics);
    for (filter, count) in [
        (of_topics(json!([topic(3)]), 1, 44), 14),
        (of_topics(json!([topic(3)]), 5, 30), 9),
        (of_topics(json!([topic(112)]), 1, 44), 1),
        (of_topics(json!([[topic(112), topic(3), topic(115)]]), 2, 43), 16),
        (of_topics(json!([topic(999)]), 0, 44), 0),
        (of_topics(json!([null, topic(3)]), 0, 44), 0),
        (range(7, 7), 1),
        (range(1, 44), 43),
        (with(range(3, 12), "address", json!(GENESIS_CONTRACT)), 11),
        (with(range(3, 12), "address", json!(Address::repeat_byte(9))), 0),
        (with(of_topics(json!([topic(3)]), 3, 9), "address", json!(GENESIS_CONTRACT)), 3),
        (json!({ "fromBlock": "0x20" }), 12),
        (json!({ "blockHash": blocks[44] }), 0),
    ] {
        let answer = ask(&node, &filter).await;
        let shown = verify(&answer, &filter, blocks[44], in_header(&verifier));
        let shown = shown.unwrap_or_else(|error| panic!("{filter}: {error}"));
        assert_eq!(shown.logs.len(), count, "{filter}");
        assert!(shown.logs.iter().all(|log| log.transaction_hash.is_some()));
    }
    // A block before the head gives the roots too.
    let filter = of_topics(json!([topic(3)]), 1, 40);
    let answer = node.call("state_getLogs", json!([filter, "tables", "0x2a"])).await;
    assert_eq!(verify(&answer, &filter, blocks[42], in_header(&verifier)).unwrap().logs.len(), 13);
    assert_eq!(
        verify(&answer, &filter, blocks[44], in_header(&verifier)).unwrap_err().class(),
        "header"
    );
    // A rare topic takes little of the other form.
    let filter = of_topics(json!([topic(112)]), 1, 44);
    let tables = ask(&node, &filter).await.to_string().len();
    let headers = node.call("state_getLogs", json!([filter])).await.to_string().len();
    assert!(2 * tables < headers, "{tables} bytes, {headers} by headers");
}

/// What is wrong, and how an answer becomes so; the class of the error.
type Forgery = (&'static str, fn(&mut Value), &'static str);

fn flip(value: &mut Value, at: usize) {
    let mut bytes: Vec<u8> = serde_json::from_value::<Bytes>(value.take()).unwrap().to_vec();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    *value = json!(Bytes::from(bytes));
}

fn cut(value: &mut Value, bytes: usize) {
    let whole: Bytes = serde_json::from_value(value.take()).unwrap();
    *value = json!(whole.slice(..whole.len() - bytes));
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().unwrap()
}

/// Which of them depends on the shape of the tree.
const TABLE: &str = "root missing unused malformed";

const FORGERIES: [Forgery; 24] = [
    ("a log left out", |answer| drop(list(&mut answer["logs"]).remove(0)), "claim"),
    (
        "another transaction",
        |answer| answer["logs"][0]["transactionHash"] = json!(topic(1)),
        "claim",
    ),
    ("another log index", |answer| answer["logs"][1]["logIndex"] = json!("0x7"), "claim"),
    ("another version", |answer| answer["version"] = json!(1), "kind"),
    ("another form", |answer| answer["form"] = json!("headers"), "kind"),
    ("another header", |answer| flip(&mut answer["header"], 40), "header"),
    ("no state", |answer| answer["state"] = Value::Null, "missing"),
    (
        "another root stated",
        |answer| answer["state"]["storage"][0]["value"] = json!("0x1234"),
        "claim",
    ),
    ("a slot left out", |answer| drop(list(&mut answer["state"]["storage"]).pop()), "missing"),
    (
        "the slots of another contract",
        |answer| answer["state"]["address"] = json!(GENESIS_CONTRACT),
        "missing",
    ),
    ("a table left out", |answer| drop(list(&mut answer["tables"]).remove(0)), "missing"),
    ("the last table left out", |answer| drop(list(&mut answer["tables"]).pop()), "missing"),
    (
        "a table twice",
        |answer| {
            let tables = list(&mut answer["tables"]);
            tables.insert(1, tables[0].clone());
        },
        "missing",
    ),
    ("tables swapped", |answer| list(&mut answer["tables"]).swap(0, 1), "missing"),
    ("a foreign size", |answer| answer["tables"][0]["size"] = json!("0x8"), "malformed"),
    ("entries of another number", |answer| answer["tables"][0]["entries"] = json!("0x5"), TABLE),
    ("an entry changed", |answer| flip(&mut answer["tables"][0]["runs"][0]["entries"], 12), TABLE),
    (
        "entries cut short",
        |answer| cut(&mut answer["tables"][0]["runs"][0]["entries"], 1),
        "malformed",
    ),
    ("a run left out", |answer| drop(list(&mut answer["tables"][0]["runs"]).pop()), TABLE),
    ("a node left out", |answer| cut(&mut answer["tables"][0]["nodes"], 32), "missing"),
    ("no condition", |answer| answer["tables"][0]["shows"] = json!([]), "missing"),
    ("a block left out", |answer| drop(list(&mut answer["blocks"]).remove(0)), "header"),
    (
        "a node of receipts changed",
        |answer| flip(&mut answer["blocks"][0]["receipts"][0], 60),
        "missing",
    ),
    (
        "a node of receipts too many",
        |answer| list(&mut answer["blocks"][0]["receipts"]).push(json!("0xc0")),
        "unused",
    ),
];

/// What a verifier shows: the logs as they are stated.
fn shown(verified: &TabledLogs, answer: &Value) -> Value {
    let blocks = [verified.blocks.start(), verified.blocks.end()].map(|number| U64::from(*number));
    let hashes = verified.logs.iter().map(|log| json!(log.transaction_hash));
    let stated = answer["logs"].as_array().unwrap().iter();
    assert!(hashes.eq(stated.map(|log| log["transactionHash"].clone())));
    json!({ "blocks": blocks, "logs": verified.logs.len() })
}

/// The members of an answer that differ from another one.
fn changed(forged: &Value, honest: &Value) -> Value {
    let members = forged.as_object().unwrap().iter();
    members
        .filter(|(name, value)| honest[name.as_str()] != **value)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The golden vectors of index tables, which the verifier in TypeScript runs too.
#[tokio::test]
async fn the_vectors_of_index_tables_are_what_nodes_answer() {
    let mut chain = TestChain::with_index_tables(TestRules::Prague, mpt());
    let genesis = chain.genesis();
    let blocks = grow(&mut chain, genesis, 30, 0);
    let node = node_at(&chain, blocks[30], mpt());
    let verifier = StateVerifier::new();
    let of_topics = |topics: Value| with(range(1, 29), "topics", topics);
    let filter = of_topics(json!([topic(3)]));
    let honest = ask(&node, &filter).await;
    let check =
        |answer: &Value, filter: &Value| verify(answer, filter, blocks[30], in_header(&verifier));
    let mut cases = Vec::new();
    for (name, filter, count) in [
        ("one topic", filter.clone(), 9),
        ("several topics", of_topics(json!([[topic(112), topic(4)], null])), 11),
        ("a contract and a topic", with(filter.clone(), "address", json!([GENESIS_CONTRACT])), 9),
        ("all logs of a few blocks", range(12, 15), 5),
        ("no log", with(range(0, 30), "topics", json!([null, topic(3)])), 0),
    ] {
        let answer = ask(&node, &filter).await;
        let verified = check(&answer, &filter).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verified.logs.len(), count, "{name}");
        let expect = shown(&verified, &answer);
        let question = json!({ "filter": filter, "answer": answer, "hash": blocks[30] });
        cases.push(json!({ "name": name, "question": question, "expect": expect }));
    }
    let mut refuse = |what: &str, answer: &Value, asked: &Value, class: &str| {
        let error = check(answer, asked).expect_err(what);
        assert!(class.split(' ').any(|class| class == error.class()), "{what}: {error}");
        let (with, expect) = (changed(answer, &honest), json!({ "error": error.class() }));
        let ask = if *asked == filter { json!({}) } else { json!({ "filter": asked }) };
        cases.push(json!({
            "name": what, "of": "one topic", "with": with, "ask": ask, "expect": expect,
        }));
    };
    for (what, forge, class) in FORGERIES {
        let mut forged = honest.clone();
        forge(&mut forged);
        refuse(what, &forged, &filter, class);
    }
    // Honest answers to other questions.
    for (what, asked, class) in [
        ("another topic", of_topics(json!([topic(4)])), "missing"),
        ("a later first block", with(filter.clone(), "fromBlock", json!("0x11")), "missing"),
        ("a later range", with(filter.clone(), "toBlock", json!("0x1f")), "block"),
        ("a block of the node", with(filter.clone(), "fromBlock", json!("earliest")), "block"),
    ] {
        refuse(what, &honest, &asked, class);
    }
    // More than is needed: the proof of two topics, of which one is asked for.
    let more = ask(&node, &of_topics(json!([[topic(3), topic(103)]]))).await;
    refuse("a topic too many", &more, &filter, "unused");
    let behind = ask(&node, &with(filter.clone(), "toBlock", json!("0x1e"))).await;
    refuse("a table too many", &behind, &filter, "unused missing");
    // Tables of another chain, under roots of this one.
    let mut other = TestChain::with_index_tables(TestRules::Prague, mpt());
    let foreign = grow(&mut other, genesis, 30, 50);
    let other = node_at(&other, foreign[30], mpt());
    let mut mixed = honest.clone();
    mixed["tables"] = ask(&other, &filter).await["tables"].clone();
    refuse("tables of another chain", &mixed, &filter, "root");

    let about = "Logs by index tables, and what a verifier makes of them: docs/formats/proofs.md.";
    let text = serde_json::to_string_pretty(&json!({ "about": about, "cases": cases })).unwrap();
    let text = text + "\n";
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../light-client/vectors/logs/tables.json");
    if std::env::var_os("RETRIE_WRITE_VECTORS").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    let stored = std::fs::read_to_string(file).unwrap();
    assert!(stored == text, "{file} differs: write it again with RETRIE_WRITE_VECTORS=1");
}

#[tokio::test]
async fn index_tables_follow_reorganisations() {
    let mut chain = TestChain::with_index_tables(TestRules::Prague, mpt());
    let genesis = chain.genesis();
    let main = grow(&mut chain, genesis, 26, 0);
    let branch = grow(&mut chain, main[9], 20, 300);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    // Both branches are executed, and each block's state root has the roots of its own tables.
    node.add(&chain.path(genesis, main[26])).await;
    node.add(&chain.path(main[9], branch[20])).await;
    let verifier = StateVerifier::new();
    let filter = json!({ "fromBlock": "0x1", "topics": [[topic(103), topic(403), topic(3)]] });
    for (head, count) in [(main[26], 9), (branch[20], 11), (main[26], 9)] {
        node.set_head(head, B256::ZERO, B256::ZERO).await;
        for _ in 0..2 {
            let answer = ask(&node, &filter).await;
            let shown = verify(&answer, &filter, head, in_header(&verifier)).unwrap();
            assert_eq!(shown.logs.len(), count);
            index(&node);
        }
    }
}

#[tokio::test]
async fn a_dev_chain_of_another_store_stores_the_roots_of_its_tables() {
    let node = NodeFixture::dev_of(&ChainSpec::dev_with_index_tables(), lvmt());
    node.call("anvil_mine", json!(["0x18"])).await;
    index(&node);
    let mut spans = 0;
    for size in [1, 4, 16] {
        for first in (0..24_u64).step_by(size) {
            let span = TableSpan::new(first, size as u64).unwrap();
            if !span.is_referenced_at(24, 0) {
                continue;
            }
            let slot = json!([INDEX_CONTRACT, span.slot(), "latest"]);
            let stored: B256 =
                serde_json::from_value(node.call("eth_getStorageAt", slot).await).unwrap();
            let view = node.live().view().unwrap();
            let table = view.index_table(span).unwrap().unwrap();
            let all = TableProof::of(&table, &[], &[]).unwrap();
            assert_eq!(all.root(), Ok(stored), "{span:?}");
            // From the next block on the contract gives it to other contracts.
            if span.stored_at() < 24 {
                let word = |number: u64| B256::from(U256::from(number));
                let input = Bytes::from([word(span.first()), word(span.size())].concat());
                let call = json!([{ "to": INDEX_CONTRACT, "input": input }, "latest"]);
                assert_eq!(node.call("eth_call", call).await, json!(stored), "{span:?}");
            }
            spans += 1;
        }
    }
    assert_eq!(spans, 23 + 6 + 1);
}

#[tokio::test]
async fn without_the_contract_the_caller_knows_the_roots() {
    let mut chain = crate::common::test_chain(TestRules::Prague);
    let genesis = chain.genesis();
    let blocks = grow(&mut chain, genesis, 130, 0);
    let node = node_at(&chain, blocks[130], mpt());
    let filter = with(range(3, 80), "topics", json!([topic(103)]));
    let answer = ask(&node, &filter).await;
    assert_eq!(answer.get("state"), None);
    let view = node.live().view().unwrap();
    let tables = answer["tables"].as_array().unwrap().iter();
    let mut roots: Vec<(TableSpan, B256)> = tables
        .map(|table| {
            let number = |name: &str| {
                serde_json::from_value::<U64>(table[name].clone()).unwrap().to::<u64>()
            };
            let span = TableSpan::new(number("firstBlock"), number("size")).unwrap();
            (span, view.durable().make_index_table(span).unwrap().unwrap().root())
        })
        .collect();
    assert_eq!(
        verify(&answer, &filter, blocks[130], TableTrust::Roots(&roots)).unwrap().logs.len(),
        1
    );
    let verifier = StateVerifier::new();
    assert_eq!(
        verify(&answer, &filter, blocks[130], in_header(&verifier)).unwrap_err().class(),
        "missing"
    );
    roots[0].1 = topic(1);
    assert_eq!(
        verify(&answer, &filter, blocks[130], TableTrust::Roots(&roots)).unwrap_err().class(),
        "root"
    );
    roots.remove(0);
    assert_eq!(
        verify(&answer, &filter, blocks[130], TableTrust::Roots(&roots)).unwrap_err().class(),
        "missing"
    );

    // A node without tables makes those of the last blocks, and says so of the others.
    let mut bare = NodeFixture::new(&chain.spec, mpt());
    bare.add(&chain.path(genesis, blocks[130])).await;
    bare.set_head(blocks[130], B256::ZERO, B256::ZERO).await;
    let (code, message) = bare.fail("state_getLogs", json!([range(3, 80), "tables"])).await;
    assert!(code == -32000 && message.contains("--logs.tables"), "{code} {message}");
    ask(&bare, &range(70, 130)).await;
}
