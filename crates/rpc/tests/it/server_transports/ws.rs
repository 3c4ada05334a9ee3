//! WebSocket: calls and subscriptions, over reorganisations and limits.

use crate::common::{NodeFixture, WsClient, backends, mpt, request, test_chain};
use alloy_primitives::{Address, B256};
use futures::{SinkExt, StreamExt};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestRules, TestWallet};
use retrie_rpc::server::{ConnectionLimits, RunningServers, ServerConfig};
use serde_json::{Value, json};
use soketto::Incoming;
use std::{cell::Cell, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{CloseCode, Data, OpCode},
    },
};

async fn served(node: &NodeFixture, config: &ServerConfig) -> (RunningServers, SocketAddr) {
    let servers = node.serve(&ServerConfig { http: None, ..config.clone() }).await;
    let addr = servers.ws_addr().unwrap();
    (servers, addr)
}

async fn subscribe(ws: &mut WsClient, params: Value) -> Value {
    let answer = ws.call("eth_subscribe", params).await;
    assert!(answer["result"].is_string(), "{answer}");
    answer["result"].clone()
}

#[tokio::test]
async fn subscribers_hear_of_heads_and_logs_and_of_what_a_reorg_takes_back() {
    for backend in backends() {
        let name = backend.identity().name;
        let mut chain = test_chain(TestRules::Cancun);
        let mut node = NodeFixture::new(&chain.spec, backend);
        let (_servers, addr) = served(&node, &node.config()).await;
        let mut heads = WsClient::connect(addr, &[]).await.unwrap();
        let mut logs = WsClient::connect(addr, &[]).await.unwrap();
        let heads_id = subscribe(&mut heads, json!(["newHeads"])).await;
        let logs_id = subscribe(&mut logs, json!(["logs", { "address": GENESIS_CONTRACT }])).await;

        let genesis = chain.genesis();
        let store =
            |wallet, slot| BlockPlan::new([TestCall::store(wallet, GENESIS_CONTRACT, slot, 7)]);
        let a1 = chain.extend(genesis, store(1, 1));
        let a2 = chain.extend(a1, store(1, 2));
        let b1 = chain.extend(genesis, store(2, 3).after(13));
        let b2 = chain.extend(b1, BlockPlan::new([]));
        let b3 = chain.extend(b2, store(2, 4));
        for (from, to) in [(genesis, a2), (genesis, b3)] {
            node.add(&chain.path(from, to)).await;
        }
        node.set_head(a2, B256::ZERO, B256::ZERO).await;
        for block in [a1, a2] {
            let head = heads.event(&heads_id).await;
            assert_eq!(head["hash"], json!(block), "{name}");
            assert_eq!(head["stateRoot"], json!(chain.block(block).header.state_root));
            let log = logs.event(&logs_id).await;
            assert_eq!((&log["blockHash"], &log["removed"]), (&json!(block), &json!(false)));
        }
        node.set_head(b3, B256::ZERO, B256::ZERO).await;
        for block in [b1, b2, b3] {
            assert_eq!(heads.event(&heads_id).await["hash"], json!(block), "{name}");
        }
        for (block, removed) in [(a2, true), (a1, true), (b1, false), (b3, false)] {
            let log = logs.event(&logs_id).await;
            assert_eq!((&log["blockHash"], &log["removed"]), (&json!(block), &json!(removed)));
        }

        let answer = heads.call("eth_unsubscribe", json!([heads_id])).await;
        assert_eq!(answer["result"], true);
        let answer = heads.call("eth_unsubscribe", json!([heads_id])).await;
        assert_eq!(answer["result"], false, "it is gone");
    }
}

/// Cause: the responses of a batch's subscriptions were messages of their own, beside the batch's
/// array (jsonrpsee#806).
#[tokio::test]
async fn a_batch_with_subscriptions_has_one_answer() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let (_servers, addr) = served(&node, &node.config()).await;
    let mut ws = WsClient::connect(addr, &[]).await.unwrap();
    let request = |id: Value, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let batch = json!([
        request(json!(1), "eth_chainId", json!([])),
        request(json!(2), "eth_subscribe", json!(["newHeads"])),
        request(json!(3), "eth_subscribe", json!(["newHats"])),
        // An id that jsonrpsee cannot represent.
        request(json!(4.5), "eth_subscribe", json!(["newHeads"])),
        request(json!("five"), "eth_blockNumber", json!([])),
    ]);
    ws.send(&batch.to_string()).await;
    let answers = ws.next().await;
    let answers = answers.as_array().unwrap_or_else(|| panic!("no array: {answers}"));
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [&json!(1), &json!(2), &json!(3), &json!(4.5), &json!("five")]);
    assert_eq!(answers[2]["error"]["code"], -32601, "{}", answers[2]);
    let subscriptions = [&answers[1]["result"], &answers[3]["result"]];
    assert!(subscriptions.iter().all(|id| id.is_string()), "{answers:?}");

    let genesis = chain.genesis();
    let block = chain.extend(genesis, BlockPlan::new([]));
    node.add(&chain.path(genesis, block)).await;
    node.set_head(block, B256::ZERO, B256::ZERO).await;
    let mut told = Vec::new();
    for _ in subscriptions {
        let event = ws.next().await;
        assert_eq!(event["params"]["result"]["hash"], json!(block), "{event}");
        told.push(event["params"]["subscription"].clone());
    }
    assert!(subscriptions.iter().all(|id| told.contains(id)), "{told:?}");
    let gone = ws.call("eth_unsubscribe", json!([subscriptions[0]])).await;
    assert_eq!(gone["result"], true, "{gone}");
}

#[tokio::test]
async fn subscribers_hear_of_transactions_that_wait() {
    let chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let genesis = chain.genesis();
    node.set_head(genesis, B256::ZERO, B256::ZERO).await;
    let (_servers, addr) = served(&node, &node.config()).await;
    let mut hashes = WsClient::connect(addr, &[]).await.unwrap();
    let mut full = WsClient::connect(addr, &[]).await.unwrap();
    let hashes_id = subscribe(&mut hashes, json!(["newPendingTransactions"])).await;
    let full_id = subscribe(&mut full, json!(["newPendingTransactions", true])).await;
    let raw = crate::common::signed_transfer(0, 0);
    let hash = node.call("eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(hashes.event(&hashes_id).await, hash);
    let event = full.event(&full_id).await;
    assert_eq!((&event["hash"], &event["blockHash"]), (&hash, &Value::Null));
    let sender = json!(TestWallet::new(0).address.to_string().to_lowercase());
    assert_eq!(event["from"], sender);
}

#[tokio::test]
async fn subscriptions_have_limits_and_names() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let limits = ConnectionLimits { max_subscriptions: 2, ..ConnectionLimits::default() };
    let (servers, addr) = served(&node, &ServerConfig { limits, ..node.config() }).await;
    let mut ws = WsClient::connect(addr, &[]).await.unwrap();
    let unknown = ws.call("eth_subscribe", json!(["newHats"])).await;
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    let bad = ws.call("eth_subscribe", json!(["logs", { "address": 7 }])).await;
    assert_eq!(bad["error"]["code"], -32602, "{bad}");
    let syncing = subscribe(&mut ws, json!(["syncing"])).await;
    assert_eq!(ws.event(&syncing).await, false);
    subscribe(&mut ws, json!(["newHeads"])).await;
    let third = ws.call("eth_subscribe", json!(["newHeads"])).await;
    assert!(third["error"].is_object(), "{third}");
    let unknown = ws.call("eth_nope", json!([])).await;
    assert_eq!(unknown["error"]["code"], -32601);
    ws.send("hello").await;
    assert_eq!(ws.next().await["error"]["code"], -32700);

    assert_eq!(
        WsClient::connect(addr, &[("origin", "https://evil.example")]).await.err(),
        Some(403)
    );
    assert!(WsClient::connect(addr, &[("origin", "http://localhost:3000")]).await.is_ok());
    let post = crate::common::post(addr, "{}").await;
    assert_eq!(post.status, 403, "there is no HTTP here");
    servers.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read() {
    const COUNT: usize = 1500;
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let limits = ConnectionLimits { max_response_size: 1 << 20, ..ConnectionLimits::default() };
    let (_servers, addr) = served(&node, &ServerConfig { limits, ..node.config() }).await;
    let mut ws = WsClient::connect(addr, &[]).await.unwrap();
    // The error repeats the key, so the response is as large as the request.
    let params = json!([Address::ZERO, "1".repeat(100_000), "latest"]);
    let request = request("eth_getStorageAt", params).to_string();
    let sent = Cell::new(0);
    let (sender, receiver) = ws.split();
    let sending = async {
        while sent.get() < COUNT {
            sender.send_text(&request).await.unwrap();
            sender.flush().await.unwrap();
            sent.set(sent.get() + 1);
        }
    };
    tokio::pin!(sending);
    let stuck = tokio::time::timeout(Duration::from_secs(3), &mut sending).await;
    assert!(stuck.is_err(), "{} requests were taken", sent.get());
    let receiving = async {
        for _ in 0..COUNT {
            let mut data = Vec::new();
            receiver.receive_data(&mut data).await.unwrap();
            let answer: Value = serde_json::from_slice(&data).unwrap();
            assert_eq!(answer["error"]["code"], -32602);
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn a_client_hears_that_its_request_is_too_large_before_it_is_let_go() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let limits = ConnectionLimits { max_request_size: 100_000, ..ConnectionLimits::default() };
    let (_servers, addr) = served(&node, &ServerConfig { limits, ..node.config() }).await;
    // The larger message is still being sent when the node refuses it.
    for size in [100_001, 20 << 20] {
        let mut ws = WsClient::connect(addr, &[]).await.unwrap();
        assert!(ws.call("eth_chainId", json!([])).await["result"].is_string());
        ws.send(&"x".repeat(size)).await;
        assert_eq!(ws.next().await["error"]["code"], -32007, "{size} bytes");
        match ws.split().1.receive(&mut Vec::new()).await {
            Ok(Incoming::Closed(reason)) => assert_eq!(reason.code, 1009, "{size} bytes"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn fragments_are_one_message_and_bounded_as_one() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let limits = ConnectionLimits { max_request_size: 500_000, ..ConnectionLimits::default() };
    let (_servers, addr) = served(&node, &ServerConfig { limits, ..node.config() }).await;
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut ws, _) =
        tokio_tungstenite::client_async(format!("ws://{addr}/"), stream).await.unwrap();
    let fragment = |text: &str, kind, is_last| {
        Message::Frame(Frame::message(text.to_string(), OpCode::Data(kind), is_last))
    };
    let params = json!([Address::ZERO, "1".repeat(400_000), "latest"]);
    let request = request("eth_getStorageAt", params).to_string();
    let (start, end) = request.split_at(request.len() / 2);
    ws.send(fragment(start, Data::Text, false)).await.unwrap();
    // Control frames may come in between.
    ws.send(Message::Ping("here?".into())).await.unwrap();
    assert_eq!(ws.next().await.unwrap().unwrap(), Message::Pong("here?".into()));
    ws.send(fragment(end, Data::Continue, true)).await.unwrap();
    let answer = ws.next().await.unwrap().unwrap().into_text().unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["error"]["code"], -32602);
    assert!(answer.to_string().len() > 400_000, "the error repeats the key");

    ws.send(fragment(start, Data::Text, false)).await.unwrap();
    for _ in 0..2 {
        ws.send(fragment(start, Data::Continue, false)).await.unwrap();
    }
    let refusal = ws.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(refusal.contains("-32007"), "{refusal}");
    match ws.next().await.unwrap().unwrap() {
        Message::Close(Some(reason)) => assert_eq!(reason.code, CloseCode::Size),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_client_that_answers_no_pings_is_let_go() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let (_servers, addr) = served(&node, &node.config()).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let handshake = format!(
        "GET / HTTP/1.1\r\nhost: {addr}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(handshake.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    tokio::time::pause();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(120), stream.read_to_end(&mut rest)).await;
    ended.expect("the server ends it").unwrap();
    // Code 1001 comes with the second or third ping; pings are 30 s apart.
    let pings = rest.strip_suffix(&[0x88, 2, 0x03, 0xe9]).unwrap();
    assert!(pings == [0x89, 0] || pings == [0x89, 0, 0x89, 0], "{pings:?}");
}
