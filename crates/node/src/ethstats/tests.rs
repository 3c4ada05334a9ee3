//! The reporter against servers in this process: a good one, and bad ones.

use super::{
    StatsSource, StatsTarget,
    messages::{BlockStats, NodeIdentity, NodeStats},
    report,
    session::StatsTiming,
};
use alloy_primitives::{B256, U256};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

/// A chain of 60 blocks.
struct FixedStats;

const HEAD: u64 = 60;

impl StatsSource for FixedStats {
    fn identity(&self) -> NodeIdentity {
        NodeIdentity {
            client: "retrie/test".into(),
            port: 30303,
            network: 17,
            protocols: "eth/71, eth/70".into(),
        }
    }

    fn block(&self, number: Option<u64>) -> Option<BlockStats> {
        let number = number.unwrap_or(HEAD);
        (number <= HEAD).then(|| BlockStats {
            number,
            hash: B256::with_last_byte(number as u8),
            gas_limit: 36_000_000,
            difficulty: U256::from(1) << 70,
            transactions: vec![B256::repeat_byte(7)],
            ..BlockStats::default()
        })
    }

    fn stats(&self) -> NodeStats {
        NodeStats { peers: 3, pending: 9, gas_price: 1_000_000_007, syncing: false }
    }
}

fn timing() -> StatsTiming {
    StatsTiming {
        answer: Duration::from_secs(5),
        report: Duration::from_secs(60),
        head_pause: Duration::from_millis(1),
        first_pause: Duration::from_millis(5),
        last_pause: Duration::from_millis(20),
    }
}

/// A server's port, and a node that reports to it.
struct TestServer {
    listener: TcpListener,
    heads: watch::Sender<u64>,
    node: JoinHandle<()>,
}

impl TestServer {
    async fn start(timing: StatsTiming) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap();
        let target: StatsTarget = format!("mine:s3cret@{host}").parse().unwrap();
        let (heads, changes) = watch::channel(HEAD);
        let node = tokio::spawn(report(target, Arc::new(FixedStats), changes, timing));
        Self { listener, heads, node }
    }

    async fn tcp(&self) -> TcpStream {
        soon(self.listener.accept()).await.unwrap().0
    }

    /// A connection that has logged in.
    async fn log_in(&self) -> TestClient {
        let mut client = TestClient(soon(accept_async(self.tcp().await)).await.unwrap());
        let hello = client.next_of("hello").await;
        assert_eq!(hello["secret"], "s3cret");
        assert_eq!(hello["info"]["net"], "17");
        assert_eq!(hello["info"]["node"], "retrie/test");
        client.emit(json!(["ready"])).await;
        client
    }
}

/// The server's end of a connection.
struct TestClient(WebSocketStream<TcpStream>);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), work).await.expect("it comes soon")
}

impl TestClient {
    async fn send(&mut self, text: String) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn emit(&mut self, emit: Value) {
        self.send(json!({ "emit": emit }).to_string()).await;
    }

    async fn next(&mut self) -> Value {
        let message = soon(self.0.next()).await.unwrap().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    /// The content of the next message, which has this name.
    async fn next_of(&mut self, name: &str) -> Value {
        let message = self.next().await;
        assert_eq!(message["emit"][0], name, "{message}");
        assert_eq!(message["emit"][1]["id"], "mine", "{message}");
        message["emit"][1].clone()
    }
}

#[tokio::test]
async fn a_node_logs_in_and_reports() {
    let server = TestServer::start(timing()).await;
    let mut client = server.log_in().await;
    let ping = client.next_of("node-ping").await;
    assert!(ping["clientTime"].as_str().unwrap().parse::<u64>().is_ok(), "{ping}");
    let block = client.next_of("block").await["block"].clone();
    assert_eq!(
        (&block["number"], &block["difficulty"]),
        (&json!(60), &json!("1180591620717411303424"))
    );
    assert_eq!(block["hash"], json!(B256::with_last_byte(60)));
    assert_eq!(block["transactions"][0]["hash"], json!(B256::repeat_byte(7)));
    assert_eq!(client.next_of("pending").await["stats"], json!({ "pending": 9 }));
    let stats = client.next_of("stats").await["stats"].clone();
    assert_eq!((&stats["peers"], &stats["gasPrice"]), (&json!(3), &json!(1_000_000_007)));
    assert_eq!((&stats["active"], &stats["syncing"]), (&json!(true), &json!(false)));

    client.emit(json!(["node-pong", { "clientTime": ping["clientTime"] }])).await;
    let latency = client.next_of("latency").await;
    assert!(latency["latency"].as_str().unwrap().parse::<u64>().is_ok(), "{latency}");

    client.send("\"primus::ping::123\"".into()).await;
    assert_eq!(client.next().await, json!("primus::pong::123"));

    server.heads.send(61).unwrap();
    client.next_of("block").await;
    client.next_of("pending").await;

    // Blocks that the node lacks are left out; without a list, the last 50 come.
    client.emit(json!(["history", { "list": [58, 57, 99, "x", -1] }])).await;
    let history = client.next_of("history").await["history"].clone();
    let numbers = |history: &Value| -> Vec<u64> {
        history.as_array().unwrap().iter().map(|block| block["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&history), [57, 58]);
    for asked in [json!(["history"]), json!(["history", { "min": 1 }])] {
        client.emit(asked).await;
        let history = client.next_of("history").await["history"].clone();
        assert_eq!(numbers(&history), (11..=60).collect::<Vec<_>>());
    }
    // More than the protocol allows is not read.
    client.emit(json!(["history", { "list": vec![1; 9000] }])).await;
    let history = client.next_of("history").await["history"].clone();
    assert_eq!(numbers(&history).len(), 50);

    // The end of the node ends the report.
    drop(server.heads);
    soon(server.node).await.unwrap();
}

#[tokio::test]
async fn a_server_that_says_nonsense_is_heard_no_longer_than_it_may_be() {
    let server = TestServer::start(timing()).await;
    let mut client = server.log_in().await;
    for _ in 0..4 {
        client.next().await;
    }
    client.emit(json!(["node-pong", null])).await;
    client.next_of("latency").await;
    for nonsense in ["", "{", "null", "[]", "{\"emit\":7}", "{\"emit\":[]}", "{\"emit\":[{}]}", "7"]
    {
        client.send(nonsense.into()).await;
    }
    client.0.send(Message::binary(vec![0xff; 10])).await.unwrap();
    client.send("\"primus::ping::1\"".into()).await;
    assert_eq!(client.next().await, json!("primus::pong::1"), "it still listens");
    // A message beyond the limit ends the connection, and the node comes back.
    client.send("x".repeat(70_000)).await;
    server.log_in().await;
    server.node.abort();
}

#[tokio::test]
async fn a_node_comes_back_to_a_server_that_fails() {
    let timing = StatsTiming { answer: Duration::from_millis(400), ..timing() };
    let server = TestServer::start(timing).await;
    // It closes the connection; it does not speak WebSocket; it never answers.
    drop(server.tcp().await);
    let mut stream = server.tcp().await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 404 Not Found\r\n\r\n")
        .await
        .unwrap();
    drop(stream);
    let silent = server.tcp().await;
    // It refuses the login.
    let mut refusing = TestClient(soon(accept_async(server.tcp().await)).await.unwrap());
    refusing.next_of("hello").await;
    drop(refusing);
    // It never says ready.
    let mut mute = TestClient(soon(accept_async(server.tcp().await)).await.unwrap());
    mute.next_of("hello").await;
    // It never answers a ping.
    let mut deaf = server.log_in().await;
    deaf.next_of("node-ping").await;
    let mut client = server.log_in().await;
    client.next_of("node-ping").await;
    drop((silent, mute, deaf));
    server.node.abort();
}
