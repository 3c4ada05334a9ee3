//! The interface of state stores in a race: ours, and stores of other projects.

use super::{
    base::SortedEntries,
    block::{KeyOp, ReadDigest},
    outcome::ProofFigures,
};
use crate::{BenchError, race::RaceTerms};
use alloy_primitives::B256;
use retrie_pipeline::report::TimeBreakdown;
use retrie_state::{StateKey, StateValue};
use retrie_state_store::CounterSnapshot;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// A store that can take part in a race: prepares its state on disk and opens it.
pub trait StoreFactory {
    /// Its name in results.
    fn name(&self) -> &str;

    /// Name of the hash function under its root.
    fn hash(&self) -> &str;

    /// A name for its persisted format, valid as a file name. Prepared states are cached under this
    /// name.
    fn format(&self) -> String;

    /// How the store applies the [`RaceTerms`], if that needs an explanation.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Memory in bytes beside [`RaceTerms::cache_bytes`] when its own caches are full.
    fn fixed_bytes(&self) -> u64 {
        0
    }

    /// Writes a state with `entries` to the empty `folder`.
    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError>;

    /// Opens the state that [`load`](Self::load) has written. `page_cache` is the number of bytes
    /// of its files that the system may keep in memory, in addition to [`RaceTerms::cache_bytes`].
    /// A store that bypasses the system's page cache may use as much for a cache of its own.
    fn open(
        &self,
        folder: &Path,
        terms: &RaceTerms,
        page_cache: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError>;
}

/// An open store in a race.
pub trait OpenStore {
    /// Executes the operations of a block and commits. Every key is read, in order, in the state
    /// before the block. The next call sees the writes. With [`SyncMode::Durable`](retrie_db::SyncMode) they are on disk
    /// when the call returns.
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError>;

    /// Waits until no background work of earlier commits is running. Starts no work.
    fn wait_idle(&mut self) -> Result<(), BenchError>;

    /// Does all work that earlier commits have deferred.
    fn flush(&mut self) -> Result<(), BenchError>;

    /// The counts of rows read and written so far, if the store counts them.
    fn counts(&self) -> Option<CounterSnapshot>;

    /// How the time of [`commit`](Self::commit) and [`wait_idle`](Self::wait_idle) was spent so
    /// far, if the store knows it. Flushes are not included. The time of row reads may be part of
    /// the authenticated structure: the race moves it to the key-value store, if
    /// [`counts`](Self::counts) has it.
    fn breakdown(&self) -> Option<TimeBreakdown> {
        None
    }

    /// Bytes of live pages and files. It is called often, so it should be cheap.
    fn disk_bytes(&self) -> Result<u64, BenchError>;

    /// Bytes of free pages of its database, if the store knows it.
    fn free_bytes(&self) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    /// Proves each of `keys` separately in the current state, and verifies the proof. All keys have
    /// a value if `present`, otherwise none has. `None` if the store has no proofs. Returns
    /// [`BenchError::Stopped`] if `stop` is set.
    fn prove(
        &mut self,
        keys: &[StateKey],
        present: bool,
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let _ = (keys, present, stop);
        Ok(None)
    }

    /// Proves the keys of each of `commits` with one proof in the current state, and verifies it: what a
    /// stateless client needs of the state for such a block. `None` if the store has no proofs of
    /// several keys.
    fn prove_commits(
        &mut self,
        commits: &[Vec<StateKey>],
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let _ = (commits, stop);
        Ok(None)
    }

    /// Proves each of `keys` separately in the state `depth` commits before the current one, and
    /// verifies the proof. `None` if the store has no proofs, or no proofs of a state so old.
    fn prove_at(
        &mut self,
        depth: u64,
        keys: &[StateKey],
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let _ = (depth, keys, stop);
        Ok(None)
    }

    /// Ethereum's state root, if the store computes it.
    fn ethereum_root(&self) -> Option<B256>;
}

/// The entries of a state in key order. Values are derived on access.
pub struct EntryStream<'a> {
    pub(crate) entries: &'a SortedEntries,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a mut dyn FnMut(u64),
    pub(crate) done: u64,
}

impl std::fmt::Debug for EntryStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = self.entries.len();
        f.debug_struct("EntryStream").field("done", &self.done).field("of", &of).finish()
    }
}

/// The user asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct LoadStopped;

impl From<LoadStopped> for BenchError {
    fn from(_: LoadStopped) -> Self {
        Self::Stopped
    }
}

impl EntryStream<'_> {
    /// Whether the user has asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Number of remaining entries.
    #[cfg(feature = "peers")]
    pub(crate) fn remaining(&self) -> u64 {
        self.entries.len() as u64 - self.done
    }
}

impl Iterator for EntryStream<'_> {
    type Item = Result<(StateKey, StateValue), LoadStopped>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done.is_multiple_of(4096) {
            (self.progress)(self.done);
            if self.is_stopped() {
                return Some(Err(LoadStopped));
            }
        }
        let entry = self.entries.get(self.done as usize)?;
        self.done += 1;
        Some(Ok(entry))
    }
}
