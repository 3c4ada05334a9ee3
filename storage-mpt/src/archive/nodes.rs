//! Nodes by hash: their rows, the cache of rows, and lookups through them.

use crate::{
    TrieHash,
    decode::{self, WalkStep},
    ethereum, leaf,
    trie::{Branch, BranchLink, NodeLink, NodeSource, Trie, UpdateRecorder},
};
use alloy_primitives::{B256, Bytes, map::FbBuildHasher};
use alloy_trie::{Nibbles, nodes::RlpNode};
use quick_cache::{Weighter, sync::Cache as LruCache};
use retrie_state::{Account, AccountKey, BackendKey, NodeRead, RowTable, StateError, StateValue};
use std::sync::Arc;

/// Nodes: hash to RLP.
pub const NODES: RowTable = RowTable::new(0x12, "MptArchiveNodes");

/// Rows of nodes in memory. A hash has the same content in every block, on every fork and in every
/// store, so no row in the cache ever becomes wrong.
pub(super) type NodeCache = LruCache<B256, Bytes, RowWeighter, FbBuildHasher<32>>;

/// The weight of a row: its content, its key, and the overhead of the allocator.
#[derive(Clone, Debug)]
pub(super) struct RowWeighter;

impl Weighter<B256, Bytes> for RowWeighter {
    fn weight(&self, _: &B256, row: &Bytes) -> u64 {
        row.len() as u64 + 128
    }
}

/// A cache of at most `bytes`.
pub(super) fn node_cache(bytes: u64) -> NodeCache {
    // Most rows are leaves and sparse branches.
    let rows = (bytes / 256) as usize;
    LruCache::with(rows, bytes, RowWeighter, FbBuildHasher::default(), Default::default())
}

/// The nodes in a view, by hash.
#[derive(Clone, Copy)]
pub(super) struct ArchiveNodes<'a> {
    pub(super) view: &'a dyn NodeRead,
    pub(super) cache: &'a NodeCache,
    pub(super) with: TrieHash,
}

impl ArchiveNodes<'_> {
    fn get(&self, hash: &B256) -> Result<Bytes, StateError> {
        if let Some(row) = self.cache.get(hash) {
            return Ok(row);
        }
        let row = self.view.get(NODES, hash.as_slice())?.ok_or_else(|| {
            StateError::corrupt(NODES.name, format!("no row for the node {hash}"))
        })?;
        self.cache.insert(*hash, row.clone());
        Ok(row)
    }

    /// The value at `key` in the trie under `root`.
    pub(super) fn find(&self, root: B256, key: &B256) -> Result<Option<Bytes>, StateError> {
        if root == self.with.empty_root() {
            return Ok(None);
        }
        let (mut hash, mut depth) = (root, 0);
        loop {
            let row = self.get(&hash)?;
            match decode::step(&row, key, depth) {
                Some(WalkStep::Node(child, at)) => (hash, depth) = (child, at),
                Some(WalkStep::Value(value)) => return Ok(Some(row.slice_ref(value))),
                Some(WalkStep::Absent) => return Ok(None),
                None => return Err(malformed(&hash)),
            }
        }
    }

    /// The account `owner` and its storage root.
    pub(super) fn account(
        &self,
        root: B256,
        owner: &AccountKey,
    ) -> Result<Option<(Account, B256)>, StateError> {
        let Some(leaf) = self.find(root, &self.with.account_path(owner))? else { return Ok(None) };
        let account = leaf::decode_account(&leaf).ok_or_else(|| {
            StateError::corrupt(NODES.name, format!("malformed leaf of account {owner}"))
        })?;
        Ok(Some(account))
    }

    /// The value of `slot` of `owner` in the storage trie under `root`.
    pub(super) fn slot(
        &self,
        root: B256,
        owner: &AccountKey,
        slot: &B256,
    ) -> Result<Option<StateValue>, StateError> {
        let path = self.with.slot_path(owner, slot);
        let Some(leaf) = self.find(root, &path)? else { return Ok(None) };
        let value = leaf::decode_slot_value(&leaf).ok_or_else(|| {
            StateError::corrupt(NODES.name, format!("malformed leaf of slot {slot}"))
        })?;
        Ok(Some(value))
    }

    /// RLP of the node with this reference.
    fn rlp(&self, reference: &RlpNode) -> Result<Bytes, StateError> {
        match reference.as_hash() {
            Some(hash) => self.get(&hash),
            None => Ok(Bytes::copy_from_slice(reference)),
        }
    }
}

fn malformed(hash: &B256) -> StateError {
    StateError::corrupt(NODES.name, format!("malformed row of the node {hash}"))
}

fn malformed_at(path: &Nibbles, reference: &RlpNode) -> StateError {
    reference.as_hash().map_or_else(
        || StateError::corrupt(NODES.name, format!("malformed embedded node at {path:?}")),
        |hash| malformed(&hash),
    )
}

impl NodeSource for ArchiveNodes<'_> {
    type Stamp = ();

    fn load(&self, path: &Nibbles, link: &BranchLink) -> Result<Arc<Branch>, StateError> {
        let reference = link.reference();
        let branch = decode::branch(path, reference, &self.rlp(reference)?);
        branch.map(Arc::new).ok_or_else(|| malformed_at(path, reference))
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<NodeLink, StateError> {
        let link = decode::link(path, reference, &self.rlp(reference)?);
        link.ok_or_else(|| malformed_at(path, reference))
    }

    /// The cache keeps rows, so no branches are kept.
    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        false
    }
}

/// The new nodes of an update.
#[derive(Debug, Default)]
pub(super) struct NewNodes(pub(super) Vec<(B256, Bytes)>);

impl UpdateRecorder for NewNodes {
    type Stamp = ();

    const NODES: bool = true;

    fn stamp(&self) {}

    fn fork(&self) -> Self {
        Self::default()
    }

    fn absorb(&mut self, part: Self) {
        self.0.extend(part.0);
    }

    fn record(&mut self, _: &Nibbles, _: Option<&Branch>, _: Option<&Branch>) {}

    fn nodes(&mut self, nodes: Vec<(B256, Bytes)>) {
        self.0.extend(nodes);
    }
}

/// Reads many keys of one state. Successive keys of one account cost one lookup of the account.
pub(super) struct ArchiveReader<'a> {
    nodes: ArchiveNodes<'a>,
    root: B256,
    /// The account of the last key.
    account: Option<(AccountKey, Option<(Account, B256)>)>,
}

impl<'a> ArchiveReader<'a> {
    pub(super) const fn new(nodes: ArchiveNodes<'a>, root: B256) -> Self {
        Self { nodes, root, account: None }
    }

    pub(super) fn get(&mut self, key: &BackendKey) -> Result<Option<StateValue>, StateError> {
        let account = match &self.account {
            Some((owner, account)) if owner == key.account() => *account,
            _ => {
                let account = self.nodes.account(self.root, key.account())?;
                self.account = Some((*key.account(), account));
                account
            }
        };
        match (key, account) {
            (_, None) => Ok(None),
            (BackendKey::Account(_), Some((account, _))) => Ok(Some(account.encode())),
            (BackendKey::Slot(owner, slot), Some((_, storage))) => {
                self.nodes.slot(storage, owner, slot)
            }
        }
    }
}

/// The tries under one root, for proofs.
pub(super) struct ArchiveTries<'a> {
    pub(super) nodes: ArchiveNodes<'a>,
    pub(super) root: B256,
}

impl<'a> ethereum::StateTries for ArchiveTries<'a> {
    type Stamp = ();
    type Source = ArchiveNodes<'a>;

    fn hash(&self) -> TrieHash {
        self.nodes.with
    }

    fn accounts(&self) -> (Trie, ArchiveNodes<'a>) {
        (Trie::unresolved(self.nodes.with, self.root), self.nodes)
    }

    fn storage(
        &self,
        _: &AccountKey,
        root: B256,
        (): (),
    ) -> Result<(Trie, ArchiveNodes<'a>), StateError> {
        Ok((Trie::unresolved(self.nodes.with, root), self.nodes))
    }
}
