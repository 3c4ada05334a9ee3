//! Firewood 0.3.1 of Ava Labs, in its mode with Ethereum's hashes.
//!
//! It is a Merkle trie that is its own index: nodes lie in one file and are addressed by offset. In
//! `ethhash` mode a key of 32 bytes is an account, a key of 64 bytes one of its slots, and Firewood
//! puts each storage root into its account's RLP before hashing. So it gets the content of
//! Ethereum's state trie, `keccak(address) -> rlp(account)` and
//! `keccak(address) || keccak(slot) -> rlp(value)`. Its root is then Ethereum's, which the race
//! checks. Hashing the keys is timed, as in our tries.
//!
//! Guarantees: a commit hands the new revision to a thread that writes it to the file, and waits
//! only until the previous revision has been written. Firewood never syncs the file, frees nodes in
//! place, and has no journal: a power failure may leave a torn file. To come close to our
//! durability, [`SyncMode::Durable`] adds an `fdatasync` of the file after each commit; the latest
//! revision may not be written yet at that time. That is less work than our stores do, in
//! Firewood's favour.

use super::ethereum::{HashedAddress, account_leaf, read_value, slot_leaf};
use crate::{
    BenchError,
    race::RaceTerms,
    state::{EntryStream, KeyOp, OpenStore, ReadDigest, StoreFactory},
};
use alloy_consensus::EMPTY_ROOT_HASH;
use alloy_primitives::{B256, keccak256};
use firewood::{
    api::{Db as _, DbView, Proposal as _},
    db::{BatchOp, Db, DbConfig},
    manager::{CacheReadStrategy, RevisionManagerConfig},
};
use firewood_storage::NodeHashAlgorithm;
use retrie_db::SyncMode;
use retrie_state::{Account, StateKey, StateValue};
use retrie_state_store::CounterSnapshot;
use std::{
    fs::{self, File},
    num::NonZero,
    path::{Path, PathBuf},
};

const NAME: &str = super::names::FIREWOOD;
/// The file in a database folder of Firewood.
const FILE: &str = "firewood.db";
/// Entries per commit while a state is loaded.
const LOAD_BATCH: usize = 50_000;
/// Smallest number of revisions that Firewood can keep.
const FEWEST_REVISIONS: usize = 2;

/// Prepares and opens Firewood.
#[derive(Debug)]
pub(super) struct FirewoodFactory;

type FirewoodFailure = Box<dyn std::error::Error + Send + Sync>;

/// Adds the action that failed.
fn failed<E: Into<FirewoodFailure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl StoreFactory for FirewoodFactory {
    fn name(&self) -> &str {
        NAME
    }

    fn hash(&self) -> &str {
        "keccak256"
    }

    fn format(&self) -> String {
        format!("{NAME}-0.3.1")
    }

    fn remark(&self) -> Option<String> {
        let words = "node cache of the size given as memory; retention as revisions (2 at least); it \
                     never syncs and has no journal, so a power failure may tear its file; `durable` \
                     adds an fdatasync after each commit, while the newest revision is still being \
                     written: weaker than what all others here do; under its own licence, see \
                     https://github.com/ava-labs/firewood";
        Some(words.into())
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        let store = FirewoodStore::open(folder, 1 << 30, FEWEST_REVISIONS)?;
        let mut hashed = HashedAddress::default();
        let mut batch = Vec::with_capacity(LOAD_BATCH);
        loop {
            let entry = entries.next().transpose()?;
            let is_last = entry.is_none();
            if let Some((key, value)) = entry {
                batch.push((trie_key(&mut hashed, &key), Some(trie_value(&key, &value))));
            }
            if is_last || batch.len() == LOAD_BATCH {
                store.put(batch.drain(..))?;
            }
            if is_last {
                return store.close();
            }
        }
    }

    fn open(
        &self,
        folder: &Path,
        terms: &RaceTerms,
        _: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        let revisions = usize::try_from(terms.retention).unwrap_or(usize::MAX);
        let store =
            FirewoodStore::open(folder, terms.cache_bytes, revisions.max(FEWEST_REVISIONS))?;
        let path = folder.join(FILE);
        let file = File::open(&path).map_err(failed("opening its file"))?;
        let file = (terms.sync == SyncMode::Durable).then_some(file);
        Ok(Box::new(OpenFirewood {
            store: Some(store),
            file,
            path,
            hashed: HashedAddress::default(),
        }))
    }
}

/// An open database. It must be closed, or Firewood loses unwritten revisions.
struct FirewoodStore(Db);

impl FirewoodStore {
    fn open(folder: &Path, cache_bytes: usize, revisions: usize) -> Result<Self, BenchError> {
        let manager = RevisionManagerConfig::builder()
            .max_revisions(revisions)
            // The default caches written nodes only, and reads each cold node twice per commit.
            .cache_read_strategy(CacheReadStrategy::All)
            .node_cache_memory_limit(NonZero::new(cache_bytes).unwrap_or(NonZero::<usize>::MIN))
            .build();
        let config = DbConfig::builder()
            .node_hash_algorithm(NodeHashAlgorithm::Ethereum)
            .manager(manager)
            .build();
        Db::new(folder, config).map(Self).map_err(failed("opening"))
    }

    /// Puts or removes entries in one revision.
    fn put(
        &self,
        entries: impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)>,
    ) -> Result<(), BenchError> {
        let operations = entries.map(|(key, value)| match value {
            Some(value) => BatchOp::Put { key, value },
            None => BatchOp::Delete { key },
        });
        let proposal = self.0.propose(operations).map_err(failed("proposing"))?;
        proposal.commit().map_err(failed("committing"))
    }

    fn close(self) -> Result<(), BenchError> {
        self.0.close().map_err(failed("closing"))
    }
}

struct OpenFirewood {
    /// `None` after it was closed.
    store: Option<FirewoodStore>,
    /// The file to sync after each commit, under [`SyncMode::Durable`].
    file: Option<File>,
    path: PathBuf,
    hashed: HashedAddress,
}

impl OpenFirewood {
    fn store(&self) -> Result<&FirewoodStore, BenchError> {
        self.store.as_ref().ok_or_else(|| failed("using")("it is closed"))
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(failed("syncing its file"))
    }
}

impl OpenStore for OpenFirewood {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        let mut hashed = std::mem::take(&mut self.hashed);
        let store = self.store()?;
        // An empty trie has no revision to read.
        let view = match store.0.root_hash() {
            Some(root) => Some(store.0.revision(root).map_err(failed("opening a revision"))?),
            None => None,
        };
        let mut reads = ReadDigest::default();
        let mut writes = Vec::with_capacity(block.len());
        for op in block {
            let key = trie_key(&mut hashed, op.key());
            let leaf = match &view {
                Some(view) => view.val(&key).map_err(failed("reading"))?,
                None => None,
            };
            let value = leaf.map(|leaf| read_value(op.key(), &leaf)).transpose();
            let value = value.map_err(failed("decoding a leaf"))?;
            reads.note(value.as_ref().map(|value| &value[..]));
            if let Some(next) = op.next() {
                writes.push((key, next.map(|value| trie_value(op.key(), value))));
            }
        }
        drop(view);
        store.put(writes.into_iter())?;
        self.sync()?;
        self.hashed = hashed;
        Ok(reads)
    }

    /// An empty commit waits until the one before it has been written.
    fn wait_idle(&mut self) -> Result<(), BenchError> {
        self.store()?.put(std::iter::empty())?;
        self.sync()
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.wait_idle()
    }

    fn counts(&self) -> Option<CounterSnapshot> {
        None
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        let metadata = fs::metadata(&self.path).map_err(failed("measuring its file"))?;
        Ok(metadata.len())
    }

    fn ethereum_root(&self) -> Option<B256> {
        self.store.as_ref()?.0.root_hash().map(|root| B256::from_slice(root.as_ref()))
    }
}

impl Drop for OpenFirewood {
    fn drop(&mut self) {
        // The folder is temporary, so an error of closing does not matter.
        let _ = self.store.take().map(FirewoodStore::close);
    }
}

fn trie_key(hashed: &mut HashedAddress, key: &StateKey) -> Vec<u8> {
    let owner = hashed.of(key.address());
    match key {
        StateKey::Account(_) => owner.to_vec(),
        StateKey::Slot(_, slot) => [owner, keccak256(slot)].concat(),
    }
}

/// The leaf of Ethereum's trie. Firewood replaces the storage root of an account.
fn trie_value(key: &StateKey, value: &StateValue) -> Vec<u8> {
    match (key, Account::decode(value)) {
        (StateKey::Account(_), Some(account)) => account_leaf(&account, EMPTY_ROOT_HASH),
        _ => slot_leaf(value),
    }
}
