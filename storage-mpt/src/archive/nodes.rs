//! Nodes by hash: their rows, the cache of rows, and lookups through them.

use crate::{
    TrieHash,
    decode::{self, WalkStep},
    leaf,
    trie::{Branch, BranchLink, NodeChanges, NodeLink, NodeSource, UpdateRecorder},
};
use alloy_primitives::{B256, Bytes, map::FbBuildHasher};
use alloy_trie::{Nibbles, nodes::RlpNode};
use quick_cache::{Weighter, sync::Cache as LruCache};
use retrie_state::{Account, LookupCounter, NodeRead, RowTable, StateError, StateValue};
use std::sync::Arc;

/// Rows of nodes in memory, by hash. A hash has the same content in every block, on every fork and
/// in every store, so no row in the cache ever becomes wrong.
pub(crate) type NodeCache = LruCache<B256, Bytes, RowWeighter, FbBuildHasher<32>>;

/// The weight of a row: its content, its key, and the overhead of the allocator.
#[derive(Clone, Debug)]
pub(crate) struct RowWeighter;

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

/// The keys of the rows of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKeys {
    /// The hash of the node. All tries that have the node share its row.
    Shared,
    /// In the account trie the hash of the node; in a storage trie this, exclusive-or the path of
    /// its account. So each trie has rows of its own.
    OfTrie,
}

impl NodeKeys {
    /// The exclusive-or of a row's key and the hash of its node, in the storage trie of the account
    /// with this path.
    pub(crate) const fn mask(self, account: B256) -> B256 {
        match self {
            Self::Shared => B256::ZERO,
            Self::OfTrie => account,
        }
    }
}

/// The nodes of one trie in a view, by hash; first of the account trie.
#[derive(Clone, Copy)]
pub(crate) struct HashedNodes<'a> {
    pub(super) view: &'a dyn NodeRead,
    pub(super) cache: &'a NodeCache,
    pub(super) lookups: &'a LookupCounter,
    pub(super) with: TrieHash,
    pub(super) table: RowTable,
    pub(super) keys: NodeKeys,
    /// The exclusive-or of a row's key and the hash of its node.
    pub(super) mask: B256,
}

impl HashedNodes<'_> {
    /// The nodes of the storage trie of the account with this path.
    pub(crate) const fn of_storage(&self, account: B256) -> Self {
        Self { mask: self.keys.mask(account), ..*self }
    }

    fn get(&self, hash: &B256) -> Result<Bytes, StateError> {
        if let Some(row) = self.cache.get(hash) {
            self.lookups.hit(hash[0]);
            return Ok(row);
        }
        self.lookups.miss(hash[0]);
        let key = *hash ^ self.mask;
        let row = self.view.get(self.table, key.as_slice())?;
        let row = row.ok_or_else(|| self.corrupt(format!("no row for the node {hash}")))?;
        self.cache.insert(*hash, row.clone());
        Ok(row)
    }

    fn corrupt(&self, what: String) -> StateError {
        StateError::corrupt(self.table.name, what)
    }

    fn malformed(&self, hash: &B256) -> StateError {
        self.corrupt(format!("malformed row of the node {hash}"))
    }

    fn malformed_at(&self, path: &Nibbles, reference: &RlpNode) -> StateError {
        reference.as_hash().map_or_else(
            || self.corrupt(format!("malformed embedded node at {path:?}")),
            |hash| self.malformed(&hash),
        )
    }

    /// The value at `key` in the trie under `root`.
    fn find(&self, root: B256, key: &B256) -> Result<Option<Bytes>, StateError> {
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
                None => return Err(self.malformed(&hash)),
            }
        }
    }

    /// The account with this path in the account trie under `root`, and its storage root.
    pub(crate) fn account(
        &self,
        root: B256,
        path: &B256,
    ) -> Result<Option<(Account, B256)>, StateError> {
        let Some(leaf) = self.find(root, path)? else { return Ok(None) };
        let account = leaf::decode_account(&leaf);
        account.map(Some).ok_or_else(|| self.corrupt(format!("malformed leaf of account {path}")))
    }

    /// The value of the slot with this path in the storage trie under `root`.
    pub(crate) fn slot(&self, root: B256, path: &B256) -> Result<Option<StateValue>, StateError> {
        let Some(leaf) = self.find(root, path)? else { return Ok(None) };
        let value = leaf::decode_slot_value(&leaf);
        value.map(Some).ok_or_else(|| self.corrupt(format!("malformed leaf of slot {path}")))
    }

    /// RLP of the node with this reference.
    fn rlp(&self, reference: &RlpNode) -> Result<Bytes, StateError> {
        match reference.as_hash() {
            Some(hash) => self.get(&hash),
            None => Ok(Bytes::copy_from_slice(reference)),
        }
    }
}

impl NodeSource for HashedNodes<'_> {
    type Stamp = ();

    fn load(&self, path: &Nibbles, link: &BranchLink) -> Result<Arc<Branch>, StateError> {
        let reference = link.reference();
        let branch = decode::branch(path, reference, &self.rlp(reference)?);
        branch.map(Arc::new).ok_or_else(|| self.malformed_at(path, reference))
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<NodeLink, StateError> {
        let link = decode::link(path, reference, &self.rlp(reference)?);
        link.ok_or_else(|| self.malformed_at(path, reference))
    }

    /// The cache keeps rows, so no branches are kept.
    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        false
    }
}

/// Records the nodes that an update adds and removes.
#[derive(Debug, Default)]
pub(crate) struct NodeRecorder(pub(crate) NodeChanges);

impl UpdateRecorder for NodeRecorder {
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

    fn nodes(&mut self, changes: NodeChanges) {
        self.0.extend(changes);
    }
}
