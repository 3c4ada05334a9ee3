//! [`WitnessMaker`]: the part of a state that a block needs, for verifiers without a state.

use super::{AnyCache, NodeRead};
use crate::{
    AccountKey, BackendDelta, BackendExtensions, BackendIdentity, BackendKey, StateError,
    descriptor::WitnessResult,
};
use alloy_primitives::{B256, Bytes};
use std::{collections::BTreeSet, fmt};

#[cfg(doc)]
use crate::descriptor::{OpenedWitness, ProofVerifier};

/// The block that a witness is made for.
#[derive(Clone, Copy, Debug)]
pub struct WitnessRequest<'a> {
    /// Its number.
    pub number: u64,
    /// Keys that it reads, in any order; a key may come twice.
    pub reads: &'a [BackendKey],
    /// Accounts whose slots it lists. A backend that can show that a list is complete does.
    pub listed: &'a [AccountKey],
    /// What it changes, with true previous values. The witness also shows these keys.
    pub delta: &'a BackendDelta,
}

impl WitnessRequest<'_> {
    /// The keys that the block reads or changes, ascending, each once.
    pub fn keys(&self) -> Vec<BackendKey> {
        let changed = self.delta.changes().iter().map(|change| change.key);
        let keys: BTreeSet<BackendKey> = self.reads.iter().copied().chain(changed).collect();
        keys.into_iter().collect()
    }
}

/// Optional extension of a backend: block witnesses.
///
/// ```text
///  state of the parent --make_witness(reads, delta)--> bytes --open_witness(root)--> OpenedWitness
///                                                                value(key), apply(delta) -> next root
/// ```
///
/// The bytes hold a multi-proof of all keys that the block reads or changes, and whatever else the
/// next root needs: siblings of what the block removes, neighbours that it merges, the right edge of a
/// tree that grows. One root and one request have one witness.
///
/// Each part is bound by the root. What a backend's [`apply`](super::Backend::apply) takes from rows
/// that no root binds has to be shown another way, or the backend has no witnesses.
pub trait WitnessMaker: Send + Sync {
    /// The witness of `block` on the state that `view` and `cache` show.
    ///
    /// # Errors
    /// [`StateError::NoWitness`] if this very block has none, [`StateError::OutsideShard`] if this
    /// node lacks a part; else as [`prove`](super::Backend::prove).
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError>;

    /// The pure verifier of this backend's witnesses, the one that
    /// [`ProofVerifier::open_witness`] of its format is.
    ///
    /// # Errors
    /// As [`ProofVerifier::open_witness`].
    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult;
}

/// Whether a backend makes block witnesses.
#[derive(Clone, Copy)]
pub enum WitnessSupport<'a> {
    /// It makes them.
    Maker(&'a dyn WitnessMaker),
    /// It makes none, for this reason: a clause for a message.
    Unsupported(&'static str),
}

impl WitnessSupport<'_> {
    /// The reason of a backend that does not have the extension.
    pub const NOT_WRITTEN: &'static str = "this backend does not implement them";
}

impl Default for WitnessSupport<'_> {
    fn default() -> Self {
        Self::Unsupported(Self::NOT_WRITTEN)
    }
}

impl fmt::Debug for WitnessSupport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maker(_) => f.write_str("Maker"),
            Self::Unsupported(why) => f.debug_tuple("Unsupported").field(why).finish(),
        }
    }
}

impl<'a> BackendExtensions<'a> {
    /// What makes the block witnesses of the backend with this `identity`.
    ///
    /// # Errors
    /// [`StateError::NoWitness`] if it makes none.
    pub fn witness_maker(
        &self,
        identity: &BackendIdentity,
    ) -> Result<&'a dyn WitnessMaker, StateError> {
        match self.witnesses {
            WitnessSupport::Maker(maker) => Ok(maker),
            WitnessSupport::Unsupported(why) => {
                Err(StateError::NoWitness { backend: identity.name, why })
            }
        }
    }
}
