//! A partial tree: nodes are opened when they are needed. A witness's maker opens them from the
//! store's tree; without a store only what the witness holds can be opened.
//!
//! # Heights
//!
//! Rotations depend on heights, which no hash binds. A height is known of a subtree that is opened
//! down to its chunks: the hash of a chunk is of another domain than that of an inner node. A subtree
//! that keeps its height changes nothing above it, whatever the height is; so heights are needed only
//! where chunks were cut or merged, and above as far as a height changes.

use super::{WitnessFault, chunk::PartialChunk};
use crate::hash;
use alloy_primitives::B256;
use retrie_state::WitnessError;
use std::sync::{Arc, OnceLock};

/// Where nodes come from that are not open yet.
pub(super) trait TreeOrigin {
    /// Names a node.
    type Handle;

    /// Opens a node.
    fn open(&self, handle: &Self::Handle) -> Result<NodeContent<Self::Handle>, WitnessFault>;

    /// Makes the hash tree of a chunk known.
    fn load(&self, handle: &Self::Handle, chunk: &PartialChunk) -> Result<(), WitnessFault>;
}

/// A node, perhaps with its content.
#[derive(Debug)]
pub(super) struct PartialNode<H> {
    pub(super) hash: B256,
    content: OnceLock<NodeContent<H>>,
    handle: Option<H>,
    height: OnceLock<u8>,
}

#[derive(Debug)]
pub(super) enum NodeContent<H> {
    Chunk(Arc<PartialChunk>),
    Inner(NodePtr<H>, NodePtr<H>),
}

pub(super) type NodePtr<H> = Arc<PartialNode<H>>;

/// The turns from the top down to a node: whether to the right.
pub(super) type NodePath = Vec<bool>;

impl<H> PartialNode<H> {
    /// A node that is not open.
    pub(super) fn closed(hash: B256, handle: Option<H>) -> NodePtr<H> {
        let (content, height) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { hash, content, handle, height })
    }

    fn opened(hash: B256, content: NodeContent<H>) -> NodePtr<H> {
        let content = OnceLock::from(content);
        Arc::new(Self { hash, content, handle: None, height: OnceLock::new() })
    }

    pub(super) fn chunk(chunk: PartialChunk) -> NodePtr<H> {
        Self::opened(chunk.hash(), NodeContent::Chunk(Arc::new(chunk)))
    }

    pub(super) fn inner(left: NodePtr<H>, right: NodePtr<H>) -> NodePtr<H> {
        Self::opened(hash::inner(&left.hash, &right.hash), NodeContent::Inner(left, right))
    }

    /// Its content, if it is open.
    pub(super) fn content(&self) -> Option<&NodeContent<H>> {
        self.content.get()
    }
}

/// The chunks that come in place of a chunk.
pub(super) struct ChunkReplacement<H> {
    pub(super) path: NodePath,
    pub(super) new: Vec<NodePtr<H>>,
}

/// A subtree after its chunks were replaced.
struct EditedNode<H> {
    node: Option<NodePtr<H>>,
    /// Whether it is as high as it was.
    keeps_height: bool,
}

/// Work on the nodes of one origin.
pub(super) struct TreeWork<'a, O>(pub(super) &'a O);

impl<O: TreeOrigin> TreeWork<'_, O> {
    pub(super) fn open<'n>(
        &self,
        node: &'n PartialNode<O::Handle>,
    ) -> Result<&'n NodeContent<O::Handle>, WitnessFault> {
        if let Some(content) = node.content.get() {
            return Ok(content);
        }
        let handle = node
            .handle
            .as_ref()
            .ok_or_else(|| WitnessError::Incomplete { what: format!("the node {}", node.hash) })?;
        let content = self.0.open(handle)?;
        Ok(node.content.get_or_init(|| content))
    }

    /// The chunk at the end of `path`, with its hash tree.
    pub(super) fn chunk(
        &self,
        top: &NodePtr<O::Handle>,
        path: &[bool],
    ) -> Result<Arc<PartialChunk>, WitnessFault> {
        let mut node = top;
        for turn in path {
            match self.open(node)? {
                NodeContent::Inner(left, right) => node = if *turn { right } else { left },
                NodeContent::Chunk(_) => break,
            }
        }
        match self.open(node)? {
            NodeContent::Inner(..) => {
                Err(WitnessError::Incomplete { what: "a chunk of the tree".into() }.into())
            }
            NodeContent::Chunk(chunk) => {
                if let Some(handle) = node.handle.as_ref().filter(|_| !chunk.is_loaded()) {
                    self.0.load(handle, chunk)?;
                }
                Ok(chunk.clone())
            }
        }
    }

    /// The path of the chunk that follows the one at `path`, or precedes it.
    pub(super) fn neighbour(
        &self,
        top: &NodePtr<O::Handle>,
        path: &[bool],
        is_next: bool,
    ) -> Result<Option<NodePath>, WitnessFault> {
        let Some(at) = path.iter().rposition(|turn| *turn != is_next) else { return Ok(None) };
        let mut to = path[..at].to_vec();
        to.push(is_next);
        let mut node = top;
        let mut depth = 0;
        loop {
            match self.open(node)? {
                NodeContent::Chunk(_) => return Ok(Some(to)),
                NodeContent::Inner(left, right) => {
                    if depth == to.len() {
                        to.push(!is_next);
                    }
                    node = if to[depth] { right } else { left };
                    depth += 1;
                }
            }
        }
    }

    fn height(&self, node: &PartialNode<O::Handle>) -> Result<u8, WitnessFault> {
        if let Some(height) = node.height.get() {
            return Ok(*height);
        }
        let height = match self.open(node)? {
            NodeContent::Chunk(_) => 0,
            NodeContent::Inner(left, right) => 1 + self.height(left)?.max(self.height(right)?),
        };
        Ok(*node.height.get_or_init(|| height))
    }

    /// The tree after `edits`, which are sorted by path.
    pub(super) fn edit(
        &self,
        top: &NodePtr<O::Handle>,
        edits: &[ChunkReplacement<O::Handle>],
    ) -> Result<Option<NodePtr<O::Handle>>, WitnessFault> {
        Ok(self.edit_below(top, 0, edits)?.node)
    }

    fn edit_below(
        &self,
        node: &NodePtr<O::Handle>,
        depth: usize,
        edits: &[ChunkReplacement<O::Handle>],
    ) -> Result<EditedNode<O::Handle>, WitnessFault> {
        if edits.is_empty() {
            return Ok(EditedNode { node: Some(node.clone()), keeps_height: true });
        }
        let NodeContent::Inner(left, right) = self.open(node)? else {
            let new: Vec<_> = edits.iter().flat_map(|edit| edit.new.iter().cloned()).collect();
            return Ok(EditedNode { node: halve(&new), keeps_height: new.len() == 1 });
        };
        let is_left = |edit: &ChunkReplacement<_>| edit.path.get(depth) == Some(&false);
        let (below, above) = edits.split_at(edits.partition_point(is_left));
        let left = self.edit_below(left, depth + 1, below)?;
        let right = self.edit_below(right, depth + 1, above)?;
        let keeps_heights = left.keeps_height && right.keeps_height;
        let after = match (left.node, right.node) {
            (Some(left), Some(right)) if keeps_heights => {
                let node = Some(PartialNode::inner(left, right));
                return Ok(EditedNode { node, keeps_height: true });
            }
            (Some(left), Some(right)) => Some(self.join(left, right)?),
            (one, other) => one.or(other),
        };
        // Nothing above the top asks for its height.
        let keeps_height = match &after {
            Some(after) if depth > 0 => self.height(after)? == self.height(node)?,
            _ => false,
        };
        Ok(EditedNode { node: after, keeps_height })
    }

    /// As [`tree::join`](crate::tree::join).
    fn join(
        &self,
        left: NodePtr<O::Handle>,
        right: NodePtr<O::Handle>,
    ) -> Result<NodePtr<O::Handle>, WitnessFault> {
        let (l, r) = (self.height(&left)?, self.height(&right)?);
        if l > r + 1
            && let NodeContent::Inner(far, near) = self.open(&left)?
        {
            let near = self.join(near.clone(), right)?;
            return self.lean_right(far.clone(), near);
        }
        if r > l + 1
            && let NodeContent::Inner(near, far) = self.open(&right)?
        {
            let near = self.join(left, near.clone())?;
            return self.lean_left(near, far.clone());
        }
        Ok(PartialNode::inner(left, right))
    }

    /// An inner node whose right child may be higher by 2.
    fn lean_right(
        &self,
        left: NodePtr<O::Handle>,
        right: NodePtr<O::Handle>,
    ) -> Result<NodePtr<O::Handle>, WitnessFault> {
        let inner = PartialNode::inner;
        if self.height(&right)? > self.height(&left)? + 1
            && let NodeContent::Inner(inside, outside) = self.open(&right)?
        {
            if self.height(inside)? > self.height(outside)?
                && let NodeContent::Inner(a, b) = self.open(inside)?
            {
                return Ok(inner(inner(left, a.clone()), inner(b.clone(), outside.clone())));
            }
            return Ok(inner(inner(left, inside.clone()), outside.clone()));
        }
        Ok(inner(left, right))
    }

    /// An inner node whose left child may be higher by 2.
    fn lean_left(
        &self,
        left: NodePtr<O::Handle>,
        right: NodePtr<O::Handle>,
    ) -> Result<NodePtr<O::Handle>, WitnessFault> {
        let inner = PartialNode::inner;
        if self.height(&left)? > self.height(&right)? + 1
            && let NodeContent::Inner(outside, inside) = self.open(&left)?
        {
            if self.height(inside)? > self.height(outside)?
                && let NodeContent::Inner(a, b) = self.open(inside)?
            {
                return Ok(inner(inner(outside.clone(), a.clone()), inner(b.clone(), right)));
            }
            return Ok(inner(outside.clone(), inner(inside.clone(), right)));
        }
        Ok(inner(left, right))
    }
}

/// As [`tree::halve`](crate::tree::halve).
pub(super) fn halve<H>(nodes: &[NodePtr<H>]) -> Option<NodePtr<H>> {
    match nodes {
        [] => None,
        [one] => Some(one.clone()),
        _ => {
            let (left, right) = nodes.split_at(nodes.len().div_ceil(2));
            halve(left).zip(halve(right)).map(|(left, right)| PartialNode::inner(left, right))
        }
    }
}
