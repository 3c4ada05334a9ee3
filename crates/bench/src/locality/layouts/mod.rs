//! Layouts: which node of a tree stands in which slot of a file.

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

/// Trees are no higher than this: all slots of every layout then fit into 2^46 bytes.
pub const MAX_HEIGHT: u32 = 36;
/// Levels that a record or block covers: log P for P = 32 (section 5.1.1).
pub(super) const LEVELS: u32 = 5;

/// How a tree is laid out in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Level by level, the root first (section 1: textbook; the identity permutation of 3.2).
    Naive,
    /// The best there is without duplicates: a root stands between its children wherever that can
    /// be (Lemmas 3.5 and 3.6).
    Third,
    /// The upper part of each path is duplicated, the lower log n leaves are naive (Fig. 11).
    DupTree,
    /// The same again in each of the lower trees, down to single leaves (Fig. 4).
    DupTreePlus,
    /// Layers of five levels; for each place at a layer's bottom a record of the five nodes on its
    /// path (Fig. 12 with P = 32, as in 5.1.1). The root is not in the file: it is the digest that
    /// whoever checks the memory keeps.
    DupTreePlusPlus,
    /// The same layers without duplicates: a block of all nodes of a subtree of 32 leaves, read and
    /// written whole. Not in the paper.
    Blocked,
}

impl Layout {
    /// All of them.
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

    fn rules(self) -> &'static dyn Arrange {
        match self {
            Self::Naive => &naive::Naive,
            Self::Third => &third::Third,
            Self::DupTree => &duplicated::DupTree::ONCE,
            Self::DupTreePlus => &duplicated::DupTree::RECURSIVE,
            Self::DupTreePlusPlus => &records::Records,
            Self::Blocked => &blocked::Blocked,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no layout of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no layout `{0}`: it is naive, third, duptree, duptree-plus, duptree-plus-plus or \
     blocked"
)]
pub struct UnknownLayout(String);

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| UnknownLayout(text.into()))
    }
}

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Height above the leaves, which have 0.
    pub height: u32,
    /// Place among the nodes of that height, from the left.
    pub index: u64,
}

impl Node {
    /// The ancestor of `leaf` at `height`.
    pub(super) const fn above(leaf: u64, height: u32) -> Self {
        Self { height, index: leaf >> height }
    }
}

/// A node of a path, and the copy of it that a read takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: Node,
    /// Its slot.
    pub slot: u64,
}

/// What takes the nodes of a file in the order of its slots; `None` is a slot that stays empty. An
/// error ends the walk.
pub(super) type EachSlot<'a> = &'a mut dyn FnMut(Option<Node>) -> Result<(), LocalityError>;

/// The rules of a layout. Heights are at most [`MAX_HEIGHT`], leaves below 2^height; `start` is added
/// to every slot.
trait Arrange: Sync {
    /// Slots of the whole file.
    fn slots(&self, height: u32) -> u64;

    /// The path of `leaf`: height and slot of each of its nodes that is stored, in any order.
    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64));

    /// What a write of `leaf` changes, in any order.
    fn write(&self, height: u32, leaf: u64, start: u64, out: &mut Vec<Region>) {
        self.path(height, leaf, start, &mut |_, slot| out.push(Region::slot(slot)));
    }

    /// What a read of `leaf` takes, in any order; covers the path.
    fn read(&self, height: u32, leaf: u64, out: &mut Vec<Region>) {
        self.path(height, leaf, 0, &mut |_, slot| out.push(Region::slot(slot)));
    }

    /// All nodes of the tree above the 2^height leaves from `leaf` on, in the order of slots.
    fn nodes(&self, height: u32, leaf: u64, each: EachSlot<'_>) -> Result<(), LocalityError>;
}

/// A dense tree in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    layout: Layout,
    height: u32,
}

impl Tree {
    /// A tree of 2^`height` leaves.
    ///
    /// # Errors
    /// If it is higher than [`MAX_HEIGHT`].
    pub const fn new(layout: Layout, height: u32) -> Result<Self, LocalityError> {
        if height > MAX_HEIGHT {
            return Err(LocalityError::Height { height, most: MAX_HEIGHT });
        }
        Ok(Self { layout, height })
    }

    /// Its layout.
    pub const fn layout(self) -> Layout {
        self.layout
    }

    /// Its height.
    pub const fn height(self) -> u32 {
        self.height
    }

    /// Number of leaves.
    pub const fn leaves(self) -> u64 {
        1 << self.height
    }

    /// Length of the file in slots.
    pub fn slots(self) -> u64 {
        self.layout.rules().slots(self.height)
    }

    /// The nodes on the path of `leaf`, and where a read finds them, in any order. All h + 1 of them,
    /// but for [`Layout::DupTreePlusPlus`], which does not store the root.
    pub fn path(self, leaf: u64, mut each: impl FnMut(Place)) {
        let leaf = self.within(leaf);
        self.layout.rules().path(self.height, leaf, 0, &mut |height, slot| {
            each(Place { node: Node::above(leaf, height), slot });
        });
    }

    /// What a read of `leaf` takes from the file: maximal regions in rising order.
    pub fn read(self, leaf: u64, out: &mut Vec<Region>) {
        out.clear();
        self.layout.rules().read(self.height, self.within(leaf), out);
        merge(out);
    }

    /// What a write of `leaf` changes in the file, all copies of the path's nodes: maximal regions in
    /// rising order.
    pub fn write(self, leaf: u64, out: &mut Vec<Region>) {
        out.clear();
        self.layout.rules().write(self.height, self.within(leaf), 0, out);
        merge(out);
    }

    /// All slots of the file in order, and the node in each; `None` where a slot stays empty.
    ///
    /// # Errors
    /// The first one of `each`.
    pub(super) fn nodes(
        self,
        mut each: impl FnMut(Option<Node>) -> Result<(), LocalityError>,
    ) -> Result<(), LocalityError> {
        self.layout.rules().nodes(self.height, 0, &mut each)
    }

    /// Leaves are numbered round and round.
    const fn within(self, leaf: u64) -> u64 {
        leaf & (self.leaves() - 1)
    }
}

/// All nodes of a tree that stand on the path of at least one leaf: of `height` up to the root.
const fn perfect(height: u32) -> u64 {
    (2 << height) - 1
}

/// Heights of the layers of [`LEVELS`] levels, from the top: the lowest one of each and the one above
/// its highest. The topmost layer has as many levels as are left.
fn layers(height: u32) -> impl Iterator<Item = (u32, u32)> {
    let count = height.div_ceil(LEVELS);
    (0..count).rev().map(move |layer| (layer * LEVELS, ((layer + 1) * LEVELS).min(height)))
}

#[cfg(test)]
mod tests;
