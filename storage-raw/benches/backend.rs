//! `cargo bench -p retrie-storage-raw`

use retrie_storage_raw::Raw;
use std::sync::Arc;

retrie_state_testkit::backend_bench!("raw" => Arc::new(Raw));
