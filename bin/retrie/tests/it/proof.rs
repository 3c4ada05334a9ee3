//! `retrie proof` as a user runs it, against a server that responds from the golden vectors.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use alloy_primitives::{B256, Bytes, U256, hex, keccak256};
use alloy_rlp::Decodable;
use retrie_chainspec::primitives::Header;
use retrie_sources::testkit::{HttpServer, ScriptedReply};
use retrie_storage_cole::ColeParams;
use serde_json::{Value, json};
use std::process::Command;

/// A case of the golden vectors.
fn vector(file: &str, name: &str) -> Value {
    let path = format!("{}/../../crates/light-client/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let case = file["cases"].as_array().unwrap().iter().find(|case| case["name"] == name);
    case.unwrap_or_else(|| panic!("no vector {name}")).clone()
}

/// A question of the vectors of calls or logs, with what the case changes.
fn question(file: &str, name: &str) -> Value {
    let case = vector(file, name);
    let Some(base) = case["of"].as_str() else { return case["question"].clone() };
    let mut question = vector(file, base)["question"].clone();
    for (place, changed) in [("/answer", &case["with"]), ("", &case["ask"])] {
        let object = question.pointer_mut(place).unwrap();
        for (member, value) in changed.as_object().into_iter().flatten() {
            object[member.as_str()] = value.clone();
        }
    }
    question
}

/// A response of `mpt`, and the RLP of the header of its block.
fn answer() -> (Value, Bytes) {
    let case = vector("answers.json", "under a header");
    let header = serde_json::from_value(case["trusted"]["header"]["rlp"].clone()).unwrap();
    (case["question"]["answer"].clone(), header)
}

/// A node with one block and one proof.
fn node(answer: Value, header: &[u8]) -> HttpServer {
    let mut block = serde_json::to_value(Header::decode(&mut &header[..]).unwrap()).unwrap();
    block["hash"] = json!(keccak256(header));
    block["transactions"] = json!([]);
    block["uncles"] = json!([]);
    let server = HttpServer::start(move |request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        let result = match call["method"].as_str().unwrap() {
            "eth_getBlockByNumber" => block.clone(),
            "state_getProof" | "state_getProvenance" => answer.clone(),
            method => panic!("{method}"),
        };
        let reply = json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        ScriptedReply::new(200, reply.to_string())
    });
    server.unwrap()
}

fn get(scene: &TestFolder, server: &HttpServer, address: &Value) -> Command {
    let address = address.as_str().unwrap();
    let (url, file) = (server.url(), scene.at("proof.json"));
    retrie(words(&format!("proof get --rpc {url} --address {address} -o {file}")))
}

fn verify(file: &str, more: &str) -> Command {
    retrie(words(&format!("proof verify {file} {more}")))
}

#[test]
fn a_fetched_proof_is_verified_without_the_node() {
    let scene = TestFolder::new();
    let (answer, header) = answer();
    let server = node(answer.clone(), &header);
    let out = succeeds(&mut get(&scene, &server, &answer["address"]));
    assert!(out.contains("by mpt") && out.contains("nothing is verified yet"), "{out}");
    drop(server);

    let file = scene.at("proof.json");
    let [hash, root] = ["blockHash", "root"].map(|field| answer[field].as_str().unwrap());
    let block: U256 = answer["block"].as_str().unwrap().parse().unwrap();
    let balance: U256 = answer["account"]["balance"].as_str().unwrap().parse().unwrap();
    let balance = format!("balance {balance} wei");
    for (trusted, why, origin) in [
        (
            format!("--block-hash {hash}"),
            "in the header of the trusted hash",
            format!(
                "command line (--block-hash); the header of that hash, and the root in it, come from {file}"
            ),
        ),
        (format!("--root {root}"), "given by hand", "command line (--root)".to_owned()),
        (
            format!("--checkpoint {block}:{root}"),
            "pinned by hand",
            format!("the root of block {block} was given on the command line (--checkpoint)"),
        ),
    ] {
        let out = succeeds(&mut verify(&file, &trusted));
        assert!(out.contains(&balance) && out.contains(why), "{out}");
        assert!(out.contains(&origin), "`{origin}` is not in: {out}");
    }
    // The root in the file itself is not trusted, though the proof leads to it.
    let output = fails_saying(
        &mut verify(&file, ""),
        &["nothing is verified", root, "comes from the file itself", "--block-hash", "--root"],
    );
    assert!(!output.contains(&balance), "{output}");
    let mut other = answer.clone();
    other["root"] = json!(B256::with_last_byte(7));
    let other = scene.write("other.json", other.to_string());
    fails_saying(&mut verify(&other, ""), &["other.json is refused"]);
    // The header as a file, binary or hexadecimal.
    let bare = scene.write("bare.json", answer.to_string());
    let hint = &["bare.json", "refused"];
    for header in [header.to_vec(), hex::encode_prefixed(&header).into_bytes()] {
        let file = scene.write("header", header);
        let out = succeeds(&mut verify(&bare, &format!("--header {file}")));
        let origin = format!("taken from {file} as they are (--header)");
        assert!(out.contains(&origin), "`{origin}` is not in: {out}");
        let out = succeeds(&mut verify(&bare, &format!("--header {file} --block-hash {hash}")));
        assert!(
            out.contains(&format!(
                "(--block-hash); the header of that hash, and the root in it, come from {file}"
            )),
            "{out}"
        );
        fails_saying(&mut verify(&bare, &format!("--header {file} --block-hash {root}")), hint);
    }
    fails_saying(&mut verify(&bare, &format!("--block-hash {hash}")), &["--header FILE"]);
}

/// A forged response of `cole`, under the root in this block's header.
fn made_up(answer: &Value, params: ColeParams) -> Value {
    json!({
        "backend": "cole", "version": 1, "hash": "blake2b-256", "params": params.digest(),
        "block": answer["block"], "blockHash": answer["blockHash"], "root": answer["root"],
        "address": answer["address"], "slot": null, "from": "0x1", "to": "0x3",
        "versions": [{ "block": "0x2", "account": null }], "proof": "0x0100",
    })
}

#[test]
fn versions_are_fetched_as_asked_and_not_believed() {
    let scene = TestFolder::new();
    let (answer, header) = answer();
    // COLE with its default parameters.
    let params = ColeParams::default();
    let server = node(made_up(&answer, params), &header);
    let ask = |range: &str| {
        let (url, file) = (server.url(), scene.at("versions.json"));
        let address = answer["address"].as_str().unwrap();
        let line = format!("proof provenance --rpc {url} --address {address} {range} -o {file}");
        retrie(words(&line))
    };
    fails_saying(&mut ask("--from 1 --to 4"), &["another question"]);
    fails_saying(&mut ask("--from 1 --to 3 --slot 7"), &["another question"]);
    fails_saying(&mut ask("--from 4 --to 3"), &["--from 4", "must not be above"]);
    let out = succeeds(&mut ask("--from 1 --to 3"));
    assert!(out.contains("by cole") && out.contains("nothing is verified yet"), "{out}");
    let (file, root) = (scene.at("versions.json"), answer["root"].as_str().unwrap());
    let trusted = format!("--root {root}");
    fails_saying(&mut verify(&file, &trusted), &["versions.json is refused", "malformed"]);
    // With other trusted parameters the proof is refused unread.
    let other = ColeParams { fanout: 16, ..params };
    let other = format!("{trusted} --cole-params {}", other.digest());
    let digest = params.digest().to_string();
    fails_saying(&mut verify(&file, &other), &["versions.json is refused", &digest]);
    let out = verify(&file, &format!("{trusted} --cole-params 0x01")).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "no 32 bytes: {out:?}");
}

/// The state of an old block is proven under the root of a later one, whose header is in the file.
#[test]
fn a_proof_as_of_an_older_block_names_both() {
    let scene = TestFolder::new();
    let (mut answer, header) = answer();
    let number: U256 = answer["block"].as_str().unwrap().parse().unwrap();
    // The request names this node's only block; the response is under the root of the next one.
    answer["asOf"] = json!(number);
    answer["block"] = json!(number + U256::from(1));
    let server = node(answer.clone(), &header);
    // There is no other block, so it is not the one that the proof names.
    answer["blockHash"] = json!(B256::with_last_byte(7));
    fails_saying(&mut get(&scene, &server, &answer["address"]), &["block"]);
    drop(server);
    answer["asOf"] = json!(number - U256::from(1));
    let server = node(answer.clone(), &header);
    fails_saying(&mut get(&scene, &server, &answer["address"]), &["has answered of block"]);
}

#[test]
fn a_bad_proof_is_one_line_and_no_values() {
    let scene = TestFolder::new();
    let (answer, _) = answer();
    let root = answer["root"].as_str().unwrap();
    let file = scene.write("proof.json", answer.to_string());
    let other = format!("--root {}", answer["blockHash"].as_str().unwrap());
    fails_saying(&mut verify(&file, &other), &["proof.json", "root", root]);
    let other = format!("--checkpoint 7:{root}");
    fails_saying(&mut verify(&file, &other), &["proof.json", "of block 5", "7"]);

    let trusted = format!("--root {root}");
    let forge = |field: &str, value: Value| {
        let mut forged = answer.clone();
        forged[field] = value;
        verify(&scene.write("forged.json", forged.to_string()), &trusted)
    };
    let mut account = answer["account"].clone();
    account["balance"] = json!("0x3635c9adc5dea00000");
    fails_saying(&mut forge("account", account), &["forged.json", "another value of account 0x"]);
    let proof = answer["proof"].as_str().unwrap();
    let cut = proof[..proof.len() - 2].into();
    fails_saying(&mut forge("proof", cut), &["forged.json", "malformed"]);
    fails_saying(&mut forge("backend", "cole".into()), &["cole", "no verifier"]);
    fails_saying(forge("nonsense", Value::Null).arg("--params=none"), &["none"]);
    let no_json = scene.write("no.json", "{");
    fails_saying(&mut verify(&no_json, &trusted), &["no.json", "JSON"]);
    let other = scene.write("other.json", "{\"x\": 1}");
    fails_saying(&mut verify(&other, &trusted), &["other.json", "state_getProof"]);
    fails_saying(&mut verify(&scene.at("nowhere"), &trusted), &["nowhere"]);
}

#[test]
fn an_answer_to_another_question_is_not_written() {
    let scene = TestFolder::new();
    let (answer, header) = answer();
    let server = node(answer.clone(), &header);
    let nobody = json!("0x00000000000000000000000000000000000000ff");
    fails_saying(&mut get(&scene, &server, &nobody), &["another question"]);
    let mut slot = get(&scene, &server, &answer["address"]);
    fails_saying(slot.args(["--slot", "1"]), &["another question"]);
    let mut wrong = get(&scene, &server, &answer["address"]);
    fails_saying(wrong.args(["--block", "newest"]), &["newest", "latest, safe, finalized"]);
    let (mut moved, address) = (answer.clone(), &answer["address"]);
    moved["blockHash"] = json!(keccak256(b"another block"));
    fails_saying(&mut get(&scene, &node(moved, &header), address), &["try again"]);
    assert!(!scene.path("proof.json").exists());
}

#[test]
fn lvmt_needs_parameters_and_says_when_they_are_insecure() {
    let scene = TestFolder::new();
    let case = vector("lvmt.json", "height 2: an answer under a checkpoint");
    let answer = &case["question"]["answer"];
    let file = scene.write("proof.json", answer.to_string());
    let root = answer["root"].as_str().unwrap();
    let trusted = format!("--root {root}");
    let digest = answer["params"].as_str().unwrap();
    fails_saying(&mut verify(&file, &trusted), &[digest, "not among those pinned"]);
    fails_saying(&mut verify(&file, &format!("{trusted} --insecure-dev 3")), &[digest]);
    let out = succeeds(&mut verify(&file, &format!("{trusted} --insecure-dev 2")));
    let [slot, absent] = [0, 1].map(|at| &answer["storage"][at]);
    for line in [slot, absent] {
        let [key, value] = ["key", "value"].map(|field| line[field].as_str().unwrap());
        assert!(out.contains(&format!("slot {key}: {value}")), "{out}");
    }
    assert!(out.contains("INSECURE") && out.contains(digest), "{out}");
    let params = scene.at("params");
    let make = format!("params lvmt --insecure-dev --height 2 --without-proofs -o {params}");
    succeeds(&mut retrie(words(&format!("{make} --quiet"))));
    let same = succeeds(&mut verify(&file, &format!("{trusted} --params {params}")));
    assert_eq!(same, out);
}

#[test]
fn answers_of_eth_get_proof_are_verified_too() {
    let scene = TestFolder::new();
    let case = vector("eip1186.json", "slots, one absent");
    let answer = &case["question"]["ethProof"];
    let file = scene.write("proof.json", answer.to_string());
    let root = case["trusted"]["root"].as_str().unwrap();
    let out = succeeds(&mut verify(&file, &format!("--root {root}")));
    let value = answer["storageProof"][0]["value"].as_str().unwrap();
    assert!(out.contains(value), "{out}");
    let hash = format!("--root {}", keccak256(b"another root"));
    fails_saying(&mut verify(&file, &hash), &["proof.json", "does not match the root"]);
}

/// A root of a backend's own is of a store with one form of keys, which the caller has to know.
#[test]
fn hashed_keys_are_verified_where_they_are_expected() {
    let scene = TestFolder::new();
    for (backend, is_ethereum) in [("bavl", false), ("duptree", false), ("mpt", true)] {
        let case = vector("hashed.json", &format!("{backend}: an answer"));
        let checkpoint = &case["trusted"]["checkpoint"];
        let answer = case["question"]["answer"].clone();
        std::fs::write(scene.at("proof.json"), answer.to_string()).unwrap();
        let number = checkpoint["block"].as_str().unwrap().trim_start_matches("0x");
        let number = u64::from_str_radix(number, 16).unwrap();
        let trusted = format!("--checkpoint {number}:{}", checkpoint["root"].as_str().unwrap());
        let hashed = format!("{trusted} --state.keys hashed");
        let shown = succeeds(&mut verify(&scene.at("proof.json"), &hashed));
        assert!(shown.contains("slot 0x"), "{shown}");
        match is_ethereum {
            true => assert_eq!(succeeds(&mut verify(&scene.at("proof.json"), &trusted)), shown),
            false => {
                fails_saying(
                    &mut verify(&scene.at("proof.json"), &trusted),
                    &["--state.keys says"],
                );
            }
        }
    }
}

/// Verifies the answer of a call of the vectors, under the trust that the question names.
fn verify_call(scene: &TestFolder, name: &str) -> Command {
    let question = question("calls/calls.json", name);
    let file = scene.write("call.json", question["answer"].to_string());
    let hash = question["hash"].as_str().unwrap();
    let chain = scene.at("genesis.json");
    let mut command = verify(&file, &format!("--chain {chain} --block-hash {hash}"));
    command.arg("--request").arg(question["request"].to_string());
    if let Some(root) = question["root"].as_str() {
        command.args(["--root", root]);
    }
    if let Some(params) = question["params"]["lvmt"][0].as_str() {
        let height = u8::from_str_radix(&params[2..4], 16).unwrap();
        command.args(["--insecure-dev", &height.to_string()]);
    }
    if let Some(params) = question["params"]["cole"][0].as_str() {
        command.args(["--cole-params", params]);
    }
    command
}

#[test]
fn answers_of_state_call_are_executed_again() {
    let scene = TestFolder::new();
    let vectors = "../../crates/light-client/vectors/calls/calls.json";
    let text = std::fs::read(format!("{}/{vectors}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let vectors: Value = serde_json::from_slice(&text).unwrap();
    scene.write("genesis.json", vectors["chain"].as_str().unwrap());
    for name in ["mpt", "lvmt", "cole", "bavl"] {
        let out = succeeds(&mut verify_call(&scene, name));
        let expect = &vector("calls/calls.json", name)["expect"];
        let output = format!("the call returns {}", expect["output"].as_str().unwrap());
        let gas = format!("gas used {} of 50000000", expect["gasUsed"]);
        for line in [&output, &gas, "(--block-hash)", "verified: root"] {
            assert!(out.contains(line), "{name}: `{line}` is not in: {out}");
        }
    }
    for (name, why) in [
        ("another output", "another output of the call"),
        ("gas that lies", "another gas used of the call"),
        ("a code left out", "the code 0x"),
        ("another header", "bytes have hash"),
        ("another value", "does not match the root"),
    ] {
        let printed = fails_saying(&mut verify_call(&scene, name), &["call.json is refused", why]);
        assert!(!printed.contains("returns"), "{name}: {printed}");
    }

    // What the answer itself does not say.
    let question = question("calls/calls.json", "mpt");
    let (answer, request) = (&question["answer"], question["request"].to_string());
    let [hash, root] = ["blockHash", "root"].map(|member| answer[member].as_str().unwrap());
    let wrapped = json!({ "jsonrpc": "2.0", "id": 1, "result": answer });
    let file = scene.write("answer.json", wrapped.to_string());
    let request = scene.write("request.json", request);
    let chain = scene.at("genesis.json");
    let asked = format!("--request {request} --chain {chain}");
    succeeds(&mut verify(&file, &format!("{asked} --block-hash {hash}")));
    succeeds(&mut verify(&file, &format!("{asked} --block-hash {hash} --checkpoint 5:{root}")));
    for (flags, words) in [
        (asked.clone(), &["nothing is verified", hash, "--block-hash"][..]),
        (format!("{asked} --root {root}"), &["--block-hash HASH"]),
        (format!("{asked} --block-hash {root}"), &["answer.json is refused", "bytes have hash"]),
        (format!("{asked} --block-hash {hash} --root {hash}"), &["refused", "leads to root"]),
        (format!("{asked} --block-hash {hash} --checkpoint 6:{root}"), &["refused", "block"]),
        (format!("--block-hash {hash} --chain {chain}"), &["the call that was asked", "--request"]),
    ] {
        fails_saying(&mut verify(&file, &flags), words);
    }
    let mut other = verify(&file, &format!("--block-hash {hash} --chain {chain}"));
    fails_saying(other.args(["--request", r#"{"data":"0x5f5ff3"}"#]), &["is refused"]);
}

#[test]
fn answers_of_state_get_logs_are_verified_to_be_complete() {
    let scene = TestFolder::new();
    let ask = |name: &str| {
        let question = question("logs/logs.json", name);
        let file = scene.write("logs.json", question["answer"].to_string());
        let hash = question["hash"].as_str().unwrap();
        let mut command = verify(&file, &format!("--block-hash {hash}"));
        command.arg("--request").arg(question["filter"].to_string());
        command
    };
    for (name, first) in [
        ("one topic", "blocks 1 to 6: 3 logs match"),
        ("no log", "blocks 0 to 6: 0 logs match"),
        ("before Byzantium", "blocks 1 to 5: 10 logs match"),
    ] {
        let out = succeeds(&mut ask(name));
        assert!(out.starts_with(first) && out.contains("no other log that matches"), "{out}");
    }
    let out = succeeds(&mut ask("one topic"));
    let stated = question("logs/logs.json", "one topic")["answer"]["logs"].clone();
    for log in stated.as_array().unwrap() {
        let [address, data] = ["address", "data"].map(|member| log[member].as_str().unwrap());
        assert!(out.to_lowercase().contains(address) && out.contains(data), "{log}: {out}");
    }
    for (name, why) in [
        ("a log left out", "states other logs"),
        ("receipts of no block", "its receipts are left out"),
        ("a receipt changed", "receipts have root"),
        ("a block left out", "header"),
        ("a filter from an earlier block on", "the filter asks for blocks 0 to 6"),
        ("another version", "of version 2"),
    ] {
        fails_saying(&mut ask(name), &["logs.json is refused", why]);
    }
    let file = scene.at("logs.json");
    let filter = scene.write("filter.json", r#"{"fromBlock":"0x1"}"#);
    for (flags, word) in [
        (format!("--request {filter}"), "refused"),
        (format!("--request {filter} --root {}", B256::ZERO), "--block-hash HASH"),
        (format!("--block-hash {}", B256::ZERO), "the filter that was asked"),
    ] {
        fails_saying(&mut verify(&file, &flags), &[word]);
    }
    let question = question("logs/logs.json", "one topic");
    scene.write("logs.json", question["answer"].to_string());
    let mut untrusted = verify(&file, "");
    untrusted.arg("--request").arg(question["filter"].to_string());
    fails_saying(&mut untrusted, &["nothing is verified", question["hash"].as_str().unwrap()]);
}
