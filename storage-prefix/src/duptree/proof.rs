//! A proof and its bytes, which `docs/formats/duptree.md` documents.

use super::{
    hash,
    leaf::{IndexedLeaf, malformed},
};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{ProofError, wire::WireReader};

/// Greatest height of a tree: leaf numbers have 63 bits.
pub(crate) const MAX_HEIGHT: u8 = 63;

/// Some leaves of a tree, and the hashes that lead from them to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DupTreeProof {
    /// Height of the tree.
    pub(crate) height: u8,
    /// Leaves by number: ascending, distinct, below 2^height.
    pub(crate) leaves: Vec<(u64, IndexedLeaf)>,
    /// Siblings that do not follow from the leaves, level by level from below, from left to right;
    /// the top, if there are no leaves.
    pub(crate) hashes: Vec<B256>,
}

/// A parsed proof, with the hashes of its leaves.
pub(crate) struct ParsedProof {
    pub(crate) proof: DupTreeProof,
    digests: Vec<B256>,
}

impl DupTreeProof {
    /// The bytes.
    #[cfg(feature = "std")]
    pub(crate) fn encode(&self) -> Vec<u8> {
        use retrie_state::wire::put_varint;
        let mut out = vec![self.height];
        put_varint(&mut out, self.leaves.len() as u64);
        for (number, leaf) in &self.leaves {
            put_varint(&mut out, *number);
            leaf.encode(&mut out);
        }
        for hash in &self.hashes {
            out.extend_from_slice(&hash[..]);
        }
        out
    }
}

impl ParsedProof {
    /// Parses the bytes of [`DupTreeProof::encode`].
    ///
    /// # Errors
    /// [`ProofError::Malformed`] for other bytes.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, ProofError> {
        let mut reader = WireReader::new(bytes);
        let height = reader.u8()?;
        if height > MAX_HEIGHT {
            return Err(malformed("height"));
        }
        // Minimal size of a leaf: number, two keys and a value, a byte each.
        let count = reader.count(4)?;
        let (mut leaves, mut digests) = (Vec::<(u64, IndexedLeaf)>::new(), Vec::new());
        for _ in 0..count {
            let number = reader.varint()?;
            if number >> height != 0 {
                return Err(malformed("number of a leaf beyond the tree"));
            }
            if leaves.last().is_some_and(|(last, _)| *last >= number) {
                return Err(malformed("leaves are out of order"));
            }
            let before = reader.rest();
            let leaf = IndexedLeaf::read(&mut reader)?;
            if leaf.key.is_none() != (number == 0) {
                return Err(malformed("leaf 0 and no other is the first"));
            }
            digests.push(hash::leaf(&before[..before.len() - reader.rest().len()]));
            leaves.push((number, leaf));
        }
        let (hashes, rest) = reader.rest().as_chunks::<32>();
        if !rest.is_empty() {
            return Err(malformed("part of a hash at the end"));
        }
        let hashes = hashes.iter().map(B256::from).collect();
        Ok(Self { proof: DupTreeProof { height, leaves, hashes }, digests })
    }

    /// The root that the proof leads to. The work is bounded by the number of leaves and hashes:
    /// each step takes one of them.
    ///
    /// # Errors
    /// [`ProofError::Missing`] if a hash is missing, [`ProofError::Malformed`] if one is left.
    pub(crate) fn root(&self) -> Result<B256, ProofError> {
        let DupTreeProof { height, leaves, hashes } = &self.proof;
        let mut hashes = hashes.iter();
        let missing = ProofError::Missing { what: "a sibling" };
        let mut sibling = || hashes.next().copied().ok_or_else(|| missing.clone());
        let numbers = leaves.iter().map(|(number, _)| *number);
        let mut known: Vec<(u64, B256)> = numbers.zip(self.digests.iter().copied()).collect();
        let top = if known.is_empty() {
            sibling()?
        } else {
            for _ in 0..*height {
                let mut above = Vec::with_capacity(known.len());
                let mut nodes = known.into_iter().peekable();
                while let Some((number, node)) = nodes.next() {
                    let parent = if number % 2 == 1 {
                        hash::inner(&sibling()?, &node)
                    } else {
                        match nodes.next_if(|(other, _)| *other == number + 1) {
                            Some((_, right)) => hash::inner(&node, &right),
                            None => hash::inner(&node, &sibling()?),
                        }
                    };
                    above.push((number / 2, parent));
                }
                known = above;
            }
            known.first().map(|(_, top)| *top).ok_or_else(|| missing.clone())?
        };
        if hashes.next().is_some() {
            return Err(malformed("hashes after the end"));
        }
        Ok(hash::root(*height, &top))
    }
}
