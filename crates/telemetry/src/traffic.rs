//! Metrics of peers: connections, fetched blocks, and gossiped transactions.
//!
//! The network counts them; this module shows the counts at intervals.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Metrics of traffic with peers. Clones share their values.
#[derive(Clone, Debug)]
pub struct TrafficMetrics {
    blocks: IntCounterVec,
    transactions: IntCounterVec,
    wanted: IntGauge,
    peers: IntGaugeVec,
    connections: IntCounterVec,
}

impl TrafficMetrics {
    /// The metrics, in `registry`.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str| {
            let counters = IntCounterVec::new(Opts::new(name, help), &["what"])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let wanted = IntGauge::new(
            "retrie_gossip_wanted_transactions",
            "Transactions that peers have announced and that are not here yet",
        )?;
        registry.register(Box::new(wanted.clone()))?;
        let peers = IntGaugeVec::new(Opts::new("retrie_peers", "Connected peers"), &["direction"])?;
        registry.register(Box::new(peers.clone()))?;
        Ok(Self {
            blocks: counters(
                "retrie_sync_fetched_total",
                "What has come of blocks from peers: headers, bodies, body_bytes, wrong answers, \
                 failed requests",
            )?,
            transactions: counters(
                "retrie_gossip_transactions_total",
                "Transactions: sent whole, announced; heard of, overheard, fetched, taken, refused",
            )?,
            wanted,
            peers,
            connections: counters(
                "retrie_peers_traffic_total",
                "Of connections with peers: messages_in, messages_out, bytes_in, bytes_out, requests \
                 served, timeouts of requests; connections dialled, accepted, throttled, refused; \
                 peers banned",
            )?,
        })
    }

    /// Shows the numbers of connected peers: peers that dialled this node, and peers that it
    /// dialled.
    pub fn show_peers(&self, inbound: usize, outbound: usize) {
        self.peers.with_label_values(&["inbound"]).set(inbound as i64);
        self.peers.with_label_values(&["outbound"]).set(outbound as i64);
    }

    /// Shows the traffic of connections so far, by kind.
    pub fn show_connections(&self, counts: &[(&str, u64)]) {
        show(&self.connections, counts);
    }

    /// Shows what was fetched of blocks so far, by kind.
    pub fn show_blocks(&self, counts: &[(&str, u64)]) {
        show(&self.blocks, counts);
    }

    /// Shows the number of gossiped transactions so far, by kind, and how many are wanted.
    pub fn show_transactions(&self, counts: &[(&str, u64)], wanted: u64) {
        show(&self.transactions, counts);
        self.wanted.set(i64::try_from(wanted).unwrap_or(i64::MAX));
    }
}

fn show(counters: &IntCounterVec, counts: &[(&str, u64)]) {
    for (what, count) in counts {
        let counter = counters.with_label_values(&[what]);
        counter.inc_by(count.saturating_sub(counter.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_as_they_are_and_never_fall() {
        let metrics = TrafficMetrics::new(&Registry::new()).unwrap();
        let headers = || metrics.blocks.with_label_values(&["headers"]).get();
        for (count, shown) in [(5, 5), (9, 9), (3, 9)] {
            metrics.show_blocks(&[("headers", count)]);
            assert_eq!(headers(), shown);
        }
    }
}
