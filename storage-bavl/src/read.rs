//! A proof read from its bytes, and hashed up to the root; `docs/formats/bavl.md` has the bytes one
//! by one.

use crate::{
    ChunkEntries, hash,
    verify::{Side, Step},
};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey, Value, wire::WireReader};

/// A subtree of which the proof has the hash alone.
pub(crate) const HIDDEN: u8 = 0;
/// An inner node with both its children.
pub(crate) const INNER: u8 = 1;
/// A chunk with some of its entries.
pub(crate) const CHUNK: u8 = 2;

/// Most inner nodes above a chunk. An AVL tree as high has more than 10^13 chunks.
pub(crate) const MAX_HEIGHT: u8 = 64;

/// An entry that the proof shows.
pub(crate) struct Shown {
    pub(crate) key: StateKey,
    pub(crate) value: Value,
    /// Whether entries that are not shown may lie between it and the one shown before it, or before
    /// all if it is the first.
    pub(crate) after_hidden: bool,
}

/// A chunk that the proof shows some entries of.
pub(crate) struct Chunk {
    pub(crate) count: u32,
    /// Number of its entries that are shown.
    pub(crate) shown: usize,
}

/// What a proof shows, in key order, and the root it leads to.
pub(crate) struct Read {
    pub(crate) most: ChunkEntries,
    pub(crate) root: B256,
    pub(crate) shown: Vec<Shown>,
    /// Whether entries may lie behind the last one that is shown.
    pub(crate) ends_hidden: bool,
    pub(crate) chunks: Vec<Chunk>,
    /// From chunks up to the top: at each inner node of which one child is hidden, which side the
    /// other one is on, and that child's hash.
    pub(crate) way: Vec<Step>,
    /// Number of hashes in it.
    pub(crate) hashes: usize,
}

impl Read {
    /// Reads all of `bytes`. Work and memory are bounded by their number.
    ///
    /// # Errors
    /// [`ProofError::Malformed`] if they are no proof in its one form.
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
            way: Vec::new(),
            hashes: 0,
        };
        let mut walk = Walk { reader, read };
        let top = walk.node(0)?;
        let Walk { reader, mut read } = walk;
        reader.finish()?;
        read.root = hash::root(most.get(), &top.hash);
        Ok(read)
    }
}

struct Walk<'a> {
    reader: WireReader<'a>,
    read: Read,
}

struct Node {
    hash: B256,
    is_hidden: bool,
}

impl Walk<'_> {
    fn node(&mut self, depth: u8) -> Result<Node, ProofError> {
        match self.reader.u8()? {
            HIDDEN => Ok(Node { hash: self.hidden()?, is_hidden: true }),
            INNER if depth == MAX_HEIGHT => Err(malformed("it is too high")),
            INNER => {
                let (left, right) = (self.node(depth + 1)?, self.node(depth + 1)?);
                match (left.is_hidden, right.is_hidden) {
                    (true, true) => return Err(malformed("an inner node that shows nothing")),
                    (true, false) => {
                        self.read.way.push(Step { side: Side::Right, other: left.hash })
                    }
                    (false, true) => {
                        self.read.way.push(Step { side: Side::Left, other: right.hash })
                    }
                    (false, false) => {}
                }
                Ok(Node { hash: hash::inner(&left.hash, &right.hash), is_hidden: false })
            }
            CHUNK => Ok(Node { hash: self.chunk(depth)?, is_hidden: false }),
            _ => Err(malformed("tag of a node")),
        }
    }

    /// A hash, below which there is an entry at least.
    fn hidden(&mut self) -> Result<B256, ProofError> {
        self.read.ends_hidden = true;
        self.read.hashes += 1;
        Ok(self.reader.hash()?)
    }

    fn chunk(&mut self, depth: u8) -> Result<B256, ProofError> {
        let count = self.reader.varint()?;
        let count = u32::try_from(count).ok().filter(|count| *count <= self.read.most.get());
        let count = count.ok_or_else(|| malformed("a chunk with more entries than it can hold"))?;
        // A gap, a key and the length of a value.
        let shown = self.reader.count(23)?;
        self.read.chunks.push(Chunk { count, shown });
        match (count, shown) {
            (0, 0) if depth == 0 => return Ok(hash::no_entries()),
            (0, _) => return Err(malformed("a chunk without entries")),
            (_, 0) => return Err(malformed("a chunk that shows nothing")),
            _ => {}
        }
        // Entries come before the hashes beside them, which tell what lies in between.
        let mut entries = Vec::with_capacity(shown);
        let mut next = 0;
        for _ in 0..shown {
            let gap = self.reader.varint()?;
            let position = gap.checked_add(next).filter(|at| *at < u64::from(count));
            let position = position.ok_or_else(|| malformed("position beyond the chunk"))?;
            next = position + 1;
            let key = StateKey::read(&mut self.reader).ok_or_else(|| malformed("key"))?;
            let len = usize::try_from(self.reader.varint()?).ok();
            let len = len.ok_or_else(|| malformed("length of a value"))?;
            let value = Value::copy_from_slice(self.reader.take(len)?);
            entries.push((position as usize, key, value));
        }
        let mut entries = entries.into_iter().peekable();
        let top = self.within(hash::levels(count as usize), 0, count as usize, &mut entries)?;
        Ok(hash::chunk(count, &top))
    }

    /// Node `index` of `level` in the hash tree of a chunk of `count` entries, of which these are shown.
    fn within(
        &mut self,
        level: u32,
        index: usize,
        count: usize,
        entries: &mut core::iter::Peekable<impl Iterator<Item = (usize, StateKey, Value)>>,
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

    fn entry(&mut self, key: StateKey, value: Value) -> Result<B256, ProofError> {
        if self.read.shown.last().is_some_and(|last| last.key >= key) {
            return Err(malformed("keys are out of order"));
        }
        let hash = hash::entry(&key.encode(), &value);
        let after_hidden = core::mem::take(&mut self.read.ends_hidden);
        self.read.shown.push(Shown { key, value, after_hidden });
        Ok(hash)
    }
}

pub(crate) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
