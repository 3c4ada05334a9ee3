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
use sha2::{Digest, Sha256};

use super::MAX_BLOCKS;

const DEPTH: u32 = MAX_BLOCKS.ilog2();

/// The part of a block that the accumulator covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRecord {
    /// Keccak-256 of the header's RLP.
    pub block_hash: B256,
    /// Sum of the difficulties from genesis to this block, inclusive.
    pub total_difficulty: U256,
}

impl HeaderRecord {
    fn root(&self) -> B256 {
        hash_pair(self.block_hash, self.total_difficulty.to_le_bytes::<32>().into())
    }
}

/// Accumulator root of up to 8192 records in block order; `None` when there are more.
pub fn accumulator_root(records: &[HeaderRecord]) -> Option<B256> {
    if records.len() > MAX_BLOCKS as usize {
        return None;
    }
    let mut level: Vec<B256> = records.iter().map(HeaderRecord::root).collect();
    let mut zero = B256::ZERO;
    for _ in 0..DEPTH {
        level = level
            .chunks(2)
            .map(|pair| hash_pair(pair[0], pair.get(1).copied().unwrap_or(zero)))
            .collect();
        zero = hash_pair(zero, zero);
    }
    let root = level.first().copied().unwrap_or(zero);
    let length = U256::from(records.len()).to_le_bytes::<32>();
    Some(hash_pair(root, length.into()))
}

fn hash_pair(left: B256, right: B256) -> B256 {
    let digest = Sha256::new_with_prefix(left).chain_update(right).finalize();
    B256::from_slice(&digest)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn more_records_than_the_list_limit_have_no_root() {
        let records = vec![record(1); MAX_BLOCKS as usize + 1];
        assert_eq!(accumulator_root(&records), None);
        assert!(accumulator_root(&records[1..]).is_some());
    }
}
