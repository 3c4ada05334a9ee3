//! The AVL tree above chunks, in memory. Blocks share what they have not changed.
//!
//! # How a tree changes
//!
//! A block changes chunks *in their places*: a chunk of the old tree gives way to those of the new one
//! whose first keys lie in its range (the first one's range begins before all keys). From below,
//! at each node:
//!
//! * a place with one chunk is that chunk, with none it vanishes, with more it is the tree that
//!   halves them, the left half being the larger one;
//! * an inner node [joins](join) what has become of its children.
//!
//! With one chunk that becomes two, or vanishes, this is what AVL trees do to insert or delete one.

use crate::{chunk::Chunk, hash::Batch, upper::Upper};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::StateKey;
use std::sync::{Arc, OnceLock};

/// A node of a tree.
#[derive(Debug)]
pub(crate) struct Node {
    /// The smallest key below.
    pub(crate) first: StateKey,
    /// Of inner nodes set once the block is done.
    hash: OnceLock<B256>,
    pub(crate) kind: Kind,
    /// What it is in trees of older blocks, once it was asked for.
    pub(crate) upper: OnceLock<Arc<Upper>>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Chunk(Chunk),
    /// Its height, which is at least 1, and its children, whose heights differ by 1 at most.
    Inner(u8, Arc<Node>, Arc<Node>),
}

/// Inner nodes that one thread hashes at a time.
const AT_ONCE: usize = 64;

impl Node {
    pub(crate) fn chunk(first: StateKey, chunk: Chunk, hash: B256) -> Arc<Self> {
        Self::new(first, OnceLock::from(hash), Kind::Chunk(chunk))
    }

    /// An inner node that is not hashed yet.
    pub(crate) fn inner(left: Arc<Self>, right: Arc<Self>) -> Arc<Self> {
        let height = 1 + left.height().max(right.height());
        let kind = Kind::Inner(height, left.clone(), right);
        Self::new(left.first, OnceLock::new(), kind)
    }

    fn new(first: StateKey, hash: OnceLock<B256>, kind: Kind) -> Arc<Self> {
        Arc::new(Self { first, hash, kind, upper: OnceLock::new() })
    }

    pub(crate) const fn height(&self) -> u8 {
        match self.kind {
            Kind::Chunk(_) => 0,
            Kind::Inner(height, ..) => height,
        }
    }

    /// Its hash, which it has once [`hash_all`] was called.
    pub(crate) fn hash(&self) -> B256 {
        self.hash.get().copied().unwrap_or_default()
    }

    /// Whether it is new, and not hashed yet.
    fn is_new(&self) -> bool {
        self.hash.get().is_none()
    }
}

/// A chunk in its tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) chunk: &'a Chunk,
    pub(crate) key_height: u8,
    /// First key of the next chunk.
    pub(crate) next: Option<StateKey>,
    /// Whether there is none before it.
    pub(crate) is_first: bool,
}

impl Place<'_> {
    /// Start of its range: `None`, before all keys.
    pub(crate) fn start(&self) -> Option<StateKey> {
        (!self.is_first).then_some(self.node.first)
    }
}

/// A tree, perhaps empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(pub(crate) Option<Arc<Node>>);

impl Tree {
    /// The chunk in whose range `key` lies.
    pub(crate) fn find(&self, key: &StateKey) -> Option<Place<'_>> {
        let mut node = self.0.as_ref()?;
        let (mut key_height, mut next, mut is_first) = (0, None, true);
        loop {
            match &node.kind {
                Kind::Chunk(chunk) => {
                    return Some(Place { node, chunk, key_height, next, is_first });
                }
                Kind::Inner(height, left, right) => {
                    if *key < right.first {
                        (node, next) = (left, Some(right.first));
                    } else {
                        (node, key_height, is_first) = (right, *height, false);
                    }
                }
            }
        }
    }

    /// The chunk whose first key is `key`.
    pub(crate) fn begins(&self, key: &StateKey) -> Option<Place<'_>> {
        self.find(key).filter(|place| place.node.first == *key)
    }

    /// The last chunk that begins before `key`.
    pub(crate) fn before(&self, key: &StateKey) -> Option<Place<'_>> {
        let mut node = self.0.as_ref()?;
        while let Kind::Inner(_, left, right) = &node.kind {
            node = if right.first < *key { right } else { left };
        }
        // Its first key leads to it again, with its place.
        if node.first < *key { self.find(&node.first) } else { None }
    }

    /// All chunks, in key order.
    pub(crate) fn places(&self) -> Vec<Place<'_>> {
        let mut all = Vec::new();
        if let Some(node) = &self.0 {
            let mut walk = Walk::<StateKey> {
                all: true,
                key: &|key| key,
                found: &mut |place, _| all.push(place),
            };
            walk.node(node, &[], Around::default());
        }
        all
    }

    /// Calls `found` for each chunk in whose range some of `items` lie, with these. Items are in the
    /// order of their keys.
    pub(crate) fn walk<'a, T>(
        &'a self,
        items: &'a [T],
        key: impl Fn(&T) -> &StateKey,
        found: &mut dyn FnMut(Place<'a>, &'a [T]),
    ) {
        if let Some(node) = &self.0 {
            Walk { all: false, key: &key, found }.node(node, items, Around::default());
        }
    }

    /// The tree after `edits`, which are in key order.
    pub(crate) fn edit(&self, edits: &[Edit]) -> Self {
        Self(match &self.0 {
            None => {
                halve(&edits.iter().flat_map(|edit| edit.new.iter().cloned()).collect::<Vec<_>>())
            }
            Some(node) => edit(node, edits),
        })
    }

    /// The chunks below new nodes, and the first one below each old node that hangs below a new one,
    /// with their key-heights: of all others these are what they were.
    pub(crate) fn new_places(&self) -> Vec<(&Arc<Node>, u8)> {
        let mut found = Vec::new();
        if let Some(node) = &self.0 {
            new_places(node, 0, &mut found);
        }
        found
    }

    /// Hashes all new inner nodes, those of one height together.
    pub(crate) fn hash_all(&self) {
        let Some(top) = &self.0 else { return };
        let mut by_height = vec![Vec::new(); usize::from(top.height())];
        collect(top, &mut by_height);
        for nodes in by_height {
            nodes.par_chunks(AT_ONCE).for_each(|nodes| {
                let mut batch = Batch::default();
                for (_, left, right) in nodes {
                    batch.inner(&left.hash(), &right.hash());
                }
                for ((node, ..), hash) in nodes.iter().zip(batch.finish()) {
                    let _ = node.hash.set(hash);
                }
            });
        }
    }
}

/// A chunk of the old tree, by its first key, and what it gives way to.
#[derive(Debug)]
pub(crate) struct Edit {
    pub(crate) old: StateKey,
    pub(crate) new: Vec<Arc<Node>>,
}

fn edit(node: &Arc<Node>, edits: &[Edit]) -> Option<Arc<Node>> {
    match &node.kind {
        _ if edits.is_empty() => Some(node.clone()),
        Kind::Chunk(_) => {
            halve(&edits.iter().flat_map(|edit| edit.new.iter().cloned()).collect::<Vec<_>>())
        }
        Kind::Inner(_, left, right) => {
            let (below, above) =
                edits.split_at(edits.partition_point(|edit| edit.old < right.first));
            match (edit(left, below), edit(right, above)) {
                (Some(left), Some(right)) => Some(join(left, right)),
                (one, other) => one.or(other),
            }
        }
    }
}

/// The tree that halves these nodes, the left half being the larger one.
pub(crate) fn halve(nodes: &[Arc<Node>]) -> Option<Arc<Node>> {
    match nodes {
        [] => None,
        [one] => Some(one.clone()),
        _ => {
            let (left, right) = nodes.split_at(nodes.len().div_ceil(2));
            halve(left).zip(halve(right)).map(|(left, right)| Node::inner(left, right))
        }
    }
}

/// Two trees as one, all keys of `left` being smaller. It is as high as the higher one, or one more.
///
/// The lower one goes down the near edge of the higher one, to the first node that is not higher
/// than it by more than 1. On the way back a node whose near child has become higher than the far one by 2
/// is rotated: twice if the near child's near child is the lower one of its two.
pub(crate) fn join(left: Arc<Node>, right: Arc<Node>) -> Arc<Node> {
    let (l, r) = (left.height(), right.height());
    match (&left.kind, &right.kind) {
        (Kind::Inner(_, far, near), _) if l > r + 1 => {
            let near = join(near.clone(), right);
            lean_right(far.clone(), near)
        }
        (_, Kind::Inner(_, near, far)) if r > l + 1 => {
            let near = join(left, near.clone());
            lean_left(near, far.clone())
        }
        _ => Node::inner(left, right),
    }
}

/// An inner node whose right child may be higher by 2.
fn lean_right(left: Arc<Node>, right: Arc<Node>) -> Arc<Node> {
    if let Kind::Inner(height, inside, outside) = &right.kind
        && *height > left.height() + 1
    {
        return match &inside.kind {
            Kind::Inner(height, a, b) if *height > outside.height() => {
                Node::inner(Node::inner(left, a.clone()), Node::inner(b.clone(), outside.clone()))
            }
            _ => Node::inner(Node::inner(left, inside.clone()), outside.clone()),
        };
    }
    Node::inner(left, right)
}

/// An inner node whose left child may be higher by 2.
fn lean_left(left: Arc<Node>, right: Arc<Node>) -> Arc<Node> {
    if let Kind::Inner(height, outside, inside) = &left.kind
        && *height > right.height() + 1
    {
        return match &inside.kind {
            Kind::Inner(height, a, b) if *height > outside.height() => {
                Node::inner(Node::inner(outside.clone(), a.clone()), Node::inner(b.clone(), right))
            }
            _ => Node::inner(outside.clone(), Node::inner(inside.clone(), right)),
        };
    }
    Node::inner(left, right)
}

/// What a chunk's place says beside the chunk.
#[derive(Clone, Copy, Default)]
struct Around {
    key_height: u8,
    next: Option<StateKey>,
    is_behind: bool,
}

struct Walk<'w, 'a, T> {
    /// Also where there are no items.
    all: bool,
    key: &'w dyn Fn(&T) -> &StateKey,
    found: &'w mut dyn FnMut(Place<'a>, &'a [T]),
}

impl<'a, T> Walk<'_, 'a, T> {
    fn node(&mut self, node: &'a Arc<Node>, items: &'a [T], around: Around) {
        match &node.kind {
            _ if items.is_empty() && !self.all => {}
            Kind::Chunk(chunk) => {
                let Around { key_height, next, is_behind } = around;
                (self.found)(Place { node, chunk, key_height, next, is_first: !is_behind }, items);
            }
            Kind::Inner(height, left, right) => {
                let at = items.partition_point(|item| (self.key)(item) < &right.first);
                let (below, above) = items.split_at(at);
                self.node(left, below, Around { next: Some(right.first), ..around });
                let around = Around { key_height: *height, is_behind: true, ..around };
                self.node(right, above, around);
            }
        }
    }
}

fn new_places<'a>(node: &'a Arc<Node>, key_height: u8, found: &mut Vec<(&'a Arc<Node>, u8)>) {
    match &node.kind {
        Kind::Inner(height, left, right) if node.is_new() => {
            new_places(left, key_height, found);
            new_places(right, *height, found);
        }
        Kind::Inner(_, left, _) => {
            let mut first = left;
            while let Kind::Inner(_, left, _) = &first.kind {
                first = left;
            }
            found.push((first, key_height));
        }
        Kind::Chunk(_) => found.push((node, key_height)),
    }
}

type Children<'a> = (&'a Node, &'a Node, &'a Node);

fn collect<'a>(node: &'a Node, by_height: &mut [Vec<Children<'a>>]) {
    if let Kind::Inner(height, left, right) = &node.kind
        && node.is_new()
    {
        collect(left, by_height);
        collect(right, by_height);
        by_height[usize::from(*height) - 1].push((node, left, right));
    }
}
