//! The backend `mpt`: the trie over the framework's key-value view.

use crate::{
    TrieHash, audit, block_witness,
    ethereum::{
        self, AccountDelta, BulkLayout, CacheRoom, EarlyTries, TrieCache, by_account, chunks,
        decode_account, merge_nodes, ranges, refuse_orphan, slot_items,
    },
    leaf,
    trie::{self, LeafSorter, LeafUpdate, RowChange, RowPlace, RowRecorder, RowSource, Trie},
    verify,
    witness::WitnessNodes,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::EMPTY_ROOT_HASH;
use rayon::prelude::*;
use retrie_state::{
    AccountKey, AccountNodes, AccountProofs, AnyCache, ApplyContext, ApplyOutput, Backend,
    BackendDelta, BackendExtensions, BackendIdentity, BackendKey, BackendProfile, BulkSink,
    CacheLookups, ChunkId, ChunkServer, HashId, KeyForm, KeyRange, NodeRead, NodeWrite,
    OpenedChunk, PartialState, PartialTree, Prefetcher, ProofError, RangeFormat, RangeServer,
    RowTable, ScanDirection, StateChange, StateChunks, StateError, StateRanges, StateValue,
    WitnessAudit, WitnessMaker, WitnessRequest, WitnessSupport, compare_rows,
    descriptor::WitnessResult, flat, prefix_end,
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
    room: Arc<CacheRoom>,
}

impl Default for Mpt {
    fn default() -> Self {
        Self::new()
    }
}

impl Mpt {
    /// The backend. It has no parameters.
    pub fn new() -> Self {
        Self::in_room(CacheRoom::default())
    }

    /// As [`new`](Self::new), with at most `bytes` of branches in memory.
    pub fn with_cache(bytes: u64) -> Self {
        Self::in_room(CacheRoom::within(Some(bytes)))
    }

    fn in_room(room: CacheRoom) -> Self {
        let identity = BackendIdentity::plain("mpt", 1, HashId::Keccak256);
        Self { identity, room: room.into() }
    }

    /// The nodes of the EIP-1186 proof of the account `owner` and of some of its slots, for
    /// `eth_getProof`.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if rows of the trie contradict each other.
    pub fn nodes_of(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        ethereum::account_nodes(&MptTries { view, cache }, owner, slots)
    }
}

/// The tries of one block in memory.
pub type MptCache = TrieCache;

fn cached_storage(
    cache: &MptCache,
    view: &dyn NodeRead,
    owner: &AccountKey,
) -> Result<Trie, StateError> {
    match cache.storage(owner) {
        Some(trie) => Ok(trie),
        None => Ok(storage(view, owner).trie(())?.unwrap_or_default()),
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
        owner: &AccountKey,
        _: B256,
        (): (),
    ) -> Result<(Trie, RowSource<'a>), StateError> {
        Ok((cached_storage(self.cache, self.view, owner)?, storage(self.view, owner)))
    }
}

/// The rows of the storage trie of the account `trie`, or of the account trie.
fn place(trie: Option<AccountKey>) -> RowPlace {
    match trie {
        None => RowPlace::new(ACCOUNT_NODES, &[]),
        Some(owner) => RowPlace::new(STORAGE_NODES, &owner),
    }
}

fn accounts(view: &dyn NodeRead) -> RowSource<'_> {
    RowSource::new(view, place(None))
}

fn storage<'a>(view: &'a dyn NodeRead, owner: &AccountKey) -> RowSource<'a> {
    RowSource::new(view, place(Some(*owner)))
}

/// The result of a block for one account.
struct UpdatedAccount {
    owner: AccountKey,
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
    let AccountDelta { owner, account, slots, .. } = touched;
    let value = match account {
        Some(change) => change.next.clone(),
        None => flat::get(view, &BackendKey::Account(*owner))?,
    };
    let account = value.map(|value| decode_account(owner, &value)).transpose()?;
    if account.is_none() {
        refuse_orphan(slots)?;
    }
    // A wiped account that exists after the block needs no special case: the delta lists all its
    // slots, and the trie always matches the flat state. The wipe marker is for partial states.
    let reset = account.is_none();
    let before = if reset { Trie::default() } else { cached_storage(parent, view, owner)? };
    let mut recorder = RowRecorder::new(place(Some(*owner)), ());
    let after = if slots.is_empty() {
        before.clone()
    } else {
        let items = slot_items(TrieHash::Keccak256, slots, true)?;
        let source = parent.prefetch().over(storage(view, owner));
        // The early subtries are of the old storage.
        let early = early.storages.get(owner).filter(|_| !reset);
        before.update_after(early, &source, &items, &mut recorder)?
    };
    recorder.root(&before, &after);
    let mut rows = recorder.into_rows();
    if reset {
        replace_all(view, owner, &mut rows)?;
    }
    let leaf = account.map(|account| leaf::encode_account(&account, after.hash()));
    Ok(UpdatedAccount {
        owner: *owner,
        item: LeafUpdate::new(TrieHash::Keccak256.account_path(owner), leaf),
        storage: (reset || !slots.is_empty()).then_some(after),
        rows,
    })
}

/// Updates the subtries that contain the keys written so far.
fn prepare_root(
    view: &dyn NodeRead,
    cache: &MptCache,
    writes: &BackendDelta,
    early: &mut EarlyTries,
) -> Result<(), StateError> {
    let mut items = Vec::new();
    for AccountDelta { owner, account, slots, .. } in by_account(writes) {
        if !slots.is_empty() {
            let slots = slot_items(TrieHash::Keccak256, slots, false)?;
            let source = cache.prefetch().over(storage(view, &owner));
            let recorder = RowRecorder::new(place(Some(owner)), ());
            let early = early.storages.entry(owner).or_default();
            early.update(&cached_storage(cache, view, &owner)?, &source, &slots, &recorder)?;
        }
        // If the storage changes, its root is known only at the end. Deletions are rare.
        if let Some(StateChange { next: Some(next), .. }) = account
            && !early.storages.contains_key(&owner)
        {
            let root = cached_storage(cache, view, &owner)?.hash();
            let leaf = leaf::encode_account(&decode_account(&owner, next)?, root);
            items.push(LeafUpdate::new(TrieHash::Keccak256.account_path(&owner), Some(leaf)));
        }
    }
    items.sort_unstable_by_key(|item| item.key);
    let source = cache.prefetch().over(accounts(view));
    early.accounts.update(cache.accounts(), &source, &items, &RowRecorder::new(place(None), ()))
}

/// Turns the rows of a new storage trie of `owner` into changes that replace all rows of the old
/// one.
fn replace_all(
    view: &dyn NodeRead,
    owner: &AccountKey,
    rows: &mut Vec<RowChange>,
) -> Result<(), StateError> {
    let (start, end) = (&**owner, prefix_end(owner));
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
        key: &BackendKey,
        value: &StateValue,
    ) -> Result<(), StateError> {
        flat::put(sink, key, value)
    }

    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<AccountKey>,
        leaves: LeafSorter<()>,
    ) -> Result<B256, StateError> {
        let place = place(trie);
        let mut put = |recorder: RowRecorder| {
            let rows = recorder.into_rows().into_iter();
            rows.filter_map(|row| Some((row.key, row.next?)))
                .try_for_each(|(key, value)| sink.put_unordered(place.table(), &key, &value))
        };
        let mut root = RowRecorder::new(place, ());
        let built = leaves.build(TrieHash::Keccak256, &root, &mut put)?;
        root.root(&Trie::default(), &built);
        put(root)?;
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
            binary_root: false,
            ethereum_state_only: true,
            needs_codes: false,
            cache_bytes: self.room.bytes(),
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<MptCache, StateError> {
        let accounts = accounts(view).trie(())?.unwrap_or_default();
        Ok(TrieCache::new(accounts, self.room.clone()))
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &MptCache,
        delta: &BackendDelta,
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
        for UpdatedAccount { owner, storage, rows, .. } in done {
            trie::write(view, STORAGE_NODES, rows)?;
            changed.extend(storage.map(|trie| (owner, trie)));
        }
        let root = accounts.hash();
        Ok(ApplyOutput { root, cache: parent.child(context.number, accounts, changed) })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        ethereum::load(&mut PathLayout, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &MptCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        ethereum::prove(&MptTries { view, cache }, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
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

    fn cache_lookups(&self) -> CacheLookups {
        self.room.lookups().lookups()
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            prefetcher: Some(self),
            account_proofs: Some(self),
            chunks: Some(self),
            ranges: Some(self),
            partial_state: Some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl AccountProofs for Mpt {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let cache: &MptCache = cache.get()?;
        self.nodes_of(view, cache, owner, slots)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        removed: &[BackendKey],
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

    fn audit_witness(&self, root: B256, nodes: &[Bytes]) -> Result<WitnessAudit, StateError> {
        Ok(audit::open(root, nodes))
    }
}

impl WitnessMaker for Mpt {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        block_witness::make(&MptTries { view, cache: cache.get()? }, block)
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        block_witness::open(TrieHash::Keccak256, root, witness)
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
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        self.bulk_load(number, entries, sink)
    }
}

/// The tries of one block, for any view of it.
struct SharedTries(Arc<MptCache>);

impl ranges::TriesOwner for SharedTries {
    type OpenTries<'a> = MptTries<'a>;

    fn on<'a>(&'a self, view: &'a dyn NodeRead) -> MptTries<'a> {
        MptTries { view, cache: &self.0 }
    }
}

impl StateRanges for Mpt {
    fn serve_ranges(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        keys: KeyForm,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn RangeServer>, StateError> {
        Ok(ranges::server(SharedTries(cache.share()?), view, keys, scratch))
    }

    fn range_format(&self) -> &'static dyn RangeFormat {
        &ranges::HashedRanges
    }
}

impl Prefetcher for Mpt {
    fn prefetch(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[BackendKey]) {
        let Ok(cache) = cache.get::<MptCache>() else { return };
        // An error is reported again when the branch is needed.
        drop(cache.prefetch().fetch(&MptTries { view, cache }, keys));
    }

    fn prepare_root(&self, view: &dyn NodeRead, cache: &AnyCache, writes: &BackendDelta) {
        let Ok(cache) = cache.get::<MptCache>() else { return };
        // As above.
        drop(cache.root_task().update(|early| prepare_root(view, cache, writes, early)));
    }

    fn prepares_root(&self) -> bool {
        true
    }
}
