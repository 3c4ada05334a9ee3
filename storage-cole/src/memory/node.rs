//! A node of the tree.

use super::{
    blocks::{Blocks, Place},
    keys::{FANOUT, Id, Keys, PLACES},
    thin::{Folded, Thin, Unfolded},
};
use crate::{
    hash::{self, Batch},
    tree::Node,
};
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
/// node is copied: nodes are copied often. What it takes to find one's way lies together.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct TreeNode {
    /// Ids of the pairs, or of each child's first pair.
    pub(super) keys: Keys,
    pub(super) below: Below,
    /// A bit for each child that has changed since its digest and length were taken.
    stale: u16,
    /// How many children or pairs each child has; zeros in leaves.
    lens: [u8; PLACES],
    digests: [B256; PLACES],
    /// What it is in trees of older blocks.
    pub(super) thin: Thin,
}

#[derive(Clone, Debug)]
pub(super) enum Below {
    Pairs([Place; PLACES]),
    Nodes([Option<Arc<TreeNode>>; PLACES]),
    /// In thinned trees alone.
    Folded([Option<Arc<Folded>>; PLACES]),
}

impl TreeNode {
    /// A leaf of one pair.
    pub(super) fn leaf(new: &New) -> Self {
        let (mut digests, mut places) = ([B256::ZERO; PLACES], [Place::default(); PLACES]);
        (digests[0], places[0]) = (new.digest, new.place);
        Self::new(Keys::one(new.id), digests, 0, Below::Pairs(places))
    }

    const fn new(keys: Keys, digests: [B256; PLACES], stale: u16, below: Below) -> Self {
        Self { keys, below, stale, lens: [0; PLACES], digests, thin: Thin::none() }
    }

    /// A leaf of these pairs, in order.
    pub(super) fn of_pairs(pairs: &[New]) -> Self {
        let (mut digests, mut places) = ([B256::ZERO; PLACES], [Place::default(); PLACES]);
        for (at, new) in pairs.iter().enumerate() {
            (digests[at], places[at]) = (new.digest, new.place);
        }
        let ids: Vec<Id> = pairs.iter().map(|new| new.id).collect();
        Self::new(Keys::of(&ids), digests, 0, Below::Pairs(places))
    }

    /// A node over these, in order, whose digests are up to date.
    pub(super) fn of_nodes(children: Vec<Arc<Self>>) -> Self {
        let (mut digests, mut nodes) = ([B256::ZERO; PLACES], [const { None }; PLACES]);
        let ids: Vec<Id> = children.iter().map(|child| *child.keys.first()).collect();
        let mut lens = [0; PLACES];
        for (at, child) in children.into_iter().enumerate() {
            lens[at] = child.len();
            (digests[at], nodes[at]) = (hash::node(child.digests()), Some(child));
        }
        Self { lens, ..Self::new(Keys::of(&ids), digests, 0, Below::Nodes(nodes)) }
    }

    /// The same with the same children in another form.
    pub(super) fn with_below(&self, below: Below) -> Self {
        Self { lens: self.lens, ..Self::new(self.keys, self.digests, self.stale, below) }
    }

    /// Reads what a copy of it will read, in no order.
    pub(super) fn touch(&self) -> u8 {
        self.digests.iter().step_by(2).fold(self.lens[0], |seen, digest| seen ^ digest[0])
    }

    /// Number of its children or pairs.
    pub(super) const fn len(&self) -> u8 {
        // There are few places.
        self.keys.len() as u8
    }

    /// The same of each of its children.
    pub(super) fn lens(&self) -> &[u8] {
        &self.lens[..self.keys.len()]
    }

    /// A node over two others.
    pub(super) fn over(left: Arc<Self>, right: Self) -> Self {
        let mut keys = Keys::one(*left.keys.first());
        keys.insert(1, *right.keys.first());
        let mut nodes = [const { None }; PLACES];
        (nodes[0], nodes[1]) = (Some(left), Some(Arc::new(right)));
        Self::new(keys, [B256::ZERO; PLACES], 0b11, Below::Nodes(nodes))
    }

    /// Digests of the pairs or children.
    pub(super) fn digests(&self) -> &[B256] {
        &self.digests[..self.keys.len()]
    }

    /// The child at `at`.
    pub(super) fn child(&self, at: usize) -> Option<&Arc<Self>> {
        match &self.below {
            Below::Pairs(_) | Below::Folded(_) => None,
            Below::Nodes(nodes) => nodes.get(at)?.as_ref(),
        }
    }

    /// The smallest id below the child at `at`, if there is one.
    fn first_of(&self, at: usize) -> Option<&Id> {
        match &self.below {
            Below::Pairs(_) => None,
            Below::Nodes(nodes) => Some(nodes.get(at)?.as_ref()?.keys.first()),
            Below::Folded(folded) => Some(&folded.get(at)?.as_ref()?.first),
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
            Below::Folded(_) => self.first_of(at).unwrap_or_else(|| self.keys.first()),
        }
    }

    /// Adds a pair that is not there; gives the right half if this node had to be split.
    pub(super) fn insert(&mut self, new: &New, blocks: &Blocks) -> Option<Self> {
        let len = self.keys.len();
        let below = self.rank(&new.id, true, blocks);
        self.thin = Thin::none();
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
                self.lens.copy_within(at + 1..len, at + 2);
                let low = (1 << (at + 1)) - 1;
                self.stale = self.stale & low | (self.stale & !low) << 1 | 1 << (at + 1);
            }
            // Whoever changes a tree has made it whole.
            Below::Folded(_) => debug_assert!(false, "a thinned tree is changed"),
        }
        (self.keys.len() > FANOUT).then(|| self.split(blocks))
    }

    fn split(&mut self, blocks: &Blocks) -> Self {
        let (mut digests, mut lens) = (self.digests, self.lens);
        digests.rotate_left(LEFT);
        lens.rotate_left(LEFT);
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
            Below::Folded(_) => Below::Folded(Default::default()),
        };
        let stale = self.stale >> LEFT;
        self.stale &= (1 << LEFT) - 1;
        Self { lens, ..Self::new(right, digests, stale, below) }
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

    /// Takes the digests of the changed children, and their lengths.
    pub(super) fn refresh(&mut self, digests: &mut impl Iterator<Item = B256>) {
        for at in (0..self.keys.len()).filter(|at| self.stale >> at & 1 == 1) {
            if let Some(digest) = digests.next() {
                self.digests[at] = digest;
            }
            self.lens[at] = self.child(at).map_or(0, |child| child.len());
        }
        self.stale = 0;
    }

    /// The tree below with the pairs of `wanted` shown.
    pub(super) fn shown(&self, wanted: &[(Id, Id)], blocks: &Blocks, unfolded: &Unfolded) -> Node {
        let below = |at: usize| -> Vec<(Id, Id)> {
            // The ends of what is wanted are pairs of the tree.
            let (first, next) = (self.first_of(at), self.first_of(at + 1));
            let is_below = |(from, to): &&(Id, Id)| {
                next.is_none_or(|next| from < next) && first.is_some_and(|first| to >= first)
            };
            wanted.iter().filter(is_below).copied().collect()
        };
        let within = |at: usize, child: Option<&Self>, wanted: &[(Id, Id)]| match child {
            None => Node::Hidden(self.digests[at]),
            Some(child) => child.shown(wanted, blocks, unfolded),
        };
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
            Below::Nodes(nodes) => match &below(at)[..] {
                [] => Node::Hidden(self.digests[at]),
                wanted => within(at, nodes[at].as_deref(), wanted),
            },
            Below::Folded(folded) => match &below(at)[..] {
                [] => Node::Hidden(self.digests[at]),
                wanted => {
                    let child = folded[at].as_ref().and_then(|it| unfolded.get(it, blocks));
                    within(at, child.as_deref(), wanted)
                }
            },
        };
        Node::Inner((0..self.keys.len()).map(show).collect())
    }
}
