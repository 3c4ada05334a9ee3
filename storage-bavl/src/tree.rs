//! The AVL tree above chunks, in memory. The trees of successive blocks share unchanged nodes.
//!
//! # How a tree changes
//!
//! A block replaces chunks: a chunk of the old tree is replaced by the new chunks whose first keys
//! lie in its range (the range of the first chunk begins before all keys). Then, from the bottom
//! up:
//!
//! * a chunk that is replaced by one chunk becomes this chunk; if it is replaced by none it is
//!   removed; if it is replaced by several, it becomes the tree that halves them, with the larger
//!   half on the left;
//! * an inner node [joins](join) its new children.
//!
//! If one chunk becomes two, or is removed, this is the insertion or deletion of an AVL tree.

use crate::{chunk::ChunkBody, hash::HashBatch, upper::UpperNode};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::BackendKey;
use std::sync::{Arc, OnceLock};

/// A node of a tree.
#[derive(Debug)]
pub(crate) struct TreeNode {
    /// The smallest key below.
    pub(crate) first: BackendKey,
    /// The hash; for an inner node it is set at the end of the block.
    hash: OnceLock<B256>,
    pub(crate) kind: NodeKind,
    /// This node as an upper node of older trees, once it was made.
    pub(crate) upper: OnceLock<Arc<UpperNode>>,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Chunk(ChunkBody),
    /// Its height, which is at least 1, and its children, whose heights differ by 1 at most.
    Inner(u8, Arc<TreeNode>, Arc<TreeNode>),
}

/// Inner nodes that one thread hashes at a time.
const AT_ONCE: usize = 64;

impl TreeNode {
    pub(crate) fn chunk(first: BackendKey, chunk: ChunkBody, hash: B256) -> Arc<Self> {
        Self::new(first, OnceLock::from(hash), NodeKind::Chunk(chunk))
    }

    /// An inner node that is not hashed yet.
    pub(crate) fn inner(left: Arc<Self>, right: Arc<Self>) -> Arc<Self> {
        let height = 1 + left.height().max(right.height());
        let kind = NodeKind::Inner(height, left.clone(), right);
        Self::new(left.first, OnceLock::new(), kind)
    }

    fn new(first: BackendKey, hash: OnceLock<B256>, kind: NodeKind) -> Arc<Self> {
        Arc::new(Self { first, hash, kind, upper: OnceLock::new() })
    }

    pub(crate) const fn height(&self) -> u8 {
        match self.kind {
            NodeKind::Chunk(_) => 0,
            NodeKind::Inner(height, ..) => height,
        }
    }

    /// Its hash. Inner nodes have one after [`hash_all`](ChunkTree::hash_all).
    pub(crate) fn hash(&self) -> B256 {
        self.hash.get().copied().unwrap_or_default()
    }

    /// Whether it is not hashed yet.
    fn is_new(&self) -> bool {
        self.hash.get().is_none()
    }
}

/// A chunk and its place in the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace<'a> {
    pub(crate) node: &'a Arc<TreeNode>,
    pub(crate) chunk: &'a ChunkBody,
    pub(crate) key_height: u8,
    /// First key of the next chunk.
    pub(crate) next: Option<BackendKey>,
    /// Whether it is the first chunk.
    pub(crate) is_first: bool,
}

impl ChunkPlace<'_> {
    /// Start of its range: `None`, before all keys.
    pub(crate) fn start(&self) -> Option<BackendKey> {
        (!self.is_first).then_some(self.node.first)
    }
}

/// A tree, perhaps empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkTree(pub(crate) Option<Arc<TreeNode>>);

impl ChunkTree {
    /// The chunk in whose range `key` lies.
    pub(crate) fn find(&self, key: &BackendKey) -> Option<ChunkPlace<'_>> {
        let mut node = self.0.as_ref()?;
        let (mut key_height, mut next, mut is_first) = (0, None, true);
        loop {
            match &node.kind {
                NodeKind::Chunk(chunk) => {
                    return Some(ChunkPlace { node, chunk, key_height, next, is_first });
                }
                NodeKind::Inner(height, left, right) => {
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
    pub(crate) fn starting_at(&self, key: &BackendKey) -> Option<ChunkPlace<'_>> {
        self.find(key).filter(|place| place.node.first == *key)
    }

    /// The last chunk that begins before `key`.
    pub(crate) fn before(&self, key: &BackendKey) -> Option<ChunkPlace<'_>> {
        let mut node = self.0.as_ref()?;
        while let NodeKind::Inner(_, left, right) = &node.kind {
            node = if right.first < *key { right } else { left };
        }
        // The lookup by its first key returns the chunk with its place.
        if node.first < *key { self.find(&node.first) } else { None }
    }

    /// All chunks, in key order.
    pub(crate) fn places(&self) -> Vec<ChunkPlace<'_>> {
        let mut all = Vec::new();
        if let Some(node) = &self.0 {
            let mut walk = ChunkWalk::<BackendKey> {
                all: true,
                key: &|key| key,
                found: &mut |place, _| all.push(place),
            };
            walk.node(node, &[], WalkPosition::default());
        }
        all
    }

    /// Calls `found` for each chunk that has some of `items` in its range, with these items.
    /// `items` must be sorted by key.
    pub(crate) fn walk<'a, T>(
        &'a self,
        items: &'a [T],
        key: impl Fn(&T) -> &BackendKey,
        found: &mut dyn FnMut(ChunkPlace<'a>, &'a [T]),
    ) {
        if let Some(node) = &self.0 {
            ChunkWalk { all: false, key: &key, found }.node(node, items, WalkPosition::default());
        }
    }

    /// The tree after `edits`, which are in key order.
    pub(crate) fn edit(&self, edits: &[ChunkEdit]) -> Self {
        Self(match &self.0 {
            None => {
                halve(&edits.iter().flat_map(|edit| edit.new.iter().cloned()).collect::<Vec<_>>())
            }
            Some(node) => edit(node, edits),
        })
    }

    /// All chunks whose key-height may have changed, with their key-heights: the chunks directly
    /// below new nodes, and the first chunk of each old subtree below a new node.
    pub(crate) fn new_places(&self) -> Vec<(&Arc<TreeNode>, u8)> {
        let mut found = Vec::new();
        if let Some(node) = &self.0 {
            new_places(node, 0, &mut found);
        }
        found
    }

    /// Hashes all new inner nodes, all nodes of a height together.
    pub(crate) fn hash_all(&self) {
        let Some(top) = &self.0 else { return };
        let mut by_height = vec![Vec::new(); usize::from(top.height())];
        collect(top, &mut by_height);
        for nodes in by_height {
            nodes.par_chunks(AT_ONCE).for_each(|nodes| {
                let mut batch = HashBatch::default();
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

/// The replacement of a chunk of the old tree.
#[derive(Debug)]
pub(crate) struct ChunkEdit {
    pub(crate) old: BackendKey,
    pub(crate) new: Vec<Arc<TreeNode>>,
}

fn edit(node: &Arc<TreeNode>, edits: &[ChunkEdit]) -> Option<Arc<TreeNode>> {
    match &node.kind {
        _ if edits.is_empty() => Some(node.clone()),
        NodeKind::Chunk(_) => {
            halve(&edits.iter().flat_map(|edit| edit.new.iter().cloned()).collect::<Vec<_>>())
        }
        NodeKind::Inner(_, left, right) => {
            let (below, above) =
                edits.split_at(edits.partition_point(|edit| edit.old < right.first));
            match (edit(left, below), edit(right, above)) {
                (Some(left), Some(right)) => Some(join(left, right)),
                (one, other) => one.or(other),
            }
        }
    }
}

/// The tree that halves these nodes, with the larger half on the left.
pub(crate) fn halve(nodes: &[Arc<TreeNode>]) -> Option<Arc<TreeNode>> {
    match nodes {
        [] => None,
        [one] => Some(one.clone()),
        _ => {
            let (left, right) = nodes.split_at(nodes.len().div_ceil(2));
            halve(left).zip(halve(right)).map(|(left, right)| TreeNode::inner(left, right))
        }
    }
}

/// Joins two trees; all keys of `left` are smaller. The result is as high as the higher tree, or
/// higher by one.
///
/// The lower tree descends along the near edge of the higher one, to the first node that is at most
/// one higher than the lower tree. On the way back up, a node whose near child is now two higher
/// than its far child is rotated; twice, if the near child's inner child is higher than its outer
/// child.
pub(crate) fn join(left: Arc<TreeNode>, right: Arc<TreeNode>) -> Arc<TreeNode> {
    let (l, r) = (left.height(), right.height());
    match (&left.kind, &right.kind) {
        (NodeKind::Inner(_, far, near), _) if l > r + 1 => {
            let near = join(near.clone(), right);
            lean_right(far.clone(), near)
        }
        (_, NodeKind::Inner(_, near, far)) if r > l + 1 => {
            let near = join(left, near.clone());
            lean_left(near, far.clone())
        }
        _ => TreeNode::inner(left, right),
    }
}

/// An inner node whose right child may be higher by 2.
fn lean_right(left: Arc<TreeNode>, right: Arc<TreeNode>) -> Arc<TreeNode> {
    if let NodeKind::Inner(height, inside, outside) = &right.kind
        && *height > left.height() + 1
    {
        return match &inside.kind {
            NodeKind::Inner(height, a, b) if *height > outside.height() => TreeNode::inner(
                TreeNode::inner(left, a.clone()),
                TreeNode::inner(b.clone(), outside.clone()),
            ),
            _ => TreeNode::inner(TreeNode::inner(left, inside.clone()), outside.clone()),
        };
    }
    TreeNode::inner(left, right)
}

/// An inner node whose left child may be higher by 2.
fn lean_left(left: Arc<TreeNode>, right: Arc<TreeNode>) -> Arc<TreeNode> {
    if let NodeKind::Inner(height, outside, inside) = &left.kind
        && *height > right.height() + 1
    {
        return match &inside.kind {
            NodeKind::Inner(height, a, b) if *height > outside.height() => TreeNode::inner(
                TreeNode::inner(outside.clone(), a.clone()),
                TreeNode::inner(b.clone(), right),
            ),
            _ => TreeNode::inner(outside.clone(), TreeNode::inner(inside.clone(), right)),
        };
    }
    TreeNode::inner(left, right)
}

/// The position of a walk: what a node's ancestors determine about the chunks below it.
#[derive(Clone, Copy, Default)]
struct WalkPosition {
    key_height: u8,
    next: Option<BackendKey>,
    is_behind: bool,
}

struct ChunkWalk<'w, 'a, T> {
    /// Visit chunks without items, too.
    all: bool,
    key: &'w dyn Fn(&T) -> &BackendKey,
    found: &'w mut dyn FnMut(ChunkPlace<'a>, &'a [T]),
}

impl<'a, T> ChunkWalk<'_, 'a, T> {
    fn node(&mut self, node: &'a Arc<TreeNode>, items: &'a [T], around: WalkPosition) {
        match &node.kind {
            _ if items.is_empty() && !self.all => {}
            NodeKind::Chunk(chunk) => {
                let WalkPosition { key_height, next, is_behind } = around;
                (self.found)(
                    ChunkPlace { node, chunk, key_height, next, is_first: !is_behind },
                    items,
                );
            }
            NodeKind::Inner(height, left, right) => {
                let at = items.partition_point(|item| (self.key)(item) < &right.first);
                let (below, above) = items.split_at(at);
                self.node(left, below, WalkPosition { next: Some(right.first), ..around });
                let around = WalkPosition { key_height: *height, is_behind: true, ..around };
                self.node(right, above, around);
            }
        }
    }
}

fn new_places<'a>(
    node: &'a Arc<TreeNode>,
    key_height: u8,
    found: &mut Vec<(&'a Arc<TreeNode>, u8)>,
) {
    match &node.kind {
        NodeKind::Inner(height, left, right) if node.is_new() => {
            new_places(left, key_height, found);
            new_places(right, *height, found);
        }
        NodeKind::Inner(_, left, _) => {
            let mut first = left;
            while let NodeKind::Inner(_, left, _) = &first.kind {
                first = left;
            }
            found.push((first, key_height));
        }
        NodeKind::Chunk(_) => found.push((node, key_height)),
    }
}

type InnerNode<'a> = (&'a TreeNode, &'a TreeNode, &'a TreeNode);

fn collect<'a>(node: &'a TreeNode, by_height: &mut [Vec<InnerNode<'a>>]) {
    if let NodeKind::Inner(height, left, right) = &node.kind
        && node.is_new()
    {
        collect(left, by_height);
        collect(right, by_height);
        by_height[usize::from(*height) - 1].push((node, left, right));
    }
}
