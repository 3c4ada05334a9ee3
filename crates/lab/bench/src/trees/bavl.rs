//! The B+AVL tree in memory, with the hashes and shape of `storage-bavl`.

use super::{
    AuthenticatedTree,
    avl::{AvlLeaf, AvlTree, ChildSide, LeafEdit, LeafInsert, LeafPlace, NodeId},
    entries::EntryArrays,
    hash::{self, HashBatch},
    proof::{MembershipProof, ProofStep},
};
use alloy_primitives::B256;
use std::ops::Range;

/// A chunk: entries, and the hash tree over them in the shape of RFC 6962, 2.1.
#[derive(Debug)]
pub(super) struct BavlChunk {
    pub(super) entries: EntryArrays,
    /// The levels of the hash tree above the hashes of the entries.
    levels: Vec<Vec<B256>>,
    /// Range of positions with changed hashes.
    stale: Range<usize>,
}

impl BavlChunk {
    pub(super) const fn new(entries: EntryArrays) -> Self {
        let stale = 0..entries.len();
        Self { entries, levels: Vec::new(), stale }
    }

    fn insert(&mut self, key: u32, value: &[u8]) -> bool {
        let (at, is_new) = self.entries.insert(key, value);
        // Entries after a new entry have shifted.
        let end = if is_new { self.entries.len() } else { at + 1 };
        self.stale = match self.stale.is_empty() {
            true => at..end,
            false => self.stale.start.min(at)..self.stale.end.max(end),
        };
        is_new
    }

    /// The nodes of one level; level 0 is the hashes of the entries.
    fn level(&self, level: usize) -> &[B256] {
        match level.checked_sub(1) {
            None => self.entries.hashes(),
            Some(above) => self.levels.get(above).map_or(&[], Vec::as_slice),
        }
    }

    fn top(&self) -> B256 {
        self.level(self.levels.len()).first().copied().unwrap_or_default()
    }

    /// The siblings on the path of an entry, with their sides.
    fn sibling_path(&self, position: usize) -> impl Iterator<Item = (ChildSide, B256)> {
        (0..self.levels.len()).filter_map(move |level| {
            let at = position >> level;
            let side = if at % 2 == 1 { ChildSide::Left } else { ChildSide::Right };
            self.level(level).get(at ^ 1).map(|sibling| (side, *sibling))
        })
    }

    /// The number of siblings on the path of each entry: the number of levels, without those where
    /// its node is the last one and has no sibling.
    fn path_lengths(&self) -> impl Iterator<Item = usize> {
        (0..self.entries.len()).map(|position| {
            let levels = 0..self.levels.len();
            levels.filter(|level| (position >> level) ^ 1 < self.level(*level).len()).count()
        })
    }
}

impl AvlLeaf for BavlChunk {
    fn first(&self) -> u32 {
        self.entries.first()
    }

    fn hash_all(leaves: &mut [Self], which: &[NodeId], hashes: &mut Vec<B256>) {
        let (mut batch, mut digests) = (HashBatch::default(), Vec::new());
        // Values are long. Chunk by chunk, they stay in the nearest cache.
        for id in which {
            let entries = &mut leaves[*id as usize].entries;
            entries.hash_new(&mut batch);
            batch.finish_into(&mut digests);
            entries.take_new(&mut digests.drain(..));
        }
        // The pairs of one level, of all chunks together.
        for level in 0.. {
            for id in which {
                let chunk = &leaves[*id as usize];
                let below = chunk.level(level);
                for pair in below[pairs(&chunk.stale, level, below.len())].chunks_exact(2) {
                    batch.pair(&pair[0], &pair[1]);
                }
            }
            if batch.is_empty()
                && which.iter().all(|id| leaves[*id as usize].level(level).len() < 2)
            {
                break;
            }
            batch.finish_into(&mut digests);
            let mut digests = digests.iter().copied();
            for id in which {
                let chunk = &mut leaves[*id as usize];
                let (len, last) = {
                    let below = chunk.level(level);
                    (below.len(), below.last().copied())
                };
                if len < 2 {
                    chunk.levels.truncate(level);
                    continue;
                }
                if chunk.levels.len() == level {
                    chunk.levels.push(Vec::new());
                }
                let changed = pairs(&chunk.stale, level, len);
                let above = &mut chunk.levels[level];
                above.resize(len.div_ceil(2), B256::ZERO);
                let places = above[changed.start / 2..changed.end / 2].iter_mut();
                for (place, digest) in places.zip(digests.by_ref()) {
                    *place = digest;
                }
                // A last node without a sibling is its own parent.
                if let (1, Some(single), Some(place)) = (len % 2, last, above.last_mut()) {
                    *place = single;
                }
            }
        }
        for id in which {
            let chunk = &mut leaves[*id as usize];
            chunk.stale = 0..0;
            batch.chunk(chunk.entries.len() as u32, &chunk.top());
        }
        batch.finish_into(hashes);
    }
}

/// The range of nodes, of the `len` at `level`, whose parents have to be hashed again.
fn pairs(stale: &Range<usize>, level: usize, len: usize) -> Range<usize> {
    let Some(last) = stale.end.checked_sub(1) else { return 0..0 };
    let first = (stale.start >> level) / 2 * 2;
    let end = ((last >> level) / 2 * 2 + 2).min(len / 2 * 2);
    first.min(end)..end
}

/// The tree. Chunks hold at most `most` entries.
#[derive(Debug)]
pub(crate) struct BavlTree {
    most: usize,
    pub(super) tree: AvlTree<BavlChunk>,
    /// Indexes of unused leaves.
    free: Vec<NodeId>,
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
        let runs: Vec<_> =
            together.iter().map(|id| &self.tree.leaves()[*id as usize].entries).collect();
        let lengths = self.cut(runs.iter().map(|run| run.len()).sum());
        let firsts: Vec<u32> = runs.iter().map(|run| run.first()).collect();
        // The range of the second chunk begins with its first key, which the new entry has not
        // changed.
        let border = firsts.get(1).copied();
        let new = EntryArrays::cut(&runs, &lengths, self.most);
        self.free.extend(&together);
        let mut edits: Vec<LeafEdit> =
            firsts.iter().map(|first| LeafEdit { key: *first, new: Vec::new() }).collect();
        for entries in new {
            let is_behind = border.is_some_and(|border| entries.first() >= border);
            let at = self.free.pop();
            let node = self.tree.leaf(BavlChunk::new(entries), at);
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
        Some(Self { most, tree: AvlTree::rebuild(chunks)?, free: Vec::new() })
    }

    /// Rebuilds the tree from messages, without hashes.
    pub(crate) fn deserialize(most: usize, messages: &[Vec<u8>]) -> Option<Self> {
        let chunks: Option<Vec<_>> = messages.iter().map(|message| read(message)).collect();
        Some(Self { most, tree: AvlTree::rebuild(chunks?.into_iter())?, free: Vec::new() })
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
        let mut hashes = Vec::new();
        BavlChunk::hash_all(&mut chunks, &[0], &mut hashes);
        let [chunk] = chunks;
        (hashes == [hash]).then_some(Self { chunk })
    }
}

/// A leaf of which only the hash is known.
#[derive(Debug)]
struct HashOnlyLeaf(B256);

impl AvlLeaf for HashOnlyLeaf {
    fn first(&self) -> u32 {
        0
    }

    fn hash_all(leaves: &mut [Self], which: &[NodeId], hashes: &mut Vec<B256>) {
        hashes.extend(which.iter().map(|id| leaves[*id as usize].0));
    }
}

/// The root of the tree with these hashes and key-heights of chunks; `None` if there is no such
/// tree.
pub(crate) fn root_of(most: usize, skeleton: &[(B256, u8)]) -> Option<B256> {
    let leaves = skeleton.iter().map(|(hash, key_height)| (HashOnlyLeaf(*hash), *key_height));
    let top = AvlTree::rebuild(leaves)?.hash()?;
    Some(hash::root(most as u32, &top))
}

impl AuthenticatedTree for BavlTree {
    const NAME: &'static str = "bavl";

    fn new(most: usize) -> Self {
        Self { most, tree: AvlTree::new(), free: Vec::new() }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        let Some(leaf) = self.tree.find_mut(key) else {
            let mut chunk = BavlChunk::new(EntryArrays::default());
            chunk.insert(key, value);
            return self.tree.put(key, |_| LeafInsert::Beside(chunk));
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
        let top = self.tree.hash().unwrap_or_else(|| hash::cell([].iter()));
        hash::root(self.most as u32, &top)
    }

    fn prove(&self, key: u32) -> Option<MembershipProof> {
        let chunk = &self.tree.leaves()[self.tree.find(key)? as usize];
        let position = chunk.entries.position(key).ok()?;
        let mut steps: Vec<_> =
            chunk.sibling_path(position).map(|(side, hash)| ProofStep::Pair(side, hash)).collect();
        steps.push(ProofStep::Chunk(chunk.entries.len() as u32));
        steps.extend(
            self.tree.proof_path(key).into_iter().map(|(side, hash)| ProofStep::Inner(side, hash)),
        );
        steps.push(ProofStep::Root(self.most as u32));
        Some(MembershipProof { steps })
    }

    fn each_proof(&self, found: &mut dyn FnMut(usize)) {
        self.tree.for_each_leaf(&mut |chunk, place| {
            chunk.path_lengths().for_each(|length| found(place.depth + length));
        });
    }

    fn chunks(&self) -> Option<usize> {
        Some(self.tree.leaves().len() - self.free.len())
    }
}
