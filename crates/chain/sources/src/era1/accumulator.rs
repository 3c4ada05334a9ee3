//! The era1 accumulator: `hash_tree_root(List[HeaderRecord, 8192])` of the SSZ specification, with
//! SHA-256 as its hash.
//!
//! * The root of a `HeaderRecord {block_hash: Bytes32, total_difficulty: uint256}` is the hash of
//!   its two 32-byte leaves; integers are little endian.
//! * The records' roots are the leaves of a binary tree of depth 13 (8192 leaves). Missing leaves
//!   are zero, so a missing subtree of height `h` has the fixed root `zero(h)`, where `zero(0)` is
//!   32 zero bytes and `zero(h + 1) = H(zero(h), zero(h))`; only the occupied left part is
//!   computed.
//! * A list mixes in its length: the result is `H(tree root, length)`.

use alloy_primitives::{B256, U256};

use super::MAX_BLOCKS;
use crate::e2store::hash_pair;

const DEPTH: usize = MAX_BLOCKS.ilog2() as usize;

/// Hashes in the proof of a block: the other leaf of its record, one for each level of the tree, and
/// the length of the list.
pub(crate) const PROOF_LEN: usize = DEPTH + 2;

/// The part of a block that the accumulator covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRecord {
    /// Keccak-256 of the header's RLP.
    pub block_hash: B256,
    /// Sum of the difficulties from genesis to this block, inclusive.
    pub total_difficulty: U256,
}

impl HeaderRecord {
    fn difficulty_leaf(&self) -> B256 {
        self.total_difficulty.to_le_bytes::<32>().into()
    }

    fn root(&self) -> B256 {
        hash_pair(self.block_hash, self.difficulty_leaf())
    }
}

/// Accumulator root of up to 8192 records in block order; `None` when there are more.
pub fn accumulator_root(records: &[HeaderRecord]) -> Option<B256> {
    AccumulatorTree::new(records).map(|tree| tree.root())
}

/// The tree of hashes over header records. Only its occupied left part is in memory.
#[derive(Debug)]
pub(crate) struct AccumulatorTree {
    /// The other leaf of each record.
    difficulties: Vec<B256>,
    /// From the roots of the records up to the root of the tree, each without its zeros at the end.
    levels: Vec<Vec<B256>>,
}

impl AccumulatorTree {
    /// The tree of up to 8192 records in block order; `None` when there are more.
    pub(crate) fn new(records: &[HeaderRecord]) -> Option<Self> {
        if records.len() > MAX_BLOCKS as usize {
            return None;
        }
        let mut level: Vec<B256> = records.iter().map(HeaderRecord::root).collect();
        let mut levels = Vec::with_capacity(DEPTH + 1);
        let mut zero = B256::ZERO;
        for _ in 0..DEPTH {
            let above = level
                .chunks(2)
                .map(|pair| hash_pair(pair[0], pair.get(1).copied().unwrap_or(zero)))
                .collect();
            levels.push(std::mem::replace(&mut level, above));
            zero = hash_pair(zero, zero);
        }
        // The root of a tree without leaves.
        levels.push(if level.is_empty() { vec![zero] } else { level });
        let difficulties = records.iter().map(HeaderRecord::difficulty_leaf).collect();
        Some(Self { difficulties, levels })
    }

    fn length(&self) -> B256 {
        U256::from(self.difficulties.len()).to_le_bytes::<32>().into()
    }

    /// The accumulator root.
    pub(crate) fn root(&self) -> B256 {
        let root = self.levels.last().and_then(|top| top.first());
        hash_pair(root.copied().unwrap_or_default(), self.length())
    }

    /// The hashes beside the way from the block hash of a record up to the root; `None` if there is
    /// no such record.
    pub(crate) fn proof(&self, position: usize) -> Option<[B256; PROOF_LEN]> {
        let mut proof = [B256::ZERO; PROOF_LEN];
        let (difficulty, rest) = proof.split_first_mut()?;
        *difficulty = *self.difficulties.get(position)?;
        let (length, siblings) = rest.split_last_mut()?;
        *length = self.length();
        let mut zero = B256::ZERO;
        for (height, (level, sibling)) in self.levels.iter().zip(siblings).enumerate() {
            *sibling = level.get((position >> height) ^ 1).copied().unwrap_or(zero);
            zero = hash_pair(zero, zero);
        }
        Some(proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2store::fold_branch;

    fn record(n: u64) -> HeaderRecord {
        HeaderRecord {
            block_hash: B256::with_last_byte(n as u8),
            total_difficulty: U256::from(n * 1000),
        }
    }

    /// The definition, without shortcuts: all 8192 leaves spelled out.
    fn full_tree_root(records: &[HeaderRecord]) -> B256 {
        let mut level: Vec<B256> = records.iter().map(HeaderRecord::root).collect();
        level.resize(MAX_BLOCKS as usize, B256::ZERO);
        while level.len() > 1 {
            level = level.chunks(2).map(|pair| hash_pair(pair[0], pair[1])).collect();
        }
        let length = U256::from(records.len()).to_le_bytes::<32>();
        hash_pair(level[0], length.into())
    }

    #[test]
    fn partly_filled_tree_equals_the_zero_padded_full_tree() {
        for count in [0, 1, 2, 3, 5, 64, 65, 1000] {
            let records: Vec<_> = (0..count).map(record).collect();
            assert_eq!(accumulator_root(&records), Some(full_tree_root(&records)), "{count}");
        }
    }

    #[test]
    fn every_proof_leads_to_the_root_and_none_is_of_another_block() {
        for count in [1, 2, 3, 65, 300] {
            let records: Vec<_> = (0..count).map(record).collect();
            let tree = AccumulatorTree::new(&records).unwrap();
            let fold = |position: u64, leaf: B256| {
                let proof = tree.proof(position as usize).unwrap();
                fold_branch(leaf, &proof, 4 * MAX_BLOCKS + 2 * position)
            };
            for (position, record) in (0..).zip(&records) {
                assert_eq!(fold(position, record.block_hash), tree.root(), "{count}, {position}");
            }
            assert_ne!(fold(0, B256::repeat_byte(0xee)), tree.root());
            assert_eq!(tree.proof(count as usize), None);
        }
    }

    #[test]
    fn more_records_than_the_list_limit_have_no_root() {
        let records = vec![record(1); MAX_BLOCKS as usize + 1];
        assert_eq!(accumulator_root(&records), None);
        assert!(accumulator_root(&records[1..]).is_some());
    }
}
