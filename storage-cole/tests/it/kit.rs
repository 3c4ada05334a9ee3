//! The conformance tests of every backend, on COLE and COLE* with levels so small that they are
//! flushed and merged every few blocks.

use retrie_state::AnyBackend;
use retrie_state_testkit::{
    TestKit, TestScale, proofs_of_old_blocks_are_those_they_had_at_the_tip,
};
use retrie_storage_cole::{Cole, ColeParams};
use std::sync::Arc;

fn cole(params: ColeParams) -> Arc<dyn AnyBackend> {
    Arc::new(Cole::new(params).expect("parameters within their ranges"))
}

/// A group of the memory level is full after about two blocks.
fn small() -> ColeParams {
    ColeParams { memory_pairs: 24, size_ratio: 2, ..ColeParams::default() }
}

mod asynchronous {
    use super::*;
    retrie_state_testkit::backend_tests!(|| cole(small()), TestScale::default());
}

mod synchronous {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || cole(ColeParams { async_merge: false, size_ratio: 3, fanout: 2, ..small() }),
        TestScale::default().of_variant()
    );
}

mod every_block_is_a_run {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || cole(ColeParams { memory_pairs: 1, fanout: 64, epsilon: 1, ..small() }),
        TestScale { blocks: 12, depth: 60, kills: 50, mutations: 500, ..TestScale::default() }
    );
}

mod memory_alone {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || cole(ColeParams::default()),
        TestScale::default().of_variant()
    );
}

mod pruned {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || cole(ColeParams { keep_history: 5, ..small() }),
        TestScale::default()
    );
}

mod version_trees {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || cole(ColeParams { version_trees: true, async_merge: false, size_ratio: 3, ..small() }),
        TestScale::default().of_variant()
    );
}

mod pruned_version_trees {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || cole(ColeParams { version_trees: true, keep_history: 5, fanout: 2, ..small() }),
        TestScale::default()
    );
}

/// Groups that are large enough to have folded subtrees, and are still flushed.
#[test]
fn thinned_groups_prove_what_whole_ones_do() {
    let params = ColeParams { memory_pairs: 2500, ..small() };
    let scale = TestScale { changes: 120, ..TestScale::default() };
    let make = || cole(params);
    proofs_of_old_blocks_are_those_they_had_at_the_tip(&TestKit::new(&make, scale));
}
