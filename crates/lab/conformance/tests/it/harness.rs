//! Tests of the harness itself: a damaged test must fail, and so must data that cannot be read.

use alloy_primitives::{Address, Bytes, hex};
use alloy_rpc_types_engine::ExecutionPayloadV3;
use retrie_chainspec::primitives::{Block, Header};
use retrie_conformance::{
    ArchiveError, ExceptionList, SuiteReport, SuiteRunner, find, names, read,
};
use retrie_pipeline::testkit::{
    BlockPlan, CHAIN_ID, GENESIS_CONTRACT, TestCall, TestChain, TestRules,
};
use retrie_storage_mpt::Mpt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{fs, path::Path, process::Command, sync::Arc};
use tempfile::TempDir;

const SUITE: &str = "ethereum-tests-blockchain";
/// The same suite through the Engine API.
const ENGINE: &str = "engine:ethereum-tests-blockchain";
/// Amsterdam through the Engine API.
const AMSTERDAM: &str = "engine:gen-amsterdam";
/// The same, and the witness of each block is checked.
const WITNESSES: &str = "witness:gen-amsterdam";
/// Blocks that are filled again, with witnesses to compare.
const REFILLED: &str = "eest-zkevm-v0.3.3-witness";
/// Payloads, sent as they are.
const PAYLOADS: &str = "eest-benchmark-engine";

fn rlp(block: &Block) -> String {
    hex::encode_prefixed(alloy_rlp::encode(block))
}

fn header_json(header: &Header, hash: impl ToString) -> Value {
    json!({
        "hash": hash.to_string(),
        "parentHash": header.parent_hash,
        "uncleHash": header.ommers_hash,
        "coinbase": header.beneficiary,
        "stateRoot": header.state_root,
        "transactionsTrie": header.transactions_root,
        "receiptTrie": header.receipts_root,
        "bloom": header.logs_bloom,
        "difficulty": header.difficulty,
        "number": "0x00",
        "gasLimit": format!("{:#x}", header.gas_limit),
        "gasUsed": "0x00",
        "timestamp": "0x00",
        "extraData": header.extra_data,
        "mixHash": header.mix_hash,
        "nonce": header.nonce,
        "baseFeePerGas": format!("{:#x}", header.base_fee_per_gas.unwrap()),
        "withdrawalsRoot": header.withdrawals_root,
        "blobGasUsed": "0x00",
        "excessBlobGas": "0x00",
        "parentBeaconBlockRoot": header.parent_beacon_block_root,
        "requestsHash": header.requests_hash,
        "blockAccessListHash": header.block_access_list_hash,
        "slotNumber": header.slot_number.map(|slot| format!("{slot:#x}")),
    })
}

/// A blockchain test with two valid blocks, and a block with a wrong state root between them.
fn chain_test() -> Value {
    chain_test_of("Cancun", TestRules::Cancun)
}

fn chain_test_of(network: &str, rules: TestRules) -> Value {
    let mut chain = TestChain::new(rules, Arc::new(Mpt::default()));
    let genesis = chain.genesis();
    let transfer = || BlockPlan::new([TestCall::transfer(0, Address::repeat_byte(0x77), 5)]);
    let first = chain.extend(genesis, transfer());
    let last = chain.extend(first, transfer());
    let mut bad = chain.block(last).clone();
    bad.header.state_root.0[0] ^= 1;
    let good = |hash| {
        let mut entry = json!({ "rlp": rlp(chain.block(hash)), "blockHeader": {} });
        if let Some(list) = chain.access_list(hash) {
            entry["blockAccessListRLP"] = json!(hex::encode_prefixed(alloy_rlp::encode(list)));
        }
        entry
    };
    let pre: serde_json::Map<_, _> = chain
        .spec
        .genesis_accounts()
        .map(|(address, account)| {
            let storage: serde_json::Map<_, _> = account
                .storage
                .iter()
                .flatten()
                .map(|(slot, value)| (format!("{:#x}", slot), json!(value)))
                .collect();
            let account = json!({
                "balance": account.balance,
                "nonce": format!("{:#x}", account.nonce.unwrap_or_default()),
                "code": account.code.clone().unwrap_or_else(Bytes::new),
                "storage": storage,
            });
            (address.to_string(), account)
        })
        .collect();
    json!({
        "network": network,
        "config": { "chainid": format!("{CHAIN_ID:#x}") },
        "pre": pre,
        "genesisBlockHeader": header_json(chain.spec.genesis_header(), genesis),
        "genesisRLP": rlp(chain.block(genesis)),
        "blocks": [
            good(first),
            { "rlp": rlp(&bad), "expectException": "BlockException.INVALID_STATE_ROOT" },
            good(last),
        ],
        "lastblockhash": last,
        "postStateHash": chain.block(last).header.state_root,
    })
}

/// The same chain without blocks: the post-state is the pre-state.
fn genesis_test() -> Value {
    let mut test = chain_test();
    test["blocks"] = json!([]);
    test["lastblockhash"] = test["genesisBlockHeader"]["hash"].clone();
    test["postState"] = test["pre"].clone();
    test.as_object_mut().unwrap().remove("postStateHash");
    test
}

/// A folder with one suite of one file.
fn folder(file: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(SUITE)).unwrap();
    fs::write(dir.path().join(SUITE).join("file.json"), file).unwrap();
    dir
}

fn report(dir: &Path, exceptions: &str) -> SuiteReport {
    let runner = SuiteRunner::new(ExceptionList::parse(exceptions).unwrap());
    runner.run(dir, find(SUITE).unwrap()).unwrap()
}

/// The failure of the one test in a file; `None` if it passes.
fn failure(test: &Value) -> Option<String> {
    failure_in(SUITE, test)
}

/// The same in any suite.
fn failure_in(name: &str, test: &Value) -> Option<String> {
    let report = report_in(name, test);
    assert_eq!(report.passed + report.failures.len() as u64, 1);
    failure_of(report)
}

/// The report on the one test in a file.
fn report_in(name: &str, test: &Value) -> SuiteReport {
    let suite = find(name).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(suite.archive());
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file.json"), json!({ "case": test }).to_string()).unwrap();
    SuiteRunner::new(ExceptionList::parse("").unwrap()).run(dir.path(), suite).unwrap()
}

fn failure_of(report: SuiteReport) -> Option<String> {
    let failure = report.failures.into_iter().next()?;
    assert_eq!(failure.case, "file.json: case");
    Some(failure.reason)
}

#[test]
fn a_valid_test_passes() {
    assert_eq!(failure(&chain_test()), None);
    assert_eq!(failure(&genesis_test()), None);
}

/// A change that makes a test wrong.
type TestMutation = fn(&mut Value);

#[test]
fn a_test_of_blocks_that_is_made_wrong_fails() {
    let wrong: [(&str, TestMutation); 11] = [
        ("expected is", |t| t["lastblockhash"] = t["genesisBlockHeader"]["hash"].clone()),
        ("the state root is", |t| t["postStateHash"] = t["lastblockhash"].clone()),
        ("is accepted", |t| t["blocks"][0]["expectException"] = json!("X")),
        ("a valid block, is refused: block 2", |t| {
            let bad = &mut t["blocks"][1];
            *bad = json!({ "rlp": bad["rlp"], "blockHeader": {} });
        }),
        ("neither exception nor blockHeader", |t| {
            t["blocks"][1] = json!({ "rlp": t["blocks"][1]["rlp"] });
        }),
        ("unknown parent", |t| drop(t["blocks"].as_array_mut().unwrap().remove(0))),
        ("not a block", |t| {
            let rlp = t["blocks"][2]["rlp"].as_str().unwrap().to_owned();
            t["blocks"][2]["rlp"] = json!(rlp[..rlp.len() - 2]);
        }),
        ("rlp: ", |t| t["blocks"][2]["rlp"] = json!("0xzz")),
        ("unknown network", |t| t["network"] = json!("Atlantis")),
        ("the genesis header hashes to", |t| {
            t["genesisBlockHeader"]["gasLimit"] = json!("0x1388");
        }),
        ("says neither", |t| drop(t.as_object_mut().unwrap().remove("postStateHash"))),
    ];
    for (expected, change) in wrong {
        let mut test = chain_test();
        change(&mut test);
        let reason = failure(&test).unwrap_or_else(|| panic!("{expected}: passes"));
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn a_test_through_the_engine_that_is_made_wrong_fails() {
    assert_eq!(failure_in(ENGINE, &chain_test()), None);
    assert_eq!(failure_in(ENGINE, &genesis_test()), None);
    let wrong: [(&str, TestMutation); 8] = [
        ("expected is", |t| t["lastblockhash"] = t["genesisBlockHeader"]["hash"].clone()),
        ("the state root is", |t| t["postStateHash"] = t["lastblockhash"].clone()),
        ("entry 0: it is accepted", |t| t["blocks"][0]["expectException"] = json!("X")),
        ("entry 1: a valid block is refused: block 2", |t| {
            let bad = &mut t["blocks"][1];
            *bad = json!({ "rlp": bad["rlp"], "blockHeader": {} });
        }),
        ("its parent is not known", |t| drop(t["blocks"].as_array_mut().unwrap().remove(0))),
        ("not a block", |t| {
            let rlp = t["blocks"][2]["rlp"].as_str().unwrap().to_owned();
            t["blocks"][2]["rlp"] = json!(rlp[..rlp.len() - 2]);
        }),
        ("unknown network", |t| t["network"] = json!("Atlantis")),
        ("says neither", |t| drop(t.as_object_mut().unwrap().remove("postStateHash"))),
    ];
    for (expected, change) in wrong {
        let mut test = chain_test();
        change(&mut test);
        let reason = failure_in(ENGINE, &test).unwrap_or_else(|| panic!("{expected}: passes"));
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

/// Cut after two thirds: not a block, so no payload can express it.
fn test_of_a_block_that_is_none() -> Value {
    let mut test = chain_test();
    let rlp = test["blocks"][1]["rlp"].as_str().unwrap().to_owned();
    test["blocks"][1]["rlp"] = json!(rlp[..rlp.len() / 3 * 2 / 2 * 2]);
    test
}

#[test]
fn a_block_that_was_never_sent_is_not_counted_as_refused() {
    let test = test_of_a_block_that_is_none();
    // An importer gets the bytes, and rejects them.
    assert_eq!(failure(&test), None);
    let report = report_in(ENGINE, &test);
    assert_eq!((report.passed, report.not_sent, report.blocks_not_sent), (0, 1, 1));
    assert!(report.line(find(ENGINE).unwrap()).contains(" 1 not sent (1 blocks), "));
    assert_eq!(failure_of(report), None);
    // Its other blocks count as usual.
    let mut test = test;
    test["blocks"][0]["expectException"] = json!("X");
    let reason = failure_in(ENGINE, &test).unwrap();
    assert!(reason.contains("entry 0: it is accepted"), "{reason}");

    let both = json!({ "none": test_of_a_block_that_is_none(), "good": chain_test() });
    let dir = folder(&both.to_string());
    let (ok, out, err) = conformance(&[dir.path().to_str().unwrap(), ENGINE]);
    assert!(ok, "{err}");
    assert!(out.ends_with("\n1 passed, 0 failed, 1 not sent\n"), "{out}");
}

#[test]
fn an_access_list_that_is_made_wrong_fails() {
    let test = || chain_test_of("Amsterdam", TestRules::Amsterdam);
    assert_eq!(failure_in("gen-amsterdam", &test()), None);
    assert_eq!(failure_in(AMSTERDAM, &test()), None);
    let wrong: [(&str, TestMutation); 3] = [
        ("entry 0: a valid block is refused: block hash mismatch", |t| {
            t["blocks"][0]["blockAccessListRLP"] = json!("0xc0");
        }),
        ("entry 2: blockAccessListRLP", |t| {
            t["blocks"][2]["blockAccessListRLP"] = json!("0xzz");
        }),
        ("entry 2: it is accepted", |t| t["blocks"][2]["expectException"] = json!("X")),
    ];
    for (expected, change) in wrong {
        let mut test = test();
        change(&mut test);
        let reason = failure_in(AMSTERDAM, &test).unwrap_or_else(|| panic!("{expected}: passes"));
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn a_witness_that_is_made_wrong_fails() {
    let test = || chain_test_of("Amsterdam", TestRules::Amsterdam);
    assert_eq!(failure_in(WITNESSES, &test()), None);
    let mut wrong = test();
    wrong["blocks"][0]["expectException"] = json!("X");
    let reason = failure_in(WITNESSES, &wrong).unwrap();
    assert!(reason.contains("entry 0: it is accepted"), "{reason}");

    // The block reads the codes of system contracts, so a witness without codes is not its witness.
    let none = json!({ "state": [], "codes": [], "headers": [] });
    let refilled = |witness: Option<Value>| {
        let mut test = test();
        test["blocks"].as_array_mut().unwrap().truncate(1);
        if let Some(witness) = witness {
            test["blocks"][0]["executionWitness"] = witness;
        }
        let output = [&[0x11; 32][..], &[1; 9]].concat();
        test["blocks"][0]["statelessOutputBytes"] = json!(hex::encode_prefixed(output));
        failure_in(REFILLED, &test).unwrap()
    };
    let reason = refilled(Some(none));
    assert!(
        reason.contains("entry 0: codes differ") && reason.contains("missing is none"),
        "{reason}"
    );
    assert!(refilled(None).contains("entry 0: has no executionWitness"));
    assert!(refilled(Some(json!({ "state": [7] }))).contains("entry 0: executionWitness"));
}

/// A payload test with two valid blocks, and a block with a wrong state root between them.
fn payload_test() -> Value {
    let mut test = chain_test();
    let blocks = test.as_object_mut().unwrap().remove("blocks").unwrap();
    let call = |entry: &Value| {
        let rlp = hex::decode(entry["rlp"].as_str().unwrap()).unwrap();
        let block: Block = alloy_rlp::decode_exact(&rlp).unwrap();
        let payload = ExecutionPayloadV3::from_block_unchecked(block.header.hash_slow(), &block);
        let mut call = json!({
            "params": [payload, [], block.header.parent_beacon_block_root],
            "newPayloadVersion": "3",
            "forkchoiceUpdatedVersion": "3",
        });
        if let Some(reason) = entry.get("expectException") {
            call["validationError"] = reason.clone();
        }
        call
    };
    test["engineNewPayloads"] = blocks.as_array().unwrap().iter().map(call).collect();
    test
}

#[test]
fn a_test_of_payloads_that_is_made_wrong_fails() {
    assert_eq!(failure_in(PAYLOADS, &payload_test()), None);
    // Calls that must be refused, and are.
    let refused: [(&str, u64, TestMutation); 2] = [
        ("-38005", 0, |call| {
            call["newPayloadVersion"] = json!("4");
            call["params"].as_array_mut().unwrap().push(json!([]));
        }),
        // The harness cannot parse these, so the engine is not called.
        ("-32602", 1, |call| call["params"] = json!([{}, [], null])),
    ];
    for (code, not_sent, change) in refused {
        let mut test = payload_test();
        let bad = &mut test["engineNewPayloads"][1];
        bad.as_object_mut().unwrap().remove("validationError");
        bad["errorCode"] = json!(code);
        change(bad);
        let report = report_in(PAYLOADS, &test);
        assert_eq!((report.passed, report.not_sent), (1 - not_sent, not_sent), "{code}");
        assert_eq!(failure_of(report), None, "{code}");
    }
    let wrong: [(&str, TestMutation); 7] = [
        ("expected is", |t| t["lastblockhash"] = t["genesisBlockHeader"]["hash"].clone()),
        ("payload 0: it is accepted", |t| {
            t["engineNewPayloads"][0]["validationError"] = json!("X");
        }),
        ("payload 1: a valid block is refused: block 2", |t| {
            t["engineNewPayloads"][1].as_object_mut().unwrap().remove("validationError");
        }),
        ("expected -38005", |t| t["engineNewPayloads"][0]["errorCode"] = json!("-38005")),
        ("Unsupported fork", |t| {
            let call = &mut t["engineNewPayloads"][0];
            call["newPayloadVersion"] = json!("4");
            call["params"].as_array_mut().unwrap().push(json!([]));
        }),
        ("parameters: ", |t| t["engineNewPayloads"][0]["params"] = json!([])),
        ("lists no payloads", |t| t["engineNewPayloads"] = json!([])),
    ];
    for (expected, change) in wrong {
        let mut test = payload_test();
        change(&mut test);
        let reason = failure_in(PAYLOADS, &test).unwrap_or_else(|| panic!("{expected}: passes"));
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn a_post_state_that_is_made_wrong_fails() {
    let contract = &GENESIS_CONTRACT.to_string();
    let wrong: [(&str, &str, Value); 6] = [
        ("balance 1, expected 2", "/balance", json!("0x02")),
        ("nonce 1, expected 2", "/nonce", json!("0x02")),
        ("code 0x", "/code", json!("0x00")),
        ("slot 0x1 is 0x11, expected 0x12", "/storage/0x1", json!("0x12")),
        ("slot 0x1 is 0x11, expected 0x0", "/storage/0x1", json!("0x00")),
        ("exists after", "", Value::Null),
    ];
    for (expected, field, value) in wrong {
        let mut test = genesis_test();
        let accounts = test["postState"].as_object_mut().unwrap();
        let account = accounts.get_mut(contract).unwrap();
        let storage = account["storage"].as_object().unwrap().iter();
        let storage: serde_json::Map<_, _> = storage
            .map(|(slot, value)| {
                let slot: alloy_primitives::U256 = slot.parse().unwrap();
                (format!("{slot:#x}"), value.clone())
            })
            .collect();
        account["storage"] = storage.into();
        if field.is_empty() {
            accounts.remove(contract);
        } else {
            *account.pointer_mut(field).unwrap() = value;
        }
        let reason = failure(&test).unwrap_or_else(|| panic!("{expected}: passes"));
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
    let mut test = genesis_test();
    test["postState"][Address::repeat_byte(9).to_string()] = json!({});
    assert!(failure(&test).unwrap().contains("is missing after"));
}

#[test]
fn an_exception_must_fail() {
    let exception = format!(
        "[[exception]]\nsuite = \"{SUITE}\"\nname = \"file.json: case\"\nreason = \"known\"\n"
    );
    let mut test = chain_test();
    let dir = folder(&json!({ "case": test }).to_string());
    let passing = report(dir.path(), &exception);
    assert_eq!((passing.passed, passing.expected), (0, 0));
    assert!(passing.failures[0].reason.contains("listed as an exception"));
    test["network"] = json!("Atlantis");
    let dir = folder(&json!({ "case": test }).to_string());
    let failing = report(dir.path(), &exception);
    assert_eq!((failing.passed, failing.expected, failing.failures.len()), (0, 1, 0));
}

#[test]
fn files_that_are_no_tests_are_failures() {
    let whole = json!({ "case": chain_test() }).to_string();
    for (file, expected) in [
        (&whole[..whole.len() / 2], "bad JSON"),
        ("{}", "holds no tests"),
        ("7", "bad JSON"),
        ("{\"a\": 7}", "not a test of this kind"),
    ] {
        let dir = folder(file);
        let report = report(dir.path(), "");
        assert_eq!(report.passed, 0, "{expected}");
        let failure = &report.failures[0];
        assert!(failure.case.starts_with("file.json"), "{}", failure.case);
        assert!(failure.reason.contains(expected), "{}", failure.reason);
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(SUITE)).unwrap();
    assert!(report(dir.path(), "").failures[0].reason.contains("holds no tests"));
}

/// Packs one test file as the suites are packed.
fn archive() -> Vec<u8> {
    let content = json!({ "case": chain_test() }).to_string();
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, format!("{SUITE}/sub/file.json"), content.as_bytes()).unwrap();
    zstd::stream::encode_all(tar.into_inner().unwrap().as_slice(), 0).unwrap()
}

#[test]
fn archives_are_read_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("{SUITE}.tar.zst"));
    let good = archive();
    let sums = dir.path().join("SHA256SUMS");
    let line =
        |content: &[u8]| format!("{}  {SUITE}.tar.zst\n", hex::encode(Sha256::digest(content)));

    fs::write(&path, &good).unwrap();
    let files = read(dir.path(), SUITE).unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].path, "sub/file.json");
    fs::write(&sums, line(&good)).unwrap();
    assert_eq!(report(dir.path(), "").passed, 1);

    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bad in [&flipped[..], &good[..good.len() - 9]] {
        fs::write(&path, bad).unwrap();
        let error = read(dir.path(), SUITE).unwrap_err();
        assert!(matches!(error, ArchiveError::Checksum { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{SUITE}.tar.zst")), "{error}");
    }
    // Without checksums a truncated archive fails when it is unpacked.
    fs::remove_file(&sums).unwrap();
    let error = read(dir.path(), SUITE).unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");

    fs::write(&sums, "").unwrap();
    assert!(matches!(read(dir.path(), SUITE), Err(ArchiveError::NoChecksum { .. })));
    // A listed archive that is missing is still requested.
    fs::write(&sums, line(&good)).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(names(dir.path()).unwrap(), [SUITE]);
    let error = read(dir.path(), SUITE).unwrap_err();
    assert!(matches!(error, ArchiveError::Missing { .. }), "{error}");
}

/// Runs the program; returns success, stdout and stderr.
fn conformance(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_conformance")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_program_says_what_it_ran_and_fails_when_something_failed() {
    let good = folder(&json!({ "case": chain_test() }).to_string());
    let (ok, out, err) = conformance(&[good.path().to_str().unwrap()]);
    assert!(ok, "{err}");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[0].starts_with(SUITE) && lines[1].starts_with(ENGINE), "{out}");
    assert_eq!(lines[2], "2 passed, 0 failed");

    let mut test = chain_test();
    test["network"] = json!("Atlantis");
    let bad = folder(&json!({ "bad": test, "good": chain_test() }).to_string());
    let (ok, out, err) = conformance(&[bad.path().to_str().unwrap(), SUITE]);
    assert!(!ok);
    assert!(out.ends_with("\n1 passed, 1 failed\n"), "{out}");
    assert!(err.contains("file.json: bad: unknown network Atlantis"), "{err}");

    let dir = good.path().to_str().unwrap();
    for (args, expected) in [
        (vec![dir, "no-such-suite"], "no suite is called no-such-suite"),
        (vec![dir, "p2p"], "there is no suite p2p"),
        (vec!["/no/such/folder"], "/no/such/folder"),
    ] {
        let (ok, out, err) = conformance(&args);
        assert!(!ok && out.is_empty(), "{expected}: {out}");
        assert!(err.contains(expected), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    fs::create_dir(good.path().join("strange")).unwrap();
    let (ok, _, err) = conformance(&[dir]);
    assert!(!ok && err.contains("strange is no suite"), "{err}");
}
