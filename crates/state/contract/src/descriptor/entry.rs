//! [`BackendDescriptor`]: one entry in the list of backends.

use super::{BackendFlag, FlagValues, MakeError, ProofVerifier};
use crate::{AnyBackend, BackendProfile, HashId};
use alloy_primitives::B256;
use std::{path::Path, sync::Arc};

/// Creates a backend.
pub type BackendConstructor = fn(&ConstructorInput<'_>) -> Result<Arc<dyn AnyBackend>, MakeError>;

/// Creates the verifiers of proofs under the parameters that flags name.
pub type VerifierConstructor = fn(&FlagValues) -> Result<Vec<Arc<dyn ProofVerifier>>, MakeError>;

/// A backend: its name, its flags, and how to create it.
#[derive(Clone, Copy, Debug)]
pub struct BackendDescriptor {
    /// Name, as in `--state-backend`. Datadirs store the name in its
    /// [`BackendIdentity`](crate::BackendIdentity) instead, which several descriptors may share.
    pub name: &'static str,
    /// One line for `--help`: what it is.
    pub about: &'static str,
    /// Its flags; several descriptors may share a flag.
    pub flags: &'static [BackendFlag],
    /// Name of the flag that `name@SHARD` sets in races, if there are proof shards.
    pub shard_flag: Option<&'static str>,
    /// Creates the backend.
    pub make: BackendConstructor,
    /// Creates the backend with parameters so small that a few blocks exercise all of its code: for
    /// tests, and to ask for its capabilities.
    pub small: fn() -> Arc<dyn AnyBackend>,
    /// Flags and values that make it nearly as small, for tests of whole programs.
    pub small_flags: &'static [(&'static str, &'static str)],
    /// The same backend with other hash functions under the root, only for comparison.
    pub hashes: &'static [HashVariant],
    /// The parameters that a verifier of its proofs must trust; `None` if there are none.
    pub trusted_params: Option<&'static TrustedParams>,
    /// What the user should do about an error, in terms of flags.
    pub advice: fn(&MakeError) -> Option<&'static str>,
    /// Its colours in plots on light and on dark background, `#rrggbb`.
    pub colours: [&'static str; 2],
}

/// A backend with another hash function than its default.
#[derive(Clone, Copy, Debug)]
pub struct HashVariant {
    /// The hash function.
    pub hash: HashId,
    /// Creates the backend, with the same flags.
    pub make: BackendConstructor,
    /// Creates the backend with small parameters, as [`BackendDescriptor::small`] does.
    pub small: fn() -> Arc<dyn AnyBackend>,
}

/// Parameters that a verifier of proofs has to trust.
#[derive(Clone, Copy, Debug)]
pub struct TrustedParams {
    /// Flags that name the parameters; errors name the first of them.
    pub flags: &'static [BackendFlag],
    /// Creates the verifiers of proofs under the parameters that the flags name.
    pub verifiers: VerifierConstructor,
}

/// The input of a [`BackendConstructor`].
#[derive(Clone, Copy, Debug)]
pub struct ConstructorInput<'a> {
    /// Values of flags; flags of other backends may be among them.
    pub flags: &'a FlagValues,
    /// The kind of store that the backend is for.
    pub purpose: StorePurpose<'a>,
    /// A directory for files that take long to compute and may be deleted at any time; `None` to
    /// keep nothing.
    pub cache: Option<&'a Path>,
}

/// The kind of store that a backend is created for.
#[derive(Clone, Copy, Debug)]
pub enum StorePurpose<'a> {
    /// A store that ends with the program.
    Temporary,
    /// A new datadir.
    New {
        /// Name of its chain.
        chain: &'a str,
        /// Whether it is a public network.
        is_public: bool,
    },
    /// A datadir that exists already.
    Existing {
        /// Its directory.
        datadir: &'a Path,
        /// Digest of the parameters that its backend was created with.
        params: B256,
        /// How its rows are laid out, as in its [`BackendIdentity`](crate::BackendIdentity).
        layout: &'a str,
    },
}

impl BackendDescriptor {
    /// A descriptor without flags, for `..` in others; `small` creates its small variant.
    pub const fn plain(
        name: &'static str,
        about: &'static str,
        make: BackendConstructor,
        small: fn() -> Arc<dyn AnyBackend>,
        colours: [&'static str; 2],
    ) -> Self {
        Self {
            name,
            about,
            flags: &[],
            shard_flag: None,
            make,
            small,
            small_flags: &[],
            hashes: &[],
            trusted_params: None,
            advice: |_| None,
            colours,
        }
    }

    /// The constant facts of the backend with small parameters.
    pub fn profile(&self) -> BackendProfile {
        (self.small)().profile()
    }

    /// The backend name that its datadirs store.
    pub fn stored_name(&self) -> &'static str {
        (self.small)().identity().name
    }

    /// Creates the backend, with no flag set, for a store that ends with the program.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_temporary(&self) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let flags = FlagValues::default();
        (self.make)(&ConstructorInput {
            flags: &flags,
            purpose: StorePurpose::Temporary,
            cache: None,
        })
    }

    /// Creates its small variants, with its default and with each other hash function; each has a
    /// name for messages.
    pub fn small_variants(&self) -> Vec<(String, Arc<dyn AnyBackend>)> {
        let mut all = vec![(self.name.to_owned(), (self.small)())];
        let named = |other: &HashVariant| {
            (format!("{} with {}", self.name, other.hash.name()), (other.small)())
        };
        all.extend(self.hashes.iter().map(named));
        all
    }
}
