//! Layers from the top, in each a block for every subtree of 32 leaves; a block is laid out layer by
//! layer and read and written whole.
//!
//! A block has 64 slots, so that none crosses a page: node `i` of a subtree, counted level by level
//! from its root, which is 1, stands in slot `i` of its block. Slot 1 holds the root of the whole tree
//! in the topmost block, and is empty in the others, whose root is a node of the block above. Slot 0
//! is always empty. The topmost block has as many levels as are left, and uses fewer slots.

use super::{Arrange, EachSlot, LEVELS, LocalityError, Node, Region, layers};

pub(super) struct Blocked;

/// Slots of a block: nodes of a subtree, and one.
const SLOTS: u64 = 2 << LEVELS;

/// A layer: its blocks' roots, their lowest level, and the number of blocks above.
struct Layer {
    low: u32,
    root: u32,
    above: u64,
}

/// From the top. A single leaf is a block of its own.
fn placed(height: u32) -> impl Iterator<Item = Layer> {
    let single = (height == 0).then_some((0, 0));
    let mut next = 0;
    single.into_iter().chain(layers(height)).map(move |(low, root)| {
        let above = next;
        next += 1 << (height - root);
        Layer { low, root, above }
    })
}

impl Layer {
    /// The first slot of the block above `leaf`.
    const fn block(&self, leaf: u64) -> u64 {
        (self.above + (leaf >> self.root)) * SLOTS
    }

    /// The first slot of a block that is in use, and the one behind the last.
    const fn used(&self, height: u32) -> (u64, u64) {
        let first = if self.root == height { 1 } else { 2 };
        (first, 2 << (self.root - self.low))
    }
}

impl Arrange for Blocked {
    fn slots(&self, height: u32) -> u64 {
        placed(height).map(|layer| SLOTS << (height - layer.root)).sum()
    }

    fn path(&self, height: u32, leaf: u64, start: u64, each: &mut dyn FnMut(u32, u64)) {
        for layer in placed(height) {
            let block = start + layer.block(leaf);
            // The root of the whole tree is a node of the topmost block, other roots are not.
            let highest = if layer.root == height { height } else { layer.root - 1 };
            for at in (layer.low..=highest).rev() {
                let level = 1 << (layer.root - at);
                each(at, block + level + (leaf >> at & (level - 1)));
            }
        }
    }

    /// As read: whoever changes a node hashes its sibling too, so he has the block.
    fn write(&self, height: u32, leaf: u64, start: u64, out: &mut Vec<Region>) {
        for layer in placed(height) {
            let block = start + layer.block(leaf);
            let (first, end) = layer.used(height);
            out.push(Region { start: block + first, end: block + end });
        }
    }

    fn read(&self, height: u32, leaf: u64, out: &mut Vec<Region>) {
        self.write(height, leaf, 0, out);
    }

    fn nodes(&self, height: u32, _: u64, each: EachSlot<'_>) -> Result<(), LocalityError> {
        for layer in placed(height) {
            let (first, end) = layer.used(height);
            for block in 0..1_u64 << (height - layer.root) {
                for slot in 0..SLOTS {
                    let node = (first..end).contains(&slot).then(|| {
                        let depth = slot.ilog2();
                        let index = (block << depth) + (slot - (1 << depth));
                        Node { height: layer.root - depth, index }
                    });
                    each(node)?;
                }
            }
        }
        Ok(())
    }
}
