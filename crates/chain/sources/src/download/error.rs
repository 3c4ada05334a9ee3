//! Why a download failed. Errors name the address, the file and the fault.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use alloy_primitives::{B256, hex};

use crate::{
    era_name::{EraFileName, EraFormat},
    error::SourceError,
    http::HttpFault,
    objects::error::ObjectError,
};

/// Why a download failed. Displays as one line. A file under its final name is always complete.
#[derive(Debug)]
pub struct DownloadError {
    /// The address.
    pub url: String,
    /// The target file.
    pub file: Option<PathBuf>,
    /// The fault.
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

// The message includes the cause.
impl std::error::Error for DownloadError {}

/// The fault of a download.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadErrorKind {
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] HttpFault),
    /// An object store, or the connection to it, failed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// No public mirror of this chain is known.
    #[error("no mirror of {format} files is known for chain {chain}")]
    NoMirror {
        /// The format.
        format: EraFormat,
        /// Name of the chain.
        chain: String,
    },
    /// Neither a checksum file nor the page lists files of the chain.
    #[error("neither checksums.txt nor the page itself lists {format} files of chain {chain}")]
    NoFiles {
        /// The format.
        format: EraFormat,
        /// Name of the chain.
        chain: String,
    },
    /// The mirror has no such file.
    #[error("the mirror has no file of epoch {epoch}; it has epochs {first} to {last}")]
    NoEpoch {
        /// The requested epoch.
        epoch: u64,
        /// The mirror's first epoch.
        first: u64,
        /// The mirror's last epoch.
        last: u64,
    },
    /// Two names for one epoch.
    #[error("the mirror lists two files of one epoch: {} and {}", .0.0, .0.1)]
    TwoFiles(Box<(EraFileName, EraFileName)>),
    /// The answer is not an era1 or ere file, for example an error page.
    #[error("the server sends {got} instead of an era1 or ere file")]
    NotEra {
        /// What it is.
        got: String,
    },
    /// The SHA-256 is not the published one.
    #[error(
        "its SHA-256 is {}, but the mirror's checksum file says {}: nothing was kept; try again, or \
         another mirror",
        hex::encode(.got),
        hex::encode(.expected)
    )]
    Checksum {
        /// The published hash.
        expected: B256,
        /// The computed hash.
        got: B256,
    },
    /// The file contradicts itself.
    #[error("what the server sent is damaged, nothing was kept: {0}")]
    Damaged(SourceError),
    /// The file is intact, but is not the named one.
    #[error("the server sent another file ({what}), nothing was kept: try another mirror")]
    Foreign {
        /// The difference.
        what: String,
    },
    /// The file does not continue the file of the epoch before.
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
        /// The operating system's error.
        error: io::Error,
    },
    /// Another process writes the same `.part` file.
    #[error("another process is downloading this file")]
    Locked,
    /// The user has stopped it.
    #[error("stopped; {bytes} bytes are kept in the .part file, run the same command to go on")]
    Stopped {
        /// Bytes fetched so far.
        bytes: u64,
    },
}
