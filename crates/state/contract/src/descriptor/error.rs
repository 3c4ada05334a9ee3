//! Errors of creating backends.

use alloy_primitives::B256;
use std::{ffi::OsStr, path::PathBuf};

/// Why a backend, or a verifier of its proofs, could not be created. It states facts only;
/// [`BackendDescriptor::advice`](super::BackendDescriptor::advice) says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// A flag has an invalid value.
    #[error("invalid value '{value}' for '--{flag}': {why}")]
    Flag {
        /// Name of the flag.
        flag: &'static str,
        /// The given value.
        value: String,
        /// Why it is invalid.
        why: String,
    },
    /// A store on a public network needs parameters whose secret is unknown, so that no one can
    /// forge proofs.
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
    /// The datadir was created with other parameters than the given ones.
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
        /// Digest of the parameters that it was created with.
        expected: B256,
        /// The given file, and the digest of its parameters.
        found: Option<Box<(PathBuf, B256)>>,
    },
    /// The datadir was created with parameters that this program does not have.
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
    /// The datadir was created with another row layout than the requested one, or with one that
    /// this program does not know.
    #[error("datadir {} holds {backend} rows of layout `{found}`, not `{expected}`", datadir.display())]
    OtherLayout {
        /// The backend.
        backend: &'static str,
        /// The datadir.
        datadir: PathBuf,
        /// Its layout.
        found: String,
        /// The requested layout.
        expected: String,
    },
    /// An error of the backend itself.
    #[error(transparent)]
    Backend(Box<dyn std::error::Error + Send + Sync>),
}

impl MakeError {
    /// Wraps an error of the backend itself.
    pub fn backend(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Backend(error.into())
    }

    /// The error of a flag with an invalid value.
    pub(super) fn flag(flag: &'static str, value: &OsStr, why: String) -> Self {
        Self::Flag { flag, value: value.to_string_lossy().into_owned(), why }
    }
}
