//! `prefix`: Ethereum's trie with every version of its nodes, each found by path and version.
//!
//! PrefixTree (section 4.2) is a sparse 16-ary trie whose rows are keyed by prefix and version, so that
//! nodes of a way lie side by side on disk. Ethereum's trie is such a trie: the root is the header's,
//! proofs are those of EIP-1186, for the tip and for every block that is kept.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> Flat (values at the tip)
//!    |
//!    '--> storage tries, account trie: storage_mpt's, with the block's number as stamp
//!           |-> rows of changed branches, under (path, number): nothing is overwritten
//!           |-> row of the block: root, and where the account trie begins
//!           '-> list of the rows that this block superseded ---settle---> deleted, once no block
//!                                                                        that is kept needs them
//! ```
//!
//! A branch names the versions of its children, a leaf of the account trie that of its storage trie's
//! root: every read is one exact `get`.
//!
//! | module | what |
//! |---|---|
//! | `row` | rows beside those of tries |
//! | `layout` | the order of keys, padding: for experiments |
//! | `versions` | what an update leaves |
//! | `state` | the tries of a block, new or old |
//! | `history` | old states |
//! | `prune` | forgetting them |
//! | `check` | the check of all rows |

mod check;
mod descriptor;
mod history;
mod layout;
mod prune;
mod row;
mod state;
mod versions;

pub use descriptor::DESCRIPTOR;
pub use layout::{Layout, Order};
pub use row::{ACCOUNT_NODES, BLOCKS, FORGOTTEN, GONE, STORAGE_NODES, SUPERSEDED};
pub use state::State;

use alloy_primitives::{Address, B256, Bytes};
use rayon::prelude::*;
use retrie_state::{
    AccountNodes, AccountProofs, Applied, ApplyContext, Backend, BackendStats, BulkSink,
    Capabilities, Change, ChunkId, ChunkServer, Chunks, Direction, HashId, History, Identity,
    KeyRange, NodeRead, NodeWrite, Opened, PartialState, ProofError, StateDelta, StateError,
    StateKey, Table, Value, flat, prefix_end,
};
use retrie_storage_mpt::{
    Item, Mpt, Trie, TrieHash,
    ethereum::{
        self, Touched, Upper, by_account, chunks, decode_account, refuse_orphan, slot_items,
    },
    leaf,
    trie::Unkept,
    verify,
};
use row::{Lists, Superseded, block_key, block_number, decode_block, encode_block, place};
use state::{Found, Reader};
use std::{path::Path, sync::Arc};
use versions::Versions;

const KECCAK: TrieHash = TrieHash::Keccak256;

/// Ethereum's Merkle Patricia trie, every version, keyed by path and version.
#[derive(Debug)]
pub struct Prefix {
    identity: Identity,
    layout: Layout,
    /// Blocks below the tip whose state is kept; `None`: all.
    keep: Option<u64>,
    witnesses: Mpt,
}

impl Default for Prefix {
    fn default() -> Self {
        Self::new(Layout::default(), None)
    }
}

impl Prefix {
    /// The backend with rows of this layout, which keeps the states of so many blocks below the tip;
    /// of all if it is `None`.
    pub fn new(layout: Layout, keep: Option<u64>) -> Self {
        let identity =
            Identity { layout: layout.name(), ..Identity::plain("prefix", 1, HashId::Keccak256) };
        Self { identity, layout, keep, witnesses: Mpt::new() }
    }

    fn reader<'a>(&self, view: &'a dyn NodeRead, state: &'a State) -> Reader<'a> {
        Reader::new(state.on(view, self.layout))
    }

    /// What a block makes of one account; `view` is that of the parent.
    fn account(
        &self,
        view: &dyn NodeRead,
        parent: &State,
        block: u64,
        touched: &Touched<'_>,
    ) -> Result<Done, StateError> {
        let Touched { address, account, slots, .. } = *touched;
        let tries = parent.on(view, self.layout);
        let before = tries.account(&address)?;
        let next = match account {
            None => before.map(|found| found.account),
            Some(Change { next, .. }) => {
                next.as_ref().map(|next| decode_account(&address, next)).transpose()?
            }
        };
        if next.is_none() {
            refuse_orphan(slots)?;
        }
        let mut version = before.map_or(0, |found| found.version);
        let mut versions = Versions::new(Some(address), block);
        let mut storage = None;
        let storage_root = match (before, slots) {
            (None, []) => KECCAK.empty_root(),
            (Some(Found { storage_root, .. }), []) => storage_root,
            _ => {
                let root = before.map_or(KECCAK.empty_root(), |found| found.storage_root);
                let before = tries.storage_of(&address, root, version)?;
                let items = slot_items(KECCAK, slots, true)?;
                let source = parent.tries.ahead().over(tries.source(Some(address)));
                let after = before.update(&source, &items, &mut versions)?;
                // Rows may be written anew without another hash.
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
            // The delta lists all slots of an account that goes.
            None if storage_root == KECCAK.empty_root() => None,
            None => {
                let what = format!("account {address} goes, and some of its slots are not listed");
                return Err(StateError::corrupt("delta", what));
            }
        };
        let item = Item { key: KECCAK.hash(address), value, stamp: version };
        Ok(Done { address, item, storage, versions })
    }
}

/// What a block makes of one account.
struct Done {
    address: Address,
    item: Item<u64>,
    /// The storage trie, if slots changed.
    storage: Option<Trie<u64>>,
    versions: Versions,
}

/// How a bulk load writes.
struct Load {
    block: u64,
    layout: Layout,
    accounts: Option<Trie<u64>>,
}

impl ethereum::Layout for Load {
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
        key: &StateKey,
        value: &Value,
    ) -> Result<(), StateError> {
        flat::put(sink, key, value)
    }

    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<Address>,
        items: Vec<Item<u64>>,
    ) -> Result<B256, StateError> {
        let table = place(trie).table();
        let put = |sink: &mut dyn BulkSink, versions: Versions| {
            let mut rows: Vec<_> = versions.into_added(self.layout).collect();
            rows.par_sort_unstable_by(|a, b| a.0.cmp(&b.0));
            rows.iter().try_for_each(|(key, row)| sink.put_unordered(table, key, row))
        };
        let versions = Versions::new(trie, self.block);
        let built =
            Trie::build(KECCAK, &Unkept::default(), &items, &versions, |part| put(sink, part))?;
        if trie.is_some() {
            let mut root = versions;
            root.root(None, &built);
            put(sink, root)?;
        } else {
            self.accounts = Some(built.clone());
        }
        Ok(built.hash())
    }
}

impl Backend for Prefix {
    type Cache = State;

    fn cache_bytes(&self) -> u64 {
        Upper::<u64>::MAX_BYTES
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
        vec![flat::TABLE, ACCOUNT_NODES, STORAGE_NODES, BLOCKS, SUPERSEDED, GONE, FORGOTTEN]
    }

    fn empty_root(&self) -> B256 {
        KECCAK.empty_root()
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<State, StateError> {
        let last = view.scan(BLOCKS, KeyRange::ALL, Direction::Backward)?.next().transpose()?;
        let (block, accounts) = match last {
            Some((key, row)) => {
                let block = block_number(BLOCKS, &key)?;
                (block, decode_block(block, &row)?.1)
            }
            None => (0, Trie::empty(KECCAK)),
        };
        Ok(State { block, is_old: false, tries: Upper::new(accounts) })
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &State,
        delta: &StateDelta,
    ) -> Result<Applied<State>, StateError> {
        let block = context.number;
        let read = view.as_read();
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| self.account(read, parent, block, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let mut items: Vec<_> = done.iter().map(|done| done.item.clone()).collect();
        items.sort_unstable_by_key(|item| item.key);
        let mut versions = Versions::new(None, block);
        let source = parent.tries.ahead().over(parent.on(read, self.layout).source(None));
        let accounts = parent.tries.accounts().update(&source, &items, &mut versions)?;

        flat::apply(view, delta)?;
        let mut lists = Lists::of(block);
        versions.write(view, self.layout, &mut lists)?;
        let mut changed = Vec::new();
        for Done { address, storage, versions, .. } in done {
            versions.write(view, self.layout, &mut lists)?;
            changed.extend(storage.map(|trie| (address, trie)));
        }
        for change in delta.changes() {
            if change.previous.is_some() && change.next.is_none() {
                view.put(GONE, &change.key.encode(), block_key(block).to_vec().into())?;
                lists.add(&Superseded::Key(change.key));
            }
        }
        for (key, list) in lists.finish() {
            view.replace(SUPERSEDED, &key, None, Some(list))?;
        }
        view.replace(BLOCKS, &block_key(block), None, Some(encode_block(&accounts)))?;
        let root = accounts.hash();
        let tries = parent.tries.child(block, accounts, changed);
        Ok(Applied { root, cache: State { block, is_old: false, tries } })
    }

    fn hint(&self, view: &dyn NodeRead, state: &State, keys: &[StateKey]) {
        // What cannot be read now is reported when it is needed.
        drop(state.tries.ahead().fetch(&state.on(view, self.layout), keys));
    }

    fn heeds_reads(&self) -> bool {
        true
    }

    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        cache: &State,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let Some(keep) = self.keep else { return Ok(()) };
        let first_kept = first_retained.min(cache.block.saturating_sub(keep));
        prune::forget(view, self.layout, first_kept, budget)
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        state: &State,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        if state.is_old { self.reader(view, state).get(key) } else { flat::get(view, key) }
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        state: &State,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        if !state.is_old {
            return flat::slots_of(view, address, limit);
        }
        let start = StateKey::Slot(*address, B256::ZERO).encode();
        let end = prefix_end(&start[..21]);
        let range = KeyRange { start: &start[..21], end: end.as_deref() };
        history::entries(view, self.reader(view, state), range)?
            .take(limit)
            .map(|entry| match entry? {
                (StateKey::Slot(_, slot), value) => Ok((slot, value)),
                (key, _) => Err(StateError::corrupt(GONE.name, format!("{key} among slots"))),
            })
            .collect()
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        state: &State,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        if !state.is_old {
            return flat::entries(view, start, limit);
        }
        let start = start.map(StateKey::encode);
        let range = KeyRange::from(start.as_deref().unwrap_or(&[]));
        history::entries(view, self.reader(view, state), range)?.take(limit).collect()
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut load = Load { block: number, layout: self.layout, accounts: None };
        let root = ethereum::load(&mut load, entries, sink)?;
        let accounts = load.accounts.unwrap_or_else(|| Trie::empty(KECCAK));
        sink.put(BLOCKS, &block_key(number), &encode_block(&accounts))?;
        Ok(root)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        ethereum::prove(&state.on(view, self.layout), keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify::verify(root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &State) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, &self.tables())?;
        let (live_keys, dead_keys) = (stats.rows(flat::TABLE), stats.rows(GONE));
        Ok(BackendStats { live_keys, dead_keys, ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &State,
        root: B256,
        is_tip: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(self, view, state, root, is_tip, report)
    }

    fn history(&self) -> Option<&dyn History<State>> {
        Some(self)
    }

    fn account_proofs(&self) -> Option<&dyn AccountProofs<State>> {
        Some(self)
    }

    fn chunks(&self) -> Option<&dyn Chunks<State>> {
        Some(self)
    }

    fn partial_state(&self) -> Option<&dyn PartialState> {
        self.witnesses.partial_state()
    }
}

impl Chunks<State> for Prefix {
    fn format(&self) -> &'static str {
        chunks::FORMAT
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        state: Arc<State>,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        let layout = self.layout;
        Ok(chunks::server(KECCAK, view, scratch, move |keys, id| {
            chunks::answer(&state.on(keys.view(), layout), keys, id)
        }))
    }

    fn whole(&self, root: B256) -> Option<ChunkId> {
        chunks::whole(KECCAK, root)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<Opened, ProofError> {
        chunks::open(KECCAK, id, answer)
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

impl AccountProofs<State> for Prefix {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        state: &State,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let proof = ethereum::account_proof(&state.on(view, self.layout), address, slots)?;
        Ok(proof.into())
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        state: &State,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError> {
        ethereum::merge_nodes(&state.on(view, self.layout), removed)
    }
}
