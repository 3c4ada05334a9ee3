//! NOMT 1.0.5 of Thrum, with its BLAKE3 hasher.
//!
//! Values lie in a B-tree. A binary Merkle trie over the hashes of keys and values lies in an
//! on-disk hash table of pages. A key is passed as the BLAKE3 hash of [`StateKey::encode`], because
//! NOMT requires evenly distributed keys; hashing is timed. Reads go through the session. The
//! session is then finished with all writes in key order, each as a read followed by a write, so
//! that NOMT does not read the old value again for its rollback log. Keys that are only read are
//! not passed, because no witness is requested.
//!
//! NOMT opens its files with `O_DIRECT`, so the system's page cache holds none of its pages. The
//! files of the other stores are in that cache, beside [`RaceTerms::cache_bytes`]. To compensate,
//! NOMT's own caches are larger by the bytes that the page cache would hold: its whole database, or
//! its share of a memory cap.
//!
//! Guarantees: a commit returns when log and pages have been synced, for any value of
//! [`RaceTerms::tree_sync`]. It runs with two commit workers and three I/O workers (its default). Pages
//! are warmed up while a block is read; this is off by default, and made no measured workload
//! slower.

use crate::{
    BenchError,
    race::RaceTerms,
    state::{EntryStream, KeyOp, OpenStore, ReadDigest, StoreFactory},
};
use alloy_primitives::B256;
use nomt::{
    KeyReadWrite, Options, SessionParams,
    hasher::{Blake3Hasher, ValueHasher},
    trie::KeyPath,
};
use retrie_state::StateKey;
use retrie_state_store::CounterSnapshot;
use rustix::fs::FallocateFlags;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const NAME: &str = super::names::NOMT;
/// Its folder in a prepared state. It must be empty when a database is created.
const FOLDER: &str = "nomt";
/// File of the hash table in that folder.
const HASH_TABLE: &str = "ht";
/// Entries per commit while a state is loaded.
const LOAD_BATCH: usize = 50_000;
/// Threads that compute a commit.
const COMMIT_WORKERS: usize = 2;
/// Default number of buckets of its hash table, one page each.
const FEWEST_BUCKETS: u64 = 64_000;
/// Keys per bucket: NOMT uses a page for 20 keys or more, so the table stays half empty.
const KEYS_PER_BUCKET: u64 = 14;

/// Prepares and opens NOMT.
#[derive(Debug)]
pub(super) struct NomtFactory;

type NomtDatabase = nomt::Nomt<Blake3Hasher>;
type NomtFailure = Box<dyn std::error::Error + Send + Sync>;

/// Adds the action that failed.
fn failed<E: Into<NomtFailure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl StoreFactory for NomtFactory {
    fn name(&self) -> &str {
        NAME
    }

    fn hash(&self) -> &str {
        "blake3"
    }

    fn format(&self) -> String {
        format!("{NAME}-1.0.5")
    }

    fn remark(&self) -> Option<String> {
        let words = "it reads past the system's page cache, so its page cache and leaf cache together \
                     hold the memory given and its whole database, or under a memory limit its share \
                     of what that leaves; retention as its log of rollbacks; 2 commit workers, 3 for \
                     I/O, warm-up of pages; syncs at each commit, also where none is asked for; its \
                     roots are not Ethereum's";
        Some(words.into())
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        let folder = folder.join(FOLDER);
        fs::create_dir(&folder).map_err(failed("making its folder"))?;
        let buckets = FEWEST_BUCKETS.max(entries.remaining() / KEYS_PER_BUCKET);
        let mut options = options(folder);
        options.hashtable_buckets(u32::try_from(buckets).map_err(failed("sizing its hash table"))?);
        let store = open(options)?;
        let mut batch = BTreeMap::new();
        loop {
            let entry = entries.next().transpose()?;
            let is_last = entry.is_none();
            if let Some((key, value)) = entry {
                batch.insert(path_of(&key), KeyReadWrite::Write(Some(value.to_vec())));
            }
            if is_last || batch.len() == LOAD_BATCH {
                let session = store.begin_session(SessionParams::default());
                commit(&store, session, std::mem::take(&mut batch))?;
            }
            if is_last {
                return Ok(());
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
        reserve(&folder.join(HASH_TABLE)).map_err(failed("reserving its hash table"))?;
        let mut options = options(folder.clone());
        let each = cache_mib(terms.cache_bytes, allocated(&folder)?, page_cache);
        options.page_cache_size(each);
        options.leaf_cache_size(each);
        options.rollback(terms.retention > 0);
        options.max_rollback_log_len(u32::try_from(terms.retention).unwrap_or(u32::MAX));
        Ok(Box::new(OpenNomt { store: open(options)?, folder }))
    }
}

/// Options for loading and racing.
fn options(folder: PathBuf) -> Options {
    let mut options = Options::new();
    options.path(folder);
    options.commit_concurrency(COMMIT_WORKERS);
    options.warm_up(true);
    options
}

fn open(options: Options) -> Result<NomtDatabase, BenchError> {
    // Otherwise its threads would panic.
    if !matches!(nomt::check_iou_permissions(), nomt::IoUringPermission::Allowed) {
        return Err(failed("opening")("io_uring is not permitted here, or the kernel is too old"));
    }
    NomtDatabase::open(options).map_err(failed("opening"))
}

/// Size of its page cache, and of its leaf cache, in MiB: half each.
fn cache_mib(given: usize, files: u64, page_cache: u64) -> usize {
    let half = super::cache::own_cache(given, files, page_cache).div_ceil(2 << 20);
    usize::try_from(half).unwrap_or(usize::MAX).max(1)
}

/// Allocated bytes of its files. Its rollback log is sparse, so lengths are not used.
fn allocated(folder: &Path) -> Result<u64, BenchError> {
    let files = fs::read_dir(folder).map_err(failed("measuring its files"))?;
    let bytes = files.map(|file| Ok(file?.metadata()?.blocks() * 512));
    bytes.sum::<std::io::Result<u64>>().map_err(failed("measuring its files"))
}

/// Allocates the holes of a copied file: NOMT has created the file without holes.
fn reserve(file: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(file)?;
    let len = file.metadata()?.len();
    Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len)?)
}

fn commit(
    store: &NomtDatabase,
    session: nomt::Session<Blake3Hasher>,
    accesses: BTreeMap<KeyPath, KeyReadWrite>,
) -> Result<(), BenchError> {
    let finished = session.finish(accesses.into_iter().collect()).map_err(failed("updating"))?;
    finished.commit(store).map_err(failed("committing"))
}

fn path_of(key: &StateKey) -> KeyPath {
    Blake3Hasher::hash_value(&key.encode())
}

struct OpenNomt {
    store: NomtDatabase,
    folder: PathBuf,
}

impl OpenStore for OpenNomt {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        let session = self.store.begin_session(SessionParams::default());
        let mut reads = ReadDigest::default();
        let mut accesses = BTreeMap::new();
        for op in block {
            let path = path_of(op.key());
            let next = op.next().map(|next| next.map(|value| value.to_vec()));
            // Only writes change pages of the trie.
            if next.is_some() {
                session.warm_up(path);
            }
            let value = session.read(path).map_err(failed("reading"))?;
            reads.note(value.as_deref());
            if let Some(next) = next {
                accesses.insert(path, KeyReadWrite::ReadThenWrite(value, next));
            }
        }
        commit(&self.store, session, accesses)?;
        Ok(reads)
    }

    /// There is no background work.
    fn wait_idle(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn counts(&self) -> Option<CounterSnapshot> {
        None
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        allocated(&self.folder)
    }

    fn ethereum_root(&self) -> Option<B256> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Once each cache had half of `--cache-mb`, without compensation for the page cache.
    #[test]
    fn its_caches_are_as_large_as_those_of_others_with_their_page_cache() {
        let files = 466 << 20;
        assert_eq!(cache_mib(1024 * MIB, files, u64::MAX), (1024 + 466) / 2);
        assert_eq!(cache_mib(64 * MIB, files, 100 << 20), (64 + 100) / 2);
        assert_eq!(cache_mib(64 * MIB, files, 0), 32);
        assert_eq!(cache_mib(1, 0, 0), 1);
    }
}
