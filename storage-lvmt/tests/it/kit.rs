//! The conformance tests of every backend. The AMTs are small, so that keys reach deep levels.

use crate::common;

use retrie_state::AnyBackend;
use retrie_state_testkit::{
    TestKit, TestScale, proofs_of_old_blocks_are_those_they_had_at_the_tip,
};
use retrie_storage_lvmt::ProofShard;
use std::sync::Arc;

fn scale() -> TestScale {
    TestScale {
        blocks: 12,
        changes: 10,
        depth: 60,
        kills: 40,
        mutations: 120,
        ..TestScale::default()
    }
}

mod height_2 {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || Arc::new(common::lvmt(2, ProofShard::All)) as Arc<dyn AnyBackend>,
        scale()
    );
}

mod height_1_collecting_all_the_time {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || Arc::new(common::lvmt(1, ProofShard::All).with_slack(0)) as Arc<dyn AnyBackend>,
        scale()
    );
}

/// The height is large enough that compacted proof trees keep some nodes.
#[test]
fn thinned_trees_prove_what_whole_ones_do() {
    let make = || Arc::new(common::lvmt(5, ProofShard::All)) as Arc<dyn AnyBackend>;
    let scale = TestScale { changes: 40, ..scale() };
    proofs_of_old_blocks_are_those_they_had_at_the_tip(&TestKit::new(&make, scale));
}
