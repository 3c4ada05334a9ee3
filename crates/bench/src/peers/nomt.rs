//! NOMT 1.0.5 of Thrum, with its BLAKE3 hasher.
//!
//! Values lie in a B-tree, and a binary Merkle trie over the hashes of keys and values in a hash
//! table of pages on disk. A key is fed as the BLAKE3 hash of [`StateKey::encode`], as NOMT asks for
//! keys that are spread evenly; making it is timed. Reads go through the session that is then
//! finished with every write in key order, each as a read followed by a write, so that NOMT need
//! not read the old value again for its log of rollbacks. What is only read is not handed over: no
//! witness of it is asked for.
//!
//! Its files are opened with `O_DIRECT`, so the system's page cache, in which all others have their
//! files beside [`Terms::cache_bytes`], holds nothing of it. Its own caches are therefore larger by as
//! much as that would hold: by its whole database, or by its share of a cap on memory.
//!
//! What it guarantees: a commit returns when log and pages have been synced, whatever
//! [`Terms::sync`] says. It is open with two commit workers and three for I/O (its default). Pages
//! are warmed up while a block is read, which is off by default and did no harm where it was measured.

use crate::{
    BenchError,
    state::{Contender, Entrant, Entries, Op, Reads, Terms},
};
use alloy_primitives::B256;
use nomt::{
    KeyReadWrite, Options, SessionParams,
    hasher::{Blake3Hasher, ValueHasher},
    trie::KeyPath,
};
use retrie_state::{Counts, StateKey};
use rustix::fs::FallocateFlags;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const NAME: &str = super::NOMT;
/// Its folder in a prepared state. It must be empty when a database is made.
const FOLDER: &str = "nomt";
/// The hash table in it.
const HASH_TABLE: &str = "ht";
/// Entries a commit while loading.
const LOAD_BATCH: usize = 50_000;
/// Threads that compute a commit.
const COMMIT_WORKERS: usize = 2;
/// Buckets of its hash table, one page each, by default.
const FEWEST_BUCKETS: u64 = 64_000;
/// Keys a bucket: NOMT keeps a page for 20 keys at least, so the table stays half empty.
const KEYS_PER_BUCKET: u64 = 14;

/// NOMT, to be prepared and opened.
#[derive(Debug)]
pub(super) struct Nomt;

type Database = nomt::Nomt<Blake3Hasher>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Says what was attempted.
fn failed<E: Into<Failure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl Entrant for Nomt {
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

    fn load(&self, folder: &Path, entries: &mut Entries<'_>) -> Result<(), BenchError> {
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
        terms: &Terms,
        page_cache: u64,
    ) -> Result<Box<dyn Contender>, BenchError> {
        let folder = folder.join(FOLDER);
        reserve(&folder.join(HASH_TABLE)).map_err(failed("reserving its hash table"))?;
        let mut options = options(folder.clone());
        let each = cache_mib(terms.cache_bytes, allocated(&folder)?, page_cache);
        options.page_cache_size(each);
        options.leaf_cache_size(each);
        options.rollback(terms.retention > 0);
        options.max_rollback_log_len(u32::try_from(terms.retention).unwrap_or(u32::MAX));
        Ok(Box::new(Race { store: open(options)?, folder }))
    }
}

/// What is common to loading and racing.
fn options(folder: PathBuf) -> Options {
    let mut options = Options::new();
    options.path(folder);
    options.commit_concurrency(COMMIT_WORKERS);
    options.warm_up(true);
    options
}

fn open(options: Options) -> Result<Database, BenchError> {
    // Its threads would panic.
    if !matches!(nomt::check_iou_permissions(), nomt::IoUringPermission::Allowed) {
        return Err(failed("opening")("io_uring is not permitted here, or the kernel is too old"));
    }
    Database::open(options).map_err(failed("opening"))
}

/// Size of its page cache, and of its leaf cache, in MiB: half each of `given` bytes and of its files,
/// as far as the system's page cache would hold these for another store.
fn cache_mib(given: usize, files: u64, page_cache: u64) -> usize {
    let half = (given as u64).saturating_add(files.min(page_cache)).div_ceil(2 << 20);
    usize::try_from(half).unwrap_or(usize::MAX).max(1)
}

/// Bytes of its files: blocks of 512 bytes that are allocated, as its log of rollbacks is sparse.
fn allocated(folder: &Path) -> Result<u64, BenchError> {
    let files = fs::read_dir(folder).map_err(failed("measuring its files"))?;
    let bytes = files.map(|file| Ok(file?.metadata()?.blocks() * 512));
    bytes.sum::<std::io::Result<u64>>().map_err(failed("measuring its files"))
}

/// Gives the holes of a copied file their blocks again: NOMT has made it without any.
fn reserve(file: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(file)?;
    let len = file.metadata()?.len();
    Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len)?)
}

fn commit(
    store: &Database,
    session: nomt::Session<Blake3Hasher>,
    accesses: BTreeMap<KeyPath, KeyReadWrite>,
) -> Result<(), BenchError> {
    let finished = session.finish(accesses.into_iter().collect()).map_err(failed("updating"))?;
    finished.commit(store).map_err(failed("committing"))
}

fn path_of(key: &StateKey) -> KeyPath {
    Blake3Hasher::hash_value(&key.encode())
}

struct Race {
    store: Database,
    folder: PathBuf,
}

impl Contender for Race {
    fn commit(&mut self, block: &[Op]) -> Result<Reads, BenchError> {
        let session = self.store.begin_session(SessionParams::default());
        let mut reads = Reads::default();
        let mut accesses = BTreeMap::new();
        for op in block {
            let path = path_of(op.key());
            let next = op.next().map(|next| next.map(|value| value.to_vec()));
            // Only what is written changes pages of the trie.
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

    /// A commit leaves nothing to be done.
    fn settle(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn counts(&self) -> Option<Counts> {
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

    /// Once it had half of `--cache-mb` each and nothing for the page cache of the others.
    #[test]
    fn its_caches_are_as_large_as_those_of_others_with_their_page_cache() {
        let files = 466 << 20;
        assert_eq!(cache_mib(1024 * MIB, files, u64::MAX), (1024 + 466) / 2);
        assert_eq!(cache_mib(64 * MIB, files, 100 << 20), (64 + 100) / 2);
        assert_eq!(cache_mib(64 * MIB, files, 0), 32);
        assert_eq!(cache_mib(1, 0, 0), 1);
    }
}
