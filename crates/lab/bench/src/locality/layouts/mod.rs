//! Layouts: the assignment of a tree's nodes to the slots of a file.

mod blocked;
mod duplicated;
mod naive;
mod records;
mod third;

use super::{
    LocalityError,
    region::{Region, merge},
};
use std::{fmt, str::FromStr};

pub(super) use duplicated::lower;

/// Largest height of a tree. All slots of every layout then fit into 2^46 bytes.
pub const MAX_HEIGHT: u32 = 36;
/// Levels that a record or block covers: log P for P = 32 (section 5.1.1).
pub(super) const LEVELS: u32 = 5;

/// How a tree is laid out in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeLayout {
    /// Level by level, the root first (section 1: textbook; the identity permutation of 3.2).
    Naive,
    /// The best layout without duplicates: a root lies between its children wherever possible
    /// (Lemmas 3.5 and 3.6).
    Third,
    /// The upper part of each path is duplicated, the lower log n leaves are naive (Fig. 11).
    DupTree,
    /// Like `DupTree`, recursively in each of the lower trees, down to single leaves (Fig. 4).
    DupTreePlus,
    /// Layers of five levels. For each node at the bottom of a layer there is a record of the five
    /// nodes on its path (Fig. 12 with P = 32, as in 5.1.1). The root is not in the file: it is the
    /// digest that the verifier keeps.
    DupTreePlusPlus,
    /// The same layers without duplicates: a block holds all nodes of a subtree of 32 leaves and is
    /// read and written as a whole. Not in the paper.
    Blocked,
}

impl TreeLayout {
    /// All layouts.
    pub const ALL: [Self; 6] = [
        Self::Naive,
        Self::Third,
        Self::DupTree,
        Self::DupTreePlus,
        Self::DupTreePlusPlus,
        Self::Blocked,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Third => "third",
            Self::DupTree => "duptree",
            Self::DupTreePlus => "duptree-plus",
            Self::DupTreePlusPlus => "duptree-plus-plus",
            Self::Blocked => "blocked",
        }
    }

    fn rules(self) -> &'static dyn LayoutRules {
        match self {
            Self::Naive => &naive::NaiveLayout,
            Self::Third => &third::ThirdLayout,
            Self::DupTree => &duplicated::DupTreeLayout::ONCE,
            Self::DupTreePlus => &duplicated::DupTreeLayout::RECURSIVE,
            Self::DupTreePlusPlus => &records::RecordLayout,
            Self::Blocked => &blocked::BlockedLayout,
        }
    }
}

impl fmt::Display for TreeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No layout has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no layout `{0}`: it is naive, third, duptree, duptree-plus, duptree-plus-plus or \
     blocked"
)]
pub struct UnknownLayout(String);

impl FromStr for TreeLayout {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| UnknownLayout(text.into()))
    }
}

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LayoutNode {
    /// Height above the leaves, which have 0.
    pub(crate) height: u32,
    /// Index among the nodes of that height, from the left.
    pub(crate) index: u64,
}

impl LayoutNode {
    /// The ancestor of `leaf` at `height`.
    pub(super) const fn above(leaf: u64, height: u32) -> Self {
        Self { height, index: leaf >> height }
    }
}

/// A node of a path, and the slot from which a read takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodePlace {
    /// The node.
    pub(crate) node: LayoutNode,
    /// Its slot.
    pub(crate) slot: u64,
}

/// Called with the node of each slot, in slot order; `None` is an empty slot. An error ends the
/// walk.
pub(super) type SlotVisitor<'a> =
    &'a mut dyn FnMut(Option<LayoutNode>) -> Result<(), LocalityError>;

/// The rules of a layout. Heights are at most [`MAX_HEIGHT`], leaves are below 2^height; `start` is
/// added to every slot.
trait LayoutRules: Sync {
    /// Number of slots of the file.
    fn slots(&self, height: u32) -> u64;

    /// The path of `leaf`: calls `each` with height and slot of each of its stored nodes, in any
    /// order.
    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64));

    /// Adds the regions that a write of `leaf` changes, in any order.
    fn write(&self, height: u32, leaf: u64, start: u64, out: &mut Vec<Region>) {
        self.path(height, leaf, start, &mut |_, slot| out.push(Region::slot(slot)));
    }

    /// Adds the regions that a read of `leaf` takes, in any order. They cover the path.
    fn read(&self, height: u32, leaf: u64, out: &mut Vec<Region>) {
        self.path(height, leaf, 0, &mut |_, slot| out.push(Region::slot(slot)));
    }

    /// Calls `each` with all nodes of the tree above the 2^height leaves from `leaf` on, in slot
    /// order.
    fn nodes(&self, height: u32, leaf: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError>;
}

/// A dense tree in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DenseTree {
    layout: TreeLayout,
    height: u32,
}

impl DenseTree {
    /// A tree of 2^`height` leaves.
    ///
    /// # Errors
    /// If `height` exceeds [`MAX_HEIGHT`].
    pub(crate) const fn new(layout: TreeLayout, height: u32) -> Result<Self, LocalityError> {
        if height > MAX_HEIGHT {
            return Err(LocalityError::Height { height, most: MAX_HEIGHT });
        }
        Ok(Self { layout, height })
    }

    /// Its layout.
    pub(crate) const fn layout(self) -> TreeLayout {
        self.layout
    }

    /// Its height.
    pub(crate) const fn height(self) -> u32 {
        self.height
    }

    /// Number of leaves.
    pub(crate) const fn leaves(self) -> u64 {
        1 << self.height
    }

    /// Length of the file in slots.
    pub(crate) fn slots(self) -> u64 {
        self.layout.rules().slots(self.height)
    }

    /// Calls `each` with the nodes on the path of `leaf` and the slots from which a read takes
    /// them, in any order. These are all h + 1 nodes, except in [`TreeLayout::DupTreePlusPlus`],
    /// which does not store the root.
    pub(crate) fn path(self, leaf: u64, mut each: impl FnMut(NodePlace)) {
        let leaf = self.within(leaf);
        self.layout.rules().path(self.height, leaf, 0, &mut |height, slot| {
            each(NodePlace { node: LayoutNode::above(leaf, height), slot });
        });
    }

    /// Sets `out` to the regions that a read of `leaf` takes: maximal regions in rising order.
    pub(crate) fn read(self, leaf: u64, out: &mut Vec<Region>) {
        out.clear();
        self.layout.rules().read(self.height, self.within(leaf), out);
        merge(out);
    }

    /// Sets `out` to the regions that a write of `leaf` changes, with all copies of the path's
    /// nodes: maximal regions in rising order.
    pub(crate) fn write(self, leaf: u64, out: &mut Vec<Region>) {
        out.clear();
        self.layout.rules().write(self.height, self.within(leaf), 0, out);
        merge(out);
    }

    /// Calls `each` with the node of each slot, in slot order; `None` for an empty slot.
    ///
    /// # Errors
    /// The first error of `each`.
    pub(super) fn nodes(
        self,
        mut each: impl FnMut(Option<LayoutNode>) -> Result<(), LocalityError>,
    ) -> Result<(), LocalityError> {
        self.layout.rules().nodes(self.height, 0, &mut each)
    }

    /// Wraps a leaf number around.
    const fn within(self, leaf: u64) -> u64 {
        leaf & (self.leaves() - 1)
    }
}

/// Number of nodes of a full tree of `height`.
const fn perfect(height: u32) -> u64 {
    (2 << height) - 1
}

/// The layers of [`LEVELS`] levels, from the top: the height of the lowest level of each, and the
/// height above its highest level. The topmost layer has the remaining levels.
fn layers(height: u32) -> impl Iterator<Item = (u32, u32)> {
    let count = height.div_ceil(LEVELS);
    (0..count).rev().map(move |layer| (layer * LEVELS, ((layer + 1) * LEVELS).min(height)))
}

#[cfg(test)]
mod tests;
