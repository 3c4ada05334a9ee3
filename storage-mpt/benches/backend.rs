//! `cargo bench -p retrie-storage-mpt`

use retrie_storage_mpt::{Mpt, MptArchive, PrunedMpt, TrieHash};
use std::sync::Arc;

retrie_state_testkit::backend_bench!(
    "mpt" => Arc::new(Mpt::default()),
    "mpt-archive" => Arc::new(MptArchive::new(TrieHash::Keccak256)),
    "mpt-archive:prune" => Arc::new(PrunedMpt::new(TrieHash::Keccak256)),
);
