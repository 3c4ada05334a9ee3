//! Where spans go, and which.

use std::{io, str::FromStr};

/// The spans that are exported without another filter: ours.
pub const DEFAULT_SPAN_FILTER: &str = "retrie=debug";

/// The transport of the OpenTelemetry protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf in the body of an HTTP request. Collectors listen on port 4318.
    #[default]
    Http,
    /// gRPC. Collectors listen on port 4317.
    Grpc,
}

impl OtlpProtocol {
    /// The address of a collector on this machine.
    pub const fn default_endpoint(self) -> &'static str {
        match self {
            Self::Http => "http://localhost:4318/v1/traces",
            Self::Grpc => "http://localhost:4317",
        }
    }
}

impl FromStr for OtlpProtocol {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "http" => Ok(Self::Http),
            "grpc" => Ok(Self::Grpc),
            _ => Err("the protocol must be http or grpc".into()),
        }
    }
}

/// Where spans are exported to, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The URL of the collector; that of [`OtlpProtocol::default_endpoint`] if there is none.
    pub endpoint: Option<String>,
    /// The transport.
    pub protocol: OtlpProtocol,
    /// Which spans, as directives of `RUST_LOG`.
    pub filter: String,
    /// Which share of traces is exported, 0 to 1. A trace that a caller began is exported if the
    /// caller says so.
    pub sample_ratio: f64,
    /// The attribute `service.name`.
    pub service_name: String,
}

impl Default for OtlpConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: OtlpProtocol::default(),
            filter: DEFAULT_SPAN_FILTER.into(),
            sample_ratio: 1.0,
            service_name: "retrie".into(),
        }
    }
}

impl OtlpConfig {
    /// The URL of the collector.
    pub fn url(&self) -> &str {
        self.endpoint.as_deref().unwrap_or_else(|| self.protocol.default_endpoint())
    }
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The cargo feature is off.
    #[error(
        "this program was built without OpenTelemetry; build it with --features otlp, or leave out \
         --tracing-otlp"
    )]
    Unbuilt,
    /// No collector can be at this address.
    #[error("--tracing-otlp={endpoint}: {reason}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The filter cannot be read.
    #[error("--tracing-otlp.filter {filter:?}: {reason}")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The share is none.
    #[error("--tracing-otlp.sample-ratio {0}: the share must be between 0 and 1")]
    SampleRatio(f64),
    /// The thread or its runtime cannot be started.
    #[error("the thread `otlp` could not be started: {0}")]
    Thread(io::Error),
}
