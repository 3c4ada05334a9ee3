//! State sync: [`StateChunks`] serves the tree by chunks. `docs/state-sync.md` documents the bytes.

use crate::{
    Bavl, BavlState, ChunkEntries,
    hash::{self, HashBatch},
    load::{self, ChunkCut},
    proof::{CHUNK, HIDDEN, INNER, MAX_HEIGHT, malformed},
    prove,
    tree::{ChunkTree, NodeKind, TreeNode},
};
use alloy_primitives::B256;
use retrie_state::{
    AnyCache, BackendKey, BulkSink, ChunkAnswer, ChunkId, ChunkServer, NodeRead, OpenedChunk,
    ProofError, StateChunks, StateError, StateValue,
    wire::{WireReader, put_varint},
};
use std::{path::Path, sync::Arc};

/// Levels of inner nodes in one answer, which so has at most about 1,000 hashes.
const LEVELS: usize = 10;

/// The turns in a node's path, one byte each, and the end of the path, which sorts before all
/// longer paths.
const END: u8 = 0;
const LEFT: u8 = 1;
const RIGHT: u8 = 2;

/// A node, named by its path from the top.
#[derive(Clone)]
pub(crate) struct NodePath {
    pub(crate) turns: Vec<u8>,
    /// Hash of the node. For the top it is the root of the state, which also binds the chunk size.
    hash: B256,
}

impl NodePath {
    fn id(&self) -> Option<ChunkId> {
        ChunkId::new([&self.turns[..], &[END], &self.hash[..]].concat())
    }

    /// Parses an id; `None` if it is not an id of this backend.
    pub(crate) fn of(id: &ChunkId) -> Option<Self> {
        let (way, hash) = id.bytes().split_last_chunk::<32>()?;
        let (&END, way) = way.split_last()? else { return None };
        let is_way =
            way.len() <= usize::from(MAX_HEIGHT) && way.iter().all(|s| [LEFT, RIGHT].contains(s));
        is_way.then(|| Self { turns: way.to_vec(), hash: hash.into() })
    }
}

impl StateChunks for Bavl {
    fn format(&self) -> &'static str {
        "bavl"
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        _: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        let state = cache.share::<BavlState>()?;
        let most = self.chunk_entries();
        let tree = state.tree(&*view, most)?.clone();
        Ok(Box::new(BavlChunkServer { most, view, tree }))
    }

    fn root_chunk(&self, root: B256) -> Option<ChunkId> {
        let most = self.chunk_entries().get();
        let is_empty = root == hash::root(most, &hash::no_entries());
        NodePath { turns: Vec::new(), hash: root }.id().filter(|_| !is_empty)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        let place = NodePath::of(id).ok_or_else(|| malformed("id of a chunk"))?;
        let (is_top, wanted) = (place.turns.is_empty(), place.hash);
        let most = self.chunk_entries();
        let mut reader = WireReader::new(answer);
        let mut walk = AnswerReader { most, turns: place.turns, below: Vec::new() };
        let (hash, opened) = match reader.u8()? {
            CHUNK => {
                let (hash, entries) = walk.chunk(&mut reader)?;
                (hash, OpenedChunk::Entries { entries, further: Vec::new() })
            }
            INNER => {
                let hash = walk.inner(&mut reader, 0)?;
                // Inner nodes and chunks have different hash domains, so a chunk cannot be split.
                (hash, OpenedChunk::Split { below: walk.below, least: 0 })
            }
            _ => return Err(malformed("tag of a node")),
        };
        reader.finish()?;
        let hash = if is_top { hash::root(most.get(), &hash) } else { hash };
        if hash == wanted { Ok(opened) } else { Err(ProofError::RootMismatch) }
    }

    fn load_needs_parts(&self) -> bool {
        true
    }

    fn load(
        &self,
        _: u64,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let part = |(id, count): &(ChunkId, u64)| {
            Some((NodePath::of(id)?.turns, usize::try_from(*count).ok()?))
        };
        let parts: Option<Vec<_>> = parts.iter().map(part).collect();
        let parts =
            parts.ok_or_else(|| StateError::corrupt("chunks", "an id is none of bavl's"))?;
        load::load(self.chunk_entries(), ChunkCut::AtPaths(&parts), entries, sink)
    }
}

/// The tree that has these chunks at these paths, which are sorted.
///
/// # Errors
/// [`StateError::Corrupt`] if they do not form an AVL tree.
pub(crate) fn tree_of_paths(
    parts: &[(Vec<u8>, usize)],
    chunks: &[Arc<TreeNode>],
) -> Result<ChunkTree, StateError> {
    let all: Vec<_> = parts.iter().map(|(way, _)| &way[..]).zip(chunks).collect();
    if all.is_empty() { Ok(ChunkTree(None)) } else { Ok(ChunkTree(Some(subtree(&all, 0)?))) }
}

fn subtree(chunks: &[(&[u8], &Arc<TreeNode>)], depth: usize) -> Result<Arc<TreeNode>, StateError> {
    let no_tree = || StateError::corrupt("chunks", "their paths do not form an AVL tree");
    if let [(way, chunk)] = chunks
        && way.len() == depth
    {
        return Ok((*chunk).clone());
    }
    if chunks.iter().any(|(way, _)| way.len() <= depth) {
        return Err(no_tree());
    }
    let (left, right) = chunks.split_at(chunks.partition_point(|(way, _)| way[depth] == LEFT));
    if left.is_empty() || right.is_empty() {
        return Err(no_tree());
    }
    let (left, right) = (subtree(left, depth + 1)?, subtree(right, depth + 1)?);
    if left.height().abs_diff(right.height()) > 1 {
        return Err(no_tree());
    }
    Ok(TreeNode::inner(left, right))
}

struct AnswerReader {
    most: ChunkEntries,
    /// Path of the node that is read.
    turns: Vec<u8>,
    below: Vec<ChunkId>,
}

impl AnswerReader {
    /// Reads the children of an inner node, `level` inner nodes below the requested node.
    fn inner(&mut self, reader: &mut WireReader<'_>, level: usize) -> Result<B256, ProofError> {
        let left = self.child(LEFT, reader, level)?;
        let right = self.child(RIGHT, reader, level)?;
        Ok(hash::inner(&left, &right))
    }

    fn child(
        &mut self,
        step: u8,
        reader: &mut WireReader<'_>,
        level: usize,
    ) -> Result<B256, ProofError> {
        if self.turns.len() >= usize::from(MAX_HEIGHT) {
            return Err(malformed("the tree is too high"));
        }
        self.turns.push(step);
        let hash = match reader.u8()? {
            HIDDEN => {
                let place = NodePath { turns: self.turns.clone(), hash: reader.hash()? };
                self.below.extend(place.id());
                place.hash
            }
            INNER if level + 1 < LEVELS => self.inner(reader, level + 1)?,
            _ => return Err(malformed("tag of a node")),
        };
        self.turns.pop();
        Ok(hash)
    }

    fn chunk(
        &self,
        reader: &mut WireReader<'_>,
    ) -> Result<(B256, Vec<(BackendKey, StateValue)>), ProofError> {
        // Minimal size: a key, and the length of a value.
        let count = reader.count(22)?;
        if count == 0 || count > self.most.most() {
            return Err(malformed("number of entries in a chunk"));
        }
        let mut batch = HashBatch::default();
        let mut entries: Vec<(BackendKey, StateValue)> = Vec::with_capacity(count);
        for _ in 0..count {
            let key = BackendKey::read(reader).ok_or_else(|| malformed("key"))?;
            let len = reader.count(1)?;
            let value = reader.take(len)?;
            if entries.last().is_some_and(|(last, _)| *last >= key) {
                return Err(malformed("keys are out of order"));
            }
            batch.entry(&key.encode(), value);
            entries.push((key, StateValue::copy_from_slice(value)));
        }
        let mut top = [batch.finish()];
        batch.fold(&mut top);
        let [top] = top;
        let top = top.first().copied().unwrap_or_default();
        Ok((hash::chunk(count as u32, &top), entries))
    }
}

/// Serves the tree of one state.
struct BavlChunkServer {
    most: ChunkEntries,
    view: Arc<dyn NodeRead>,
    tree: ChunkTree,
}

impl ChunkServer for BavlChunkServer {
    fn chunk(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError> {
        let Some((place, top)) = NodePath::of(id).zip(self.tree.0.as_ref()) else {
            return Ok(ChunkAnswer::NoNode);
        };
        let (mut node, mut next) = (top, None);
        for step in &place.turns {
            let NodeKind::Inner(_, left, right) = &node.kind else {
                return Ok(ChunkAnswer::NoNode);
            };
            if *step == LEFT {
                next = Some(right.first);
                node = left;
            } else {
                node = right;
            }
        }
        let hash = match place.turns.is_empty() {
            true => hash::root(self.most.get(), &top.hash()),
            false => node.hash(),
        };
        if hash != place.hash {
            return Ok(ChunkAnswer::NoNode);
        }
        let mut out = Vec::new();
        if let NodeKind::Inner(_, left, right) = &node.kind {
            out.push(INNER);
            put_node(left, 1, &mut out);
            put_node(right, 1, &mut out);
        } else {
            let entries = prove::entries(&*self.view, &node.first, next.as_ref())?;
            out.push(CHUNK);
            put_varint(&mut out, entries.len() as u64);
            for (key, value) in entries {
                out.extend_from_slice(&key.encode());
                put_varint(&mut out, value.len() as u64);
                out.extend_from_slice(&value);
            }
        }
        Ok(ChunkAnswer::Chunk(out.into()))
    }
}

/// Appends a node with `level` inner nodes above it in this answer: its children, or only its hash.
fn put_node(node: &TreeNode, level: usize, out: &mut Vec<u8>) {
    match &node.kind {
        NodeKind::Inner(_, left, right) if level < LEVELS => {
            out.push(INNER);
            put_node(left, level + 1, out);
            put_node(right, level + 1, out);
        }
        _ => {
            out.push(HIDDEN);
            out.extend_from_slice(&node.hash()[..]);
        }
    }
}
