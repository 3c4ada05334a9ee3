//! Unusual JSON-RPC messages: each gets a response or an error, over every transport.

use crate::common::{NodeFixture, WsClient, mpt, test_chain};
use retrie_pipeline::testkit::TestRules;
use retrie_rpc::server::{IpcConfig, ServerConfig};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpStream, UnixStream},
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{CloseCode, Data, OpCode},
    },
};

use futures::{SinkExt, StreamExt};

/// The id of a response as it is written, and the error code, if it is an error.
type AnswerSummary = (String, Option<i32>);

#[derive(Deserialize)]
struct AnswerFields {
    id: Box<RawValue>,
    result: Option<Box<RawValue>>,
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    code: i32,
}

fn said(answer: &str) -> Vec<AnswerSummary> {
    let answers: Vec<AnswerFields> = match answer.starts_with('[') {
        true => serde_json::from_str(answer),
        false => serde_json::from_str(answer).map(|one| vec![one]),
    }
    .unwrap_or_else(|error| panic!("{answer:?}: {error}"));
    let one = |answer: AnswerFields| {
        assert!(answer.result.is_some() != answer.error.is_some());
        (answer.id.get().into(), answer.error.map(|error| error.code))
    };
    answers.into_iter().map(one).collect()
}

fn call(id: &str) -> Vec<u8> {
    call_of(id, "eth_chainId")
}

fn call_of(id: &str, method: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#).into_bytes()
}

/// Messages, and the ids and error codes of their responses.
fn cases() -> Vec<(Vec<u8>, Vec<AnswerSummary>)> {
    let answer = |id: &str| vec![(id.to_string(), None)];
    let error = |id: &str, code: i32| vec![(id.to_string(), Some(code))];
    let mut cases = Vec::new();
    for id in [
        "0",
        "-1",
        "1.5",
        "1e3",
        "18446744073709551615",
        "18446744073709551616",
        "123456789012345678901234567890",
        "null",
        "true",
        r#""""#,
        r#""x""#,
    ] {
        cases.push((call(id), answer(id)));
        cases.push((call_of(id, "eth_nope"), error(id, -32601)));
        cases.push((
            [b"[", &call("7")[..], b",", &call(id), b"]"].concat(),
            [answer("7"), answer(id)].concat(),
        ));
        cases.push((format!(r#"{{"id":{id}}}"#).into_bytes(), error(id, -32600)));
    }
    for id in ["{}", "[]", "[1]", r#"{"a":1}"#] {
        cases.push((call(id), error("null", -32600)));
        let batch = [b"[", &call(id)[..], b",", &call("1.5"), b"]"].concat();
        cases.push((batch, [error("null", -32600), answer("1.5")].concat()));
    }
    for request in [
        "null",
        "1 ",
        "-1.5e3 ",
        r#""x""#,
        "true",
        "{}",
        "[]",
        r#"{"jsonrpc":"2.0"}"#,
        r#"["2.0",1,"eth_chainId",[]]"#,
    ] {
        let count = if request.starts_with("[\"") { 4 } else { 1 };
        cases.push((request.into(), vec![error("null", -32600)[0].clone(); count]));
    }
    cases.push((b"[null,1,\"x\",[]]".into(), vec![error("null", -32600)[0].clone(); 4]));
    for wrong in [r#""jsonrpc":"1.0""#, r#""jsonrpc":2"#, r#""more":1"#] {
        let message = format!(r#"{{{wrong},"id":1.5,"method":"eth_chainId"}}"#);
        cases.push((message.into_bytes(), error("1.5", -32600)));
    }
    cases.push((call("1").replace(b"\"eth_chainId\"", b"5"), error("1", -32600)));
    cases.push((call("1").replace(b"eth_chainId", b""), error("1", -32600)));
    let long = "x".repeat(2049);
    cases.push((call_of("1", &long), error("1", -32600)));
    for broken in ["{]", r#"{"jsonrpc":"2.0","id":01,"method":"eth_chainId"}"#, "[,]", "nul "] {
        cases.push((broken.into(), error("null", -32700)));
    }
    for (place, bytes) in [("1", &b"\"\xff\""[..]), ("eth_chainId", b"eth_\xff"), ("2.0", b"\xc3")]
    {
        cases.push((call("1").replace(place.as_bytes(), bytes), error("null", -32700)));
    }
    cases
}

trait ReplaceBytes {
    /// The same bytes with the last `old` replaced.
    fn replace(&self, old: &[u8], new: &[u8]) -> Vec<u8>;
}

impl ReplaceBytes for Vec<u8> {
    fn replace(&self, old: &[u8], new: &[u8]) -> Vec<u8> {
        let at = self.windows(old.len()).rposition(|part| part == old).unwrap();
        [&self[..at], new, &self[at + old.len()..]].concat()
    }
}

fn node() -> NodeFixture {
    NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt())
}

#[tokio::test]
async fn odd_messages_are_answered_over_http() {
    let node = node();
    let servers = node.serve(&ServerConfig { ws: None, ..node.config() }).await;
    let addr = servers.http_addr().unwrap();
    let post = async |message: &[u8]| {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            message.len()
        );
        stream.write_all(&[head.as_bytes(), message].concat()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body.to_string()
    };
    for (message, expected) in cases() {
        let body = post(&message).await;
        assert_eq!(said(&body), expected, "{}", String::from_utf8_lossy(&message));
    }
    assert_eq!(said(&post(b"").await), [("null".into(), Some(-32700))]);
    assert_eq!(post(br#"{"jsonrpc":"2.0","method":"eth_chainId"}"#).await, "", "a notification");
}

#[tokio::test]
async fn odd_messages_are_answered_over_websocket() {
    let node = node();
    let servers = node.serve(&ServerConfig { http: None, ..node.config() }).await;
    let addr = servers.ws_addr().unwrap();
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut ws, _) =
        tokio_tungstenite::client_async(format!("ws://{addr}/"), stream).await.unwrap();
    for (message, expected) in cases() {
        let shown = String::from_utf8_lossy(&message).into_owned();
        let message = match String::from_utf8(message) {
            Ok(text) => Message::text(text),
            Err(bytes) => Message::binary(bytes.into_bytes()),
        };
        ws.send(message).await.unwrap();
        let answer = ws.next().await.unwrap().unwrap().into_text().unwrap();
        assert_eq!(said(&answer), expected, "{shown}");
    }
    for id in ["1.5", r#""x""#] {
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"eth_subscribe","params":["newHeads"]}}"#
        );
        ws.send(Message::text(request)).await.unwrap();
        let answer = ws.next().await.unwrap().unwrap().into_text().unwrap();
        assert_eq!(said(&answer), [(id.into(), None)], "subscriptions keep ids as they came");
    }
    // Invalid UTF-8 in a text frame ends the connection, after a response.
    let wrong =
        Frame::message(call("1").replace(b"1", b"\"\xff\""), OpCode::Data(Data::Text), true);
    ws.send(Message::Frame(wrong)).await.unwrap();
    let answer = ws.next().await.unwrap().unwrap().into_text().unwrap();
    assert_eq!(said(&answer), [("null".into(), Some(-32700))]);
    match ws.next().await.unwrap().unwrap() {
        Message::Close(Some(reason)) => assert_eq!(reason.code, CloseCode::Invalid),
        other => panic!("{other:?}"),
    }
    assert!(WsClient::connect(addr, &[]).await.is_ok(), "others are served");
}

#[tokio::test]
async fn odd_messages_are_answered_over_ipc() {
    let node = node();
    let path = node.dir.path().join("retrie.ipc");
    let ipc = Some(IpcConfig::new(path.clone()));
    let _servers = node.serve(&ServerConfig { ipc, ..ServerConfig::default() }).await;
    let (reader, mut writer) = UnixStream::connect(&path).await.unwrap().into_split();
    let mut lines = BufReader::new(reader).lines();
    for (message, expected) in cases() {
        // Invalid JSON ends a stream, because the start of the next value is unknown.
        writer.write_all(&message).await.unwrap();
        let answer = lines.next_line().await.unwrap().unwrap();
        assert_eq!(said(&answer), expected, "{}", String::from_utf8_lossy(&message));
    }
    // An incomplete value at the end of the stream.
    for (left, code) in [(r#"{"jsonrpc":"2.0","id":1"#, -32700), ("12", -32600)] {
        let (reader, mut writer) = UnixStream::connect(&path).await.unwrap().into_split();
        writer.write_all(left.as_bytes()).await.unwrap();
        writer.shutdown().await.unwrap();
        let answer = BufReader::new(reader).lines().next_line().await.unwrap().unwrap();
        assert_eq!(said(&answer), [("null".into(), Some(code))], "{left}");
    }
}
