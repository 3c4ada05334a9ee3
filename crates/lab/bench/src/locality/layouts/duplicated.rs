//! DupTree and DupTree+: the upper part of each path is duplicated.
//!
//! ```text
//!  tree(h)  =  unit unit unit ...               one for each of the 2^(h - b) subtrees of height b
//!  unit     =  [ subtree(b) | ancestors of its root, at heights b + 1 .. h ]
//! ```
//!
//! The paper (Fig. 11) has b = log log n; here it is log2 h rounded up, so that a subtree has at
//! least log n leaves. The subtrees of DupTree are naive. The subtrees of DupTree+ are DupTree+
//! again, down to single leaves (the paper's constant, below which trees are naive, is 1 here).

use super::{LayoutNode, LayoutRules, LocalityError, Region, SlotVisitor, naive::NaiveLayout};

/// DupTree, or DupTree+ if it is recursive.
pub(super) struct DupTreeLayout {
    is_recursive: bool,
}

/// The height of the subtrees below the duplicated part of a tree; `None` for a single leaf.
pub(in crate::locality) const fn lower(height: u32) -> Option<u32> {
    match height {
        0 => None,
        _ => Some(height.next_power_of_two().trailing_zeros()),
    }
}

/// The shape of a unit.
struct DupTreeUnit {
    /// Height of its subtree.
    below: u32,
    /// Slots of the subtree, which is the offset of the ancestors.
    inner: u64,
    /// Slots of the whole unit.
    slots: u64,
}

impl DupTreeLayout {
    pub(super) const ONCE: Self = Self { is_recursive: false };
    pub(super) const RECURSIVE: Self = Self { is_recursive: true };

    fn unit(&self, height: u32) -> Option<DupTreeUnit> {
        let below = lower(height)?;
        let inner = self.lower_rules().slots(below);
        Some(DupTreeUnit { below, inner, slots: inner + u64::from(height - below) })
    }

    fn lower_rules(&self) -> &dyn LayoutRules {
        if self.is_recursive { self } else { &NaiveLayout }
    }
}

impl LayoutRules for DupTreeLayout {
    fn slots(&self, height: u32) -> u64 {
        self.unit(height).map_or(1, |unit| unit.slots << (height - unit.below))
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        let leaf = leaf & ((1 << height) - 1);
        let Some(unit) = self.unit(height) else { return each(0, start) };
        let start = start + (leaf >> unit.below) * unit.slots;
        self.lower_rules().path(unit.below, leaf, start, each);
        for (at, slot) in (unit.below + 1..=height).zip(start + unit.inner..) {
            each(at, slot);
        }
    }

    /// Every unit has copies of the ancestors that it shares with the leaf: from the lowest common
    /// ancestor to the end of the unit.
    fn write(&self, height: u32, leaf: u64, start: u64, out: &mut Vec<Region>) {
        let leaf = leaf & ((1 << height) - 1);
        let Some(unit) = self.unit(height) else { return out.push(Region::slot(start)) };
        let own = leaf >> unit.below;
        for other in 0..1 << (height - unit.below) {
            let at = start + other * unit.slots;
            let end = at + unit.slots;
            if other == own {
                self.lower_rules().write(unit.below, leaf, at, out);
                out.push(Region { start: at + unit.inner, end });
            } else {
                let private = u64::from((other ^ own).ilog2());
                out.push(Region { start: at + unit.inner + private, end });
            }
        }
    }

    fn nodes(&self, height: u32, leaf: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError> {
        let Some(DupTreeUnit { below, .. }) = self.unit(height) else {
            return each(Some(LayoutNode::above(leaf, 0)));
        };
        for first in (leaf..leaf + (1 << height)).step_by(1 << below) {
            self.lower_rules().nodes(below, first, each)?;
            (below + 1..=height).try_for_each(|at| each(Some(LayoutNode::above(first, at))))?;
        }
        Ok(())
    }
}
