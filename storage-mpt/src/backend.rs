//! The backend: the trie over the framework's key-value view.

use crate::{
    TrieHash,
    bulk::{self, Layout, Unkept},
    leaf,
    merge::merge_nodes,
    node::{Branch, Link},
    proof, row,
    touched::{Touched, by_account, decode_account, refuse_orphan, slot_items},
    trie::{Item, NodeSource, Recorder, Trie},
    verify,
    witness::WitnessNodes,
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use rayon::prelude::*;
use retrie_state::{
    AccountNodes, AccountProofs, Applied, ApplyContext, Backend, BackendStats, BulkSink, Cache,
    Capabilities, Direction, HashId, Identity, Jobs, KeyRange, NodeRead, NodeWrite, PartialState,
    PartialTree, ProofError, StateDelta, StateError, StateKey, Table, Value, compare_rows, flat,
    prefix_end,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Rows of the account trie.
pub const ACCOUNT_NODES: Table = Table::new(0x10, "MptAccountNodes");
/// Rows of the storage tries.
pub const STORAGE_NODES: Table = Table::new(0x11, "MptStorageNodes");

/// Most branches of storage tries that are kept in memory between blocks (about 1 KiB each). Those
/// of the account trie come on top: at most 69,905, as only split branches are kept.
pub const MAX_CACHED_BRANCHES: usize = 1 << 17;

/// Ethereum's Merkle Patricia trie, keyed by path, latest state only.
#[derive(Debug)]
pub struct Mpt {
    identity: Identity,
}

impl Default for Mpt {
    fn default() -> Self {
        Self::new()
    }
}

impl Mpt {
    /// The backend. It has no parameters.
    pub const fn new() -> Self {
        let params = B256::ZERO;
        Self { identity: Identity { name: "mpt", version: 1, hash: HashId::Keccak256, params } }
    }

    /// The EIP-1186 proof of the account at `address` and of some of its slots, as
    /// `eth_getProof` returns it.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if rows of the trie contradict each other.
    pub fn account_proof(
        &self,
        view: &dyn NodeRead,
        cache: &Cache,
        address: &Address,
        slots: &[B256],
    ) -> Result<verify::AccountProof, StateError> {
        proof::account_proof(&Tries::of(view, cache)?, address, slots)
    }
}

/// The tries of one block in memory: their upper branches.
#[derive(Debug, Default)]
pub(crate) struct MptCache {
    pub(crate) accounts: Trie,
    storages: Arc<HashMap<Address, CachedTrie>>,
}

#[derive(Clone, Debug)]
struct CachedTrie {
    trie: Trie,
    /// Last block that changed it.
    block: u64,
}

impl MptCache {
    fn open(view: &dyn NodeRead) -> Result<Self, StateError> {
        Ok(Self { accounts: stored_trie(view, None)?, storages: Arc::default() })
    }

    fn of(view: &dyn NodeRead, cache: &Cache) -> Result<Arc<Self>, StateError> {
        // A cache is but a faster way to the rows, so that of somebody else does no harm.
        cache.clone().downcast().map_or_else(|_| Self::open(view).map(Arc::new), Ok)
    }

    fn storage(&self, view: &dyn NodeRead, address: &Address) -> Result<Trie, StateError> {
        match self.storages.get(address) {
            Some(cached) => Ok(cached.trie.clone()),
            None => stored_trie(view, Some(*address)),
        }
    }

    /// The child's cache: the parent's with the tries that block `block` changed.
    fn child(&self, block: u64, accounts: Trie, changed: Vec<(Address, Trie)>) -> Self {
        // A trie without branches in memory is opened as fast by its root row.
        let gone = |trie: &Trie| trie.cached() == 0;
        if changed.iter().all(|(address, trie)| gone(trie) && !self.storages.contains_key(address))
        {
            return Self { accounts, storages: self.storages.clone() };
        }
        let mut storages = HashMap::clone(&self.storages);
        for (address, trie) in changed {
            if gone(&trie) {
                storages.remove(&address);
            } else {
                storages.insert(address, CachedTrie { trie, block });
            }
        }
        let mut cached: usize = storages.values().map(|cached| cached.trie.cached()).sum();
        if cached > MAX_CACHED_BRANCHES {
            let mut by_age: Vec<_> = storages
                .iter()
                .map(|(address, cached)| (cached.block, *address, cached.trie.cached()))
                .collect();
            by_age.sort_unstable();
            for (_, address, branches) in by_age {
                if cached <= MAX_CACHED_BRANCHES {
                    break;
                }
                storages.remove(&address);
                cached -= branches;
            }
        }
        Self { accounts, storages: Arc::new(storages) }
    }
}

/// The tries of one block, for reading.
pub(crate) struct Tries<'a> {
    view: &'a dyn NodeRead,
    cache: Arc<MptCache>,
}

impl<'a> Tries<'a> {
    pub(crate) fn of(view: &'a dyn NodeRead, cache: &Cache) -> Result<Self, StateError> {
        Ok(Self { view, cache: MptCache::of(view, cache)? })
    }
}

impl<'a> proof::Tries for Tries<'a> {
    type Source = Rows<'a>;

    fn hash(&self) -> TrieHash {
        TrieHash::Keccak256
    }

    fn accounts(&self) -> (Trie, Rows<'a>) {
        (self.cache.accounts.clone(), Rows { view: self.view, trie: None })
    }

    fn storage(&self, address: &Address, _: B256) -> Result<(Trie, Rows<'a>), StateError> {
        let rows = Rows { view: self.view, trie: Some(*address) };
        Ok((self.cache.storage(self.view, address)?, rows))
    }
}

/// Table and key prefix of a trie: that of `address`'s storage, or the account trie.
fn place(trie: &Option<Address>) -> (Table, &[u8]) {
    match trie {
        None => (ACCOUNT_NODES, &[]),
        Some(address) => (STORAGE_NODES, address.as_slice()),
    }
}

fn corrupt(trie: &Option<Address>, what: impl core::fmt::Display) -> StateError {
    let of = trie.map_or_else(String::new, |address| format!(" of {address}"));
    StateError::corrupt(place(trie).0.name, format!("{what}{of}"))
}

fn stored_trie(view: &dyn NodeRead, trie: Option<Address>) -> Result<Trie, StateError> {
    let (table, prefix) = place(&trie);
    let Some(row) = view.get(table, &row::root_key(prefix))? else { return Ok(Trie::default()) };
    let root = row::decode_root(&row).ok_or_else(|| corrupt(&trie, "malformed row of the root"))?;
    Ok(Trie::from_link(Some(root)))
}

/// The rows of one trie as a source of branches.
pub(crate) struct Rows<'a> {
    view: &'a dyn NodeRead,
    trie: Option<Address>,
}

impl Rows<'_> {
    fn row(&self, path: &Nibbles) -> Result<Bytes, StateError> {
        let (table, prefix) = place(&self.trie);
        self.view
            .get(table, &row::branch_key(prefix, path))?
            .ok_or_else(|| corrupt(&self.trie, format_args!("no row for the branch at {path:?}")))
    }

    fn malformed(&self, path: &Nibbles) -> StateError {
        corrupt(&self.trie, format_args!("malformed row of the branch at {path:?}"))
    }
}

impl NodeSource for Rows<'_> {
    fn load(&self, path: &Nibbles, reference: &RlpNode) -> Result<Arc<Branch>, StateError> {
        let head = |path: &Nibbles| row::head(&self.row(path)?).ok_or_else(|| self.malformed(path));
        let branch =
            row::decode(path, &self.row(path)?, head)?.ok_or_else(|| self.malformed(path))?;
        if branch.reference != *reference {
            let what = format_args!("the branch at {path:?} is not the one its parent names");
            return Err(corrupt(&self.trie, what));
        }
        Ok(Arc::new(branch))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<Link, StateError> {
        Err(corrupt(&self.trie, format_args!("unresolved node at {path:?}")))
    }

    fn keep(&self, path: &Nibbles, branch: &Branch) -> bool {
        // Split branches are the dear ones to load: each reads the rows of all its children.
        row::is_split(path, branch)
    }
}

/// A changed row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowChange {
    pub(crate) key: Vec<u8>,
    pub(crate) previous: Option<Bytes>,
    pub(crate) next: Option<Bytes>,
}

/// Records the rows that an update changes.
pub(crate) struct RowRecorder {
    trie: Option<Address>,
    pub(crate) rows: Vec<RowChange>,
}

impl RowRecorder {
    pub(crate) const fn new(trie: Option<Address>) -> Self {
        Self { trie, rows: Vec::new() }
    }

    /// Adds the row of the root.
    pub(crate) fn root(&mut self, previous: &Trie, next: &Trie) {
        let (previous, next) = (row::encode_root(previous.root()), row::encode_root(next.root()));
        if previous != next {
            let key = row::root_key(place(&self.trie).1);
            self.rows.push(RowChange { key, previous, next });
        }
    }
}

impl Recorder for RowRecorder {
    fn fork(&self) -> Self {
        Self::new(self.trie)
    }

    fn absorb(&mut self, part: Self) {
        if self.rows.is_empty() {
            self.rows = part.rows;
        } else {
            self.rows.extend(part.rows);
        }
    }

    fn record(&mut self, path: &Nibbles, previous: Option<&Branch>, next: Option<&Branch>) {
        let encode = |branch: &Branch| row::encode(path, branch);
        let key = row::branch_key(place(&self.trie).1, path);
        self.rows.push(RowChange { key, previous: previous.map(encode), next: next.map(encode) });
    }
}

/// What a block makes of one account.
struct Done {
    address: Address,
    item: Item,
    /// The storage trie, if it changed.
    storage: Option<Trie>,
    rows: Vec<RowChange>,
}

/// Updates the storage trie of one account. `view` has the flat state after the block.
fn storage(
    view: &dyn NodeRead,
    parent: &MptCache,
    touched: &Touched<'_>,
) -> Result<Done, StateError> {
    let Touched { address, account, slots, .. } = touched;
    let value = match account {
        Some(change) => change.next.clone(),
        None => flat::get(view, &StateKey::Account(*address))?,
    };
    let account = value.map(|value| decode_account(address, &value)).transpose()?;
    if account.is_none() {
        refuse_orphan(slots)?;
    }
    // A wiped account that lives on needs no special care: the delta lists all its slots, and the
    // trie is always that of the flat state. The marker is for partial states.
    let reset = account.is_none();
    let before = if reset { Trie::default() } else { parent.storage(view, address)? };
    let mut recorder = RowRecorder::new(Some(*address));
    let after = if slots.is_empty() {
        before.clone()
    } else {
        let source = Rows { view, trie: Some(*address) };
        before.update(&source, &slot_items(TrieHash::Keccak256, slots)?, &mut recorder)?
    };
    recorder.root(&before, &after);
    let mut rows = recorder.rows;
    if reset {
        replace_all(view, address, &mut rows)?;
    }
    let leaf = account.map(|account| leaf::encode_account(&account, after.hash()));
    Ok(Done {
        address: *address,
        item: Item { key: keccak256(address), value: leaf },
        storage: (reset || !slots.is_empty()).then_some(after),
        rows,
    })
}

/// Makes of the rows of a new trie the changes that put it in the place of `address`'s old one.
fn replace_all(
    view: &dyn NodeRead,
    address: &Address,
    rows: &mut Vec<RowChange>,
) -> Result<(), StateError> {
    let (start, end) = (address.as_slice(), prefix_end(address.as_slice()));
    let range = KeyRange { start, end: end.as_deref() };
    let mut old = view
        .scan(STORAGE_NODES, range, Direction::Forward)?
        .collect::<Result<BTreeMap<Bytes, Bytes>, _>>()?;
    for row in rows.iter_mut() {
        row.previous = old.remove(&row.key[..]);
    }
    rows.extend(old.into_iter().map(|(key, previous)| RowChange {
        key: key.to_vec(),
        previous: Some(previous),
        next: None,
    }));
    Ok(())
}

fn write(view: &mut dyn NodeWrite, table: Table, rows: Vec<RowChange>) -> Result<(), StateError> {
    rows.into_iter().try_for_each(|row| view.replace(table, &row.key, row.previous, row.next))
}

/// How a bulk load writes.
struct Rowwise;

impl Layout for Rowwise {
    fn hash(&self) -> TrieHash {
        TrieHash::Keccak256
    }

    fn entry(
        &mut self,
        sink: &mut dyn BulkSink,
        key: &StateKey,
        value: &Value,
    ) -> Result<(), StateError> {
        flat::put(sink, key, value)
    }

    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<Address>,
        items: Vec<Item>,
    ) -> Result<B256, StateError> {
        let (empty, mut recorder) = (Trie::default(), RowRecorder::new(trie));
        let built = empty.update(&Unkept, &items, &mut recorder)?;
        drop(items);
        recorder.root(&empty, &built);
        let mut rows = recorder.rows;
        rows.par_sort_unstable_by(|a, b| a.key.cmp(&b.key));
        for row in rows {
            if let Some(value) = row.next {
                sink.put(place(&trie).0, &row.key, &value)?;
            }
        }
        Ok(built.hash())
    }
}

impl Backend for Mpt {
    fn cache_bytes(&self) -> u64 {
        // About 1 KiB a branch.
        (MAX_CACHED_BRANCHES as u64) << 10
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: true,
            absence_proofs: true,
            state_determined_root: true,
            ethereum_root: true,
            history: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![flat::TABLE, ACCOUNT_NODES, STORAGE_NODES]
    }

    fn empty_root(&self) -> B256 {
        EMPTY_ROOT_HASH
    }

    fn open(&self, view: &dyn NodeRead, _: &Jobs) -> Result<Cache, StateError> {
        Ok(Arc::new(MptCache::open(view)?))
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &Cache,
        delta: &StateDelta,
    ) -> Result<Applied, StateError> {
        let parent = MptCache::of(view.as_read(), cache)?;
        flat::apply(view, delta)?;
        let read = view.as_read();
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| storage(read, &parent, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let mut items: Vec<Item> = done.iter().map(|done| done.item.clone()).collect();
        items.sort_unstable_by_key(|item| item.key);
        let mut recorder = RowRecorder::new(None);
        let accounts =
            parent.accounts.update(&Rows { view: read, trie: None }, &items, &mut recorder)?;
        recorder.root(&parent.accounts, &accounts);

        write(view, ACCOUNT_NODES, recorder.rows)?;
        let mut changed = Vec::new();
        for Done { address, storage, rows, .. } in done {
            write(view, STORAGE_NODES, rows)?;
            changed.extend(storage.map(|trie| (address, trie)));
        }
        let root = accounts.hash();
        let cache = Arc::new(parent.child(context.number, accounts, changed));
        Ok(Applied { root, cache })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        flat::get(view, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        address: &Address,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        flat::slots_of(view, address)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        flat::entries(view, start, limit)
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        bulk::load(&mut Rowwise, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &Cache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        proof::prove(&Tries::of(view, cache)?, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify::verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &Cache) -> Result<BackendStats, StateError> {
        let count = |table: Table| {
            let rows = view.scan(table, KeyRange::ALL, Direction::Forward)?;
            rows.map(|row| row.map(|_| 1u64)).sum::<Result<u64, _>>()
        };
        let tables = self
            .tables()
            .into_iter()
            .map(|table| Ok((table.name, count(table)?)))
            .collect::<Result<Vec<_>, StateError>>()?;
        let live_keys = tables.first().map_or(0, |(_, rows)| *rows);
        Ok(BackendStats { tables, live_keys, dead_keys: 0 })
    }

    /// Rows are a function of the values, so that those of the rebuilt state are what they must be.
    fn check(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        _: B256,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        let Some(rebuilt) = rebuilt else { return Ok(()) };
        compare_rows(ACCOUNT_NODES, view, rebuilt, report)?;
        compare_rows(STORAGE_NODES, view, rebuilt, report)
    }

    fn account_proofs(&self) -> Option<&dyn AccountProofs> {
        Some(self)
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        Some(self)
    }
}

impl AccountProofs for Mpt {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &Cache,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.account_proof(view, cache, address, slots).map(AccountNodes::from)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &Cache,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError> {
        merge_nodes(&Tries::of(view, cache)?, removed)
    }
}

impl PartialState for Mpt {
    fn open_witness(
        &self,
        root: B256,
        nodes: &[Bytes],
    ) -> Result<Arc<dyn PartialTree>, StateError> {
        Ok(Arc::new(crate::witness::PartialMpt::open(root, WitnessNodes::new(nodes))))
    }
}
