//! How many nodes a tree has, and where: all of it follows from the number of leaves.

use alloy_primitives::B256;

/// Levels of a subtree.
pub(crate) const LEVELS: u8 = 5;
/// Bottoms of a subtree, P in the paper: log n there, 32 for all trees of 2^17 to 2^32 leaves.
pub(crate) const WIDTH: u64 = 1 << LEVELS;
/// Most leaves there can be.
pub(crate) const MAX_LEAVES: u64 = 1 << super::proof::MAX_HEIGHT;

/// A subtree: its layer, and its number from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) layer: u8,
    pub(crate) index: u64,
}

impl Place {
    /// Level of its bottoms.
    pub(crate) const fn level(self) -> u8 {
        self.layer * LEVELS
    }
}

/// A node's hash and its number within its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) hash: B256,
}

/// A tree of so many leaves, the sentinel among them: 1 to [`MAX_LEAVES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) leaves: u64,
}

impl Shape {
    /// The least height at which all leaves have a place.
    pub(crate) const fn height(self) -> u8 {
        (64 - self.leaves.saturating_sub(1).leading_zeros()) as u8
    }

    /// Layers that are stored; none if there is one leaf.
    pub(crate) const fn layers(self) -> u8 {
        self.height().div_ceil(LEVELS)
    }

    /// Nodes of a level, below 64, that are not empty.
    pub(crate) const fn nodes(self, level: u8) -> u64 {
        self.leaves.div_ceil(1 << level)
    }

    /// Subtrees of a layer that are stored.
    pub(crate) const fn subtrees(self, layer: u8) -> u64 {
        if layer < self.layers() { self.nodes(layer * LEVELS).div_ceil(WIDTH) } else { 0 }
    }

    /// Bottoms of a subtree that are not empty; none if the subtree is not stored.
    pub(crate) fn filled(self, place: Place) -> u8 {
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
            let shape = Shape { leaves };
            assert_eq!((shape.height(), shape.layers()), (height, layers), "{leaves}");
        }
    }

    #[test]
    fn subtrees_hold_every_node_once() {
        for leaves in 1..3000 {
            let shape = Shape { leaves };
            for layer in 0..5 {
                let held = (0..shape.subtrees(layer) + 1)
                    .map(|index| u64::from(shape.filled(Place { layer, index })))
                    .sum::<u64>();
                let nodes = if layer < shape.layers() { shape.nodes(layer * LEVELS) } else { 0 };
                assert_eq!(held, nodes, "layer {layer} of {leaves}");
            }
        }
    }
}
