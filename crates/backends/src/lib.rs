//! The one list of backends. Whoever needs one, or all, asks here: the command line, light clients,
//! races, and every suite of tests that runs on all of them.
//!
//! ```text
//!  storage-*: PROOF_FORMATS, BACKENDS --> FAMILIES (below) --> proof_formats(), all(), find(), lane()
//! ```
//!
//! A new backend is a crate that exports these two statics (`retrie_state::descriptor` says what is
//! in them), and its line in the list below, with its entry in `Cargo.toml`. The TypeScript light
//! client needs a verifier of its own.
//!
//! # Vocabulary
//!
//! * **Family**: the backends of one storage crate (`cole` and `cole-sync`).
//! * **Descriptor**: one backend: name, flags, how it is made. [`Descriptor`].
//! * **Lane**: a backend as a race names it, with flags of its own: `cole:size-ratio=6`, `lvmt@3/16`.
//!   [`lane`].
//!
//! Without the feature `std` there are the formats of proofs alone.

#![cfg_attr(not(feature = "std"), no_std)]

/// The lists of all storage crates named.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        static FORMATS: &[&[ProofFormat]] = &[$($family::PROOF_FORMATS),*];
        #[cfg(feature = "std")]
        static FAMILIES: &[&[Descriptor]] = &[$($family::BACKENDS),*];
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
}

#[cfg(feature = "std")]
mod lane;

pub use retrie_state::descriptor::*;

#[cfg(feature = "std")]
pub use lane::{Lane, LaneError, kind, lane};

/// The formats of all proofs.
pub fn proof_formats() -> impl Iterator<Item = &'static ProofFormat> {
    FORMATS.iter().copied().flatten()
}

#[cfg(feature = "std")]
pub use list::*;

#[cfg(feature = "std")]
mod list {
    use super::{Descriptor, FAMILIES, Flag};

    /// No backend has this name.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("no backend is called `{name}`; there are: {}", names().join(", "))]
    pub struct UnknownBackend {
        /// The name.
        pub name: String,
    }

    /// All backends.
    pub fn all() -> impl Iterator<Item = &'static Descriptor> + Clone {
        FAMILIES.iter().copied().flatten()
    }

    /// Their names.
    pub fn names() -> Vec<&'static str> {
        all().map(|backend| backend.name).collect()
    }

    /// The backend called `name`. What datadirs store is such a name, too.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(name: &str) -> Result<&'static Descriptor, UnknownBackend> {
        let found = all().find(|backend| backend.name == name);
        found.ok_or_else(|| UnknownBackend { name: name.to_owned() })
    }

    /// The backends whose roots are those of Ethereum's headers, the default one first.
    pub fn with_ethereum_root() -> impl Iterator<Item = &'static Descriptor> {
        all().filter(|backend| backend.capabilities().ethereum_root)
    }

    /// The backends that open witnesses.
    pub fn witness_openers() -> impl Iterator<Item = &'static Descriptor> {
        all().filter(|backend| (backend.small)().partial_state().is_some())
    }

    /// The flags of all backends, each once.
    pub fn flags() -> Vec<&'static Flag> {
        once(all().flat_map(|backend| backend.flags))
    }

    /// The flags of all that verifies proofs, each once.
    pub fn pin_flags() -> Vec<&'static Flag> {
        once(all().filter_map(|backend| backend.pins).flat_map(|pins| pins.flags))
    }

    fn once(flags: impl Iterator<Item = &'static Flag>) -> Vec<&'static Flag> {
        let mut all: Vec<&'static Flag> = Vec::new();
        for flag in flags {
            if !all.iter().any(|known| known.long == flag.long) {
                all.push(flag);
            }
        }
        all
    }
}
