//! The AVL* tree in memory (section III.B): an AVL+ tree whose leaves are batched in chunks, each
//! with the inner nodes above its leaves.
//!
//! A chunk is a subtree with at most `most` elements whose parent has more. The paper does not give
//! the algorithm; here it is this one. A chunk that has become too large is split into the subtrees
//! of its top node. A rotation that takes a chunk's top node apart splits the chunk before it, and
//! joins the two subtrees that it brings together after it, if they fit into one chunk.
//!
//! Chunks do not change the tree: it has the shape, the root and the proofs of
//! [`AvlPlusTree`](super::AvlPlusTree).

use super::{
    AuthenticatedTree,
    arena::{NodeArena, NodeId, SubtreeStack},
    avl::{AvlLeaf, AvlTree, ChildSide, HashBuffers, LeafInsert, LeafPlace, MovableLeaf},
    entries::{self, EntryArrays, ValueSpan},
    hash::{self, HashBatch},
    proof::{MembershipProof, ProofStep},
};
use alloy_primitives::B256;

/// An element of a chunk: its key, and the position of its value in the chunk.
#[derive(Clone, Copy, Debug)]
struct StarElement {
    key: u32,
    value: ValueSpan,
}

impl AvlLeaf for StarElement {
    type SharedData = Vec<u8>;

    fn first(&self) -> u32 {
        self.key
    }

    fn hash_all(
        leaves: &mut [Self],
        values: &mut Vec<u8>,
        which: &[NodeId],
        batch: &mut HashBatch,
        hashes: &mut Vec<B256>,
    ) {
        for id in which {
            let Self { key, value } = leaves[*id as usize];
            batch.entry(key, value.of(values));
        }
        hashes.extend_from_slice(batch.finish());
    }
}

impl MovableLeaf for StarElement {
    fn moved(&self, from: &Vec<u8>, to: &mut Vec<u8>) -> Self {
        Self { key: self.key, value: ValueSpan::append(to, self.value.of(from)) }
    }
}

/// A subtree whose nodes, keys and values lie in arrays.
type StarChunk = AvlTree<StarElement>;

fn put(chunk: &mut StarChunk, key: u32, value: &[u8]) {
    chunk.put(key, |element, values| {
        let value = ValueSpan::append(values, value);
        match element {
            Some(element) if element.key == key => {
                element.value = value;
                LeafInsert::Changed
            }
            _ => LeafInsert::Beside(StarElement { key, value }),
        }
    });
}

/// What is below a node above the chunks, or at its place.
#[derive(Clone, Copy, Debug)]
enum StarPart {
    /// Index of a chunk.
    Chunk(usize),
    /// The children, and the smallest key of the right one.
    Inner { left: NodeId, right: NodeId, separator: u32 },
}

#[derive(Clone, Copy, Debug)]
struct StarNode {
    part: StarPart,
    /// The smallest key of the subtree.
    first: u32,
    /// Height above the elements.
    height: u8,
    /// Number of elements in the subtree.
    elements: usize,
    /// Whether the subtree has changed since it was hashed.
    is_stale: bool,
    hash: B256,
}

/// The tree. Chunks hold at most `most` elements.
#[derive(Debug)]
pub(crate) struct AvlStarTree {
    most: usize,
    nodes: NodeArena<StarNode>,
    chunks: Vec<StarChunk>,
    /// Indexes of unused chunks.
    free_chunks: Vec<usize>,
    top: Option<NodeId>,
    buffers: HashBuffers,
}

impl AvlStarTree {
    fn node(&self, id: NodeId) -> &StarNode {
        &self.nodes[id]
    }

    fn add(&mut self, node: StarNode) -> NodeId {
        self.nodes.add(node)
    }

    fn chunk(&mut self, chunk: StarChunk) -> NodeId {
        let elements = chunk.leaves().len();
        let (first, height) = (chunk.first(), chunk.height());
        let at = self.free_chunks.pop().unwrap_or_else(|| {
            self.chunks.push(StarChunk::new());
            self.chunks.len() - 1
        });
        self.chunks[at] = chunk;
        let (part, hash) = (StarPart::Chunk(at), B256::ZERO);
        self.add(StarNode { part, first, height, elements, is_stale: true, hash })
    }

    fn inner(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let (l, r) = (*self.node(left), *self.node(right));
        self.add(StarNode {
            part: StarPart::Inner { left, right, separator: r.first },
            first: l.first,
            height: 1 + l.height.max(r.height),
            elements: l.elements + r.elements,
            is_stale: true,
            hash: B256::ZERO,
        })
    }

    /// Takes a chunk out of the tree.
    fn take(&mut self, at: usize) -> StarChunk {
        self.free_chunks.push(at);
        std::mem::replace(&mut self.chunks[at], StarChunk::new())
    }

    /// Makes a parent of two subtrees, or one chunk if they fit.
    fn link(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let (l, r) = (*self.node(left), *self.node(right));
        match (l.part, r.part) {
            (StarPart::Chunk(one), StarPart::Chunk(other))
                if l.elements + r.elements <= self.most =>
            {
                [left, right].into_iter().for_each(|id| self.nodes.remove(id));
                let both = [one, other].map(|at| self.take(at));
                self.chunk(StarChunk::over(&both[0], &both[1]))
            }
            _ => self.inner(left, right),
        }
    }

    /// Takes a node apart: its children, where a chunk becomes two. `None` for a chunk of one
    /// element.
    fn open(&mut self, id: NodeId) -> Option<(NodeId, NodeId)> {
        let children = match self.node(id).part {
            StarPart::Inner { left, right, .. } => (left, right),
            StarPart::Chunk(at) => {
                let [left, right] = self.chunks[at].halves()?;
                self.take(at);
                (self.chunk(left), self.chunk(right))
            }
        };
        self.nodes.remove(id);
        Some(children)
    }

    /// Makes a parent of two subtrees, one of which may be too high by 2; rotates if it is.
    fn join(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let (l, r) = (self.node(left).height, self.node(right).height);
        let opened = match () {
            () if l > r + 1 => self.open(left),
            () if r > l + 1 => self.open(right),
            () => None,
        };
        match opened {
            None => self.link(left, right),
            Some((outer, inside)) if l > r => {
                if self.node(inside).height > self.node(outer).height
                    && let Some((one, other)) = self.open(inside)
                {
                    let (one, other) = (self.link(outer, one), self.link(other, right));
                    return self.link(one, other);
                }
                let near = self.link(inside, right);
                self.link(outer, near)
            }
            Some((inside, outer)) => {
                if self.node(inside).height > self.node(outer).height
                    && let Some((one, other)) = self.open(inside)
                {
                    let (one, other) = (self.link(left, one), self.link(other, outer));
                    return self.link(one, other);
                }
                let near = self.link(left, inside);
                self.link(near, outer)
            }
        }
    }

    fn put_below(&mut self, id: NodeId, key: u32, value: &[u8]) -> NodeId {
        match self.node(id).part {
            StarPart::Inner { left, right, separator } => {
                self.nodes.remove(id);
                let (left, right) = match key < separator {
                    true => (self.put_below(left, key, value), right),
                    false => (left, self.put_below(right, key, value)),
                };
                self.join(left, right)
            }
            StarPart::Chunk(at) => {
                let chunk = &mut self.chunks[at];
                put(chunk, key, value);
                let node = &mut self.nodes[id];
                (node.height, node.elements) = (chunk.height(), chunk.leaves().len());
                (node.first, node.is_stale) = (node.first.min(key), true);
                let halves = if node.elements > self.most { self.open(id) } else { None };
                halves.map_or(id, |(left, right)| self.inner(left, right))
            }
        }
    }

    /// The chunk in whose range `key` lies. Calls `passed` with the sibling of each node on the way
    /// down.
    fn find(&self, key: u32, mut passed: impl FnMut(ChildSide, NodeId)) -> Option<&StarChunk> {
        let mut id = self.top?;
        loop {
            match self.node(id).part {
                StarPart::Chunk(at) => return Some(&self.chunks[at]),
                StarPart::Inner { left, right, separator } => {
                    let (below, side, sibling) = match key < separator {
                        true => (left, ChildSide::Right, right),
                        false => (right, ChildSide::Left, left),
                    };
                    passed(side, sibling);
                    id = below;
                }
            }
        }
    }

    fn hash_below(&mut self, id: NodeId) -> B256 {
        let node = *self.node(id);
        if !node.is_stale {
            return node.hash;
        }
        let hash = match node.part {
            StarPart::Chunk(at) => self.chunks[at].hash(&mut self.buffers).unwrap_or_default(),
            StarPart::Inner { left, right, .. } => {
                hash::inner(&self.hash_below(left), &self.hash_below(right))
            }
        };
        let node = &mut self.nodes[id];
        (node.hash, node.is_stale) = (hash, false);
        hash
    }

    /// Calls `found` with each chunk in key order.
    fn for_each_chunk(&self, found: &mut dyn FnMut(&StarChunk, LeafPlace)) {
        if let Some(top) = self.top {
            self.each_below(top, 0, 0, found);
        }
    }

    fn each_below(
        &self,
        id: NodeId,
        depth: usize,
        key_height: u8,
        found: &mut dyn FnMut(&StarChunk, LeafPlace),
    ) {
        let StarNode { part, height, hash, .. } = *self.node(id);
        match part {
            StarPart::Chunk(at) => {
                let place = LeafPlace { leaf: at as NodeId, hash, depth, key_height };
                found(&self.chunks[at], place);
            }
            StarPart::Inner { left, right, .. } => {
                self.each_below(left, depth + 1, key_height, found);
                self.each_below(right, depth + 1, height, found);
            }
        }
    }

    /// Serialises the tree in messages of one chunk each: the arrays of the chunk, and the
    /// key-heights of its elements.
    pub(crate) fn serialize(&self) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        let (mut keys, mut spans, mut heights) = (Vec::new(), Vec::new(), Vec::new());
        self.for_each_chunk(&mut |chunk, place| {
            keys.clear();
            spans.clear();
            heights.clear();
            chunk.for_each_leaf(&mut |element, LeafPlace { key_height, .. }| {
                keys.push(element.key);
                spans.push(element.value);
                heights.push(if heights.is_empty() { place.key_height } else { key_height });
            });
            let mut message = Vec::new();
            entries::write(&keys, &spans, chunk.shared(), &mut message);
            message.extend_from_slice(&heights);
            messages.push(message);
        });
        messages
    }

    /// Rebuilds the tree from messages in order, without hashes; `None` if they are not a tree.
    pub(crate) fn deserialize(most: usize, messages: &[Vec<u8>]) -> Option<Self> {
        let mut tree = Self::new(most);
        let mut stack = SubtreeStack::default();
        for message in messages {
            let (chunk, key_height) = read(message)?;
            if !stack.takes(key_height) || chunk.leaves().len() > most {
                return None;
            }
            let node = tree.chunk(chunk);
            stack.push(node, key_height, |left, right, height| tree.close(left, right, height))?;
        }
        tree.top = stack.finish(|left, right, height| tree.close(left, right, height))?;
        Some(tree)
    }

    /// The parent of two subtrees; `None` if they cannot have one of this height.
    fn close(&mut self, left: NodeId, right: NodeId, height: u8) -> Option<NodeId> {
        let is_balanced = self.node(left).height.abs_diff(self.node(right).height) <= 1;
        let node = self.inner(left, right);
        (is_balanced && self.node(node).height == height).then_some(node)
    }
}

/// The chunk of a message, and its key-height.
fn read(message: &[u8]) -> Option<(StarChunk, u8)> {
    let count = u32::from_le_bytes(*message.first_chunk()?) as usize;
    let (arrays, heights) = message.split_at_checked(message.len().checked_sub(count)?)?;
    let EntryArrays { keys, spans, values } = EntryArrays::read(arrays)?;
    let elements = keys.into_iter().zip(spans).map(|(key, value)| StarElement { key, value });
    // The key-height of the first element is that of the chunk.
    let inside = [0].into_iter().chain(heights.iter().skip(1).copied());
    Some((StarChunk::rebuild(values, elements.zip(inside))?, *heights.first()?))
}

impl AuthenticatedTree for AvlStarTree {
    const NAME: &'static str = "avlstar";

    fn new(most: usize) -> Self {
        Self {
            most,
            nodes: NodeArena::new(),
            chunks: Vec::new(),
            free_chunks: Vec::new(),
            top: None,
            buffers: HashBuffers::default(),
        }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        self.top = Some(match self.top {
            Some(top) => self.put_below(top, key, value),
            None => {
                let mut chunk = StarChunk::new();
                put(&mut chunk, key, value);
                self.chunk(chunk)
            }
        });
    }

    fn get(&self, key: u32) -> Option<&[u8]> {
        let chunk = self.find(key, |_, _| ())?;
        let StarElement { key: found, value } = chunk.leaves()[chunk.find(key)? as usize];
        (found == key).then(|| value.of(chunk.shared()))
    }

    fn root(&mut self) -> B256 {
        self.top.map_or_else(|| hash::cell([].iter()), |top| self.hash_below(top))
    }

    fn prove(&self, key: u32) -> Option<MembershipProof> {
        self.get(key)?;
        let mut above = Vec::new();
        let chunk = self.find(key, |side, sibling| above.push((side, self.node(sibling).hash)))?;
        let steps = chunk.proof_path(key).into_iter().chain(above.into_iter().rev());
        Some(MembershipProof {
            steps: steps.map(|(side, hash)| ProofStep::Inner(side, hash)).collect(),
        })
    }

    fn each_proof(&self, found: &mut dyn FnMut(usize)) {
        self.for_each_chunk(&mut |chunk, above| {
            chunk.for_each_leaf(&mut |_, inside| found(above.depth + inside.depth));
        });
    }

    fn chunks(&self) -> Option<usize> {
        Some(self.chunks.len() - self.free_chunks.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{AvlPlusTree, elements::ElementGenerator},
        *,
    };

    /// Checks that a subtree is a chunk if and only if it fits into one.
    fn check(tree: &AvlStarTree, id: NodeId) {
        let node = tree.node(id);
        match node.part {
            StarPart::Chunk(at) => {
                assert_eq!(node.elements, tree.chunks[at].leaves().len());
                assert!(node.elements <= tree.most);
            }
            StarPart::Inner { left, right, .. } => {
                assert!(node.elements > tree.most);
                check(tree, left);
                check(tree, right);
            }
        }
    }

    #[test]
    fn it_is_the_avl_plus_tree_cut_into_the_largest_chunks() {
        for most in [4, 16, 100] {
            let elements = ElementGenerator::new(most as u64, 20);
            let (mut star, mut plus) = (AvlStarTree::new(most), AvlPlusTree::new(most));
            for n in 0..1500 {
                star.insert(elements.key(n), elements.value(n));
                plus.insert(elements.key(n), elements.value(n));
                assert_eq!(star.root(), plus.root(), "{most}: {n}");
            }
            check(&star, star.top.unwrap());
            let root = plus.root();
            let messages = star.serialize();
            assert_eq!(messages.len(), star.chunks().unwrap());
            let mut again = AvlStarTree::deserialize(most, &messages).unwrap();
            assert_eq!(again.root(), root);
            let is_same =
                |tree: Option<AvlStarTree>| tree.is_some_and(|mut tree| tree.root() == root);
            assert!(!is_same(AvlStarTree::deserialize(most, &messages[1..])));
            let mut lie = messages;
            let last = lie[2].len() - 1;
            for at in [0, 5, 9, 40, last] {
                lie[2][at] ^= 1;
                assert!(!is_same(AvlStarTree::deserialize(most, &lie)), "{at}");
                lie[2][at] ^= 1;
            }
        }
    }
}
