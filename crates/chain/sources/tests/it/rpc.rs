//! Blocks as real nodes send them (the rpc-compat suite), and the wire's corner cases.

use std::{
    collections::BTreeMap,
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::common::mainnet_data;
use alloy_primitives::{Address, B256, U256};
use retrie_chainspec::primitives::{Block, Header};
use retrie_sources::{
    BlockingClient, HttpFault, HttpOptions, RpcClient, RpcError,
    rpc::{RemoteAccount, RpcErrorKind},
    testkit::{HttpServer, ScriptedReply},
};
use serde_json::{Value, json};

fn client(server: &HttpServer) -> RpcClient {
    let options = HttpOptions {
        timeout: Duration::from_secs(10),
        retries: 2,
        backoff: Duration::from_millis(1),
        ..HttpOptions::default()
    };
    RpcClient::new(&server.url(), BlockingClient::new(options, Arc::default()))
}

/// A node that accepts single calls and batches of up to `limit` calls.
fn node(
    limit: usize,
    answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static,
) -> HttpServer {
    HttpServer::start(move |request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        let one = |call: &Value| {
            let mut reply = answer(call["method"].as_str().unwrap(), &call["params"]);
            reply["id"] = call["id"].clone();
            reply
        };
        let reply = match &call {
            Value::Array(calls) if calls.len() > limit => {
                return ScriptedReply::new(413, "too large");
            }
            Value::Array(calls) => calls.iter().map(one).collect(),
            call => one(call),
        };
        ScriptedReply::new(200, reply.to_string())
    })
    .unwrap()
}

fn result(value: Value) -> Value {
    json!({"jsonrpc": "2.0", "result": value})
}

/// Files of the rpc-compat suite, by path; `None` if it is missing.
fn rpc_compat() -> Option<BTreeMap<String, Vec<u8>>> {
    let archive = mainnet_data()?.join("../conformance/rpc-compat.tar.zst");
    let Ok(file) = std::fs::File::open(&archive) else {
        let required = std::env::var("RETRIE_REQUIRE_DATA").is_ok_and(|v| v == "1");
        assert!(!required, "RETRIE_REQUIRE_DATA=1, but {} is missing", archive.display());
        eprintln!("skipped: no rpc-compat suite");
        return None;
    };
    let mut files = BTreeMap::new();
    let mut archive = tar::Archive::new(zstd::Decoder::new(file).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.insert(path, bytes);
    }
    Some(files)
}

/// The answers of an `.io` file.
fn answers(io: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(io).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("<< "));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn blocks_of_a_real_node_are_rebuilt() {
    let Some(files) = rpc_compat() else { return };
    let chain = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&chain, &files["rpc-compat/chain.rlp"]).unwrap();
    let blocks: BTreeMap<u64, Block> = retrie_sources::RlpReader::open(chain.path())
        .unwrap()
        .map(|block| block.unwrap().block)
        .map(|block| (block.header.number, block))
        .collect();
    let (mut whole, mut headers) = (0, 0);
    for (path, io) in &files {
        if !path.contains("/eth_getBlockBy") {
            continue;
        }
        for answer in answers(io).into_iter().filter(|answer| answer["result"].is_object()) {
            let number: U256 = serde_json::from_value(answer["result"]["number"].clone()).unwrap();
            let Some(block) = blocks.get(&number.to()) else { continue };
            let full = answer["result"]["transactions"][0].is_object();
            let server = node(100, move |_, _| answer.clone());
            let (hash, header) = client(&server).header(block.header.number).unwrap();
            assert_eq!((hash, &header), (block.header.hash_slow(), &block.header), "{path}");
            headers += 1;
            if full {
                assert_eq!(client(&server).block(block.header.number).unwrap(), *block, "{path}");
                whole += 1;
            }
        }
    }
    assert!(whole >= 1 && headers >= 5, "{whole} {headers}");
}

#[test]
fn raw_block_of_a_real_node_replaces_json_that_lacks_something() {
    let Some(files) = rpc_compat() else { return };
    let raw = answers(&files["rpc-compat/debug_getRawBlock/get-block-n.io"]).remove(0);
    let bytes: alloy_primitives::Bytes = serde_json::from_value(raw["result"].clone()).unwrap();
    let block: Block = alloy_rlp::decode_exact(&bytes).unwrap();
    let mut json = json!(block.header);
    json["hash"] = json!(block.header.hash_slow());
    json["transactions"] = json!([{"type": "0x7e"}]);
    let number = block.header.number;
    let server = node(1, move |method, _| match method {
        "debug_getRawBlock" => raw.clone(),
        _ => result(json.clone()),
    });
    assert_eq!(client(&server).block(number).unwrap(), block);
}

#[test]
fn batches_shrink_to_what_the_node_takes() {
    let keys: Vec<_> = (0..250u64).map(|n| (Address::ZERO, B256::from(U256::from(n)))).collect();
    for limit in [100, 30, 3, 1] {
        let server = node(limit, |_, params| result(params[1].clone()));
        let client = client(&server);
        let values = client.slots(&keys, 7).unwrap();
        assert!(values.iter().copied().eq((0..250).map(U256::from)), "{limit}");
        let sizes: Vec<_> = server
            .requests()
            .iter()
            .map(|r| serde_json::from_slice::<Value>(&r.body).unwrap())
            .map(|call| call.as_array().map_or(1, Vec::len))
            .collect();
        // Refused batch sizes are not tried again.
        assert!(sizes.windows(2).filter(|pair| pair[0] < pair[1]).count() == 0, "{sizes:?}");
    }
}

#[test]
fn each_answer_goes_to_its_call() {
    let server = node(100, |method, _| match method {
        "eth_getBalance" => result(json!("0x0de0b6b3a7640000")),
        "eth_getTransactionCount" => result(json!("0x7")),
        _ => result(json!("0x6001")),
    });
    let account = client(&server).accounts(&[Address::ZERO], 7).unwrap();
    let expected = RemoteAccount {
        nonce: 7,
        balance: U256::from(10).pow(U256::from(18)),
        code: [0x60, 1].into(),
    };
    assert_eq!(account, [expected]);
}

#[test]
fn odd_results_are_named() {
    let slot = |value: Value| -> Result<Vec<U256>, RpcError> {
        client(&node(1, move |_, _| result(value.clone()))).slots(&[(Address::ZERO, B256::ZERO)], 7)
    };
    for odd in [json!(null), json!("0xzz"), json!({}), json!([])] {
        let error = slot(odd).unwrap_err();
        assert!(matches!(*error.kind, RpcErrorKind::Result(_)), "{error}");
        let line = error.to_string();
        assert!(line.contains("eth_getStorageAt at block 7"), "{line}");
    }
    let half = HttpServer::start(|request| {
        let calls: Value = serde_json::from_slice(&request.body).unwrap();
        let mut reply = result(json!("0x1"));
        reply["id"] = calls[0]["id"].clone();
        ScriptedReply::new(200, json!([reply]).to_string())
    })
    .unwrap();
    let line = client(&half).slots(&[(Address::ZERO, B256::ZERO); 2], 7).unwrap_err().to_string();
    assert!(line.contains("answered in part"), "{line}");
}

#[test]
fn server_that_asks_to_wait_is_asked_again() {
    let asked = AtomicU32::new(0);
    let server = HttpServer::start(move |request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        match asked.fetch_add(1, Ordering::Relaxed) {
            0 => ScriptedReply::new(429, "slow down").with("retry-after", "0"),
            1 => ScriptedReply::new(503, ""),
            _ => {
                let mut reply = result(json!(B256::with_last_byte(5)));
                reply["id"] = call["id"].clone();
                ScriptedReply::new(200, reply.to_string())
            }
        }
    })
    .unwrap();
    let values = client(&server).slots(&[(Address::ZERO, B256::ZERO)], 7).unwrap();
    assert_eq!(values, [U256::from(5)]);
    let busy = HttpServer::start(|_| ScriptedReply::new(429, "")).unwrap();
    let line = client(&busy).block(7).unwrap_err().to_string();
    assert!(line.contains("429") && line.contains("3 times in a row"), "{line}");
}

/// A followed node may lie, and no answer may fill the memory.
#[test]
fn answers_that_hold_one_block_are_bounded() {
    let header = Header { number: 7, ..Header::default() };
    let hash = header.hash_slow();
    let mut block = serde_json::to_value(&header).unwrap();
    block["hash"] = json!(hash);
    block["transactions"] = json!([]);
    block["uncles"] = json!([]);
    let answer = result(block.clone());
    let server = node(100, move |_, _| answer.clone());
    assert_eq!(client(&server).header_by_hash(hash).unwrap(), header);
    let other = client(&server).header_by_hash(B256::ZERO).unwrap_err();
    assert!(matches!(*other.kind, RpcErrorKind::Block(_)), "{other}");

    // Each ommer would cause a request.
    block["uncles"] = json!(vec![B256::ZERO; 1000]);
    let answer = result(block);
    let server = node(100, move |_, _| answer.clone());
    let error = client(&server).block_by_hash(hash).unwrap_err();
    assert!(matches!(*error.kind, RpcErrorKind::TooManyOmmers { count: 1000, most: 2 }), "{error}");
    assert_eq!(server.requests().len(), 1);

    let long = format!("{}{{}}", " ".repeat(97 << 20));
    let server = HttpServer::start(move |_| ScriptedReply::new(200, long.clone())).unwrap();
    let error = client(&server).block(7).unwrap_err();
    let RpcErrorKind::Http(fault) = &*error.kind else { panic!("{error}") };
    assert!(matches!(fault, HttpFault::TooLong(_)), "{error}");
}

#[test]
fn traces_of_a_block_are_asked_for_plain_and_as_a_diff() {
    let address = Address::repeat_byte(1);
    let server = node(1, move |method, params| {
        assert_eq!((method, &params[0]), ("debug_traceBlockByNumber", &json!("0x11")));
        assert_eq!(params[1]["tracer"], "prestateTracer");
        let account = json!({ address.to_string(): { "balance": "0x10", "nonce": 7 } });
        result(match params[1]["tracerConfig"]["diffMode"].as_bool() {
            Some(true) => json!([{ "result": { "pre": account, "post": {} } }]),
            _ => json!([{ "result": account }]),
        })
    });
    let traces = client(&server).block_traces(17).unwrap();
    assert_eq!((traces.number, traces.touched.len(), traces.changed.len()), (17, 1, 1));
    assert_eq!(traces.touched[0].0[&address].nonce, Some(7));
    assert_eq!(traces.changed[0].0.pre[&address].balance, Some(U256::from(16)));
    // A transaction that the node could not trace is an error, which names the block.
    let server = node(1, |_, _| result(json!([{ "txHash": B256::ZERO, "error": "timed out" }])));
    let error = client(&server).block_traces(17).unwrap_err().to_string();
    assert!(error.contains("block 17") && error.contains("timed out"), "{error}");
}
