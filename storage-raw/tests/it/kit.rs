//! The backend test-kit on the flat state.

use retrie_state::AnyBackend;
use retrie_storage_raw::Raw;
use std::sync::Arc;

retrie_state_testkit::backend_tests!(|| Arc::new(Raw) as Arc<dyn AnyBackend>);
