//! What lists of backends have of `mpt` and `mpt-archive`.

use crate::{TrieHash, verify::verify_with};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    ProofError, StateKey, Value,
    descriptor::{ParamsFacts, ProofFormat, ProofVerifier},
};

/// Checks proofs of a trie with this hash function. Tries have no parameters.
#[derive(Clone, Copy, Debug)]
struct Verifier(TrieHash);

impl ProofVerifier for Verifier {
    fn params(&self) -> Option<ParamsFacts> {
        None
    }

    fn values(
        &self,
        root: B256,
        keys: &[StateKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        match as_of {
            None => verify_with(self.0, root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }
}

/// The format of proofs that are nodes of tries hashed with `hash`, of the backend of this name.
pub const fn proof_format(backend: &'static str, hash: TrieHash) -> ProofFormat {
    let verifier: &'static dyn ProofVerifier = match hash {
        TrieHash::Keccak256 => &Verifier(TrieHash::Keccak256),
        TrieHash::Blake2b256 => &Verifier(TrieHash::Blake2b256),
    };
    ProofFormat {
        backend,
        version: 1,
        hash: hash.id(),
        shows_history: false,
        verifier: Some(verifier),
    }
}

/// Proofs by EIP-1186's nodes.
pub static PROOF_FORMATS: &[ProofFormat] = &[
    proof_format("mpt", TrieHash::Keccak256),
    proof_format("mpt-archive", TrieHash::Keccak256),
    proof_format("mpt-archive", TrieHash::Blake2b256),
];

#[cfg(feature = "std")]
pub use backends::BACKENDS;

#[cfg(feature = "std")]
mod backends {
    use crate::{Mpt, MptArchive, TrieHash};
    use retrie_state::{
        AnyBackend, HashId,
        descriptor::{Descriptor, OtherHash},
    };
    use std::sync::Arc;

    fn archive(hash: TrieHash) -> Arc<dyn AnyBackend> {
        Arc::new(MptArchive::new(hash))
    }

    /// `mpt` and `mpt-archive`.
    pub static BACKENDS: &[Descriptor] = &[
        Descriptor::plain(
            "mpt",
            "Ethereum's trie, latest state, nodes by path",
            |_| Ok(Arc::new(Mpt::new())),
            || Arc::new(Mpt::new()),
            ["#0072b2", "#4ba3dd"],
        ),
        Descriptor {
            hashes: &[OtherHash {
                hash: HashId::Blake2b256,
                make: || archive(TrieHash::Blake2b256),
            }],
            ..Descriptor::plain(
                "mpt-archive",
                "Ethereum's trie, all versions, nodes by hash",
                |_| Ok(archive(TrieHash::Keccak256)),
                || archive(TrieHash::Keccak256),
                ["#2a90cb", "#a5d8f6"],
            )
        },
    ];
}
