//! Bounds on what all clients make the node hold. Cause: 500 connections that each sent a request
//! of 15 MB except its last byte held 7.5 GB.

use crate::common::{NodeFixture, WsClient, http, mpt, post, request, test_chain};
use futures::{SinkExt, StreamExt};
use retrie_pipeline::testkit::TestRules;
use retrie_rpc::server::{ConnectionLimits, RunningServers, ServerConfig};
use serde_json::{Value, json};
use soketto::Incoming;
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::Instant,
};
use tokio_tungstenite::tungstenite::Message;

/// Bytes of a large request.
const LARGE: usize = 900_000;
/// Budget of the server: room for one large request, not for two.
const ALL: usize = 1 << 20;
/// Time in which the server reads the sent bytes, so that later requests find them held.
const READING: Duration = Duration::from_millis(500);
/// Longer than the server lets a client wait for room.
const PATIENCE: Duration = Duration::from_secs(20);

struct ServedNode {
    _node: NodeFixture,
    _servers: RunningServers,
    http: SocketAddr,
    ws: SocketAddr,
}

async fn served() -> ServedNode {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let limits = ConnectionLimits {
        max_request_size: 2 << 20,
        max_buffered_size: ALL,
        ..ConnectionLimits::default()
    };
    let servers = node.serve(&ServerConfig { limits, ..node.config() }).await;
    let (http, ws) = (servers.http_addr().unwrap(), servers.ws_addr().unwrap());
    ServedNode { _node: node, _servers: servers, http, ws }
}

/// A request with a key of this many bytes; the response repeats most of it.
fn large(bytes: usize) -> String {
    request("eth_getStorageAt", json!([format!("0x{}", "0".repeat(40)), "1".repeat(bytes), null]))
        .to_string()
}

/// Sends `body` as the start of a body of `bytes` bytes.
async fn send_body(stream: &mut TcpStream, bytes: usize, body: &[u8]) {
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
}

/// Sends `payload` as the start of a frame of `bytes` bytes, over a new WebSocket.
async fn send_frame(stream: &mut TcpStream, bytes: usize, payload: &[u8]) {
    let addr = stream.peer_addr().unwrap();
    let handshake = format!(
        "GET / HTTP/1.1\r\nhost: {addr}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(handshake.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let mut frame = vec![0x81, 0xff];
    frame.extend((bytes as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    stream.write_all(&frame).await.unwrap();
}

/// Sends a body of this many bytes except its last byte, on a new connection.
async fn half_sent(addr: SocketAddr, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    send_body(&mut stream, bytes, &vec![b' '; bytes - 1]).await;
    tokio::time::sleep(READING).await;
    stream
}

/// Sends a frame of this many bytes except its last byte, on a new WebSocket.
async fn half_a_frame(addr: SocketAddr, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    send_frame(&mut stream, bytes, &vec![b' '; bytes - 1]).await;
    tokio::time::sleep(READING).await;
    stream
}

/// Repeats a large HTTP request until its response has this status.
async fn until(addr: SocketAddr, status: u16) -> Value {
    let start = Instant::now();
    loop {
        let answer = post(addr, &large(LARGE)).await;
        if answer.status == status {
            return answer.json();
        }
        assert!(start.elapsed() < PATIENCE, "{} all the time", answer.status);
    }
}

fn is_answered(answer: &Value) -> bool {
    // The key is no number, so the response is this error.
    answer["error"]["code"] == -32602
}

#[tokio::test]
async fn half_sent_bodies_count_as_they_come_and_others_are_told_to_try_again() {
    let served = served().await;
    assert!(is_answered(&post(served.http, &large(LARGE)).await.json()));
    let first = half_sent(served.http, LARGE).await;
    let busy = until(served.http, 503).await;
    assert_eq!((&busy["error"]["code"], &busy["id"]), (&json!(-32005), &Value::Null));
    let (json_type, body) = ([("content-type", "application/json")], large(LARGE));
    let answer = http(served.http, "POST", "/", &json_type, &body).await;
    assert_eq!((answer.status, answer.headers["retry-after"].to_str().unwrap()), (503, "1"));
    // Small requests need no room, over any transport.
    let start = Instant::now();
    let small = request("eth_chainId", json!([]));
    assert_eq!(post(served.http, &small.to_string()).await.json()["result"], "0x1ca3");
    let mut ws = WsClient::connect(served.ws, &[]).await.unwrap();
    assert_eq!(ws.call("eth_chainId", json!([])).await["result"], "0x1ca3");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // The room is free as soon as the holder is gone.
    drop(first);
    assert!(is_answered(&until(served.http, 200).await));
}

#[tokio::test]
async fn half_sent_frames_count_as_they_come_over_all_servers() {
    let served = served().await;
    let mut patient = WsClient::connect(served.ws, &[]).await.unwrap();
    patient.send(&large(LARGE)).await;
    assert!(is_answered(&patient.next().await));
    // After the response nothing is held, although the connection is open.
    let first = half_a_frame(served.ws, LARGE).await;
    until(served.http, 503).await;
    patient.send(&large(LARGE)).await;
    assert_eq!(patient.next().await["error"]["code"], -32005);
    match patient.split().1.receive(&mut Vec::new()).await {
        Ok(Incoming::Closed(reason)) => assert_eq!(reason.code, 1013, "try again later"),
        other => panic!("{other:?}"),
    }
    drop(first);
    assert!(is_answered(&until(served.http, 200).await));
    let mut ws = WsClient::connect(served.ws, &[]).await.unwrap();
    for _ in 0..3 {
        ws.send(&large(LARGE)).await;
        assert!(is_answered(&ws.next().await));
    }
}

#[tokio::test]
async fn who_waits_for_room_is_answered_when_there_is_some() {
    let served = served().await;
    let first = half_sent(served.http, LARGE).await;
    until(served.http, 503).await;
    let addr = served.http;
    let waiting = tokio::spawn(async move { post(addr, &large(LARGE)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(first);
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(is_answered(&answer.json()));
}

#[tokio::test]
async fn an_answer_for_which_there_is_no_room_is_an_error_with_its_id() {
    let served = served().await;
    // Requests within each connection's own bytes, with larger responses.
    let call = request("eth_getHeaderByNumber", json!(["0x0"]));
    let batch = json!(vec![call; 400]).to_string();
    let size = post(served.http, &batch).await.body.len();
    assert!(batch.len() < 64 << 10 && size > 128 << 10, "{} and {size}", batch.len());
    let stream = TcpStream::connect(served.ws).await.unwrap();
    let url = format!("ws://{}/", served.ws);
    let (mut ws, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    let _first = half_sent(served.http, ALL + (32 << 10)).await;
    until(served.http, 503).await;
    let busy = post(served.http, &batch).await;
    assert_eq!((busy.status, busy.error().0), (503, -32005));
    ws.send(Message::text(batch)).await.unwrap();
    let answer = ws.next().await.unwrap().unwrap().into_text().unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32005), &Value::Null));
    // The connection goes on.
    let small = json!({ "jsonrpc": "2.0", "id": "a", "method": "eth_chainId" });
    ws.send(Message::text(small.to_string())).await.unwrap();
    let answer = ws.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.contains("0x1ca3"), "{answer}");
}

/// A client that keeps reading a little of its response never stalls, and would hold it for hours.
#[tokio::test]
async fn an_answer_that_is_taken_too_slowly_is_given_up() {
    // More than the system's socket buffers.
    const HUGE: usize = 12 << 20;
    const STALL: Duration = Duration::from_secs(1000);
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let limits = ConnectionLimits { stall_timeout: STALL, ..ConnectionLimits::default() };
    let servers = node.serve(&ServerConfig { limits, ..node.config() }).await;
    let request = large(HUGE);
    for (addr, is_ws) in [(servers.http_addr(), false), (servers.ws_addr(), true)] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut stream = socket.connect(addr.unwrap()).await.unwrap();
        match is_ws {
            false => send_body(&mut stream, request.len(), request.as_bytes()).await,
            true => send_frame(&mut stream, request.len(), request.as_bytes()).await,
        }
        stream.read_u8().await.unwrap();
        tokio::time::pause();
        let (mut came, mut piece) = (1, vec![0; 64 << 10]);
        // The bytes in the system's buffers still arrive afterwards.
        while let Ok(bytes @ 1..) = stream.read(&mut piece).await {
            came += bytes;
            tokio::time::sleep(STALL / 10).await;
        }
        tokio::time::resume();
        assert!(came < HUGE, "all of {came} bytes came, WebSocket: {is_ws}");
    }
}
