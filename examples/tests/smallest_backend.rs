//! The backend test-kit on the smallest backend.

use retrie_state::AnyBackend;
use smallest_backend::HashChain;
use std::sync::Arc;

retrie_state_testkit::backend_tests!(|| Arc::new(HashChain) as Arc<dyn AnyBackend>);

/// The README states how small it is.
#[test]
fn it_has_less_than_a_hundred_lines() {
    assert!(include_str!("../smallest_backend.rs").lines().count() < 100);
}
