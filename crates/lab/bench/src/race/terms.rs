//! The terms of a race, equal for all contenders.

use retrie_db::SyncMode;
use serde_json::{Value, json};

/// Memory that an open store needs beside the caches of given size, in bytes.
const STORE_BYTES: u64 = 32 << 20;

/// The terms of a race, equal for all contenders.
#[derive(Clone, Copy, Debug)]
pub struct RaceTerms {
    /// When a commit counts as complete.
    pub sync: SyncMode,
    /// Memory of each contender beside the page cache, in bytes.
    pub cache_bytes: usize,
    /// Number of commits that can be reverted.
    pub retention: u64,
    /// Number of threads with which our stores may prefetch the keys of a commit, and clients the
    /// keys that blocks name; 0 disables prefetching.
    pub read_threads: usize,
}

impl RaceTerms {
    /// Bytes that contenders need beside the page cache, each with `fixed` bytes of its own caches.
    pub(crate) fn needed_bytes(&self, fixed: impl Iterator<Item = u64>) -> u64 {
        let each = self.cache_bytes as u64 + STORE_BYTES;
        fixed.map(|fixed| each.saturating_add(fixed)).fold(0, u64::saturating_add)
    }

    /// The params of a result.
    pub(crate) fn params(&self) -> [(String, Value); 4] {
        let sync = match self.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        };
        [
            ("sync".to_owned(), json!(sync)),
            ("cache_mb".to_owned(), json!(self.cache_bytes >> 20)),
            ("retention".to_owned(), json!(self.retention)),
            ("read_threads".to_owned(), json!(self.read_threads)),
        ]
    }
}
