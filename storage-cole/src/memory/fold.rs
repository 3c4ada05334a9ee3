//! Compacted trees, for blocks below the latest ones: the subtrees at the bottom are *folded* to
//! their shape.
//!
//! The pairs of a group are stored block by block, in order, whether the tree is compacted or not.
//! To unfold a subtree, each block is searched for the subtree's range of compound keys. The pairs
//! found are the pairs of the subtree, and the shape says which of them share a leaf. So a proof
//! unfolds the subtrees on its paths, some hundred pairs; the nodes above are in memory, with the
//! digests of all folded subtrees.

use super::{
    blocks::{PairBlocks, PairPlace},
    keys::{KeyWords, PLACES},
    node::{NewPair, NodeChildren, TreeNode},
};
use crate::hash::HashBatch;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

/// Height of folded subtrees above their leaves: they have 60 to 500 pairs.
pub(super) const FOLD_HEIGHT: usize = 2;

/// A subtree by its shape. It is the same for all blocks since the last one that changed the
/// subtree.
#[derive(Debug)]
pub(super) struct FoldedSubtree {
    pub(super) first: KeyWords,
    /// The first compound key after it.
    end: Option<KeyWords>,
    /// The number of children or pairs of each node, from the top down and from left to right.
    shape: Box<[u8]>,
}

/// The form of a node in compacted trees, once it was needed. A copy of a node is made to be
/// changed, so it starts without it.
#[derive(Debug)]
pub(super) struct CompactCell(OnceLock<CompactForm>);

#[derive(Debug)]
enum CompactForm {
    Node(Arc<TreeNode>),
    Folded(Arc<FoldedSubtree>),
}

impl CompactCell {
    pub(super) const fn none() -> Self {
        Self(OnceLock::new())
    }
}

impl Clone for CompactCell {
    fn clone(&self) -> Self {
        Self::none()
    }
}

/// The subtrees that were unfolded last. A proof searches a key, iterates from it and shows it, in
/// the same subtree.
#[derive(Debug, Default)]
pub(super) struct UnfoldedCache(Mutex<VecDeque<(Arc<FoldedSubtree>, Arc<TreeNode>)>>);

/// Most unfolded subtrees that are kept.
const UNFOLDED_KEPT: usize = 4;

impl UnfoldedCache {
    /// The subtree of `folded`, from the pairs of its group.
    pub(super) fn get(
        &self,
        folded: &Arc<FoldedSubtree>,
        blocks: &PairBlocks,
    ) -> Option<Arc<TreeNode>> {
        let known = |(of, _): &&(Arc<FoldedSubtree>, _)| Arc::ptr_eq(of, folded);
        if let Some((_, node)) = self.0.lock().iter().find(known) {
            return Some(node.clone());
        }
        let node = folded.unfold(blocks);
        debug_assert!(node.is_some(), "a folded subtree has other pairs than its shape says");
        let node = Arc::new(node?);
        let mut last = self.0.lock();
        if last.len() == UNFOLDED_KEPT {
            last.pop_front();
        }
        last.push_back((folded.clone(), node.clone()));
        Some(node)
    }
}

impl FoldedSubtree {
    fn of(node: &TreeNode, end: Option<&KeyWords>) -> Self {
        fn write(node: &TreeNode, height: usize, shape: &mut Vec<u8>) {
            shape.push(node.len());
            match &node.below {
                NodeChildren::Nodes(nodes) if height > 1 => {
                    nodes.iter().flatten().for_each(|node| write(node, height - 1, shape));
                }
                // Do not read the leaves: each read would be a cache miss.
                _ => shape.extend_from_slice(node.lens()),
            }
        }
        let mut shape = Vec::with_capacity(64);
        write(node, FOLD_HEIGHT, &mut shape);
        Self { first: *node.keys.first(), end: end.copied(), shape: shape.into() }
    }

    /// Unfolds the subtree; `None` if `blocks` belongs to another group.
    pub(super) fn unfold(&self, blocks: &PairBlocks) -> Option<TreeNode> {
        let pairs = blocks.between(&self.first, self.end.as_ref());
        let (mut batch, mut digests) = (HashBatch::default(), Vec::with_capacity(pairs.len()));
        for (_, place) in &pairs {
            let entry = blocks.at(*place);
            batch.pair(&entry.key().encode(), entry.block(), entry.value());
        }
        batch.finish_into(&mut digests);
        let new = |((id, place), digest): ((KeyWords, PairPlace), _)| NewPair { id, place, digest };
        let mut pairs = pairs.into_iter().zip(digests).map(new);
        let mut shape = self.shape.iter().map(|len| usize::from(*len));
        let node = read(FOLD_HEIGHT, &mut shape, &mut pairs)?;
        (shape.next().is_none() && pairs.next().is_none()).then_some(node)
    }

    fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.shape.len()) as u64
    }
}

/// Reads the next node of a shape, at this height above the leaves.
fn read(
    height: usize,
    shape: &mut impl Iterator<Item = usize>,
    pairs: &mut impl Iterator<Item = NewPair>,
) -> Option<TreeNode> {
    let len = shape.next().filter(|len| (1..=PLACES).contains(len))?;
    match height.checked_sub(1) {
        None => {
            let pairs: Vec<NewPair> = pairs.take(len).collect();
            (pairs.len() == len).then(|| TreeNode::of_pairs(&pairs))
        }
        Some(below) => {
            let nodes = (0..len).map(|_| Some(Arc::new(read(below, shape, pairs)?)));
            Some(TreeNode::of_nodes(nodes.collect::<Option<Vec<_>>>()?))
        }
    }
}

impl TreeNode {
    /// The node at this height, which must be above [`FOLD_HEIGHT`], with the subtrees at that
    /// height folded. `end` is the first compound key after the node. Adds the size of newly made
    /// parts to `bytes`.
    pub(super) fn compacted(
        self: &Arc<Self>,
        height: usize,
        end: Option<&KeyWords>,
        bytes: &mut u64,
    ) -> Arc<Self> {
        let make = || {
            let mut below = match height == FOLD_HEIGHT + 1 {
                true => NodeChildren::Folded(Default::default()),
                false => NodeChildren::Nodes(Default::default()),
            };
            for at in 0..self.keys.len() {
                let Some(child) = self.child(at) else { continue };
                let end = self.child(at + 1).map(|next| next.keys.first()).or(end);
                match &mut below {
                    NodeChildren::Folded(places) => places[at] = child.folded(end, bytes),
                    NodeChildren::Nodes(places) => {
                        places[at] = Some(child.compacted(height - 1, end, bytes));
                    }
                    NodeChildren::Pairs(_) => {}
                }
            }
            *bytes += size_of::<Self>() as u64;
            CompactForm::Node(Arc::new(self.with_below(below)))
        };
        match self.compact.0.get_or_init(make) {
            CompactForm::Node(node) => node.clone(),
            CompactForm::Folded(_) => self.clone(),
        }
    }

    fn folded(&self, end: Option<&KeyWords>, bytes: &mut u64) -> Option<Arc<FoldedSubtree>> {
        let make = || {
            let folded = FoldedSubtree::of(self, end);
            *bytes += folded.bytes();
            CompactForm::Folded(Arc::new(folded))
        };
        match self.compact.0.get_or_init(make) {
            CompactForm::Folded(folded) => Some(folded.clone()),
            CompactForm::Node(_) => None,
        }
    }

    /// The node with all folded subtrees below it unfolded.
    pub(super) fn unfolded(&self, blocks: &PairBlocks) -> Self {
        let mut nodes: [Option<Arc<Self>>; PLACES] = Default::default();
        match &self.below {
            NodeChildren::Pairs(_) => return self.clone(),
            NodeChildren::Nodes(thin) => {
                let whole = thin.iter().map(|node| Some(Arc::new(node.as_ref()?.unfolded(blocks))));
                nodes.iter_mut().zip(whole).for_each(|(place, node)| *place = node);
            }
            NodeChildren::Folded(thin) => {
                let whole = thin.iter().map(|it| Some(Arc::new(it.as_ref()?.unfold(blocks)?)));
                nodes.iter_mut().zip(whole).for_each(|(place, node)| *place = node);
            }
        }
        self.with_below(NodeChildren::Nodes(nodes))
    }
}
