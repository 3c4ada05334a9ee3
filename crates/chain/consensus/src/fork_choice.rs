//! Which of two valid chains becomes canonical where no consensus client decides.

use alloy_primitives::{B256, U256};
use retrie_chainspec::{ChainSpec, primitives::Header};

/// The tip of a chain whose blocks are all valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainHead {
    /// Number of the tip.
    pub number: u64,
    /// Hash of the tip.
    pub hash: B256,
    /// Sum of the difficulties of all blocks from genesis to the tip.
    pub total_difficulty: U256,
    /// Whether the tip follows proof of stake.
    pub is_pos: bool,
}

impl ChainHead {
    /// Genesis as the head.
    pub fn genesis(spec: &ChainSpec) -> Self {
        let header = spec.genesis_header();
        Self {
            number: header.number,
            hash: header.hash(),
            total_difficulty: header.difficulty,
            is_pos: spec.is_pos(header),
        }
    }

    /// The head after a valid child of this one.
    pub fn child(&self, spec: &ChainSpec, hash: B256, header: &Header) -> Self {
        Self {
            number: header.number,
            hash,
            total_difficulty: self.total_difficulty.saturating_add(header.difficulty),
            is_pos: spec.is_pos(header),
        }
    }
}

/// What to do with a newly validated chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkChoice {
    /// Keep the current chain.
    Keep,
    /// Make the new chain canonical.
    Switch,
}

impl ForkChoice {
    /// Compares `candidate` with the `current` canonical head.
    ///
    /// Under proof of work the chain with the strictly greater total difficulty wins; the first
    /// seen is kept on a tie. A proof-of-stake chain always wins over proof of work, since it
    /// builds upon a terminal block. Between two proof-of-stake chains the protocol leaves the
    /// choice to the consensus layer; without it, an import follows the last valid block.
    pub fn decide(current: &ChainHead, candidate: &ChainHead) -> Self {
        let switch = match (current.is_pos, candidate.is_pos) {
            (_, true) => candidate.hash != current.hash,
            (true, false) => false,
            (false, false) => candidate.total_difficulty > current.total_difficulty,
        };
        if switch { Self::Switch } else { Self::Keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(hash: u8, total_difficulty: u64, is_pos: bool) -> ChainHead {
        ChainHead {
            number: 1,
            hash: B256::with_last_byte(hash),
            total_difficulty: U256::from(total_difficulty),
            is_pos,
        }
    }

    #[test]
    fn heavier_work_wins_ties_stay_and_stake_beats_work() {
        let current = head(1, 100, false);
        assert_eq!(ForkChoice::decide(&current, &head(2, 101, false)), ForkChoice::Switch);
        assert_eq!(ForkChoice::decide(&current, &head(2, 100, false)), ForkChoice::Keep);
        assert_eq!(ForkChoice::decide(&current, &head(2, 99, false)), ForkChoice::Keep);
        assert_eq!(ForkChoice::decide(&current, &head(2, 99, true)), ForkChoice::Switch);
        let merged = head(1, 100, true);
        assert_eq!(ForkChoice::decide(&merged, &head(2, 1000, false)), ForkChoice::Keep);
        assert_eq!(ForkChoice::decide(&merged, &head(2, 100, true)), ForkChoice::Switch);
        assert_eq!(ForkChoice::decide(&merged, &merged), ForkChoice::Keep);
    }

    #[test]
    fn total_difficulty_adds_up_from_genesis() {
        let spec = ChainSpec::mainnet();
        let genesis = ChainHead::genesis(&spec);
        assert_eq!(genesis.total_difficulty, U256::from(0x4_0000_0000_u64));
        let header = Header { number: 1, difficulty: U256::from(5), ..Default::default() };
        let child = genesis.child(&spec, B256::with_last_byte(1), &header);
        assert_eq!(child.total_difficulty, U256::from(0x4_0000_0005_u64));
        assert!(!child.is_pos);
    }
}
