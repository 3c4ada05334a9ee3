//! How many spans were exported, and how many lost.

use prometheus::{IntCounter, Registry};
use std::sync::LazyLock;

/// Counters of the export. There is one export in a process, as there is one subscriber of spans.
#[derive(Clone, Debug)]
pub struct SpanCounters {
    /// Spans that a collector has taken.
    pub exported: IntCounter,
    /// Spans that were lost: the queue was full, or the collector was down, slow or refused them.
    pub dropped: IntCounter,
    /// Requests to the collector that failed.
    pub failures: IntCounter,
}

static COUNTERS: LazyLock<SpanCounters> = LazyLock::new(|| {
    let counter =
        |name: &str, help: &str| IntCounter::new(name, help).expect("the names are valid");
    SpanCounters {
        exported: counter("retrie_telemetry_spans_exported_total", "Spans a collector has taken"),
        dropped: counter(
            "retrie_telemetry_spans_dropped_total",
            "Spans that were lost, because the collector is down, slow or full",
        ),
        failures: counter(
            "retrie_telemetry_export_failures_total",
            "Requests to the collector of spans that failed",
        ),
    }
});

impl SpanCounters {
    /// The counters of this process.
    pub fn get() -> &'static Self {
        &COUNTERS
    }

    /// Adds the counters to `registry`.
    pub(crate) fn register(registry: &Registry) -> Result<(), prometheus::Error> {
        let Self { exported, dropped, failures } = Self::get();
        for counter in [exported, dropped, failures] {
            registry.register(Box::new(counter.clone()))?;
        }
        Ok(())
    }
}
