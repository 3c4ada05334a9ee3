//! [`FoldThread`]: the thread `state-fold`, which does the store's work beside the blocks.
//!
//! | work | when | without the lock |
//! |---|---|---|
//! | deletes doomed files | every ten seconds, at closing, or if a thread waits for it | sync, deletion |
//! | compacts caches of older blocks | as they leave the full caches | all |
//! | folds frozen generations, oldest first | as they are frozen | all |
//! | frees folded generations | when no reader holds them | all |

use super::{
    fold,
    generation::RowGeneration,
    state::{DurableState, MemoryState},
};
use parking_lot::MutexGuard;
use retrie_state::{AnyCache, BlockRef};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

/// How often doomed files are deleted, unless a thread waits for it: before each deletion the disk
/// is synced, which delays commits.
const CLEAR_EVERY: Duration = Duration::from_secs(10);
/// How often the thread looks whether readers still hold a folded generation.
const FREE_EVERY: Duration = Duration::from_millis(50);

/// The thread `state-fold`.
pub(crate) struct FoldThread<'a> {
    durable: &'a DurableState,
    /// Folded generations that readers still hold. Freeing a million rows takes long, so this
    /// thread holds the last reference and frees them without the lock.
    folded: Vec<Arc<RowGeneration>>,
    /// When it last deleted files.
    cleared: Instant,
}

impl<'a> FoldThread<'a> {
    pub(crate) fn new(durable: &'a DurableState) -> Self {
        Self { durable, folded: Vec::new(), cleared: Instant::now() }
    }

    /// Works until the store closes.
    pub(crate) fn run(mut self) {
        let mut memory = self.durable.memory.lock();
        loop {
            if self.is_deletion_due(&memory) {
                self.delete_doomed(&mut memory);
            } else if memory.closing {
                return;
            } else if let Some((block, cache)) = memory.caches.next_to_compact() {
                self.compact(&mut memory, block, cache);
            } else if memory.generations.len() > 1 && memory.fold_error.is_none() {
                self.fold_oldest(&mut memory);
            } else {
                self.wait(&mut memory);
                continue;
            }
            self.durable.folding.notify_all();
        }
    }

    fn is_deletion_due(&self, memory: &MemoryState) -> bool {
        let is_time = memory.clear_now || memory.closing || self.cleared.elapsed() >= CLEAR_EVERY;
        is_time && !memory.doomed.is_empty()
    }

    /// Deletes the doomed files. The next opening removes files that cannot be deleted now.
    fn delete_doomed(&mut self, memory: &mut MutexGuard<'_, MemoryState>) {
        let DurableState { kv, dir, .. } = self.durable;
        memory.deleting = std::mem::take(&mut memory.doomed);
        // A power failure must not lead back to a commit that names them.
        let synced = MutexGuard::unlocked(memory, || {
            catch_unwind(AssertUnwindSafe(|| kv.sync().map_err(|error| error.to_string())))
                .unwrap_or_else(|_| Err("it panicked".into()))
        });
        if let Err(error) = &synced {
            tracing::warn!(error, "retired state files stay until the next opening");
        }
        while let Some(name) = memory.deleting.pop_first() {
            let Some(dir) = dir.as_deref().filter(|_| synced.is_ok()) else { continue };
            let (path, gone) = (dir.join(&name), dir.join(format!("{name}.gone")));
            // Renamed under the lock, so that no commit finds it in between; deleted without the
            // lock, as freeing a large file takes long.
            let renamed = fs::rename(path, &gone);
            let removed =
                MutexGuard::unlocked(memory, || renamed.and_then(|()| fs::remove_file(gone)));
            if let Err(error) = removed {
                tracing::debug!(file = name, %error, "state file not removed");
            }
        }
        self.cleared = Instant::now();
    }

    /// Compacts the full cache of `block`, the first in the queue.
    fn compact(&self, memory: &mut MutexGuard<'_, MemoryState>, block: BlockRef, cache: AnyCache) {
        let since = memory.caches.now();
        if let Some(by) = self.durable.backend.extensions().cache_compaction {
            let compact = || catch_unwind(AssertUnwindSafe(|| by.compact_cache(&cache)));
            let compacted = MutexGuard::unlocked(memory, compact);
            if compacted.is_err() {
                tracing::error!("compacting the cache of a block panicked; no data is lost");
            }
            if memory.caches.now() == since {
                memory.keep_compacted(block, compacted.ok().flatten(), by.compacted_cache_bytes());
            }
        }
        let left = memory.caches.pop_compacted(since);
        // Freeing the full cache takes long: do it without the lock.
        MutexGuard::unlocked(memory, || drop((cache, left)));
    }

    /// Folds the oldest generation into the tables.
    fn fold_oldest(&mut self, memory: &mut MutexGuard<'_, MemoryState>) {
        let generation = memory.generations[0].clone();
        let outcome = MutexGuard::unlocked(memory, || {
            self.free_folded();
            // A panic here would leave commits waiting for ever.
            catch_unwind(AssertUnwindSafe(|| self.fold(&generation)))
                .unwrap_or_else(|_| Err("it panicked".into()))
        });
        match outcome {
            Ok(rows) => {
                self.durable.counters.folded(rows);
                if let Err(error) = self.durable.set_fold_at() {
                    tracing::warn!(%error, "disk use unknown; generations keep their size");
                }
                self.folded.push(memory.generations.remove(0));
            }
            Err(error) => {
                tracing::error!(%error, "folding the state journal failed; no data is lost");
                memory.fold_error = Some(error);
            }
        }
    }

    /// Writes the rows of `generation` and deletes its journal records; returns the number of rows.
    fn fold(&self, generation: &RowGeneration) -> Result<usize, String> {
        fold::fold(&*self.durable.kv, generation, std::thread::yield_now)
            .map_err(|error| error.to_string())
    }

    /// Drops the folded generations that no reader holds any more.
    fn free_folded(&mut self) {
        self.folded.retain(|generation| Arc::strong_count(generation) > 1);
    }

    /// Waits for work.
    fn wait(&mut self, memory: &mut MutexGuard<'_, MemoryState>) {
        let folding = &self.durable.folding;
        memory.clear_now = false;
        if !self.folded.is_empty() {
            folding.wait_for(memory, FREE_EVERY);
            MutexGuard::unlocked(memory, || self.free_folded());
        } else if memory.doomed.is_empty() {
            folding.wait(memory);
        } else {
            folding.wait_for(memory, CLEAR_EVERY.saturating_sub(self.cleared.elapsed()));
        }
    }
}
