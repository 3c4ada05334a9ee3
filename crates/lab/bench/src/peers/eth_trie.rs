//! eth_trie 0.6.1 on redb: Ethereum's secure trie the textbook way.
//!
//! There is one trie of accounts, and one trie of slots per account. The crate stores nodes by
//! hash. It holds the nodes of one batch in memory; at the end of the batch it writes the new nodes
//! and removes the replaced ones. It caches no node between batches, so every path is read again
//! (from redb's page cache). Row keys are
//! `hash of the address (zero for accounts) || hash of the node`: with the owner in front, equal
//! nodes of two tries are two rows, and removing one keeps the other. A block is one transaction.
//! The root is Ethereum's, which the race checks. Hashing the keys is timed, as in our tries.

use super::{
    ethereum::{HashedAddress, account_leaf, read_account, read_value, slot_leaf},
    redb::{RedbFile, durability},
};
use crate::{
    BenchError,
    race::RaceTerms,
    state::{EntryStream, KeyOp, OpenStore, ReadDigest, StoreFactory},
};
use alloy_consensus::EMPTY_ROOT_HASH;
use alloy_primitives::{Address, B256, keccak256};
use eth_trie::{DB, EthTrie, Trie};
use redb::{Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};
use retrie_state::{Account, StateKey, StateValue};
use retrie_state_store::CounterSnapshot;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

const NAME: &str = super::names::ETH_TRIE;
const NODES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("nodes");
/// Key of the root's row. It is shorter than the keys of nodes.
const ROOT: &[u8] = b"root";
/// Owner in the keys of the account trie.
const ACCOUNTS: B256 = B256::ZERO;
/// Entries per commit while a state is loaded.
const LOAD_BATCH: usize = 50_000;
/// Size of redb's cache while a state is loaded.
const LOAD_CACHE: usize = 1 << 30;

/// Prepares and opens eth_trie on redb.
#[derive(Debug)]
pub(super) struct EthTrieFactory;

type EthTrieFailure = Box<dyn std::error::Error + Send + Sync>;

/// Adds the action that failed.
fn failed<E: Into<EthTrieFailure>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Peer { backend: NAME.into(), action, source: source.into() }
}

impl StoreFactory for EthTrieFactory {
    fn name(&self) -> &str {
        NAME
    }

    fn hash(&self) -> &str {
        "keccak256"
    }

    fn format(&self) -> String {
        format!("{NAME}-0.6.1-redb-4.6.0")
    }

    fn remark(&self) -> Option<String> {
        let words = "on redb, whose cache of pages has the size given as memory; nodes by hash, \
                     replaced ones removed, none cached; one sync a commit; no undo, so no retention";
        Some(words.into())
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        let file = RedbFile::create(folder, LOAD_CACHE).map_err(failed("creating"))?;
        let empty = [Ok::<_, BenchError>((ROOT.to_vec(), Some(EMPTY_ROOT_HASH.to_vec())))];
        file.write(NODES, empty.into_iter(), Durability::Immediate)?;
        let mut state = OpenEthTrie::open(file, Durability::Immediate)?;
        let mut batch = BTreeMap::new();
        loop {
            let entry = entries.next().transpose()?;
            let is_last = entry.is_none();
            batch.extend(entry.map(|(key, value)| (key, Some(value))));
            if is_last || batch.len() == LOAD_BATCH {
                state.write(std::mem::take(&mut batch))?;
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
        _: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        let file = RedbFile::open(folder, terms.cache_bytes).map_err(failed("opening"))?;
        Ok(Box::new(OpenEthTrie::open(file, durability(terms.sync))?))
    }
}

/// The rows of the last commit, and the changes of the current batch.
struct NodeRows {
    table: RwLock<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    batch: Mutex<HashMap<Vec<u8>, Option<Vec<u8>>>>,
}

/// The rows of one trie.
struct TrieRows {
    nodes: Arc<NodeRows>,
    owner: B256,
}

impl TrieRows {
    fn key(&self, hash: &[u8]) -> Vec<u8> {
        [self.owner.as_slice(), hash].concat()
    }

    fn put(&self, hash: &[u8], node: Option<Vec<u8>>) {
        let mut batch = self.nodes.batch.lock().unwrap_or_else(PoisonError::into_inner);
        batch.insert(self.key(hash), node);
    }
}

impl DB for TrieRows {
    type Error = io::Error;

    fn get(&self, hash: &[u8]) -> Result<Option<Vec<u8>>, io::Error> {
        let key = self.key(hash);
        let batch = self.nodes.batch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = batch.get(&key) {
            return Ok(node.clone());
        }
        drop(batch);
        let table = self.nodes.table.read().unwrap_or_else(PoisonError::into_inner);
        let node = table.get(&key[..]).map_err(io::Error::other)?;
        Ok(node.map(|node| node.value().to_vec()))
    }

    fn insert(&self, hash: &[u8], node: Vec<u8>) -> Result<(), io::Error> {
        self.put(hash, Some(node));
        Ok(())
    }

    fn remove(&self, hash: &[u8]) -> Result<(), io::Error> {
        self.put(hash, None);
        Ok(())
    }

    fn flush(&self) -> Result<(), io::Error> {
        Ok(())
    }
}

/// The open tries and their database.
struct OpenEthTrie {
    file: RedbFile,
    durability: Durability,
    nodes: Arc<NodeRows>,
    root: B256,
}

/// The tries that the current block has opened.
struct OpenTries {
    accounts: EthTrie<TrieRows>,
    /// Storage tries by the hash of the address.
    storages: HashMap<B256, EthTrie<TrieRows>>,
    hashed: HashedAddress,
}

impl OpenEthTrie {
    fn open(file: RedbFile, durability: Durability) -> Result<Self, BenchError> {
        let table = RwLock::new(last_commit(&file)?);
        let root = {
            let table = table.read().unwrap_or_else(PoisonError::into_inner);
            let root = table.get(ROOT).map_err(failed("reading its root"))?;
            let root = root.ok_or_else(|| failed("reading its root")("there is none"))?;
            B256::try_from(root.value()).map_err(failed("reading its root"))?
        };
        let nodes = Arc::new(NodeRows { table, batch: Mutex::default() });
        Ok(Self { file, durability, nodes, root })
    }

    fn trie(&self, owner: B256, root: B256) -> Result<EthTrie<TrieRows>, BenchError> {
        let rows = Arc::new(TrieRows { nodes: self.nodes.clone(), owner });
        if root == EMPTY_ROOT_HASH {
            return Ok(EthTrie::new(rows));
        }
        EthTrie::from(rows, root).map_err(failed("opening a trie"))
    }

    fn begin(&self) -> Result<OpenTries, BenchError> {
        let accounts = self.trie(ACCOUNTS, self.root)?;
        Ok(OpenTries { accounts, storages: HashMap::new(), hashed: HashedAddress::default() })
    }

    /// The storage trie of an address; `None` if there is no account.
    fn storage<'a>(
        &self,
        opened: &'a mut OpenTries,
        address: &Address,
    ) -> Result<Option<&'a mut EthTrie<TrieRows>>, BenchError> {
        let owner = opened.hashed.of(address);
        if !opened.storages.contains_key(&owner) {
            let Some((_, root)) = opened.account(owner)? else { return Ok(None) };
            opened.storages.insert(owner, self.trie(owner, root)?);
        }
        Ok(opened.storages.get_mut(&owner))
    }

    fn read(
        &self,
        opened: &mut OpenTries,
        key: &StateKey,
    ) -> Result<Option<StateValue>, BenchError> {
        let leaf = match key {
            StateKey::Account(address) => {
                let owner = opened.hashed.of(address);
                opened.accounts.get(owner.as_slice())
            }
            StateKey::Slot(address, slot) => match self.storage(opened, address)? {
                Some(trie) => trie.get(keccak256(slot).as_slice()),
                None => return Ok(None),
            },
        };
        let leaf = leaf.map_err(failed("reading"))?;
        leaf.map(|leaf| read_value(key, &leaf)).transpose().map_err(failed("decoding a leaf"))
    }

    fn write(&mut self, writes: BTreeMap<StateKey, Option<StateValue>>) -> Result<(), BenchError> {
        let opened = self.begin()?;
        self.write_to(opened, writes)
    }

    /// Applies writes to the tries, and commits.
    fn write_to(
        &mut self,
        mut opened: OpenTries,
        writes: BTreeMap<StateKey, Option<StateValue>>,
    ) -> Result<(), BenchError> {
        // Accounts come before slots.
        let mut changed = BTreeSet::new();
        for (key, value) in &writes {
            let owner = opened.hashed.of(key.address());
            match key {
                StateKey::Account(_) => {
                    let account = value.as_ref().map(|value| {
                        Account::decode(value).ok_or_else(|| failed("writing")("no account"))
                    });
                    let account = account.transpose()?;
                    if account.is_none() {
                        // Its slots are removed below, which needs its trie.
                        self.storage(&mut opened, key.address())?;
                    }
                    let root = opened.account(owner)?.map_or(EMPTY_ROOT_HASH, |(_, root)| root);
                    opened.set_account(owner, account.map(|account| (account, root)))?;
                }
                StateKey::Slot(address, slot) => {
                    let Some(trie) = self.storage(&mut opened, address)? else {
                        return Err(failed("writing")("a slot has no account"));
                    };
                    let slot = keccak256(slot);
                    match value {
                        Some(value) => trie.insert(slot.as_slice(), &slot_leaf(value)),
                        None => trie.remove(slot.as_slice()).map(drop),
                    }
                    .map_err(failed("writing"))?;
                    changed.insert(owner);
                }
            }
        }
        for owner in changed {
            let Some(trie) = opened.storages.get_mut(&owner) else { continue };
            let root = trie.root_hash().map_err(failed("hashing"))?;
            if let Some((account, _)) = opened.account(owner)? {
                opened.set_account(owner, Some((account, root)))?;
            }
        }
        self.root = opened.accounts.root_hash().map_err(failed("hashing"))?;
        let mut batch = self.nodes.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<_> = std::mem::take(&mut *batch).into_iter().collect();
        drop(batch);
        rows.push((ROOT.to_vec(), Some(self.root.to_vec())));
        rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.file.write(NODES, rows.into_iter().map(Ok::<_, BenchError>), self.durability)?;
        let mut table = self.nodes.table.write().unwrap_or_else(PoisonError::into_inner);
        *table = last_commit(&self.file)?;
        Ok(())
    }
}

impl OpenTries {
    fn account(&self, owner: B256) -> Result<Option<(Account, B256)>, BenchError> {
        let leaf = self.accounts.get(owner.as_slice()).map_err(failed("reading"))?;
        leaf.map(|leaf| read_account(&leaf)).transpose().map_err(failed("decoding a leaf"))
    }

    fn set_account(
        &mut self,
        owner: B256,
        account: Option<(Account, B256)>,
    ) -> Result<(), BenchError> {
        match account {
            Some((account, root)) => {
                self.accounts.insert(owner.as_slice(), &account_leaf(&account, root))
            }
            None => self.accounts.remove(owner.as_slice()).map(drop),
        }
        .map_err(failed("writing"))
    }
}

/// The table as of the latest commit.
fn last_commit(file: &RedbFile) -> Result<ReadOnlyTable<&'static [u8], &'static [u8]>, BenchError> {
    let txn = file.db.begin_read().map_err(failed("beginning to read"))?;
    txn.open_table(NODES).map_err(failed("opening its table"))
}

impl OpenStore for OpenEthTrie {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        let mut opened = self.begin()?;
        let mut reads = ReadDigest::default();
        let mut writes = BTreeMap::new();
        for op in block {
            let value = self.read(&mut opened, op.key())?;
            reads.note(value.as_ref().map(|value| &value[..]));
            if let Some(next) = op.next() {
                writes.insert(*op.key(), next.cloned());
            }
        }
        self.write_to(opened, writes)?;
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
        Some(self.root)
    }
}
