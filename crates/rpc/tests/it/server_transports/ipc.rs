//! IPC: the same methods over a Unix socket.

use crate::common::{NodeFixture, mpt, request, test_chain};
use alloy_primitives::B256;
use retrie_pipeline::testkit::{BlockPlan, TestCall, TestRules};
use retrie_rpc::server::{ConnectionLimits, IpcConfig, RunningServers, ServerConfig, ServerError};
use serde_json::{Value, json};
use std::{os::unix::fs::PermissionsExt, path::Path};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

struct IpcClient {
    reader: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl IpcClient {
    async fn connect(path: &Path) -> Self {
        let (reader, writer) = UnixStream::connect(path).await.unwrap().into_split();
        Self { reader: BufReader::new(reader).lines(), writer }
    }

    async fn send(&mut self, message: &str) {
        self.writer.write_all(message.as_bytes()).await.unwrap();
    }

    /// The next message; `None` if the server has closed the connection.
    async fn next(&mut self) -> Option<Value> {
        let line = self.reader.next_line().await.unwrap()?;
        Some(serde_json::from_str(&line).unwrap())
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&request(method, params).to_string()).await;
        self.next().await.unwrap()
    }
}

fn config(path: &Path) -> ServerConfig {
    let limits = ConnectionLimits {
        max_request_size: 100_000,
        max_batch_size: 3,
        max_subscriptions: 1,
        ..ConnectionLimits::default()
    };
    ServerConfig { ipc: Some(IpcConfig::new(path.into())), limits, ..ServerConfig::default() }
}

async fn served(node: &NodeFixture, path: &Path) -> Result<RunningServers, ServerError> {
    RunningServers::start(&config(path), &node.rpc, None).await
}

#[tokio::test]
async fn calls_batches_and_subscriptions_are_served() {
    let mut chain = test_chain(TestRules::Cancun);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let path = node.dir.path().join("retrie.ipc");
    let servers = served(&node, &path).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let mut client = IpcClient::connect(&path).await;
    assert_eq!(client.call("eth_chainId", json!([])).await["result"], "0x1ca3");
    assert_eq!(client.call("eth_nope", json!([])).await["error"]["code"], -32601);
    let call = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "net_version" });
    client.send(&json!([call(1), 2, call(3)]).to_string()).await;
    let answers = client.next().await.unwrap();
    assert_eq!((&answers[0]["id"], &answers[2]["id"]), (&json!(1), &json!(3)));
    assert_eq!(answers[1]["error"]["code"], -32600);
    client.send(&json!(vec![call(1); 4]).to_string()).await;
    assert!(client.next().await.unwrap()["error"].is_object(), "the batch is too long");
    client.send(r#"{"jsonrpc":"2.0","method":"net_version"}"#).await;
    // Two requests in one write, after a notification, which has no response.
    client.send(&format!("{}\n{}", call(8), call(9))).await;
    let mut ids = [client.next().await.unwrap(), client.next().await.unwrap()]
        .map(|answer| answer["id"].as_u64().unwrap());
    ids.sort_unstable();
    assert_eq!(ids, [8, 9]);

    let id = client.call("eth_subscribe", json!(["newHeads"])).await["result"].clone();
    let second = client.call("eth_subscribe", json!(["newHeads"])).await;
    assert!(second["error"].is_object(), "one is the limit: {second}");
    let genesis = chain.genesis();
    let recipient = alloy_primitives::Address::with_last_byte(9);
    let block = chain.extend(genesis, BlockPlan::new([TestCall::transfer(0, recipient, 1)]));
    node.add(&chain.path(genesis, block)).await;
    node.set_head(block, B256::ZERO, B256::ZERO).await;
    let event = client.next().await.unwrap();
    assert_eq!(event["params"]["subscription"], id);
    assert_eq!(event["params"]["result"]["hash"], json!(block));
    assert_eq!(client.call("eth_unsubscribe", json!([id])).await["result"], true);

    servers.stop().await;
    assert!(!path.exists(), "the socket is removed");
}

#[tokio::test]
async fn garbage_ends_a_connection_and_no_other() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let path = node.dir.path().join("retrie.ipc");
    let _servers = served(&node, &path).await.unwrap();
    let mut good = IpcClient::connect(&path).await;
    for garbage in ["hello", "}", &"[".repeat(200_000)] {
        let mut client = IpcClient::connect(&path).await;
        // The server may close the connection before it has read everything.
        let _ = client.writer.write_all(garbage.as_bytes()).await;
        assert!(client.next().await.unwrap()["error"].is_object());
        assert!(!matches!(client.reader.next_line().await, Ok(Some(_))));
    }
    let mut client = IpcClient::connect(&path).await;
    client.send(r#"{"id":7}"#).await;
    let answer = client.next().await.unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32600)));
    assert_eq!(good.call("net_version", json!([])).await["result"], "7331");
}

#[tokio::test]
async fn a_socket_in_use_is_left_alone_and_a_dead_one_replaced() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt());
    let path = node.dir.path().join("sockets/retrie.ipc");
    let first = served(&node, &path).await.unwrap();
    assert!(matches!(served(&node, &path).await, Err(ServerError::Ipc { .. })));
    assert_eq!(
        IpcClient::connect(&path).await.call("net_version", json!([])).await["result"],
        "7331"
    );
    first.stop().await;
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let second = served(&node, &path).await.unwrap();
    assert_eq!(
        IpcClient::connect(&path).await.call("net_version", json!([])).await["result"],
        "7331"
    );
    second.stop().await;

    std::fs::write(&path, "precious").unwrap();
    let error = served(&node, &path).await.unwrap_err().to_string();
    assert!(error.contains("no socket; choose another --ipcpath"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}
