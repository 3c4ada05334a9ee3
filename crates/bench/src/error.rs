//! Why a measurement failed.

use crate::{cache::CacheError, chain::MakeChainError, memory::CapError};
use alloy_primitives::B256;
use retrie_db::DbError;
use retrie_engine::EngineApiError;
use retrie_pipeline::PipelineError;
use retrie_state::{StateError, StoreError};
use std::path::{Path, PathBuf};

/// A setting of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// The keys at the start.
    Keys,
    /// Operations measured.
    Pairs,
    /// Operations, or blocks, a commit.
    CommitEvery,
    /// The part of all operations that only read.
    Reads,
    /// Which of the preloaded keys operations are on.
    Choice,
    /// Operations before the measured ones.
    Warmup,
    /// Slices measured.
    Slices,
    /// Slots of the big contract.
    Slots,
    /// Keys hashed to find some with long paths.
    Grind,
    /// Operations a commit, where they are few.
    Tiny,
    /// Blocks measured.
    Blocks,
    /// Queries of what keys were.
    Queries,
    /// How many blocks can be reverted.
    Retention,
    /// The latest blocks that queries are about.
    Range(u64),
    /// Who takes part.
    Backends,
}

impl Setting {
    /// The error that this setting is wrong.
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
    /// One of its settings makes no sense.
    #[error("{what}")]
    Setting {
        /// Which one.
        setting: Setting,
        /// What is wrong with it.
        what: String,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
    /// A contender did not read what the workload has written.
    #[error(
        "{place}: {backend} has read other values than the workload has written; its figures mean \
         nothing"
    )]
    WrongReads {
        /// Name of the contender.
        backend: String,
        /// Which commit of which slice read them.
        place: String,
    },
    /// A proof does not show what it should.
    #[error("the proof that {backend} made of {key} is refused, or shows something else")]
    WrongProof {
        /// Name of the contender.
        backend: String,
        /// The key.
        key: String,
    },
    /// Two contenders with Ethereum's roots do not agree.
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
    /// A client does not find a block valid.
    #[error("{client}: block {hash} is {status}, and should be VALID")]
    NotValid {
        /// Name of its backend.
        client: String,
        /// The block.
        hash: B256,
        /// What it says.
        status: String,
    },
    /// The blocks could not be made.
    #[error(transparent)]
    MakeChain(#[from] MakeChainError),
    /// A contender that is not ours failed.
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
    /// Memory cannot be capped, or not so low.
    #[error(transparent)]
    Memory(#[from] CapError),
    /// The folder of prepared states failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl BenchError {
    /// Whether a contender has another state than it should: then no figure means anything.
    pub(crate) const fn is_wrong_state(&self) -> bool {
        matches!(self, Self::WrongReads { .. } | Self::RootsDiffer { .. })
    }

    /// Says where, if it is that the disk of `folder`, which was written to, is full.
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

/// Whether a failure goes back to the system's error for a full disk.
fn says_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::StorageFull)
            || error.to_string().contains("No space left on device")
    })
}

/// Whether next to nothing is left: MDBX gives an input/output error for a write that was cut short.
fn is_disk_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_bavail * disk.f_frsize < 1 << 20)
}

/// Gives errors of the layers below the name of the contender they came from.
pub(crate) trait Of<T> {
    fn of(self, backend: &str) -> Result<T, BenchError>;
}

impl<T> Of<T> for Result<T, StateError> {
    fn of(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::State { backend: backend.into(), source })
    }
}

impl<T> Of<T> for Result<T, StoreError> {
    fn of(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(StateError::from).of(backend)
    }
}

impl<T> Of<T> for Result<T, DbError> {
    fn of(self, backend: &str) -> Result<T, BenchError> {
        self.map_err(|e| BenchError::Db { backend: backend.into(), source: Box::new(e) })
    }
}

/// The same for whole clients.
pub(crate) trait OfClient<T> {
    fn of_client(self, client: &str) -> Result<T, BenchError>;
}

impl<T> OfClient<T> for Result<T, PipelineError> {
    fn of_client(self, client: &str) -> Result<T, BenchError> {
        self.map_err(|e| BenchError::Client { client: client.into(), source: Box::new(e) })
    }
}

impl<T> OfClient<T> for Result<T, EngineApiError> {
    fn of_client(self, client: &str) -> Result<T, BenchError> {
        self.map_err(|e| BenchError::EngineApi { client: client.into(), source: Box::new(e) })
    }
}
