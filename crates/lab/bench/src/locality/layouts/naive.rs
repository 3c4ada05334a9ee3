//! The textbook layout: level by level, the root first.

use super::{LayoutNode, LayoutRules, LocalityError, SlotVisitor, perfect};

/// Slot 2^d - 1 + i holds node i of depth d.
pub(super) struct NaiveLayout;

impl LayoutRules for NaiveLayout {
    fn slots(&self, height: u32) -> u64 {
        perfect(height)
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        let leaf = leaf & ((1 << height) - 1);
        for at in (0..=height).rev() {
            let level = (1 << (height - at)) - 1;
            each(at, start + level + (leaf >> at));
        }
    }

    fn nodes(&self, height: u32, leaf: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError> {
        for at in (0..=height).rev() {
            let first = leaf >> at;
            for index in first..first + (1 << (height - at)) {
                each(Some(LayoutNode { height: at, index }))?;
            }
        }
        Ok(())
    }
}
