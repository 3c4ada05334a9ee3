//! Firewood 0.3.1 of Ava Labs, in its mode with Ethereum's hashes.
//!
//! It is a Merkle trie that is its own index: nodes lie in one file and are found by address. In
//! `ethhash` mode a key of 32 bytes is an account, a key of 64 bytes one of its slots, and Firewood
//! puts each storage root into its account's RLP before hashing. So it is fed what the state trie of
//! Ethereum holds, `keccak(address) -> rlp(account)` and
//! `keccak(address) || keccak(slot) -> rlp(value)`; its root is then Ethereum's, which the race
//! checks. Hashing the keys is timed, as it is in our tries.
//!
//! What it guarantees: a commit hands the new revision to a thread that writes it to the file, and
//! waits only until the one before has been written. It never syncs the file, frees nodes in place,
//! and has no journal: a power failure may leave it torn. To come near to our durability,
//! [`SyncMode::Durable`] adds an `fdatasync` of the file after each commit; the newest revision may
//! still be on its way then. That is less than our stores do, in Firewood's favour.

use super::ethereum::{HashedAddress, account_leaf, read_value, slot_leaf};
use crate::{
    BenchError,
    state::{Contender, Entrant, Entries, Op, Reads, Terms},
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
use retrie_state::{Account, Counts, StateKey, Value};
use std::{
    fs::{self, File},
    num::NonZero,
    path::{Path, PathBuf},
};

const NAME: &str = super::FIREWOOD;
/// The file in a database folder of Firewood.
const FILE: &str = "firewood.db";
/// Entries a commit while loading.
const LOAD_BATCH: usize = 50_000;
/// The fewest revisions that Firewood can be told to keep.
const FEWEST_REVISIONS: usize = 2;

/// Firewood, to be prepared and opened.
#[derive(Debug)]
pub(super) struct Firewood;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Says what was attempted.
fn failed<E: Into<Failure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl Entrant for Firewood {
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

    fn load(&self, folder: &Path, entries: &mut Entries<'_>) -> Result<(), BenchError> {
        let store = Store::open(folder, 1 << 30, FEWEST_REVISIONS)?;
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

    fn open(&self, folder: &Path, terms: &Terms, _: u64) -> Result<Box<dyn Contender>, BenchError> {
        let revisions = usize::try_from(terms.retention).unwrap_or(usize::MAX);
        let store = Store::open(folder, terms.cache_bytes, revisions.max(FEWEST_REVISIONS))?;
        let path = folder.join(FILE);
        let file = File::open(&path).map_err(failed("opening its file"))?;
        let file = (terms.sync == SyncMode::Durable).then_some(file);
        Ok(Box::new(Race { store: Some(store), file, path, hashed: HashedAddress::default() }))
    }
}

/// An open database. Firewood loses what it has not written when it is not closed.
struct Store(Db);

impl Store {
    fn open(folder: &Path, cache_bytes: usize, revisions: usize) -> Result<Self, BenchError> {
        let manager = RevisionManagerConfig::builder()
            .max_revisions(revisions)
            // Its default caches writes alone, and reads each cold node twice a commit.
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

struct Race {
    /// Taken when it is closed.
    store: Option<Store>,
    /// To be synced after each commit.
    file: Option<File>,
    path: PathBuf,
    hashed: HashedAddress,
}

impl Race {
    fn store(&self) -> Result<&Store, BenchError> {
        self.store.as_ref().ok_or_else(|| failed("using")("it is closed"))
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(failed("syncing its file"))
    }
}

impl Contender for Race {
    fn commit(&mut self, block: &[Op]) -> Result<Reads, BenchError> {
        let mut hashed = std::mem::take(&mut self.hashed);
        let store = self.store()?;
        // An empty trie has no revision to read.
        let view = match store.0.root_hash() {
            Some(root) => Some(store.0.revision(root).map_err(failed("opening a revision"))?),
            None => None,
        };
        let mut reads = Reads::default();
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
    fn settle(&mut self) -> Result<(), BenchError> {
        self.store()?.put(std::iter::empty())?;
        self.sync()
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.settle()
    }

    fn counts(&self) -> Option<Counts> {
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

impl Drop for Race {
    fn drop(&mut self) {
        // The folder goes with the race: nothing that this could say matters.
        let _ = self.store.take().map(Store::close);
    }
}

fn trie_key(hashed: &mut HashedAddress, key: &StateKey) -> Vec<u8> {
    let owner = hashed.of(key.address());
    match key {
        StateKey::Account(_) => owner.to_vec(),
        StateKey::Slot(_, slot) => [owner, keccak256(slot)].concat(),
    }
}

/// The leaf of Ethereum's trie. Firewood itself puts the root of an account's storage in its place.
fn trie_value(key: &StateKey, value: &Value) -> Vec<u8> {
    match (key, Account::decode(value)) {
        (StateKey::Account(_), Some(account)) => account_leaf(&account, EMPTY_ROOT_HASH),
        _ => slot_leaf(value),
    }
}
