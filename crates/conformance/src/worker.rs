//! What the tests of one thread share: a folder for throw-away chains, metrics, seals.

use crate::{format::Verdict, seal::Ethash};
use retrie_chainspec::ChainSpec;
use retrie_db::{OpenOptions, StateRootMode, SyncMode};
use retrie_execution::{CodeCache, ExecutionOutcome};
use retrie_pipeline::{Chain, ChainOptions};
use retrie_state::{AnyBackend, StoreOptions};
use retrie_telemetry::Metrics;
use std::{
    cell::Cell,
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
};
use tokio::runtime::Runtime;

/// A folder in memory, where the system has one.
const MEMORY: &str = "/dev/shm";
/// Bound of a test's database.
const MAP_LIMIT: u64 = 1 << 30;
/// By how much its file grows: few tests need more.
const GROWTH: u64 = 4 << 20;

/// A state store that has Ethereum's root.
#[derive(Clone)]
pub struct Backend(pub Arc<dyn AnyBackend>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(self.0.identity()).finish()
    }
}

/// Transactions of blocks that were executed both ways, on lists that tell the truth.
#[derive(Debug, Default)]
pub(crate) struct InParallel {
    pub(crate) all: Cell<u64>,
    /// Those whose outcomes were known ahead.
    pub(crate) ahead: Cell<u64>,
}

impl InParallel {
    pub(crate) fn executed(&self, outcome: &ExecutionOutcome) {
        self.all.set(self.all.get() + outcome.receipts.len() as u64);
        self.ahead.set(self.ahead.get() + outcome.ahead);
    }
}

/// What the tests of one thread share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) metrics: Metrics,
    pub(crate) codes: CodeCache,
    /// Waits for answers of the engine.
    pub(crate) runtime: Runtime,
    /// The state store of all chains.
    pub(crate) backend: Backend,
    /// Whether transactions are executed in parallel.
    pub(crate) parallel_execution: bool,
    pub(crate) transactions: InParallel,
    ethash: Arc<OnceLock<Ethash>>,
}

impl Worker {
    /// A worker; all workers of a run share what is costly about seals.
    pub(crate) fn new(
        backend: Backend,
        parallel_execution: bool,
        ethash: Arc<OnceLock<Ethash>>,
    ) -> Result<Self, String> {
        let metrics = Metrics::new().map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        let codes = CodeCache::default();
        let transactions = InParallel::default();
        Ok(Self { metrics, codes, runtime, backend, parallel_execution, transactions, ethash })
    }

    /// Seals of the first 30,000 blocks.
    pub(crate) fn ethash(&self) -> &Ethash {
        self.ethash.get_or_init(Ethash::new)
    }

    /// Opens a new chain, with header roots enforced.
    pub(crate) fn with_chain(
        &self,
        spec: ChainSpec,
        work: impl FnOnce(&Arc<Chain>) -> Verdict,
    ) -> Verdict {
        let folder = if Path::new(MEMORY).is_dir() {
            tempfile::tempdir_in(MEMORY)
        } else {
            tempfile::tempdir()
        };
        let folder = folder.map_err(|error| format!("no temporary folder: {error}"))?;
        let chain = Chain::open(ChainOptions {
            spec: Arc::new(spec),
            backend: self.backend.0.clone(),
            referee: None,
            root_mode: StateRootMode::Header,
            datadir: folder.path().to_owned(),
            db: OpenOptions {
                map_limit: MAP_LIMIT,
                growth_step: GROWTH,
                max_readers: 64,
                sync: SyncMode::NoSync,
                ..OpenOptions::default()
            },
            store: StoreOptions::default(),
        })
        .map_err(|error| format!("genesis: {error}"))?;
        work(&Arc::new(chain))
    }
}
