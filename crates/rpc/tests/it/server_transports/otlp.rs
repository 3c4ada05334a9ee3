//! Spans of payloads, as an OpenTelemetry collector gets them.

use super::auth::{serve, token};
use crate::common::{NodeFixture, http, mpt, pbt, request, test_chain};
use alloy_rpc_types_engine::{ExecutionPayload, JwtSecret};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value as AttributeValue,
    trace::v1::{Span, span::SpanKind},
};
use parking_lot::Mutex;
use prost::Message;
use retrie_pipeline::testkit::TestRules;
use retrie_telemetry::{
    SpanExport,
    spans::{OtlpConfig, SpanCounters},
};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

/// The caller's span.
const CALLER: &str = "00f067aa0ba902b7";

/// The collector of this process: all tests share one subscriber. Only traces of callers are sampled,
/// so each test finds its spans by its trace ids.
struct TestCollector {
    spans: Arc<Mutex<Vec<Span>>>,
    _export: SpanExport,
}

static COLLECTOR: LazyLock<TestCollector> = LazyLock::new(|| {
    let spans = Arc::<Mutex<Vec<Span>>>::default();
    let (taken, (send, bound)) = (spans.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(collect(taken, send));
    });
    let address: SocketAddr = bound.recv().unwrap();
    let export = SpanExport::start(&OtlpConfig {
        endpoint: Some(format!("http://{address}/v1/traces")),
        sample_ratio: 0.0,
        ..OtlpConfig::default()
    });
    let export = export.unwrap();
    retrie_telemetry::init_logs(0, None, Some(&export)).unwrap();
    TestCollector { spans, _export: export }
});

async fn collect(taken: Arc<Mutex<Vec<Span>>>, bound: std::sync::mpsc::Sender<SocketAddr>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    bound.send(listener.local_addr().unwrap()).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let taken = taken.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let taken = taken.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let sent = ExportTraceServiceRequest::decode(body).unwrap();
                let scopes = sent.resource_spans.into_iter().flat_map(|part| part.scope_spans);
                taken.lock().extend(scopes.flat_map(|scope| scope.spans));
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        });
        let http = hyper::server::conn::http1::Builder::new();
        tokio::spawn(
            async move { drop(http.serve_connection(TokioIo::new(stream), answer).await) },
        );
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans of these traces, once `are_there` says that all have come.
async fn spans_of(traces: &[String], are_there: impl Fn(&[Span]) -> bool) -> Vec<Span> {
    let start = Instant::now();
    loop {
        let mut spans = COLLECTOR.spans.lock().clone();
        spans.retain(|span| traces.contains(&hex(&span.trace_id)));
        if are_there(&spans) {
            return spans;
        }
        let names: Vec<_> = spans.iter().map(|span| &span.name).collect();
        let dropped = SpanCounters::get().dropped.get();
        assert!(start.elapsed() < Duration::from_secs(20), "{names:?}, {dropped} were dropped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn attribute(span: &Span, name: &str) -> Value {
    let pair = span.attributes.iter().find(|pair| pair.key == name);
    match pair.and_then(|pair| pair.value.clone()).and_then(|value| value.value) {
        Some(AttributeValue::StringValue(text)) => json!(text),
        Some(AttributeValue::IntValue(number)) => json!(number),
        Some(AttributeValue::BoolValue(is)) => json!(is),
        other => panic!("{name} of {}: {other:?}", span.name),
    }
}

fn children<'a>(spans: &'a [Span], parent: &Span, name: &str) -> Vec<&'a Span> {
    let is_child =
        |span: &&Span| span.trace_id == parent.trace_id && span.parent_span_id == parent.span_id;
    spans.iter().filter(is_child).filter(|span| span.name == name).collect()
}

fn child<'a>(spans: &'a [Span], parent: &Span, name: &str) -> &'a Span {
    let all = children(spans, parent, name);
    assert_eq!(all.len(), 1, "{name} of {}", parent.name);
    all[0]
}

fn stores(spans: &[&Span]) -> Vec<String> {
    let names = spans.iter().map(|span| attribute(span, "store"));
    let mut names: Vec<_> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_one_tree_below_the_span_of_its_caller() {
    LazyLock::force(&COLLECTOR);
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let hashes = chain.branch(genesis, 3, 12, 1);
    let node = NodeFixture::with_referee(&chain.spec, mpt(), pbt());
    let secret = JwtSecret::random();
    let (_servers, addr) = serve(&node, secret).await;
    let trace = |number: usize| format!("5eed{number:028x}");
    let ask = async |trace: String, method: &str, params: Value| -> Value {
        let body = request(method, params).to_string();
        let (parent, token) = (format!("00-{trace}-{CALLER}-01"), token(&secret, 0));
        let headers = [
            ("content-type", "application/json"),
            ("authorization", token.as_str()),
            ("traceparent", parent.as_str()),
        ];
        http(addr, "POST", "/", &headers, &body).await.json()["result"].take()
    };
    for (number, hash) in hashes.iter().enumerate() {
        let block = chain.block(*hash);
        let (payload, _) = ExecutionPayload::from_block_unchecked(*hash, block);
        let beside = json!([payload, [], block.header.parent_beacon_block_root]);
        let status = ask(trace(number), "engine_newPayloadV3", beside).await;
        assert_eq!(status["status"], "VALID", "{status}");
        let zero = genesis;
        let state =
            json!({ "headBlockHash": hash, "safeBlockHash": zero, "finalizedBlockHash": zero });
        let updated = ask(trace(number), "engine_forkchoiceUpdatedV3", json!([state, null])).await;
        assert_eq!(updated["payloadStatus"]["status"], "VALID", "{updated}");
    }
    // With the third canonical block, all three are committed.
    let traces: Vec<_> = (0..3).map(trace).collect();
    let spans = spans_of(&traces, |spans| {
        let has = |name: &str| spans.iter().filter(|span| span.name == name).count();
        has("commit") == 1 && has("engine_forkchoiceUpdatedV3") == 3 && has("block") == 3
    })
    .await;
    let mut blocks = Vec::new();
    for trace in &traces {
        let named =
            |span: &&Span| span.name == "engine_newPayloadV3" && hex(&span.trace_id) == *trace;
        let request = spans.iter().find(named).unwrap();
        assert_eq!(hex(&request.parent_span_id), CALLER);
        assert_eq!(request.kind, SpanKind::Server as i32);
        let payload = child(&spans, request, "newPayload");
        assert_eq!(attribute(payload, "status"), "VALID");
        let prepare = child(&spans, payload, "prepare");
        child(&spans, prepare, "senders");
        child(&spans, prepare, "checks");
        let block = child(&spans, payload, "block");
        let execution = child(&spans, block, "execution");
        let reads = child(&spans, execution, "reads");
        assert!(attribute(reads, "accounts").as_i64().unwrap() > 0);
        let time = |span: &Span| span.end_time_unix_nano - span.start_time_unix_nano;
        assert!(time(reads) <= time(execution) && time(execution) <= time(block));
        assert_eq!(stores(&children(&spans, block, "root")), ["mpt", "pbt"]);
        blocks.push(block);
    }
    // The commit is a part of the last block that it makes durable, and linked to the others.
    let commit = child(&spans, blocks[2], "commit");
    assert_eq!((attribute(commit, "first"), attribute(commit, "last")), (json!(1), json!(3)));
    assert_eq!(stores(&children(&spans, commit, "journal")), ["mpt", "pbt"]);
    child(&spans, commit, "sync");
    let linked: Vec<_> = commit.links.iter().map(|link| link.span_id.clone()).collect();
    assert_eq!(linked, [blocks[1].span_id.clone(), blocks[0].span_id.clone()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building_a_payload_is_a_part_of_the_call_that_asked_for_it() {
    LazyLock::force(&COLLECTOR);
    let chain = test_chain(TestRules::Cancun);
    let node = NodeFixture::new(&chain.spec, mpt());
    let secret = JwtSecret::random();
    let (_servers, addr) = serve(&node, secret).await;
    let trace = format!("b111d{:027x}", 1);
    let ask = async |method: &str, params: Value| -> Value {
        let body = request(method, params).to_string();
        let (parent, token) = (format!("00-{trace}-{CALLER}-01"), token(&secret, 0));
        let headers = [
            ("content-type", "application/json"),
            ("authorization", token.as_str()),
            ("traceparent", parent.as_str()),
        ];
        http(addr, "POST", "/", &headers, &body).await.json()
    };
    let (head, time) = (chain.genesis(), chain.block(chain.genesis()).header.timestamp);
    let state = json!({ "headBlockHash": head, "safeBlockHash": head, "finalizedBlockHash": head });
    let attributes = json!({
        "timestamp": format!("{:#x}", time + 12),
        "prevRandao": head,
        "suggestedFeeRecipient": format!("0x{:040x}", 1),
        "withdrawals": [],
        "parentBeaconBlockRoot": head,
    });
    let updated = ask("engine_forkchoiceUpdatedV3", json!([state, attributes])).await;
    let id = updated["result"]["payloadId"].clone();
    assert!(id.is_string(), "{updated}");
    assert!(ask("engine_getPayloadV3", json!([id])).await["result"].is_object());
    // A refused call is marked.
    let unknown = ask("engine_getPayloadV3", json!(["0x0000000000000001"])).await;
    assert_eq!(unknown["error"]["code"], -38001, "{unknown}");
    let spans = spans_of(&[trace], |spans| {
        let has = |name: &str| spans.iter().filter(|span| span.name == name).count();
        has("build") >= 1 && has("engine_getPayloadV3") == 2 && has("forkchoiceUpdated") == 1
    })
    .await;
    let request = spans.iter().find(|span| span.name == "engine_forkchoiceUpdatedV3").unwrap();
    let updated = child(&spans, request, "forkchoiceUpdated");
    assert_eq!(attribute(updated, "builds"), true);
    assert!(!children(&spans, updated, "build").is_empty());
    let fetched: Vec<_> = spans.iter().filter(|span| span.name == "engine_getPayloadV3").collect();
    for call in &fetched {
        child(&spans, call, "getPayload");
    }
    let codes: Vec<_> = fetched.iter().map(|span| span.status.clone().unwrap().code).collect();
    assert!(codes.contains(&0) && codes.contains(&2), "{codes:?}");
}
