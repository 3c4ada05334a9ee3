//! Why a measurement failed.

use crate::{cache::CacheError, chain::MakeChainError, memory::CapError};
use alloy_primitives::B256;
use retrie_db::{DbError, ReadError, StorageError};
use retrie_engine::EngineApiError;
use retrie_pipeline::PipelineError;
use retrie_state::{StateError, StoreError};
use std::path::{Path, PathBuf};

/// A setting of a benchmark, named by [`BenchError::Setting`] so that a program can name its flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RaceSetting {
    /// The keys at the start.
    Keys,
    /// Operations measured.
    Pairs,
    /// Operations, or blocks, per commit.
    CommitEvery,
    /// The share of operations that only read.
    Reads,
    /// How operations choose among the preloaded keys.
    Choice,
    /// Operations before the measured ones.
    Warmup,
    /// Slices measured.
    Slices,
    /// Slots of the big contract.
    Slots,
    /// Number of keys hashed to find keys with long paths.
    Grind,
    /// Operations per commit of the attacks that use small commits.
    Tiny,
    /// Blocks measured.
    Blocks,
    /// Number of provenance queries.
    Queries,
    /// Number of blocks that can be reverted.
    Retention,
    /// A range of provenance queries: the number of latest blocks.
    Range(u64),
    /// The backends that take part.
    Backends,
}

impl RaceSetting {
    /// The error for a wrong value of this setting.
    pub(crate) fn refused(self, what: impl Into<String>) -> BenchError {
        BenchError::Setting { setting: self, what: what.into() }
    }
}

/// Why a race between state stores failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The workload cannot be run.
    #[error("{what}")]
    Workload {
        /// What is wrong.
        what: String,
    },
    /// A setting has a value that cannot be used.
    #[error("{what}")]
    Setting {
        /// Which one.
        setting: RaceSetting,
        /// What is wrong with it.
        what: String,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
    /// A contender read other values than the workload has written.
    #[error(
        "{place}: {backend} has read other values than the workload has written; its figures mean \
         nothing"
    )]
    WrongReads {
        /// Name of the contender.
        backend: String,
        /// The slice and the commit that read them.
        place: String,
    },
    /// A proof was refused, or shows another value than the state has.
    #[error("the proof that {backend} made of {key} is refused, or shows something else")]
    WrongProof {
        /// Name of the contender.
        backend: String,
        /// The key.
        key: String,
    },
    /// A block witness is refused, or gives another root than the store has.
    #[error("the witness that {backend} made of block {number} is wrong: {why}")]
    WrongWitness {
        /// Name of the store.
        backend: String,
        /// Number of the block.
        number: u64,
        /// What is wrong.
        why: String,
    },
    /// Two contenders that compute Ethereum's state root have different roots.
    #[error("after the same writes {a} has the state root {a_root}, {b} has {b_root}")]
    RootsDiffer {
        /// Name of one contender.
        a: String,
        /// Its root.
        a_root: B256,
        /// Name of the other.
        b: String,
        /// Its root.
        b_root: B256,
    },
    /// A state store failed.
    #[error("{backend}: {source}")]
    State {
        /// Name of the contender.
        backend: String,
        /// The cause.
        source: StateError,
    },
    /// A database failed.
    #[error("{backend}: {source}")]
    Db {
        /// Name of the contender.
        backend: String,
        /// The cause.
        source: Box<DbError>,
    },
    /// A whole client failed, or refused a block.
    #[error("{client}: {source}")]
    Client {
        /// Name of its backend.
        client: String,
        /// The cause.
        source: Box<PipelineError>,
    },
    /// A client's Engine API failed.
    #[error("{client}: {source}")]
    EngineApi {
        /// Name of its backend.
        client: String,
        /// The cause.
        source: Box<EngineApiError>,
    },
    /// A client's payload status for a block is not VALID.
    #[error("{client}: block {hash} is {status}, and should be VALID")]
    NotValid {
        /// Name of its backend.
        client: String,
        /// The block.
        hash: B256,
        /// The payload status.
        status: String,
    },
    /// The blocks of the workload could not be generated.
    #[error(transparent)]
    MakeChain(#[from] MakeChainError),
    /// A store of another project failed.
    #[error("{backend}: {action} failed: {source}")]
    Peer {
        /// Name of the contender.
        backend: String,
        /// What was attempted.
        action: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file could not be read or written.
    #[error("{action} {} failed: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A disk is full.
    #[error(
        "the disk of {} is full: free some of it, or use another folder: {source}",
        folder.display()
    )]
    DiskFull {
        /// The folder that was written to.
        folder: PathBuf,
        /// The failure.
        source: Box<Self>,
    },
    /// Memory cannot be capped at all, or not at this limit.
    #[error(transparent)]
    Memory(#[from] CapError),
    /// The folder of prepared states failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl BenchError {
    /// Whether a contender has a wrong state, or may have one because it refused a block. Then no
    /// figure of the race is valid.
    pub(crate) const fn is_wrong_state(&self) -> bool {
        matches!(
            self,
            Self::WrongReads { .. }
                | Self::RootsDiffer { .. }
                | Self::NotValid { .. }
                | Self::Client { .. }
                | Self::EngineApi { .. }
        )
    }

    /// Turns the error into [`BenchError::DiskFull`] if the disk of `folder`, which was written to,
    /// is full.
    pub(crate) fn on_disk(self, folder: &Path) -> Self {
        let of_the_disk = matches!(
            self,
            Self::State { .. }
                | Self::Db { .. }
                | Self::Client { .. }
                | Self::EngineApi { .. }
                | Self::MakeChain(MakeChainError::Io { .. } | MakeChainError::Pipeline(_))
                | Self::Peer { .. }
                | Self::Io { .. }
                | Self::Cache(_)
        );
        if of_the_disk && (says_disk_full(&self) || is_disk_full(folder)) {
            return Self::DiskFull { folder: folder.into(), source: Box::new(self) };
        }
        self
    }
}

/// Whether the system's error for a full disk is among the causes of `error`.
fn says_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::StorageFull)
            || error.to_string().contains("No space left on device")
    })
}

/// Whether less than 1 MiB is left. MDBX reports an input/output error for a write that was cut
/// short by a full disk.
fn is_disk_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_bavail * disk.f_frsize < 1 << 20)
}

/// Adds the name of the contender to errors of state stores and databases.
pub(crate) trait BackendErrorExt<T> {
    fn of_backend(self, backend: &str) -> Result<T, BenchError>;
}

impl<T> BackendErrorExt<T> for Result<T, StateError> {
    fn of_backend(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::State { backend: backend.into(), source })
    }
}

impl<T> BackendErrorExt<T> for Result<T, StoreError> {
    fn of_backend(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(StateError::from).of_backend(backend)
    }
}

impl<T> BackendErrorExt<T> for Result<T, DbError> {
    fn of_backend(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(|e| BenchError::Db { backend: backend.into(), source: Box::new(e) })
    }
}

impl<T> BackendErrorExt<T> for Result<T, ReadError> {
    fn of_backend(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(DbError::from).of_backend(backend)
    }
}

impl<T> BackendErrorExt<T> for Result<T, StorageError> {
    fn of_backend(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(DbError::from).of_backend(backend)
    }
}

/// Adds the name of the client to errors of the pipeline and the Engine API.
pub(crate) trait ClientErrorExt<T> {
    fn of_client(self, client: &str) -> Result<T, BenchError>;
}

impl<T> ClientErrorExt<T> for Result<T, PipelineError> {
    fn of_client(self, client: &str) -> Result<T, BenchError> {
        self.map_err(|e| BenchError::Client { client: client.into(), source: Box::new(e) })
    }
}

impl<T> ClientErrorExt<T> for Result<T, EngineApiError> {
    fn of_client(self, client: &str) -> Result<T, BenchError> {
        self.map_err(|e| BenchError::EngineApi { client: client.into(), source: Box::new(e) })
    }
}
