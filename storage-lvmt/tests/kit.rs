//! The test-kit that every backend passes. Small AMTs, so that keys reach deep levels.

mod common;

use retrie_state::{AnyBackend, testkit::Scale};
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
