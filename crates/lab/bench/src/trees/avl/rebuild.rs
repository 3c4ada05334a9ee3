//! Trees made of the leaves of other trees: of messages, of two trees, and of parts of one.

use super::{
    super::arena::{NodeId, SubtreeStack},
    AvlLeaf, AvlTree,
};

/// A leaf that can be moved to another tree.
pub(crate) trait MovableLeaf: AvlLeaf {
    /// The leaf in another tree: its value is moved from one to the other.
    fn moved(&self, from: &Self::SharedData, to: &mut Self::SharedData) -> Self;
}

impl<L: AvlLeaf> AvlTree<L> {
    /// Rebuilds the tree from leaves in key order and their key-heights, without hashes; `None` if
    /// there is no such tree (section IV.D).
    pub(crate) fn rebuild(
        shared: L::SharedData,
        leaves: impl Iterator<Item = (L, u8)>,
    ) -> Option<Self> {
        let mut tree = Self { shared, ..Self::new() };
        let mut stack = SubtreeStack::default();
        for (leaf, key_height) in leaves {
            if !stack.takes(key_height) {
                return None;
            }
            let node = tree.leaf(leaf, None);
            stack.push(node, key_height, |left, right, height| tree.close(left, right, height))?;
        }
        tree.top = stack.finish(|left, right, height| tree.close(left, right, height))?;
        Some(tree)
    }

    /// The parent of two subtrees; `None` if they cannot have one of this height.
    fn close(&mut self, left: NodeId, right: NodeId, height: u8) -> Option<NodeId> {
        let is_balanced = self.node(left).height.abs_diff(self.node(right).height) <= 1;
        let node = self.inner(left, right);
        (is_balanced && self.node(node).height == height).then_some(node)
    }
}

impl<L: MovableLeaf> AvlTree<L> {
    /// The two subtrees of the top node as trees of their own, with their hashes; `None` if the top
    /// node is a leaf, or missing.
    pub(crate) fn halves(&self) -> Option<[Self; 2]> {
        let top = self.node(self.top?);
        (top.height > 0).then(|| {
            [top.left, top.right].map(|half| {
                let mut tree = Self::new();
                tree.top = Some(self.move_below(half, &mut tree));
                tree
            })
        })
    }

    /// The tree over two trees that are not empty, with their hashes. All keys of `left` are
    /// smaller, and heights differ by 1 at most.
    pub(crate) fn over(left: &Self, right: &Self) -> Self {
        let mut tree = Self::new();
        let halves = [left, right].map(|half| half.top.map(|top| half.move_below(top, &mut tree)));
        tree.top = match halves {
            [Some(left), Some(right)] => Some(tree.inner(left, right)),
            [one, other] => one.or(other),
        };
        tree
    }

    fn move_below(&self, id: NodeId, to: &mut Self) -> NodeId {
        let mut node = *self.node(id);
        if node.height == 0 {
            to.leaves.push(self.leaves[node.left as usize].moved(&self.shared, &mut to.shared));
            node.left = (to.leaves.len() - 1) as NodeId;
        } else {
            node.left = self.move_below(node.left, to);
            node.right = self.move_below(node.right, to);
        }
        to.add(node)
    }
}
