//! Flags of the export of spans, with reth's names.

use retrie_telemetry::spans::{DEFAULT_SPAN_FILTER, OtlpConfig, OtlpProtocol};

/// Export of spans to an OpenTelemetry collector.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tracing")]
pub struct TracingArgs {
    /// Export spans of payloads, blocks and requests to this OpenTelemetry collector [default URL:
    /// http://localhost:4318/v1/traces, over gRPC http://localhost:4317].
    #[arg(long = "tracing-otlp", value_name = "URL", require_equals = true)]
    otlp: Option<Option<String>>,
    /// Transport to the collector: http or grpc.
    #[arg(long = "tracing-otlp-protocol", value_name = "PROTOCOL", default_value = "http")]
    protocol: OtlpProtocol,
    /// Which spans are exported, in the form of `RUST_LOG`.
    #[arg(
        long = "tracing-otlp.filter",
        value_name = "FILTER",
        default_value = DEFAULT_SPAN_FILTER
    )]
    filter: String,
    /// Share of traces that are exported, from 0 to 1. A caller's `traceparent` decides for its own.
    #[arg(long = "tracing-otlp.sample-ratio", value_name = "RATIO", default_value_t = 1.0)]
    sample_ratio: f64,
    /// Name of this node in traces.
    #[arg(long = "tracing-otlp.service-name", value_name = "NAME", default_value = "retrie")]
    service_name: String,
}

impl TracingArgs {
    /// Where spans are exported to; `None` if they are not.
    pub fn export(&self) -> Option<OtlpConfig> {
        let endpoint = self.otlp.clone()?;
        Some(OtlpConfig {
            endpoint,
            protocol: self.protocol,
            filter: self.filter.clone(),
            sample_ratio: self.sample_ratio,
            service_name: self.service_name.clone(),
        })
    }
}
