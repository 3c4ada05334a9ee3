//! A node of the tree.

use super::{
    blocks::{Blocks, Place},
    keys::{FANOUT, Id, Keys, PLACES},
};
use crate::{hash::Batch, tree::Node};
use alloy_primitives::B256;
use std::sync::Arc;

/// Pairs of the left half of a split node.
const LEFT: usize = FANOUT.div_ceil(2);

/// A pair to be put in.
pub(super) struct New {
    pub(super) id: Id,
    pub(super) place: Place,
    pub(super) digest: B256,
}

/// All that is needed to find one's way and to hash is in place, and little is to be counted when a
/// node is copied: nodes are copied often.
#[derive(Clone, Debug)]
pub(super) struct TreeNode {
    /// Ids of the pairs, or of each child's first pair.
    pub(super) keys: Keys,
    digests: [B256; PLACES],
    /// A bit for each child that has changed since its digest was taken.
    stale: u16,
    pub(super) below: Below,
}

#[derive(Clone, Debug)]
pub(super) enum Below {
    Pairs([Place; PLACES]),
    Nodes([Option<Arc<TreeNode>>; PLACES]),
}

impl TreeNode {
    /// A leaf of one pair.
    pub(super) fn leaf(new: &New) -> Self {
        let (mut digests, mut places) = ([B256::ZERO; PLACES], [Place::default(); PLACES]);
        (digests[0], places[0]) = (new.digest, new.place);
        Self { keys: Keys::one(new.id), digests, stale: 0, below: Below::Pairs(places) }
    }

    /// A node over two others.
    pub(super) fn over(left: Arc<Self>, right: Self) -> Self {
        let mut keys = Keys::one(*left.keys.first());
        keys.insert(1, *right.keys.first());
        let mut nodes = [const { None }; PLACES];
        (nodes[0], nodes[1]) = (Some(left), Some(Arc::new(right)));
        Self { keys, digests: [B256::ZERO; PLACES], stale: 0b11, below: Below::Nodes(nodes) }
    }

    /// Digests of the pairs or children.
    pub(super) fn digests(&self) -> &[B256] {
        &self.digests[..self.keys.len()]
    }

    /// The child at `at`.
    pub(super) fn child(&self, at: usize) -> Option<&Arc<Self>> {
        match &self.below {
            Below::Pairs(_) => None,
            Below::Nodes(nodes) => nodes.get(at)?.as_ref(),
        }
    }

    /// How many of the pairs, or of the children's first ones, are below `id`, or `or_equal`.
    #[inline]
    pub(super) fn rank(&self, id: &Id, or_equal: bool, blocks: &Blocks) -> usize {
        self.keys.rank(id, or_equal, |at| self.whole(at, blocks))
    }

    #[inline]
    fn whole<'a>(&'a self, at: usize, blocks: &'a Blocks) -> &'a Id {
        match &self.below {
            Below::Pairs(places) => blocks.at(places[at]).id(),
            Below::Nodes(nodes) => {
                nodes[at].as_ref().map_or_else(|| self.keys.first(), |node| node.keys.first())
            }
        }
    }

    /// Adds a pair that is not there; gives the right half if this node had to be split.
    pub(super) fn insert(&mut self, new: &New, blocks: &Blocks) -> Option<Self> {
        let len = self.keys.len();
        let below = self.rank(&new.id, true, blocks);
        match &mut self.below {
            Below::Pairs(places) => {
                places.copy_within(below..len, below + 1);
                places[below] = new.place;
                self.digests.copy_within(below..len, below + 1);
                self.digests[below] = new.digest;
                self.keys.insert(below, new.id);
            }
            Below::Nodes(nodes) => {
                let at = below.saturating_sub(1);
                if below == 0 {
                    self.keys.lower_first(new.id);
                }
                self.stale |= 1 << at;
                let right = Arc::make_mut(nodes[at].as_mut()?).insert(new, blocks)?;
                self.keys.insert(at + 1, *right.keys.first());
                nodes[at + 1..=len].rotate_right(1);
                nodes[at + 1] = Some(Arc::new(right));
                self.digests.copy_within(at + 1..len, at + 2);
                let low = (1 << (at + 1)) - 1;
                self.stale = self.stale & low | (self.stale & !low) << 1 | 1 << (at + 1);
            }
        }
        (self.keys.len() > FANOUT).then(|| self.split(blocks))
    }

    fn split(&mut self, blocks: &Blocks) -> Self {
        let mut digests = self.digests;
        digests.rotate_left(LEFT);
        let mut keys = self.keys;
        let right = keys.split(LEFT, |at| self.whole(at, blocks));
        self.keys = keys;
        let below = match &mut self.below {
            Below::Pairs(places) => {
                let mut right = *places;
                right.rotate_left(LEFT);
                Below::Pairs(right)
            }
            Below::Nodes(nodes) => {
                let mut right = [const { None }; PLACES];
                nodes[LEFT..].iter_mut().zip(&mut right).for_each(|(from, to)| *to = from.take());
                Below::Nodes(right)
            }
        };
        let stale = self.stale >> LEFT;
        self.stale &= (1 << LEFT) - 1;
        Self { keys: right, digests, stale, below }
    }

    /// The nodes with stale digests at `depth` below `node`.
    pub(super) fn stale<'a>(node: &'a mut Arc<Self>, depth: usize, found: &mut Vec<&'a mut Self>) {
        if node.stale == 0 {
            return;
        }
        // Whatever has changed belongs to this tree alone: nothing is copied here.
        let node = Arc::make_mut(node);
        if depth == 0 {
            found.push(node);
        } else if let Below::Nodes(nodes) = &mut node.below {
            let changed = nodes.iter_mut().enumerate().filter(|(at, _)| node.stale >> at & 1 == 1);
            changed.filter_map(|(_, child)| child.as_mut()).for_each(|child| {
                Self::stale(child, depth - 1, found);
            });
        }
    }

    /// Adds the changed children to `batch`, whose own digests are up to date.
    pub(super) fn add_stale(&self, batch: &mut Batch) {
        let changed = (0..self.keys.len()).filter(|at| self.stale >> at & 1 == 1);
        for child in changed.filter_map(|at| self.child(at)) {
            batch.node(child.digests());
        }
    }

    /// Takes the digests of the changed children.
    pub(super) fn refresh(&mut self, digests: &mut impl Iterator<Item = B256>) {
        for at in (0..self.keys.len()).filter(|at| self.stale >> at & 1 == 1) {
            if let Some(digest) = digests.next() {
                self.digests[at] = digest;
            }
        }
        self.stale = 0;
    }

    /// The tree below with the pairs of `wanted` shown.
    pub(super) fn shown(&self, wanted: &[(Id, Id)], blocks: &Blocks) -> Node {
        let show = |at: usize| match &self.below {
            Below::Pairs(places) => {
                let entry = blocks.at(places[at]);
                let is_wanted =
                    |(first, last): &(Id, Id)| first <= entry.id() && entry.id() <= last;
                match wanted.iter().any(is_wanted) {
                    true => Node::Pair(entry.to_pair()),
                    false => Node::Hidden(self.digests[at]),
                }
            }
            Below::Nodes(nodes) => {
                let next = nodes.get(at + 1).and_then(Option::as_ref);
                let child = nodes[at].as_ref();
                // The ends of what is wanted are pairs of the tree.
                let below = |(from, to): &&(Id, Id)| {
                    next.is_none_or(|next| from < next.keys.first())
                        && child.is_some_and(|child| to >= child.keys.first())
                };
                let wanted: Vec<_> = wanted.iter().filter(below).copied().collect();
                match child.filter(|_| !wanted.is_empty()) {
                    None => Node::Hidden(self.digests[at]),
                    Some(child) => child.shown(&wanted, blocks),
                }
            }
        };
        Node::Inner((0..self.keys.len()).map(show).collect())
    }
}
