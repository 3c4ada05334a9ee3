//! Names of spans across threads and processes (W3C Trace Context).

#[cfg(feature = "otlp")]
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span as _, SpanContext, TraceContextExt, Tracer},
};
#[cfg(feature = "otlp")]
use opentelemetry_sdk::propagation::TraceContextPropagator;
use std::time::{Duration, SystemTime};
use tracing::Span;
#[cfg(feature = "otlp")]
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Longest `tracestate` that is kept, in bytes (W3C Trace Context, 3.3.1.5).
#[cfg(feature = "otlp")]
const MAX_STATE: usize = 512;

/// Names a span of this or another process, also after its end. Empty if spans are not exported.
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TraceContext(#[cfg(feature = "otlp")] Option<SpanContext>);

#[cfg(feature = "otlp")]
impl TraceContext {
    /// The caller's span, from the HTTP headers `traceparent` and `tracestate`. Empty if they name
    /// none.
    pub fn from_headers(traceparent: Option<&str>, tracestate: Option<&str>) -> Self {
        let Some(parent) = traceparent else { return Self::default() };
        let state = tracestate.filter(|state| state.len() <= MAX_STATE);
        let headers = TraceHeaders { parent, state };
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        let named = caller.span().span_context().clone();
        Self(named.is_valid().then_some(named))
    }

    /// The name of `span`, whose parent can no longer be set.
    pub fn of(span: &Span) -> Self {
        if span.is_disabled() {
            return Self::default();
        }
        let named = span.context().span().span_context().clone();
        Self(named.is_valid().then_some(named))
    }

    /// Makes the named span the parent of `child`, which must not have been entered.
    pub fn set_parent_of(&self, child: &Span) {
        let Some(parent) = self.0.clone().filter(|_| !child.is_disabled()) else { return };
        // Fails only if no layer exports the child.
        let _ = child.set_parent(Context::new().with_remote_span_context(parent));
    }

    /// Links the named span to `span`, as another cause of it.
    pub fn link_to(&self, span: &Span) {
        if let Some(cause) = self.0.clone().filter(|_| !span.is_disabled()) {
            span.add_link(cause);
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl TraceContext {
    /// The caller's span, from the HTTP headers `traceparent` and `tracestate`. Empty here.
    pub const fn from_headers(_: Option<&str>, _: Option<&str>) -> Self {
        Self()
    }

    /// The name of a span. Empty here.
    pub const fn of(_: &Span) -> Self {
        Self()
    }

    /// Makes the named span the parent of a child. Does nothing here.
    pub const fn set_parent_of(&self, _: &Span) {}

    /// Links the named span to another one. Does nothing here.
    pub const fn link_to(&self, _: &Span) {}
}

#[cfg(feature = "otlp")]
struct TraceHeaders<'a> {
    parent: &'a str,
    state: Option<&'a str>,
}

#[cfg(feature = "otlp")]
impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(self.parent),
            "tracestate" => self.state,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// Exports a child of `parent` that stands for many short pieces of work: it begins at `begun`, lasts
/// as long as they took together, and has their counts as attributes. Does nothing if spans are not
/// exported.
#[cfg(feature = "otlp")]
pub fn record_total(
    parent: &Span,
    name: &'static str,
    begun: SystemTime,
    took: Duration,
    counts: &[(&'static str, u64)],
) {
    if parent.is_disabled() {
        return;
    }
    let context = parent.context();
    tracing::dispatcher::get_default(|dispatch| {
        let Some(source) = dispatch.downcast_ref::<super::export::TracerSource>() else { return };
        let counts = counts
            .iter()
            .map(|&(name, count)| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX)));
        let tracer = &source.0;
        let mut span = tracer
            .span_builder(name)
            .with_start_time(begun)
            .with_attributes(counts)
            .start_with_context(tracer, &context);
        span.end_with_timestamp(begun + took);
    });
}

/// Exports a child of a span. Does nothing here.
#[cfg(not(feature = "otlp"))]
pub const fn record_total(
    _: &Span,
    _: &'static str,
    _: SystemTime,
    _: Duration,
    _: &[(&'static str, u64)],
) {
}
