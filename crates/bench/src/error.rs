//! Why a measurement failed.

use crate::cache::CacheError;
use alloy_primitives::B256;
use retrie_db::DbError;
use retrie_state::{StateError, StoreError};
use std::path::PathBuf;

/// Why a race between state stores failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The workload contradicts itself.
    #[error("{what}")]
    Workload {
        /// What is wrong, and what to do.
        what: String,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
    /// A contender did not read what the others read.
    #[error(
        "slice {slice}: {backend} has read other values than the workload has written; its figures \
         mean nothing"
    )]
    WrongReads {
        /// Name of the contender.
        backend: String,
        /// Number of the slice; 0 is the warm-up.
        slice: u64,
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
    /// The folder of prepared states failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
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
