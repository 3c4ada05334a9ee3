//! Registration of the backend `pbt` and of its proof formats.

use crate::{hash::TreeHash, verify};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, ProofError, StateValue,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier},
};

/// Name of the backend.
pub(crate) const NAME: &str = "pbt";
/// Version of its rows and proofs.
pub(crate) const VERSION: u32 = 1;

/// Checks proofs. There are no parameters to trust.
#[derive(Clone, Copy, Debug)]
struct PbtVerifier(TreeHash);

impl ProofVerifier for PbtVerifier {
    fn params(&self) -> Option<ParamsFacts> {
        None
    }

    fn values(
        &self,
        root: B256,
        keys: &[BackendKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        match as_of {
            None => verify::verify(self.0, root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }

    #[cfg(feature = "std")]
    fn open_witness(&self, root: B256, witness: &[u8]) -> retrie_state::descriptor::WitnessResult {
        crate::witness::open(self.0, root, witness)
    }
}

const fn format(hash: TreeHash, verifier: &'static PbtVerifier) -> ProofFormat {
    ProofFormat {
        backend: NAME,
        version: VERSION,
        hash: hash.id(),
        has_ethereum_root: false,
        shows_history: false,
        verifier: FormatVerifier::Fixed(verifier),
    }
}

/// The proof formats of `pbt`: multi-proofs of a compressed binary radix tree.
pub static PROOF_FORMATS: &[ProofFormat] = &[
    format(TreeHash::Blake3, &PbtVerifier(TreeHash::Blake3)),
    format(TreeHash::Keccak256, &PbtVerifier(TreeHash::Keccak256)),
    #[cfg(feature = "algebraic")]
    format(TreeHash::Poseidon2, &PbtVerifier(TreeHash::Poseidon2)),
];

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use super::NAME;
    use crate::{Pbt, hash::TreeHash};
    use retrie_state::{
        AnyBackend, HashId,
        descriptor::{BackendDescriptor, ConstructorInput, HashVariant},
    };
    use std::sync::Arc;

    fn made(hash: TreeHash, making: &ConstructorInput<'_>) -> Arc<dyn AnyBackend> {
        Arc::new(Pbt::within(hash, making.flags.cache_bytes()))
    }

    /// `pbt`.
    pub static BACKENDS: &[BackendDescriptor] = &[BackendDescriptor {
        hashes: &[
            HashVariant {
                hash: HashId::Keccak256,
                make: |making| Ok(made(TreeHash::Keccak256, making)),
                small: || Arc::new(Pbt::new(TreeHash::Keccak256)),
            },
            #[cfg(feature = "algebraic")]
            HashVariant {
                hash: HashId::Poseidon2,
                make: |making| Ok(made(TreeHash::Poseidon2, making)),
                small: || Arc::new(Pbt::new(TreeHash::Poseidon2)),
            },
        ],
        ..BackendDescriptor::plain(
            NAME,
            "Ethereum's next tree: partitioned binary, EIP-8297",
            |making| Ok(made(TreeHash::Blake3, making)),
            || Arc::new(Pbt::default()),
            ["#8a5a00", "#d9a441"],
        )
    }];
}
