//! Why the limits of this machine could not be measured, written or read.

use crate::{cache::CacheError, chain::MakeChainError};
use std::{io, path::PathBuf};

/// Why the limits of this machine could not be measured, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A file could not be read or written.
    #[error("{action} {} failed: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file of kept limits is not one.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A setting of the probes has a value that cannot be used.
    #[error("{what}")]
    Setting {
        /// What is wrong.
        what: &'static str,
    },
    /// The folder for temporary files failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The blocks for the probes could not be made.
    #[error(transparent)]
    Chain(#[from] MakeChainError),
    /// A block could not be executed, or the database failed.
    #[error("{action} failed: {source}")]
    Probe {
        /// What was attempted.
        action: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The user asked to stop.
    #[error("stopped before the end; nothing was kept")]
    Stopped,
}

/// Adds the action of a probe to an error of execution or database.
pub(super) trait ProbeErrorExt<T> {
    fn of_probe(self, action: &'static str) -> Result<T, LimitError>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> ProbeErrorExt<T> for Result<T, E> {
    fn of_probe(self, action: &'static str) -> Result<T, LimitError> {
        self.map_err(|source| LimitError::Probe { action, source: source.into() })
    }
}
