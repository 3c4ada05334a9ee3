//! [`OrphanBlocks`]: blocks whose parent is not known yet.

use alloy_primitives::{B256, map::HashMap};
use retrie_pipeline::PreparedBlock;
use std::collections::BTreeSet;

/// Largest number of blocks; beyond it the highest are dropped.
const MAX_ORPHANS: usize = 128;

/// Blocks that wait for their parents.
#[derive(Debug, Default)]
pub(crate) struct OrphanBlocks {
    blocks: HashMap<B256, PreparedBlock>,
    by_parent: HashMap<B256, Vec<B256>>,
    by_number: BTreeSet<(u64, B256)>,
}

impl OrphanBlocks {
    pub(crate) fn insert(&mut self, block: PreparedBlock) {
        let (number, hash, parent) = (block.number(), block.hash(), block.parent_hash());
        if self.blocks.insert(hash, block).is_some() {
            return;
        }
        self.by_parent.entry(parent).or_default().push(hash);
        self.by_number.insert((number, hash));
        // The gap is filled from below, so the highest blocks are needed last.
        while self.blocks.len() > MAX_ORPHANS {
            let Some((_, highest)) = self.by_number.last().copied() else { break };
            self.remove(&highest);
        }
    }

    pub(crate) fn get(&self, hash: &B256) -> Option<&PreparedBlock> {
        self.blocks.get(hash)
    }

    pub(crate) fn take_children(&mut self, parent: &B256) -> Vec<PreparedBlock> {
        let children = self.by_parent.get(parent).cloned().unwrap_or_default();
        children.iter().filter_map(|hash| self.remove(hash)).collect()
    }

    /// Removes all descendants of `hash` and returns them, parents first.
    pub(crate) fn take_descendants(&mut self, hash: &B256) -> Vec<PreparedBlock> {
        let mut found = self.take_children(hash);
        let mut next = 0;
        while next < found.len() {
            let children = self.take_children(&found[next].hash());
            found.extend(children);
            next += 1;
        }
        found
    }

    pub(crate) fn retain_above(&mut self, number: u64) {
        while let Some((_, hash)) = self.by_number.first().filter(|(n, _)| *n <= number).copied() {
            self.remove(&hash);
        }
    }

    fn remove(&mut self, hash: &B256) -> Option<PreparedBlock> {
        let block = self.blocks.remove(hash)?;
        self.by_number.remove(&(block.number(), *hash));
        let parent = block.parent_hash();
        if let Some(siblings) = self.by_parent.get_mut(&parent) {
            siblings.retain(|sibling| sibling != hash);
            if siblings.is_empty() {
                self.by_parent.remove(&parent);
            }
        }
        Some(block)
    }
}
