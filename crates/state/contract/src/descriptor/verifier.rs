//! Proofs without a store: their formats and verifiers.

use super::WitnessResult;
use crate::{BackendKey, HashId, ProofError, StateValue, ValueVersion, WitnessError};
use alloc::{sync::Arc, vec::Vec};
use alloy_primitives::B256;
use core::{fmt, ops::RangeInclusive};

/// A format of proofs. [`StateProof`](crate::StateProof) names it.
#[derive(Clone, Copy, Debug)]
pub struct ProofFormat {
    /// Name of the backend as in its [`BackendIdentity`](crate::BackendIdentity).
    pub backend: &'static str,
    /// Version of the format.
    pub version: u32,
    /// Hash function under the root.
    pub hash: HashId,
    /// Whether its root is the one that Ethereum headers carry. Such a root is the same in both
    /// [forms](crate::KeyForm) of keys.
    pub has_ethereum_root: bool,
    /// Whether its proofs show older states than the state of their root, and ranges of blocks.
    pub shows_history: bool,
    /// What verifies its proofs.
    pub verifier: FormatVerifier,
}

/// What verifies the proofs of a format.
#[derive(Clone, Copy, Debug)]
pub enum FormatVerifier {
    /// A verifier without parameters.
    Fixed(&'static dyn ProofVerifier),
    /// A verifier under parameters, which a caller has to trust: from their bytes, `None` if they
    /// are not parameters.
    UnderParams(fn(&[u8]) -> Option<Arc<dyn ProofVerifier>>),
}

impl FormatVerifier {
    /// The verifier, if it takes no parameters.
    pub const fn fixed(&self) -> Option<&'static dyn ProofVerifier> {
        match self {
            Self::Fixed(verifier) => Some(*verifier),
            Self::UnderParams(_) => None,
        }
    }
}

/// Parameters that proofs are checked under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsFacts {
    /// The backend they belong to, as in [`ProofFormat::backend`].
    pub backend: &'static str,
    /// Their digest, as in [`StateProof::params`](crate::StateProof::params).
    pub digest: B256,
    /// Whether they were made from a secret that must stay unknown (a trusted setup).
    pub has_secret: bool,
    /// Whether the secret is publicly known, so that anyone can forge proofs.
    pub insecure: bool,
}

/// Checks proofs of one backend under one set of parameters, without a store. It is pure, and safe
/// for any bytes.
pub trait ProofVerifier: fmt::Debug + Send + Sync {
    /// The parameters; `None` if the backend has none.
    fn params(&self) -> Option<ParamsFacts>;

    /// The values of `keys` (`None`: absent) in the state of `root`, or in the state after the
    /// older block `as_of`.
    ///
    /// # Errors
    /// A [`ProofError`] if the proof is not canonical, or does not show exactly these values.
    fn values(
        &self,
        root: B256,
        keys: &[BackendKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError>;

    /// The versions of each of `keys` in `blocks`, newest first: the values set after the first
    /// block of the range, and the value in force at the first block.
    ///
    /// # Errors
    /// As [`values`](Self::values); [`ProofError::WrongKind`] if proofs of this format show no
    /// versions.
    fn versions(
        &self,
        root: B256,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
        let _ = (root, keys, blocks, proof);
        Err(ProofFormat::NO_HISTORY)
    }

    /// Opens a block witness (a [`StateWitness`](crate::StateWitness)'s bytes) of the state of
    /// `root`, the state before the block.
    ///
    /// # Errors
    /// [`WitnessError::Unsupported`] if stores of this kind have none; [`WitnessError::Refused`] if
    /// the bytes are not canonical, hold a part that no other part leads to, or do not lead to `root`.
    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        let _ = (root, witness);
        Err(WitnessError::Unsupported { why: "its format has none" })
    }
}

impl ProofFormat {
    /// The error for a format whose proofs show only the state of their root.
    pub const NO_HISTORY: ProofError =
        ProofError::WrongKind { what: "it cannot show older states" };
}
