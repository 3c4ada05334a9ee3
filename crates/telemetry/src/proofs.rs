//! Metrics of proofs that are assembled from parts of several nodes (`--proof-peers`).
//!
//! The label `peer` is an address. Peers are the nodes that the operator has named, and the
//! addresses that their names resolve to. The series of a peer are removed when it is gone, so that
//! changing addresses do not make the endpoint grow.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, exponential_buckets,
};
use std::time::Duration;

/// Metrics of proofs from several nodes. Clones share their values.
#[derive(Clone, Debug)]
pub struct ProofMetrics {
    /// Proofs that were assembled from parts of other nodes.
    pub gathered: IntCounter,
    /// Proofs that could not be assembled.
    pub not_gathered: IntCounter,
    requests: IntCounterVec,
    errors: IntCounterVec,
    hedges: IntCounterVec,
    set_aside: IntCounterVec,
    seconds: HistogramVec,
    healthy: IntGaugeVec,
}

impl Default for ProofMetrics {
    /// Metrics that are not exported.
    fn default() -> Self {
        Self::new(&Registry::new()).expect("the names are valid, and differ")
    }
}

impl ProofMetrics {
    /// The metrics, in `registry`.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        // 500 µs to about 16 s.
        let buckets = exponential_buckets(5e-4, 2.0, 16)?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "retrie_proof_peer_request_seconds",
                "Time until a peer has given its part of a proof",
            )
            .buckets(buckets),
            &["peer"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        let healthy = IntGaugeVec::new(
            Opts::new("retrie_proof_peer_healthy", "1 if a peer is asked for parts of proofs"),
            &["peer"],
        )?;
        registry.register(Box::new(healthy.clone()))?;
        Ok(Self {
            gathered: counter(
                "retrie_proof_gathered_total",
                "Proofs put together from the parts of other nodes",
            )?,
            not_gathered: counter(
                "retrie_proof_not_gathered_total",
                "Proofs for which no node had a part that is needed",
            )?,
            requests: counters(
                "retrie_proof_peer_requests_total",
                "Requests to a peer for its part of a proof",
                &["peer"],
            )?,
            errors: counters(
                "retrie_proof_peer_errors_total",
                "Requests that brought nothing: failed, behind, lacking, busy, wrong",
                &["peer", "kind"],
            )?,
            hedges: counters(
                "retrie_proof_peer_hedges_total",
                "Requests to a peer because another one was slow",
                &["peer"],
            )?,
            set_aside: counters(
                "retrie_proof_peer_set_aside_total",
                "Times that a peer was set aside for a wrong answer",
                &["peer"],
            )?,
            seconds,
            healthy,
        })
    }

    /// The metrics of the peer at an address.
    pub fn peer(&self, address: &str) -> PeerMetrics {
        let labels = [address];
        PeerMetrics {
            address: address.to_owned(),
            requests: self.requests.with_label_values(&labels),
            hedges: self.hedges.with_label_values(&labels),
            set_aside: self.set_aside.with_label_values(&labels),
            seconds: self.seconds.with_label_values(&labels),
            healthy: self.healthy.with_label_values(&labels),
            all: self.clone(),
        }
    }
}

/// Kinds of errors.
const KINDS: [&str; 5] = ["failed", "behind", "lacking", "busy", "wrong"];

/// Metrics of one peer. Its series are removed when this is dropped.
#[derive(Debug)]
pub struct PeerMetrics {
    address: String,
    /// Requests for its part of a proof.
    pub requests: IntCounter,
    /// Requests that were made because another peer was slow.
    pub hedges: IntCounter,
    /// Number of times that it was set aside for a wrong answer.
    pub set_aside: IntCounter,
    /// 1 if it is used.
    pub healthy: IntGauge,
    seconds: Histogram,
    all: ProofMetrics,
}

impl PeerMetrics {
    /// Counts a part that was received within `time`.
    pub fn answered(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }

    /// Counts a request without a result: `failed`, `behind`, `lacking`, `busy` or `wrong`.
    pub fn failed(&self, kind: &'static str) {
        self.all.errors.with_label_values(&[&*self.address, kind]).inc();
    }
}

impl Drop for PeerMetrics {
    fn drop(&mut self) {
        let labels = [&*self.address];
        // An error means that there was no such series.
        let _ = self.all.requests.remove_label_values(&labels);
        let _ = self.all.hedges.remove_label_values(&labels);
        let _ = self.all.set_aside.remove_label_values(&labels);
        let _ = self.all.seconds.remove_label_values(&labels);
        let _ = self.all.healthy.remove_label_values(&labels);
        for kind in KINDS {
            let _ = self.all.errors.remove_label_values(&[&*self.address, kind]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Metrics;
    use std::time::Duration;

    #[test]
    fn a_peer_that_is_gone_takes_its_series_with_it() {
        let metrics = Metrics::new().unwrap();
        let text = || String::from_utf8(metrics.encode().unwrap()).unwrap();
        let peer = metrics.proofs.peer("10.0.0.7:8545");
        peer.requests.inc();
        peer.healthy.set(1);
        peer.answered(Duration::from_millis(2));
        peer.failed("wrong");
        for line in [
            r#"retrie_proof_peer_requests_total{peer="10.0.0.7:8545"} 1"#,
            r#"retrie_proof_peer_errors_total{kind="wrong",peer="10.0.0.7:8545"} 1"#,
            r#"retrie_proof_peer_healthy{peer="10.0.0.7:8545"} 1"#,
            r#"retrie_proof_peer_request_seconds_count{peer="10.0.0.7:8545"} 1"#,
        ] {
            assert!(text().lines().any(|found| found == line), "{line} is not in {}", text());
        }
        drop(peer);
        assert!(!text().contains("10.0.0.7"), "{}", text());
        assert!(text().contains("retrie_proof_gathered_total 0"));
    }
}
