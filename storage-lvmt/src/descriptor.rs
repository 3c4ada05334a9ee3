//! Registration of `lvmt`: the verifier of its proofs, its flags, and the source of its public
//! parameters.

use crate::{VerifierParams, verify, witness};
use alloc::{sync::Arc, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, HashId, ProofError, StateValue,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier, WitnessResult},
};

const NAME: &str = "lvmt";

/// The format of proofs; a verifier needs the public parameters.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: 1,
    hash: HashId::Blake2b256,
    has_ethereum_root: false,
    shows_history: false,
    verifier: FormatVerifier::UnderParams(|bytes| {
        Some(Arc::new(VerifierParams::from_bytes(bytes)?))
    }),
}];

impl ProofVerifier for VerifierParams {
    fn params(&self) -> Option<ParamsFacts> {
        let (digest, insecure) = (self.digest(), self.is_insecure());
        Some(ParamsFacts { backend: NAME, digest, has_secret: true, insecure })
    }

    fn values(
        &self,
        root: B256,
        keys: &[BackendKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        match as_of {
            None => verify(self, root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(self, root, witness)
    }
}

#[cfg(feature = "std")]
mod registration;
#[cfg(feature = "std")]
pub use registration::BACKENDS;
