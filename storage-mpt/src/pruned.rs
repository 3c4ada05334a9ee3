//! The layout `pruned` of `mpt-archive`: nodes by hash, and a node is deleted by the block that
//! takes it out of its trie. This is the "MPT" that LVMT and LMPT are measured against: the trie of
//! OpenEthereum, with pruning.
//!
//! | table | key | value |
//! |---|---|---|
//! | [`PRUNED_NODES`] | hash of a node of the account trie | its RLP |
//! | [`PRUNED_NODES`] | hash of a node of a storage trie, exclusive-or the path of its account | its RLP |
//! | [`PRUNED_KEYS`] | state key that has a value | empty |
//! | [`PRUNED_KEYS`] | `ff` | root |
//!
//! **No reference counts.** A row belongs to one trie, and within a trie a node hangs at one place:
//! two keys that have the same nibbles below different slots would be hashes that no attacker can find.
//! So a node that leaves its place is needed nowhere else, and neither a new node nor an old one is
//! looked up to learn whether others need it. Counts would take a read for each written and each
//! deleted node, more than all reads of values.
//!
//! All rows are a function of the state.

use crate::{
    TrieHash,
    archive::{BEHIND_KEYS, DEFAULT_CACHE, HashedNodes, HashedStates, NodeKeys, NodeRecorder},
    block_witness,
    ethereum::{self, AccountDelta, BulkLayout, by_account, slot_items},
    trie::{LeafSorter, LeafUpdate, NodeChanges, Trie},
    verify,
};
use alloy_primitives::{B256, Bytes, map::B256HashSet};
use rayon::prelude::*;
use retrie_state::{
    AccountKey, AccountNodes, AccountProofs, AnyCache, ApplyContext, ApplyOutput, Backend,
    BackendDelta, BackendExtensions, BackendIdentity, BackendKey, BackendProfile, BackendStats,
    BulkSink, CacheLookups, NodeRead, NodeWrite, ProofError, RowTable, StateChange, StateError,
    StateValue, WitnessMaker, WitnessRequest, WitnessSupport, compare_rows,
    descriptor::WitnessResult,
};
use std::{fmt, path::Path};

/// Nodes: hash, bound to its trie, to RLP.
pub const PRUNED_NODES: RowTable = RowTable::new(0x15, "MptPrunedNodes");
/// The keys that have a value, since the trie contains only hashes of keys; and the root.
pub const PRUNED_KEYS: RowTable = RowTable::new(0x16, "MptPrunedKeys");

/// Key of the row of [`PRUNED_KEYS`] that holds the root.
const ROOT: &[u8] = BEHIND_KEYS;

/// Ethereum's Merkle Patricia trie, keyed by hash, latest state only.
pub struct PrunedMpt {
    identity: BackendIdentity,
    states: HashedStates,
}

impl fmt::Debug for PrunedMpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrunedMpt").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl PrunedMpt {
    /// Name of the layout.
    pub const LAYOUT: &'static str = "pruned";

    /// The backend. With keccak-256 its roots are Ethereum's.
    pub fn new(with: TrieHash) -> Self {
        Self::with_cache(with, DEFAULT_CACHE)
    }

    /// As [`new`](Self::new) with another budget for the cache of nodes, in bytes.
    pub fn with_cache(with: TrieHash, bytes: u64) -> Self {
        let plain = BackendIdentity::plain("mpt-archive", 1, with.id());
        let identity = BackendIdentity { layout: Self::LAYOUT, ..plain };
        let states = HashedStates::new(with, bytes, PRUNED_NODES, NodeKeys::OfTrie, PRUNED_KEYS);
        Self { identity, states }
    }

    /// Updates the storage of one account.
    fn update_storage(
        &self,
        accounts: HashedNodes<'_>,
        root: B256,
        touched: &AccountDelta<'_>,
    ) -> Result<UpdatedStorage, StateError> {
        let with = self.states.with;
        let path = with.account_path(&touched.owner);
        let (before, nodes) = (accounts.account(root, &path)?, accounts.of_storage(path));
        let before = before.map(|(account, root)| (account, Trie::unresolved(with, root)));
        let mut recorder = NodeRecorder::default();
        if let (Some((_, storage)), Some(StateChange { next: None, .. })) =
            (&before, touched.account)
        {
            let items = slot_items(with, touched.slots, true)?;
            if !storage.update(&nodes, &items, &mut recorder)?.is_empty() {
                let what = format!("it deletes account {}, but not all its slots", touched.owner);
                return Err(StateError::corrupt("delta", what));
            }
        }
        // A delta lists all slots of a wiped storage, so this takes out each of its nodes.
        let listed = AccountDelta { wiped: false, ..*touched };
        let (item, _) = listed.after(with, before, &nodes, &mut recorder)?;
        let mask = self.states.node_keys.mask(path);
        Ok(UpdatedStorage { item, mask, changes: recorder.0 })
    }

    /// Writes the new nodes of a trie, whose rows have this `mask`, and deletes the old ones.
    fn write_nodes(
        &self,
        view: &mut dyn NodeWrite,
        mask: B256,
        changes: NodeChanges,
    ) -> Result<(), StateError> {
        let NodeChanges { added, removed } = changes;
        let old: B256HashSet = removed.iter().copied().collect();
        let mut kept = B256HashSet::default();
        for (hash, row) in added {
            if old.contains(&hash) {
                kept.insert(hash);
                continue;
            }
            self.states.cache.insert(hash, row.clone());
            // The old trie does not have it anywhere.
            view.replace(PRUNED_NODES, (hash ^ mask).as_slice(), None, Some(row))?;
        }
        for hash in removed.into_iter().filter(|hash| !kept.contains(hash)) {
            let key = hash ^ mask;
            match self.states.cache.remove(&hash) {
                Some((_, row)) => view.replace(PRUNED_NODES, key.as_slice(), Some(row), None)?,
                None => view.delete(PRUNED_NODES, key.as_slice())?,
            }
        }
        Ok(())
    }
}

/// The result of a block for the storage of one account.
struct UpdatedStorage {
    /// Its item for the account trie.
    item: LeafUpdate,
    /// The exclusive-or of a row's key and the hash of its node.
    mask: B256,
    changes: NodeChanges,
}

impl AccountProofs for PrunedMpt {
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.states.account_nodes(view, cache.get()?, owner, slots)
    }

    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        removed: &[BackendKey],
    ) -> Result<Vec<Bytes>, StateError> {
        self.states.merge_nodes(view, cache.get()?, removed)
    }
}

impl Backend for PrunedMpt {
    /// The root of the state.
    type Cache = B256;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[PRUNED_NODES, PRUNED_KEYS],
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
        let Some(row) = view.get(PRUNED_KEYS, ROOT)? else {
            return Ok(self.states.with.empty_root());
        };
        let root = B256::try_from(&row[..]);
        root.map_err(|_| StateError::corrupt(PRUNED_KEYS.name, "the row `ff` is not a root"))
    }

    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &B256,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<B256>, StateError> {
        let (with, nodes) = (self.states.with, self.states.nodes(view.as_read()));
        let done = by_account(delta)
            .par_iter()
            .with_min_len(4)
            .map(|touched| self.update_storage(nodes, *parent, touched))
            .collect::<Result<Vec<_>, _>>()?;
        let mut items: Vec<LeafUpdate> = done.iter().map(|done| done.item.clone()).collect();
        items.sort_unstable_by_key(|item| item.key);
        let mut above = NodeRecorder::default();
        let root = Trie::unresolved(with, *parent).update(&nodes, &items, &mut above)?.hash();

        for UpdatedStorage { mask, changes, .. } in done {
            self.write_nodes(view, mask, changes)?;
        }
        self.write_nodes(view, B256::ZERO, above.0)?;
        for StateChange { key, previous, next } in delta.changes() {
            match (previous, next) {
                (None, Some(_)) => view.put(PRUNED_KEYS, &key.encode(), Bytes::new())?,
                (Some(_), None) => view.delete(PRUNED_KEYS, &key.encode())?,
                _ => {}
            }
        }
        view.put(PRUNED_KEYS, ROOT, Bytes::copy_from_slice(root.as_slice()))?;
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
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let root = ethereum::load(&mut PrunedLoad { states: &self.states }, entries, sink)?;
        sink.put(PRUNED_KEYS, ROOT, root.as_slice())?;
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
        // One row is the root.
        let live_keys = stats.rows(PRUNED_KEYS).saturating_sub(1);
        Ok(BackendStats { live_keys, ..stats })
    }

    /// Rows are a function of the values, so they must equal the rows of the rebuilt state.
    fn check(
        &self,
        view: &dyn NodeRead,
        _: &B256,
        _: B256,
        _: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        let Some(rebuilt) = rebuilt else { return Ok(()) };
        compare_rows(PRUNED_NODES, view, rebuilt, report)?;
        compare_rows(PRUNED_KEYS, view, rebuilt, report)
    }

    fn cache_lookups(&self) -> CacheLookups {
        self.states.lookups.lookups()
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            // With another hash function no Ethereum client can check these proofs.
            account_proofs: self.profile().ethereum_root.then_some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl WitnessMaker for PrunedMpt {
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

/// A bulk load under way.
struct PrunedLoad<'a> {
    states: &'a HashedStates,
}

impl BulkLayout for PrunedLoad<'_> {
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
        sink.put(PRUNED_KEYS, &key.encode(), &[])
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
