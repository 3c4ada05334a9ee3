//! The bytes of a witness, which `docs/formats/witnesses.md` documents.

use super::height_of;
use crate::duptree::{
    hash,
    leaf::{IndexedLeaf, malformed},
    proof::MAX_HEIGHT,
};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{ProofError, wire::WireReader};

/// First byte of a witness without the right edge.
const INNER: u8 = 1;
/// First byte of a witness with it.
const EDGE: u8 = 2;

/// A witness, not hashed yet.
pub(super) struct WitnessBytes {
    pub(super) height: u8,
    /// Number of leaves, if the witness has the right edge.
    pub(super) count: Option<u64>,
    /// By number: ascending, distinct.
    pub(super) leaves: Vec<(u64, IndexedLeaf)>,
    /// Hash of the last leaf, if it is not among these.
    pub(super) last: Option<B256>,
    /// Siblings that do not follow, level by level from below, from left to right; the top if there
    /// are no leaves.
    pub(super) hashes: Vec<B256>,
}

impl WitnessBytes {
    #[cfg(feature = "std")]
    pub(super) fn encode(&self) -> Vec<u8> {
        use retrie_state::wire::put_varint;
        let mut out = Vec::new();
        match self.count {
            Some(count) => {
                out.push(EDGE);
                put_varint(&mut out, count);
            }
            None => out.extend([INNER, self.height]),
        }
        put_varint(&mut out, self.leaves.len() as u64);
        for (number, leaf) in &self.leaves {
            put_varint(&mut out, *number);
            leaf.encode(&mut out);
        }
        out.extend(self.last.iter().chain(&self.hashes).flatten());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ProofError> {
        let mut reader = WireReader::new(bytes);
        let (height, count) = match reader.u8()? {
            INNER => (reader.u8()?, None),
            EDGE => {
                let count = reader.varint()?;
                if count == 0 {
                    return Err(malformed("number of leaves"));
                }
                (height_of(count), Some(count))
            }
            _ => return Err(malformed("kind")),
        };
        if height > MAX_HEIGHT {
            return Err(malformed("height"));
        }
        let end = count.unwrap_or(1 << height);
        // Minimal size of a leaf: number, two keys and a value, a byte each.
        let shown = reader.count(4)?;
        let mut leaves: Vec<(u64, IndexedLeaf)> = Vec::with_capacity(shown);
        for _ in 0..shown {
            let number = reader.varint()?;
            let leaf = IndexedLeaf::read(&mut reader)?;
            if number >= end || leaves.last().is_some_and(|(before, _)| *before >= number) {
                return Err(malformed("number of a leaf"));
            }
            if leaf.key.is_none() != (number == 0) {
                return Err(malformed("leaf 0 and no other is the first"));
            }
            leaves.push((number, leaf));
        }
        let has_last = leaves.last().is_some_and(|(number, _)| Some(number + 1) == count);
        let last = match count.is_some() && !has_last {
            true => Some(reader.hash()?),
            false => None,
        };
        if last.is_some() && last == hash::empty_nodes(0).pop() {
            return Err(malformed("the last leaf is empty"));
        }
        let (hashes, rest) = reader.rest().as_chunks::<32>();
        if !rest.is_empty() {
            return Err(malformed("part of a hash at the end"));
        }
        let hashes = hashes.iter().map(B256::from).collect();
        Ok(Self { height, count, leaves, last, hashes })
    }
}
