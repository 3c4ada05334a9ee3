//! The export against collectors in this process: one over HTTP, one over gRPC, one that never
//! answers, none.

use super::{
    OtlpConfig, OtlpError, OtlpProtocol, SpanCounters, SpanExport, TraceContext,
    export::ExportLimits, record_total,
};
use ::http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::{
    Request,
    body::{Bytes, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    },
    common::v1::any_value::Value,
    trace::v1::Span as ProtoSpan,
};
use parking_lot::Mutex;
use prost::Message;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tracing::{Dispatch, debug_span, dispatcher};
use tracing_subscriber::layer::SubscriberExt;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Limits under which a collector that fails takes no seconds.
fn limits() -> ExportLimits {
    ExportLimits {
        queue: 64,
        batch: 16,
        interval: Duration::from_millis(10),
        timeout: Duration::from_millis(200),
        pause: Duration::from_millis(10),
        flush: Duration::from_millis(500),
    }
}

/// Limits that a collector keeps on a busy machine too.
fn patient() -> ExportLimits {
    let long = Duration::from_secs(10);
    ExportLimits { timeout: long, flush: long, ..limits() }
}

/// A collector on threads of its own.
struct TestCollector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<ProtoSpan>>>,
    _runtime: Runtime,
}

impl TestCollector {
    fn start(protocol: OtlpProtocol) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::<Mutex<Vec<ProtoSpan>>>::default();
        let taken = spans.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taken = taken.clone();
                let io = TokioIo::new(stream);
                tokio::spawn(async move {
                    match protocol {
                        OtlpProtocol::Http => {
                            let answer = service_fn(move |request| http(request, taken.clone()));
                            let http = hyper::server::conn::http1::Builder::new();
                            drop(http.serve_connection(io, answer).await);
                        }
                        OtlpProtocol::Grpc => {
                            let answer = service_fn(move |request| grpc(request, taken.clone()));
                            let http =
                                hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            drop(http.serve_connection(io, answer).await);
                        }
                    }
                });
            }
        });
        Self { address, spans, _runtime: runtime }
    }

    fn config(&self, protocol: OtlpProtocol) -> OtlpConfig {
        let path = if protocol == OtlpProtocol::Http { "/v1/traces" } else { "" };
        let endpoint = Some(format!("http://{}{path}", self.address));
        OtlpConfig { endpoint, protocol, ..OtlpConfig::default() }
    }
}

/// Keeps the spans of a message; refuses one of several.
fn take(message: &[u8], taken: &Mutex<Vec<ProtoSpan>>) -> Vec<u8> {
    let request = ExportTraceServiceRequest::decode(message).unwrap();
    let mut count = 0;
    for resource in request.resource_spans {
        let attributes = &resource.resource.unwrap().attributes;
        assert!(attributes.iter().any(|pair| pair.key == "service.version"));
        for scope in resource.scope_spans {
            count += scope.spans.len();
            taken.lock().extend(scope.spans);
        }
    }
    let rejected_spans = i64::from(count > 1);
    let partial = ExportTracePartialSuccess { rejected_spans, error_message: "full".into() };
    ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
}

async fn http(
    request: Request<Incoming>,
    taken: Arc<Mutex<Vec<ProtoSpan>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().path(), "/v1/traces");
    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(Response::new(Full::new(take(&body, &taken).into())))
}

type GrpcBody = StreamBody<futures::stream::Iter<std::vec::IntoIter<GrpcFrame>>>;
type GrpcFrame = Result<Frame<Bytes>, Infallible>;

async fn grpc(
    request: Request<Incoming>,
    taken: Arc<Mutex<Vec<ProtoSpan>>>,
) -> Result<Response<GrpcBody>, Infallible> {
    assert_eq!(request.headers()["te"], "trailers");
    assert!(request.uri().path().ends_with("TraceService/Export"));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body[..5], [&[0][..], &(body.len() as u32 - 5).to_be_bytes()].concat());
    let answer = take(&body[5..], &taken);
    let mut framed = vec![0];
    framed.extend((answer.len() as u32).to_be_bytes());
    framed.extend(answer);
    let trailers: HeaderMap =
        [("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))].into_iter().collect();
    let frames = vec![Ok(Frame::data(framed.into())), Ok(Frame::trailers(trailers))];
    Ok(Response::new(StreamBody::new(futures::stream::iter(frames))))
}

/// What subscribes to spans in a test, and sends them to `export`.
fn subscriber(export: &SpanExport) -> Dispatch {
    Dispatch::new(tracing_subscriber::registry().with(export.layer()))
}

fn find<'a>(spans: &'a [ProtoSpan], name: &str) -> &'a ProtoSpan {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn spans_arrive_with_their_parents(protocol: OtlpProtocol) {
    let collector = TestCollector::start(protocol);
    let before = SpanCounters::get().exported.get();
    let export = SpanExport::start_within(&collector.config(protocol), patient()).unwrap();
    let kept = dispatcher::with_default(&subscriber(&export), || {
        let span = debug_span!(target: "retrie", "payload", number = 7);
        let caller = format!("00-{TRACE}-{CALLER}-01");
        TraceContext::from_headers(Some(&caller), Some("vendor=1")).set_parent_of(&span);
        let thread = span.clone();
        let dispatch = dispatcher::get_default(Clone::clone);
        let work = move || {
            dispatcher::with_default(&dispatch, || {
                let _entered = thread.enter();
                let _root = debug_span!(target: "retrie", "root", store = "mpt").entered();
                tracing::debug!(target: "retrie", keys = 3, "computed");
            });
        };
        std::thread::spawn(work).join().unwrap();
        let took = Duration::from_millis(3);
        record_total(&span, "reads", SystemTime::now(), took, &[("slots", 5)]);
        TraceContext::of(&span)
    });
    // The payload has ended; a later span still is its child, and another one is linked to it.
    dispatcher::with_default(&subscriber(&export), || {
        let commit = debug_span!(target: "retrie", "commit");
        kept.set_parent_of(&commit);
        let other = debug_span!(target: "retrie", "other");
        kept.link_to(&other);
        // A span of another crate is not exported.
        drop(debug_span!(target: "hyper", "strange").entered());
    });
    export.stop();
    let spans = collector.spans.lock().clone();
    let payload = find(&spans, "payload");
    assert_eq!(hex(&payload.trace_id), TRACE);
    assert_eq!(hex(&payload.parent_span_id), CALLER);
    assert_eq!(payload.trace_state, "vendor=1");
    for child in ["root", "reads", "commit"] {
        let child = find(&spans, child);
        assert_eq!((&child.trace_id, &child.parent_span_id), (&payload.trace_id, &payload.span_id));
    }
    let root = find(&spans, "root");
    let store = root.attributes.iter().find(|pair| pair.key == "store").unwrap();
    let value = store.value.as_ref().and_then(|value| value.value.clone());
    assert_eq!(value, Some(Value::StringValue("mpt".into())));
    assert_eq!(root.events[0].name, "computed");
    let reads = find(&spans, "reads");
    assert_eq!(reads.end_time_unix_nano - reads.start_time_unix_nano, 3_000_000);
    assert!(reads.attributes.iter().any(|pair| pair.key == "slots"));
    let other = find(&spans, "other");
    assert_ne!(other.trace_id, payload.trace_id);
    assert_eq!(other.links[0].span_id, payload.span_id);
    assert_eq!(spans.len(), 5, "{spans:?}");
    assert!(SpanCounters::get().exported.get() > before);
}

#[test]
fn spans_arrive_over_http() {
    spans_arrive_with_their_parents(OtlpProtocol::Http);
}

#[test]
fn spans_arrive_over_grpc() {
    spans_arrive_with_their_parents(OtlpProtocol::Grpc);
}

#[test]
fn a_trace_that_its_caller_does_not_sample_is_not_exported() {
    let collector = TestCollector::start(OtlpProtocol::Http);
    let config = collector.config(OtlpProtocol::Http);
    let export = SpanExport::start_within(&config, patient()).unwrap();
    dispatcher::with_default(&subscriber(&export), || {
        for (flags, name) in [("00", "unsampled"), ("01", "sampled")] {
            let span = tracing::debug_span!(target: "retrie", "call", otel.name = name);
            let caller = format!("00-{TRACE}-{CALLER}-{flags}");
            TraceContext::from_headers(Some(&caller), None).set_parent_of(&span);
        }
        // What is no traceparent is no parent.
        let long = "0".repeat(100_000);
        for bad in ["", "00", "00-0-0-01", "zz-a-b-c", long.as_str()] {
            let span = debug_span!(target: "retrie", "orphan");
            TraceContext::from_headers(Some(bad), None).set_parent_of(&span);
        }
    });
    export.stop();
    let spans = collector.spans.lock().clone();
    assert_eq!(spans.iter().filter(|span| hex(&span.trace_id) == TRACE).count(), 1);
    assert_eq!(find(&spans, "sampled").parent_span_id, hex_bytes(CALLER));
    let orphans: Vec<_> = spans.iter().filter(|span| span.name == "orphan").collect();
    assert!(orphans.len() == 5 && orphans.iter().all(|span| span.parent_span_id.is_empty()));
}

fn hex_bytes(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Ends many more spans than the queue has places; the collector is at `endpoint`.
fn lose_spans(protocol: OtlpProtocol, endpoint: String) {
    let config = OtlpConfig { endpoint: Some(endpoint), protocol, ..OtlpConfig::default() };
    let export = SpanExport::start_within(&config, limits()).unwrap();
    let before = SpanCounters::get().dropped.get();
    let start = Instant::now();
    dispatcher::with_default(&subscriber(&export), || {
        for _ in 0..2000 {
            drop(debug_span!(target: "retrie", "work").entered());
        }
    });
    // The thread that works does not wait for requests: one alone would take 200 ms, all of them 25 s.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    export.stop();
    // The spans of a request under way when the time is over are not counted yet.
    let dropped = SpanCounters::get().dropped.get() - before;
    assert!(dropped >= 2000 - 64 - 2 * 16, "{dropped}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn a_collector_that_never_answers_costs_spans_and_not_time() {
    for (protocol, path) in [(OtlpProtocol::Http, "/v1/traces"), (OtlpProtocol::Grpc, "")] {
        // The system takes the connection; nothing is ever read from it.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        lose_spans(protocol, format!("http://{address}{path}"));
    }
}

#[test]
fn a_collector_that_is_down_costs_spans_and_not_time() {
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    lose_spans(OtlpProtocol::Http, format!("http://{address}/v1/traces"));
    lose_spans(OtlpProtocol::Grpc, format!("http://{address}"));
}

#[test]
fn an_unusable_configuration_is_refused_and_named() {
    let refused = |config: OtlpConfig| SpanExport::start(&config).unwrap_err();
    let at = |endpoint: &str, protocol| OtlpConfig {
        endpoint: Some(endpoint.into()),
        protocol,
        ..OtlpConfig::default()
    };
    for (endpoint, protocol, what) in [
        ("collector", OtlpProtocol::Http, "no URL"),
        ("http://collector:4318", OtlpProtocol::Http, "/v1/traces"),
        ("ftp://collector/v1/traces", OtlpProtocol::Http, "http or https"),
        ("http://collector:4317/v1/traces", OtlpProtocol::Grpc, "no path"),
        ("https://collector:4317", OtlpProtocol::Grpc, "without TLS"),
    ] {
        let error = refused(at(endpoint, protocol));
        assert!(matches!(error, OtlpError::Endpoint { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains(endpoint), "{error}");
    }
    let error = refused(OtlpConfig { filter: "retrie=loud".into(), ..OtlpConfig::default() });
    assert!(error.to_string().contains("retrie=loud"), "{error}");
    for ratio in [-0.1, 1.1, f64::NAN] {
        let error = refused(OtlpConfig { sample_ratio: ratio, ..OtlpConfig::default() });
        assert!(matches!(error, OtlpError::SampleRatio(_)), "{error}");
    }
}
