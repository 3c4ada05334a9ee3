//! What the trees of linked nodes share: nodes in one array, and trees rebuilt from their leaves.

use std::ops::{Index, IndexMut};

/// Index of a node, or of a leaf.
pub(super) type NodeId = u32;

/// The nodes of a tree. Places of removed ones are used again.
#[derive(Debug)]
pub(super) struct NodeArena<N> {
    nodes: Vec<N>,
    free: Vec<NodeId>,
}

impl<N> NodeArena<N> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new() }
    }

    pub(super) fn add(&mut self, node: N) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        self.free.push(id);
    }
}

impl<N> Index<NodeId> for NodeArena<N> {
    type Output = N;

    fn index(&self, id: NodeId) -> &N {
        &self.nodes[id as usize]
    }
}

impl<N> IndexMut<NodeId> for NodeArena<N> {
    fn index_mut(&mut self, id: NodeId) -> &mut N {
        &mut self.nodes[id as usize]
    }
}

/// A tree that is rebuilt from leaves in key order and their key-heights (section IV.D of B+AVL).
#[derive(Debug, Default)]
pub(super) struct SubtreeStack {
    /// Subtrees that wait for their right siblings, in order of falling height.
    waiting: Vec<NodeId>,
    /// For each but the first the height of its future parent.
    parents: Vec<u8>,
}

impl SubtreeStack {
    /// Whether a leaf with this key-height may come next: 0 is that of the first leaf alone.
    pub(super) fn takes(&self, key_height: u8) -> bool {
        self.waiting.is_empty() == (key_height == 0)
    }

    /// Adds the node of a leaf. `link` makes the parent of two subtrees, of this height; `None` if
    /// they cannot have one.
    pub(super) fn push(
        &mut self,
        leaf: NodeId,
        key_height: u8,
        mut link: impl FnMut(NodeId, NodeId, u8) -> Option<NodeId>,
    ) -> Option<()> {
        while self.parents.last().is_some_and(|height| *height < key_height) {
            self.close(&mut link)?;
        }
        if key_height > 0 {
            self.parents.push(key_height);
        }
        self.waiting.push(leaf);
        Some(())
    }

    /// The top node; the outer `None` if there is no such tree, the inner one if it is empty.
    pub(super) fn finish(
        mut self,
        mut link: impl FnMut(NodeId, NodeId, u8) -> Option<NodeId>,
    ) -> Option<Option<NodeId>> {
        while !self.parents.is_empty() {
            self.close(&mut link)?;
        }
        Some(self.waiting.pop())
    }

    /// Makes the last waiting subtree the right child of a new node.
    fn close(&mut self, link: &mut impl FnMut(NodeId, NodeId, u8) -> Option<NodeId>) -> Option<()> {
        let (height, right, left) = (self.parents.pop()?, self.waiting.pop()?, self.waiting.pop()?);
        self.waiting.push(link(left, right, height)?);
        Some(())
    }
}
