//! [`Chunks`]: the tree handed out chunk by chunk. `docs/state-sync.md` has the bytes one by one.

use crate::{
    Bavl, ChunkEntries, State,
    hash::{self, Batch},
    load::{self, Cut},
    prove,
    read::{CHUNK, HIDDEN, INNER, MAX_HEIGHT, malformed},
    tree::{Kind, Node, Tree},
};
use alloy_primitives::B256;
use retrie_state::{
    BulkSink, ChunkAnswer, ChunkId, ChunkServer, Chunks, NodeRead, Opened, ProofError, StateError,
    StateKey, Value,
    wire::{WireReader, put_varint},
};
use std::{path::Path, sync::Arc};

/// Inner nodes on a way through one answer: it has some 1,000 hashes at most.
const LEVELS: usize = 10;

/// A step from an inner node to a child, and the end of a way, which sorts before all that goes on.
const END: u8 = 0;
const LEFT: u8 = 1;
const RIGHT: u8 = 2;

/// A node by its way from the top, one byte a step.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) way: Vec<u8>,
    /// Of the top it is the root of the state, which binds how many entries chunks hold.
    hash: B256,
}

impl Place {
    fn id(&self) -> Option<ChunkId> {
        ChunkId::new([&self.way[..], &[END], &self.hash[..]].concat())
    }

    /// Reads an id; `None` if it is none of this backend's.
    pub(crate) fn of(id: &ChunkId) -> Option<Self> {
        let (way, hash) = id.bytes().split_last_chunk::<32>()?;
        let (&END, way) = way.split_last()? else { return None };
        let is_way =
            way.len() <= usize::from(MAX_HEIGHT) && way.iter().all(|s| [LEFT, RIGHT].contains(s));
        is_way.then(|| Self { way: way.to_vec(), hash: hash.into() })
    }
}

impl Chunks<State> for Bavl {
    fn format(&self) -> &'static str {
        "bavl"
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        state: Arc<State>,
        _: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        let most = self.chunk_entries();
        let tree = state.tree(&*view, most)?.clone();
        Ok(Box::new(Server { most, view, tree }))
    }

    fn whole(&self, root: B256) -> Option<ChunkId> {
        let most = self.chunk_entries().get();
        let is_empty = root == hash::root(most, &hash::no_entries());
        Place { way: Vec::new(), hash: root }.id().filter(|_| !is_empty)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<Opened, ProofError> {
        let place = Place::of(id).ok_or_else(|| malformed("id of a chunk"))?;
        let (is_top, wanted) = (place.way.is_empty(), place.hash);
        let most = self.chunk_entries();
        let mut reader = WireReader::new(answer);
        let mut walk = Walk { most, way: place.way, below: Vec::new() };
        let (hash, opened) = match reader.u8()? {
            CHUNK => {
                let (hash, entries) = walk.chunk(&mut reader)?;
                (hash, Opened::Entries { entries, further: Vec::new() })
            }
            INNER => {
                let hash = walk.inner(&mut reader, 0)?;
                // Inner nodes hash otherwise than chunks: nobody can split what is none.
                (hash, Opened::Split { below: walk.below, least: 0 })
            }
            _ => return Err(malformed("tag of a node")),
        };
        reader.finish()?;
        let hash = if is_top { hash::root(most.get(), &hash) } else { hash };
        if hash == wanted { Ok(opened) } else { Err(ProofError::RootMismatch) }
    }

    fn loads_by_parts(&self) -> bool {
        true
    }

    fn load(
        &self,
        _: u64,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let part = |(id, count): &(ChunkId, u64)| {
            Some((Place::of(id)?.way, usize::try_from(*count).ok()?))
        };
        let parts: Option<Vec<_>> = parts.iter().map(part).collect();
        let parts =
            parts.ok_or_else(|| StateError::corrupt("chunks", "an id is none of bavl's"))?;
        load::load(self.chunk_entries(), Cut::As(&parts), entries, sink)
    }
}

/// The tree that has these chunks at the ends of these ways, which are sorted.
///
/// # Errors
/// [`StateError::Corrupt`] if no AVL tree has.
pub(crate) fn tree_of(
    parts: &[(Vec<u8>, usize)],
    chunks: &[Arc<Node>],
) -> Result<Tree, StateError> {
    let all: Vec<_> = parts.iter().map(|(way, _)| &way[..]).zip(chunks).collect();
    if all.is_empty() { Ok(Tree(None)) } else { Ok(Tree(Some(subtree(&all, 0)?))) }
}

fn subtree(chunks: &[(&[u8], &Arc<Node>)], depth: usize) -> Result<Arc<Node>, StateError> {
    let no_tree = || StateError::corrupt("chunks", "their places are not those of one AVL tree");
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
    Ok(Node::inner(left, right))
}

struct Walk {
    most: ChunkEntries,
    /// From the top to the node that is read.
    way: Vec<u8>,
    below: Vec<ChunkId>,
}

impl Walk {
    /// The children of an inner node, `level` inner nodes below the one that was asked for.
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
        if self.way.len() >= usize::from(MAX_HEIGHT) {
            return Err(malformed("it is too high"));
        }
        self.way.push(step);
        let hash = match reader.u8()? {
            HIDDEN => {
                let place = Place { way: self.way.clone(), hash: reader.hash()? };
                self.below.extend(place.id());
                place.hash
            }
            INNER if level + 1 < LEVELS => self.inner(reader, level + 1)?,
            _ => return Err(malformed("tag of a node")),
        };
        self.way.pop();
        Ok(hash)
    }

    fn chunk(
        &self,
        reader: &mut WireReader<'_>,
    ) -> Result<(B256, Vec<(StateKey, Value)>), ProofError> {
        // A key, and the length of a value.
        let count = reader.count(22)?;
        if count == 0 || count > self.most.most() {
            return Err(malformed("number of entries in a chunk"));
        }
        let mut batch = Batch::default();
        let mut entries: Vec<(StateKey, Value)> = Vec::with_capacity(count);
        for _ in 0..count {
            let key = StateKey::read(reader).ok_or_else(|| malformed("key"))?;
            let len = reader.count(1)?;
            let value = reader.take(len)?;
            if entries.last().is_some_and(|(last, _)| *last >= key) {
                return Err(malformed("keys are out of order"));
            }
            batch.entry(&key.encode(), value);
            entries.push((key, Value::copy_from_slice(value)));
        }
        let mut top = [batch.finish()];
        batch.fold(&mut top);
        let [top] = top;
        let top = top.first().copied().unwrap_or_default();
        Ok((hash::chunk(count as u32, &top), entries))
    }
}

/// Serves the tree of one state.
struct Server {
    most: ChunkEntries,
    view: Arc<dyn NodeRead>,
    tree: Tree,
}

impl ChunkServer for Server {
    fn chunk(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError> {
        let Some((place, top)) = Place::of(id).zip(self.tree.0.as_ref()) else {
            return Ok(ChunkAnswer::NoNode);
        };
        let (mut node, mut next) = (top, None);
        for step in &place.way {
            let Kind::Inner(_, left, right) = &node.kind else { return Ok(ChunkAnswer::NoNode) };
            if *step == LEFT {
                next = Some(right.first);
                node = left;
            } else {
                node = right;
            }
        }
        let hash = match place.way.is_empty() {
            true => hash::root(self.most.get(), &top.hash()),
            false => node.hash(),
        };
        if hash != place.hash {
            return Ok(ChunkAnswer::NoNode);
        }
        let mut out = Vec::new();
        if let Kind::Inner(_, left, right) = &node.kind {
            out.push(INNER);
            skeleton(left, 1, &mut out);
            skeleton(right, 1, &mut out);
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

/// Appends a node that has `level` inner nodes above it in this answer.
fn skeleton(node: &Node, level: usize, out: &mut Vec<u8>) {
    match &node.kind {
        Kind::Inner(_, left, right) if level < LEVELS => {
            out.push(INNER);
            skeleton(left, level + 1, out);
            skeleton(right, level + 1, out);
        }
        _ => {
            out.push(HIDDEN);
            out.extend_from_slice(&node.hash()[..]);
        }
    }
}
