//! The bytes of a witness, which `docs/formats/witnesses.md` documents.

use super::{
    NoHandle,
    chunk::{ChunkNodes, PartialChunk, WitnessEntry},
    tree::{NodeContent, NodePtr, PartialNode},
};
use crate::{
    ChunkEntries, hash,
    proof::{CHUNK, HIDDEN, INNER, MAX_HEIGHT, malformed},
};
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, ProofError, StateValue,
    wire::{WireReader, put_varint},
};
use std::collections::BTreeMap;

/// First byte of a witness.
const VERSION: u8 = 1;
/// Tag of a chunk of which only number and top are shown.
const SHAPE: u8 = 3;

/// The bytes of the open part of a tree.
pub(super) fn encode<H>(
    most: ChunkEntries,
    top: Option<&NodePtr<H>>,
) -> Result<Vec<u8>, super::WitnessFault> {
    let mut out = vec![VERSION];
    put_varint(&mut out, most.get().into());
    match top {
        Some(top) => put_node(&mut out, top)?,
        None => out.extend([SHAPE, 0]),
    }
    Ok(out)
}

fn put_node<H>(out: &mut Vec<u8>, node: &PartialNode<H>) -> Result<(), super::WitnessFault> {
    match node.content() {
        None => {
            out.push(HIDDEN);
            out.extend_from_slice(&node.hash[..]);
        }
        Some(NodeContent::Inner(left, right)) => {
            out.push(INNER);
            put_node(out, left)?;
            put_node(out, right)?;
        }
        Some(NodeContent::Chunk(chunk)) => put_chunk(out, chunk)?,
    }
    Ok(())
}

fn put_chunk(out: &mut Vec<u8>, chunk: &PartialChunk) -> Result<(), super::WitnessFault> {
    let (shown, tail) = (chunk.shown(), chunk.tail());
    if shown.is_empty() && tail == chunk.count {
        out.push(SHAPE);
        put_varint(out, chunk.count as u64);
        out.extend_from_slice(&chunk.top[..]);
        return Ok(());
    }
    out.push(CHUNK);
    put_varint(out, chunk.count as u64);
    put_varint(out, (chunk.count - tail) as u64);
    put_varint(out, shown.len() as u64);
    let mut next = 0;
    for (position, WitnessEntry { key, value }) in &shown {
        put_varint(out, (position - next) as u64);
        out.extend_from_slice(&key.encode());
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
        next = position + 1;
    }
    let opened = OpenedPositions { count: chunk.count, tail, shown: &shown };
    opened.put_hashes(chunk, hash::levels(chunk.count), 0, out)
}

/// The positions of a chunk whose entries, or hashes of entries, are shown one by one.
struct OpenedPositions<'a> {
    count: usize,
    tail: usize,
    shown: &'a BTreeMap<usize, WitnessEntry>,
}

impl OpenedPositions<'_> {
    /// Whether a node has such positions below.
    fn reaches(&self, level: u32, index: usize) -> bool {
        let (first, end) = (index << level, (index + 1) << level);
        end.min(self.count) > self.tail || self.shown.range(first..end).next().is_some()
    }

    /// Appends the hashes at and below a node that do not follow.
    fn put_hashes(
        &self,
        chunk: &PartialChunk,
        level: u32,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), super::WitnessFault> {
        if !self.reaches(level, index) {
            out.extend_from_slice(&chunk.node(level, index)?[..]);
            return Ok(());
        }
        let Some(below) = level.checked_sub(1) else {
            if !self.shown.contains_key(&index) {
                out.extend_from_slice(&chunk.node(0, index)?[..]);
            }
            return Ok(());
        };
        self.put_hashes(chunk, below, 2 * index, out)?;
        if 2 * index + 1 < hash::nodes_at(self.count, below) {
            self.put_hashes(chunk, below, 2 * index + 1, out)?;
        }
        Ok(())
    }

    /// The hash of a node; it and all known nodes below go to `nodes`.
    fn read_node(
        &self,
        reader: &mut WireReader<'_>,
        level: u32,
        index: usize,
        nodes: &mut ChunkNodes,
    ) -> Result<B256, ProofError> {
        let node = match level.checked_sub(1) {
            _ if !self.reaches(level, index) => reader.hash()?,
            None => match self.shown.get(&index) {
                Some(entry) => entry.hash(),
                None => reader.hash()?,
            },
            Some(below) => {
                let left = self.read_node(reader, below, 2 * index, nodes)?;
                match 2 * index + 1 < hash::nodes_at(self.count, below) {
                    true => {
                        hash::pair(&left, &self.read_node(reader, below, 2 * index + 1, nodes)?)
                    }
                    false => left,
                }
            }
        };
        nodes.insert((level, index), node);
        Ok(node)
    }
}

/// The tree that a witness shows; `None` for the tree of the empty state.
pub(super) fn decode(
    bytes: &[u8],
) -> Result<(ChunkEntries, Option<NodePtr<NoHandle>>), ProofError> {
    let mut reader = WireReader::new(bytes);
    if reader.u8()? != VERSION {
        return Err(malformed("version"));
    }
    let most = u32::try_from(reader.varint()?).ok().and_then(|most| ChunkEntries::new(most).ok());
    let most = most.ok_or_else(|| malformed("entries of a chunk"))?;
    if reader.rest() == [SHAPE, 0] {
        return Ok((most, None));
    }
    let mut walk = NodeReader { reader, most };
    let top = walk.node(0)?;
    walk.reader.finish()?;
    Ok((most, Some(top)))
}

struct NodeReader<'a> {
    reader: WireReader<'a>,
    most: ChunkEntries,
}

impl NodeReader<'_> {
    fn node(&mut self, depth: u8) -> Result<NodePtr<NoHandle>, ProofError> {
        match self.reader.u8()? {
            HIDDEN => Ok(PartialNode::closed(self.reader.hash()?, None)),
            INNER if depth == MAX_HEIGHT => Err(malformed("the tree is too high")),
            INNER => {
                let left = self.node(depth + 1)?;
                Ok(PartialNode::inner(left, self.node(depth + 1)?))
            }
            CHUNK => self.chunk(),
            SHAPE => {
                let count = self.count()?;
                Ok(PartialNode::chunk(PartialChunk::new(count, self.reader.hash()?)))
            }
            _ => Err(malformed("tag of a node")),
        }
    }

    fn count(&mut self) -> Result<usize, ProofError> {
        let count = usize::try_from(self.reader.varint()?).ok();
        let count = count.filter(|count| (1..=self.most.get() as usize).contains(count));
        count.ok_or_else(|| malformed("number of entries of a chunk"))
    }

    fn chunk(&mut self) -> Result<NodePtr<NoHandle>, ProofError> {
        let count = self.count()?;
        let tail = usize::try_from(self.reader.varint()?).ok();
        let tail = tail.and_then(|tail| count.checked_sub(tail));
        let tail = tail.ok_or_else(|| malformed("entries at the end of a chunk"))?;
        // Minimal size: a gap, a key and the length of a value.
        let entries = self.reader.count(23)?;
        if entries == 0 && tail == count {
            return Err(malformed("a chunk that shows nothing"));
        }
        let (mut shown, mut next) = (BTreeMap::new(), 0u64);
        for _ in 0..entries {
            let gap = self.reader.varint()?;
            let position = gap.checked_add(next).filter(|at| *at < count as u64);
            let position = position.ok_or_else(|| malformed("position beyond the chunk"))?;
            next = position + 1;
            let key = BackendKey::read(&mut self.reader).ok_or_else(|| malformed("key"))?;
            let len = self.reader.count(1)?;
            let value = StateValue::copy_from_slice(self.reader.take(len)?);
            shown.insert(position as usize, WitnessEntry { key, value });
        }
        let mut nodes = ChunkNodes::new();
        let opened = OpenedPositions { count, tail, shown: &shown };
        let top = opened.read_node(&mut self.reader, hash::levels(count), 0, &mut nodes)?;
        Ok(PartialNode::chunk(PartialChunk::known(count, top, shown, nodes)))
    }
}
