//! The one list of backends. The command line, light clients, races, and every test suite that runs
//! on all backends take them from here.
//!
//! ```text
//!  storage-*: PROOF_FORMATS, BACKENDS --> FAMILIES (below) --> proof_formats, all, find, lane
//! ```
//!
//! A new backend is a crate that exports these two statics (`retrie_state::descriptor` describes
//! them), a line in the list below, and an entry in `Cargo.toml`. The TypeScript light client needs
//! a verifier of its own.
//!
//! # Vocabulary
//!
//! * **Family**: the backends of one storage crate (`cole` and `cole-sync`).
//! * **Descriptor**: one backend: name, flags, constructor. [`BackendDescriptor`].
//! * **Lane**: a backend with its own flags, in a race: `cole:size-ratio=6`, `lvmt@3/16`.
//!   [`lane()`], [`BackendLane`].
//!
//! Without the feature `std` there are only the formats of proofs.

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

use alloc::sync::Arc;
use alloy_primitives::B256;
use retrie_state::{ProofError, StateWitness, WitnessError};

/// The lists of all storage crates named.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        static FORMATS: &[&[ProofFormat]] = &[$($family::PROOF_FORMATS),*];
        #[cfg(feature = "std")]
        static FAMILIES: &[&[BackendDescriptor]] = &[$($family::BACKENDS),*];
    };
}

families! {
    retrie_storage_mpt,
    retrie_storage_raw,
    retrie_storage_lvmt,
    retrie_storage_cole,
    retrie_storage_prefix,
    retrie_storage_lmpt,
    retrie_storage_bavl,
    retrie_storage_pbt,
}

#[cfg(feature = "std")]
mod lane;

pub use retrie_state::descriptor::*;

#[cfg(feature = "std")]
pub use lane::{BackendLane, LaneError, kind, lane};

/// The proof formats of all backends.
pub fn proof_formats() -> impl Iterator<Item = &'static ProofFormat> {
    FORMATS.iter().copied().flatten()
}

/// Opens a block witness of any backend, of the state of `root`, which the caller trusts to be that of
/// the witness's parent. `pinned` are verifiers under parameters that it trusts.
///
/// # Errors
/// [`WitnessError::Refused`] with [`ProofError::WrongKind`] if no verifier fits the envelope; else as
/// [`ProofVerifier::open_witness`].
pub fn open_witness(
    witness: &StateWitness,
    root: B256,
    pinned: &[Arc<dyn ProofVerifier>],
) -> WitnessResult {
    let StateWitness { backend, version, hash, params, .. } = witness;
    let is_named = |format: &&ProofFormat| {
        format.backend == backend && format.version == *version && format.hash.name() == hash
    };
    let wrong = |what| WitnessError::Refused(ProofError::WrongKind { what });
    let format = proof_formats().find(is_named).ok_or_else(|| wrong("backend"))?;
    let is_meant = |verifier: &&Arc<dyn ProofVerifier>| {
        let facts = verifier.params();
        facts.is_some_and(|facts| facts.backend == format.backend && facts.digest == *params)
    };
    let verifier = match format.verifier.fixed() {
        Some(verifier) => Some(verifier).filter(|_| params.is_zero()),
        None => pinned.iter().find(is_meant).map(|verifier| &**verifier),
    };
    verifier.ok_or_else(|| wrong("parameters"))?.open_witness(root, &witness.bytes)
}

#[cfg(feature = "std")]
pub use list::*;

#[cfg(feature = "std")]
mod list {
    use super::{BackendDescriptor, BackendFlag, FAMILIES};
    use std::path::PathBuf;

    /// No backend has this name.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("no backend is called `{name}`; there are: {}", names().join(", "))]
    pub struct UnknownBackend {
        /// The name.
        pub name: String,
    }

    /// All backends.
    pub fn all() -> impl Iterator<Item = &'static BackendDescriptor> + Clone {
        FAMILIES.iter().copied().flatten()
    }

    /// Names of all backends.
    pub fn names() -> Vec<&'static str> {
        all().map(|backend| backend.name).collect()
    }

    /// The backend with this name. Datadirs store these names.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(name: &str) -> Result<&'static BackendDescriptor, UnknownBackend> {
        let found = all().find(|backend| backend.name == name);
        found.ok_or_else(|| UnknownBackend { name: name.to_owned() })
    }

    /// The backends whose roots are those of Ethereum's headers, the default one first.
    pub fn with_ethereum_root() -> impl Iterator<Item = &'static BackendDescriptor> {
        all().filter(|backend| backend.profile().ethereum_root)
    }

    /// The backends that open witnesses.
    pub fn witness_openers() -> impl Iterator<Item = &'static BackendDescriptor> {
        all().filter(|backend| (backend.small)().extensions().partial_state.is_some())
    }

    /// The flags of all backends, each once.
    pub fn flags() -> Vec<&'static BackendFlag> {
        once(all().flat_map(|backend| backend.flags))
    }

    /// The flags of all proof verifiers, each once.
    pub fn trusted_param_flags() -> Vec<&'static BackendFlag> {
        once(all().filter_map(|backend| backend.trusted_params).flat_map(|pins| pins.flags))
    }

    fn once(flags: impl Iterator<Item = &'static BackendFlag>) -> Vec<&'static BackendFlag> {
        let mut all: Vec<&'static BackendFlag> = Vec::new();
        for flag in flags {
            if !all.iter().any(|known| known.long == flag.long) {
                all.push(flag);
            }
        }
        all
    }

    /// The folder for what this program can make again: `$XDG_CACHE_HOME/retrie` or `~/.cache/retrie`.
    /// `None` if there is no home.
    pub fn user_cache() -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let base = variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
        base.map(|base| base.join("retrie"))
    }
}
