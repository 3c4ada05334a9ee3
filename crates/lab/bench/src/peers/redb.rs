//! redb 4.6.0: a copy-on-write B-tree in one file, as a key-value store without a root.
//!
//! Keys are [`StateKey::encode`]. A block is read in a read transaction and written in one write
//! transaction.
//!
//! Guarantees: `Durability::Immediate` syncs the file once per commit (checksums detect a torn
//! commit), which [`SyncMode::Durable`] requires. [`SyncMode::NoSync`] uses `Durability::None`,
//! which frees no space until the flush at the end. There is no undo, so no commit can be reverted.

use crate::{
    BenchError,
    race::RaceTerms,
    state::{EntryStream, KeyOp, OpenStore, ReadDigest, StoreFactory},
};
use alloy_primitives::B256;
use redb::{Builder, Database, Durability, ReadableDatabase, TableDefinition};
use retrie_db::SyncMode;
use retrie_state_store::CounterSnapshot;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const NAME: &str = super::names::REDB;
const FILE: &str = "redb";
const STATE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("state");
/// Size of its cache while a state is loaded.
const LOAD_CACHE: usize = 1 << 30;

/// Prepares and opens redb.
#[derive(Debug)]
pub(super) struct RedbFactory;

type RedbFailure = Box<dyn std::error::Error + Send + Sync>;

/// Adds the action that failed.
fn failed<E: Into<RedbFailure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl StoreFactory for RedbFactory {
    fn name(&self) -> &str {
        NAME
    }

    fn hash(&self) -> &str {
        "none"
    }

    fn format(&self) -> String {
        format!("{NAME}-4.6.0")
    }

    fn remark(&self) -> Option<String> {
        let words = "a cache of pages of the size given as memory, beside the system's; one sync a \
                     commit; no undo, so no retention; it has no root";
        Some(words.into())
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        let file = RedbFile::create(folder, LOAD_CACHE).map_err(failed("creating"))?;
        let rows = entries
            .map(|entry| entry.map(|(key, value)| (key.encode().to_vec(), Some(value.to_vec()))));
        file.write(STATE, rows, Durability::Immediate)
    }

    fn open(
        &self,
        folder: &Path,
        terms: &RaceTerms,
        _: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        let file = RedbFile::open(folder, terms.cache_bytes).map_err(failed("opening"))?;
        Ok(Box::new(OpenRedb { file, durability: durability(terms.sync) }))
    }
}

/// The durability of transactions under `sync`.
pub(super) const fn durability(sync: SyncMode) -> Durability {
    match sync {
        SyncMode::Durable => Durability::Immediate,
        SyncMode::NoSync => Durability::None,
    }
}

/// A database file.
pub(super) struct RedbFile {
    pub(super) db: Database,
    path: PathBuf,
}

impl RedbFile {
    /// Creates a database file in a folder.
    pub(super) fn create(folder: &Path, cache_bytes: usize) -> Result<Self, redb::DatabaseError> {
        let path = folder.join(FILE);
        let db = Builder::new().set_cache_size(cache_bytes).create(&path)?;
        Ok(Self { db, path })
    }

    /// Opens the database file in a folder.
    pub(super) fn open(folder: &Path, cache_bytes: usize) -> Result<Self, redb::DatabaseError> {
        let path = folder.join(FILE);
        let db = Builder::new().set_cache_size(cache_bytes).open(&path)?;
        Ok(Self { db, path })
    }

    /// Puts or removes rows of a table in one transaction.
    pub(super) fn write<E: Into<BenchError>>(
        &self,
        table: TableDefinition<'_, &[u8], &[u8]>,
        rows: impl Iterator<Item = Result<(Vec<u8>, Option<Vec<u8>>), E>>,
        durability: Durability,
    ) -> Result<(), BenchError> {
        let mut txn = self.db.begin_write().map_err(failed("beginning a transaction"))?;
        txn.set_durability(durability).map_err(failed("beginning a transaction"))?;
        {
            let mut table = txn.open_table(table).map_err(failed("opening a table"))?;
            for row in rows {
                let (key, value) = row.map_err(Into::into)?;
                match value {
                    Some(value) => {
                        drop(table.insert(&key[..], &value[..]).map_err(failed("writing"))?)
                    }
                    None => drop(table.remove(&key[..]).map_err(failed("writing"))?),
                }
            }
        }
        txn.commit().map_err(failed("committing"))
    }

    /// Syncs all earlier commits.
    pub(super) fn sync(&self) -> Result<(), BenchError> {
        let txn = self.db.begin_write().map_err(failed("beginning a transaction"))?;
        txn.commit().map_err(failed("committing"))
    }

    /// Bytes of allocated blocks. The file is sparse, and grows in large steps.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.path)?.blocks() * 512)
    }
}

struct OpenRedb {
    file: RedbFile,
    durability: Durability,
}

impl OpenStore for OpenRedb {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        let mut reads = ReadDigest::default();
        let mut rows = Vec::with_capacity(block.len());
        let txn = self.file.db.begin_read().map_err(failed("beginning to read"))?;
        let table = txn.open_table(STATE).map_err(failed("opening its table"))?;
        for op in block {
            let key = op.key().encode();
            let value = table.get(&*key).map_err(failed("reading"))?;
            reads.note(value.as_ref().map(|value| value.value()));
            if let Some(next) = op.next() {
                rows.push(Ok::<_, BenchError>((key.to_vec(), next.map(|value| value.to_vec()))));
            }
        }
        drop((table, txn));
        self.file.write(STATE, rows.into_iter(), self.durability)?;
        Ok(reads)
    }

    /// There is no background work.
    fn wait_idle(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        match self.durability {
            Durability::Immediate => Ok(()),
            _ => self.file.sync(),
        }
    }

    fn counts(&self) -> Option<CounterSnapshot> {
        None
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        self.file.disk_bytes().map_err(failed("measuring its file"))
    }

    fn ethereum_root(&self) -> Option<B256> {
        None
    }
}
