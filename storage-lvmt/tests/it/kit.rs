//! The test-kit that every backend passes. Small AMTs, so that keys reach deep levels.

use crate::common;

use retrie_state::{
    AnyBackend,
    testkit::{Kit, Scale, proofs_of_old_blocks_are_those_they_had_at_the_tip},
};
use retrie_storage_lvmt::ProofShard;
use std::sync::Arc;

fn scale() -> Scale {
    Scale { blocks: 12, changes: 10, depth: 60, kills: 40, mutations: 120, ..Scale::default() }
}

mod height_2 {
    use super::*;
    retrie_state::backend_tests!(
        || Arc::new(common::lvmt(2, ProofShard::All)) as Arc<dyn AnyBackend>,
        scale()
    );
}

mod height_1_collecting_all_the_time {
    use super::*;
    retrie_state::backend_tests!(
        || Arc::new(common::lvmt(1, ProofShard::All).with_slack(0)) as Arc<dyn AnyBackend>,
        scale()
    );
}

/// High enough for proof trees of which something is left when they are thinned.
#[test]
fn thinned_trees_prove_what_whole_ones_do() {
    let make = || Arc::new(common::lvmt(5, ProofShard::All)) as Arc<dyn AnyBackend>;
    let scale = Scale { changes: 40, ..scale() };
    proofs_of_old_blocks_are_those_they_had_at_the_tip(&Kit::new(&make, scale));
}
