//! Layers from the top, with a block for every subtree of P leaves. Within a block the nodes lie
//! level by level; a block is read and written as a whole.
//!
//! A block has 2P slots, so that blocks of up to a page do not cross pages. The nodes of a subtree
//! are numbered level by level from its root, which is 1; node `i` lies in slot `i` of the block.
//! Slot 1 holds the root of the whole tree in the topmost block, and is empty in the others, whose
//! root is a node of the block above. Slot 0 is always empty. The topmost block has the remaining
//! levels, and uses fewer slots.

use super::{
    LayoutNode, LayoutRules, LocalityError, Region, SlotVisitor,
    subtrees::{MAX_LEVELS, SubtreeLeaves},
};

#[derive(Clone, Copy)]
pub(super) struct BlockedLayout {
    subtree: SubtreeLeaves,
}

/// The layout for each P, by its [index](SubtreeLeaves::index).
pub(super) static BLOCKS: [BlockedLayout; MAX_LEVELS as usize] = {
    let mut all = [BlockedLayout { subtree: SubtreeLeaves::DEFAULT }; MAX_LEVELS as usize];
    let mut at = 0;
    while at < all.len() {
        all[at].subtree = SubtreeLeaves::at(at);
        at += 1;
    }
    all
};

/// A layer: height of its lowest level, height of its blocks' roots, and number of slots in the
/// layers above.
struct BlockLayer {
    low: u32,
    root: u32,
    above: u64,
}

impl BlockedLayout {
    /// Slots of a block: one more than a subtree has nodes.
    const fn block_slots(&self) -> u64 {
        2 * self.subtree.count()
    }

    /// The layers from the top. A single leaf is one block.
    fn placed(&self, height: u32) -> impl Iterator<Item = BlockLayer> {
        let slots = self.block_slots();
        let single = (height == 0).then_some((0, 0));
        let mut next = 0;
        single.into_iter().chain(self.subtree.layers(height)).map(move |(low, root)| {
            let above = next;
            next += slots << (height - root);
            BlockLayer { low, root, above }
        })
    }

    /// The first slot of the block above `leaf`.
    const fn block(&self, layer: &BlockLayer, leaf: u64) -> u64 {
        layer.above + (leaf >> layer.root) * self.block_slots()
    }
}

impl BlockLayer {
    /// The first used slot of a block, and the slot after the last used one.
    const fn used(&self, height: u32) -> (u64, u64) {
        let first = if self.root == height { 1 } else { 2 };
        (first, 2 << (self.root - self.low))
    }
}

impl LayoutRules for BlockedLayout {
    fn slots(&self, height: u32) -> u64 {
        self.placed(height).map(|layer| self.block_slots() << (height - layer.root)).sum()
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        for layer in self.placed(height) {
            let block = start + self.block(&layer, leaf);
            // Only the topmost block holds its root.
            let highest = if layer.root == height { height } else { layer.root - 1 };
            for at in (layer.low..=highest).rev() {
                let level = 1 << (layer.root - at);
                each(at, block + level + (leaf >> at & (level - 1)));
            }
        }
    }

    /// The same regions as a read: a writer needs the siblings to hash a changed node, so it has
    /// read the block.
    fn write(&self, height: u32, leaf: u64, start: u64, out: &mut Vec<Region>) {
        for layer in self.placed(height) {
            let block = start + self.block(&layer, leaf);
            let (first, end) = layer.used(height);
            out.push(Region { start: block + first, end: block + end });
        }
    }

    fn read(&self, height: u32, leaf: u64, out: &mut Vec<Region>) {
        self.write(height, leaf, 0, out);
    }

    /// The block that `slot` belongs to.
    fn unit(&self, _: u32, slot: u64) -> Region {
        let start = slot / self.block_slots() * self.block_slots();
        Region { start, end: start + self.block_slots() }
    }

    fn nodes(&self, height: u32, _: u64, each: SlotVisitor<'_>) -> Result<(), LocalityError> {
        for layer in self.placed(height) {
            let (first, end) = layer.used(height);
            for block in 0..1_u64 << (height - layer.root) {
                for slot in 0..self.block_slots() {
                    let node = (first..end).contains(&slot).then(|| {
                        let depth = slot.ilog2();
                        let index = (block << depth) + (slot - (1 << depth));
                        LayoutNode { height: layer.root - depth, index }
                    });
                    each(node)?;
                }
            }
        }
        Ok(())
    }
}
