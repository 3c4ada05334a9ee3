//! The best layout without duplicates, whose average locality is about a third of the height.
//!
//! ```text
//!  Middle(h)  =  [ Last(h - 1)   r   First(h - 1) ]      Lemma 3.6: beside both children
//!  Last(h)    =  [ Middle(h - 1)  Last(h - 1)  r ]       Lemma 3.5: the root at an end
//!  First(h)   =  [ r  First(h - 1)  Middle(h - 1) ]
//! ```

use super::{Arrange, EachSlot, LocalityError, Node, perfect};

/// The whole tree is a [`Root::Middle`].
pub(super) struct Third;

/// Where the root of a subtree stands among its nodes.
#[derive(Clone, Copy)]
enum Root {
    First,
    Middle,
    Last,
}

impl Root {
    /// Where it stands, and the two subtrees, of `half` slots each: their slot and their kind.
    const fn split(self, half: u64) -> (u64, [(u64, Self); 2]) {
        match self {
            Self::First => (0, [(1, Self::First), (1 + half, Self::Middle)]),
            Self::Middle => (half, [(0, Self::Last), (half + 1, Self::First)]),
            Self::Last => (2 * half, [(0, Self::Middle), (half, Self::Last)]),
        }
    }

    fn nodes(self, height: u32, leaf: u64, each: EachSlot<'_>) -> Result<(), LocalityError> {
        let root = Some(Node::above(leaf, height));
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

impl Arrange for Third {
    fn slots(&self, height: u32) -> u64 {
        perfect(height)
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        let (mut start, mut kind) = (start, Root::Middle);
        for at in (1..=height).rev() {
            let (root, [left, right]) = kind.split(perfect(at - 1));
            each(at, start + root);
            let is_right = leaf >> (at - 1) & 1 == 1;
            let (offset, below) = if is_right { right } else { left };
            (start, kind) = (start + offset, below);
        }
        each(0, start);
    }

    fn nodes(&self, height: u32, leaf: u64, each: EachSlot<'_>) -> Result<(), LocalityError> {
        Root::Middle.nodes(height, leaf, each)
    }
}
