//! Every metric of the client, except those of state stores ([`state`](crate::state)), JSON-RPC
//! servers ([`rpc`](crate::rpc)), traffic with peers ([`traffic`](crate::traffic)), state sync
//! ([`state_sync`](crate::state_sync)), proofs from several nodes ([`proofs`](crate::proofs)), and
//! exported spans ([`spans`](crate::spans)).

use crate::{
    proofs::ProofMetrics,
    rpc::RpcMetrics,
    spans::SpanCounters,
    state::{StateFigures, StoreWatchList},
    state_sync::StateSyncMetrics,
    traffic::TrafficMetrics,
};
use prometheus::{
    Counter, Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder, exponential_buckets,
};
use std::sync::Arc;

/// The metrics, registered once. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Blocks imported.
    pub blocks: IntCounter,
    /// Transactions executed.
    pub transactions: IntCounter,
    /// Transactions that were executed in parallel, with the BALs of their blocks.
    pub transactions_ahead: IntCounter,
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
    /// Invalid blocks.
    pub invalid_blocks: IntCounter,
    /// Header state roots that were compared with a computed one.
    pub roots_checked: IntCounter,
    /// Keys read by the EVM.
    pub key_reads: IntCounter,
    /// Keys changed by blocks.
    pub key_writes: IntCounter,
    /// Seconds from the start of a prepared block's verification until it is accepted.
    pub block_seconds: Histogram,
    /// Seconds to recover a block's senders and to check it without its parent, on other threads.
    pub prepare_seconds: Histogram,
    /// Seconds to execute a block, state reads included.
    pub execution_seconds: Histogram,
    /// Seconds of execution that were spent in state reads.
    pub state_read_seconds: Counter,
    /// Seconds to compute a block's root and writes.
    pub propose_seconds: Histogram,
    /// Seconds that the import has waited for roots and writes.
    pub root_wait_seconds: Counter,
    /// Seconds of one commit to disk.
    pub commit_seconds: Histogram,
    /// Seconds that the import has waited for commits.
    pub commit_wait_seconds: Counter,
    /// Transactions in the pool, by sub-pool: pending, basefee, queued, blob.
    pub pool_transactions: IntGaugeVec,
    /// Bytes in memory of these transactions.
    pub pool_bytes: IntGaugeVec,
    /// The JSON-RPC servers.
    pub rpc: RpcMetrics,
    /// Proofs that are assembled from parts of several nodes.
    pub proofs: ProofMetrics,
    /// Traffic with peers.
    pub traffic: TrafficMetrics,
    /// The state that a new node fetches.
    pub state_sync: StateSyncMetrics,
    /// Operations of `retrie bench`, by backend and workload.
    pub bench_operations: IntCounterVec,
    /// Seconds of a commit or block of `retrie bench`, by backend and workload.
    pub bench_commit_seconds: HistogramVec,
    /// Bytes on disk of a backend in `retrie bench`, by backend and workload.
    pub bench_disk_bytes: IntGaugeVec,
    states: Arc<StoreWatchList>,
}

/// Labels of the metrics of `retrie bench`.
const BENCH_LABELS: [&str; 2] = ["backend", "workload"];

impl Metrics {
    /// All metrics at zero, in a new registry, and the metrics of this process.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let build = IntGauge::with_opts(
            Opts::new("retrie_build_info", "The version of this program")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        build.set(1);
        registry.register(Box::new(build))?;
        SpanCounters::register(&registry)?;
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let seconds_total = |name: &str, help: &str| {
            let counter = Counter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        // 10 µs to about 20 s.
        let buckets = exponential_buckets(1e-5, 2.0, 22)?;
        let options =
            |name: &str, help: &str| HistogramOpts::new(name, help).buckets(buckets.clone());
        let seconds = |name: &str, help: &str| {
            let histogram = Histogram::with_opts(options(name, help))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let pool = |name: &str, help: &str| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), &["subpool"])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let bench_operations = IntCounterVec::new(
            Opts::new("retrie_bench_operations_total", "Operations of retrie bench"),
            &BENCH_LABELS,
        )?;
        let bench_commit_seconds = HistogramVec::new(
            options("retrie_bench_commit_seconds", "Time of a commit or block of retrie bench"),
            &BENCH_LABELS,
        )?;
        let bench_disk_bytes = IntGaugeVec::new(
            Opts::new("retrie_bench_disk_bytes", "Bytes on disk of a backend in retrie bench"),
            &BENCH_LABELS,
        )?;
        registry.register(Box::new(bench_operations.clone()))?;
        registry.register(Box::new(bench_commit_seconds.clone()))?;
        registry.register(Box::new(bench_disk_bytes.clone()))?;
        Ok(Self {
            blocks: counter("retrie_import_blocks_total", "Blocks imported")?,
            transactions: counter("retrie_import_transactions_total", "Transactions executed")?,
            transactions_ahead: counter(
                "retrie_import_transactions_ahead_total",
                "Transactions executed in parallel on block access lists",
            )?,
            gas: counter("retrie_import_gas_total", "Gas used by imported blocks")?,
            head: gauge("retrie_chain_head_number", "Number of the head block")?,
            durable: gauge("retrie_chain_durable_number", "Number of the last durable block")?,
            side_blocks: counter("retrie_chain_side_blocks_total", "Side-chain blocks seen")?,
            reorgs: counter("retrie_chain_reorgs_total", "Reorganisations")?,
            invalid_blocks: counter("retrie_import_invalid_blocks_total", "Blocks refused")?,
            roots_checked: counter("retrie_import_roots_checked_total", "State roots compared")?,
            key_reads: counter("retrie_import_key_reads_total", "Keys read by the EVM")?,
            key_writes: counter("retrie_import_key_writes_total", "Keys changed by blocks")?,
            block_seconds: seconds(
                "retrie_import_block_seconds",
                "Time from taking up a prepared block until it is accepted",
            )?,
            prepare_seconds: seconds(
                "retrie_import_prepare_seconds",
                "Time to recover a block's senders and to check it by itself",
            )?,
            execution_seconds: seconds(
                "retrie_import_execution_seconds",
                "Time to execute a block, state reads included",
            )?,
            state_read_seconds: seconds_total(
                "retrie_import_state_read_seconds_total",
                "Time of execution that was spent in state reads",
            )?,
            propose_seconds: seconds(
                "retrie_state_propose_seconds",
                "Time to compute a block's root and writes",
            )?,
            root_wait_seconds: seconds_total(
                "retrie_import_root_wait_seconds_total",
                "Time that the import has waited for roots and writes",
            )?,
            commit_seconds: seconds("retrie_db_commit_seconds", "Time of one commit to disk")?,
            commit_wait_seconds: seconds_total(
                "retrie_import_commit_wait_seconds_total",
                "Time that the import has waited for commits",
            )?,
            pool_transactions: pool("retrie_pool_transactions", "Transactions in the pool")?,
            pool_bytes: pool("retrie_pool_bytes", "Bytes of transactions in the pool")?,
            rpc: RpcMetrics::new(&registry)?,
            proofs: ProofMetrics::new(&registry)?,
            traffic: TrafficMetrics::new(&registry)?,
            state_sync: StateSyncMetrics::new(&registry)?,
            bench_operations,
            bench_commit_seconds,
            bench_disk_bytes,
            states: Arc::default(),
            registry,
        })
    }

    /// Calls `read` for the figures of a state store whenever metrics are encoded, until it returns
    /// `None`. `store` is `state` or `referee`. It replaces an earlier store with the same name.
    pub fn watch_state(
        &self,
        store: &'static str,
        backend: &str,
        read: impl Fn() -> Option<StateFigures> + Send + Sync + 'static,
    ) {
        self.states.watch(store, backend.into(), Box::new(read));
    }

    /// The values in Prometheus' text format.
    pub fn encode(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        let mut families = self.registry.gather();
        families.extend(self.states.gather());
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}
