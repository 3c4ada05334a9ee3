//! Nodes in memory. They are immutable and shared: an update makes new branches along the touched
//! paths and keeps the rest.

use super::{source::NodeChanges, stamp::RowStamp};
use crate::hash::TrieHash;
use alloy_primitives::{B256, Bytes};
use alloy_trie::{
    Nibbles, TrieMask,
    nodes::{BranchNodeRef, ExtensionNodeRef, LeafNodeRef, RlpNode},
};
use std::sync::{Arc, OnceLock};

/// Encodes and hashes nodes, one at a time.
#[derive(Debug)]
pub(crate) struct NodeEncoder {
    hash: TrieHash,
    /// RLP of the last node.
    pub(crate) rlp: Vec<u8>,
    /// The nodes it hashed, and those they replace, if they are collected.
    changes: Option<NodeChanges>,
}

impl NodeEncoder {
    pub(crate) fn new(hash: TrieHash) -> Self {
        Self { hash, rlp: Vec::with_capacity(600), changes: None }
    }

    /// An encoder that collects the nodes it hashes.
    pub(crate) fn collecting(hash: TrieHash) -> Self {
        Self { changes: Some(NodeChanges::default()), ..Self::new(hash) }
    }

    /// An empty encoder of the same kind.
    pub(crate) fn fork(&self) -> Self {
        if self.changes.is_some() { Self::collecting(self.hash) } else { Self::new(self.hash) }
    }

    /// Adds the nodes that another encoder collected.
    pub(crate) fn absorb(&mut self, part: Self) {
        if let (Some(all), Some(part)) = (&mut self.changes, part.changes) {
            all.extend(part);
        }
    }

    /// Collects the node with this reference, if it has a hash, as one that leaves its place.
    pub(crate) fn remove(&mut self, reference: &RlpNode) {
        if let Some(changes) = &mut self.changes {
            changes.removed.extend(reference.as_hash());
        }
    }

    /// The collected nodes.
    pub(crate) fn into_changes(self) -> NodeChanges {
        self.changes.unwrap_or_default()
    }

    fn encode(&mut self, node: &impl alloy_rlp::Encodable) {
        self.rlp.clear();
        node.encode(&mut self.rlp);
    }

    /// Reference of the last node.
    fn reference(&mut self) -> RlpNode {
        if self.rlp.len() < 32
            && let Some(embedded) = RlpNode::from_raw(&self.rlp)
        {
            return embedded;
        }
        let hash = self.hash.hash(&self.rlp);
        if let Some(changes) = &mut self.changes {
            changes.added.push((hash, Bytes::copy_from_slice(&self.rlp)));
        }
        RlpNode::word_rlp(&hash)
    }
}

/// What hangs at a slot of the trie.
#[derive(Clone, Debug)]
pub enum NodeLink<S = ()> {
    /// A node of which only the reference is known: occurs in tries whose nodes are addressed by
    /// hash.
    Unresolved(RlpNode),
    /// A leaf. It stores its whole key, so it stays the same at any slot.
    Leaf(Arc<Leaf<S>>),
    /// A branch, possibly below an extension.
    Branch(BranchLink<S>),
}

/// A key with its value.
#[derive(Debug)]
pub struct Leaf<S = ()> {
    key: B256,
    value: Bytes,
    stamp: S,
    /// The first reference that was computed, with its depth in nibbles.
    reference: OnceLock<(usize, RlpNode)>,
}

impl<S: RowStamp> Leaf<S> {
    /// A leaf; `value` is the byte string in the leaf node (for example the RLP of an account).
    pub const fn new(key: B256, value: Bytes, stamp: S) -> Self {
        Self { key, value, stamp, reference: OnceLock::new() }
    }

    /// The whole key.
    pub const fn key(&self) -> &B256 {
        &self.key
    }

    /// The value.
    pub const fn value(&self) -> &Bytes {
        &self.value
    }

    /// Version of the rows that the value names.
    pub const fn stamp(&self) -> S {
        self.stamp
    }

    pub(crate) fn path(&self) -> Nibbles {
        Nibbles::unpack_array(&self.key.0)
    }

    fn encode(&self, depth: usize, encoder: &mut NodeEncoder) {
        let suffix = self.path().slice(depth..);
        encoder.encode(&LeafNodeRef::new(&suffix, &self.value));
    }

    fn reference(&self, depth: usize, encoder: &mut NodeEncoder) -> RlpNode {
        if let Some((at, reference)) = self.reference.get()
            && *at == depth
        {
            return reference.clone();
        }
        self.encode(depth, encoder);
        let reference = encoder.reference();
        // The first reference stays cached; a leaf that moved to another depth computes its own.
        let _ = self.reference.set((depth, reference.clone()));
        reference
    }
}

/// A link from a slot to the branch below it.
#[derive(Clone, Debug)]
pub struct BranchLink<S = ()> {
    /// The branch's path, if there is an extension: then it differs from the slot's path.
    path: Option<Box<Nibbles>>,
    reference: RlpNode,
    stamp: S,
    node: Option<Arc<Branch<S>>>,
}

impl<S: RowStamp> BranchLink<S> {
    /// Link from the slot `slot` to the branch at `path`, which starts with `slot`.
    pub fn new(slot: &Nibbles, path: &Nibbles, reference: RlpNode, stamp: S) -> Self {
        let path = (path.len() != slot.len()).then(|| Box::new(*path));
        Self { path, reference, stamp, node: None }
    }

    /// Link from the slot `slot` to `branch` at `path`, which starts with `slot`. The branch stays
    /// in memory if `kept` is set.
    pub(crate) fn to(slot: &Nibbles, path: &Nibbles, branch: Branch<S>, kept: bool) -> Self {
        let link = Self::new(slot, path, branch.reference.clone(), branch.stamp);
        Self { node: kept.then(|| Arc::new(branch)), ..link }
    }

    /// A link to the same branch from another slot.
    pub(super) fn hung_at(&self, slot: &Nibbles, path: &Nibbles) -> Self {
        let link = Self::new(slot, path, self.reference.clone(), self.stamp);
        Self { node: self.node.clone(), ..link }
    }

    /// Path of the branch, which hangs at `slot`.
    pub fn path(&self, slot: &Nibbles) -> Nibbles {
        self.path.as_deref().copied().unwrap_or(*slot)
    }

    /// Reference of the branch itself, without the extension.
    pub const fn reference(&self) -> &RlpNode {
        &self.reference
    }

    /// Version of the branch's row.
    pub const fn stamp(&self) -> S {
        self.stamp
    }

    /// The branch, if it is in memory.
    pub const fn node(&self) -> Option<&Arc<Branch<S>>> {
        self.node.as_ref()
    }

    /// Whether there is an extension above the branch.
    pub const fn has_extension(&self) -> bool {
        self.path.is_some()
    }

    /// Encodes the extension that hangs at `depth`, if there is one.
    fn encode_extension(&self, depth: usize, encoder: &mut NodeEncoder) -> bool {
        let Some(path) = &self.path else { return false };
        let extension = path.slice(depth..);
        encoder.encode(&ExtensionNodeRef::new(&extension, &self.reference));
        true
    }
}

impl<S: RowStamp> NodeLink<S> {
    /// Reference of the topmost node at a slot of depth `depth` (in nibbles).
    pub(crate) fn reference(&self, depth: usize, encoder: &mut NodeEncoder) -> RlpNode {
        match self {
            Self::Unresolved(reference) => reference.clone(),
            Self::Leaf(leaf) => leaf.reference(depth, encoder),
            Self::Branch(link) => {
                if link.encode_extension(depth, encoder) {
                    encoder.reference()
                } else {
                    link.reference.clone()
                }
            }
        }
    }

    /// Encodes the topmost node at a slot of depth `depth`, if it is a leaf or an extension.
    pub(crate) fn encode_short(&self, depth: usize, encoder: &mut NodeEncoder) -> bool {
        match self {
            Self::Unresolved(_) => false,
            Self::Leaf(leaf) => {
                leaf.encode(depth, encoder);
                true
            }
            Self::Branch(link) => link.encode_extension(depth, encoder),
        }
    }

    /// Whether both links say the same at the same slot.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf(one), Self::Leaf(other)) => {
                Arc::ptr_eq(one, other)
                    || (one.key, &one.value, one.stamp) == (other.key, &other.value, other.stamp)
            }
            (Self::Branch(one), Self::Branch(other)) => {
                (&one.reference, one.stamp, &one.path)
                    == (&other.reference, other.stamp, &other.path)
            }
            _ => false,
        }
    }

    fn cached(&self) -> usize {
        match self {
            Self::Branch(BranchLink { node: Some(node), .. }) => node.cached,
            _ => 0,
        }
    }
}

/// The children of a branch, by nibble.
pub type BranchChildren<S = ()> = [Option<NodeLink<S>>; 16];

/// A branch node. Its own path is known from where it hangs.
#[derive(Debug)]
pub struct Branch<S = ()> {
    pub(super) children: BranchChildren<S>,
    pub(super) reference: RlpNode,
    pub(super) stamp: S,
    /// Branches in memory from this one down, this one included.
    pub(super) cached: usize,
    /// The row it was read from, if any.
    pub(super) row: Option<Bytes>,
    /// The older rows that it was read from, too.
    pub(super) bases: Vec<S>,
}

impl<S: RowStamp> Branch<S> {
    /// A branch at `path`, hashed.
    pub(super) fn hash(
        path: &Nibbles,
        children: BranchChildren<S>,
        stamp: S,
        encoder: &mut NodeEncoder,
    ) -> Self {
        encode_branch(&children, path.len(), encoder);
        Self::new(children, encoder.reference(), stamp)
    }

    /// A branch whose reference is known.
    pub fn new(children: BranchChildren<S>, reference: RlpNode, stamp: S) -> Self {
        let cached = 1 + children.iter().flatten().map(NodeLink::cached).sum::<usize>();
        Self { children, reference, stamp, cached, row: None, bases: Vec::new() }
    }

    /// What hangs at each nibble.
    pub const fn children(&self) -> &BranchChildren<S> {
        &self.children
    }

    /// Its reference, without an extension above it.
    pub const fn reference(&self) -> &RlpNode {
        &self.reference
    }

    /// Version of its row.
    pub const fn stamp(&self) -> S {
        self.stamp
    }

    /// This branch, read from a row that is completed by older rows of the same path, which have
    /// these stamps.
    #[must_use]
    pub fn with_bases(self, bases: Vec<S>) -> Self {
        Self { bases, ..self }
    }

    /// Stamps of the older rows that complete the row it was read from, the newest first.
    pub fn bases(&self) -> &[S] {
        &self.bases
    }

    /// Computes its reference at `path` again, with keccak-256, from the references of its
    /// children.
    pub fn rehashed(&self, path: &Nibbles) -> RlpNode {
        let mut encoder = NodeEncoder::new(TrieHash::Keccak256);
        self.encode(path.len(), &mut encoder);
        encoder.reference()
    }

    /// Encodes the node at a branch path of length `depth`.
    pub(crate) fn encode(&self, depth: usize, encoder: &mut NodeEncoder) {
        encode_branch(&self.children, depth, encoder);
    }

    /// The greatest stamp among its children.
    pub(super) fn newest_child(&self) -> Option<S> {
        let stamp = |child: &NodeLink<S>| match child {
            NodeLink::Unresolved(_) => None,
            NodeLink::Leaf(leaf) => Some(leaf.stamp),
            NodeLink::Branch(link) => Some(link.stamp),
        };
        self.children.iter().flatten().filter_map(stamp).max()
    }

    /// Number of children that are branches.
    pub fn branch_children(&self) -> usize {
        self.children.iter().filter(|child| matches!(child, Some(NodeLink::Branch(_)))).count()
    }
}

fn encode_branch<S: RowStamp>(
    children: &BranchChildren<S>,
    depth: usize,
    encoder: &mut NodeEncoder,
) {
    let mut stack: [RlpNode; 16] = Default::default();
    let (mut len, mut mask) = (0, TrieMask::default());
    for (nibble, child) in (0u8..).zip(children) {
        if let Some(child) = child {
            stack[len] = child.reference(depth + 1, encoder);
            len += 1;
            mask.set_bit(nibble);
        }
    }
    encoder.encode(&BranchNodeRef::new(&stack[..len], mask));
}
