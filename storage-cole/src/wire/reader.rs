//! Reads the bytes of untrusted proofs: checks every length, and accepts one encoding of every
//! number.

use super::{
    ASKED, AskedKeys, CLOSED, EMPTY, FilterProof, HIDDEN, INNER, KIND, PAIR, SEARCHED, SourceProof,
    VERSIONS, YOUNG, chosen,
};
use crate::{
    ColeParams,
    hash::SourceHeader,
    multi_proof,
    shown_tree::{CompoundPair, ShownNode},
};
use alloc::{boxed::Box, vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, ProofError, StateValue,
    wire::{WireError, WireReader},
};

/// The largest depth of a node below the top of a tree: that of a complete binary tree of 2^64
/// pairs.
const MAX_DEPTH: usize = 64;
/// The largest depth of a node below the top of a tree over versions: merges of 64 runs join a key's
/// trees one after the other, 63 nodes deep, on each of up to seven levels.
const MAX_VERSION_DEPTH: usize = 512;

/// The bytes of a proof that have not been read yet. Allocations are a small multiple of the bytes
/// read.
pub(crate) struct ProofReader<'a> {
    bytes: WireReader<'a>,
    asked: &'a AskedKeys,
    /// Last block of the range.
    last: u64,
    fanout: u8,
    has_trees: bool,
}

impl<'a> ProofReader<'a> {
    /// Reads a proof for these keys, up to the block `last`, of a store with these parameters.
    pub(crate) const fn new(
        bytes: &'a [u8],
        asked: &'a AskedKeys,
        last: u64,
        params: &ColeParams,
    ) -> Self {
        let (fanout, has_trees) = (params.fanout, params.version_trees);
        Self { bytes: WireReader::new(bytes), asked, last, fanout, has_trees }
    }

    /// Reads the horizon, which comes first.
    pub(crate) fn horizon(&mut self) -> Result<u64, ProofError> {
        if self.bytes.u8()? != KIND {
            return Err(malformed("kind"));
        }
        Ok(self.bytes.varint()?)
    }

    /// Reads, after the groups in memory, the number of runs of the two groups of each level.
    pub(crate) fn levels(&mut self) -> Result<&'a [[u8; 2]], ProofError> {
        let count = self.bytes.varint()?;
        if count > u16::MAX.into() {
            return Err(malformed("number of levels"));
        }
        let levels = self.bytes.take(2 * count as usize)?.as_chunks().0;
        if levels.last() == Some(&[0, 0]) {
            return Err(malformed("the last level is empty"));
        }
        Ok(levels)
    }

    /// Reads the part of a source, a run or a group in memory, for the `open` keys.
    pub(crate) fn source(
        &mut self,
        is_run: bool,
        open: &[usize],
    ) -> Result<SourceProof, ProofError> {
        match (self.bytes.u8()?, open) {
            (CLOSED, []) => Ok(SourceProof::Closed(self.bytes.hash()?)),
            (EMPTY, [_, ..]) if !is_run => Ok(SourceProof::Empty),
            (YOUNG, [_, ..]) => self.young(is_run),
            (SEARCHED, [_, ..]) => self.searched(is_run, open),
            _ => Err(malformed("tag of a source")),
        }
    }

    /// Checks that no bytes are left.
    pub(crate) const fn end(&self) -> Result<(), ProofError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(malformed("bytes after the end")) }
    }

    fn young(&mut self, is_run: bool) -> Result<SourceProof, ProofError> {
        let mut source = self.description(is_run)?;
        if source.first_block <= self.last {
            return Err(malformed("a source is older than it claims"));
        }
        source.top = self.bytes.hash()?;
        if is_run {
            source.filter_top = self.bytes.hash()?;
        }
        Ok(SourceProof::Young(source))
    }

    fn searched(&mut self, is_run: bool, open: &[usize]) -> Result<SourceProof, ProofError> {
        let source = self.description(is_run)?;
        if source.first_block > self.last {
            return Err(malformed("a source that is too young is searched"));
        }
        let (mut excluded, mut filter) = (vec![false; open.len()], FilterProof::None);
        if is_run {
            self.excluded(&mut excluded)?;
            filter = self.filter(source.filter_blocks, open, &excluded)?;
        }
        let tree = match excluded.iter().all(|excluded| *excluded) {
            true => ShownNode::Hidden(self.bytes.hash()?),
            false => self.node(0, is_run && self.has_trees)?,
        };
        Ok(SourceProof::Searched { source, excluded, filter, tree })
    }

    fn description(&mut self, is_run: bool) -> Result<SourceHeader, ProofError> {
        let (pairs, first_block) = (self.bytes.varint()?, self.bytes.varint()?);
        let (last_block, filter_blocks) = (self.bytes.varint()?, self.bytes.varint()?);
        if pairs == 0 || first_block > last_block || (filter_blocks > 0) != is_run {
            return Err(malformed("description of a source"));
        }
        let (top, filter_top) = (B256::ZERO, B256::ZERO);
        Ok(SourceHeader { pairs, first_block, last_block, top, filter_blocks, filter_top })
    }

    fn excluded(&mut self, excluded: &mut [bool]) -> Result<(), ProofError> {
        let bytes = self.bytes.take(excluded.len().div_ceil(8))?;
        for (byte, bits) in bytes.iter().zip(excluded.chunks_mut(8)) {
            if u32::from(*byte) >> bits.len() != 0 {
                return Err(malformed("excluded keys"));
            }
            bits.iter_mut().enumerate().for_each(|(at, bit)| *bit = byte >> at & 1 == 1);
        }
        Ok(())
    }

    fn filter(
        &mut self,
        blocks: u64,
        open: &[usize],
        excluded: &[bool],
    ) -> Result<FilterProof, ProofError> {
        let known = self.asked.blocks(chosen(open, excluded), blocks);
        if known.is_empty() {
            return Ok(FilterProof::Top(self.bytes.hash()?));
        }
        let shown = self.bytes.take(known.len().saturating_mul(64))?.as_chunks().0.to_vec();
        let known = known.into_iter().map(|block| (block, ())).collect();
        let mut hashes = Vec::new();
        let fanout = self.fanout;
        let read = |_, _| -> Result<(), ProofError> {
            hashes.push(self.bytes.hash()?);
            Ok(())
        };
        multi_proof::climb(fanout, blocks, known, read, |_| ())?;
        Ok(FilterProof::Blocks { blocks: shown, hashes })
    }

    /// A node of the tree over the pairs of a source, or over its keys if it `has_trees` over their
    /// versions.
    fn node(&mut self, depth: usize, has_trees: bool) -> Result<ShownNode, ProofError> {
        if depth > MAX_DEPTH {
            return Err(malformed("nodes are nested too deep"));
        }
        match self.bytes.u8()? {
            HIDDEN => Ok(ShownNode::Hidden(self.bytes.hash()?)),
            INNER => self.children(|reader| reader.node(depth + 1, has_trees)),
            PAIR => {
                let key = self.key()?;
                self.version(key).map(ShownNode::Pair)
            }
            VERSIONS if has_trees => {
                let key = self.key()?;
                let tree = self.versions(0, &key)?;
                Ok(ShownNode::Versions(key, Box::new(tree)))
            }
            _ => Err(malformed("tag of a node")),
        }
    }

    /// A node of the tree over the versions of `key`.
    fn versions(&mut self, depth: usize, key: &[u8]) -> Result<ShownNode, ProofError> {
        if depth > MAX_VERSION_DEPTH {
            return Err(malformed("nodes are nested too deep"));
        }
        match self.bytes.u8()? {
            HIDDEN => Ok(ShownNode::Hidden(self.bytes.hash()?)),
            INNER => self.children(|reader| reader.versions(depth + 1, key)),
            PAIR => self.version(key.to_vec()).map(ShownNode::Pair),
            _ => Err(malformed("tag of a node")),
        }
    }

    fn children(
        &mut self,
        mut child: impl FnMut(&mut Self) -> Result<ShownNode, ProofError>,
    ) -> Result<ShownNode, ProofError> {
        let count = usize::from(self.bytes.u8()?);
        if count == 0 {
            return Err(malformed("a node without children"));
        }
        // A child has at least three bytes, if it is a pair.
        let mut children = Vec::with_capacity(count.min(self.bytes.rest().len() / 3));
        for _ in 0..count {
            children.push(child(self)?);
        }
        Ok(ShownNode::Inner(children))
    }

    fn key(&mut self) -> Result<Vec<u8>, ProofError> {
        Ok(match self.bytes.varint()? {
            kind @ 0..ASKED => {
                let key = BackendKey::read_untagged(&mut self.bytes, self.asked.form(), kind == 1)
                    .ok_or(WireError::UnexpectedEnd)?;
                let key = key.encode().to_vec();
                if self.asked.number(&key).is_some() {
                    return Err(malformed("a requested key is written out"));
                }
                key
            }
            asked => {
                let number = usize::try_from(asked - ASKED).ok();
                let number = number.filter(|number| *number < self.asked.len());
                self.asked.key(number.ok_or_else(|| malformed("asked key"))?).to_vec()
            }
        })
    }

    /// Block and value of a pair of `key`.
    fn version(&mut self, key: Vec<u8>) -> Result<CompoundPair, ProofError> {
        let block = self.bytes.varint()?;
        let value = match self.bytes.varint()? {
            0 => None,
            len => {
                let len = usize::try_from(len - 1).map_err(|_| malformed("value"))?;
                Some(StateValue::copy_from_slice(self.bytes.take(len)?))
            }
        };
        Ok(CompoundPair { key, block, value })
    }
}

pub(crate) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
