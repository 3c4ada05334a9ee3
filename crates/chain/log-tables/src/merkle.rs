//! The tree over the entries of a table: `List[Hash32, number of entries]` of SSZ.
//!
//! The leaves are filled up with zeros to a power of two. The root of the list is the hash of the
//! tree's root and the number of entries.

use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use sha2::{Digest, Sha256};

/// SHA-256 of two nodes.
pub(crate) fn join(left: &B256, right: &B256) -> B256 {
    B256::new(Sha256::new().chain_update(left).chain_update(right).finalize().into())
}

/// Height of the tree of this many leaves.
pub(crate) const fn depth(count: u64) -> u32 {
    match count {
        0 | 1 => 0,
        more => u64::BITS - (more - 1).leading_zeros(),
    }
}

/// The root of a list of `count` leaves, whose tree has this root.
pub(crate) fn list_root(tree: &B256, count: u64) -> B256 {
    let mut length = B256::ZERO;
    length[..8].copy_from_slice(&count.to_le_bytes());
    join(tree, &length)
}

/// The node at `height` above zeros alone.
pub fn empty_subtree(height: u32) -> B256 {
    (0..height).fold(B256::ZERO, |node, _| join(&node, &node))
}

/// The nodes from one height of a tree upwards, those above zeros alone left out.
#[derive(Clone, Debug)]
pub struct NodeLevels {
    base: u32,
    levels: Vec<Vec<B256>>,
}

impl NodeLevels {
    /// The nodes above `nodes`, which are at the height `base`.
    pub fn new(base: u32, nodes: Vec<B256>) -> Self {
        let mut empty = empty_subtree(base);
        let mut levels = vec![nodes];
        while let Some(below) = levels.last().filter(|below| below.len() > 1) {
            let pair = |pair: &[B256]| join(&pair[0], pair.get(1).unwrap_or(&empty));
            let next = below.chunks(2).map(pair).collect();
            levels.push(next);
            empty = join(&empty, &empty);
        }
        Self { base, levels }
    }

    /// The node at `height` with this index from the left. It must not be below the first height.
    pub fn node(&self, height: u32, index: u64) -> B256 {
        let level = height.saturating_sub(self.base) as usize;
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        match self.levels.get(level) {
            Some(nodes) => nodes.get(at).copied().unwrap_or_else(|| empty_subtree(height)),
            // Above the root of the leaves that there are.
            None if index > 0 => empty_subtree(height),
            None => {
                let top = self.base + self.levels.len() as u32 - 1;
                let root = self.levels.last().and_then(|root| root.first()).copied();
                let root = root.unwrap_or_else(|| empty_subtree(top));
                (top..height).fold(root, |node, at| join(&node, &empty_subtree(at)))
            }
        }
    }
}
