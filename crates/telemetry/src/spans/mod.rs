//! Spans of the work on blocks, payloads and requests, exported with the OpenTelemetry protocol.
//!
//! ```text
//!  `tracing` spans --layer--> span data --queue, bounded--> thread `otlp` --OTLP--> a collector
//!                                            '--> dropped and counted if it is full
//! ```
//!
//! [`SpanExport`] is the running export. Without one no layer is interested in our spans, so each
//! costs what a disabled log line costs. [`TraceContext`] names a span across threads and processes:
//! the caller's span comes in HTTP headers, and a commit is a part of a payload that is already
//! answered.
//!
//! The export is behind the cargo feature `otlp`. Without the feature [`SpanExport::start`] fails and
//! says so, and a [`TraceContext`] is empty.
//!
//! A collector that is down, slow or full costs spans, never work: the queue has 4,096 places, a
//! request has 5 s, and the end waits 3 s.

mod config;
mod context;
mod counters;
#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod grpc;
#[cfg(feature = "otlp")]
mod http;
#[cfg(feature = "otlp")]
mod sender;
#[cfg(all(test, feature = "otlp"))]
mod tests;
#[cfg(not(feature = "otlp"))]
mod unbuilt;

pub use config::{DEFAULT_SPAN_FILTER, OtlpConfig, OtlpError, OtlpProtocol};
pub use context::{TraceContext, record_total};
pub use counters::SpanCounters;
#[cfg(feature = "otlp")]
pub use export::SpanExport;
#[cfg(not(feature = "otlp"))]
pub use unbuilt::SpanExport;

use tracing::Metadata;

/// Whether log lines show it: all but our own spans, which are for the export alone.
pub(crate) fn is_logged(metadata: &Metadata<'_>) -> bool {
    !(metadata.is_span() && metadata.target().starts_with("retrie"))
}
