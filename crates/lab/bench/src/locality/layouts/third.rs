//! The best layout without duplicates, whose average locality is about a third of the height.
//!
//! ```text
//!  Middle(h)  =  [ Last(h - 1)   r   First(h - 1) ]      Lemma 3.6: beside both children
//!  Last(h)    =  [ Middle(h - 1)  Last(h - 1)  r ]       Lemma 3.5: the root at an end
//!  First(h)   =  [ r  First(h - 1)  Middle(h - 1) ]
//! ```

use super::{LayoutNode, LayoutRules, LocalityError, SlotVisitor, perfect};

/// The whole tree is a [`RootPosition::Middle`].
pub(super) struct ThirdLayout;

/// The position of a subtree's root among its nodes.
#[derive(Clone, Copy)]
enum RootPosition {
    First,
    Middle,
    Last,
}

impl RootPosition {
    /// The slot of the root, and slot and kind of the two subtrees, which have `half` slots each.
    const fn split(self, half: u64) -> (u64, [(u64, Self); 2]) {
        match self {
            Self::First => (0, [(1, Self::First), (1 + half, Self::Middle)]),
            Self::Middle => (half, [(0, Self::Last), (half + 1, Self::First)]),
            Self::Last => (2 * half, [(0, Self::Middle), (half, Self::Last)]),
        }
    }

    fn nodes(self, height: u32, leaf: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError> {
        let root = Some(LayoutNode::above(leaf, height));
        let Some(below) = height.checked_sub(1) else { return each(root) };
        let right = leaf + (1 << below);
        let [left_kind, right_kind] = self.split(0).1.map(|(_, kind)| kind);
        if let Self::First = self {
            each(root)?;
        }
        left_kind.nodes(below, leaf, each)?;
        if let Self::Middle = self {
            each(root)?;
        }
        right_kind.nodes(below, right, each)?;
        if let Self::Last = self {
            each(root)?;
        }
        Ok(())
    }
}

impl LayoutRules for ThirdLayout {
    fn slots(&self, height: u32) -> u64 {
        perfect(height)
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        let (mut start, mut kind) = (start, RootPosition::Middle);
        for at in (1..=height).rev() {
            let (root, [left, right]) = kind.split(perfect(at - 1));
            each(at, start + root);
            let is_right = leaf >> (at - 1) & 1 == 1;
            let (offset, below) = if is_right { right } else { left };
            (start, kind) = (start + offset, below);
        }
        each(0, start);
    }

    fn nodes(&self, height: u32, leaf: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError> {
        RootPosition::Middle.nodes(height, leaf, each)
    }
}
