//! The backend: the trie over the framework's key-value view.

use crate::{
    TrieHash,
    ethereum::{
        self, Layout, Told, Touched, Upper, by_account, chunks, decode_account, merge_nodes,
        refuse_orphan, slot_items,
    },
    leaf,
    trie::{self, Item, Place, RowChange, RowRecorder, Rows, Trie, Unkept},
    verify,
    witness::WitnessNodes,
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use rayon::prelude::*;
use retrie_state::{
    AccountNodes, AccountProofs, Applied, ApplyContext, Backend, BackendStats, BulkSink,
    Capabilities, Change, ChunkId, ChunkServer, Chunks, Direction, HashId, Identity, KeyRange,
    NodeRead, NodeWrite, Opened, PartialState, PartialTree, ProofError, StateDelta, StateError,
    StateKey, Table, Value, compare_rows, flat, prefix_end,
};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Rows of the account trie.
pub const ACCOUNT_NODES: Table = Table::new(0x10, "MptAccountNodes");
/// Rows of the storage tries.
pub const STORAGE_NODES: Table = Table::new(0x11, "MptStorageNodes");

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
        Self { identity: Identity::plain("mpt", 1, HashId::Keccak256) }
    }

    /// The EIP-1186 proof of the account at `address` and of some of its slots, as
    /// `eth_getProof` returns it.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if rows of the trie contradict each other.
    pub fn account_proof(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        address: &Address,
        slots: &[B256],
    ) -> Result<verify::AccountProof, StateError> {
        ethereum::account_proof(&Tries { view, cache }, address, slots)
    }
}

/// The tries of one block in memory.
pub type MptCache = Upper;

fn cached_storage(
    cache: &MptCache,
    view: &dyn NodeRead,
    address: &Address,
) -> Result<Trie, StateError> {
    match cache.storage(address) {
        Some(trie) => Ok(trie),
        None => Ok(storage(view, address).trie(())?.unwrap_or_default()),
    }
}

/// The tries of one block, for reading.
struct Tries<'a> {
    view: &'a dyn NodeRead,
    cache: &'a MptCache,
}

impl<'a> ethereum::Tries for Tries<'a> {
    type Stamp = ();
    type Source = Rows<'a>;

    fn hash(&self) -> TrieHash {
        TrieHash::Keccak256
    }

    fn accounts(&self) -> (Trie, Rows<'a>) {
        (self.cache.accounts().clone(), accounts(self.view))
    }

    fn storage(&self, address: &Address, _: B256, (): ()) -> Result<(Trie, Rows<'a>), StateError> {
        Ok((cached_storage(self.cache, self.view, address)?, storage(self.view, address)))
    }
}

/// Where the rows of a trie are: that of `trie`'s storage, or the account trie.
fn place(trie: Option<Address>) -> Place {
    match trie {
        None => Place::new(ACCOUNT_NODES, &[]),
        Some(address) => Place::new(STORAGE_NODES, address.as_slice()),
    }
}

fn accounts(view: &dyn NodeRead) -> Rows<'_> {
    Rows::new(view, place(None))
}

fn storage<'a>(view: &'a dyn NodeRead, address: &Address) -> Rows<'a> {
    Rows::new(view, place(Some(*address)))
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
fn update_storage(
    view: &dyn NodeRead,
    parent: &MptCache,
    told: &Told,
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
    let before = if reset { Trie::default() } else { cached_storage(parent, view, address)? };
    let mut recorder = RowRecorder::new(place(Some(*address)), ());
    let after = if slots.is_empty() {
        before.clone()
    } else {
        let items = slot_items(TrieHash::Keccak256, slots, true)?;
        let source = parent.ahead().over(storage(view, address));
        // What was foretold is of the storage that was there.
        let early = told.storages.get(address).filter(|_| !reset);
        before.update_after(early, &source, &items, &mut recorder)?
    };
    recorder.root(&before, &after);
    let mut rows = recorder.into_rows();
    if reset {
        replace_all(view, address, &mut rows)?;
    }
    let leaf = account.map(|account| leaf::encode_account(&account, after.hash()));
    Ok(Done {
        address: *address,
        item: Item::new(keccak256(address), leaf),
        storage: (reset || !slots.is_empty()).then_some(after),
        rows,
    })
}

/// Updates the parts of tries that what was written so far lies in.
fn foretell(
    view: &dyn NodeRead,
    cache: &MptCache,
    writes: &StateDelta,
    told: &mut Told,
) -> Result<(), StateError> {
    let mut items = Vec::new();
    for Touched { address, account, slots, .. } in by_account(writes) {
        if !slots.is_empty() {
            let slots = slot_items(TrieHash::Keccak256, slots, false)?;
            let source = cache.ahead().over(storage(view, &address));
            let recorder = RowRecorder::new(place(Some(address)), ());
            let early = told.storages.entry(address).or_default();
            early.update(&cached_storage(cache, view, &address)?, &source, &slots, &recorder)?;
        }
        // The root of a storage that changes comes last, and what goes is rare.
        if let Some(Change { next: Some(next), .. }) = account
            && !told.storages.contains_key(&address)
        {
            let root = cached_storage(cache, view, &address)?.hash();
            let leaf = leaf::encode_account(&decode_account(&address, next)?, root);
            items.push(Item::new(keccak256(address), Some(leaf)));
        }
    }
    items.sort_unstable_by_key(|item| item.key);
    let source = cache.ahead().over(accounts(view));
    told.accounts.update(cache.accounts(), &source, &items, &RowRecorder::new(place(None), ()))
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

/// How a bulk load writes.
struct Rowwise;

impl Layout for Rowwise {
    type Stamp = ();

    fn stamp(&self) {}

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
        let (empty, place) = (Trie::default(), place(trie));
        let mut recorder = RowRecorder::new(place, ());
        let built = empty.update(&Unkept::default(), &items, &mut recorder)?;
        drop(items);
        recorder.root(&empty, &built);
        let mut rows = recorder.into_rows();
        rows.par_sort_unstable_by(|a, b| a.key.cmp(&b.key));
        for row in rows {
            if let Some(value) = row.next {
                sink.put(place.table(), &row.key, &value)?;
            }
        }
        Ok(built.hash())
    }
}

impl Backend for Mpt {
    type Cache = MptCache;

    fn cache_bytes(&self) -> u64 {
        Upper::<()>::MAX_BYTES
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
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![flat::TABLE, ACCOUNT_NODES, STORAGE_NODES]
    }

    fn empty_root(&self) -> B256 {
        EMPTY_ROOT_HASH
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<MptCache, StateError> {
        Ok(Upper::new(accounts(view).trie(())?.unwrap_or_default()))
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &MptCache,
        delta: &StateDelta,
    ) -> Result<Applied<MptCache>, StateError> {
        let told = parent.foretold().take();
        flat::apply(view, delta)?;
        let read = view.as_read();
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| update_storage(read, parent, &told, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let mut items: Vec<Item> = done.iter().map(|done| done.item.clone()).collect();
        items.sort_unstable_by_key(|item| item.key);
        let mut recorder = RowRecorder::new(place(None), ());
        let source = parent.ahead().over(accounts(read));
        let early = Some(&told.accounts);
        let accounts = parent.accounts().update_after(early, &source, &items, &mut recorder)?;
        recorder.root(parent.accounts(), &accounts);

        recorder.write(view)?;
        let mut changed = Vec::new();
        for Done { address, storage, rows, .. } in done {
            trie::write(view, STORAGE_NODES, rows)?;
            changed.extend(storage.map(|trie| (address, trie)));
        }
        let root = accounts.hash();
        Ok(Applied { root, cache: parent.child(context.number, accounts, changed) })
    }

    fn hint(&self, view: &dyn NodeRead, cache: &MptCache, keys: &[StateKey]) {
        // What cannot be read now is reported when it is needed.
        drop(cache.ahead().fetch(&Tries { view, cache }, keys));
    }

    fn heeds_reads(&self) -> bool {
        true
    }

    fn foretell(&self, view: &dyn NodeRead, cache: &MptCache, writes: &StateDelta) {
        // As above.
        drop(cache.foretold().tell(|told| foretell(view, cache, writes, told)));
    }

    fn heeds_writes(&self) -> bool {
        true
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        ethereum::load(&mut Rowwise, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        ethereum::prove(&Tries { view, cache }, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify::verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &MptCache) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, &self.tables())?;
        Ok(BackendStats { live_keys: stats.rows(flat::TABLE), ..stats })
    }

    /// Rows are a function of the values, so that those of the rebuilt state are what they must be.
    fn check(
        &self,
        view: &dyn NodeRead,
        _: &MptCache,
        _: B256,
        _: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        let Some(rebuilt) = rebuilt else { return Ok(()) };
        compare_rows(ACCOUNT_NODES, view, rebuilt, report)?;
        compare_rows(STORAGE_NODES, view, rebuilt, report)
    }

    fn account_proofs(&self) -> Option<&dyn AccountProofs<MptCache>> {
        Some(self)
    }

    fn chunks(&self) -> Option<&dyn Chunks<MptCache>> {
        Some(self)
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        Some(self)
    }
}

impl AccountProofs<MptCache> for Mpt {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.account_proof(view, cache, address, slots).map(AccountNodes::from)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError> {
        merge_nodes(&Tries { view, cache }, removed)
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

impl Chunks<MptCache> for Mpt {
    fn format(&self) -> &'static str {
        chunks::FORMAT
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: Arc<MptCache>,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        Ok(chunks::server(TrieHash::Keccak256, view, scratch, move |keys, id| {
            chunks::answer(&Tries { view: keys.view(), cache: &cache }, keys, id)
        }))
    }

    fn whole(&self, root: B256) -> Option<ChunkId> {
        chunks::whole(TrieHash::Keccak256, root)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<Opened, ProofError> {
        chunks::open(TrieHash::Keccak256, id, answer)
    }

    /// The root follows from the entries, however they came.
    fn loads_by_parts(&self) -> bool {
        false
    }

    fn load(
        &self,
        number: u64,
        _: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.bulk_load(number, entries, sink)
    }
}
