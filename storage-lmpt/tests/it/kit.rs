//! The conformance tests of every backend, with a boundary at every block, at intervals below and
//! above the retention, by the number of keys, and never.

use retrie_state::AnyBackend;
use retrie_state_testkit::TestScale;
use retrie_storage_lmpt::{Lmpt, LmptParams};
use std::sync::Arc;

const NEVER: u64 = 1 << 40;

fn lmpt(params: LmptParams) -> Arc<dyn AnyBackend> {
    Arc::new(Lmpt::new(params).expect("parameters within their ranges"))
}

const fn every(interval: u64) -> LmptParams {
    LmptParams { interval, keys: NEVER, least: 1 }
}

fn fewer() -> TestScale {
    TestScale { blocks: 16, depth: 100, kills: 60, mutations: 500, ..TestScale::default() }
}

mod every_block {
    use super::*;
    retrie_state_testkit::backend_tests!(|| lmpt(every(1)), fewer().of_variant());
}

mod below_the_retention {
    use super::*;
    retrie_state_testkit::backend_tests!(|| lmpt(every(3)), TestScale::default());
}

mod above_the_retention {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || lmpt(every(11)),
        TestScale { blocks: 40, ..TestScale::default() }
    );
}

mod by_keys {
    use super::*;
    retrie_state_testkit::backend_tests!(
        || lmpt(LmptParams { interval: NEVER, keys: 30, least: 2 }),
        fewer()
    );
}

mod never {
    use super::*;
    retrie_state_testkit::backend_tests!(|| lmpt(LmptParams::default()), fewer().of_variant());
}
