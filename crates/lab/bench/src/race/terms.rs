//! The terms of a race, equal for all contenders.

use super::MemoryTerms;
use retrie_db::SyncMode;
use serde_json::{Value, json};

/// Memory that an open store needs beside the caches of given size, in bytes.
const STORE_BYTES: u64 = 32 << 20;

/// The terms of a race, equal for all contenders.
#[derive(Clone, Copy, Debug)]
pub struct RaceTerms {
    /// When a commit counts as complete.
    pub sync: SyncMode,
    /// Memory of each contender beside the page cache, in bytes: for unfolded rows and, if there is
    /// a [budget](MemoryTerms::budget), for its own caches too.
    pub cache_bytes: usize,
    /// Number of commits that can be reverted.
    pub retention: u64,
    /// Number of threads with which our stores may prefetch the keys of a commit, and clients the
    /// keys that blocks name; 0 disables prefetching.
    pub read_threads: usize,
    /// A budget of memory, and whether pages are dropped.
    pub memory: MemoryTerms,
}

impl RaceTerms {
    /// Bytes that contenders need beside the page cache, each with `fixed` bytes of its own caches.
    pub(crate) fn needed_bytes(&self, fixed: impl Iterator<Item = u64>) -> u64 {
        let each = |own: u64| (self.rows_bytes(own) as u64 + STORE_BYTES).saturating_add(own);
        fixed.map(each).fold(0, u64::saturating_add)
    }

    /// Memory for unfolded rows of a contender whose own caches take up to `own` bytes.
    pub fn rows_bytes(&self, own: u64) -> usize {
        let bytes = self.memory.rows_bytes(self.cache_bytes as u64, own);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The params of a result.
    pub(crate) fn params(&self) -> Vec<(String, Value)> {
        let sync = match self.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        };
        let mut params = vec![
            ("sync".to_owned(), json!(sync)),
            ("cache_mb".to_owned(), json!(self.cache_bytes >> 20)),
            ("retention".to_owned(), json!(self.retention)),
            ("read_threads".to_owned(), json!(self.read_threads)),
        ];
        params.extend(self.memory_params());
        params
    }

    /// The params about a budget and about dropped pages; none without them.
    pub(crate) fn memory_params(&self) -> impl Iterator<Item = (String, Value)> {
        let MemoryTerms { budget, cold } = self.memory;
        let budget = budget.map(|budget| ("memory_budget", json!(budget.bytes >> 20)));
        let alone = self.memory.is_alone().then(|| ("raced", json!("alone")));
        let cold = cold.then(|| ("pages", json!("cold")));
        let params = budget.into_iter().chain(alone).chain(cold);
        params.map(|(name, value)| (name.to_owned(), value))
    }
}
