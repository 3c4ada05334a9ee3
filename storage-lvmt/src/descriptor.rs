//! What lists of backends have of `lvmt`: what checks its proofs, its flags, and where its public
//! parameters come from.

use crate::{VerifierParams, verify};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    HashId, ProofError, StateKey, Value,
    descriptor::{ParamsFacts, ProofFormat, ProofVerifier},
};

const NAME: &str = "lvmt";

/// Proofs under public parameters.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: 1,
    hash: HashId::Blake2b256,
    shows_history: false,
    verifier: None,
}];

impl ProofVerifier for VerifierParams {
    fn params(&self) -> Option<ParamsFacts> {
        let (digest, insecure) = (self.digest(), self.is_insecure());
        Some(ParamsFacts { backend: NAME, digest, has_secret: true, insecure })
    }

    fn values(
        &self,
        root: B256,
        keys: &[StateKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        match as_of {
            None => verify(self, root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }
}

#[cfg(feature = "std")]
mod making;
#[cfg(feature = "std")]
pub use making::BACKENDS;
