//! A subtree in memory.
//!
//! Its nodes are numbered as in a heap: 1 is the root, 2n and 2n + 1 are below n, 32 to 63 are the
//! bottoms. A [`NodeSet`] has one bit per node.

use super::{
    hash::{HashBatch, empty},
    shape::LEVELS,
};
use alloy_primitives::B256;
use core::ops::Range;
use retrie_state::{RowTable, StateError};

/// Rows of subtrees, and the row with the size of the tree.
pub const NODES: RowTable = RowTable::new(0x51, "DupTreeNodes");

/// First bottom.
pub(crate) const BOTTOM: usize = 1 << LEVELS;
/// Root.
pub(crate) const ROOT: usize = 1;

/// A set of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u64);

impl NodeSet {
    /// The nodes on the paths from some bottoms (a bit each) to the root, both included.
    pub(crate) fn paths(bottoms: u32) -> Self {
        let mut nodes = Self(u64::from(bottoms) << BOTTOM);
        for node in (1..BOTTOM).rev() {
            if nodes.has(2 * node) || nodes.has(2 * node + 1) {
                nodes.add(node);
            }
        }
        nodes
    }

    /// The siblings of these nodes that are not in the set themselves.
    pub(crate) const fn siblings(self) -> Self {
        const LEFT: u64 = 0x5555_5555_5555_5554;
        Self(((self.0 & LEFT) << 1 | (self.0 & (LEFT << 1)) >> 1) & !self.0)
    }

    pub(crate) const fn has(self, node: usize) -> bool {
        self.0 >> node & 1 == 1
    }

    pub(crate) const fn add(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    /// The nodes, level by level from the bottoms, from left to right.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..=LEVELS).flat_map(row_of).filter(move |node| self.has(*node))
    }
}

/// The nodes of a level above the bottoms, from left to right.
fn row_of(level: u8) -> Range<usize> {
    let width = BOTTOM >> level;
    width..2 * width
}

/// The level of a node above the bottoms.
pub(crate) const fn level_of(node: usize) -> u8 {
    LEVELS - node.ilog2() as u8
}

/// The node of a level above the bottoms, counted from the left.
pub(crate) const fn node_at(level: u8, number: usize) -> usize {
    (BOTTOM >> level) + number
}

/// Number of a node within its level, in a subtree with this index.
pub(crate) const fn number_of(index: u64, node: usize) -> u64 {
    let width = 1 << node.ilog2();
    index << node.ilog2() | (node - width) as u64
}

/// A subtree, of which some nodes may be unknown.
#[derive(Clone, Debug)]
pub(crate) struct Subtree {
    /// Level of the bottoms.
    level: u8,
    /// Number of non-empty bottoms, from the left.
    filled: u8,
    /// The known nodes.
    known: NodeSet,
    nodes: Box<[B256; 2 * BOTTOM]>,
}

impl Subtree {
    /// A subtree without known nodes, with `filled` non-empty bottoms (up to 32).
    pub(crate) fn new(level: u8, filled: u8) -> Self {
        Self { level, filled, known: NodeSet(0), nodes: Box::new([B256::ZERO; 2 * BOTTOM]) }
    }

    /// Number of non-empty bottoms.
    pub(crate) const fn filled(&self) -> u8 {
        self.filled
    }

    /// Level of the bottoms.
    pub(crate) const fn level(&self) -> u8 {
        self.level
    }

    /// Sets the number of non-empty bottoms; the new bottoms are unknown.
    pub(crate) const fn grow(&mut self, filled: u8) {
        self.filled = filled;
    }

    /// Whether there is no leaf below a node.
    pub(crate) const fn is_empty(&self, node: usize) -> bool {
        let (level, width) = (level_of(node), 1 << node.ilog2());
        (node - width) << level >= self.filled as usize
    }

    /// A node, if it is known; empty nodes always are.
    pub(crate) fn get(&self, node: usize) -> Option<&B256> {
        if self.is_empty(node) {
            return Some(empty(self.level + level_of(node)));
        }
        self.known.has(node).then(|| &self.nodes[node])
    }

    /// A node that must be known.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if it is unknown, because rows that hold it are missing.
    pub(crate) fn need(&self, node: usize) -> Result<&B256, StateError> {
        self.get(node).ok_or_else(|| {
            let (level, node) = (self.level, node);
            let what = format!("node {node} of a subtree above level {level} is not known");
            StateError::corrupt(NODES.name, what)
        })
    }

    /// Sets a node, which then is known.
    pub(crate) fn set(&mut self, node: usize, hash: B256) {
        self.nodes[node] = hash;
        self.known.add(node);
    }

    /// Whether all of `nodes` are known.
    pub(crate) fn knows(&self, nodes: NodeSet) -> bool {
        nodes.iter().all(|node| self.get(node).is_some())
    }
}

/// A subtree in which the nodes `changed` were set; the nodes above them have to be hashed again.
#[derive(Debug)]
pub(crate) struct DirtySubtree<'a> {
    pub(crate) subtree: &'a mut Subtree,
    pub(crate) changed: NodeSet,
}

/// Hashes the nodes above changed nodes, and unknown nodes whose two children are known. All
/// subtrees are hashed together, level by level, so that several hashes are computed at once.
///
/// # Errors
/// [`StateError::Corrupt`] if the sibling of a changed node is unknown.
pub(crate) fn rehash(work: &mut [DirtySubtree<'_>]) -> Result<(), StateError> {
    let (mut batch, mut targets, mut digests) = (HashBatch::default(), Vec::new(), Vec::new());
    for level in 1..=LEVELS {
        for (at, DirtySubtree { subtree, changed }) in work.iter_mut().enumerate() {
            for node in row_of(level) {
                if subtree.is_empty(node) {
                    continue;
                }
                let below = (2 * node, 2 * node + 1);
                let is_above = changed.has(below.0) || changed.has(below.1);
                if is_above {
                    changed.add(node);
                } else if subtree.known.has(node) || !subtree.can_hash(node) {
                    continue;
                }
                batch.inner(subtree.need(below.0)?, subtree.need(below.1)?);
                targets.push((at, node));
            }
        }
        batch.finish_into(&mut digests);
        for ((at, node), digest) in targets.drain(..).zip(digests.drain(..)) {
            work[at].subtree.set(node, digest);
        }
    }
    Ok(())
}

impl Subtree {
    fn can_hash(&self, node: usize) -> bool {
        self.get(2 * node).is_some() && self.get(2 * node + 1).is_some()
    }

    /// Hashes all unknown nodes whose two children are known.
    ///
    /// # Errors
    /// As [`rehash`].
    pub(crate) fn complete(&mut self) -> Result<(), StateError> {
        rehash(&mut [DirtySubtree { subtree: self, changed: NodeSet::default() }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duptree::hash::inner;

    #[test]
    fn paths_and_siblings_are_those_of_a_binary_tree() {
        for bottoms in [1, 0x8000_0000, 0b1010, u32::MAX, 0x0001_8000] {
            let paths = NodeSet::paths(bottoms);
            for node in 1..2 * BOTTOM {
                let (level, number) = (level_of(node), number_of(0, node));
                let is_above =
                    (0..32).any(|b| bottoms >> b & 1 == 1 && (b >> level) as u64 == number);
                assert_eq!(paths.has(node), is_above, "{bottoms:b}, node {node}");
                assert_eq!(node_at(level, number as usize), node);
                let is_sibling = node > 1 && !is_above && paths.has(node ^ 1);
                assert_eq!(paths.siblings().has(node), is_sibling, "{bottoms:b}, node {node}");
            }
        }
    }

    #[test]
    fn changing_some_bottoms_gives_the_tree_of_all() {
        let bottom = |n: usize, round: u8| B256::repeat_byte(n as u8 ^ round);
        for filled in 1..=32u8 {
            let mut subtree = Subtree::new(10, filled);
            (0..usize::from(filled)).for_each(|n| subtree.set(BOTTOM + n, bottom(n, 0)));
            subtree.complete().unwrap();
            let changed = 0b1001_0110_0000_0001 & ((1u64 << filled) - 1);
            let mut nodes = NodeSet::default();
            for n in (0..32).filter(|n| changed >> n & 1 == 1) {
                subtree.set(BOTTOM + n, bottom(n, 0x80));
                nodes.add(BOTTOM + n);
            }
            rehash(&mut [DirtySubtree { subtree: &mut subtree, changed: nodes }]).unwrap();
            let mut level: Vec<B256> = (0..32)
                .map(|n| match n < usize::from(filled) {
                    true => bottom(n, if changed >> n & 1 == 1 { 0x80 } else { 0 }),
                    false => *empty(10),
                })
                .collect();
            while level.len() > 1 {
                level = level.chunks(2).map(|pair| inner(&pair[0], &pair[1])).collect();
            }
            assert_eq!(subtree.get(ROOT), Some(&level[0]), "{filled} filled");
        }
    }
}
