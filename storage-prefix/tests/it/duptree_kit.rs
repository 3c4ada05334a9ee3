//! The test-kit that every backend passes, on each layout of `duptree`.

use retrie_state::{AnyBackend, testkit::Scale};
use retrie_storage_prefix::duptree::{DupTree, Layout};
use std::sync::Arc;

mod blocked_with_a_small_cache {
    use super::*;
    // Subtrees come and go. With a large one it runs on MDBX.
    retrie_state::backend_tests!(
        || Arc::new(DupTree::with_cache(Layout::Blocked, 3)) as Arc<dyn AnyBackend>,
        Scale { blocks: 12, depth: 60, kills: 30, mutations: 500, ..Scale::default() }
    );
}

mod naive {
    use super::*;
    retrie_state::backend_tests!(
        || Arc::new(DupTree::new(Layout::Naive)) as Arc<dyn AnyBackend>,
        Scale { blocks: 16, depth: 100, kills: 60, mutations: 500, ..Scale::default() }
    );
}

mod dup {
    use super::*;
    retrie_state::backend_tests!(
        || Arc::new(DupTree::new(Layout::Dup)) as Arc<dyn AnyBackend>,
        Scale { blocks: 12, depth: 60, kills: 40, mutations: 500, ..Scale::default() }
    );
}
