//! The shape of a tree: the numbers and positions of its nodes follow from its number of leaves.

use alloy_primitives::B256;

/// Levels of a subtree.
pub(crate) const LEVELS: u8 = 5;
/// Bottoms of a subtree: P in the paper, which is log n there, and 32 for all trees of 2^17 to 2^32
/// leaves.
pub(crate) const WIDTH: u64 = 1 << LEVELS;
/// Upper bound of leaves.
pub(crate) const MAX_LEAVES: u64 = 1 << super::proof::MAX_HEIGHT;

/// The place of a subtree: its layer, and its index from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubtreePlace {
    pub(crate) layer: u8,
    pub(crate) index: u64,
}

impl SubtreePlace {
    /// Level of its bottoms.
    pub(crate) const fn level(self) -> u8 {
        self.layer * LEVELS
    }
}

/// A node's hash and its number within its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberedHash {
    pub(crate) number: u64,
    pub(crate) hash: B256,
}

/// The shape of a tree: its number of leaves, with the sentinel, 1 to [`MAX_LEAVES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeShape {
    pub(crate) leaves: u64,
}

impl TreeShape {
    /// The least height that has room for all leaves.
    pub(crate) const fn height(self) -> u8 {
        (64 - self.leaves.saturating_sub(1).leading_zeros()) as u8
    }

    /// Number of stored layers; 0 if there is one leaf.
    pub(crate) const fn layers(self) -> u8 {
        self.height().div_ceil(LEVELS)
    }

    /// Number of non-empty nodes of a level, which is below 64.
    pub(crate) const fn nodes(self, level: u8) -> u64 {
        self.leaves.div_ceil(1 << level)
    }

    /// Number of stored subtrees of a layer.
    pub(crate) const fn subtrees(self, layer: u8) -> u64 {
        if layer < self.layers() { self.nodes(layer * LEVELS).div_ceil(WIDTH) } else { 0 }
    }

    /// Number of non-empty bottoms of a subtree; 0 if the subtree is not stored.
    pub(crate) fn filled(self, place: SubtreePlace) -> u8 {
        if place.layer >= self.layers() {
            return 0;
        }
        let before = place.index.saturating_mul(WIDTH);
        self.nodes(place.level()).saturating_sub(before).min(WIDTH) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_as_high_as_its_leaves_need() {
        for (leaves, height, layers) in [
            (1, 0, 0),
            (2, 1, 1),
            (3, 2, 1),
            (32, 5, 1),
            (33, 6, 2),
            (1024, 10, 2),
            (1025, 11, 3),
            (MAX_LEAVES - 1, 63, 13),
            (MAX_LEAVES, 63, 13),
        ] {
            let shape = TreeShape { leaves };
            assert_eq!((shape.height(), shape.layers()), (height, layers), "{leaves}");
        }
    }

    #[test]
    fn subtrees_hold_every_node_once() {
        for leaves in 1..3000 {
            let shape = TreeShape { leaves };
            for layer in 0..5 {
                let held = (0..shape.subtrees(layer) + 1)
                    .map(|index| u64::from(shape.filled(SubtreePlace { layer, index })))
                    .sum::<u64>();
                let nodes = if layer < shape.layers() { shape.nodes(layer * LEVELS) } else { 0 };
                assert_eq!(held, nodes, "layer {layer} of {leaves}");
            }
        }
    }
}
