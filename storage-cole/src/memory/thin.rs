//! Thinned trees, of blocks that are no longer among the latest: subtrees at the bottom are *folded* to
//! their shape.
//!
//! The pairs of a group lie block by block, in order, whether folded or not. To unfold a subtree is to
//! search each block for its range of ids: what is found are its pairs, as nothing else can lie between
//! them, and the shape says which of them share a leaf. So a proof unfolds what is on its way, some
//! hundred pairs, while the nodes above, with the digests of all that is folded, are there.

use super::{
    blocks::{Blocks, Place},
    keys::{Id, PLACES},
    node::{Below, New, TreeNode},
};
use crate::hash::Batch;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

/// Height of subtrees that are folded, above their leaves: they have 60 to 500 pairs.
pub(super) const FOLDED: usize = 2;

/// A subtree by its shape. It is that of all blocks since the last one that changed it.
#[derive(Debug)]
pub(super) struct Folded {
    pub(super) first: Id,
    /// The first id behind it.
    end: Option<Id>,
    /// Node by node, from above and from the left: how many children or pairs it has.
    shape: Box<[u8]>,
}

/// What a node is in thinned trees, once it was asked for. A copy, which is made to be changed, begins
/// without it.
#[derive(Debug)]
pub(super) struct Thin(OnceLock<Form>);

#[derive(Debug)]
enum Form {
    Node(Arc<TreeNode>),
    Folded(Arc<Folded>),
}

impl Thin {
    pub(super) const fn none() -> Self {
        Self(OnceLock::new())
    }
}

impl Clone for Thin {
    fn clone(&self) -> Self {
        Self::none()
    }
}

/// Subtrees that were unfolded last, for whoever searches for a key, goes on from there and shows it.
#[derive(Debug, Default)]
pub(super) struct Unfolded(Mutex<VecDeque<(Arc<Folded>, Arc<TreeNode>)>>);

/// How many of them.
const UNFOLDED: usize = 4;

impl Unfolded {
    /// The subtree that is folded to `folded`, from the pairs of its group.
    pub(super) fn get(&self, folded: &Arc<Folded>, blocks: &Blocks) -> Option<Arc<TreeNode>> {
        let known = |(of, _): &&(Arc<Folded>, _)| Arc::ptr_eq(of, folded);
        if let Some((_, node)) = self.0.lock().iter().find(known) {
            return Some(node.clone());
        }
        let node = folded.unfold(blocks);
        debug_assert!(node.is_some(), "a folded subtree has other pairs than its shape says");
        let node = Arc::new(node?);
        let mut last = self.0.lock();
        if last.len() == UNFOLDED {
            last.pop_front();
        }
        last.push_back((folded.clone(), node.clone()));
        Some(node)
    }
}

impl Folded {
    fn of(node: &TreeNode, end: Option<&Id>) -> Self {
        fn write(node: &TreeNode, height: usize, shape: &mut Vec<u8>) {
            shape.push(node.len());
            match &node.below {
                Below::Nodes(nodes) if height > 1 => {
                    nodes.iter().flatten().for_each(|node| write(node, height - 1, shape));
                }
                // Leaves need not be looked at: each would be a cache miss.
                _ => shape.extend_from_slice(node.lens()),
            }
        }
        let mut shape = Vec::with_capacity(64);
        write(node, FOLDED, &mut shape);
        Self { first: *node.keys.first(), end: end.copied(), shape: shape.into() }
    }

    /// The subtree; `None` if `blocks` are not those of its group.
    pub(super) fn unfold(&self, blocks: &Blocks) -> Option<TreeNode> {
        let pairs = blocks.between(&self.first, self.end.as_ref());
        let (mut batch, mut digests) = (Batch::default(), Vec::with_capacity(pairs.len()));
        for (_, place) in &pairs {
            let entry = blocks.at(*place);
            batch.pair(&entry.key().encode(), entry.block(), entry.value());
        }
        batch.finish_into(&mut digests);
        let new = |((id, place), digest): ((Id, Place), _)| New { id, place, digest };
        let mut pairs = pairs.into_iter().zip(digests).map(new);
        let mut shape = self.shape.iter().map(|len| usize::from(*len));
        let node = read(FOLDED, &mut shape, &mut pairs)?;
        (shape.next().is_none() && pairs.next().is_none()).then_some(node)
    }

    fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.shape.len()) as u64
    }
}

/// The next node of a shape, which is at this height above the leaves.
fn read(
    height: usize,
    shape: &mut impl Iterator<Item = usize>,
    pairs: &mut impl Iterator<Item = New>,
) -> Option<TreeNode> {
    let len = shape.next().filter(|len| (1..=PLACES).contains(len))?;
    match height.checked_sub(1) {
        None => {
            let pairs: Vec<New> = pairs.take(len).collect();
            (pairs.len() == len).then(|| TreeNode::of_pairs(&pairs))
        }
        Some(below) => {
            let nodes = (0..len).map(|_| Some(Arc::new(read(below, shape, pairs)?)));
            Some(TreeNode::of_nodes(nodes.collect::<Option<Vec<_>>>()?))
        }
    }
}

impl TreeNode {
    /// The node at this height, higher than [`FOLDED`], with what is that low folded; `end` is the first
    /// id behind it. What had not been made before is added to `bytes`.
    pub(super) fn thinned(
        self: &Arc<Self>,
        height: usize,
        end: Option<&Id>,
        bytes: &mut u64,
    ) -> Arc<Self> {
        let make = || {
            let mut below = match height == FOLDED + 1 {
                true => Below::Folded(Default::default()),
                false => Below::Nodes(Default::default()),
            };
            for at in 0..self.keys.len() {
                let Some(child) = self.child(at) else { continue };
                let end = self.child(at + 1).map(|next| next.keys.first()).or(end);
                match &mut below {
                    Below::Folded(places) => places[at] = child.folded(end, bytes),
                    Below::Nodes(places) => {
                        places[at] = Some(child.thinned(height - 1, end, bytes));
                    }
                    Below::Pairs(_) => {}
                }
            }
            *bytes += size_of::<Self>() as u64;
            Form::Node(Arc::new(self.with_below(below)))
        };
        match self.thin.0.get_or_init(make) {
            Form::Node(node) => node.clone(),
            Form::Folded(_) => self.clone(),
        }
    }

    fn folded(&self, end: Option<&Id>, bytes: &mut u64) -> Option<Arc<Folded>> {
        let make = || {
            let folded = Folded::of(self, end);
            *bytes += folded.bytes();
            Form::Folded(Arc::new(folded))
        };
        match self.thin.0.get_or_init(make) {
            Form::Folded(folded) => Some(folded.clone()),
            Form::Node(_) => None,
        }
    }

    /// The node with all below it unfolded.
    pub(super) fn unfolded(&self, blocks: &Blocks) -> Self {
        let mut nodes: [Option<Arc<Self>>; PLACES] = Default::default();
        match &self.below {
            Below::Pairs(_) => return self.clone(),
            Below::Nodes(thin) => {
                let whole = thin.iter().map(|node| Some(Arc::new(node.as_ref()?.unfolded(blocks))));
                nodes.iter_mut().zip(whole).for_each(|(place, node)| *place = node);
            }
            Below::Folded(thin) => {
                let whole = thin.iter().map(|it| Some(Arc::new(it.as_ref()?.unfold(blocks)?)));
                nodes.iter_mut().zip(whole).for_each(|(place, node)| *place = node);
            }
        }
        self.with_below(Below::Nodes(nodes))
    }
}
