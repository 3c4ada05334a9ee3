//! The backend test-kit, on COLE and COLE* whose levels are small enough to be flushed and merged
//! every few blocks.

use retrie_state::{
    AnyBackend,
    testkit::{Kit, Scale, proofs_of_old_blocks_are_those_they_had_at_the_tip},
};
use retrie_storage_cole::{Cole, Params};
use std::sync::Arc;

fn cole(params: Params) -> Arc<dyn AnyBackend> {
    Arc::new(Cole::new(params).expect("parameters within their ranges"))
}

/// A group of the memory level is full after two blocks or so.
fn small() -> Params {
    Params { memory_pairs: 24, size_ratio: 2, ..Params::default() }
}

mod asynchronous {
    use super::*;
    retrie_state::backend_tests!(|| cole(small()), Scale::default());
}

mod synchronous {
    use super::*;
    retrie_state::backend_tests!(
        || cole(Params { async_merge: false, size_ratio: 3, fanout: 2, ..small() }),
        Scale::default()
    );
}

mod every_block_is_a_run {
    use super::*;
    retrie_state::backend_tests!(
        || cole(Params { memory_pairs: 1, fanout: 64, epsilon: 1, ..small() }),
        Scale { blocks: 12, depth: 60, kills: 50, mutations: 500, ..Scale::default() }
    );
}

mod memory_alone {
    use super::*;
    retrie_state::backend_tests!(|| cole(Params::default()), Scale::default());
}

mod pruned {
    use super::*;
    retrie_state::backend_tests!(|| cole(Params { keep_history: 5, ..small() }), Scale::default());
}

/// Groups so large that their trees are folded, and flushed all the same.
#[test]
fn thinned_groups_prove_what_whole_ones_do() {
    let params = Params { memory_pairs: 2500, ..small() };
    let scale = Scale { changes: 120, ..Scale::default() };
    let make = || cole(params);
    proofs_of_old_blocks_are_those_they_had_at_the_tip(&Kit::new(&make, scale));
}
