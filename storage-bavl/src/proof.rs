//! Reads a proof from its bytes and hashes it up to the root. `docs/formats/bavl.md` documents the
//! bytes.

use crate::{
    ChunkEntries, hash,
    verify::{ChildSide, PathStep},
};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{BackendKey, ProofError, StateValue, wire::WireReader};

/// Tag of a hidden subtree: the proof has only its hash.
pub(crate) const HIDDEN: u8 = 0;
/// Tag of an inner node with both children.
pub(crate) const INNER: u8 = 1;
/// Tag of a chunk with some of its entries.
pub(crate) const CHUNK: u8 = 2;

/// Upper bound of inner nodes above a chunk. An AVL tree of this height has more than 10^13 chunks.
pub(crate) const MAX_HEIGHT: u8 = 64;

/// An entry that the proof shows.
pub(crate) struct ShownEntry {
    pub(crate) key: BackendKey,
    pub(crate) value: StateValue,
    /// Whether hidden entries may lie before it: after the previous shown entry, or at the start of
    /// the tree if it is the first one.
    pub(crate) after_hidden: bool,
}

/// A chunk of which the proof shows entries.
pub(crate) struct ShownChunk {
    pub(crate) count: u32,
    /// Number of its entries that are shown.
    pub(crate) shown: usize,
}

/// A parsed proof: the entries it shows, in key order, and the root it leads to.
pub(crate) struct ParsedProof {
    pub(crate) most: ChunkEntries,
    pub(crate) root: B256,
    pub(crate) shown: Vec<ShownEntry>,
    /// Whether hidden entries may lie behind the last shown one.
    pub(crate) ends_hidden: bool,
    pub(crate) chunks: Vec<ShownChunk>,
    /// From chunks up to the top: for each inner node with one hidden child, the side of the other
    /// child, and the hash of the hidden child.
    pub(crate) path: Vec<PathStep>,
    /// Number of hashes in the proof.
    pub(crate) hashes: usize,
}

impl ParsedProof {
    /// Parses `bytes`. Work and memory are bounded by their length.
    ///
    /// # Errors
    /// [`ProofError::Malformed`] if the bytes are not a canonical proof.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, ProofError> {
        let mut reader = WireReader::new(bytes);
        let most = u32::try_from(reader.varint()?).ok();
        let most = most.and_then(|most| ChunkEntries::new(most).ok());
        let most = most.ok_or_else(|| malformed("entries of a chunk"))?;
        let read = Self {
            most,
            root: B256::ZERO,
            shown: Vec::new(),
            ends_hidden: false,
            chunks: Vec::new(),
            path: Vec::new(),
            hashes: 0,
        };
        let mut walk = ProofReader { reader, read };
        let top = walk.node(0)?;
        let ProofReader { reader, mut read } = walk;
        reader.finish()?;
        read.root = hash::root(most.get(), &top.hash);
        Ok(read)
    }
}

struct ProofReader<'a> {
    reader: WireReader<'a>,
    read: ParsedProof,
}

struct ProofNode {
    hash: B256,
    is_hidden: bool,
}

impl ProofReader<'_> {
    fn node(&mut self, depth: u8) -> Result<ProofNode, ProofError> {
        match self.reader.u8()? {
            HIDDEN => Ok(ProofNode { hash: self.hidden()?, is_hidden: true }),
            INNER if depth == MAX_HEIGHT => Err(malformed("the tree is too high")),
            INNER => {
                let (left, right) = (self.node(depth + 1)?, self.node(depth + 1)?);
                match (left.is_hidden, right.is_hidden) {
                    (true, true) => return Err(malformed("an inner node that shows nothing")),
                    (true, false) => {
                        self.read.path.push(PathStep { side: ChildSide::Right, other: left.hash })
                    }
                    (false, true) => {
                        self.read.path.push(PathStep { side: ChildSide::Left, other: right.hash })
                    }
                    (false, false) => {}
                }
                Ok(ProofNode { hash: hash::inner(&left.hash, &right.hash), is_hidden: false })
            }
            CHUNK => Ok(ProofNode { hash: self.chunk(depth)?, is_hidden: false }),
            _ => Err(malformed("tag of a node")),
        }
    }

    /// Reads the hash of a hidden subtree, which has at least one entry.
    fn hidden(&mut self) -> Result<B256, ProofError> {
        self.read.ends_hidden = true;
        self.read.hashes += 1;
        Ok(self.reader.hash()?)
    }

    fn chunk(&mut self, depth: u8) -> Result<B256, ProofError> {
        let count = self.reader.varint()?;
        let count = u32::try_from(count).ok().filter(|count| *count <= self.read.most.get());
        let count = count.ok_or_else(|| malformed("a chunk with more entries than it can hold"))?;
        // Minimal size: a gap, a key and the length of a value.
        let shown = self.reader.count(23)?;
        self.read.chunks.push(ShownChunk { count, shown });
        match (count, shown) {
            (0, 0) if depth == 0 => return Ok(hash::no_entries()),
            (0, _) => return Err(malformed("a chunk without entries")),
            (_, 0) => return Err(malformed("a chunk that shows nothing")),
            _ => {}
        }
        // All shown entries come first, then the hashes of the hidden nodes between them.
        let mut entries = Vec::with_capacity(shown);
        let mut next = 0;
        for _ in 0..shown {
            let gap = self.reader.varint()?;
            let position = gap.checked_add(next).filter(|at| *at < u64::from(count));
            let position = position.ok_or_else(|| malformed("position beyond the chunk"))?;
            next = position + 1;
            let key = BackendKey::read(&mut self.reader).ok_or_else(|| malformed("key"))?;
            let len = usize::try_from(self.reader.varint()?).ok();
            let len = len.ok_or_else(|| malformed("length of a value"))?;
            let value = StateValue::copy_from_slice(self.reader.take(len)?);
            entries.push((position as usize, key, value));
        }
        let mut entries = entries.into_iter().peekable();
        let top = self.within(hash::levels(count as usize), 0, count as usize, &mut entries)?;
        Ok(hash::chunk(count, &top))
    }

    /// Hashes node `index` of `level` in the hash tree of a chunk of `count` entries, from the
    /// shown `entries` and the hashes in the proof.
    fn within(
        &mut self,
        level: u32,
        index: usize,
        count: usize,
        entries: &mut core::iter::Peekable<impl Iterator<Item = (usize, BackendKey, StateValue)>>,
    ) -> Result<B256, ProofError> {
        if entries.peek().is_none_or(|(position, ..)| position >> level != index) {
            return self.hidden();
        }
        let Some(below) = level.checked_sub(1) else {
            let Some((_, key, value)) = entries.next() else { return self.hidden() };
            return self.entry(key, value);
        };
        let left = self.within(below, 2 * index, count, entries)?;
        if 2 * index + 1 == hash::nodes_at(count, below) {
            return Ok(left);
        }
        let right = self.within(below, 2 * index + 1, count, entries)?;
        Ok(hash::pair(&left, &right))
    }

    fn entry(&mut self, key: BackendKey, value: StateValue) -> Result<B256, ProofError> {
        if self.read.shown.last().is_some_and(|last| last.key >= key) {
            return Err(malformed("keys are out of order"));
        }
        let hash = hash::entry(&key.encode(), &value);
        let after_hidden = core::mem::take(&mut self.read.ends_hidden);
        self.read.shown.push(ShownEntry { key, value, after_hidden });
        Ok(hash)
    }
}

pub(crate) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
