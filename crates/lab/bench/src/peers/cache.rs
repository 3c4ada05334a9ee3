//! The caches of stores that bypass the system's page cache.

/// Size in bytes of the caches of a store that bypasses the system's page cache: the `given` bytes
/// and those of its `files` that the page cache would hold for another store.
pub(super) fn own_cache(given: usize, files: u64, page_cache: u64) -> u64 {
    (given as u64).saturating_add(files.min(page_cache))
}
