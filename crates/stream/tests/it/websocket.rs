//! Streams to WebSocket clients.

use crate::common::{TestIndexer, TestNode, test_chain, wait_until};
use alloy_primitives::B256;
use retrie_pipeline::testkit::TestRules;
use retrie_state_store::FlatHistory;
use retrie_stream::{RunningStream, StreamOptions, StreamTarget};
use serde_json::{Value, json};
use std::{
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use tungstenite::{ClientRequestBuilder, Error, Message, WebSocket, client};

fn listen(node: &TestNode) -> (RunningStream, SocketAddr) {
    let target = StreamTarget::WebSocket("127.0.0.1:0".parse().unwrap());
    let options = StreamOptions::default();
    let stream =
        RunningStream::start(node.live().clone(), &target, options, node.dir.path()).unwrap();
    let address = stream.address().unwrap();
    (stream, address)
}

struct StreamClient(WebSocket<TcpStream>);

impl StreamClient {
    fn connect(address: SocketAddr, request: &Value) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (mut socket, _) = client(format!("ws://{address}/"), socket).unwrap();
        socket.send(Message::text(request.to_string())).unwrap();
        Self(socket)
    }

    /// The next record, or the error.
    fn next(&mut self) -> String {
        loop {
            match self.0.read().unwrap() {
                Message::Text(text) => return text.as_str().to_owned(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn follow(&mut self, indexer: &mut TestIndexer, head: B256) {
        while !indexer.is_at(head) {
            indexer.take(&self.next());
        }
    }
}

/// A node with a chain of `count` blocks.
fn node(count: u64) -> (TestNode, Vec<B256>) {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let blocks = chain.branch(genesis, count, 12, 1);
    let node = TestNode::new(&chain.spec, FlatHistory::All);
    node.add(&chain.path(genesis, *blocks.last().unwrap()));
    (node, blocks)
}

#[test]
fn a_client_resumes_with_its_last_cursor_wherever_it_was_cut_off() {
    let (node, blocks) = node(12);
    node.set_head(blocks[5], false);
    let (_stream, address) = listen(&node);
    let mut indexer = TestIndexer::default();
    let mut request = json!({ "from": "earliest" });
    // Connections end after a few records each.
    for length in [1, 2, 4, 5, 1, 3] {
        let mut client = StreamClient::connect(address, &request);
        for _ in 0..length {
            let record = client.next();
            indexer.take(&record);
            let record: Value = serde_json::from_str(&record).unwrap();
            request = json!({ "cursor": record["cursor"] });
        }
    }
    let mut client = StreamClient::connect(address, &request);
    for head in [blocks[5], blocks[11]] {
        node.set_head(head, false);
        client.follow(&mut indexer, head);
    }
    indexer.assert_at(node.live());
    // Other clients have streams of their own.
    let mut other = StreamClient::connect(address, &json!({ "from": 3, "records": ["delta"] }));
    let record: Value = serde_json::from_str(&other.next()).unwrap();
    assert_eq!((&record["type"], &record["number"]), (&json!("delta"), &json!("0x3")));
}

#[test]
fn a_client_that_does_not_read_falls_behind_and_delays_nothing() {
    let (node, blocks) = node(60);
    node.set_head(blocks[0], false);
    let (_stream, address) = listen(&node);
    let mut slow = StreamClient::connect(address, &json!({ "from": 0 }));
    let mut quick = StreamClient::connect(address, &json!({ "from": 0 }));
    let (mut first, mut second) = (TestIndexer::default(), TestIndexer::default());
    for head in blocks.iter().step_by(17) {
        node.set_head(*head, false);
        quick.follow(&mut first, *head);
    }
    slow.follow(&mut second, blocks[51]);
    assert_eq!(first.sequence, second.sequence);
    second.assert_at(node.live());
}

#[test]
fn requests_that_make_no_sense_get_an_error_and_a_close() {
    let (node, blocks) = node(3);
    node.set_head(blocks[2], false);
    let (_stream, address) = listen(&node);
    let other = B256::repeat_byte(7);
    for (request, code, words) in [
        (json!({}), "request", "neither"),
        (json!([1]), "request", "first message"),
        (json!({ "cursor": "made up" }), "request", "not the cursor"),
        (json!({ "from": 0, "records": ["all"] }), "request", "none of"),
        (json!({ "cursor": format!("5-2-{other}-delta") }), "unknown-block", "not known"),
        (json!({ "cursor": format!("5-1-{}-delta", blocks[1]) }), "cursor", "belongs to block 2"),
    ] {
        let mut client = StreamClient::connect(address, &request);
        let error: Value = serde_json::from_str(&client.next()).unwrap();
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!(code)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        assert!(matches!(client.0.read(), Ok(Message::Close(_))), "{request}");
    }
    // A message that is too long ends the connection.
    let mut long = StreamClient::connect(address, &json!("x".repeat(66_000)));
    assert!(!matches!(long.0.read(), Ok(Message::Text(_))));
    // Web pages are refused.
    let socket = TcpStream::connect(address).unwrap();
    let page = ClientRequestBuilder::new(format!("ws://{address}/").parse().unwrap())
        .with_header("Origin", "http://example.org");
    let refused = client(page, socket).unwrap_err();
    assert!(refused.to_string().contains("403"), "{refused}");
}

#[test]
fn clients_beyond_the_limit_are_refused_until_others_go() {
    let (node, blocks) = node(1);
    node.set_head(blocks[0], false);
    let (stream, address) = listen(&node);
    let mut clients: Vec<_> =
        (0..16).map(|_| StreamClient::connect(address, &json!({ "from": 0 }))).collect();
    clients.iter_mut().for_each(|client| drop(client.next()));
    let socket = TcpStream::connect(address).unwrap();
    let refused = client(format!("ws://{address}/"), socket).unwrap_err();
    assert!(refused.to_string().contains("503"), "{refused}");
    clients.truncate(10);
    wait_until("there is room again", || {
        let socket = TcpStream::connect(address).unwrap();
        client(format!("ws://{address}/"), socket).is_ok()
    });
    // The stream ends its clients.
    drop(stream);
    let ended = std::iter::from_fn(|| Some(clients[0].0.read())).find(Result::is_err);
    assert!(matches!(
        ended,
        Some(Err(Error::ConnectionClosed | Error::Io(_) | Error::Protocol(_)))
            | Some(Err(Error::AlreadyClosed))
    ));
}
