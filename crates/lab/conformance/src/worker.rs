//! Shared by the tests of one thread: a folder for temporary chains, metrics, seals.

use crate::{
    format::{CodeMap, TestVerdict},
    seal::Ethash,
};
use retrie_chainspec::ChainSpec;
use retrie_db::{OpenOptions, StateRootMode, SyncMode};
use retrie_execution::{CodeCache, ExecutionOutcome};
use retrie_pipeline::{ChainOptions, ChainStore};
use retrie_state::AnyBackend;
use retrie_state_store::StoreOptions;
use retrie_telemetry::Metrics;
use std::{
    cell::{Cell, OnceCell},
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
};
use tokio::runtime::Runtime;

/// A folder in memory, if the system has one.
const MEMORY: &str = "/dev/shm";
/// Size limit of a test's database.
const MAP_LIMIT: u64 = 1 << 30;
/// Growth step of its file: few tests need more than one.
const GROWTH: u64 = 4 << 20;

/// A state backend with Ethereum's root.
#[derive(Clone)]
pub struct TestBackend(pub Arc<dyn AnyBackend>);

impl fmt::Debug for TestBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(self.0.identity()).finish()
    }
}

/// Transactions of blocks that were executed serially and in parallel, with correct BALs.
#[derive(Debug, Default)]
pub(crate) struct ParallelCounts {
    pub(crate) all: Cell<u64>,
    /// Transactions whose outcomes the parallel execution had precomputed.
    pub(crate) ahead: Cell<u64>,
}

impl ParallelCounts {
    pub(crate) fn count(&self, outcome: &ExecutionOutcome) {
        self.all.set(self.all.get() + outcome.receipts.len() as u64);
        self.ahead.set(self.ahead.get() + outcome.precomputed_transactions);
    }
}

/// Shared by the tests of one thread.
#[derive(Debug)]
pub(crate) struct TestWorker {
    pub(crate) metrics: Metrics,
    pub(crate) codes: CodeCache,
    /// Runs the futures of the engine's answers.
    pub(crate) runtime: Runtime,
    /// The state backend of all chains.
    pub(crate) backend: TestBackend,
    /// Whether transactions are executed in parallel.
    pub(crate) parallel_execution: bool,
    pub(crate) transactions: ParallelCounts,
    /// Codes of the pack of EIP-8297.
    pub(crate) pack_codes: OnceCell<Result<CodeMap, String>>,
    ethash: Arc<OnceLock<Ethash>>,
}

impl TestWorker {
    /// A worker. All workers of a run share the Ethash cache, which is expensive.
    pub(crate) fn new(
        backend: TestBackend,
        parallel_execution: bool,
        ethash: Arc<OnceLock<Ethash>>,
    ) -> Result<Self, String> {
        let metrics = Metrics::new().map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        let codes = CodeCache::default();
        let transactions = ParallelCounts::default();
        Ok(Self {
            metrics,
            codes,
            runtime,
            backend,
            parallel_execution,
            transactions,
            pack_codes: OnceCell::new(),
            ethash,
        })
    }

    /// The verifier of seals of the first 30,000 blocks.
    pub(crate) fn ethash(&self) -> &Ethash {
        self.ethash.get_or_init(Ethash::new)
    }

    /// Opens a new chain, with header roots enforced.
    pub(crate) fn with_chain(
        &self,
        spec: ChainSpec,
        work: impl FnOnce(&Arc<ChainStore>) -> TestVerdict,
    ) -> TestVerdict {
        let folder = if Path::new(MEMORY).is_dir() {
            tempfile::tempdir_in(MEMORY)
        } else {
            tempfile::tempdir()
        };
        let folder = folder.map_err(|error| format!("no temporary folder: {error}"))?;
        let chain = ChainStore::open(ChainOptions {
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
