//! HTTP: responses, refusals, and their texts.

use crate::common::{
    HttpAnswer, NodeFixture, WsClient, http, lvmt, mpt, post, request, test_chain,
};
use retrie_engine::{NodeStatus, NodeWait, SyncProgress};
use retrie_pipeline::testkit::TestRules;
use retrie_rpc::{
    ApiNamespace,
    server::{ConnectionLimits, RunningServers, ServerConfig, ServerError, WsConfig},
};
use retrie_telemetry::Metrics;
use retrie_telemetry::state_sync::{StateSyncFigures, StateSyncPhase};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const JSON: (&str, &str) = ("content-type", "application/json");

fn node() -> NodeFixture {
    NodeFixture::new(&test_chain(TestRules::Cancun).spec, mpt())
}

fn only_http(node: &NodeFixture) -> ServerConfig {
    ServerConfig { ws: None, ..node.config() }
}

/// The response of `/health` at genesis.
fn told(node: &NodeFixture, shard: Value) -> Value {
    json!({
        "syncing": false,
        "head": 0,
        "hash": node.live().head().hash(),
        "shard": shard,
        "node": retrie_rpc::client_version(),
    })
}

async fn served(node: &NodeFixture, config: &ServerConfig) -> (RunningServers, SocketAddr) {
    let servers = node.serve(config).await;
    let addr = servers.http_addr().unwrap();
    (servers, addr)
}

#[tokio::test]
async fn requests_are_answered_and_health_is_told() {
    let node = node();
    let (servers, addr) = served(&node, &only_http(&node)).await;
    assert!(addr.ip().is_loopback());
    let answer = post(addr, &request("eth_chainId", json!([])).to_string()).await;
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("0x1ca3")));
    let answer = post(addr, r#"{"jsonrpc":"2.0","id":"a","method":"web3_clientVersion"}"#).await;
    assert_eq!(answer.json()["id"], "a");
    assert!(answer.json()["result"].as_str().unwrap().starts_with("retrie/v"));
    let health = http(addr, "GET", "/health", &[], "").await;
    assert_eq!((health.status, health.json()), (200, told(&node, json!(null))));
    servers.stop().await;
    assert!(TcpStream::connect(addr).await.is_err(), "the port is free again");
}

#[tokio::test]
async fn a_node_that_is_behind_is_not_healthy() {
    struct MockLaggingNode;
    impl NodeStatus for MockLaggingNode {
        fn syncing(&self) -> Option<SyncProgress> {
            Some(SyncProgress { starting: 1, current: 2, highest: 16 })
        }

        fn state_sync(&self) -> Option<StateSyncFigures> {
            Some(StateSyncFigures {
                phase: StateSyncPhase::Fetching,
                pivot: 7,
                entries: 10,
                codes: 1,
                bytes: 640,
                share: 0.25,
                remaining: Some(Duration::from_secs(30)),
            })
        }

        fn waiting(&self) -> Option<NodeWait> {
            let since = UNIX_EPOCH + Duration::from_secs(255);
            Some(NodeWait { reason: "peers".into(), since, remedy: "--bootnodes".into() })
        }
    }
    let mut node = node();
    node.rpc = node.rpc.clone().with_node(Arc::new(MockLaggingNode));
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let health = http(addr, "GET", "/health", &[], "").await;
    assert_eq!((health.status, &health.json()["waitingFor"]), (503, &json!("peers")));
    let answer = post(addr, &request("eth_syncing", json!([])).to_string()).await.json();
    let answer = &answer["result"];
    assert_eq!(answer["highestBlock"], "0x10");
    let of_state = json!({
        "phase": "fetching", "pivotBlock": "0x7", "entries": "0xa", "codes": "0x1", "bytes": "0x280",
        "share": 0.25, "secondsLeft": 30,
    });
    assert_eq!(answer["stateSync"], of_state);
    // Cause: the response did not include what the node waits for.
    assert_eq!(answer["waitingFor"], "peers");
    assert_eq!(
        (&answer["waitingSince"], &answer["remedy"]),
        (&json!("0xff"), &json!("--bootnodes"))
    );
}

#[tokio::test]
async fn a_node_of_which_a_part_does_not_work_is_not_healthy() {
    struct MockFailingNode;
    impl NodeStatus for MockFailingNode {
        fn failing(&self) -> Vec<&'static str> {
            vec!["follower"]
        }
    }
    let mut node = node();
    node.rpc = node.rpc.clone().with_node(Arc::new(MockFailingNode));
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let health = http(addr, "GET", "/health", &[], "").await;
    let mut body = told(&node, json!(null));
    body["failing"] = json!(["follower"]);
    assert_eq!((health.status, health.json()), (503, body));
}

#[tokio::test]
async fn health_tells_which_proofs_a_node_has() {
    let node = NodeFixture::new(&test_chain(TestRules::Cancun).spec, lvmt());
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let health = http(addr, "GET", "/health", &[], "").await;
    assert_eq!((health.status, health.json()), (200, told(&node, json!("all"))));
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_by_its_code() {
    let node = node();
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let call = |method: &str, params: Value| request(method, params).to_string();
    let cases = [
        (call("eth_nope", json!([])), -32601, "the method eth_nope does not exist"),
        ("hello".into(), -32700, ""),
        (r#"{"jsonrpc":"2.0","id":1,"method":"#.into(), -32700, ""),
        (r#"{"jsonrpc":"2.0","id":1}"#.into(), -32600, ""),
        (r#"{"jsonrpc":"1.0","id":1,"method":"eth_chainId"}"#.into(), -32600, ""),
        (call("eth_getBalance", json!([])), -32602, "missing value for required argument 0"),
        (call("eth_getBalance", json!([null])), -32602, "missing value for required argument 0"),
        (call("eth_getBalance", json!(["0x12"])), -32602, "invalid argument 0"),
        (call("eth_getBalance", json!([[], "latest"])), -32602, "invalid argument 0"),
        (call("eth_getBalance", json!({ "a": 1 })), -32602, "non-array args"),
        (call("eth_chainId", json!([1])), -32602, "too many arguments, want at most 0"),
        (call("eth_getBlockByNumber", json!(["2"])), -32602, "invalid argument 0"),
        (call("eth_subscribe", json!(["newHeads"])), -32601, "notifications not supported"),
    ];
    for (body, code, words) in cases {
        let (got, message) = post(addr, &body).await.error();
        assert_eq!(got, code, "{body}: {message}");
        assert!(message.contains(words), "{body}: {message}");
    }
    assert_eq!(http(addr, "PUT", "/", &[JSON], "{}").await.status, 405);
    assert_eq!(http(addr, "POST", "/", &[("content-type", "text/plain")], "{}").await.status, 415);
    // Cause: content types with parameters were refused, except for two forms.
    for parameter in
        [";charset=utf-8", "; charset=\"utf-8\"", ";", "; charset=utf-8; q=1", " ; a=b"]
    {
        let kind = format!("application/json{parameter}");
        let body = request("eth_chainId", json!([])).to_string();
        let answer = http(addr, "POST", "/", &[("content-type", &kind)], &body).await;
        assert_eq!(answer.status, 200, "{kind}");
    }
}

#[tokio::test]
async fn batches_are_answered_in_order_within_their_limits() {
    let node = node();
    let limits = ConnectionLimits {
        max_batch_size: 3,
        max_request_size: 1000,
        max_response_size: 500,
        ..ConnectionLimits::default()
    };
    let (_servers, addr) = served(&node, &ServerConfig { limits, ..only_http(&node) }).await;
    let call = |id: u64, method: &str| json!({ "jsonrpc": "2.0", "id": id, "method": method });
    let batch = json!([call(1, "eth_chainId"), call(2, "eth_nope"), 3]);
    let answers = post(addr, &batch.to_string()).await.json();
    assert_eq!((&answers[0]["id"], &answers[0]["result"]), (&json!(1), &json!("0x1ca3")));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&json!(2), &json!(-32601)));
    assert_eq!(answers[2]["error"]["code"], -32600);
    assert_eq!(answers.as_array().unwrap().len(), 3);

    let notification = r#"[{"jsonrpc":"2.0","method":"eth_chainId"}]"#;
    for notification in [notification, &notification[1..notification.len() - 1]] {
        let answer = post(addr, notification).await;
        assert_eq!((answer.status, &*answer.body), (200, ""), "notifications have no answer");
    }
    assert_eq!(post(addr, "[]").await.error().0, -32600);
    let many = json!(vec![call(1, "eth_chainId"); 4]);
    assert!(post(addr, &many.to_string()).await.json()["error"].is_object());
    let block = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getBlockByNumber",
        "params": ["0x0", false] });
    let large = post(addr, &block.to_string()).await;
    assert!(large.json()["error"].is_object(), "a genesis block has more than 500 bytes");
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(2000));
    assert_eq!(post(addr, &long).await.status, 413);
}

#[tokio::test]
async fn requests_errors_and_connections_are_counted() {
    let mut node = node();
    let metrics = Metrics::new().unwrap();
    node.rpc = node.rpc.clone().with_metrics(metrics.rpc.clone());
    let servers = node.serve(&node.config()).await;
    let addr = servers.http_addr().unwrap();
    let call = |method: &str| request(method, json!(["0x1"]));
    let batch = json!([call("eth_chainId"), call("eth_nope"), call("eth_nopes")]);
    let size = post(addr, &batch.to_string()).await.body.len();
    let mut ws = WsClient::connect(servers.ws_addr().unwrap(), &[]).await.unwrap();
    ws.call("eth_chainId", json!([])).await;
    let text = || String::from_utf8(metrics.encode().unwrap()).unwrap();
    for line in [
        r#"retrie_rpc_requests_total{method="eth_chainId",server="http"} 1"#,
        r#"retrie_rpc_errors_total{method="eth_chainId",server="http"} 1"#,
        r#"retrie_rpc_requests_total{method="unknown",server="http"} 2"#,
        r#"retrie_rpc_requests_total{method="eth_chainId",server="ws"} 1"#,
        r#"retrie_rpc_errors_total{method="eth_chainId",server="ws"} 0"#,
        r#"retrie_rpc_connections{server="ws"} 1"#,
        &format!(r#"retrie_rpc_received_bytes_total{{server="http"}} {}"#, batch.to_string().len()),
        &format!(r#"retrie_rpc_sent_bytes_total{{server="http"}} {size}"#),
    ] {
        assert!(text().lines().any(|found| found == line), "{line} is not in {}", text());
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_trickle_are_let_go() {
    let node = node();
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let (mut reader, mut writer) = TcpStream::connect(addr).await.unwrap().into_split();
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 100000\r\n\r\n{";
    writer.write_all(head.as_bytes()).await.unwrap();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let start = tokio::time::Instant::now();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.ok();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert!(String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 408"), "{rest:?}");
    trickle.abort();
}

#[tokio::test]
async fn only_chosen_namespaces_are_served() {
    let node = node();
    let mut config = only_http(&node);
    config.http.as_mut().unwrap().apis = vec![ApiNamespace::Net];
    let (_servers, addr) = served(&node, &config).await;
    let ask = async |method| post(addr, &request(method, json!([])).to_string()).await.json();
    assert_eq!(ask("net_version").await["result"], "7331");
    assert_eq!(ask("eth_chainId").await["error"]["code"], -32601);
    assert_eq!(ask("rpc_modules").await["result"], json!({ "net": "1.0", "rpc": "1.0" }));
}

#[tokio::test]
async fn pages_of_strangers_are_kept_out() {
    let node = node();
    let mut config = only_http(&node);
    let body = request("eth_chainId", json!([])).to_string();
    let ask = async |addr, headers: &[(&str, &str)]| -> HttpAnswer {
        let headers: Vec<_> = [&[JSON], headers].concat();
        http(addr, "POST", "/", &headers, &body).await
    };
    let preflight = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type"),
    ];

    let (_servers, addr) = served(&node, &config).await;
    assert_eq!(ask(addr, &[("host", "evil.example")]).await.status, 403);
    assert_eq!(ask(addr, &[("host", "localhost:1")]).await.status, 200);
    let answer = ask(addr, &[("origin", "https://app.example")]).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));

    let http_config = config.http.as_mut().unwrap();
    http_config.cors_origins = vec!["https://app.example".into()];
    http_config.vhosts = vec!["*".into()];
    let (_servers, addr) = served(&node, &config).await;
    assert_eq!(ask(addr, &[("host", "evil.example")]).await.status, 200);
    let answer = ask(addr, &[("origin", "https://app.example")]).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
    let answer = ask(addr, &[("origin", "https://other.example")]).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    let answer = http(addr, "OPTIONS", "/", &preflight, "").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
}

#[tokio::test]
async fn idle_connections_do_not_keep_others_out() {
    let node = node();
    let limits = ConnectionLimits { max_connections: 10, ..ConnectionLimits::default() };
    let (_servers, addr) = served(&node, &ServerConfig { limits, ..only_http(&node) }).await;
    let mut idle = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        // Half of them start a request and never finish it.
        if idle.len() % 2 == 0 {
            stream.write_all(b"POST / HTTP/1.1\r\nhost: loc").await.unwrap();
        }
        idle.push(stream);
        let answer = post(addr, &request("eth_blockNumber", json!([])).to_string()).await;
        assert_eq!(answer.json()["result"], "0x0");
    }
    let mut closed = vec![0; 16];
    assert!(matches!(idle[0].read(&mut closed).await, Ok(0) | Err(_)), "the oldest had to go");
}

#[tokio::test(start_paused = true)]
async fn clients_that_stall_are_let_go() {
    let node = node();
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let beginnings: [&[u8]; 3] = [
        b"",
        b"POST / HTTP/1.1\r\nhost: loc",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
          content-length: 100\r\n\r\n{",
    ];
    for beginning in beginnings {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let mut rest = Vec::new();
        // The paused clock advances whenever all tasks are idle.
        let closed = timeout(Duration::from_secs(3600), stream.read_to_end(&mut rest)).await;
        closed.expect("the server ends it").ok();
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_do_not_read_are_let_go() {
    let node = node();
    let (_servers, addr) = served(&node, &only_http(&node)).await;
    let call = request("eth_getHeaderByNumber", json!(["0x0"]));
    let batch = json!(vec![call; 1000]).to_string();
    let size = post(addr, &batch).await.body.len();
    let (reader, mut writer) = TcpStream::connect(addr).await.unwrap().into_split();
    let header = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        batch.len()
    );
    // More responses than the system buffers for a client.
    const COUNT: usize = 40;
    let writing = tokio::spawn(async move {
        for _ in 0..COUNT {
            writer.write_all(header.as_bytes()).await?;
            writer.write_all(batch.as_bytes()).await?;
        }
        Ok::<_, std::io::Error>(writer)
    });
    let mut reader = reader;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let mut rest = Vec::new();
    let read = timeout(Duration::from_secs(3600), reader.read_to_end(&mut rest)).await;
    read.expect("the server has ended it").ok();
    assert!(rest.len() < COUNT * size, "{} of {}", rest.len(), COUNT * size);
    drop(writing.await);
}

#[tokio::test]
async fn http_and_websocket_share_a_port_only_with_the_same_namespaces() {
    let node = node();
    let mut config = node.config();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    config.http.as_mut().unwrap().addr = addr;
    config.ws = Some(WsConfig { addr, apis: vec![ApiNamespace::Eth], ..WsConfig::default() });
    let refused = RunningServers::start(&config, &node.rpc, None).await;
    assert!(matches!(refused, Err(ServerError::DifferentApis { .. })));
    config.ws.as_mut().unwrap().apis = ApiNamespace::ALL.into();
    let (_servers, addr) = served(&node, &config).await;
    let body = request("eth_chainId", json!([]));
    assert_eq!(post(addr, &body.to_string()).await.json()["result"], "0x1ca3");
    let mut ws = WsClient::connect(addr, &[]).await.unwrap();
    assert_eq!(ws.call("eth_chainId", json!([])).await["result"], "0x1ca3");
}
