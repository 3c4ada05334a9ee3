//! The backend `mpt`: the trie over the framework's key-value view.

use crate::{
    TrieHash,
    ethereum::{
        self, AccountDelta, BulkLayout, EarlyTries, TrieCache, by_account, chunks, decode_account,
        merge_nodes, refuse_orphan, slot_items,
    },
    leaf,
    trie::{self, BuildSource, LeafUpdate, RowChange, RowPlace, RowRecorder, RowSource, Trie},
    verify,
    witness::WitnessNodes,
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use rayon::prelude::*;
use retrie_state::{
    AccountNodes, AccountProofs, AnyCache, ApplyContext, ApplyOutput, Backend, BackendExtensions,
    BackendIdentity, BackendProfile, BulkSink, ChunkId, ChunkServer, HashId, KeyRange, NodeRead,
    NodeWrite, OpenedChunk, PartialState, PartialTree, Prefetcher, ProofError, RowTable,
    ScanDirection, StateChange, StateChunks, StateDelta, StateError, StateKey, StateValue,
    compare_rows, flat, prefix_end,
};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Rows of the account trie.
pub const ACCOUNT_NODES: RowTable = RowTable::new(0x10, "MptAccountNodes");
/// Rows of the storage tries.
pub const STORAGE_NODES: RowTable = RowTable::new(0x11, "MptStorageNodes");

/// Ethereum's Merkle Patricia trie, keyed by path, latest state only.
#[derive(Debug)]
pub struct Mpt {
    identity: BackendIdentity,
}

impl Default for Mpt {
    fn default() -> Self {
        Self::new()
    }
}

impl Mpt {
    /// The backend. It has no parameters.
    pub const fn new() -> Self {
        Self { identity: BackendIdentity::plain("mpt", 1, HashId::Keccak256) }
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
        ethereum::account_proof(&MptTries { view, cache }, address, slots)
    }
}

/// The tries of one block in memory.
pub type MptCache = TrieCache;

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
struct MptTries<'a> {
    view: &'a dyn NodeRead,
    cache: &'a MptCache,
}

impl<'a> ethereum::StateTries for MptTries<'a> {
    type Stamp = ();
    type Source = RowSource<'a>;

    fn hash(&self) -> TrieHash {
        TrieHash::Keccak256
    }

    fn accounts(&self) -> (Trie, RowSource<'a>) {
        (self.cache.accounts().clone(), accounts(self.view))
    }

    fn storage(
        &self,
        address: &Address,
        _: B256,
        (): (),
    ) -> Result<(Trie, RowSource<'a>), StateError> {
        Ok((cached_storage(self.cache, self.view, address)?, storage(self.view, address)))
    }
}

/// The rows of the storage trie of the account `trie`, or of the account trie.
fn place(trie: Option<Address>) -> RowPlace {
    match trie {
        None => RowPlace::new(ACCOUNT_NODES, &[]),
        Some(address) => RowPlace::new(STORAGE_NODES, address.as_slice()),
    }
}

fn accounts(view: &dyn NodeRead) -> RowSource<'_> {
    RowSource::new(view, place(None))
}

fn storage<'a>(view: &'a dyn NodeRead, address: &Address) -> RowSource<'a> {
    RowSource::new(view, place(Some(*address)))
}

/// The result of a block for one account.
struct UpdatedAccount {
    address: Address,
    item: LeafUpdate,
    /// The storage trie, if it changed.
    storage: Option<Trie>,
    rows: Vec<RowChange>,
}

/// Updates the storage trie of one account. `view` shows the flat state after the block.
fn update_storage(
    view: &dyn NodeRead,
    parent: &MptCache,
    early: &EarlyTries,
    touched: &AccountDelta<'_>,
) -> Result<UpdatedAccount, StateError> {
    let AccountDelta { address, account, slots, .. } = touched;
    let value = match account {
        Some(change) => change.next.clone(),
        None => flat::get(view, &StateKey::Account(*address))?,
    };
    let account = value.map(|value| decode_account(address, &value)).transpose()?;
    if account.is_none() {
        refuse_orphan(slots)?;
    }
    // A wiped account that exists after the block needs no special case: the delta lists all its
    // slots, and the trie always matches the flat state. The wipe marker is for partial states.
    let reset = account.is_none();
    let before = if reset { Trie::default() } else { cached_storage(parent, view, address)? };
    let mut recorder = RowRecorder::new(place(Some(*address)), ());
    let after = if slots.is_empty() {
        before.clone()
    } else {
        let items = slot_items(TrieHash::Keccak256, slots, true)?;
        let source = parent.prefetch().over(storage(view, address));
        // The early subtries are of the old storage.
        let early = early.storages.get(address).filter(|_| !reset);
        before.update_after(early, &source, &items, &mut recorder)?
    };
    recorder.root(&before, &after);
    let mut rows = recorder.into_rows();
    if reset {
        replace_all(view, address, &mut rows)?;
    }
    let leaf = account.map(|account| leaf::encode_account(&account, after.hash()));
    Ok(UpdatedAccount {
        address: *address,
        item: LeafUpdate::new(keccak256(address), leaf),
        storage: (reset || !slots.is_empty()).then_some(after),
        rows,
    })
}

/// Updates the subtries that contain the keys written so far.
fn prepare_root(
    view: &dyn NodeRead,
    cache: &MptCache,
    writes: &StateDelta,
    early: &mut EarlyTries,
) -> Result<(), StateError> {
    let mut items = Vec::new();
    for AccountDelta { address, account, slots, .. } in by_account(writes) {
        if !slots.is_empty() {
            let slots = slot_items(TrieHash::Keccak256, slots, false)?;
            let source = cache.prefetch().over(storage(view, &address));
            let recorder = RowRecorder::new(place(Some(address)), ());
            let early = early.storages.entry(address).or_default();
            early.update(&cached_storage(cache, view, &address)?, &source, &slots, &recorder)?;
        }
        // If the storage changes, its root is known only at the end. Deletions are rare.
        if let Some(StateChange { next: Some(next), .. }) = account
            && !early.storages.contains_key(&address)
        {
            let root = cached_storage(cache, view, &address)?.hash();
            let leaf = leaf::encode_account(&decode_account(&address, next)?, root);
            items.push(LeafUpdate::new(keccak256(address), Some(leaf)));
        }
    }
    items.sort_unstable_by_key(|item| item.key);
    let source = cache.prefetch().over(accounts(view));
    early.accounts.update(cache.accounts(), &source, &items, &RowRecorder::new(place(None), ()))
}

/// Turns the rows of a new storage trie of `address` into changes that replace all rows of the old
/// one.
fn replace_all(
    view: &dyn NodeRead,
    address: &Address,
    rows: &mut Vec<RowChange>,
) -> Result<(), StateError> {
    let (start, end) = (address.as_slice(), prefix_end(address.as_slice()));
    let range = KeyRange { start, end: end.as_deref() };
    let mut old = view
        .scan(STORAGE_NODES, range, ScanDirection::Forward)?
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

/// The row layout of a bulk load: rows by path.
struct PathLayout;

impl BulkLayout for PathLayout {
    type Stamp = ();

    fn stamp(&self) {}

    fn hash(&self) -> TrieHash {
        TrieHash::Keccak256
    }

    fn entry(
        &mut self,
        sink: &mut dyn BulkSink,
        key: &StateKey,
        value: &StateValue,
    ) -> Result<(), StateError> {
        flat::put(sink, key, value)
    }

    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<Address>,
        items: Vec<LeafUpdate>,
    ) -> Result<B256, StateError> {
        let (empty, place) = (Trie::default(), place(trie));
        let mut recorder = RowRecorder::new(place, ());
        let built = empty.update(&BuildSource::default(), &items, &mut recorder)?;
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

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[flat::TABLE, ACCOUNT_NODES, STORAGE_NODES],
            empty_root: EMPTY_ROOT_HASH,
            proofs: true,
            absence_proofs: true,
            state_determined_root: true,
            ethereum_root: true,
            ethereum_state_only: true,
            cache_bytes: TrieCache::<()>::MAX_BYTES,
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<MptCache, StateError> {
        Ok(TrieCache::new(accounts(view).trie(())?.unwrap_or_default()))
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &MptCache,
        delta: &StateDelta,
    ) -> Result<ApplyOutput<MptCache>, StateError> {
        let early = parent.root_task().take();
        flat::apply(view, delta)?;
        let read = view.as_read();
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| update_storage(read, parent, &early, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let mut items: Vec<LeafUpdate> = done.iter().map(|done| done.item.clone()).collect();
        items.sort_unstable_by_key(|item| item.key);
        let mut recorder = RowRecorder::new(place(None), ());
        let source = parent.prefetch().over(accounts(read));
        let early = Some(&early.accounts);
        let accounts = parent.accounts().update_after(early, &source, &items, &mut recorder)?;
        recorder.root(parent.accounts(), &accounts);

        recorder.write(view)?;
        let mut changed = Vec::new();
        for UpdatedAccount { address, storage, rows, .. } in done {
            trie::write(view, STORAGE_NODES, rows)?;
            changed.extend(storage.map(|trie| (address, trie)));
        }
        let root = accounts.hash();
        Ok(ApplyOutput { root, cache: parent.child(context.number, accounts, changed) })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        ethereum::load(&mut PathLayout, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        ethereum::prove(&MptTries { view, cache }, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify(root, keys, proof)
    }

    /// Rows are a function of the values, so they must equal the rows of the rebuilt state.
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

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            prefetcher: Some(self),
            account_proofs: Some(self),
            chunks: Some(self),
            partial_state: Some(self),
            ..BackendExtensions::default()
        }
    }
}

impl AccountProofs for Mpt {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let cache: &MptCache = cache.get()?;
        self.account_proof(view, cache, address, slots).map(AccountNodes::from)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError> {
        let cache: &MptCache = cache.get()?;
        merge_nodes(&MptTries { view, cache }, removed)
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

impl StateChunks for Mpt {
    fn format(&self) -> &'static str {
        chunks::FORMAT
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        let cache = cache.share::<MptCache>()?;
        Ok(chunks::server(TrieHash::Keccak256, view, scratch, move |keys, id| {
            chunks::answer(&MptTries { view: keys.view(), cache: &cache }, keys, id)
        }))
    }

    fn root_chunk(&self, root: B256) -> Option<ChunkId> {
        chunks::whole(TrieHash::Keccak256, root)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        chunks::open(TrieHash::Keccak256, id, answer)
    }

    /// The root depends on the entries alone, not on the chunks they came in.
    fn load_needs_parts(&self) -> bool {
        false
    }

    fn load(
        &self,
        number: u64,
        _: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.bulk_load(number, entries, sink)
    }
}

impl Prefetcher for Mpt {
    fn prefetch(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[StateKey]) {
        let Ok(cache) = cache.get::<MptCache>() else { return };
        // An error is reported again when the branch is needed.
        drop(cache.prefetch().fetch(&MptTries { view, cache }, keys));
    }

    fn prepare_root(&self, view: &dyn NodeRead, cache: &AnyCache, writes: &StateDelta) {
        let Ok(cache) = cache.get::<MptCache>() else { return };
        // As above.
        drop(cache.root_task().update(|early| prepare_root(view, cache, writes, early)));
    }

    fn prepares_root(&self) -> bool {
        true
    }
}
