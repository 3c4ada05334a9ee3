//! An AVL tree over leaves of any kind: single elements, or chunks. Inner nodes hold the smallest key of
//! their right subtree, and all nodes lie in one array, so that the two kinds differ in their leaves alone.
//!
//! It changes as the tree of `storage-bavl` does: leaves give way to others in their places, and what has
//! become of two children is joined.

use super::hash::Batch;
use alloy_primitives::B256;

/// Number of a node, or of a leaf.
pub(super) type Id = u32;

/// Leaves that are hashed together, and inner nodes.
const AT_ONCE: usize = 64;

/// What hangs below.
pub(super) trait Leaf: Sized {
    /// Its smallest key.
    fn first(&self) -> u32;

    /// The hashes of these leaves, in this order.
    fn hash_all(leaves: &mut [Self], which: &[Id], hashes: &mut Vec<B256>);
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The smallest key below.
    first: u32,
    /// The smallest key of the right subtree.
    separator: u32,
    /// Children; of a leaf the left one is its number among leaves.
    left: Id,
    right: Id,
    /// 0 of a leaf.
    height: u8,
    /// Whether something below has changed since it was hashed.
    is_stale: bool,
    hash: B256,
}

/// Which child of its parent a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A leaf that gives way to others.
#[derive(Debug)]
pub(super) struct Edit {
    /// A key in its range.
    pub(super) key: u32,
    /// Nodes of leaves.
    pub(super) new: Vec<Id>,
}

/// What an insertion does at the leaf in whose range it falls.
pub(super) enum Put<L> {
    /// The leaf has changed in its place.
    Changed,
    /// Another leaf comes beside it.
    Beside(L),
}

#[derive(Debug)]
pub(super) struct Avl<L> {
    nodes: Vec<Node>,
    leaves: Vec<L>,
    free: Vec<Id>,
    top: Option<Id>,
}

impl<L: Leaf> Avl<L> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), leaves: Vec::new(), free: Vec::new(), top: None }
    }

    /// Leaves that were ever there.
    pub(super) fn leaves(&self) -> &[L] {
        &self.leaves
    }

    pub(super) fn leaf_mut(&mut self, leaf: Id) -> &mut L {
        &mut self.leaves[leaf as usize]
    }

    fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    fn add(&mut self, node: Node) -> Id {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as Id
    }

    /// A node for a leaf, which is put at number `at`, or at the end.
    pub(super) fn leaf(&mut self, leaf: L, at: Option<Id>) -> Id {
        let first = leaf.first();
        let at = match at {
            Some(at) => {
                self.leaves[at as usize] = leaf;
                at
            }
            None => {
                self.leaves.push(leaf);
                (self.leaves.len() - 1) as Id
            }
        };
        let (separator, right, hash) = (first, 0, B256::ZERO);
        self.add(Node { first, separator, left: at, right, height: 0, is_stale: true, hash })
    }

    fn inner(&mut self, left: Id, right: Id) -> Id {
        let (l, r) = (self.node(left), self.node(right));
        let (first, separator, height) = (l.first, r.first, 1 + l.height.max(r.height));
        self.add(Node { first, separator, left, right, height, is_stale: true, hash: B256::ZERO })
    }

    /// The number of the leaf in whose range `key` lies.
    pub(super) fn find(&self, key: u32) -> Option<Id> {
        let mut node = self.node(self.top?);
        while node.height > 0 {
            node = self.node(if key < node.separator { node.left } else { node.right });
        }
        Some(node.left)
    }

    /// As [`find`](Self::find), of a leaf that is to be changed.
    pub(super) fn find_mut(&mut self, key: u32) -> Option<Id> {
        let mut at = self.top?;
        loop {
            let node = &mut self.nodes[at as usize];
            node.is_stale = true;
            node.first = node.first.min(key);
            if node.height == 0 {
                return Some(node.left);
            }
            at = if key < node.separator { node.left } else { node.right };
        }
    }

    /// The leaves before and after the one in whose range `key` lies.
    pub(super) fn neighbours(&self, key: u32) -> (Option<Id>, Option<Id>) {
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
        let edge = |at: Option<Id>, side| {
            let mut node = self.node(at?);
            while node.height > 0 {
                node = self.node(if side == Side::Left { node.left } else { node.right });
            }
            Some(node.left)
        };
        (edge(before, Side::Right), edge(after, Side::Left))
    }

    /// Inserts at the leaf in whose range `key` lies, which is given; `None` if there is none.
    pub(super) fn put(&mut self, key: u32, insert: impl FnOnce(Option<&mut L>) -> Put<L>) {
        self.top = Some(match self.top {
            Some(top) => self.put_below(top, key, insert),
            None => match insert(None) {
                Put::Beside(leaf) => self.leaf(leaf, None),
                Put::Changed => return,
            },
        });
    }

    fn put_below(&mut self, id: Id, key: u32, insert: impl FnOnce(Option<&mut L>) -> Put<L>) -> Id {
        let Node { separator, left, right, height, first, .. } = *self.node(id);
        if height == 0 {
            return match insert(self.leaves.get_mut(left as usize)) {
                Put::Changed => {
                    self.nodes[id as usize].is_stale = true;
                    id
                }
                Put::Beside(leaf) => {
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
        self.free.push(id);
        self.join(left, right)
    }

    /// Lets leaves give way to others. Edits are in key order.
    pub(super) fn edit(&mut self, edits: &[Edit]) {
        self.top = match self.top {
            Some(top) => self.edit_below(top, edits),
            None => {
                let new: Vec<_> = edits.iter().flat_map(|edit| edit.new.iter().copied()).collect();
                self.halve(&new)
            }
        };
    }

    fn edit_below(&mut self, id: Id, edits: &[Edit]) -> Option<Id> {
        if edits.is_empty() {
            return Some(id);
        }
        let Node { separator, left, right, height, .. } = *self.node(id);
        self.free.push(id);
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

    /// The tree that halves these nodes, the left half being the larger one.
    fn halve(&mut self, nodes: &[Id]) -> Option<Id> {
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

    /// Two trees as one, all keys of `left` being smaller.
    fn join(&mut self, left: Id, right: Id) -> Id {
        let (l, r) = (*self.node(left), *self.node(right));
        if l.height > r.height + 1 {
            self.free.push(left);
            let near = self.join(l.right, right);
            self.lean_right(l.left, near)
        } else if r.height > l.height + 1 {
            self.free.push(right);
            let near = self.join(left, r.left);
            self.lean_left(near, r.right)
        } else {
            self.inner(left, right)
        }
    }

    /// An inner node whose right child may be higher by 2.
    fn lean_right(&mut self, left: Id, right: Id) -> Id {
        let r = *self.node(right);
        if r.height <= self.node(left).height + 1 {
            return self.inner(left, right);
        }
        self.free.push(right);
        let inside = *self.node(r.left);
        let (one, other) = if inside.height > self.node(r.right).height {
            self.free.push(r.left);
            (self.inner(left, inside.left), self.inner(inside.right, r.right))
        } else {
            (self.inner(left, r.left), r.right)
        };
        self.inner(one, other)
    }

    /// An inner node whose left child may be higher by 2.
    fn lean_left(&mut self, left: Id, right: Id) -> Id {
        let l = *self.node(left);
        if l.height <= self.node(right).height + 1 {
            return self.inner(left, right);
        }
        self.free.push(left);
        let inside = *self.node(l.right);
        let (one, other) = if inside.height > self.node(l.left).height {
            self.free.push(l.right);
            (self.inner(l.left, inside.left), self.inner(inside.right, right))
        } else {
            (l.left, self.inner(l.right, right))
        };
        self.inner(one, other)
    }

    /// Hashes what has changed, nodes of one height together; the hash of the top.
    pub(super) fn hash(&mut self) -> Option<B256> {
        let top = self.top?;
        let mut stale = vec![Vec::new(); usize::from(self.node(top).height) + 1];
        self.collect(top, &mut stale);
        let (mut hashes, mut which, mut batch) = (Vec::new(), Vec::new(), Batch::default());
        for (height, nodes) in stale.iter().enumerate() {
            for nodes in nodes.chunks(AT_ONCE) {
                if height == 0 {
                    which.clear();
                    which.extend(nodes.iter().map(|id| self.nodes[*id as usize].left));
                    hashes.clear();
                    L::hash_all(&mut self.leaves, &which, &mut hashes);
                } else {
                    for id in nodes {
                        let node = self.node(*id);
                        batch.inner(&self.node(node.left).hash, &self.node(node.right).hash);
                    }
                    batch.finish_into(&mut hashes);
                }
                for (id, hash) in nodes.iter().zip(&hashes) {
                    let node = &mut self.nodes[*id as usize];
                    (node.hash, node.is_stale) = (*hash, false);
                }
            }
        }
        Some(self.node(top).hash)
    }

    fn collect(&self, id: Id, stale: &mut [Vec<Id>]) {
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

    /// The siblings on the way from the leaf in whose range `key` lies up to the top, with the sides that
    /// they stand on.
    pub(super) fn way(&self, key: u32) -> Vec<(Side, B256)> {
        let mut way = Vec::new();
        let Some(top) = self.top else { return way };
        let mut node = self.node(top);
        while node.height > 0 {
            if key < node.separator {
                way.push((Side::Right, self.node(node.right).hash));
                node = self.node(node.left);
            } else {
                way.push((Side::Left, self.node(node.left).hash));
                node = self.node(node.right);
            }
        }
        way.reverse();
        way
    }

    /// Calls `found` with each leaf in key order: its hash, depth and key-height, which is the height of
    /// the node whose separator is its first key, and 0 of the first leaf (section IV.D).
    pub(super) fn each(&self, found: &mut dyn FnMut(&L, Place)) {
        if let Some(top) = self.top {
            self.each_below(top, 0, 0, found);
        }
    }

    fn each_below(&self, id: Id, depth: usize, key_height: u8, found: &mut dyn FnMut(&L, Place)) {
        let node = self.node(id);
        if node.height == 0 {
            let (leaf, hash) = (node.left, node.hash);
            return found(&self.leaves[leaf as usize], Place { leaf, hash, depth, key_height });
        }
        self.each_below(node.left, depth + 1, key_height, found);
        self.each_below(node.right, depth + 1, node.height, found);
    }

    /// The tree of leaves in key order with these key-heights, not hashed; `None` if there is no such tree
    /// (section IV.D).
    pub(super) fn rebuild(leaves: impl Iterator<Item = (L, u8)>) -> Option<Self> {
        let mut tree = Self::new();
        // Trees that wait for their right siblings, heights falling, with the height of the node that
        // each is to be the left child of.
        let mut waiting: Vec<Id> = Vec::new();
        let mut parents: Vec<u8> = Vec::new();
        for (leaf, key_height) in leaves {
            if waiting.is_empty() != (key_height == 0) {
                return None;
            }
            while parents.last().is_some_and(|height| *height < key_height) {
                tree.close(&mut waiting, &mut parents)?;
            }
            if key_height > 0 {
                parents.push(key_height);
            }
            let node = tree.leaf(leaf, None);
            waiting.push(node);
        }
        while !parents.is_empty() {
            tree.close(&mut waiting, &mut parents)?;
        }
        tree.top = waiting.pop();
        Some(tree)
    }

    /// Makes the last waiting tree the right child of a node.
    fn close(&mut self, waiting: &mut Vec<Id>, parents: &mut Vec<u8>) -> Option<()> {
        let (height, right, left) = (parents.pop()?, waiting.pop()?, waiting.pop()?);
        let is_balanced = self.node(left).height.abs_diff(self.node(right).height) <= 1;
        let node = self.inner(left, right);
        waiting.push(node);
        (is_balanced && self.node(node).height == height).then_some(())
    }
}

/// Where a leaf is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) leaf: Id,
    pub(super) hash: B256,
    pub(super) depth: usize,
    pub(super) key_height: u8,
}
