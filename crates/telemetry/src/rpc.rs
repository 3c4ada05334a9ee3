//! Metrics of the JSON-RPC servers.
//!
//! Methods are labels, but only methods that a server has: all others are counted as `unknown`, so
//! that clients cannot make the endpoint grow.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, exponential_buckets,
};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Label of methods that no server has.
const UNKNOWN: &str = "unknown";

/// Metrics of all JSON-RPC servers. Clones share their values.
#[derive(Clone, Debug)]
pub struct RpcMetrics {
    requests: IntCounterVec,
    errors: IntCounterVec,
    seconds: HistogramVec,
    connections: IntGaugeVec,
    refused: IntCounterVec,
    received: IntCounterVec,
    sent: IntCounterVec,
}

impl Default for RpcMetrics {
    /// Metrics that are not exported.
    fn default() -> Self {
        Self::new(&Registry::new()).expect("the names are valid, and differ")
    }
}

impl RpcMetrics {
    /// The metrics, in `registry`.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        // 100 µs to about 26 s.
        let buckets = exponential_buckets(1e-4, 4.0, 10)?;
        let seconds = HistogramVec::new(
            HistogramOpts::new("retrie_rpc_request_seconds", "Time to answer a JSON-RPC request")
                .buckets(buckets),
            &["server", "method"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        let connections = IntGaugeVec::new(
            Opts::new("retrie_rpc_connections", "Open connections of JSON-RPC clients"),
            &["server"],
        )?;
        registry.register(Box::new(connections.clone()))?;
        Ok(Self {
            requests: counters(
                "retrie_rpc_requests_total",
                "JSON-RPC requests, those of a batch one by one",
                &["server", "method"],
            )?,
            errors: counters(
                "retrie_rpc_errors_total",
                "JSON-RPC requests that were answered with an error",
                &["server", "method"],
            )?,
            seconds,
            connections,
            refused: counters(
                "retrie_rpc_refused_connections_total",
                "Connections that were refused or closed to keep the limit",
                &["server"],
            )?,
            received: counters(
                "retrie_rpc_received_bytes_total",
                "Bytes of JSON-RPC requests",
                &["server"],
            )?,
            sent: counters(
                "retrie_rpc_sent_bytes_total",
                "Bytes of answers and notifications",
                &["server"],
            )?,
        })
    }

    /// The metrics of one server: `http`, `ws`, `ipc` or `engine`. `methods` are the methods that
    /// it has.
    pub fn server(
        &self,
        server: &'static str,
        methods: impl IntoIterator<Item = &'static str>,
    ) -> ServerMetrics {
        let methods = methods.into_iter().chain([UNKNOWN]);
        ServerMetrics {
            connections: self.connections.with_label_values(&[server]),
            refused: self.refused.with_label_values(&[server]),
            received: self.received.with_label_values(&[server]),
            sent: self.sent.with_label_values(&[server]),
            methods: Arc::new(methods.map(|method| (method, OnceLock::new())).collect()),
            server,
            all: self.clone(),
        }
    }

    fn method(&self, server: &str, method: &str) -> MethodMetrics {
        let labels = [server, method];
        MethodMetrics {
            requests: self.requests.with_label_values(&labels),
            errors: self.errors.with_label_values(&labels),
            seconds: self.seconds.with_label_values(&labels),
        }
    }
}

/// Metrics of one JSON-RPC server.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    server: &'static str,
    /// Open connections.
    connections: IntGauge,
    /// Connections that were refused, or closed in favour of another one.
    pub refused: IntCounter,
    /// Bytes of requests.
    pub received: IntCounter,
    /// Bytes of answers and notifications.
    pub sent: IntCounter,
    /// By method, from its first request on.
    methods: Arc<HashMap<&'static str, OnceLock<MethodMetrics>>>,
    all: RpcMetrics,
}

#[derive(Debug)]
struct MethodMetrics {
    requests: IntCounter,
    errors: IntCounter,
    seconds: Histogram,
}

impl ServerMetrics {
    /// Counts a connection until the returned guard is dropped.
    pub fn connected(&self) -> ConnectionGuard {
        self.connections.inc();
        ConnectionGuard(self.connections.clone())
    }

    /// Counts a request that was answered within `time`.
    pub fn answered(&self, method: &str, time: Duration, is_success: bool) {
        let found = self.methods.get_key_value(method).or_else(|| {
            // This label always exists.
            self.methods.get_key_value(UNKNOWN)
        });
        let Some((name, metrics)) = found else { return };
        let metrics = metrics.get_or_init(|| self.all.method(self.server, name));
        metrics.requests.inc();
        metrics.seconds.observe(time.as_secs_f64());
        if !is_success {
            metrics.errors.inc();
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub struct ConnectionGuard(IntGauge);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use crate::Metrics;
    use std::time::Duration;

    #[test]
    fn only_methods_of_the_server_are_labels() {
        let metrics = Metrics::new().unwrap();
        let http = metrics.rpc.server("http", ["eth_chainId", "eth_call"]);
        http.answered("eth_chainId", Duration::from_millis(3), true);
        for stranger in ["a", "b", "c"] {
            http.answered(stranger, Duration::ZERO, false);
        }
        let open = http.connected();
        let text = || String::from_utf8(metrics.encode().unwrap()).unwrap();
        for line in [
            r#"retrie_rpc_requests_total{method="eth_chainId",server="http"} 1"#,
            r#"retrie_rpc_requests_total{method="unknown",server="http"} 3"#,
            r#"retrie_rpc_errors_total{method="eth_chainId",server="http"} 0"#,
            r#"retrie_rpc_errors_total{method="unknown",server="http"} 3"#,
            r#"retrie_rpc_request_seconds_bucket{method="eth_chainId",server="http",le="0.0016"} 0"#,
            r#"retrie_rpc_request_seconds_bucket{method="eth_chainId",server="http",le="0.0064"} 1"#,
            r#"retrie_rpc_connections{server="http"} 1"#,
        ] {
            assert!(text().lines().any(|found| found == line), "{line} is not in {}", text());
        }
        assert!(!text().contains("eth_call"), "no client has called it");
        drop(open);
        assert!(text().contains(r#"retrie_rpc_connections{server="http"} 0"#));
    }
}
