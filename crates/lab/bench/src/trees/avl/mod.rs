//! An AVL tree over leaves of any kind: single elements, or chunks. Inner nodes hold the smallest
//! key of their right subtree. All nodes lie in one array, so that trees with different leaves
//! differ in nothing else.
//!
//! Updates work as in `storage-bavl`: leaves are replaced by other leaves, and the resulting
//! subtrees of two children are joined.

mod rebuild;

pub(super) use rebuild::MovableLeaf;

use super::{
    arena::{NodeArena, NodeId},
    hash::HashBatch,
};
use alloy_primitives::B256;
use std::fmt::Debug;

/// Number of leaves, or inner nodes, that are hashed together.
const AT_ONCE: usize = 64;

/// A leaf of the tree.
pub(super) trait AvlLeaf: Sized {
    /// What all leaves share: their values, or memory for the computation of hashes.
    type SharedData: Debug + Default;

    /// Its smallest key.
    fn first(&self) -> u32;

    /// Appends the hashes of the leaves with indexes `which`, in this order. `batch` is empty.
    fn hash_all(
        leaves: &mut [Self],
        shared: &mut Self::SharedData,
        which: &[NodeId],
        batch: &mut HashBatch,
        hashes: &mut Vec<B256>,
    );
}

/// Memory for the computation of hashes, used again for each root.
#[derive(Debug, Default)]
pub(super) struct HashBuffers {
    /// Changed nodes by height.
    stale: Vec<Vec<NodeId>>,
    which: Vec<NodeId>,
    hashes: Vec<B256>,
    batch: HashBatch,
}

#[derive(Clone, Copy, Debug)]
struct AvlNode {
    /// The smallest key of the subtree.
    first: u32,
    /// The smallest key of the right subtree.
    separator: u32,
    /// Left child; of a leaf node, the index in `leaves`.
    left: NodeId,
    right: NodeId,
    /// 0 for a leaf.
    height: u8,
    /// Whether the subtree has changed since it was hashed.
    is_stale: bool,
    hash: B256,
}

/// Which child of its parent a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildSide {
    Left,
    Right,
}

/// The replacement of one leaf by others.
#[derive(Debug)]
pub(super) struct LeafEdit {
    /// A key in the range of the leaf.
    pub(super) key: u32,
    /// Nodes of the new leaves.
    pub(super) new: Vec<NodeId>,
}

/// The effect of an insertion at the leaf in whose range the key lies.
pub(super) enum LeafInsert<L> {
    /// The leaf was changed in place.
    Changed,
    /// A new leaf is added beside it.
    Beside(L),
}

#[derive(Debug)]
pub(super) struct AvlTree<L: AvlLeaf> {
    nodes: NodeArena<AvlNode>,
    leaves: Vec<L>,
    shared: L::SharedData,
    top: Option<NodeId>,
}

impl<L: AvlLeaf> AvlTree<L> {
    pub(super) fn new() -> Self {
        Self {
            nodes: NodeArena::new(),
            leaves: Vec::new(),
            shared: L::SharedData::default(),
            top: None,
        }
    }

    /// All leaves ever added, with the unused ones.
    pub(super) fn leaves(&self) -> &[L] {
        &self.leaves
    }

    pub(super) const fn shared(&self) -> &L::SharedData {
        &self.shared
    }

    /// Height of the top node; 0 for an empty tree too.
    pub(super) fn height(&self) -> u8 {
        self.top.map_or(0, |top| self.node(top).height)
    }

    /// The smallest key; 0 for an empty tree too.
    pub(super) fn first(&self) -> u32 {
        self.top.map_or(0, |top| self.node(top).first)
    }

    pub(super) fn leaf_mut(&mut self, leaf: NodeId) -> &mut L {
        &mut self.leaves[leaf as usize]
    }

    fn node(&self, id: NodeId) -> &AvlNode {
        &self.nodes[id]
    }

    fn add(&mut self, node: AvlNode) -> NodeId {
        self.nodes.add(node)
    }

    /// Adds a node for a leaf, which is stored at index `at`, or at the end.
    pub(super) fn leaf(&mut self, leaf: L, at: Option<NodeId>) -> NodeId {
        let first = leaf.first();
        let at = match at {
            Some(at) => {
                self.leaves[at as usize] = leaf;
                at
            }
            None => {
                self.leaves.push(leaf);
                (self.leaves.len() - 1) as NodeId
            }
        };
        let (separator, right, hash) = (first, 0, B256::ZERO);
        self.add(AvlNode { first, separator, left: at, right, height: 0, is_stale: true, hash })
    }

    fn inner(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let (l, r) = (self.node(left), self.node(right));
        let (first, separator, height) = (l.first, r.first, 1 + l.height.max(r.height));
        self.add(AvlNode {
            first,
            separator,
            left,
            right,
            height,
            is_stale: true,
            hash: B256::ZERO,
        })
    }

    /// Index of the leaf in whose range `key` lies.
    pub(super) fn find(&self, key: u32) -> Option<NodeId> {
        let mut node = self.node(self.top?);
        while node.height > 0 {
            node = self.node(if key < node.separator { node.left } else { node.right });
        }
        Some(node.left)
    }

    /// Like [`find`](Self::find), for a leaf that will be changed.
    pub(super) fn find_mut(&mut self, key: u32) -> Option<NodeId> {
        let mut at = self.top?;
        loop {
            let node = &mut self.nodes[at];
            node.is_stale = true;
            node.first = node.first.min(key);
            if node.height == 0 {
                return Some(node.left);
            }
            at = if key < node.separator { node.left } else { node.right };
        }
    }

    /// The leaves before and after the one in whose range `key` lies.
    pub(super) fn neighbours(&self, key: u32) -> (Option<NodeId>, Option<NodeId>) {
        let (mut before, mut after) = (None, None);
        let Some(top) = self.top else { return (None, None) };
        let mut node = self.node(top);
        while node.height > 0 {
            if key < node.separator {
                after = Some(node.right);
                node = self.node(node.left);
            } else {
                before = Some(node.left);
                node = self.node(node.right);
            }
        }
        let edge = |at: Option<NodeId>, side| {
            let mut node = self.node(at?);
            while node.height > 0 {
                node = self.node(if side == ChildSide::Left { node.left } else { node.right });
            }
            Some(node.left)
        };
        (edge(before, ChildSide::Right), edge(after, ChildSide::Left))
    }

    /// Calls `insert` with the leaf in whose range `key` lies, or with `None` if the tree is empty,
    /// and with what leaves share.
    pub(super) fn put(
        &mut self,
        key: u32,
        insert: impl FnOnce(Option<&mut L>, &mut L::SharedData) -> LeafInsert<L>,
    ) {
        self.top = Some(match self.top {
            Some(top) => self.put_below(top, key, insert),
            None => match insert(None, &mut self.shared) {
                LeafInsert::Beside(leaf) => self.leaf(leaf, None),
                LeafInsert::Changed => return,
            },
        });
    }

    fn put_below(
        &mut self,
        id: NodeId,
        key: u32,
        insert: impl FnOnce(Option<&mut L>, &mut L::SharedData) -> LeafInsert<L>,
    ) -> NodeId {
        let AvlNode { separator, left, right, height, first, .. } = *self.node(id);
        if height == 0 {
            return match insert(self.leaves.get_mut(left as usize), &mut self.shared) {
                LeafInsert::Changed => {
                    self.nodes[id].is_stale = true;
                    id
                }
                LeafInsert::Beside(leaf) => {
                    let is_before = leaf.first() < first;
                    let new = self.leaf(leaf, None);
                    if is_before { self.inner(new, id) } else { self.inner(id, new) }
                }
            };
        }
        let (left, right) = match key < separator {
            true => (self.put_below(left, key, insert), right),
            false => (left, self.put_below(right, key, insert)),
        };
        self.nodes.remove(id);
        self.join(left, right)
    }

    /// Replaces leaves. Edits are in key order.
    pub(super) fn edit(&mut self, edits: &[LeafEdit]) {
        self.top = match self.top {
            Some(top) => self.edit_below(top, edits),
            None => {
                let new: Vec<_> = edits.iter().flat_map(|edit| edit.new.iter().copied()).collect();
                self.halve(&new)
            }
        };
    }

    fn edit_below(&mut self, id: NodeId, edits: &[LeafEdit]) -> Option<NodeId> {
        if edits.is_empty() {
            return Some(id);
        }
        let AvlNode { separator, left, right, height, .. } = *self.node(id);
        self.nodes.remove(id);
        if height == 0 {
            let new: Vec<_> = edits.iter().flat_map(|edit| edit.new.iter().copied()).collect();
            return self.halve(&new);
        }
        let (below, above) = edits.split_at(edits.partition_point(|edit| edit.key < separator));
        match (self.edit_below(left, below), self.edit_below(right, above)) {
            (Some(left), Some(right)) => Some(self.join(left, right)),
            (one, other) => one.or(other),
        }
    }

    /// A tree over these nodes by repeated halving. The left half is the larger one.
    fn halve(&mut self, nodes: &[NodeId]) -> Option<NodeId> {
        match nodes {
            [] => None,
            [one] => Some(*one),
            _ => {
                let (left, right) = nodes.split_at(nodes.len().div_ceil(2));
                let (left, right) = (self.halve(left)?, self.halve(right)?);
                Some(self.inner(left, right))
            }
        }
    }

    /// Joins two trees. All keys of `left` are smaller.
    fn join(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let (l, r) = (*self.node(left), *self.node(right));
        if l.height > r.height + 1 {
            self.nodes.remove(left);
            let near = self.join(l.right, right);
            self.balance_right(l.left, near)
        } else if r.height > l.height + 1 {
            self.nodes.remove(right);
            let near = self.join(left, r.left);
            self.balance_left(near, r.right)
        } else {
            self.inner(left, right)
        }
    }

    /// An inner node whose right child may be too high by 2; rotates if it is.
    fn balance_right(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let r = *self.node(right);
        if r.height <= self.node(left).height + 1 {
            return self.inner(left, right);
        }
        self.nodes.remove(right);
        let inside = *self.node(r.left);
        let (one, other) = if inside.height > self.node(r.right).height {
            self.nodes.remove(r.left);
            (self.inner(left, inside.left), self.inner(inside.right, r.right))
        } else {
            (self.inner(left, r.left), r.right)
        };
        self.inner(one, other)
    }

    /// An inner node whose left child may be too high by 2; rotates if it is.
    fn balance_left(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let l = *self.node(left);
        if l.height <= self.node(right).height + 1 {
            return self.inner(left, right);
        }
        self.nodes.remove(left);
        let inside = *self.node(l.right);
        let (one, other) = if inside.height > self.node(l.left).height {
            self.nodes.remove(l.right);
            (self.inner(l.left, inside.left), self.inner(inside.right, right))
        } else {
            (l.left, self.inner(l.right, right))
        };
        self.inner(one, other)
    }

    /// Hashes all changed nodes, height by height. Returns the hash of the top node.
    pub(super) fn hash(&mut self, buffers: &mut HashBuffers) -> Option<B256> {
        let top = self.top?;
        let HashBuffers { stale, which, hashes, batch } = buffers;
        let heights = usize::from(self.node(top).height) + 1;
        if stale.len() < heights {
            stale.resize_with(heights, Vec::new);
        }
        self.collect(top, stale);
        for (height, stale) in stale.iter_mut().enumerate() {
            for nodes in stale.chunks(AT_ONCE) {
                let hashes = if height == 0 {
                    which.clear();
                    which.extend(nodes.iter().map(|id| self.nodes[*id].left));
                    hashes.clear();
                    L::hash_all(&mut self.leaves, &mut self.shared, which, batch, hashes);
                    &hashes[..]
                } else {
                    for id in nodes {
                        let node = self.node(*id);
                        batch.inner(&self.node(node.left).hash, &self.node(node.right).hash);
                    }
                    batch.finish()
                };
                for (id, hash) in nodes.iter().zip(hashes) {
                    let node = &mut self.nodes[*id];
                    (node.hash, node.is_stale) = (*hash, false);
                }
            }
            stale.clear();
        }
        Some(self.node(top).hash)
    }

    fn collect(&self, id: NodeId, stale: &mut [Vec<NodeId>]) {
        let node = self.node(id);
        if !node.is_stale {
            return;
        }
        if node.height > 0 {
            self.collect(node.left, stale);
            self.collect(node.right, stale);
        }
        stale[usize::from(node.height)].push(id);
    }

    /// The siblings on the path from the leaf in whose range `key` lies up to the top, with their
    /// sides.
    pub(super) fn proof_path(&self, key: u32) -> Vec<(ChildSide, B256)> {
        let mut way = Vec::new();
        let Some(top) = self.top else { return way };
        let mut node = self.node(top);
        while node.height > 0 {
            if key < node.separator {
                way.push((ChildSide::Right, self.node(node.right).hash));
                node = self.node(node.left);
            } else {
                way.push((ChildSide::Left, self.node(node.left).hash));
                node = self.node(node.right);
            }
        }
        way.reverse();
        way
    }

    /// Calls `found` with each leaf in key order, and its hash, depth and key-height. The
    /// key-height is the height of the node whose separator is the leaf's first key, and 0 for the
    /// first leaf (section IV.D).
    pub(super) fn for_each_leaf(&self, found: &mut dyn FnMut(&L, LeafPlace)) {
        if let Some(top) = self.top {
            self.each_below(top, 0, 0, found);
        }
    }

    fn each_below(
        &self,
        id: NodeId,
        depth: usize,
        key_height: u8,
        found: &mut dyn FnMut(&L, LeafPlace),
    ) {
        let node = self.node(id);
        if node.height == 0 {
            let (leaf, hash) = (node.left, node.hash);
            return found(&self.leaves[leaf as usize], LeafPlace { leaf, hash, depth, key_height });
        }
        self.each_below(node.left, depth + 1, key_height, found);
        self.each_below(node.right, depth + 1, node.height, found);
    }
}

/// The position of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafPlace {
    pub(super) leaf: NodeId,
    pub(super) hash: B256,
    pub(super) depth: usize,
    pub(super) key_height: u8,
}
