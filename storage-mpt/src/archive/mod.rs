//! The backend `mpt-archive`: the same trie with its nodes stored by hash and no version ever
//! deleted. This is the layout of Ethereum's archive nodes, and the baseline "MPT" of COLE.
//!
//! | table | key | value |
//! |---|---|---|
//! | [`NODES`] | hash of a node | its RLP |
//! | [`KEYS`] | state key that has or had a value | 4 bytes of the hash of this row's key |
//! | [`KEYS`] | `ff` | number of keys that have a value (8, BE) |
//! | [`ROOTS`] | block number (8, BE) | root |
//!
//! Reads walk the trie; values are stored only in its leaves. A block adds the nodes of its changed
//! paths, its new keys, and its root. If a node is already stored (the same subtrie existed before,
//! or exists in another account), it is not written again and has no undo record. So reverting a
//! block removes exactly the nodes that the block added, and no older block loses a node.

mod check;
mod nodes;
mod states;

pub(crate) use nodes::{HashedNodes, NodeKeys, NodeRecorder};
pub(crate) use states::{BEHIND_KEYS, DEFAULT_CACHE, HashedStates};

use crate::{
    TrieHash, block_witness,
    ethereum::{self, AccountDelta, BulkLayout, by_account},
    trie::{LeafSorter, LeafUpdate, Trie},
    verify,
};
use alloy_primitives::{B256, Bytes};
use rayon::prelude::*;
use retrie_state::{
    AccountKey, AccountNodes, AccountProofs, AnyCache, ApplyContext, ApplyOutput, Backend,
    BackendChange, BackendDelta, BackendExtensions, BackendIdentity, BackendKey, BackendProfile,
    BackendStats, BulkSink, CacheLookups, KeyRange, NodeRead, NodeWrite, ProofError, RowTable,
    ScanDirection, StateError, StateHistory, StateValue, WitnessMaker, WitnessRequest,
    WitnessSupport, descriptor::WitnessResult,
};
use std::{fmt, ops::RangeInclusive, path::Path};

/// Nodes: hash to RLP.
pub const NODES: RowTable = RowTable::new(0x12, "MptArchiveNodes");
/// Every key that ever had a value, since the trie contains only hashes of keys; and the number of
/// keys that have a value.
pub const KEYS: RowTable = RowTable::new(0x13, "MptArchiveKeys");
/// The root of each block.
pub const ROOTS: RowTable = RowTable::new(0x14, "MptArchiveRoots");

/// Ethereum's Merkle Patricia trie, keyed by hash, all versions.
pub struct MptArchive {
    identity: BackendIdentity,
    states: HashedStates,
}

impl fmt::Debug for MptArchive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MptArchive").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl MptArchive {
    /// The backend. With keccak-256 its roots are Ethereum's.
    pub fn new(with: TrieHash) -> Self {
        Self::with_cache(with, DEFAULT_CACHE)
    }

    /// As [`new`](Self::new) with another budget for the cache of nodes, in bytes.
    pub fn with_cache(with: TrieHash, bytes: u64) -> Self {
        let identity = BackendIdentity::plain("mpt-archive", 1, with.id());
        let states = HashedStates::new(with, bytes, NODES, NodeKeys::Shared, KEYS);
        Self { identity, states }
    }

    /// The nodes of the EIP-1186 proof of the account `owner` and of some of its slots in the
    /// state of this root, for `eth_getProof`.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if a node is missing or malformed.
    pub fn nodes_of(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.states.account_nodes(view, root, owner, slots)
    }

    fn last_root(&self, view: &dyn NodeRead) -> Result<B256, StateError> {
        let last = view.scan(ROOTS, KeyRange::ALL, ScanDirection::Backward)?.next().transpose()?;
        match last {
            Some((key, row)) => decode_root(block_number(&key)?, &row),
            None => Ok(self.states.with.empty_root()),
        }
    }
}

fn decode_root(number: u64, row: &[u8]) -> Result<B256, StateError> {
    B256::try_from(row).map_err(|_| {
        StateError::corrupt(ROOTS.name, format!("the row of block {number} is not a root"))
    })
}

/// Key of the row of [`KEYS`] that holds the number of keys with a value.
const LIVE: &[u8] = BEHIND_KEYS;

fn live_keys(view: &dyn NodeRead) -> Result<u64, StateError> {
    let Some(row) = view.get(KEYS, LIVE)? else { return Ok(0) };
    let count = row[..].try_into().map(u64::from_be_bytes);
    count.map_err(|_| StateError::corrupt(KEYS.name, "the row `ff` is not a number"))
}

/// The number of live keys after a block that found `live` of them.
fn live_after(live: u64, delta: &BackendDelta) -> u64 {
    let of =
        |is: fn(&BackendChange) -> bool| delta.changes().iter().filter(|c| is(c)).count() as u64;
    let new = of(|change| change.previous.is_none() && change.next.is_some());
    let gone = of(|change| change.previous.is_some() && change.next.is_none());
    (live + new).saturating_sub(gone)
}

/// The content of a key's row in [`KEYS`], by which the check finds damage.
fn key_mark(with: TrieHash, key: &BackendKey) -> [u8; 4] {
    let hash = with.hash(&*key.encode());
    [hash[0], hash[1], hash[2], hash[3]]
}

fn block_number(key: &[u8]) -> Result<u64, StateError> {
    let number = key.try_into().map(u64::from_be_bytes);
    number.map_err(|_| StateError::corrupt(ROOTS.name, "a key is not a block number"))
}

/// Updates the storage of one account; returns its item for the account trie, and the new nodes.
fn account(
    nodes: HashedNodes<'_>,
    with: TrieHash,
    root: B256,
    touched: &AccountDelta<'_>,
) -> Result<(LeafUpdate, NodeRecorder), StateError> {
    let before = nodes.account(root, &with.account_path(&touched.owner))?;
    let before = before.map(|(account, storage)| (account, Trie::unresolved(with, storage)));
    let mut recorder = NodeRecorder::default();
    let (item, _) = touched.after(with, before, &nodes, &mut recorder)?;
    Ok((item, recorder))
}

impl AccountProofs for MptArchive {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let root: &B256 = cache.get()?;
        self.nodes_of(view, root, owner, slots)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        removed: &[BackendKey],
    ) -> Result<Vec<Bytes>, StateError> {
        let root: &B256 = cache.get()?;
        self.states.merge_nodes(view, root, removed)
    }
}

impl Backend for MptArchive {
    /// The root of the state.
    type Cache = B256;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[NODES, KEYS, ROOTS],
            empty_root: self.states.with.empty_root(),
            proofs: true,
            absence_proofs: true,
            state_determined_root: true,
            ethereum_root: self.states.with == TrieHash::Keccak256,
            binary_root: false,
            ethereum_state_only: true,
            needs_codes: false,
            cache_bytes: self.states.cache.capacity(),
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<B256, StateError> {
        self.last_root(view)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &B256,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<B256>, StateError> {
        let (with, nodes) = (self.states.with, self.states.nodes(view.as_read()));
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| account(nodes, with, *parent, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let (mut items, storages): (Vec<LeafUpdate>, Vec<NodeRecorder>) = done.into_iter().unzip();
        items.sort_unstable_by_key(|item| item.key);
        let mut above = NodeRecorder::default();
        let accounts = Trie::unresolved(with, *parent).update(&nodes, &items, &mut above)?;
        let root = accounts.hash();

        let added = storages.into_iter().chain([above]).flat_map(|recorder| recorder.0.added);
        for (hash, row) in added {
            self.states.cache.insert(hash, row.clone());
            view.put(NODES, hash.as_slice(), row)?;
        }
        for change in delta.changes() {
            if change.previous.is_none() && change.next.is_some() {
                let mark = Bytes::copy_from_slice(&key_mark(with, &change.key));
                view.put(KEYS, &change.key.encode(), mark)?;
            }
        }
        let live = live_after(live_keys(view.as_read())?, delta);
        view.put(KEYS, LIVE, Bytes::copy_from_slice(&live.to_be_bytes()))?;
        view.put(ROOTS, &context.number.to_be_bytes(), Bytes::copy_from_slice(root.as_slice()))?;
        Ok(ApplyOutput { root, cache: root })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        self.states.read(view, root, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        owner: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.states.slots_of(view, root, owner, limit)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        self.states.entries(view, root, start, limit)
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut load = ArchiveLoad { states: &self.states, live_keys: 0 };
        let root = ethereum::load(&mut load, entries, sink)?;
        sink.put(KEYS, LIVE, &load.live_keys.to_be_bytes())?;
        sink.put(ROOTS, &number.to_be_bytes(), root.as_slice())?;
        Ok(root)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        self.states.prove(view, root, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify_with(self.states.with, root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &B256) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, self.profile().tables)?;
        let live_keys = live_keys(view)?;
        // One row of KEYS is the count.
        let dead_keys = stats.rows(KEYS).saturating_sub(live_keys + 1);
        Ok(BackendStats { live_keys, dead_keys, ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        _: B256,
        _: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(self.states.with, view, *root, rebuilt, report)
    }

    fn cache_lookups(&self) -> CacheLookups {
        self.states.lookups.lookups()
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            history: Some(self),
            // With another hash function no Ethereum client can check these proofs.
            account_proofs: self.profile().ethereum_root.then_some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl WitnessMaker for MptArchive {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        self.states.witness(view, cache.get()?, block)
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        block_witness::open(self.states.with, root, witness)
    }
}

impl StateHistory for MptArchive {
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let end = |direction| {
            let row = view.scan(ROOTS, KeyRange::ALL, direction)?.next().transpose()?;
            row.map(|(key, _)| block_number(&key)).transpose()
        };
        Ok(end(ScanDirection::Forward)?.zip(end(ScanDirection::Backward)?).map(|(a, b)| a..=b))
    }

    fn open_at(
        &self,
        view: &dyn NodeRead,
        _: &AnyCache,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError> {
        let row = view.get(ROOTS, &number.to_be_bytes())?.ok_or_else(|| {
            StateError::corrupt(ROOTS.name, format!("the row of block {number} is missing"))
        })?;
        let root = decode_root(number, &row)?;
        Ok((root, AnyCache::new(root)))
    }
}

/// A bulk load under way.
struct ArchiveLoad<'a> {
    states: &'a HashedStates,
    live_keys: u64,
}

impl BulkLayout for ArchiveLoad<'_> {
    type Stamp = ();

    fn stamp(&self) {}

    fn hash(&self) -> TrieHash {
        self.states.with
    }

    fn entry(
        &mut self,
        sink: &mut dyn BulkSink,
        key: &BackendKey,
        _: &StateValue,
    ) -> Result<(), StateError> {
        self.live_keys += 1;
        sink.put(KEYS, &key.encode(), &key_mark(self.states.with, key))
    }

    fn build(
        &mut self,
        sink: &mut dyn BulkSink,
        trie: Option<AccountKey>,
        leaves: LeafSorter<()>,
    ) -> Result<B256, StateError> {
        self.states.load_trie(sink, trie, leaves)
    }
}
