//! What the tests of one thread share: a folder for throw-away chains, metrics, seals.

use crate::{format::Verdict, seal::Ethash};
use retrie_chainspec::ChainSpec;
use retrie_db::{OpenOptions, StateRootMode, SyncMode};
use retrie_execution::CodeCache;
use retrie_pipeline::{Chain, ChainOptions};
use retrie_state::{AnyBackend, StoreOptions};
use retrie_telemetry::Metrics;
use std::{
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

/// What the tests of one thread share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) metrics: Metrics,
    pub(crate) codes: CodeCache,
    /// Waits for answers of the engine.
    pub(crate) runtime: Runtime,
    /// The state store of all chains.
    pub(crate) backend: Backend,
    ethash: Arc<OnceLock<Ethash>>,
}

impl Worker {
    /// A worker; all workers of a run share what is costly about seals.
    pub(crate) fn new(backend: Backend, ethash: Arc<OnceLock<Ethash>>) -> Result<Self, String> {
        let metrics = Metrics::new().map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        Ok(Self { metrics, codes: CodeCache::default(), runtime, backend, ethash })
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
