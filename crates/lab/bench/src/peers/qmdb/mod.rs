//! QMDB as Commonware implements it: `commonware-storage` 2026.10.0, with SHA-256.
//!
//! The state is a log of operations. Each commit appends the new values of its keys, moves as many
//! live operations from the old end of the log to its new end, and so raises the *inactivity
//! floor*, before which no operation is live. A Merkle tree over the log, and over a bitmap of the
//! live operations, has the root. An index in memory maps the first eight bytes of each key to the
//! place of its latest operation; it is built from the log when the database is opened. The variant
//! here authenticates the current state (`qmdb::current`), with keys in no order and values of 32
//! bytes.
//!
//! A block is read as a batch and then merkleized with what was read, as in the benchmarks of its
//! authors. Pages missing from its cache are read with `O_DIRECT`, so its cache is larger by the
//! bytes that the system's page cache would hold for another store, as for NOMT.
//!
//! Guarantees: a commit returns after one `fdatasync` of the log, for any value of
//! [`RaceTerms::sync`]. The nodes of the tree are written without a sync; after a crash they are
//! hashed again from the log. The flush at the end syncs them. A commit is reverted by opening the
//! database at an earlier one, which builds the index anew, so the log is pruned no further than to
//! the floor of [`RaceTerms::retention`] commits ago, whenever that frees a file.

mod database;
mod entries;

use crate::{
    BenchError,
    race::RaceTerms,
    state::{EntryStream, KeyOp, OpenStore, ProofFigures, ReadDigest, StoreFactory},
};
use alloy_primitives::B256;
use commonware_codec::EncodeSize as _;
use commonware_cryptography::sha256::Digest;
use database::{Database, DatabaseThread, Failure, ITEMS_PER_FILE, LogLocation};
use entries::{EntryBatch, entry_key, read_value};
use retrie_state::StateKey;
use retrie_state_store::CounterSnapshot;
use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

const NAME: &str = super::names::QMDB;
/// Its folder in a prepared state.
const FOLDER: &str = "qmdb";
/// Entries per commit while a state is loaded.
const LOAD_BATCH: usize = 50_000;
/// Size of its page cache while a state is loaded.
const LOAD_CACHE: u64 = 256 << 20;

/// Prepares and opens QMDB.
#[derive(Debug)]
pub(super) struct QmdbFactory;

/// Adds the action that failed.
fn failed<E: Into<Failure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl StoreFactory for QmdbFactory {
    fn name(&self) -> &str {
        NAME
    }

    fn hash(&self) -> &str {
        "sha256"
    }

    fn format(&self) -> String {
        format!("{NAME}-2026.10.0")
    }

    fn remark(&self) -> Option<String> {
        let words = "commonware-storage; it reads past the system's page cache, so its page cache \
                     holds the memory given and its whole database, or under a memory limit its \
                     share of what that leaves; an index of all keys in memory comes on top, 17 to \
                     39 bytes a key; each commit syncs the log, also where no sync is asked for, \
                     and not the tree; retention as log that is not pruned; its roots are not \
                     Ethereum's";
        Some(words.into())
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        let store = DatabaseThread::open(folder.join(FOLDER), LOAD_CACHE);
        let store = store.map_err(failed("creating"))?;
        let mut batch = EntryBatch::default();
        loop {
            let entry = entries.next().transpose()?;
            let is_last = entry.is_none();
            if let Some((key, value)) = entry {
                batch.push(&key, Some(Some(&value))).map_err(failed("writing"))?;
            }
            if is_last || batch.keys.len() >= LOAD_BATCH {
                let batch = std::mem::take(&mut batch);
                let commit = store.run(|database| database::commit(database, batch));
                commit.map_err(failed("committing"))?;
            }
            if is_last {
                return store.run(database::sync).map_err(failed("syncing"));
            }
        }
    }

    fn open(
        &self,
        folder: &Path,
        terms: &RaceTerms,
        page_cache: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        let folder = folder.join(FOLDER);
        let files = allocated(&folder).map_err(failed("measuring its files"))?;
        let cache_bytes = super::cache::own_cache(terms.cache_bytes, files, page_cache);
        Ok(Box::new(OpenQmdb::open(folder, cache_bytes, terms.retention)?))
    }
}

/// Allocated bytes of the files in a folder and its folders.
fn allocated(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => allocated(&entry.path())?,
            false => entry.metadata()?.blocks() * 512,
        };
    }
    Ok(bytes)
}

struct OpenQmdb {
    store: DatabaseThread,
    folder: PathBuf,
    root: Digest,
    prune_plan: PrunePlan,
}

/// The part of the log that reverting some commits does not need.
struct PrunePlan {
    /// Number of commits that can be reverted.
    retention: usize,
    /// Boundaries of the latest commits, oldest first.
    boundaries: VecDeque<LogLocation>,
    /// Files of the log before this one have been removed.
    first_file: u64,
}

impl PrunePlan {
    /// Notes the boundary of a commit. Returns the location to which the log can be pruned, if that
    /// frees a file.
    fn note(&mut self, boundary: LogLocation) -> Option<LogLocation> {
        self.boundaries.push_back(boundary);
        if self.boundaries.len() <= self.retention {
            return None;
        }
        let oldest = self.boundaries.pop_front()?;
        let file = *oldest / ITEMS_PER_FILE;
        (file > std::mem::replace(&mut self.first_file, file)).then_some(oldest)
    }
}

impl OpenQmdb {
    fn open(folder: PathBuf, cache_bytes: u64, retention: u64) -> Result<Self, BenchError> {
        let store = DatabaseThread::open(folder.clone(), cache_bytes).map_err(failed("opening"))?;
        let root = store.run(database::root).map_err(failed("reading its root"))?;
        let retention = usize::try_from(retention).unwrap_or(usize::MAX);
        let prune_plan = PrunePlan { retention, boundaries: VecDeque::new(), first_file: 0 };
        Ok(Self { store, folder, root, prune_plan })
    }

    /// Proves the value of a slot, and verifies the proof against the root.
    fn prove_slot(&self, key: &StateKey, figures: &mut ProofFigures) -> Result<(), BenchError> {
        let entry = entry_key(key);
        let value = self.store.run(move |database| database::read(database, entry));
        let value = value.map_err(failed("reading"))?;
        let start = Instant::now();
        let proof = self.store.run(move |database| database::prove(database, entry));
        let proof = proof.map_err(failed("proving"))?;
        let made = start.elapsed();
        let is_right = value.is_some_and(|value| {
            Database::verify_key_value_proof(entry, value, &proof, &self.root)
        });
        if !is_right {
            return Err(BenchError::WrongProof { backend: NAME.into(), key: key.to_string() });
        }
        figures.add(made, start.elapsed() - made, proof.encode_size());
        Ok(())
    }
}

impl OpenStore for OpenQmdb {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        let mut batch = EntryBatch::default();
        for op in block {
            batch.push(op.key(), op.next()).map_err(failed("writing"))?;
        }
        let reply = self.store.run(|database| database::commit(database, batch));
        let reply = reply.map_err(failed("committing"))?;
        self.root = reply.root;
        if let Some(location) = self.prune_plan.note(reply.boundary) {
            let pruned = self.store.run(move |database| database::prune(database, location));
            pruned.map_err(failed("pruning"))?;
        }
        let mut reads = ReadDigest::default();
        let mut values = reply.values.into_iter();
        for op in block {
            let value = read_value(op.key(), &mut values).map_err(failed("reading"))?;
            reads.note(value.as_ref().map(|value| &value[..]));
        }
        Ok(reads)
    }

    /// There is no background work.
    fn wait_idle(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.store.run(database::sync).map_err(failed("syncing"))
    }

    fn counts(&self) -> Option<CounterSnapshot> {
        None
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        allocated(&self.folder).map_err(failed("measuring its files"))
    }

    /// Proves slots that have a value. This variant has no proofs of absence.
    fn prove(
        &mut self,
        keys: &[StateKey],
        present: bool,
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        if !present {
            return Ok(None);
        }
        let mut figures = ProofFigures::new(present);
        for key in keys.iter().filter(|key| matches!(key, StateKey::Slot(..))) {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            self.prove_slot(key, &mut figures)?;
        }
        Ok((figures.count() > 0).then_some(figures))
    }

    fn ethereum_root(&self) -> Option<B256> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, U256};
    use retrie_state::encode_slot;

    const CACHE: u64 = 1 << 20;

    fn key(n: u64) -> StateKey {
        StateKey::Slot(Address::repeat_byte(1), B256::from(U256::from(n)))
    }

    /// Sets some slots to values that depend on `round`.
    fn writes(numbers: std::ops::Range<u64>, round: u64) -> Vec<KeyOp> {
        let value = |n| encode_slot(U256::from(round << 32 | n | 1 << 60)).expect("it is not zero");
        numbers.map(|n| KeyOp::Write(key(n), value(n))).collect()
    }

    fn open(folder: &Path, retention: u64) -> OpenQmdb {
        OpenQmdb::open(folder.into(), CACHE, retention).expect("it opens")
    }

    #[test]
    fn a_committed_root_and_its_values_are_there_after_reopening_without_a_flush() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut store = open(folder.path(), 0);
        let mut roots = vec![store.root];
        let mut read = ReadDigest::default();
        for round in 0..3 {
            read = store.commit(&writes(0..500, round)).expect("it commits");
            assert_eq!(read.present, if round == 0 { 0 } else { 500 });
            roots.push(store.root);
        }
        let deleted = [KeyOp::Delete(key(7)), KeyOp::Delete(key(1000))];
        assert_eq!(store.commit(&deleted).expect("it commits").present, 1);
        roots.push(store.root);
        drop(store);

        let mut store = open(folder.path(), 0);
        assert_eq!(roots.last(), Some(&store.root));
        let again = store.commit(&[KeyOp::Read(key(7))]).expect("it commits");
        assert_eq!(again.present, 0);
        let again = store.commit(&writes(0..500, 3)).expect("it commits");
        assert_eq!(again.present, 499);
        assert_ne!(again.digest, read.digest);
        let distinct: std::collections::BTreeSet<_> = roots.iter().collect();
        assert_eq!(distinct.len(), roots.len(), "a commit did not change the root");
    }

    #[test]
    fn values_are_proven_under_the_root() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut store = open(folder.path(), 0);
        store.commit(&writes(0..300, 1)).expect("it commits");
        let stop = AtomicBool::new(false);
        let proven = store.prove(&[key(0), key(299)], true, &stop).expect("it proves");
        assert_eq!(proven.map(|figures| figures.count()), Some(2));
        assert!(store.prove(&[key(300)], false, &stop).expect("there is no proof").is_none());
        store.root = Digest([1; 32]);
        let wrong = store.prove(&[key(0)], true, &stop);
        assert!(matches!(wrong, Err(BenchError::WrongProof { .. })));
    }

    #[test]
    fn the_log_is_pruned_by_files_and_keeps_what_a_revert_needs() {
        let mut plan = PrunePlan { retention: 2, boundaries: VecDeque::new(), first_file: 0 };
        let file = ITEMS_PER_FILE;
        let pruned: Vec<_> = [0, file, file + 5, 2 * file - 1, 3 * file, 3 * file]
            .map(|boundary| plan.note(boundary.into()).map(|location| *location))
            .into();
        assert_eq!(pruned, [None, None, None, Some(file), None, None]);
        assert_eq!(plan.note((4 * file).into()).map(|location| *location), Some(3 * file));
    }
}
