//! Proof shards: the part of the proofs that a node keeps (paper, section 3.3).

use std::{fmt, str::FromStr};

/// The part that a node keeps of the data that proofs need.
///
/// From the root AMT's proof tree: the nodes below one prefix of the keys' hashes, and the nodes
/// above it. From the Merkle trees: the tree of every `count`-th block. [`None`](Self::None) and
/// [`All`](Self::All) keep all Merkle trees, because these cannot be recomputed from the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProofShard {
    /// No proof tree: the node can prove nothing.
    #[default]
    None,
    /// Everything: the node can prove every key.
    All,
    /// Shard `index` of `1 << bits`.
    Part {
        /// Base-two logarithm of the number of shards, 1 to 16.
        bits: u8,
        /// The number of the shard, from 0.
        index: u32,
    },
}

/// Base-two logarithm of the largest number of shards: one for each entry of the root AMT.
const MAX_BITS: u8 = 16;

impl ProofShard {
    /// Whether the node keeps the Merkle tree of `block`.
    pub(crate) fn keeps_tree(self, block: u64) -> bool {
        match self {
            Self::None | Self::All => true,
            Self::Part { bits, index } => block % (1 << bits) == u64::from(index),
        }
    }

    /// Base-two logarithm of the number of nodes that together keep all Merkle trees.
    pub(crate) fn tree_bits(self) -> u8 {
        match self {
            Self::None | Self::All => 0,
            Self::Part { bits, .. } => bits,
        }
    }

    /// The length of the shard's prefix in bits, and the prefix; `None` if the node keeps no proof
    /// tree.
    pub(crate) fn prefix(self) -> Option<(u32, u32)> {
        match self {
            Self::None => None,
            Self::All => Some((0, 0)),
            Self::Part { bits, index } => Some((bits.into(), index)),
        }
    }

    /// The shard of the same size to which the entry of the root AMT belongs.
    pub(crate) fn of_entry(self, height: u8, entry: u32) -> Self {
        match self {
            Self::None | Self::All => Self::All,
            Self::Part { bits, .. } => {
                Self::Part { bits, index: entry >> (u32::from(height) - u32::from(bits)) }
            }
        }
    }

    /// The shard of the same size that keeps the Merkle tree of `block`.
    pub(crate) fn of_block(self, block: u64) -> Self {
        match self {
            Self::None | Self::All => Self::All,
            Self::Part { bits, .. } => Self::Part { bits, index: (block % (1 << bits)) as u32 },
        }
    }
}

impl fmt::Display for ProofShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Part { bits, index } => write!(f, "{index}/{}", 1u32 << bits),
        }
    }
}

/// Why a text names no shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no proof shard: give `all`, `none`, or one of a power of two such as `3/16` (the \
     first is 0, there are {max} at most)", max = 1u32 << MAX_BITS
)]
pub struct ParseShardError(String);

impl FromStr for ProofShard {
    type Err = ParseShardError;

    fn from_str(text: &str) -> Result<Self, ParseShardError> {
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let parse = || {
            let (index, count) = text.split_once('/')?;
            if !digits(index) || !digits(count) {
                return None;
            }
            let (index, count) = (index.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
            let bits = count.trailing_zeros() as u8;
            let right = count.is_power_of_two() && index < count && bits <= MAX_BITS;
            match bits {
                0 => right.then_some(Self::All),
                _ => right.then_some(Self::Part { bits, index }),
            }
        };
        match text {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            _ => parse().ok_or_else(|| ParseShardError(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_read_as_they_are_shown() {
        for text in ["none", "all", "0/2", "3/16", "63/64", "65535/65536"] {
            assert_eq!(text.parse::<ProofShard>().map(|shard| shard.to_string()), Ok(text.into()));
        }
        assert_eq!("0/1".parse(), Ok(ProofShard::All));
        for text in [
            "", "16/16", "1/3", "-1/16", "1/", "/16", "1/0", "a/16", "1/131072", "1/16/2", " 1/16",
            "+1/16",
        ] {
            let error = text.parse::<ProofShard>().map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains(&format!("`{text}`"))), "{text}");
        }
    }

    #[test]
    fn all_shards_together_keep_everything() {
        for bits in 1..=4 {
            let shards: Vec<_> =
                (0..1 << bits).map(|index| ProofShard::Part { bits, index }).collect();
            for block in 0..40 {
                let keeping: Vec<_> = shards.iter().filter(|s| s.keeps_tree(block)).collect();
                assert_eq!(keeping, [&shards[0].of_block(block)]);
            }
            for entry in 0..16 {
                assert!(shards.contains(&shards[0].of_entry(4, entry)));
            }
        }
    }
}
