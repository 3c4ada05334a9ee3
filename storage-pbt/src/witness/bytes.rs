//! The bytes of a witness.
//!
//! ```text
//!  witness  01, and the root node unless the tree is empty
//!  node     00 hash                       not shown (32)
//!           01 suffix value               a leaf
//!           02 count bits node node       a branch, by its prefix (count bits, packed, padded with 0)
//!  suffix   the leaf's key without the bytes that the path of the node holds whole
//!  value    its length without leading zeros (1), these bytes
//!  count    two bytes, big-endian
//! ```

use super::{
    NoHandle,
    tree::{NodeContent, NodePtr, PartialNode},
};
use crate::{
    hash::{KeyBits, MAX_KEY_LEN, TreeHash, bit, common_bits},
    key::STORAGE_ZONE,
};
use alloy_primitives::B256;
use retrie_state::{ProofError, wire::WireReader};

/// First byte of a witness.
const VERSION: u8 = 1;
const HIDDEN: u8 = 0;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Length in bytes of a leaf's key, outside of the storage zone.
const SHORT_KEY: usize = 34;

/// The bytes of the open part of a tree.
pub(super) fn encode<H>(top: Option<&NodePtr<H>>) -> Vec<u8> {
    let mut out = vec![VERSION];
    if let Some(top) = top {
        put_node(&mut out, top, 0);
    }
    out
}

fn put_node<H>(out: &mut Vec<u8>, node: &PartialNode<H>, from: usize) {
    match node.content() {
        None => {
            out.push(HIDDEN);
            out.extend_from_slice(&node.hash[..]);
        }
        Some(NodeContent::Leaf { key, value }) => {
            out.push(LEAF);
            out.extend_from_slice(key.get(from / 8..).unwrap_or_default());
            let zeros = value.iter().take_while(|byte| **byte == 0).count();
            out.push((32 - zeros) as u8);
            out.extend_from_slice(&value[zeros..]);
        }
        Some(NodeContent::Branch { split, key, left, right }) => {
            let count = split.saturating_sub(from);
            out.push(BRANCH);
            out.extend_from_slice(&(count as u16).to_be_bytes());
            let mut bits = vec![0; count.div_ceil(8)];
            for at in 0..count {
                bits[at / 8] |= bit(&key[..], from + at) << (7 - at % 8);
            }
            out.extend_from_slice(&bits);
            put_node(out, left, split + 1);
            put_node(out, right, split + 1);
        }
    }
}

/// The tree that a witness shows; `None` for the empty tree.
pub(super) fn decode(
    with: TreeHash,
    bytes: &[u8],
) -> Result<Option<NodePtr<NoHandle>>, ProofError> {
    let mut reader = WireReader::new(bytes);
    if reader.u8()? != VERSION {
        return malformed("version");
    }
    if reader.is_empty() {
        return Ok(None);
    }
    let mut walk = NodeReader { with, reader };
    let top = walk.node(&[0; MAX_KEY_LEN], 0)?;
    walk.reader.finish()?;
    Ok(Some(top))
}

const fn malformed<T>(what: &'static str) -> Result<T, ProofError> {
    Err(ProofError::Malformed { what })
}

struct NodeReader<'a> {
    with: TreeHash,
    reader: WireReader<'a>,
}

impl NodeReader<'_> {
    /// The node at the place that the first `from` bits of `path` lead to. The others are zero.
    fn node(&mut self, path: &KeyBits, from: usize) -> Result<NodePtr<NoHandle>, ProofError> {
        let content = match self.reader.u8()? {
            HIDDEN => return Ok(PartialNode::closed(self.reader.hash()?, None)),
            LEAF => self.leaf(path, from)?,
            BRANCH => self.branch(path, from)?,
            _ => return malformed("an unknown kind of node"),
        };
        Ok(PartialNode::opened(self.with, content, from))
    }

    fn leaf(&mut self, path: &KeyBits, from: usize) -> Result<NodeContent<NoHandle>, ProofError> {
        let whole = from / 8;
        let zone = if whole > 0 { Some(path[0]) } else { self.reader.rest().first().copied() };
        let len = if zone == Some(STORAGE_ZONE) { MAX_KEY_LEN } else { SHORT_KEY };
        let Some(suffix) = len.checked_sub(whole) else {
            return malformed("a leaf below the end of its key");
        };
        let key = [&path[..whole], self.reader.take(suffix)?].concat();
        if from > len * 8 || common_bits(&key, &path[..]) < from {
            return malformed("a leaf at a place that its key does not lead to");
        }
        let len = usize::from(self.reader.u8()?);
        if len > 32 {
            return malformed("a value of more than 32 bytes");
        }
        let value = self.reader.take(len)?;
        if value.first().is_none_or(|first| *first == 0) {
            return malformed("a value of zero, or with leading zeros");
        }
        Ok(NodeContent::Leaf { key, value: B256::left_padding_from(value) })
    }

    fn branch(&mut self, path: &KeyBits, from: usize) -> Result<NodeContent<NoHandle>, ProofError> {
        let count = usize::from(self.reader.u16()?);
        let split = from + count;
        if split >= MAX_KEY_LEN * 8 {
            return malformed("a prefix that is longer than keys are");
        }
        let bits = self.reader.take(count.div_ceil(8))?;
        let spare = bits.len() * 8 - count;
        if bits.last().is_some_and(|last| last.trailing_zeros() < spare as u32) {
            return malformed("bits behind the end of a prefix");
        }
        let mut key = *path;
        for at in 0..count {
            key[(from + at) / 8] |= bit(bits, at) << (7 - (from + at) % 8);
        }
        let left = self.node(&key, split + 1)?;
        let mut other = key;
        other[split / 8] |= 1 << (7 - split % 8);
        let right = self.node(&other, split + 1)?;
        Ok(NodeContent::Branch { split, key: Box::new(key), left, right })
    }
}
