//! The running export: its queue, its layer, its end.

use super::{
    OtlpConfig, OtlpError, OtlpProtocol, SpanCounters,
    grpc::GrpcTransport,
    http::HttpTransport,
    sender::{SpanSender, SpanTransport},
};
use ::http::Uri;
use crossbeam_channel::{Receiver, Sender, bounded};
use opentelemetry::{Context, KeyValue, trace::TracerProvider as _};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanProcessor},
};
use std::{fmt, net::IpAddr, thread, time::Duration};
use tracing::Subscriber;
use tracing_subscriber::{EnvFilter, Layer, registry::LookupSpan};

/// Bounds of memory and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExportLimits {
    /// Spans that wait to be sent. A span has about a kilobyte.
    pub(super) queue: usize,
    /// Spans of one request.
    pub(super) batch: usize,
    /// Longest time from the end of a span until it is sent.
    pub(super) interval: Duration,
    /// Longest time of a request.
    pub(super) timeout: Duration,
    /// Pause after a request that failed.
    pub(super) pause: Duration,
    /// Longest time that the end waits for what is left.
    pub(super) flush: Duration,
}

impl Default for ExportLimits {
    fn default() -> Self {
        Self {
            queue: 4096,
            batch: 512,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            pause: Duration::from_secs(1),
            flush: Duration::from_secs(3),
        }
    }
}

/// Events, attributes and links of a span that are kept; more are dropped.
const MAX_EVENTS: u32 = 32;
const MAX_ATTRIBUTES: u32 = 64;
const MAX_LINKS: u32 = 64;

/// A running export of spans. Dropping it exports what is left, as [`stop`](Self::stop) does.
pub struct SpanExport {
    tracer: SdkTracer,
    filter: String,
    flush: Duration,
    /// Dropping it ends the thread, once the queue is sent or the time is over.
    stop: Option<Sender<()>>,
    /// Is disconnected once the thread has ended.
    ended: Receiver<()>,
}

impl fmt::Debug for SpanExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanExport").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl SpanExport {
    /// Starts the thread that sends spans to a collector. The collector need not be up.
    ///
    /// # Errors
    /// If the configuration is not usable, or the thread cannot be started.
    pub fn start(config: &OtlpConfig) -> Result<Self, OtlpError> {
        Self::start_within(config, ExportLimits::default())
    }

    pub(super) fn start_within(
        config: &OtlpConfig,
        limits: ExportLimits,
    ) -> Result<Self, OtlpError> {
        let OtlpConfig { filter, sample_ratio, service_name, .. } = config;
        if !(0.0..=1.0).contains(sample_ratio) {
            return Err(OtlpError::SampleRatio(*sample_ratio));
        }
        EnvFilter::try_new(filter).map_err(|error| OtlpError::Filter {
            filter: filter.clone(),
            reason: error.to_string(),
        })?;
        let transport = transport(config, limits.timeout)?;
        let resource = Resource::builder()
            .with_service_name(service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let (queue, spans) = bounded(limits.queue);
        let (stop, stopped) = bounded(0);
        let (running, ended) = bounded(0);
        let sender = SpanSender {
            spans,
            stopped,
            transport,
            resource: ResourceAttributesWithSchema::from(&resource),
            endpoint: config.url().into(),
            limits,
            is_failing: false,
        };
        thread::Builder::new()
            .name("otlp".into())
            .spawn(move || {
                let _running: Sender<()> = running;
                sender.run();
            })
            .map_err(OtlpError::Thread)?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(*sample_ratio))))
            .with_max_events_per_span(MAX_EVENTS)
            .with_max_attributes_per_span(MAX_ATTRIBUTES)
            .with_max_links_per_span(MAX_LINKS)
            .with_span_processor(SpanQueue(queue))
            .build();
        Ok(Self {
            tracer: provider.tracer("retrie"),
            filter: filter.clone(),
            flush: limits.flush,
            stop: Some(stop),
            ended,
        })
    }

    /// The layer that turns spans into exported ones.
    pub(crate) fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let spans = tracing_opentelemetry::layer()
            .with_tracer(self.tracer.clone())
            .with_location(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false);
        let source = TracerSource(self.tracer.clone());
        spans.and_then(source).with_filter(EnvFilter::new(&self.filter)).boxed()
    }

    /// Exports what is left, for 3 s at most.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for SpanExport {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A request that is under way may take longer; its spans are lost then.
        let _ = self.ended.recv_timeout(self.flush);
    }
}

/// Gives [`record_total`](super::record_total) the tracer of the layer. Does nothing as a layer.
pub(super) struct TracerSource(pub(super) SdkTracer);

impl<S: Subscriber> Layer<S> for TracerSource {}

/// Where the SDK puts spans that have ended: a queue that never blocks.
#[derive(Debug)]
struct SpanQueue(Sender<SpanData>);

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.0.try_send(span).is_err() {
            SpanCounters::get().dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The transport to the collector that `config` names.
fn transport(config: &OtlpConfig, timeout: Duration) -> Result<Box<dyn SpanTransport>, OtlpError> {
    let endpoint = config.url();
    let unusable =
        |reason: &str| OtlpError::Endpoint { endpoint: endpoint.into(), reason: reason.into() };
    let uri: Uri = endpoint.parse().map_err(|_| unusable("this is no URL"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(unusable("this is no URL: it begins with http://"));
    };
    match config.protocol {
        OtlpProtocol::Http => {
            if !matches!(scheme, "http" | "https") {
                return Err(unusable("the scheme must be http or https"));
            }
            if !uri.path().ends_with("/v1/traces") {
                return Err(unusable("the path of OTLP over HTTP ends with /v1/traces"));
            }
            Ok(Box::new(HttpTransport::new(endpoint, is_this_machine(authority.host()), timeout)))
        }
        OtlpProtocol::Grpc => {
            if scheme != "http" {
                return Err(unusable("gRPC is spoken without TLS, so the scheme must be http"));
            }
            if !matches!(uri.path(), "" | "/") {
                return Err(unusable("the URL of OTLP over gRPC has no path"));
            }
            let port = authority.port_u16().unwrap_or(4317);
            let transport = GrpcTransport::new(authority.host(), port, timeout);
            Ok(Box::new(transport.map_err(OtlpError::Thread)?))
        }
    }
}

/// Whether no proxy leads to this host.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}
