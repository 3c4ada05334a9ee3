//! The test-kit that every backend passes.

use retrie_state::AnyBackend;
use retrie_state_testkit::TestScale;
use retrie_storage_mpt::{Mpt, MptArchive, PrunedMpt, TrieHash};
use std::sync::Arc;

mod mpt {
    use super::*;
    retrie_state_testkit::backend_tests!(|| Arc::new(Mpt::new()) as Arc<dyn AnyBackend>);
}

mod archive {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || Arc::new(MptArchive::new(TrieHash::Keccak256)) as Arc<dyn AnyBackend>
    );
}

mod archive_with_blake2b {
    use super::*;
    // A cache that holds a few rows, so that nodes come from their rows.
    retrie_state_testkit::backend_tests!(
        || Arc::new(MptArchive::with_cache(TrieHash::Blake2b256, 4096)) as Arc<dyn AnyBackend>,
        TestScale::default().of_variant()
    );
}

mod pruned {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || Arc::new(PrunedMpt::with_cache(TrieHash::Keccak256, 4096)) as Arc<dyn AnyBackend>,
        TestScale::default().of_variant()
    );
}
