//! The memory level: an MB-tree, a B+-tree with digests (COLE 3.2; Li et al., SIGMOD 2006).
//!
//! Its shape depends on the order in which pairs came. That order is kept: rows hold the pairs block
//! by block, and putting them in again gives the same tree. Pairs are only ever added.
//!
//! Trees are copied on write, so that a block's tree costs what it changes, and those of its parent
//! and its siblings stay. Nodes hold what it takes to find one's way; the pairs lie beside the tree,
//! block by block, and are never copied. Of older blocks the trees are [thinned](thin).

mod blocks;
mod keys;
mod node;
mod thin;

pub(crate) use blocks::Entry;
pub(crate) use keys::PairId;

use crate::{
    hash::{self, Batch},
    tree::Node,
};
use alloy_primitives::B256;
use blocks::{Blocks, Place};
use keys::Id;
use node::{Below, New, TreeNode};
use retrie_state::{StateKey, Value};
use std::{hint::black_box, ops::Deref, sync::Arc};
use thin::{FOLDED, Folded, Unfolded};

/// A group of the memory level. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    root: Option<Arc<TreeNode>>,
    /// Digest of the root.
    top: B256,
    blocks: Blocks,
    depth: usize,
    pairs: u64,
    first_block: u64,
    last_block: u64,
    /// Nodes that the last block has changed.
    changed: u64,
    /// If the tree is thinned: what was unfolded last.
    unfolded: Option<Arc<Unfolded>>,
}

/// Blocks in a thinned group at most: all of them are searched for what is unfolded. If there are more,
/// each changes little.
const MOST_BLOCKS: usize = 512;

impl Group {
    /// Number of pairs.
    pub(crate) const fn len(&self) -> u64 {
        self.pairs
    }

    /// Adds the pairs of `block`, which comes after all blocks before it, in key order.
    pub(crate) fn add_block<'a>(
        &mut self,
        block: u64,
        changes: impl ExactSizeIterator<Item = (StateKey, &'a Option<Value>)> + Clone,
    ) {
        if changes.len() == 0 {
            return;
        }
        let mut digests = Vec::with_capacity(changes.len());
        let mut batch = Batch::default();
        for (key, value) in changes.clone() {
            batch.pair(&key.encode(), block, value.as_ref().map(|value| &value[..]));
        }
        batch.finish_into(&mut digests);
        if self.pairs == 0 {
            self.first_block = block;
        }
        self.last_block = block;
        self.pairs += changes.len() as u64;
        let entry = |(key, value): (StateKey, &Option<Value>)| {
            Entry::new(Id::new(&key, block), value.as_ref().map(|value| &value[..]))
        };
        let entries: Arc<[Entry]> = changes.map(entry).collect();
        self.warm(&entries);
        let number = self.blocks.push(entries.clone());
        for (pair, (entry, digest)) in entries.iter().zip(digests).enumerate() {
            let place = Place { block: number, pair: pair as u32 };
            self.insert(&New { id: *entry.id(), place, digest });
        }
        self.hash();
    }

    /// Goes the ways to these pairs, all of them step by step: loads that do not wait for each other take
    /// a fraction of the time of those on one way after the other.
    fn warm(&self, entries: &[Entry]) {
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
        // The leaves are copied.
        black_box(ways.iter().fold(0, |seen, leaf| seen ^ leaf.touch()));
    }

    fn insert(&mut self, new: &New) {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(TreeNode::leaf(new)));
            return;
        };
        if let Some(right) = Arc::make_mut(root).insert(new, &self.blocks) {
            *root = Arc::new(TreeNode::over(root.clone(), right));
            self.depth += 1;
        }
    }

    /// Brings the digests of changed nodes up to date, from the leaves up.
    fn hash(&mut self) {
        let Some(root) = &mut self.root else { return };
        self.changed = 1;
        let (mut batch, mut digests) = (Batch::default(), Vec::new());
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

    /// What the root says of it; `None` without pairs.
    pub(crate) const fn source(&self) -> Option<hash::Source> {
        if self.pairs == 0 {
            return None;
        }
        Some(hash::Source {
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
    pub(crate) fn floor(&self, (key, block): &PairId) -> Option<&Entry> {
        self.floor_of(&Id::new(key, *block))
    }

    fn floor_of(&self, id: &Id) -> Option<&Entry> {
        let mut node = self.root.as_ref()?;
        let unfolded = loop {
            let at = node.rank(id, true, &self.blocks).checked_sub(1)?;
            match &node.below {
                Below::Pairs(places) => return Some(self.blocks.at(places[at])),
                Below::Nodes(nodes) => node = nodes[at].as_ref()?,
                Below::Folded(folded) => break self.unfold(folded[at].as_ref()?)?,
            }
        };
        let mut node = &unfolded;
        loop {
            let at = node.rank(id, true, &self.blocks).checked_sub(1)?;
            match &node.below {
                Below::Pairs(places) => return Some(self.blocks.at(places[at])),
                Below::Nodes(nodes) => node = nodes[at].as_ref()?,
                Below::Folded(_) => return None,
            }
        }
    }

    fn unfold(&self, folded: &Arc<Folded>) -> Option<Arc<TreeNode>> {
        self.unfolded.as_ref()?.get(folded, &self.blocks)
    }

    /// The newest version of `key` at or before `block`.
    pub(crate) fn get(&self, key: &StateKey, block: u64) -> Option<&Entry> {
        let id = Id::new(key, block);
        self.floor_of(&id).filter(|entry| entry.id().is_of(&id))
    }

    /// The pairs from `id` on, in order.
    pub(crate) fn from(&self, (key, block): &PairId) -> Iter<'_> {
        let id = Id::new(key, *block);
        let mut way = Vec::with_capacity(self.depth + 1);
        let mut node = self.root.as_deref().map(Held::Tree);
        while let Some(at) = node {
            let is_leaf = matches!(at.below, Below::Pairs(_));
            let rank = at.rank(&id, !is_leaf, &self.blocks);
            let child = rank.saturating_sub(1);
            node = at.child_of(child, self);
            way.push((at, if is_leaf { rank } else { child + 1 }));
        }
        Iter { group: self, way }
    }

    /// The tree with the pairs of `wanted` shown: ranges from a pair of the tree to another one,
    /// both ends included. `None` without pairs.
    pub(crate) fn show(&self, wanted: &[(PairId, PairId)]) -> Option<Node> {
        let root = self.root.as_ref()?;
        let id = |(key, block): &PairId| Id::new(key, *block);
        let wanted: Vec<_> = wanted.iter().map(|(first, last)| (id(first), id(last))).collect();
        Some(match wanted.is_empty() {
            true => Node::Hidden(self.top),
            false => match &self.unfolded {
                Some(unfolded) => root.shown(&wanted, &self.blocks, unfolded),
                None => root.shown(&wanted, &self.blocks, &Unfolded::default()),
            },
        })
    }

    /// The same with a [thinned](thin) tree, or with the whole one if that is as good; and about how many
    /// bytes this keeps for itself, if it is the group of block `number`.
    pub(crate) fn thinned(&self, number: u64) -> (Self, u64) {
        let is_own = self.pairs > 0 && self.last_block == number;
        let mut bytes = if is_own { self.blocks.bytes_of_last() } else { 0 };
        let root = self.root.as_ref().filter(|_| {
            self.depth > FOLDED && self.blocks.len() <= MOST_BLOCKS && self.unfolded.is_none()
        });
        let Some(root) = root else {
            let nodes = if is_own { self.changed * size_of::<TreeNode>() as u64 } else { 0 };
            return (self.clone(), bytes + nodes);
        };
        let root = Some(root.thinned(self.depth, None, &mut bytes));
        (Self { root, unfolded: Some(Arc::default()), ..self.clone() }, bytes)
    }

    /// The same with the whole tree.
    pub(crate) fn whole(&self) -> Self {
        if self.unfolded.is_none() {
            return self.clone();
        }
        let root = self.root.as_ref().map(|root| Arc::new(root.unfolded(&self.blocks)));
        Self { root, unfolded: None, ..self.clone() }
    }
}

/// A node on the way of an iteration: one of the tree, or one below a node that was unfolded for it.
#[derive(Debug)]
enum Held<'a> {
    Tree(&'a TreeNode),
    Unfolded(Arc<TreeNode>),
}

impl Deref for Held<'_> {
    type Target = TreeNode;

    fn deref(&self) -> &TreeNode {
        match self {
            Self::Tree(node) => node,
            Self::Unfolded(node) => node,
        }
    }
}

impl<'a> Held<'a> {
    /// The child at `at`; `None` of leaves.
    fn child_of(&self, at: usize, group: &'a Group) -> Option<Self> {
        match (self, &self.below) {
            (_, Below::Pairs(_)) => None,
            (_, Below::Folded(folded)) => {
                group.unfold(folded.get(at)?.as_ref()?).map(Self::Unfolded)
            }
            (Self::Tree(node), Below::Nodes(_)) => node.child(at).map(|child| Self::Tree(child)),
            (Self::Unfolded(_), Below::Nodes(nodes)) => nodes.get(at)?.clone().map(Self::Unfolded),
        }
    }
}

/// Pairs in order, with their digests under the root.
#[derive(Debug)]
pub(crate) struct Iter<'a> {
    group: &'a Group,
    /// Nodes from the root down, each with the next child or pair.
    way: Vec<(Held<'a>, usize)>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a Entry, B256);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (node, at) = self.way.last_mut()?;
            let next = *at;
            let Some(digest) = node.digests().get(next).copied() else {
                self.way.pop();
                continue;
            };
            *at += 1;
            if let Below::Pairs(places) = &node.below {
                return Some((self.group.blocks.at(places[next]), digest));
            }
            let child = node.child_of(next, self.group)?;
            self.way.push((child, 0));
        }
    }
}

#[cfg(test)]
mod tests;
