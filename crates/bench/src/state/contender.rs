//! What takes part in a race: our state stores, and peers.

use super::{
    base::SortedEntries,
    block::{Op, Reads},
    outcome::ProofFigures,
};
use crate::BenchError;
use alloy_primitives::B256;
use retrie_db::SyncMode;
use retrie_pipeline::report::Breakdown;
use retrie_state::{Counts, StateKey, Value};
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// What is equal for all contenders.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// When a commit counts as done.
    pub sync: SyncMode,
    /// Memory beside the page cache, in bytes.
    pub cache_bytes: usize,
    /// How many commits could be taken back.
    pub retention: u64,
    /// With how many threads our stores may read ahead the keys that a commit is going to read, and
    /// clients those that blocks name; 0: not at all.
    pub read_threads: usize,
}

/// A kind of store that can be prepared and opened.
pub trait Entrant {
    /// Its name in results.
    fn name(&self) -> &str;

    /// Name of the hash function under its root.
    fn hash(&self) -> &str;

    /// A name for its persisted form, fit for a file name: prepared states are kept under it.
    fn format(&self) -> String;

    /// What it makes of the [`Terms`], where that needs saying.
    fn remark(&self) -> Option<String> {
        None
    }

    /// What it holds in memory beside [`Terms::cache_bytes`] once its own caches are full, in bytes.
    fn fixed_bytes(&self) -> u64 {
        0
    }

    /// Prepares the state `entries` in the empty `folder`.
    fn load(&self, folder: &Path, entries: &mut Entries<'_>) -> Result<(), BenchError>;

    /// Opens what [`load`](Self::load) has left. `page_cache` is how many bytes of its files the
    /// system may keep in memory for it, beside [`Terms::cache_bytes`]: a store that reads past the
    /// system's page cache may hold as much in a cache of its own.
    fn open(
        &self,
        folder: &Path,
        terms: &Terms,
        page_cache: u64,
    ) -> Result<Box<dyn Contender>, BenchError>;
}

/// An open store in a race.
pub trait Contender {
    /// Does the operations of a block and commits. Every key is read, in order, in the state before
    /// the block. The next call sees what was written, and with [`SyncMode::Durable`] it is on the
    /// disk.
    fn commit(&mut self, block: &[Op]) -> Result<Reads, BenchError>;

    /// Waits for background work that earlier commits have set going. Starts none.
    fn settle(&mut self) -> Result<(), BenchError>;

    /// Does all work that earlier commits have put off.
    fn flush(&mut self) -> Result<(), BenchError>;

    /// Counts at the node interface so far, where there is one.
    fn counts(&self) -> Option<Counts>;

    /// How the time of commits and settling was spent so far, where that can be told. Flushes are not
    /// in it. Reads of rows may be counted with the structure that asks for them: the race moves them
    /// to the key-value store, as far as [`counts`](Self::counts) has their time.
    fn breakdown(&self) -> Option<Breakdown> {
        None
    }

    /// Bytes of live pages and files. Asked for often: it should be cheap.
    fn disk_bytes(&self) -> Result<u64, BenchError>;

    /// Bytes of the pages of its database that are free for reuse, where that can be told.
    fn free_bytes(&self) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    /// Proves each of `keys` alone in the present state, and checks the proof: of keys that have a
    /// value, or of such that have none. `None` where there are no proofs. Gives up with
    /// [`BenchError::Stopped`] once `stop` is set.
    fn prove(
        &mut self,
        keys: &[StateKey],
        present: bool,
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let _ = (keys, present, stop);
        Ok(None)
    }

    /// Proves each of `keys` alone in the state `depth` commits before the present one, and checks the
    /// proof. `None` where there are no proofs, or none of a state so old.
    fn prove_at(
        &mut self,
        depth: u64,
        keys: &[StateKey],
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let _ = (depth, keys, stop);
        Ok(None)
    }

    /// Ethereum's root of the state, from those that have it.
    fn ethereum_root(&self) -> Option<B256>;
}

/// The entries of a state in key order, values made on the way.
pub struct Entries<'a> {
    pub(crate) entries: &'a SortedEntries,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a mut dyn FnMut(u64),
    pub(crate) done: u64,
}

impl std::fmt::Debug for Entries<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = self.entries.len();
        f.debug_struct("Entries").field("done", &self.done).field("of", &of).finish()
    }
}

/// The user asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

impl From<Stopped> for BenchError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl Entries<'_> {
    /// Whether the user asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How many are still to come.
    pub fn remaining(&self) -> u64 {
        self.entries.len() as u64 - self.done
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<(StateKey, Value), Stopped>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done.is_multiple_of(4096) {
            (self.progress)(self.done);
            if self.is_stopped() {
                return Some(Err(Stopped));
            }
        }
        let entry = self.entries.get(self.done as usize)?;
        self.done += 1;
        Some(Ok(entry))
    }
}
