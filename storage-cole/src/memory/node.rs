//! A node of the MB-tree.

use super::{
    blocks::{PairBlocks, PairPlace},
    fold::{CompactCell, FoldedSubtree, UnfoldedCache},
    keys::{FANOUT, KeyWords, NodeKeys, PLACES},
};
use crate::{
    hash::{self, HashBatch},
    shown_tree::ShownNode,
};
use alloy_primitives::B256;
use std::sync::Arc;

/// Pairs in the left half after a split.
const LEFT: usize = FANOUT.div_ceil(2);

/// A pair to be added.
pub(super) struct NewPair {
    pub(super) id: KeyWords,
    pub(super) place: PairPlace,
    pub(super) digest: B256,
}

/// Nodes are copied often. So all that a search and hashing need is stored inline, few reference
/// counts change in a copy, and the fields of a search lie together.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct TreeNode {
    /// Compound keys of the pairs, or of each child's first pair.
    pub(super) keys: NodeKeys,
    pub(super) below: NodeChildren,
    /// A bit for each child that has changed since its digest and length were copied.
    stale: u16,
    /// The number of children or pairs of each child; zeros in leaves.
    lens: [u8; PLACES],
    digests: [B256; PLACES],
    /// Its form in compacted trees of older blocks.
    pub(super) compact: CompactCell,
}

#[derive(Clone, Debug)]
pub(super) enum NodeChildren {
    Pairs([PairPlace; PLACES]),
    Nodes([Option<Arc<TreeNode>>; PLACES]),
    /// In compacted trees alone.
    Folded([Option<Arc<FoldedSubtree>>; PLACES]),
}

impl TreeNode {
    /// A leaf of one pair.
    pub(super) fn leaf(new: &NewPair) -> Self {
        let (mut digests, mut places) = ([B256::ZERO; PLACES], [PairPlace::default(); PLACES]);
        (digests[0], places[0]) = (new.digest, new.place);
        Self::new(NodeKeys::one(new.id), digests, 0, NodeChildren::Pairs(places))
    }

    const fn new(keys: NodeKeys, digests: [B256; PLACES], stale: u16, below: NodeChildren) -> Self {
        Self { keys, below, stale, lens: [0; PLACES], digests, compact: CompactCell::none() }
    }

    /// A leaf of these pairs, in order.
    pub(super) fn of_pairs(pairs: &[NewPair]) -> Self {
        let (mut digests, mut places) = ([B256::ZERO; PLACES], [PairPlace::default(); PLACES]);
        for (at, new) in pairs.iter().enumerate() {
            (digests[at], places[at]) = (new.digest, new.place);
        }
        let ids: Vec<KeyWords> = pairs.iter().map(|new| new.id).collect();
        Self::new(NodeKeys::of(&ids), digests, 0, NodeChildren::Pairs(places))
    }

    /// A node over these children, in order. Their digests must be up to date.
    pub(super) fn of_nodes(children: Vec<Arc<Self>>) -> Self {
        let (mut digests, mut nodes) = ([B256::ZERO; PLACES], [const { None }; PLACES]);
        let ids: Vec<KeyWords> = children.iter().map(|child| *child.keys.first()).collect();
        let mut lens = [0; PLACES];
        for (at, child) in children.into_iter().enumerate() {
            lens[at] = child.len();
            (digests[at], nodes[at]) = (hash::node(child.digests()), Some(child));
        }
        Self { lens, ..Self::new(NodeKeys::of(&ids), digests, 0, NodeChildren::Nodes(nodes)) }
    }

    /// The same node, with the same children in another form.
    pub(super) fn with_below(&self, below: NodeChildren) -> Self {
        Self { lens: self.lens, ..Self::new(self.keys, self.digests, self.stale, below) }
    }

    /// Reads the parts that a copy of the node will read.
    pub(super) fn touch(&self) -> u8 {
        self.digests.iter().step_by(2).fold(self.lens[0], |seen, digest| seen ^ digest[0])
    }

    /// The number of its children or pairs.
    pub(super) const fn len(&self) -> u8 {
        // There are few places.
        self.keys.len() as u8
    }

    /// The number of children or pairs of each of its children.
    pub(super) fn lens(&self) -> &[u8] {
        &self.lens[..self.keys.len()]
    }

    /// A node over two others.
    pub(super) fn over(left: Arc<Self>, right: Self) -> Self {
        let mut keys = NodeKeys::one(*left.keys.first());
        keys.insert(1, *right.keys.first());
        let mut nodes = [const { None }; PLACES];
        (nodes[0], nodes[1]) = (Some(left), Some(Arc::new(right)));
        Self::new(keys, [B256::ZERO; PLACES], 0b11, NodeChildren::Nodes(nodes))
    }

    /// Digests of the pairs or children.
    pub(super) fn digests(&self) -> &[B256] {
        &self.digests[..self.keys.len()]
    }

    /// The child at `at`.
    pub(super) fn child(&self, at: usize) -> Option<&Arc<Self>> {
        match &self.below {
            NodeChildren::Pairs(_) | NodeChildren::Folded(_) => None,
            NodeChildren::Nodes(nodes) => nodes.get(at)?.as_ref(),
        }
    }

    /// The smallest compound key below the child at `at`, if there is one.
    fn first_of(&self, at: usize) -> Option<&KeyWords> {
        match &self.below {
            NodeChildren::Pairs(_) => None,
            NodeChildren::Nodes(nodes) => Some(nodes.get(at)?.as_ref()?.keys.first()),
            NodeChildren::Folded(folded) => Some(&folded.get(at)?.as_ref()?.first),
        }
    }

    /// The number of pairs, or of children's first pairs, that are below `id`, or also equal to it
    /// with `or_equal`.
    #[inline]
    pub(super) fn rank(&self, id: &KeyWords, or_equal: bool, blocks: &PairBlocks) -> usize {
        self.keys.rank(id, or_equal, |at| self.whole(at, blocks))
    }

    #[inline]
    fn whole<'a>(&'a self, at: usize, blocks: &'a PairBlocks) -> &'a KeyWords {
        match &self.below {
            NodeChildren::Pairs(places) => blocks.at(places[at]).id(),
            NodeChildren::Nodes(nodes) => {
                nodes[at].as_ref().map_or_else(|| self.keys.first(), |node| node.keys.first())
            }
            NodeChildren::Folded(_) => self.first_of(at).unwrap_or_else(|| self.keys.first()),
        }
    }

    /// Adds a pair that is not in the tree. Returns the right half if the node had to be split.
    pub(super) fn insert(&mut self, new: &NewPair, blocks: &PairBlocks) -> Option<Self> {
        let len = self.keys.len();
        let below = self.rank(&new.id, true, blocks);
        self.compact = CompactCell::none();
        match &mut self.below {
            NodeChildren::Pairs(places) => {
                places.copy_within(below..len, below + 1);
                places[below] = new.place;
                self.digests.copy_within(below..len, below + 1);
                self.digests[below] = new.digest;
                self.keys.insert(below, new.id);
            }
            NodeChildren::Nodes(nodes) => {
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
                self.lens.copy_within(at + 1..len, at + 2);
                let low = (1 << (at + 1)) - 1;
                self.stale = self.stale & low | (self.stale & !low) << 1 | 1 << (at + 1);
            }
            // The tree was made whole before it is changed.
            NodeChildren::Folded(_) => debug_assert!(false, "a compacted tree is changed"),
        }
        (self.keys.len() > FANOUT).then(|| self.split(blocks))
    }

    fn split(&mut self, blocks: &PairBlocks) -> Self {
        let (mut digests, mut lens) = (self.digests, self.lens);
        digests.rotate_left(LEFT);
        lens.rotate_left(LEFT);
        let mut keys = self.keys;
        let right = keys.split(LEFT, |at| self.whole(at, blocks));
        self.keys = keys;
        let below = match &mut self.below {
            NodeChildren::Pairs(places) => {
                let mut right = *places;
                right.rotate_left(LEFT);
                NodeChildren::Pairs(right)
            }
            NodeChildren::Nodes(nodes) => {
                let mut right = [const { None }; PLACES];
                nodes[LEFT..].iter_mut().zip(&mut right).for_each(|(from, to)| *to = from.take());
                NodeChildren::Nodes(right)
            }
            NodeChildren::Folded(_) => NodeChildren::Folded(Default::default()),
        };
        let stale = self.stale >> LEFT;
        self.stale &= (1 << LEFT) - 1;
        Self { lens, ..Self::new(right, digests, stale, below) }
    }

    /// Collects the nodes with stale digests at `depth` below `node`.
    pub(super) fn stale<'a>(node: &'a mut Arc<Self>, depth: usize, found: &mut Vec<&'a mut Self>) {
        if node.stale == 0 {
            return;
        }
        // A node that has changed belongs to this tree alone: nothing is copied here.
        let node = Arc::make_mut(node);
        if depth == 0 {
            found.push(node);
        } else if let NodeChildren::Nodes(nodes) = &mut node.below {
            let changed = nodes.iter_mut().enumerate().filter(|(at, _)| node.stale >> at & 1 == 1);
            changed.filter_map(|(_, child)| child.as_mut()).for_each(|child| {
                Self::stale(child, depth - 1, found);
            });
        }
    }

    /// Adds the changed children to `batch`. Their own digests are up to date.
    pub(super) fn add_stale(&self, batch: &mut HashBatch) {
        let changed = (0..self.keys.len()).filter(|at| self.stale >> at & 1 == 1);
        for child in changed.filter_map(|at| self.child(at)) {
            batch.node(child.digests());
        }
    }

    /// Takes over the digests and the lengths of the changed children.
    pub(super) fn refresh(&mut self, digests: &mut impl Iterator<Item = B256>) {
        for at in (0..self.keys.len()).filter(|at| self.stale >> at & 1 == 1) {
            if let Some(digest) = digests.next() {
                self.digests[at] = digest;
            }
            self.lens[at] = self.child(at).map_or(0, |child| child.len());
        }
        self.stale = 0;
    }

    /// The tree below this node as a proof shows it, with the pairs in `wanted`.
    pub(super) fn shown(
        &self,
        wanted: &[(KeyWords, KeyWords)],
        blocks: &PairBlocks,
        unfolded: &UnfoldedCache,
    ) -> ShownNode {
        let below = |at: usize| -> Vec<(KeyWords, KeyWords)> {
            // Both ends of each range are pairs of the tree.
            let (first, next) = (self.first_of(at), self.first_of(at + 1));
            let is_below = |(from, to): &&(KeyWords, KeyWords)| {
                next.is_none_or(|next| from < next) && first.is_some_and(|first| to >= first)
            };
            wanted.iter().filter(is_below).copied().collect()
        };
        let within = |at: usize, child: Option<&Self>, wanted: &[(KeyWords, KeyWords)]| match child
        {
            None => ShownNode::Hidden(self.digests[at]),
            Some(child) => child.shown(wanted, blocks, unfolded),
        };
        let show = |at: usize| match &self.below {
            NodeChildren::Pairs(places) => {
                let entry = blocks.at(places[at]);
                let is_wanted = |(first, last): &(KeyWords, KeyWords)| {
                    first <= entry.id() && entry.id() <= last
                };
                match wanted.iter().any(is_wanted) {
                    true => ShownNode::Pair(entry.to_pair()),
                    false => ShownNode::Hidden(self.digests[at]),
                }
            }
            NodeChildren::Nodes(nodes) => match &below(at)[..] {
                [] => ShownNode::Hidden(self.digests[at]),
                wanted => within(at, nodes[at].as_deref(), wanted),
            },
            NodeChildren::Folded(folded) => match &below(at)[..] {
                [] => ShownNode::Hidden(self.digests[at]),
                wanted => {
                    let child = folded[at].as_ref().and_then(|it| unfolded.get(it, blocks));
                    within(at, child.as_deref(), wanted)
                }
            },
        };
        ShownNode::Inner((0..self.keys.len()).map(show).collect())
    }
}
