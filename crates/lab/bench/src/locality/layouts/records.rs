//! DupTree++: layers from the top, with a record for every node at the bottom of a layer.
//!
//! A record holds the nodes on the path from its bottom node upwards within the layer, without the
//! root of the subtree, which the layer above holds. So a path is one record of each layer, and the
//! root of the whole tree is not stored.

use super::{
    LayoutNode, LayoutRules, LocalityError, Region, SlotVisitor,
    subtrees::{MAX_LEVELS, SubtreeLeaves},
};

#[derive(Clone, Copy)]
pub(super) struct RecordLayout {
    subtree: SubtreeLeaves,
}

/// The layout for each P, by its [index](SubtreeLeaves::index).
pub(super) static RECORDS: [RecordLayout; MAX_LEVELS as usize] = {
    let mut all = [RecordLayout { subtree: SubtreeLeaves::DEFAULT }; MAX_LEVELS as usize];
    let mut at = 0;
    while at < all.len() {
        all[at].subtree = SubtreeLeaves::at(at);
        at += 1;
    }
    all
};

impl RecordLayout {
    /// The layers of a tree, with the first slot of each.
    fn placed(&self, height: u32) -> impl Iterator<Item = (u32, u32, u64)> {
        let mut next = 0;
        self.subtree.layers(height).map(move |(low, top)| {
            let start = next;
            next += u64::from(top - low) << (height - low);
            (low, top, start)
        })
    }
}

impl LayoutRules for RecordLayout {
    fn slots(&self, height: u32) -> u64 {
        self.subtree.layers(height).map(|(low, top)| u64::from(top - low) << (height - low)).sum()
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        for (low, top, layer) in self.placed(height) {
            let record = start + layer + (leaf >> low) * u64::from(top - low);
            for (at, slot) in (low..top).zip(record..) {
                each(at, slot);
            }
        }
    }

    /// In each layer all records below a changed node contain it, in their last slots.
    fn write(&self, height: u32, leaf: u64, start: u64, out: &mut Vec<Region>) {
        for (low, top, layer) in self.placed(height) {
            let (own, width) = (leaf >> low, u64::from(top - low));
            let below_highest = 1 << (top - low - 1);
            let first = own & !(below_highest - 1);
            for record in first..first + below_highest {
                let at = start + layer + record * width;
                let private = (record ^ own).checked_ilog2().map_or(0, |bit| u64::from(bit) + 1);
                out.push(Region { start: at + private, end: at + width });
            }
        }
    }

    /// The record that `slot` belongs to.
    fn unit(&self, height: u32, slot: u64) -> Region {
        let layer = self.placed(height).filter(|(_, _, start)| *start <= slot).last();
        let Some((low, top, start)) = layer else { return Region::slot(slot) };
        let width = u64::from(top - low);
        let at = start + (slot - start) / width * width;
        Region { start: at, end: at + width }
    }

    fn nodes(&self, height: u32, _: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError> {
        for (low, top) in self.subtree.layers(height) {
            for record in 0..1_u64 << (height - low) {
                (low..top).try_for_each(|at| each(Some(LayoutNode::above(record << low, at))))?;
            }
        }
        Ok(())
    }
}
