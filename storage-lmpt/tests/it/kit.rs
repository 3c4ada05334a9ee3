//! The backend test-kit, with boundaries at every block, below the retention of the kit's nodes, above
//! it, by the number of keys, and never.

use retrie_state::{AnyBackend, testkit::Scale};
use retrie_storage_lmpt::{Lmpt, Params};
use std::sync::Arc;

const NEVER: u64 = 1 << 40;

fn lmpt(params: Params) -> Arc<dyn AnyBackend> {
    Arc::new(Lmpt::new(params).expect("parameters within their ranges"))
}

const fn every(interval: u64) -> Params {
    Params { interval, keys: NEVER, least: 1 }
}

fn fewer() -> Scale {
    Scale { blocks: 16, depth: 100, kills: 60, mutations: 500, ..Scale::default() }
}

mod every_block {
    use super::*;
    retrie_state::backend_tests!(|| lmpt(every(1)), fewer());
}

mod below_the_retention {
    use super::*;
    retrie_state::backend_tests!(|| lmpt(every(3)), Scale::default());
}

mod above_the_retention {
    use super::*;
    retrie_state::backend_tests!(|| lmpt(every(11)), Scale { blocks: 40, ..Scale::default() });
}

mod by_keys {
    use super::*;
    retrie_state::backend_tests!(|| lmpt(Params { interval: NEVER, keys: 30, least: 2 }), fewer());
}

mod never {
    use super::*;
    retrie_state::backend_tests!(|| lmpt(Params::default()), fewer());
}
