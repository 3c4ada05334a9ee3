//! Why a download failed: which address, which file, what is wrong.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use alloy_primitives::{B256, hex};

use super::Era1Name;
use crate::{error::SourceError, http::HttpFault, objects::error::ObjectError};

/// Why a download failed. Displays as one line; a file under its final name is always whole.
#[derive(Debug)]
pub struct DownloadError {
    /// What was fetched, or would have been.
    pub url: String,
    /// The file it was to become.
    pub file: Option<PathBuf>,
    /// What is wrong.
    pub kind: Box<DownloadErrorKind>,
}

impl DownloadError {
    pub(super) fn new(url: &str, file: Option<&Path>, kind: impl Into<DownloadErrorKind>) -> Self {
        let file = file.map(Path::to_owned);
        Self { url: url.to_owned(), file, kind: Box::new(kind.into()) }
    }
}

impl fmt::Display for DownloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)?;
        if let Some(file) = &self.file {
            write!(f, " to {}", file.display())?;
        }
        write!(f, ": {}", self.kind)
    }
}

// The message says all of the cause already.
impl std::error::Error for DownloadError {}

/// What is wrong with a download.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadErrorKind {
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] HttpFault),
    /// The store, or the way there.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// There is no public mirror of this chain that we know of.
    #[error("no mirror of era1 files is known for chain {chain}")]
    NoMirror {
        /// Name of the chain.
        chain: String,
    },
    /// Neither a checksum file nor the page lists files of the chain.
    #[error("neither checksums.txt nor the page itself lists era1 files of chain {chain}")]
    NoFiles {
        /// Name of the chain.
        chain: String,
    },
    /// The mirror has no such file.
    #[error("the mirror has no file of epoch {epoch}; it has epochs {first} to {last}")]
    NoEpoch {
        /// The epoch asked for.
        epoch: u64,
        /// Its first one.
        first: u64,
        /// Its last one.
        last: u64,
    },
    /// Two names for one epoch.
    #[error("the mirror lists two files of one epoch: {} and {}", .0.0, .0.1)]
    TwoFiles(Box<(Era1Name, Era1Name)>),
    /// The answer is something else, an error page perhaps.
    #[error("the server sends {got} instead of an era1 file")]
    NotEra1 {
        /// What it sends.
        got: String,
    },
    /// The SHA-256 is not the one the mirror publishes.
    #[error(
        "its SHA-256 is {}, but the mirror's checksum file says {}: nothing was kept; try again, or \
         another mirror",
        hex::encode(.got),
        hex::encode(.expected)
    )]
    Checksum {
        /// The mirror's.
        expected: B256,
        /// Computed.
        got: B256,
    },
    /// The file contradicts itself.
    #[error("what the server sent is damaged, nothing was kept: {0}")]
    Damaged(SourceError),
    /// The file is sound, but another one than its name says.
    #[error("the server sent another file ({what}), nothing was kept: try another mirror")]
    Foreign {
        /// What differs.
        what: String,
    },
    /// The file does not continue the one before.
    #[error(
        "its first block has the parent {got}, but the file of the epoch before ends with {expected}: \
         one of the two is of another chain"
    )]
    Unlinked {
        /// Hash of the last block before.
        expected: B256,
        /// Parent hash of the first block.
        got: B256,
    },
    /// The operating system refused.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// Another process writes the same `.part` file.
    #[error("another process is downloading this file")]
    Locked,
    /// The user stopped it.
    #[error("stopped; {bytes} bytes are kept in the .part file, run the same command to go on")]
    Stopped {
        /// Bytes fetched so far.
        bytes: u64,
    },
}
