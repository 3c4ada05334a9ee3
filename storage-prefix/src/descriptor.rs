//! Registration of the backends `prefix` and `duptree` and of their proof formats.

use crate::duptree;
use retrie_state::descriptor::ProofFormat;
use retrie_storage_mpt::{TrieHash, proof_format};

/// The proof formats; `prefix` uses the format of `mpt`.
pub static PROOF_FORMATS: &[ProofFormat] =
    &[proof_format("prefix", TrieHash::Keccak256), duptree::FORMAT];

/// `prefix` and `duptree`.
#[cfg(feature = "std")]
pub static BACKENDS: &[retrie_state::descriptor::BackendDescriptor] =
    &[crate::prefix::DESCRIPTOR, duptree::DESCRIPTOR];
