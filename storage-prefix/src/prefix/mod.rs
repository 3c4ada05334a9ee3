//! `prefix`: Ethereum's trie with every version of its nodes, each found by version and path.
//!
//! PrefixTree (section 4.2) is a sparse 16-ary trie whose rows are keyed by prefix and version.
//! Here the version comes first, so that a block's rows fill pages one by one. Ethereum's trie is such a trie: the root is the
//! header's `stateRoot`, and proofs follow EIP-1186, for the tip and for every kept block.
//!
//! # Vocabulary
//!
//! * **Version** of a row: the number of the block that wrote it, the
//!   [stamp](retrie_storage_mpt::trie::RowStamp) of links to it.
//! * **Pack**: the branches that a block changed in one *group*, a branch and those right below it,
//!   in one row of the table.
//! * **Delta**: a row that says what differs from the version before of the same branch.
//! * **Superseded** row: a row that the state of a later block does not need any more.
//! * **Kept** block: a block whose state can still be opened (`--prefix.keep-history`).
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> flat state (values at the tip)
//!    |
//!    '--> storage tries, account trie: storage-mpt's, with the block's number as stamp
//!           |-> packs of changed branches, under (number, path): nothing is overwritten
//!           |-> row of the block: state root, root of the account trie
//!           '-> list of the rows that this block superseded --garbage--> deleted, once no kept
//!                                                                       block needs them
//! ```
//!
//! A branch names the versions of its children, and a leaf of the account trie names the version of
//! its storage trie's root. So every read is one exact `get`.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `record` | the tables, and the encoding of rows that are not trie rows |
//! | `branch_row` | the encoding of a version of a branch: whole, or a delta |
//! | `pack` | rows of several branches, and their keys |
//! | `source` | reads branches from packs |
//! | `layout` | the order of keys, padding: for experiments |
//! | `versions` | records the rows that an update adds and supersedes |
//! | `state` | the tries of a block, new or old |
//! | `history` | old states |
//! | `garbage` | forgetting old states |
//! | `check` | `db verify` |
//! | `descriptor` | flags and registration |

mod branch_row;
mod check;
mod descriptor;
mod garbage;
mod history;
mod layout;
mod pack;
mod record;
mod source;
mod state;
mod versions;

pub(crate) use descriptor::DESCRIPTOR;
pub use layout::{PrefixLayout, RowOrder};
pub use record::{ACCOUNT_NODES, BLOCKS, DELETED_KEYS, STORAGE_NODES, SUPERSEDED};
pub use state::PrefixState;

use alloy_primitives::{B256, Bytes};
use rayon::prelude::*;
use record::{
    GARBAGE_PROGRESS, SupersededLists, SupersededRow, block_key, block_number, decode_block,
    encode_block, table,
};
use retrie_state::{
    AccountKey, AccountNodes, AccountProofs, AnyCache, ApplyContext, ApplyOutput, Backend,
    BackendDelta, BackendExtensions, BackendIdentity, BackendKey, BackendProfile, BackendStats,
    BulkSink, CacheLookups, ChunkId, ChunkServer, HashId, KeyForm, KeyRange, Maintenance, NodeRead,
    NodeWrite, OpenedChunk, Prefetcher, ProofError, RangeFormat, RangeServer, ScanDirection,
    StateChange, StateChunks, StateError, StateRanges, StateValue, WitnessMaker, WitnessRequest,
    WitnessSupport, descriptor::WitnessResult, flat, prefix_end,
};
use retrie_storage_mpt::{
    LeafUpdate, Mpt, Trie, TrieHash, block_witness,
    ethereum::{
        self, AccountDelta, CacheRoom, TrieCache, by_account, chunks, decode_account, ranges,
        refuse_orphan, slot_items,
    },
    leaf,
    trie::{LeafSorter, UpdateRecorder},
    verify,
};
use state::{FoundAccount, PrefixReader, PrefixTries};
use std::{path::Path, sync::Arc};
use versions::VersionRecorder;

const KECCAK: TrieHash = TrieHash::Keccak256;

/// Ethereum's Merkle Patricia trie, every version, keyed by version and path.
#[derive(Debug)]
pub struct Prefix {
    identity: BackendIdentity,
    layout: PrefixLayout,
    /// Number of blocks below the tip whose state is kept; `None`: all.
    keep: Option<u64>,
    witnesses: Mpt,
    room: Arc<CacheRoom>,
}

impl Default for Prefix {
    fn default() -> Self {
        Self::new(PrefixLayout::default(), None)
    }
}

impl Prefix {
    /// The backend with rows of this layout. It keeps the states of the last `keep` blocks below
    /// the tip, or of all blocks if `keep` is `None`.
    pub fn new(layout: PrefixLayout, keep: Option<u64>) -> Self {
        let identity = BackendIdentity {
            layout: layout.name(),
            ..BackendIdentity::plain("prefix", 1, HashId::Keccak256)
        };
        Self { identity, layout, keep, witnesses: Mpt::new(), room: Arc::default() }
    }

    /// The same backend, with at most `bytes` of branches in memory.
    #[must_use]
    pub fn with_cache(self, bytes: u64) -> Self {
        Self { room: CacheRoom::within(Some(bytes)).into(), ..self }
    }

    /// Upper bound of the deltas that build on a whole row.
    const fn max_deltas(&self) -> usize {
        match self.keep {
            None => branch_row::MAX_DELTAS,
            Some(_) => branch_row::MAX_DELTAS_IF_FORGOTTEN,
        }
    }

    fn reader<'a>(&self, view: &'a dyn NodeRead, state: &'a PrefixState) -> PrefixReader<'a> {
        PrefixReader::new(state.on(view, self.layout))
    }

    /// Applies a block to one account; `view` shows the parent state.
    fn account(
        &self,
        view: &dyn NodeRead,
        parent: &PrefixState,
        block: u64,
        touched: &AccountDelta<'_>,
    ) -> Result<UpdatedAccount, StateError> {
        let AccountDelta { owner, account, slots, .. } = *touched;
        let tries = parent.on(view, self.layout);
        let before = tries.account(&owner)?;
        let next = match account {
            None => before.map(|found| found.account),
            Some(StateChange { next, .. }) => {
                next.as_ref().map(|next| decode_account(&owner, next)).transpose()?
            }
        };
        if next.is_none() {
            refuse_orphan(slots)?;
        }
        let mut version = before.map_or(0, |found| found.version);
        let mut versions = VersionRecorder::new(Some(owner), block, self.max_deltas());
        let mut storage = None;
        let storage_root = match (before, slots) {
            (None, []) => KECCAK.empty_root(),
            (Some(FoundAccount { storage_root, .. }), []) => storage_root,
            _ => {
                let root = before.map_or(KECCAK.empty_root(), |found| found.storage_root);
                let before = tries.storage_of(&owner, root, version)?;
                let items = slot_items(KECCAK, slots, true)?;
                let source = parent.tries.prefetch().over(tries.source(Some(owner)));
                let after = before.update(&source, &items, &mut versions)?;
                // Rows may be rewritten while the hash stays the same.
                if after.hash() != before.hash() || !versions.is_empty() {
                    version = versions.root((!before.is_empty()).then_some(version), &after);
                }
                let root = after.hash();
                storage = Some(after);
                root
            }
        };
        let value = match next {
            Some(account) => Some(leaf::encode_account(&account, storage_root)),
            // The delta lists all slots of a removed account.
            None if storage_root == KECCAK.empty_root() => None,
            None => {
                let what = format!("account {owner} goes, and some of its slots are not listed");
                return Err(StateError::corrupt("delta", what));
            }
        };
        let item = LeafUpdate { key: KECCAK.account_path(&owner), value, stamp: version };
        Ok(UpdatedAccount { owner, item, storage, versions })
    }
}

/// The result of a block for one account.
struct UpdatedAccount {
    owner: AccountKey,
    item: LeafUpdate<u64>,
    /// The storage trie, if slots changed.
    storage: Option<Trie<u64>>,
    versions: VersionRecorder,
}

/// A bulk load in progress.
struct PrefixLoad {
    block: u64,
    layout: PrefixLayout,
    accounts: Option<Trie<u64>>,
}

impl ethereum::BulkLayout for PrefixLoad {
    type Stamp = u64;

    fn stamp(&self) -> u64 {
        self.block
    }

    fn hash(&self) -> TrieHash {
        KECCAK
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
        leaves: LeafSorter<u64>,
    ) -> Result<B256, StateError> {
        let table = table(trie);
        let put = |sink: &mut dyn BulkSink, versions: VersionRecorder| {
            let mut rows: Vec<_> = versions.into_added(self.layout).collect();
            rows.par_sort_unstable_by(|a, b| a.0.cmp(&b.0));
            rows.iter().try_for_each(|(key, row)| sink.put_unordered(table, key, row))
        };
        let versions = VersionRecorder::new(trie, self.block, branch_row::MAX_DELTAS);
        let mut top = versions.fork();
        let built = leaves.build(KECCAK, &versions, |mut part| {
            top.absorb(part.split_off_top());
            put(sink, part)
        })?;
        if trie.is_some() {
            top.root(None, &built);
        } else {
            self.accounts = Some(built.clone());
        }
        put(sink, top)?;
        Ok(built.hash())
    }
}

impl Backend for Prefix {
    type Cache = PrefixState;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[
                flat::TABLE,
                ACCOUNT_NODES,
                STORAGE_NODES,
                BLOCKS,
                SUPERSEDED,
                DELETED_KEYS,
                GARBAGE_PROGRESS,
            ],
            empty_root: KECCAK.empty_root(),
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

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<PrefixState, StateError> {
        let last = view.scan(BLOCKS, KeyRange::ALL, ScanDirection::Backward)?.next().transpose()?;
        let (block, accounts) = match last {
            Some((key, row)) => {
                let block = block_number(BLOCKS, &key)?;
                (block, decode_block(block, &row)?.1)
            }
            None => (0, Trie::empty(KECCAK)),
        };
        let tries = TrieCache::new(accounts, self.room.clone());
        Ok(PrefixState { block, is_old: false, tries })
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &PrefixState,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<PrefixState>, StateError> {
        let block = context.number;
        let read = view.as_read();
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| self.account(read, parent, block, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let mut items: Vec<_> = done.iter().map(|done| done.item.clone()).collect();
        items.sort_unstable_by_key(|item| item.key);
        let mut versions = VersionRecorder::new(None, block, self.max_deltas());
        let source = parent.tries.prefetch().over(parent.on(read, self.layout).source(None));
        let accounts = parent.tries.accounts().update(&source, &items, &mut versions)?;

        flat::apply(view, delta)?;
        let mut lists = SupersededLists::of(block);
        versions.write(view, self.layout, &mut lists)?;
        let mut changed = Vec::new();
        for UpdatedAccount { owner, storage, versions, .. } in done {
            versions.write(view, self.layout, &mut lists)?;
            changed.extend(storage.map(|trie| (owner, trie)));
        }
        for change in delta.changes() {
            if change.previous.is_some() && change.next.is_none() {
                view.put(DELETED_KEYS, &change.key.encode(), block_key(block).to_vec().into())?;
                lists.add(&SupersededRow::Key(change.key));
            }
        }
        for (key, list) in lists.finish() {
            view.replace(SUPERSEDED, &key, None, Some(list))?;
        }
        view.replace(BLOCKS, &block_key(block), None, Some(encode_block(block, &accounts)))?;
        let root = accounts.hash();
        let tries = parent.tries.child(block, accounts, changed);
        Ok(ApplyOutput { root, cache: PrefixState { block, is_old: false, tries } })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        state: &PrefixState,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        if state.is_old { self.reader(view, state).get(key) } else { flat::get(view, key) }
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        state: &PrefixState,
        owner: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        if !state.is_old {
            return flat::slots_of(view, owner, limit);
        }
        let start = owner.slots_prefix();
        let end = prefix_end(&start);
        let range = KeyRange { start: &start, end: end.as_deref() };
        history::entries(view, self.reader(view, state), range)?
            .take(limit)
            .map(|entry| match entry? {
                (BackendKey::Slot(_, slot), value) => Ok((slot, value)),
                (key, _) => {
                    Err(StateError::corrupt(DELETED_KEYS.name, format!("{key} among slots")))
                }
            })
            .collect()
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        state: &PrefixState,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        if !state.is_old {
            return flat::entries(view, start, limit);
        }
        let start = start.map(BackendKey::encode);
        let range = KeyRange::from(start.as_deref().unwrap_or(&[]));
        history::entries(view, self.reader(view, state), range)?.take(limit).collect()
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut load = PrefixLoad { block: number, layout: self.layout, accounts: None };
        let root = ethereum::load(&mut load, entries, sink)?;
        let accounts = load.accounts.unwrap_or_else(|| Trie::empty(KECCAK));
        sink.put(BLOCKS, &block_key(number), &encode_block(number, &accounts))?;
        Ok(root)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &PrefixState,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        ethereum::prove(&state.on(view, self.layout), keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &PrefixState) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, self.profile().tables)?;
        let (live_keys, dead_keys) = (stats.rows(flat::TABLE), stats.rows(DELETED_KEYS));
        Ok(BackendStats { live_keys, dead_keys, ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &PrefixState,
        root: B256,
        is_tip: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(self, view, state, root, is_tip, report)
    }

    fn cache_lookups(&self) -> CacheLookups {
        self.room.lookups().lookups()
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            prefetcher: Some(self),
            history: Some(self),
            account_proofs: Some(self),
            chunks: Some(self),
            ranges: Some(self),
            partial_state: self.witnesses.extensions().partial_state,
            witnesses: WitnessSupport::Maker(self),
            maintenance: Some(self),
            ..BackendExtensions::default()
        }
    }
}

impl Maintenance for Prefix {
    fn maintain(
        &self,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let cache: &PrefixState = cache.get()?;
        let Some(keep) = self.keep else { return Ok(()) };
        let first_kept = first_retained.min(cache.block.saturating_sub(keep));
        garbage::collect_garbage(view, self.layout, first_kept, budget)
    }
}

impl Prefetcher for Prefix {
    fn prefetch(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[BackendKey]) {
        let Ok(state) = cache.get::<PrefixState>() else { return };
        // An error is reported again when the branch is needed.
        drop(state.tries.prefetch().fetch(&state.on(view, self.layout), keys));
    }
}

impl WitnessMaker for Prefix {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        let state: &PrefixState = cache.get()?;
        block_witness::make(&state.on(view, self.layout), block)
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        block_witness::open(KECCAK, root, witness)
    }
}

/// The state of a block, on rows of a layout.
struct LaidOutState {
    state: Arc<PrefixState>,
    layout: PrefixLayout,
}

impl ranges::TriesOwner for LaidOutState {
    type OpenTries<'a> = PrefixTries<'a>;

    fn on<'a>(&'a self, view: &'a dyn NodeRead) -> PrefixTries<'a> {
        self.state.on(view, self.layout)
    }
}

impl StateRanges for Prefix {
    fn serve_ranges(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        keys: KeyForm,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn RangeServer>, StateError> {
        let tries = LaidOutState { state: cache.share()?, layout: self.layout };
        Ok(ranges::server(tries, view, keys, scratch))
    }

    fn range_format(&self) -> &'static dyn RangeFormat {
        &ranges::HashedRanges
    }
}

impl StateChunks for Prefix {
    fn format(&self) -> &'static str {
        chunks::FORMAT
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        let state = cache.share::<PrefixState>()?;
        let layout = self.layout;
        Ok(chunks::server(KECCAK, view, scratch, move |keys, id| {
            chunks::answer(&state.on(keys.view(), layout), keys, id)
        }))
    }

    fn root_chunk(&self, root: B256) -> Option<ChunkId> {
        chunks::whole(KECCAK, root)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        chunks::open(KECCAK, id, answer)
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

impl AccountProofs for Prefix {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let state: &PrefixState = cache.get()?;
        ethereum::account_nodes(&state.on(view, self.layout), owner, slots)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        removed: &[BackendKey],
    ) -> Result<Vec<Bytes>, StateError> {
        let state: &PrefixState = cache.get()?;
        ethereum::merge_nodes(&state.on(view, self.layout), removed)
    }
}
