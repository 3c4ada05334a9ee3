//! Proofs seen from outside: their formats, and what checks them without a store.

use crate::{HashId, ProofError, StateKey, Value, Version};
use alloc::vec::Vec;
use alloy_primitives::B256;
use core::{fmt, ops::RangeInclusive};

/// A format of proofs. Envelopes name it ([`StateProof`](crate::StateProof)).
#[derive(Clone, Copy, Debug)]
pub struct ProofFormat {
    /// Name of the backend as in its [`Identity`](crate::Identity).
    pub backend: &'static str,
    /// Version of the format.
    pub version: u32,
    /// Hash function under the root.
    pub hash: HashId,
    /// Whether its proofs show older states than that of their root, and ranges of blocks.
    pub shows_history: bool,
    /// What checks its proofs; `None` if that takes parameters, which a caller has to trust.
    pub verifier: Option<&'static dyn ProofVerifier>,
}

/// Parameters that proofs are checked under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsFacts {
    /// The backend they belong to, as in [`ProofFormat::backend`].
    pub backend: &'static str,
    /// Their digest, which envelopes name.
    pub digest: B256,
    /// Whether there is a secret behind them that nobody may know.
    pub has_secret: bool,
    /// Whether everybody knows their secret, and can forge proofs.
    pub insecure: bool,
}

/// Checks proofs of one backend under one set of parameters, without a store: pure, whatever the
/// bytes are.
pub trait ProofVerifier: fmt::Debug + Send + Sync {
    /// The parameters; `None` if the backend has none.
    fn params(&self) -> Option<ParamsFacts>;

    /// The values of `keys` (`None`: absent) in the state of `root`, or in that after the older block
    /// `as_of`.
    ///
    /// # Errors
    /// A [`ProofError`] if the proof is not canonical, or does not show exactly this.
    fn values(
        &self,
        root: B256,
        keys: &[StateKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError>;

    /// The versions of each of `keys` in `blocks`, newest first: those that were set in the range but
    /// at its first block, and the one in force at that.
    ///
    /// # Errors
    /// As [`values`](Self::values); [`ProofError::WrongKind`] if no proof of this format shows that.
    fn versions(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<Version>>, ProofError> {
        let _ = (root, keys, blocks, proof);
        Err(ProofFormat::NO_HISTORY)
    }
}

impl ProofFormat {
    /// A proof of another state than that of its root, of a format that shows none.
    pub const NO_HISTORY: ProofError =
        ProofError::WrongKind { what: "it cannot show older states" };
}
