//! The memory level: MB-trees, B+-trees with digests (COLE 3.2; Li et al., SIGMOD 2006).
//!
//! The shape of an MB-tree depends on the order in which pairs were added. Rows keep that order:
//! they hold the pairs block by block, and adding them again gives the same tree. Pairs are only
//! added, never removed.
//!
//! Trees are copied on write: a block's tree costs only the nodes that the block changes, and the
//! trees of its parent and siblings stay valid. Nodes hold what a search needs; the pairs are
//! stored beside the tree, block by block, and are never copied. The trees of older blocks are
//! [compacted](fold).

mod blocks;
mod fold;
mod keys;
mod node;

pub(crate) use blocks::MemoryPair;
pub(crate) use keys::CompoundKey;

use crate::{
    hash::{self, HashBatch},
    shown_tree::ShownNode,
};
use alloy_primitives::B256;
use blocks::{PairBlocks, PairPlace};
use fold::{FOLD_HEIGHT, FoldedSubtree, UnfoldedCache};
use keys::KeyWords;
use node::{NewPair, NodeChildren, TreeNode};
use retrie_state::{BackendKey, StateValue};
use std::{hint::black_box, ops::Deref, sync::Arc};

/// A group of the memory level. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryGroup {
    root: Option<Arc<TreeNode>>,
    /// Digest of the root.
    top: B256,
    blocks: PairBlocks,
    depth: usize,
    pairs: u64,
    first_block: u64,
    last_block: u64,
    /// Nodes that the last block has changed.
    changed: u64,
    /// Only in a compacted tree: the subtrees that were unfolded last.
    unfolded: Option<Arc<UnfoldedCache>>,
}

/// Most blocks in a compacted group. Unfolding a subtree searches all blocks. If there are more
/// blocks, each changes little, and compacting saves little.
const MOST_BLOCKS: usize = 512;

impl MemoryGroup {
    /// Number of pairs.
    pub(crate) const fn len(&self) -> u64 {
        self.pairs
    }

    /// Adds the pairs of `block`, in key order. `block` must come after all blocks of the group.
    pub(crate) fn add_block<'a>(
        &mut self,
        block: u64,
        changes: impl ExactSizeIterator<Item = (BackendKey, &'a Option<StateValue>)> + Clone,
    ) {
        if changes.len() == 0 {
            return;
        }
        let mut digests = Vec::with_capacity(changes.len());
        let mut batch = HashBatch::default();
        for (key, value) in changes.clone() {
            batch.pair(&key.encode(), block, value.as_ref().map(|value| &value[..]));
        }
        batch.finish_into(&mut digests);
        if self.pairs == 0 {
            self.first_block = block;
        }
        self.last_block = block;
        self.pairs += changes.len() as u64;
        let entry = |(key, value): (BackendKey, &Option<StateValue>)| {
            MemoryPair::new(KeyWords::new(&key, block), value.as_ref().map(|value| &value[..]))
        };
        let entries: Arc<[MemoryPair]> = changes.map(entry).collect();
        self.warm(&entries);
        let number = self.blocks.push(entries.clone());
        for (pair, (entry, digest)) in entries.iter().zip(digests).enumerate() {
            let place = PairPlace { block: number, pair: pair as u32 };
            self.insert(&NewPair { id: *entry.id(), place, digest });
        }
        self.hash();
    }

    /// Walks down to the leaves of all these pairs, one step for all of them at a time. Loads that
    /// do not wait for each other take a fraction of the time of the same loads one walk after the
    /// other.
    fn warm(&self, entries: &[MemoryPair]) {
        let Some(root) = self.root.as_deref() else { return };
        let mut ways = vec![root; entries.len()];
        for _ in 0..self.depth {
            for (node, entry) in ways.iter_mut().zip(entries) {
                let at = node.rank(entry.id(), true, &self.blocks).saturating_sub(1);
                if let Some(child) = node.child(at) {
                    *node = child.as_ref();
                }
            }
        }
        // The leaves will be copied; read all of them.
        black_box(ways.iter().fold(0, |seen, leaf| seen ^ leaf.touch()));
    }

    fn insert(&mut self, new: &NewPair) {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(TreeNode::leaf(new)));
            return;
        };
        if let Some(right) = Arc::make_mut(root).insert(new, &self.blocks) {
            *root = Arc::new(TreeNode::over(root.clone(), right));
            self.depth += 1;
        }
    }

    /// Updates the digests of changed nodes, from the leaves up.
    fn hash(&mut self) {
        let Some(root) = &mut self.root else { return };
        self.changed = 1;
        let (mut batch, mut digests) = (HashBatch::default(), Vec::new());
        for depth in (0..self.depth).rev() {
            let mut nodes = Vec::new();
            TreeNode::stale(root, depth, &mut nodes);
            nodes.iter().for_each(|node| node.add_stale(&mut batch));
            digests.clear();
            batch.finish_into(&mut digests);
            self.changed += digests.len() as u64;
            let mut digests = digests.iter().copied();
            nodes.into_iter().for_each(|node| node.refresh(&mut digests));
        }
        self.top = hash::node(root.digests());
    }

    /// What the root says about the group; `None` without pairs.
    pub(crate) const fn source(&self) -> Option<hash::SourceHeader> {
        if self.pairs == 0 {
            return None;
        }
        Some(hash::SourceHeader {
            pairs: self.pairs,
            first_block: self.first_block,
            last_block: self.last_block,
            top: self.top,
            filter_blocks: 0,
            filter_top: B256::ZERO,
        })
    }

    /// Its digest under the root.
    pub(crate) fn digest(&self) -> B256 {
        self.source().map_or(B256::ZERO, |source| source.digest())
    }

    /// The last pair at or before `id`.
    pub(crate) fn floor(&self, (key, block): &CompoundKey) -> Option<&MemoryPair> {
        self.floor_of(&KeyWords::new(key, *block))
    }

    fn floor_of(&self, id: &KeyWords) -> Option<&MemoryPair> {
        let mut node = self.root.as_ref()?;
        let unfolded = loop {
            let at = node.rank(id, true, &self.blocks).checked_sub(1)?;
            match &node.below {
                NodeChildren::Pairs(places) => return Some(self.blocks.at(places[at])),
                NodeChildren::Nodes(nodes) => node = nodes[at].as_ref()?,
                NodeChildren::Folded(folded) => break self.unfold(folded[at].as_ref()?)?,
            }
        };
        let mut node = &unfolded;
        loop {
            let at = node.rank(id, true, &self.blocks).checked_sub(1)?;
            match &node.below {
                NodeChildren::Pairs(places) => return Some(self.blocks.at(places[at])),
                NodeChildren::Nodes(nodes) => node = nodes[at].as_ref()?,
                NodeChildren::Folded(_) => return None,
            }
        }
    }

    fn unfold(&self, folded: &Arc<FoldedSubtree>) -> Option<Arc<TreeNode>> {
        self.unfolded.as_ref()?.get(folded, &self.blocks)
    }

    /// The newest version of `key` at or before `block`.
    pub(crate) fn get(&self, key: &BackendKey, block: u64) -> Option<&MemoryPair> {
        let id = KeyWords::new(key, block);
        self.floor_of(&id).filter(|entry| entry.id().is_of(&id))
    }

    /// The pairs from `id` on, in order.
    pub(crate) fn from(&self, (key, block): &CompoundKey) -> GroupIter<'_> {
        let id = KeyWords::new(key, *block);
        let mut way = Vec::with_capacity(self.depth + 1);
        let mut node = self.root.as_deref().map(VisitedNode::Tree);
        while let Some(at) = node {
            let is_leaf = matches!(at.below, NodeChildren::Pairs(_));
            let rank = at.rank(&id, !is_leaf, &self.blocks);
            let child = rank.saturating_sub(1);
            node = at.child_of(child, self);
            way.push((at, if is_leaf { rank } else { child + 1 }));
        }
        GroupIter { group: self, way }
    }

    /// The tree as a proof shows it, with the pairs in `wanted`: ranges from one pair of the tree
    /// to another, both ends included. `None` without pairs.
    pub(crate) fn show(&self, wanted: &[(CompoundKey, CompoundKey)]) -> Option<ShownNode> {
        let root = self.root.as_ref()?;
        let id = |(key, block): &CompoundKey| KeyWords::new(key, *block);
        let wanted: Vec<_> = wanted.iter().map(|(first, last)| (id(first), id(last))).collect();
        Some(match wanted.is_empty() {
            true => ShownNode::Hidden(self.top),
            false => match &self.unfolded {
                Some(unfolded) => root.shown(&wanted, &self.blocks, unfolded),
                None => root.shown(&wanted, &self.blocks, &UnfoldedCache::default()),
            },
        })
    }

    /// The group with a [compacted](fold) tree, or with the whole tree if compacting saves nothing.
    /// Also returns about how many bytes it takes for itself, if it is the group of block `number`.
    pub(crate) fn compacted(&self, number: u64) -> (Self, u64) {
        let is_own = self.pairs > 0 && self.last_block == number;
        let mut bytes = if is_own { self.blocks.bytes_of_last() } else { 0 };
        let root = self.root.as_ref().filter(|_| {
            self.depth > FOLD_HEIGHT && self.blocks.len() <= MOST_BLOCKS && self.unfolded.is_none()
        });
        let Some(root) = root else {
            let nodes = if is_own { self.changed * size_of::<TreeNode>() as u64 } else { 0 };
            return (self.clone(), bytes + nodes);
        };
        let root = Some(root.compacted(self.depth, None, &mut bytes));
        (Self { root, unfolded: Some(Arc::default()), ..self.clone() }, bytes)
    }

    /// The group with the whole tree.
    pub(crate) fn whole(&self) -> Self {
        if self.unfolded.is_none() {
            return self.clone();
        }
        let root = self.root.as_ref().map(|root| Arc::new(root.unfolded(&self.blocks)));
        Self { root, unfolded: None, ..self.clone() }
    }
}

/// A node on the path of an iteration: a node of the tree, or a node below an unfolded one.
#[derive(Debug)]
enum VisitedNode<'a> {
    Tree(&'a TreeNode),
    Unfolded(Arc<TreeNode>),
}

impl Deref for VisitedNode<'_> {
    type Target = TreeNode;

    fn deref(&self) -> &TreeNode {
        match self {
            Self::Tree(node) => node,
            Self::Unfolded(node) => node,
        }
    }
}

impl<'a> VisitedNode<'a> {
    /// The child at `at`; `None` for a leaf.
    fn child_of(&self, at: usize, group: &'a MemoryGroup) -> Option<Self> {
        match (self, &self.below) {
            (_, NodeChildren::Pairs(_)) => None,
            (_, NodeChildren::Folded(folded)) => {
                group.unfold(folded.get(at)?.as_ref()?).map(Self::Unfolded)
            }
            (Self::Tree(node), NodeChildren::Nodes(_)) => {
                node.child(at).map(|child| Self::Tree(child))
            }
            (Self::Unfolded(_), NodeChildren::Nodes(nodes)) => {
                nodes.get(at)?.clone().map(Self::Unfolded)
            }
        }
    }
}

/// The pairs in order, with their digests under the root.
#[derive(Debug)]
pub(crate) struct GroupIter<'a> {
    group: &'a MemoryGroup,
    /// Nodes from the root down, each with the number of its next child or pair.
    way: Vec<(VisitedNode<'a>, usize)>,
}

impl<'a> Iterator for GroupIter<'a> {
    type Item = (&'a MemoryPair, B256);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (node, at) = self.way.last_mut()?;
            let next = *at;
            let Some(digest) = node.digests().get(next).copied() else {
                self.way.pop();
                continue;
            };
            *at += 1;
            if let NodeChildren::Pairs(places) = &node.below {
                return Some((self.group.blocks.at(places[next]), digest));
            }
            let child = node.child_of(next, self.group)?;
            self.way.push((child, 0));
        }
    }
}

#[cfg(test)]
mod tests;
