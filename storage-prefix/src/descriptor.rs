//! What lists of backends have of `prefix` and `duptree`.

use crate::duptree;
use retrie_state::descriptor::ProofFormat;
use retrie_storage_mpt::{TrieHash, proof_format};

/// Proofs of `prefix` are those of `mpt`.
pub static PROOF_FORMATS: &[ProofFormat] =
    &[proof_format("prefix", TrieHash::Keccak256), duptree::FORMAT];

/// `prefix` and `duptree`.
#[cfg(feature = "std")]
pub static BACKENDS: &[retrie_state::descriptor::Descriptor] =
    &[crate::prefix::DESCRIPTOR, duptree::DESCRIPTOR];
