//! The thread `otlp`: collects spans that have ended, and sends them in batches.
//!
//! A batch is sent once. If the collector does not take it, its spans are lost and counted; the log
//! says so once, and once more when the collector takes spans again.

use super::{SpanCounters, export::ExportLimits};
use crossbeam_channel::{Receiver, select};
use opentelemetry_proto::{
    tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    transform::{
        common::tonic::ResourceAttributesWithSchema,
        trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::trace::SpanData;
use prost::Message;
use std::{
    fmt, io,
    time::{Duration, Instant},
};
use tracing::{Dispatch, dispatcher};

/// Longest answer of a collector that is read, in bytes.
pub(super) const MAX_ANSWER: usize = 64 << 10;

/// How often the thread looks into the queue within an interval.
const LOOKS: u32 = 32;

/// Why a collector has not taken a batch.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// There is no connection, or it broke.
    #[error("{0}")]
    Connection(String),
    /// It did not answer.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// It refuses the batch.
    #[error("the collector answers {0}")]
    Refusal(String),
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

/// Takes encoded requests to the collector.
pub(super) trait SpanTransport: fmt::Debug + Send {
    /// Sends one request; returns the encoded answer, at most [`MAX_ANSWER`] bytes.
    fn send(&mut self, request: Vec<u8>) -> Result<Vec<u8>, SendError>;
}

/// What the thread works with.
pub(super) struct SpanSender {
    pub(super) spans: Receiver<SpanData>,
    /// Is disconnected at the end.
    pub(super) stopped: Receiver<()>,
    pub(super) transport: Box<dyn SpanTransport>,
    pub(super) resource: ResourceAttributesWithSchema,
    /// The collector's address, for the log.
    pub(super) endpoint: String,
    pub(super) limits: ExportLimits,
    /// Whether the last request failed.
    pub(super) is_failing: bool,
}

impl SpanSender {
    /// Sends spans until the end.
    pub(super) fn run(mut self) {
        loop {
            let (batch, is_last) = self.next_batch();
            if is_last {
                return self.send_rest(batch);
            }
            if !self.send(batch) && self.stops_within(self.limits.pause) {
                return self.send_rest(Vec::new());
            }
        }
    }

    /// Waits for a batch: a full one, or what has come within the interval. Also returns whether the
    /// end has come.
    fn next_batch(&self) -> (Vec<SpanData>, bool) {
        let mut batch = Vec::new();
        select! {
            recv(self.spans) -> span => match span {
                Ok(span) => batch.push(span),
                Err(_) => return (batch, true),
            },
            recv(self.stopped) -> _ => return (batch, true),
        }
        let late = Instant::now() + self.limits.interval;
        loop {
            batch.extend(self.spans.try_iter().take(self.limits.batch - batch.len()));
            let left = late.saturating_duration_since(Instant::now());
            if batch.len() >= self.limits.batch || left.is_zero() {
                return (batch, false);
            }
            // If the thread waited on the queue, each span would wake it.
            if self.stops_within(left.min(self.limits.interval / LOOKS)) {
                return (batch, true);
            }
        }
    }

    /// Waits for a time, or until the end comes. Returns whether it came.
    fn stops_within(&self, time: Duration) -> bool {
        select! {
            recv(self.stopped) -> _ => true,
            default(time) => false,
        }
    }

    /// Sends `batch` and what is in the queue, until the time is over or a request fails.
    fn send_rest(mut self, mut batch: Vec<SpanData>) {
        let deadline = Instant::now() + self.limits.flush;
        loop {
            let room = self.limits.batch.saturating_sub(batch.len());
            batch.extend(self.spans.try_iter().take(room));
            if batch.is_empty() {
                return;
            }
            let is_sent = self.send(std::mem::take(&mut batch));
            if !is_sent || Instant::now() >= deadline {
                return SpanCounters::get().dropped.inc_by(self.spans.len() as u64);
            }
        }
    }

    /// Sends a batch. Returns whether the collector has answered.
    fn send(&mut self, batch: Vec<SpanData>) -> bool {
        let (count, counters) = (batch.len() as u64, SpanCounters::get());
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let request = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        // The work of the transport must not make spans itself.
        let answer = dispatcher::with_default(&Dispatch::none(), || self.transport.send(request));
        match answer {
            Ok(answer) => {
                let rejected = self.rejected_spans(&answer).min(count);
                counters.exported.inc_by(count - rejected);
                counters.dropped.inc_by(rejected);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("spans are exported to {} again", self.endpoint);
                }
                true
            }
            Err(error) => {
                counters.dropped.inc_by(count);
                counters.failures.inc();
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        "spans are lost, the node works on: {}: {error}; \
                         retrie_telemetry_spans_dropped_total counts them",
                        self.endpoint
                    );
                }
                false
            }
        }
    }

    /// How many spans the collector has refused, by its answer.
    fn rejected_spans(&self, answer: &[u8]) -> u64 {
        let Ok(answer) = ExportTraceServiceResponse::decode(answer) else { return 0 };
        let Some(partial) = answer.partial_success else { return 0 };
        if partial.rejected_spans > 0 && !self.is_failing {
            let reason = partial.error_message;
            tracing::debug!("{} refuses {} spans: {reason}", self.endpoint, partial.rejected_spans);
        }
        u64::try_from(partial.rejected_spans).unwrap_or(0)
    }
}
