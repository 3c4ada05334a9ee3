//! The authenticated port: access, and what it serves.

use crate::common::{NodeFixture, WsClient, http, mpt, request, test_chain};
use alloy_primitives::Bytes;
use alloy_rlp::Header;
use alloy_rpc_types_engine::{ExecutionPayload, JwtSecret};
use retrie_engine::{BuilderConfig, EngineApi, PayloadBuilder};
use retrie_pipeline::testkit::{BlockPlan, TestRules};
use retrie_rpc::server::{AuthConfig, RunningServers, ServerConfig, sign_token};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

pub(super) async fn serve(node: &NodeFixture, secret: JwtSecret) -> (RunningServers, SocketAddr) {
    let auth = AuthConfig { addr: "127.0.0.1:0".parse().unwrap(), ..AuthConfig::new(secret) };
    let config = ServerConfig { auth: Some(auth), ..ServerConfig::default() };
    let payloads =
        PayloadBuilder::new(node.live().clone(), node.pool.clone(), BuilderConfig::default());
    let api = EngineApi::new(node.engine.handle().clone(), payloads, node.pool.clone());
    let servers = RunningServers::start(&config, &node.rpc, Some(api)).await.unwrap();
    let addr = servers.auth_addr().unwrap();
    (servers, addr)
}

/// A token issued `seconds` seconds from now.
pub(super) fn token(secret: &JwtSecret, seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    format!("Bearer {}", sign_token(secret, now.saturating_add_signed(seconds)))
}

#[tokio::test]
async fn only_fresh_tokens_under_the_secret_are_let_in() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let secret = JwtSecret::random();
    let (_servers, addr) = serve(&node, secret).await;
    let body = request("eth_chainId", json!([])).to_string();
    let ask = async |authorization: Option<&str>| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(authorization.map(|value| ("authorization", value)));
        http(addr, "POST", "/", &headers, &body).await
    };
    for seconds in [0, -50, 50] {
        let answer = ask(Some(&token(&secret, seconds))).await;
        assert_eq!(answer.status, 200, "{seconds}: {}", answer.body);
        assert_eq!(answer.json()["result"], "0x1ca3");
    }
    let good = token(&secret, 0);
    let unsigned = good.rsplit_once('.').unwrap().0;
    for bad in [
        token(&secret, -70),
        token(&secret, 70),
        token(&JwtSecret::random(), 0),
        "Bearer nonsense".into(),
        "Bearer".into(),
        good.replace("Bearer", "Basic"),
        unsigned.into(),
    ] {
        let answer = ask(Some(&bad)).await;
        assert_eq!(answer.status, 401, "{bad}");
        assert!(answer.body.contains("token"), "a reason: {}", answer.body);
    }
    let answer = ask(None).await;
    assert_eq!(answer.status, 401);
    assert!(answer.body.starts_with("missing token"));
}

#[tokio::test]
async fn websockets_need_a_token_too() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let secret = JwtSecret::random();
    let (_servers, addr) = serve(&node, secret).await;
    assert_eq!(WsClient::connect(addr, &[]).await.err(), Some(401));
    let bad = token(&JwtSecret::random(), 0);
    assert_eq!(WsClient::connect(addr, &[("authorization", &bad)]).await.err(), Some(401));
    let good = token(&secret, 0);
    let mut ws = WsClient::connect(addr, &[("authorization", &good)]).await.unwrap();
    assert_eq!(ws.call("eth_blockNumber", json!([])).await["result"], "0x0");
}

#[tokio::test]
async fn consensus_clients_find_engine_and_eth_and_nothing_else() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let secret = JwtSecret::random();
    let (_servers, addr) = serve(&node, secret).await;
    let ask = async |method: &str, params: Value| -> Value {
        let body = request(method, params).to_string();
        let headers =
            [("content-type", "application/json"), ("authorization", &*token(&secret, 0))];
        http(addr, "POST", "/", &headers, &body).await.json()
    };
    let capabilities = ask("engine_exchangeCapabilities", json!([[]])).await;
    let served: Vec<String> = serde_json::from_value(capabilities["result"].clone()).unwrap();
    assert!(served.contains(&"engine_newPayloadV4".into()));
    for method in &served {
        let answer = ask(method, json!([])).await;
        // The method exists: only its parameters are missing.
        assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
    }
    let head = node.live().head().hash();
    let state = json!({ "headBlockHash": head, "safeBlockHash": head, "finalizedBlockHash": head });
    let updated = ask("engine_forkchoiceUpdatedV3", json!([state, null])).await;
    assert_eq!(updated["result"]["payloadStatus"]["status"], "VALID", "{updated}");
    for columns in [json!(null), json!(format!("0x{}", "0f".repeat(16)))] {
        let updated = ask("engine_forkchoiceUpdatedV4", json!([state, null, columns])).await;
        assert_eq!(updated["result"]["payloadStatus"]["status"], "VALID", "{updated}");
    }
    for params in [json!([state, null, "0x0f"]), json!([state, null, null, null])] {
        let refused = ask("engine_forkchoiceUpdatedV4", params).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    // Blobs have no cell proofs before Osaka.
    let mask = format!("0x{}", "ff".repeat(16));
    let cells = ask("engine_getBlobsV4", json!([[head], mask])).await;
    assert!(cells["error"].is_null() && cells["result"].is_null(), "{cells}");
    for params in [json!([[head], "0xff"]), json!([[head]]), json!([["0x01"], mask])] {
        let refused = ask("engine_getBlobsV4", params).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let many = ask("engine_getBlobsV4", json!([vec![head; 129], mask])).await;
    assert_eq!(many["error"]["code"], -38004, "{many}");
    let identity = json!([{ "code": "LH", "name": "a", "version": "b", "commit": "0x00000000" }]);
    let version = ask("engine_getClientVersionV1", identity).await;
    assert_eq!(version["result"][0]["name"], "retrie");
    assert_eq!(ask("eth_syncing", json!([])).await["result"], false);
    assert_eq!(ask("admin_nodeInfo", json!([])).await["error"]["code"], -32601);
    let unknown = ask("engine_getPayloadV3", json!(["0x0000000000000001"])).await;
    assert_eq!(unknown["error"]["code"], -38001, "{unknown}");
}

/// Cause: null in an absent field of a payload was refused; consensus clients in Go write it.
#[tokio::test]
async fn a_payload_may_have_null_where_it_has_nothing() {
    let mut chain = test_chain(TestRules::Merge(1));
    let node = NodeFixture::new(&chain.spec, mpt());
    let secret = JwtSecret::random();
    let (_servers, addr) = serve(&node, secret).await;
    let ask = async |method: &str, params: Value| -> Value {
        let body = request(method, params).to_string();
        let headers =
            [("content-type", "application/json"), ("authorization", &*token(&secret, 0))];
        http(addr, "POST", "/", &headers, &body).await.json()
    };
    let (genesis, mut tip) = (chain.genesis(), chain.genesis());
    while tip == genesis || !chain.block(tip).header.difficulty.is_zero() {
        tip = chain.extend(tip, BlockPlan::new(Vec::new()));
    }
    let below = chain.path(genesis, chain.block(tip).header.parent_hash);
    node.add(&below).await;
    let (payload, _) = ExecutionPayload::from_block_unchecked(tip, chain.block(tip));
    let mut payload = serde_json::to_value(payload).unwrap();
    for field in ["withdrawals", "blobGasUsed", "excessBlobGas", "blockAccessList", "slotNumber"] {
        payload[field] = Value::Null;
    }
    for method in ["engine_newPayloadV1", "engine_newPayloadV2"] {
        let status = ask(method, json!([payload])).await;
        assert_eq!(status["result"]["status"], "VALID", "{method}: {status}");
    }
    // As geth answers: the same status, and the RLP of a witness of four lists.
    for method in ["engine_newPayloadWithWitnessV1", "engine_newPayloadWithWitnessV2"] {
        let status = ask(method, json!([payload])).await["result"].take();
        assert_eq!((&status["status"], &status["latestValidHash"]), (&json!("VALID"), &json!(tip)));
        assert!(status.as_object().unwrap().contains_key("validationError"), "{status}");
        let witness: Bytes = serde_json::from_value(status["witness"].clone()).unwrap();
        let mut rest = witness.as_ref();
        let mut lists = Header::decode_bytes(&mut rest, true).unwrap();
        for _ in 0..4 {
            Header::decode_bytes(&mut lists, true).unwrap();
        }
        assert!(rest.is_empty() && lists.is_empty(), "{method}");
    }
    // A required field must not be null, and a forbidden field must be null or absent.
    let beside = json!([payload, [], tip]);
    assert_eq!(ask("engine_newPayloadV3", beside).await["error"]["code"], -32602);
    payload["blobGasUsed"] = json!("0x0");
    assert_eq!(ask("engine_newPayloadV2", json!([payload])).await["error"]["code"], -32602);
    payload["blockNumber"] = Value::Null;
    assert_eq!(ask("engine_newPayloadV1", json!([payload])).await["error"]["code"], -32602);
    let mut attributes = json!({
        "timestamp": format!("{:#x}", chain.block(tip).header.timestamp + 12),
        "prevRandao": tip,
        "suggestedFeeRecipient": format!("0x{:040x}", 1),
    });
    for field in ["withdrawals", "parentBeaconBlockRoot", "slotNumber", "targetGasLimit"] {
        attributes[field] = Value::Null;
    }
    let state = json!({ "headBlockHash": tip, "safeBlockHash": tip, "finalizedBlockHash": tip });
    let updated = ask("engine_forkchoiceUpdatedV1", json!([state, attributes])).await;
    assert!(updated["result"]["payloadId"].is_string(), "{updated}");
}
