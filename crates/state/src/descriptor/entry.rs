//! One backend as lists of backends have it.

use super::{Flag, Flags, MakeError, ProofVerifier};
use crate::{AnyBackend, Capabilities, HashId};
use alloy_primitives::B256;
use std::{path::Path, sync::Arc};

/// Makes a backend.
pub type Make = fn(&Making<'_>) -> Result<Arc<dyn AnyBackend>, MakeError>;

/// Makes what checks proofs under the parameters that flags name.
pub type Pin = fn(&Flags) -> Result<Vec<Arc<dyn ProofVerifier>>, MakeError>;

/// A backend: its name, and how to make it.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Name, as in `--state-backend`. What datadirs store is the name in its
    /// [`Identity`](crate::Identity), which several may share.
    pub name: &'static str,
    /// One line for `--help`: what it is.
    pub about: &'static str,
    /// Its flags, which several may share.
    pub flags: &'static [Flag],
    /// Name of the flag that `name@SHARD` sets in races, if there are proof shards.
    pub shard_flag: Option<&'static str>,
    /// Makes it.
    pub make: Make,
    /// Makes it with parameters so small that a few blocks meet everything it does: for tests, and to
    /// ask what it can do.
    pub small: fn() -> Arc<dyn AnyBackend>,
    /// Flags with values that make it nearly as small, for tests of whole programs.
    pub small_flags: &'static [(&'static str, &'static str)],
    /// The same with another hash function under the root, for comparison only.
    pub hashes: &'static [OtherHash],
    /// What a verifier of its proofs must be given; `None` if nothing.
    pub pins: Option<&'static Pins>,
    /// What to do about an error, in terms of flags.
    pub advice: fn(&MakeError) -> Option<&'static str>,
    /// Its colour in plots on light and on dark paper, `#rrggbb`.
    pub colours: [&'static str; 2],
}

/// A backend with another hash function than its own.
#[derive(Clone, Copy, Debug)]
pub struct OtherHash {
    /// The hash function.
    pub hash: HashId,
    /// Makes it.
    pub make: fn() -> Arc<dyn AnyBackend>,
}

/// Parameters that whoever verifies proofs has to trust.
#[derive(Clone, Copy, Debug)]
pub struct Pins {
    /// Flags that name them, the one that errors name first.
    pub flags: &'static [Flag],
    /// What checks proofs under the parameters that the flags name.
    pub verifiers: Pin,
}

/// What a backend is made from.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// Its flags, perhaps among those of others.
    pub flags: &'a Flags,
    /// What it is made for.
    pub purpose: Purpose<'a>,
    /// A folder for what takes long to make and may go at any time; `None` to keep nothing.
    pub cache: Option<&'a Path>,
}

/// What a backend is made for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// A store that goes when the program ends.
    Trial,
    /// A new datadir.
    New {
        /// Name of its chain.
        chain: &'a str,
        /// Whether others run that chain, too.
        is_public: bool,
    },
    /// A datadir that there is.
    Existing {
        /// Its folder.
        datadir: &'a Path,
        /// Digest of the parameters that its backend was made with.
        params: B256,
        /// How its rows are laid out, as in its [`Identity`](crate::Identity).
        layout: &'a str,
    },
}

impl Descriptor {
    /// One without flags, for `..` in others: made by `small` whatever it is made for.
    pub const fn plain(
        name: &'static str,
        about: &'static str,
        make: Make,
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
            pins: None,
            advice: |_| None,
            colours,
        }
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        (self.small)().capabilities()
    }

    /// What its datadirs say they hold.
    pub fn stored_name(&self) -> &'static str {
        (self.small)().identity().name
    }

    /// It for a store that goes when the program ends, with no flag set.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn trial(&self) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let flags = Flags::default();
        (self.make)(&Making { flags: &flags, purpose: Purpose::Trial, cache: None })
    }

    /// It, small, with its own hash function and with every other one, each with a name for messages.
    pub fn small_ones(&self) -> Vec<(String, Arc<dyn AnyBackend>)> {
        let mut all = vec![(self.name.to_owned(), (self.small)())];
        let named = |other: &OtherHash| {
            (format!("{} with {}", self.name, other.hash.name()), (other.make)())
        };
        all.extend(self.hashes.iter().map(named));
        all
    }
}
