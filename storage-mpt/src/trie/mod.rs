//! The Merkle Patricia trie, independent of any row layout. Other stores that are tries, or contain
//! tries, build on it.
//!
//! A [`Trie`] is a value in memory that usually holds a small part of its nodes. Missing nodes come
//! from a [`NodeSource`], changes go to an [`UpdateRecorder`]. Both are type parameters, and so is
//! the [`RowStamp`], by which links find the rows of branches where the path alone is not enough; a
//! store pays only for what it uses.
//!
//! | a store that | has |
//! |---|---|
//! | keeps the latest version of rows by path ([`Mpt`](crate::Mpt)) | [`RowSource`] and [`RowRecorder`], stamp `()` |
//! | keeps all versions of rows, by path and block | [`RowSource`] and [`RowRecorder`], stamp `u64`: a parent names the block that wrote its child's row, so every read is an exact `get`; the store puts the changed rows that have a `next`, and may delete the others when no kept state needs them |
//! | keeps nodes by hash ([`MptArchive`](crate::MptArchive), [`PrunedMpt`](crate::PrunedMpt)) | a source that [resolves](NodeSource::resolve) links, a recorder that needs [nodes](UpdateRecorder::NODES) |
//! | has a whole trie in memory | [`MemorySource`], and `()` for a recorder |
//! | learns of items before its batch is complete | [`EarlySubtries`] and [`Trie::update_after`] |
//! | works in the background | [`SequentialSource`] around its source: only the calling thread works |
//! | loads a whole trie in bounded memory | [`LeafSorter`] |
//! | builds a trie in steps of its own | [`BuiltSubtrie::build`] for disjoint subtries in key order, [`Trie::join`] at the end |
//! | has several tries under one root | [`verify::walk`](crate::verify::walk) for each of them |
//!
//! The store chooses tables and key prefixes: a [`RowPlace`] names them. [`record`] documents the
//! bytes of rows.

mod early;
mod node;
mod packed;
pub mod record;
mod sorter;
mod source;
mod stamp;
mod table;
mod update;

pub use early::EarlySubtries;
pub use node::{Branch, BranchChildren, BranchLink, Leaf, NodeLink};
pub use packed::PackedValue;
pub use sorter::LeafSorter;
pub use source::{
    BuildSource, MemorySource, NodeChanges, NodeSource, SequentialSource, UpdateRecorder,
};
pub use stamp::RowStamp;
pub use table::{RowChange, RowPlace, RowRecorder, RowSource};

pub(crate) use node::NodeEncoder;
pub(crate) use table::write;

use crate::hash::TrieHash;
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::StateError;
use std::sync::Arc;
use update::{BuildEntry, LeafInsert, PlacedLink, SlotOutcome, TrieUpdate};

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafUpdate<S = ()> {
    /// The hashed key.
    pub key: B256,
    /// The new value of the leaf; `None` removes the key if it is there.
    pub value: Option<Bytes>,
    /// Version of the rows that the value names.
    pub stamp: S,
}

impl<S: RowStamp> LeafUpdate<S> {
    /// A change whose value names no rows.
    pub fn new(key: B256, value: Option<Bytes>) -> Self {
        Self { key, value, stamp: S::default() }
    }
}

/// A Merkle Patricia trie over 32-byte keys. Immutable; clones share all nodes.
#[derive(Clone, Debug)]
pub struct Trie<S = ()> {
    root: Option<NodeLink<S>>,
    hash: B256,
    with: TrieHash,
}

impl Default for Trie {
    fn default() -> Self {
        Self::empty(TrieHash::Keccak256)
    }
}

impl<S: RowStamp> Trie<S> {
    /// The trie without keys, hashed `with` this function.
    pub const fn empty(with: TrieHash) -> Self {
        Self { root: None, hash: with.empty_root(), with }
    }

    /// The trie of which only the root hash is known.
    pub(crate) fn unresolved(with: TrieHash, hash: B256) -> Self {
        let is_empty = hash == with.empty_root();
        let root = (!is_empty).then(|| NodeLink::Unresolved(RlpNode::word_rlp(&hash)));
        Self { root, hash, with }
    }

    /// The trie with `root` at its root slot, hashed with keccak-256.
    pub fn from_root(root: Option<NodeLink<S>>) -> Self {
        let with = TrieHash::Keccak256;
        Self::hung(with, root, &mut NodeEncoder::new(with))
    }

    fn hung(with: TrieHash, root: Option<NodeLink<S>>, encoder: &mut NodeEncoder) -> Self {
        let hash = match &root {
            None => with.empty_root(),
            Some(link) => {
                // 32-byte keys make every root long enough to have a hash of its own.
                let reference = link.reference(0, encoder);
                reference.as_hash().unwrap_or_else(|| with.hash(&reference))
            }
        };
        Self { root, hash, with }
    }

    /// The hash function of its nodes.
    pub(crate) const fn hash_function(&self) -> TrieHash {
        self.with
    }

    /// What hangs at the root slot.
    pub const fn root(&self) -> Option<&NodeLink<S>> {
        self.root.as_ref()
    }

    /// The root hash.
    pub const fn hash(&self) -> B256 {
        self.hash
    }

    /// Whether it has no keys.
    pub const fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Number of branches that are in memory.
    pub fn cached(&self) -> usize {
        match &self.root {
            Some(NodeLink::Branch(link)) => link.node().map_or(0, |node| node.cached),
            _ => 0,
        }
    }

    /// The value at `key`.
    pub fn get(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
    ) -> Result<Option<Bytes>, StateError> {
        let leaf = self.walk(source, key, |_, _| ())?;
        Ok(leaf.map(|leaf| leaf.value().clone()))
    }

    /// The leaf of `key`.
    pub fn leaf(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
    ) -> Result<Option<Arc<Leaf<S>>>, StateError> {
        self.walk(source, key, |_, _| ())
    }

    /// Appends the nodes on the path of `key` to `proof`, from the root down to the leaf or to the
    /// node that shows its absence, without embedded nodes: what EIP-1186 calls a proof. The empty
    /// trie has no nodes.
    pub fn prove(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
        proof: &mut Vec<Bytes>,
    ) -> Result<Option<Arc<Leaf<S>>>, StateError> {
        let mut add = |rlp: &[u8], depth: usize| {
            // The root is listed even if it is shorter than 32 bytes.
            if depth == 0 || rlp.len() >= 32 {
                proof.push(Bytes::copy_from_slice(rlp));
            }
        };
        let mut encoder = NodeEncoder::new(self.with);
        self.walk(source, key, |visited, depth| match visited {
            VisitedNode::Link(link) => {
                if link.encode_short(depth, &mut encoder) {
                    add(&encoder.rlp, depth);
                }
            }
            VisitedNode::Branch(branch) => {
                branch.encode(depth, &mut encoder);
                add(&encoder.rlp, depth);
            }
        })
    }

    /// The branch whose own path this is.
    pub(crate) fn branch_at(
        &self,
        source: &impl NodeSource<Stamp = S>,
        path: &Nibbles,
    ) -> Result<Option<Arc<Branch<S>>>, StateError> {
        let mut slot = Nibbles::new();
        let mut next = self.root.clone();
        while let Some(link) = next {
            let NodeLink::Branch(link) = resolved(source, &slot, link)? else { return Ok(None) };
            let own = link.path(&slot);
            if own == *path {
                return loaded(source, &own, &link).map(Some);
            }
            let Some(nibble) = path.get(own.len()).filter(|_| path.starts_with(&own)) else {
                return Ok(None);
            };
            next = loaded(source, &own, &link)?.children[usize::from(nibble)].clone();
            slot = child_slot(&own, nibble);
        }
        Ok(None)
    }

    /// Goes down to `key` and calls `visit` for each link and each branch, with its depth.
    fn walk(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
        mut visit: impl FnMut(VisitedNode<'_, S>, usize),
    ) -> Result<Option<Arc<Leaf<S>>>, StateError> {
        let key_path = Nibbles::unpack_array(&key.0);
        let mut slot = Nibbles::new();
        let mut next = self.root.clone();
        while let Some(link) = next {
            let link = resolved(source, &slot, link)?;
            visit(VisitedNode::Link(&link), slot.len());
            match link {
                NodeLink::Leaf(leaf) => {
                    return Ok((leaf.key() == key).then_some(leaf));
                }
                NodeLink::Unresolved(_) => return Err(unresolvable(&slot)),
                NodeLink::Branch(link) => {
                    let path = link.path(&slot);
                    if !key_path.starts_with(&path) {
                        return Ok(None);
                    }
                    let branch = loaded(source, &path, &link)?;
                    visit(VisitedNode::Branch(&branch), path.len());
                    let nibble = nibble_at(&key_path, &path)?;
                    next = branch.children[nibble as usize].clone();
                    slot = child_slot(&path, nibble);
                }
            }
        }
        Ok(None)
    }

    /// The trie after all of `items`, which must be sorted by key and have one item a key.
    ///
    /// Each touched branch is loaded once, hashed once and recorded once, in an order that depends
    /// on the items alone. A branch collapses into its only child only if the whole batch leaves it
    /// with one child; only then an unresolved child is resolved.
    pub fn update<R: UpdateRecorder<Stamp = S>>(
        &self,
        source: &impl NodeSource<Stamp = S>,
        items: &[LeafUpdate<S>],
        recorder: &mut R,
    ) -> Result<Self, StateError> {
        self.update_after(None, source, items, recorder)
    }

    /// As [`update`](Self::update), but takes finished subtries from `early`, which belongs to this
    /// trie.
    pub fn update_after<R: UpdateRecorder<Stamp = S>>(
        &self,
        early: Option<&EarlySubtries<R>>,
        source: &impl NodeSource<Stamp = S>,
        items: &[LeafUpdate<S>],
        recorder: &mut R,
    ) -> Result<Self, StateError> {
        debug_assert!(items.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted by key");
        let mut update = TrieUpdate::new(source, recorder, self.with, early);
        let outcome = update.slot(self.root.as_ref(), &Nibbles::new(), items)?;
        let trie = match outcome {
            SlotOutcome::Same => self.clone(),
            SlotOutcome::New(root) => Self::hung(self.with, root, &mut update.encoder),
        };
        update.finish_into(recorder);
        Ok(trie)
    }

    /// The trie that consists of these subtries, which are disjoint and in key order.
    pub fn join<R: UpdateRecorder<Stamp = S>>(
        with: TrieHash,
        source: &impl NodeSource<Stamp = S>,
        parts: &[BuiltSubtrie<S>],
        recorder: &mut R,
    ) -> Self {
        let parts: Vec<_> = parts.iter().map(|part| part.0.clone()).collect();
        let mut update = TrieUpdate::new(source, recorder, with, None);
        let root = (!parts.is_empty()).then(|| update.build(&Nibbles::new(), &parts));
        let trie = Self::hung(with, root, &mut update.encoder);
        update.finish_into(recorder);
        trie
    }
}

/// A subtrie that was built on its own, to be [joined](Trie::join) with others.
#[derive(Clone, Debug)]
pub struct BuiltSubtrie<S = ()>(PlacedLink<S>);

impl<S: RowStamp> BuiltSubtrie<S> {
    /// The subtrie of `items`, which are all below `slot`, sorted by key, one item a key; `None` if
    /// none of them has a value. Its branches are recorded; only the extension above them is left
    /// to the join.
    pub fn build<R: UpdateRecorder<Stamp = S>>(
        with: TrieHash,
        source: &impl NodeSource<Stamp = S>,
        slot: &Nibbles,
        items: &[LeafUpdate<S>],
        recorder: &mut R,
    ) -> Option<Self> {
        debug_assert!(items.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted by key");
        let inserts: Vec<_> = items.iter().filter_map(LeafInsert::from_item).collect();
        if inserts.is_empty() {
            return None;
        }
        let mut update = TrieUpdate::new(source, recorder, with, None);
        let part = PlacedLink::taken_from(slot, update.build(slot, &inserts));
        update.finish_into(recorder);
        Some(Self(part))
    }

    /// Reference of its topmost node when it hangs at `slot`.
    pub(crate) fn reference(&self, slot: &Nibbles, encoder: &mut NodeEncoder) -> RlpNode {
        self.0.hang_at(slot).reference(slot.len(), encoder)
    }
}

/// What a walk visits.
enum VisitedNode<'a, S> {
    Link(&'a NodeLink<S>),
    Branch(&'a Branch<S>),
}

pub(crate) fn resolved<S: RowStamp>(
    source: &impl NodeSource<Stamp = S>,
    slot: &Nibbles,
    link: NodeLink<S>,
) -> Result<NodeLink<S>, StateError> {
    match link {
        NodeLink::Unresolved(reference) => source.resolve(slot, &reference),
        link => Ok(link),
    }
}

pub(crate) fn loaded<S: RowStamp>(
    source: &impl NodeSource<Stamp = S>,
    path: &Nibbles,
    link: &BranchLink<S>,
) -> Result<Arc<Branch<S>>, StateError> {
    match link.node() {
        Some(node) => {
            source.found(path);
            Ok(node.clone())
        }
        None => source.load(path, link),
    }
}

fn unresolvable(slot: &Nibbles) -> StateError {
    StateError::corrupt("trie", format!("the node at {slot:?} resolves to nothing"))
}

/// The nibble of `key` below the branch at `path`.
fn nibble_at(key: &Nibbles, path: &Nibbles) -> Result<u8, StateError> {
    key.get(path.len())
        .ok_or_else(|| StateError::corrupt("trie", format!("a branch below the full key {path:?}")))
}

/// The slot of a child of the branch at `path`.
pub(crate) fn child_slot(path: &Nibbles, nibble: u8) -> Nibbles {
    let mut slot = *path;
    slot.push(nibble);
    slot
}

/// The smallest and the largest key below `slot`.
pub(crate) fn key_bounds(slot: &Nibbles) -> [B256; 2] {
    let [mut first, mut last] = [B256::ZERO, B256::repeat_byte(0xff)];
    let packed = slot.pack();
    let whole = slot.len() / 2;
    first[..whole].copy_from_slice(&packed[..whole]);
    last[..whole].copy_from_slice(&packed[..whole]);
    if slot.len() % 2 == 1 {
        first[whole] = packed[whole] & 0xf0;
        last[whole] = packed[whole] | 0x0f;
    }
    [first, last]
}
