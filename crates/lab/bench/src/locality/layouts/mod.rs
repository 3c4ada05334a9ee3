//! Layouts: the assignment of a tree's nodes to the slots of a file.

mod blocked;
mod duplicated;
mod naive;
mod records;
mod subtrees;
mod third;

use super::{
    LocalityError,
    region::{Region, SlotContent, merge},
};
use std::{fmt, str::FromStr};

pub(super) use duplicated::lower;
pub use subtrees::{SubtreeLeaves, WrongSubtreeLeaves};

/// Largest height of a tree. All slots of every layout then fit into 2^47 bytes.
pub const MAX_HEIGHT: u32 = 36;

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
    /// Layers of log P levels. For each node at the bottom of a layer there is a record of the
    /// nodes on its path within the layer (Fig. 12, with records as in 5.1.1). The root is not in
    /// the file: it is the digest that the verifier keeps.
    DupTreePlusPlus,
    /// The same layers without duplicates: a block holds all nodes of a subtree of P leaves and is
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

    /// Whether the layout depends on P.
    pub const fn has_subtrees(self) -> bool {
        matches!(self, Self::DupTreePlusPlus | Self::Blocked)
    }

    /// Whether nodes may have several copies. Otherwise a write changes the slots that a read takes.
    pub(super) const fn has_copies(self) -> bool {
        matches!(self, Self::DupTree | Self::DupTreePlus | Self::DupTreePlusPlus)
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

    /// The slots that one row of a database holds: those of a record or block, or this slot alone.
    fn unit(&self, height: u32, slot: u64) -> Region {
        let _ = height;
        Region::slot(slot)
    }

    /// Calls `each` with all nodes of the tree above the 2^height leaves from `leaf` on, in slot
    /// order.
    fn nodes(&self, height: u32, leaf: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError>;
}

/// A dense tree in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseTree {
    layout: TreeLayout,
    height: u32,
    subtree: SubtreeLeaves,
    content: SlotContent,
}

impl DenseTree {
    /// A tree of 2^`height` leaves, with P = 32 and slots of one hash.
    ///
    /// # Errors
    /// [`LocalityError::Height`] if `height` exceeds [`MAX_HEIGHT`].
    pub const fn new(layout: TreeLayout, height: u32) -> Result<Self, LocalityError> {
        if height > MAX_HEIGHT {
            return Err(LocalityError::Height { height, most: MAX_HEIGHT });
        }
        let (subtree, content) = (SubtreeLeaves::DEFAULT, SlotContent::NodeHash);
        Ok(Self { layout, height, subtree, content })
    }

    /// The same tree with this P, which only [some layouts](TreeLayout::has_subtrees) have.
    #[must_use]
    pub const fn with_subtrees(self, subtree: SubtreeLeaves) -> Self {
        Self { subtree, ..self }
    }

    /// The same tree with slots of this content.
    #[must_use]
    pub const fn with_slots(self, content: SlotContent) -> Self {
        Self { content, ..self }
    }

    /// Its layout.
    pub const fn layout(self) -> TreeLayout {
        self.layout
    }

    /// Its height.
    pub const fn height(self) -> u32 {
        self.height
    }

    /// P, if its layout has subtrees.
    pub fn subtree(self) -> Option<SubtreeLeaves> {
        self.layout.has_subtrees().then_some(self.subtree)
    }

    /// The content of its slots.
    pub const fn content(self) -> SlotContent {
        self.content
    }

    /// Name of layout and P: `third`, `blocked:p=32`.
    pub fn name(self) -> String {
        match self.subtree() {
            Some(subtree) => format!("{}:p={subtree}", self.layout),
            None => self.layout.to_string(),
        }
    }

    /// Length of its file in bytes.
    pub fn bytes(self) -> u64 {
        self.slots() * self.content.bytes()
    }

    /// log2 P.
    pub(super) const fn levels(self) -> u32 {
        self.subtree.levels()
    }

    /// Number of leaves.
    pub(crate) const fn leaves(self) -> u64 {
        1 << self.height
    }

    /// Length of the file in slots.
    pub(crate) fn slots(self) -> u64 {
        self.rules().slots(self.height)
    }

    /// Calls `each` with the nodes on the path of `leaf` and the slots from which a read takes
    /// them, in any order. These are all h + 1 nodes, except in [`TreeLayout::DupTreePlusPlus`],
    /// which does not store the root.
    pub(crate) fn path(self, leaf: u64, mut each: impl FnMut(NodePlace)) {
        let leaf = self.within(leaf);
        self.rules().path(self.height, leaf, 0, &mut |height, slot| {
            each(NodePlace { node: LayoutNode::above(leaf, height), slot });
        });
    }

    /// Sets `out` to the regions that a read of `leaf` takes: maximal regions in rising order.
    pub(crate) fn read(self, leaf: u64, out: &mut Vec<Region>) {
        out.clear();
        self.rules().read(self.height, self.within(leaf), out);
        merge(out);
    }

    /// Sets `out` to the regions that a write of `leaf` changes, with all copies of the path's
    /// nodes: maximal regions in rising order.
    pub(crate) fn write(self, leaf: u64, out: &mut Vec<Region>) {
        out.clear();
        self.rules().write(self.height, self.within(leaf), 0, out);
        merge(out);
    }

    /// The slots of the database row that `slot` belongs to.
    pub(super) fn unit(self, slot: u64) -> Region {
        self.rules().unit(self.height, slot)
    }

    /// Calls `each` with the node of each slot, in slot order; `None` for an empty slot.
    ///
    /// # Errors
    /// The first error of `each`.
    pub(super) fn nodes(
        self,
        mut each: impl FnMut(Option<LayoutNode>) -> Result<(), LocalityError>,
    ) -> Result<(), LocalityError> {
        self.rules().nodes(self.height, 0, &mut each)
    }

    fn rules(self) -> &'static dyn LayoutRules {
        match self.layout {
            TreeLayout::Naive => &naive::NaiveLayout,
            TreeLayout::Third => &third::ThirdLayout,
            TreeLayout::DupTree => &duplicated::DupTreeLayout::ONCE,
            TreeLayout::DupTreePlus => &duplicated::DupTreeLayout::RECURSIVE,
            TreeLayout::DupTreePlusPlus => &records::RECORDS[self.subtree.index()],
            TreeLayout::Blocked => &blocked::BLOCKS[self.subtree.index()],
        }
    }

    /// Wraps a leaf number around.
    const fn within(self, leaf: u64) -> u64 {
        leaf & (self.leaves() - 1)
    }
}

impl fmt::Display for DenseTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of height {}", self.name(), self.height)
    }
}

/// Number of nodes of a full tree of `height`.
const fn perfect(height: u32) -> u64 {
    (2 << height) - 1
}

#[cfg(test)]
mod tests;
