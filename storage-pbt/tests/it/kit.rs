//! The test-kit that every backend passes, with each hash function.

use retrie_state::AnyBackend;
use retrie_state_testkit::TestScale;
use retrie_storage_pbt::{Pbt, hash::TreeHash};
use std::sync::Arc;

fn pbt(hash: TreeHash) -> Arc<dyn AnyBackend> {
    Arc::new(Pbt::new(hash))
}

mod blake3 {
    use super::*;
    retrie_state_testkit::backend_tests!(|| pbt(TreeHash::Blake3));
}

mod keccak256 {
    use super::*;
    retrie_state_testkit::backend_tests!(|| pbt(TreeHash::Keccak256), TestScale::smallest());
}

#[cfg(feature = "algebraic")]
mod poseidon2 {
    use super::*;
    retrie_state_testkit::backend_tests!(|| pbt(TreeHash::Poseidon2), TestScale::smallest());
}
