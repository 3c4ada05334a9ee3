//! `retrie witness`: made from a datadir, verified alone, and compared.

use crate::{
    common::{TestFolder, fails_saying, misused_saying, retrie, succeeds, words},
    lvmt::small_params,
};
use retrie_pipeline::testkit::TestRules;
use retrie_sources::testkit::{HttpServer, ScriptedReply};
use serde_json::{Value, json};
use std::process::Command;

fn on(scene: &TestFolder, line: &str) -> Command {
    let mut command = retrie(words(line));
    command.args(["--chain", &scene.at("genesis.json")]);
    command
}

fn make(scene: &TestFolder, data: &str, block: &str, more: &str) -> Command {
    let (data, file) = (scene.at(data), scene.at("witness.json"));
    on(scene, &format!("witness make --datadir {data} {block} -o {file} {more}"))
}

#[test]
fn a_witness_is_made_verified_and_compared() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Cancun, 6);
    succeeds(&mut scene.import("chain.rlp", "--state-backend mpt"));
    let hash = blocks[4].header.hash_slow().to_string();
    let printed = succeeds(&mut make(&scene, "data", &hash, ""));
    assert!(printed.contains("block 5") && printed.contains("trie nodes"), "{printed}");
    let file = scene.at("witness.json");
    let printed = succeeds(&mut on(&scene, &format!("witness verify {file}")));
    let root = blocks[4].header.state_root.to_string();
    assert!(printed.contains(&hash) && printed.contains(&root), "{printed}");
    let printed = succeeds(&mut on(&scene, &format!("witness lint {file}")));
    assert!(printed.contains("it is the canonical witness"), "{printed}");

    // As a client answers, with the block beside it, and from a node.
    let mut answer = scene.json("witness.json");
    let block = answer.as_object_mut().unwrap().remove("block").unwrap();
    answer["state"].as_array_mut().unwrap().reverse();
    let codes = answer["codes"].as_array_mut().unwrap();
    codes.push(json!("0xffff"));
    let answered = json!({ "jsonrpc": "2.0", "id": 7, "result": answer });
    let answered = scene.write("answer.json", answered.to_string());
    let block = scene.write("block.txt", block.as_str().unwrap());
    let report = scene.at("report.json");
    let mut lint =
        on(&scene, &format!("witness lint {answered} --block {block} --json {report} --quiet"));
    let output = lint.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stdout).unwrap();
    for code in ["state-order: state[1]", "codes-unused: codes["] {
        assert!(lines.lines().any(|line| line.starts_with(code)), "{code}: {lines}");
    }
    let report = scene.json("report.json");
    let found: Vec<&Value> =
        report["findings"].as_array().unwrap().iter().map(|one| &one["code"]).collect();
    assert_eq!(found, ["state-order", "codes-unused"]);
    assert_eq!((&report["complete"], &report["number"]), (&json!(true), &json!(5)));
    fails_saying(
        &mut on(&scene, &format!("witness verify {answered}")),
        &["answer.json", "--block FILE"],
    );

    // Both from a node.
    let mut object = serde_json::to_value(&blocks[4].header).unwrap();
    object["hash"] = json!(hash);
    object["transactions"] = serde_json::to_value(&blocks[4].body.transactions).unwrap();
    object["uncles"] = json!([]);
    object["withdrawals"] = serde_json::to_value(&blocks[4].body.withdrawals).unwrap();
    let server = HttpServer::start(move |request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        let result = match call["method"].as_str().unwrap() {
            "eth_chainId" => json!("0x1ca3"),
            "debug_executionWitness" => answer.clone(),
            "eth_getBlockByNumber" => object.clone(),
            method => panic!("{method}"),
        };
        let reply = json!({ "jsonrpc": "2.0", "id": call["id"], "result": result });
        ScriptedReply::new(200, reply.to_string())
    });
    let server = server.unwrap();
    let line = format!("witness lint --rpc {} --at 5", server.url());
    fails_saying(&mut on(&scene, &line), &["2 findings"]);
    drop(server);
    let line = format!("{line} --retries 0");
    misused_saying(&mut on(&scene, &line), &["was not checked"]);
}

/// The witness with another digit in the middle of its bytes.
fn with_flipped_digit(witness: &Value) -> Value {
    let mut digits = witness["witness"].as_str().unwrap().to_owned().into_bytes();
    let middle = digits.len() / 2;
    digits[middle] = if digits[middle] == b'0' { b'1' } else { b'0' };
    let mut forged = witness.clone();
    forged["witness"] = json!(String::from_utf8(digits).unwrap());
    forged
}

#[test]
fn a_block_is_verified_on_the_witness_of_its_store_and_on_no_forged_one() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Cancun, 5);
    let (params, _) = small_params(&scene, 4, true);
    let pins = params.replace("lvmt.params", "params");
    let hash = blocks[4].header.hash_slow().to_string();
    let other = scene.write("other.rlp", alloy_rlp::encode(&blocks[3]));
    let lvmt = format!("{params} --lvmt.proof-shard all");
    let stores = [("bavl", "", ""), ("mpt", "", "--format state"), ("lvmt", &*lvmt, "")];
    for (name, flags, format) in stores {
        let (data, chain) = (scene.at(name), scene.at("chain.rlp"));
        let import = format!("import --datadir {data} --state-backend {name} {flags} {chain}");
        succeeds(&mut on(&scene, &import));
        let printed = succeeds(&mut make(&scene, name, "5", &format!("{flags} {format}")));
        assert!(printed.contains(&format!("bytes of {name}")), "{printed}");
        let verify =
            |file: &str, more: &str| on(&scene, &format!("witness verify {file} {pins} {more}"));
        let file = scene.at("witness.json");
        let printed = succeeds(&mut verify(&file, ""));
        let (_, root) = scene.head_of(name, flags);
        let is_in_header = name == "mpt";
        let basis = if is_in_header { "binds both roots" } else { "--root" };
        for part in [&*hash, &*root, basis] {
            assert!(printed.contains(part), "{name}: {part} is not in {printed}");
        }
        let made = scene.json("witness.json");
        let forged = scene.write("forged.json", with_flipped_digit(&made).to_string());
        fails_saying(&mut verify(&forged, ""), &["block 5", "is refused"]);
        let foreign = format!("--block {other}");
        fails_saying(&mut verify(&file, &foreign), &["block 4", "of the state after block #4"]);
        if is_in_header {
            continue;
        }
        let root = made["root"].as_str().unwrap();
        succeeds(&mut verify(&file, &format!("--root {root}")));
        let wrong = format!("--root {hash}");
        fails_saying(&mut verify(&file, &wrong), &["trusted (--root)"]);
        let mut surplus = made.clone();
        surplus["codes"].as_array_mut().unwrap().push(json!("0xffff"));
        let surplus = scene.write("surplus.json", surplus.to_string());
        fails_saying(&mut verify(&surplus, ""), &["which the block does not read"]);
    }
    let file = scene.at("witness.json");
    misused_saying(&mut on(&scene, &format!("witness lint {file}")), &["the witness of a store"]);
    // The last one is of `lvmt`.
    let unpinned = format!("witness verify {file}");
    fails_saying(&mut on(&scene, &unpinned), &["--params says which parameters you trust"]);
}

#[test]
fn what_cannot_be_made_or_compared_is_told_from_what_differs() {
    let (scene, _) = TestFolder::with_chain(TestRules::Cancun, 3);
    succeeds(&mut scene.import("chain.rlp", "--state-backend raw"));
    fails_saying(&mut make(&scene, "data", "2", ""), &["raw", "it authenticates nothing"]);
    let execution = "--format execution";
    fails_saying(&mut make(&scene, "data", "2", execution), &["raw", "Ethereum's trie", "mpt"]);
    fails_saying(&mut make(&scene, "data", "9", ""), &["no block 9"]);
    let file = scene.write("file.json", "{\"state\":[],\"codes\":[],\"headers\":[]}");
    for (line, what) in [
        (format!("witness lint {}", scene.at("nowhere")), "nowhere"),
        (format!("witness lint {file}"), "--block FILE"),
        (format!("witness lint {file} --block {file}"), "file.json"),
        (format!("witness lint {}", scene.at("genesis.json")), "no execution witness"),
        ("witness lint".to_owned(), "WITNESS_FILE"),
        (format!("witness lint {file} --rpc http://127.0.0.1:1"), "--at"),
    ] {
        misused_saying(&mut on(&scene, &line), &[what]);
    }
}
