//! The test-kit that every backend passes, with chunks of several sizes.

use retrie_state::AnyBackend;
use retrie_state_testkit::TestScale;
use retrie_storage_bavl::{Bavl, ChunkEntries};
use std::sync::Arc;

fn bavl(entries: u32) -> Arc<dyn AnyBackend> {
    Arc::new(Bavl::new(ChunkEntries::new(entries).expect("a size that chunks can have")))
}

fn fewer() -> TestScale {
    TestScale { blocks: 16, depth: 100, kills: 60, mutations: 500, ..TestScale::default() }
}

mod smallest_chunks {
    use super::*;
    retrie_state_testkit::backend_tests!(|| bavl(4), TestScale::default());
}

mod odd_chunks {
    use super::*;
    retrie_state_testkit::backend_tests!(|| bavl(7), fewer().of_variant());
}

mod chunks_of_some_groups {
    use super::*;
    retrie_state_testkit::backend_tests!(|| bavl(50), fewer());
}

mod usual_chunks {
    use super::*;
    retrie_state_testkit::backend_tests!(|| bavl(256), fewer().of_variant());
}
