//! The B+AVL tree in memory, with the hashes and shape of `storage-bavl`.

use super::{
    AuthenticatedTree,
    arena::NodeId,
    avl::{AvlLeaf, AvlTree, ChildSide, HashBuffers, LeafEdit, LeafInsert, LeafPlace},
    chunk_hashes::ChunkHashes,
    entries::EntryArrays,
    hash::{self, HashBatch},
    proof::{MembershipProof, ProofStep},
};
use alloy_primitives::B256;

/// A chunk: entries, and the hash tree over them.
#[derive(Debug)]
pub(super) struct BavlChunk {
    entries: EntryArrays,
    hashes: ChunkHashes,
}

impl BavlChunk {
    fn new(entries: EntryArrays) -> Self {
        let hashes = ChunkHashes::new(entries.len());
        Self { entries, hashes }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        let (at, is_new) = self.entries.insert(key, value);
        self.hashes.insert(at, is_new);
    }

    /// The siblings on the path of an entry.
    fn sibling_path(&self, position: usize) -> impl Iterator<Item = ProofStep> {
        self.hashes.siblings(position).map(|(is_left, hash)| {
            ProofStep::Pair(if is_left { ChildSide::Left } else { ChildSide::Right }, hash)
        })
    }
}

/// Nodes to hash, by level: chunk and index.
#[derive(Debug, Default)]
pub(super) struct UnknownNodes {
    levels: Vec<Vec<(NodeId, usize)>>,
}

impl AvlLeaf for BavlChunk {
    type SharedData = UnknownNodes;

    fn first(&self) -> u32 {
        self.entries.first()
    }

    fn hash_all(
        leaves: &mut [Self],
        unknown: &mut UnknownNodes,
        which: &[NodeId],
        batch: &mut HashBatch,
        hashes: &mut Vec<B256>,
    ) {
        let levels = &mut unknown.levels;
        // Values are long. Chunk by chunk, they stay in the nearest cache.
        for id in which {
            let Self { entries, hashes } = &mut leaves[*id as usize];
            hashes.for_each_unknown(&mut |level, at| {
                if levels.len() <= level {
                    levels.resize_with(level + 1, Vec::new);
                }
                levels[level].push((*id, at));
            });
            let Some(new) = levels.first_mut() else { continue };
            for (_, at) in &*new {
                batch.entry(entries.keys[*at], entries.value(*at));
            }
            for ((_, at), digest) in new.drain(..).zip(batch.finish()) {
                hashes.set(0, at, *digest);
            }
        }
        // The pairs of one level, of all chunks together.
        for (level, nodes) in levels.iter_mut().enumerate().skip(1) {
            nodes.retain(|(id, at)| {
                let hashes = &mut leaves[*id as usize].hashes;
                match hashes.children(level, *at) {
                    (left, Some(right)) => {
                        batch.pair(left, right);
                        true
                    }
                    // A left child without a sibling is its own parent.
                    (left, None) => {
                        let left = *left;
                        hashes.set(level, *at, left);
                        false
                    }
                }
            });
            for ((id, at), digest) in nodes.drain(..).zip(batch.finish()) {
                leaves[id as usize].hashes.set(level, at, *digest);
            }
        }
        for id in which {
            let hashes = &mut leaves[*id as usize].hashes;
            batch.chunk(hashes.len() as u32, &hashes.finish());
        }
        hashes.extend_from_slice(batch.finish());
    }
}

/// The tree. Chunks hold at most `most` entries.
#[derive(Debug)]
pub(crate) struct BavlTree {
    most: usize,
    tree: AvlTree<BavlChunk>,
    /// Indexes of unused leaves.
    free: Vec<NodeId>,
    buffers: HashBuffers,
}

impl BavlTree {
    /// Lengths of the chunks into which `run` entries are cut: the rule of `storage-bavl`.
    fn cut(&self, mut run: usize) -> Vec<usize> {
        let (most, usual) = (self.most, self.most - self.most / 4);
        let mut lengths = Vec::new();
        while run > 0 {
            let first = if run <= most {
                run
            } else if run <= most + usual {
                run.div_ceil(2)
            } else if run <= 3 * usual {
                run.div_ceil(3)
            } else {
                usual
            };
            lengths.push(first);
            run -= first;
        }
        lengths
    }

    /// Merges a chunk that has become too large with its left neighbour (the first chunk with its
    /// right neighbour), and cuts the entries again.
    fn regroup(&mut self, leaf: NodeId, key: u32) {
        let (left, right) = self.tree.neighbours(key);
        let together = match (left, right) {
            (Some(left), _) => vec![left, leaf],
            (None, Some(right)) => vec![leaf, right],
            (None, None) => vec![leaf],
        };
        let chunks: Vec<_> = together.iter().map(|id| &self.tree.leaves()[*id as usize]).collect();
        let entries: Vec<_> = chunks.iter().map(|chunk| &chunk.entries).collect();
        let hashes: Vec<_> = chunks.iter().map(|chunk| &chunk.hashes).collect();
        let lengths = self.cut(entries.iter().map(|entries| entries.len()).sum());
        let firsts: Vec<u32> = entries.iter().map(|entries| entries.first()).collect();
        // The range of the second chunk begins with its first key, which the new entry has not
        // changed.
        let border = firsts.get(1).copied();
        let entries = EntryArrays::cut(&entries, &lengths, self.most);
        let hashes = ChunkHashes::cut(&hashes, &lengths, self.most);
        let new = entries.into_iter().zip(hashes);
        self.free.extend(&together);
        let mut edits: Vec<LeafEdit> =
            firsts.iter().map(|first| LeafEdit { key: *first, new: Vec::new() }).collect();
        for (entries, hashes) in new {
            let is_behind = border.is_some_and(|border| entries.first() >= border);
            let at = self.free.pop();
            let node = self.tree.leaf(BavlChunk { entries, hashes }, at);
            edits[usize::from(is_behind)].new.push(node);
        }
        self.tree.edit(&edits);
    }

    /// Serialises the tree in messages of one chunk each: the arrays of the chunk, and its
    /// key-height.
    pub(crate) fn serialize(&self) -> Vec<Vec<u8>> {
        self.chunk_places().iter().map(|place| self.message(place)).collect()
    }

    /// All chunks, in key order.
    pub(crate) fn chunk_places(&self) -> Vec<ChunkPlace> {
        let mut all = Vec::new();
        self.tree.for_each_leaf(&mut |_, LeafPlace { leaf, key_height, .. }| {
            all.push(ChunkPlace { leaf, key_height });
        });
        all
    }

    /// Serialises one chunk.
    pub(crate) fn message(&self, place: &ChunkPlace) -> Vec<u8> {
        let mut out = Vec::new();
        self.tree.leaves()[place.leaf as usize].entries.write(&mut out);
        out.push(place.key_height);
        out
    }

    /// The hashes of the chunks in order, with their key-heights.
    pub(crate) fn skeleton(&self) -> Vec<(B256, u8)> {
        let mut all = Vec::new();
        self.tree.for_each_leaf(&mut |_, place| all.push((place.hash, place.key_height)));
        all
    }

    /// Rebuilds the tree from checked chunks in order, with their key-heights; `None` if there is
    /// no such tree.
    pub(crate) fn rebuild(most: usize, chunks: Vec<(CheckedChunk, u8)>) -> Option<Self> {
        let chunks = chunks.into_iter().map(|(chunk, key_height)| (chunk.chunk, key_height));
        Some(Self::over(most, AvlTree::rebuild(UnknownNodes::default(), chunks)?))
    }

    fn over(most: usize, tree: AvlTree<BavlChunk>) -> Self {
        Self { most, tree, free: Vec::new(), buffers: HashBuffers::default() }
    }

    /// Rebuilds the tree from messages, without hashes.
    pub(crate) fn deserialize(most: usize, messages: &[Vec<u8>]) -> Option<Self> {
        let chunks: Option<Vec<_>> = messages.iter().map(|message| read(message)).collect();
        Some(Self::over(most, AvlTree::rebuild(UnknownNodes::default(), chunks?.into_iter())?))
    }
}

/// The position of a chunk. An insertion invalidates it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace {
    leaf: NodeId,
    key_height: u8,
}

fn read(message: &[u8]) -> Option<(BavlChunk, u8)> {
    let (key_height, entries) = message.split_last()?;
    Some((BavlChunk::new(EntryArrays::read(entries)?), *key_height))
}

/// A chunk that was decoded, and whose hash was checked.
#[derive(Debug)]
pub(crate) struct CheckedChunk {
    chunk: BavlChunk,
}

impl CheckedChunk {
    /// Decodes a message of [`BavlTree::serialize`]; `None` if the chunk has another hash.
    pub(crate) fn read(message: &[u8], hash: B256) -> Option<Self> {
        let mut chunks = [read(message)?.0];
        let (mut unknown, mut batch) = (UnknownNodes::default(), HashBatch::default());
        let mut hashes = Vec::new();
        BavlChunk::hash_all(&mut chunks, &mut unknown, &[0], &mut batch, &mut hashes);
        let [chunk] = chunks;
        (hashes == [hash]).then_some(Self { chunk })
    }
}

/// A leaf of which only the hash is known.
#[derive(Debug)]
struct HashOnlyLeaf(B256);

impl AvlLeaf for HashOnlyLeaf {
    type SharedData = ();

    fn first(&self) -> u32 {
        0
    }

    fn hash_all(
        leaves: &mut [Self],
        (): &mut (),
        which: &[NodeId],
        _: &mut HashBatch,
        hashes: &mut Vec<B256>,
    ) {
        hashes.extend(which.iter().map(|id| leaves[*id as usize].0));
    }
}

/// The root of the tree with these hashes and key-heights of chunks; `None` if there is no such
/// tree.
pub(crate) fn root_of(most: usize, skeleton: &[(B256, u8)]) -> Option<B256> {
    let leaves = skeleton.iter().map(|(hash, key_height)| (HashOnlyLeaf(*hash), *key_height));
    let top = AvlTree::rebuild((), leaves)?.hash(&mut HashBuffers::default())?;
    Some(hash::root(most as u32, &top))
}

impl AuthenticatedTree for BavlTree {
    const NAME: &'static str = "bavl";

    fn new(most: usize) -> Self {
        Self::over(most, AvlTree::new())
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        let Some(leaf) = self.tree.find_mut(key) else {
            let mut chunk = BavlChunk::new(EntryArrays::default());
            chunk.insert(key, value);
            return self.tree.put(key, |_, _| LeafInsert::Beside(chunk));
        };
        let chunk = self.tree.leaf_mut(leaf);
        chunk.insert(key, value);
        if chunk.entries.len() > self.most {
            self.regroup(leaf, key);
        }
    }

    fn get(&self, key: u32) -> Option<&[u8]> {
        self.tree.leaves()[self.tree.find(key)? as usize].entries.get(key)
    }

    fn root(&mut self) -> B256 {
        let top = self.tree.hash(&mut self.buffers).unwrap_or_else(|| hash::cell([].iter()));
        hash::root(self.most as u32, &top)
    }

    fn prove(&self, key: u32) -> Option<MembershipProof> {
        let chunk = &self.tree.leaves()[self.tree.find(key)? as usize];
        let position = chunk.entries.position(key).ok()?;
        let mut steps: Vec<_> = chunk.sibling_path(position).collect();
        steps.push(ProofStep::Chunk(chunk.entries.len() as u32));
        steps.extend(
            self.tree.proof_path(key).into_iter().map(|(side, hash)| ProofStep::Inner(side, hash)),
        );
        steps.push(ProofStep::Root(self.most as u32));
        Some(MembershipProof { steps })
    }

    fn each_proof(&self, found: &mut dyn FnMut(usize)) {
        self.tree.for_each_leaf(&mut |chunk, place| {
            chunk.hashes.path_lengths().for_each(|length| found(place.depth + length));
        });
    }

    fn chunks(&self) -> Option<usize> {
        Some(self.tree.leaves().len() - self.free.len())
    }
}
