//! The test-kit that every backend passes, on each layout of `duptree`.

use retrie_state::AnyBackend;
use retrie_state_testkit::TestScale;
use retrie_storage_prefix::duptree::{DupTree, DupTreeLayout};
use std::sync::Arc;

mod blocked_with_a_small_cache {
    use super::*;
    // Subtrees come and go. With a large one it runs on MDBX.
    retrie_state_testkit::backend_tests!(
        || Arc::new(DupTree::with_cache(DupTreeLayout::Blocked, 3)) as Arc<dyn AnyBackend>,
        TestScale { blocks: 12, depth: 60, kills: 30, mutations: 500, ..TestScale::default() }
            .of_variant()
    );
}

mod naive {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || Arc::new(DupTree::new(DupTreeLayout::Naive)) as Arc<dyn AnyBackend>,
        TestScale { blocks: 16, depth: 100, kills: 60, mutations: 500, ..TestScale::default() }
            .of_variant()
    );
}

mod dup {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || Arc::new(DupTree::new(DupTreeLayout::Dup)) as Arc<dyn AnyBackend>,
        TestScale { blocks: 12, depth: 60, kills: 40, mutations: 500, ..TestScale::default() }
    );
}
