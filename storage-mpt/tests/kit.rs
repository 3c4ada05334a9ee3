//! The test-kit that every backend passes.

use retrie_state::Backend;
use retrie_storage_mpt::Mpt;
use std::sync::Arc;

retrie_state::backend_tests!(|| Arc::new(Mpt::new()) as Arc<dyn Backend>);
