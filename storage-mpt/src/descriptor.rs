//! Registration of the backends `mpt` and `mpt-archive` and of their proof formats.

use crate::{TrieHash, verify::verify_with};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, ProofError, StateValue,
    descriptor::{ParamsFacts, ProofFormat, ProofVerifier},
};

/// Checks proofs of a trie hashed with this function. Tries have no parameters.
#[derive(Clone, Copy, Debug)]
struct MptVerifier(TrieHash);

impl ProofVerifier for MptVerifier {
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
            None => verify_with(self.0, root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }
}

/// The proof format of the backend `backend`, whose proofs are nodes of tries hashed with `hash`.
pub const fn proof_format(backend: &'static str, hash: TrieHash) -> ProofFormat {
    let verifier: &'static dyn ProofVerifier = match hash {
        TrieHash::Keccak256 => &MptVerifier(TrieHash::Keccak256),
        TrieHash::Blake2b256 => &MptVerifier(TrieHash::Blake2b256),
    };
    ProofFormat {
        backend,
        version: 1,
        hash: hash.id(),
        has_ethereum_root: matches!(hash, TrieHash::Keccak256),
        shows_history: false,
        verifier: Some(verifier),
    }
}

/// The proof formats of `mpt` and `mpt-archive`: trie nodes, as in EIP-1186.
pub static PROOF_FORMATS: &[ProofFormat] = &[
    proof_format("mpt", TrieHash::Keccak256),
    proof_format("mpt-archive", TrieHash::Keccak256),
    proof_format("mpt-archive", TrieHash::Blake2b256),
];

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use crate::{Mpt, MptArchive, TrieHash};
    use retrie_state::{
        AnyBackend, HashId,
        descriptor::{BackendDescriptor, HashVariant},
    };
    use std::sync::Arc;

    fn archive(hash: TrieHash) -> Arc<dyn AnyBackend> {
        Arc::new(MptArchive::new(hash))
    }

    /// `mpt` and `mpt-archive`.
    pub static BACKENDS: &[BackendDescriptor] = &[
        BackendDescriptor::plain(
            "mpt",
            "Ethereum's trie, latest state, nodes by path",
            |_| Ok(Arc::new(Mpt::new())),
            || Arc::new(Mpt::new()),
            ["#0072b2", "#4ba3dd"],
        ),
        BackendDescriptor {
            hashes: &[HashVariant {
                hash: HashId::Blake2b256,
                make: || archive(TrieHash::Blake2b256),
            }],
            ..BackendDescriptor::plain(
                "mpt-archive",
                "Ethereum's trie, all versions, nodes by hash",
                |_| Ok(archive(TrieHash::Keccak256)),
                || archive(TrieHash::Keccak256),
                ["#2a90cb", "#a5d8f6"],
            )
        },
    ];
}
