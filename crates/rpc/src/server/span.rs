//! The span of a request: a child of the caller's, if the HTTP headers name one (W3C Trace Context).
//!
//! A WebSocket and IPC have no headers for each request; their requests begin traces of their own.

use http::HeaderMap;
use retrie_telemetry::spans::TraceContext;
use tracing::{Span, debug_span, field};

/// The span that the caller names in `headers`.
pub(super) fn caller_of(headers: &HeaderMap) -> TraceContext {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::from_headers(text("traceparent"), text("tracestate"))
}

/// The span of a call of `method`. The name is a method that the server has: callers must not be able
/// to make others.
pub(super) fn request_span<'a>(caller: &TraceContext, method: impl FnOnce() -> &'a str) -> Span {
    let span = debug_span!(
        "request",
        otel.name = method(),
        otel.kind = "server",
        otel.status_code = field::Empty,
        rpc.system = "jsonrpc",
    );
    caller.set_parent_of(&span);
    span
}

/// Marks the span of a request that was answered with an error.
pub(super) fn mark_failed(span: &Span) {
    span.record("otel.status_code", "ERROR");
}
