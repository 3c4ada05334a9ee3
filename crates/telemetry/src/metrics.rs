//! Every metric of the client.

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntGauge, Registry, TextEncoder,
    exponential_buckets,
};

/// The metrics, registered once. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Blocks imported.
    pub blocks: IntCounter,
    /// Transactions executed.
    pub transactions: IntCounter,
    /// Gas used by imported blocks.
    pub gas: IntCounter,
    /// Number of the head block.
    pub head: IntGauge,
    /// Number of the last durable block.
    pub durable: IntGauge,
    /// Side-chain blocks seen.
    pub side_blocks: IntCounter,
    /// Reorganisations of the canonical chain.
    pub reorgs: IntCounter,
    /// Blocks refused.
    pub invalid_blocks: IntCounter,
    /// Seconds to execute a block, state reads included.
    pub execution_seconds: Histogram,
    /// Seconds to compute a block's root and writes.
    pub propose_seconds: Histogram,
    /// Seconds of one commit to disk.
    pub commit_seconds: Histogram,
    /// Rows read at the node interface of the state store.
    pub state_reads: IntGauge,
    /// Rows written at the node interface of the state store.
    pub state_writes: IntGauge,
    /// Bytes appended to the state journal.
    pub journal_bytes: IntGauge,
}

impl Metrics {
    /// All metrics at zero in a registry of their own.
    ///
    /// # Errors
    /// If two metrics had one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let seconds = |name: &str, help: &str| {
            // 10 µs to about 20 s.
            let buckets = exponential_buckets(1e-5, 2.0, 22)?;
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        Ok(Self {
            blocks: counter("retrie_import_blocks_total", "Blocks imported")?,
            transactions: counter("retrie_import_transactions_total", "Transactions executed")?,
            gas: counter("retrie_import_gas_total", "Gas used by imported blocks")?,
            head: gauge("retrie_chain_head_number", "Number of the head block")?,
            durable: gauge("retrie_chain_durable_number", "Number of the last durable block")?,
            side_blocks: counter("retrie_chain_side_blocks_total", "Side-chain blocks seen")?,
            reorgs: counter("retrie_chain_reorgs_total", "Reorganisations")?,
            invalid_blocks: counter("retrie_import_invalid_blocks_total", "Blocks refused")?,
            execution_seconds: seconds(
                "retrie_import_execution_seconds",
                "Time to execute a block, state reads included",
            )?,
            propose_seconds: seconds(
                "retrie_state_propose_seconds",
                "Time to compute a block's root and writes",
            )?,
            commit_seconds: seconds("retrie_db_commit_seconds", "Time of one commit to disk")?,
            state_reads: gauge("retrie_state_node_reads", "Rows read by the state backend")?,
            state_writes: gauge("retrie_state_node_writes", "Rows written by the state backend")?,
            journal_bytes: gauge("retrie_state_journal_bytes", "Bytes appended to the journal")?,
            registry,
        })
    }

    /// The values in Prometheus' text format.
    pub fn encode(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
