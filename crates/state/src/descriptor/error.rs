//! Why a backend could not be made.

use alloy_primitives::B256;
use std::{ffi::OsStr, path::PathBuf};

/// Why a backend, or what checks its proofs, could not be made: facts. What to do about it is in
/// [`Descriptor::advice`](super::Descriptor::advice).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// A flag has a value that it does not take.
    #[error("invalid value '{value}' for '--{flag}': {why}")]
    Flag {
        /// Name of the flag.
        flag: &'static str,
        /// What it was given.
        value: String,
        /// What is wrong with that.
        why: String,
    },
    /// A store on a public network needs parameters that nobody can forge proofs under.
    #[error("backend {backend} on {chain} needs public parameters")]
    NoParams {
        /// The backend.
        backend: &'static str,
        /// The network.
        chain: String,
    },
    /// Parameters whose secret is known were given for a public network.
    #[error(
        "{} holds development parameters, under which everybody can forge proofs, and {chain} is a \
         public network",
        file.display()
    )]
    InsecureParams {
        /// Their file.
        file: PathBuf,
        /// The network.
        chain: String,
    },
    /// The datadir was made with other parameters than those at hand.
    #[error(
        "datadir {} holds state under the {backend} parameters {expected}{}",
        datadir.display(),
        found.as_ref().map_or_else(String::new, |found| {
            format!(", but {} has {}", found.0.display(), found.1)
        })
    )]
    OtherParams {
        /// The backend.
        backend: &'static str,
        /// The datadir.
        datadir: PathBuf,
        /// Digest of the parameters it was made with.
        expected: B256,
        /// The file that was given, and the digest of what is in it.
        found: Option<Box<(PathBuf, B256)>>,
    },
    /// The datadir was made with parameters that this program cannot read.
    #[error(
        "datadir {} was made with the {backend} parameters {params}, which this program does not know",
        datadir.display()
    )]
    UnknownParams {
        /// The backend.
        backend: &'static str,
        /// The datadir.
        datadir: PathBuf,
        /// Digest of its parameters.
        params: B256,
    },
    /// The datadir was made with another layout of rows than the one asked for, or with one that
    /// this program does not know.
    #[error("datadir {} holds {backend} rows of layout `{found}`, not `{expected}`", datadir.display())]
    OtherLayout {
        /// The backend.
        backend: &'static str,
        /// The datadir.
        datadir: PathBuf,
        /// Its layout.
        found: String,
        /// The one asked for.
        expected: String,
    },
    /// What the backend itself says.
    #[error(transparent)]
    Backend(Box<dyn std::error::Error + Send + Sync>),
}

impl MakeError {
    /// What the backend itself says.
    pub fn backend(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Backend(error.into())
    }

    /// A flag that does not take its value.
    pub(super) fn flag(flag: &'static str, value: &OsStr, why: String) -> Self {
        Self::Flag { flag, value: value.to_string_lossy().into_owned(), why }
    }
}
