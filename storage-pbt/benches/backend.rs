//! The benches that every backend runs, with both hash functions.

use retrie_storage_pbt::{Pbt, hash::TreeHash};
use std::sync::Arc;

retrie_state_testkit::backend_bench!(
    "pbt" => Arc::new(Pbt::new(TreeHash::Blake3)),
    "pbt with keccak-256" => Arc::new(Pbt::new(TreeHash::Keccak256)),
);
