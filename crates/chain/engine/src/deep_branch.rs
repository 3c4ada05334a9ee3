//! Deep branches: they leave the canonical chain below the oldest state that can be restored.
//!
//! Their blocks cannot be executed here, since the state below them is gone. They are remembered,
//! so that a consensus client that makes one of them the head gets an error (-38006, too deep
//! reorg) and not the answer SYNCING.

use alloy_primitives::{B256, map::HashMap};
use parking_lot::Mutex;
use retrie_state::StateError;
use std::{collections::VecDeque, sync::Arc};

/// Largest number of remembered blocks; beyond it the oldest are dropped.
const MAX_DEEP_BLOCKS: usize = 1024;

/// Where a branch that cannot be executed leaves the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepBranch {
    /// Number of the highest block that it shares with the canonical chain, as far as known.
    pub fork: u64,
    /// Number of the lowest block whose state can be restored.
    pub first_retained: u64,
    /// The configured retention depth in blocks.
    pub retention: u64,
}

impl DeepBranch {
    /// The branch of a [`StateError::BeyondRetention`]; `None` for other errors.
    pub(crate) const fn of(error: &StateError) -> Option<Self> {
        match *error {
            StateError::BeyondRetention { number: fork, first: first_retained, retention } => {
                Some(Self { fork, first_retained, retention })
            }
            _ => None,
        }
    }

    pub(crate) const fn error(self) -> StateError {
        let Self { fork: number, first_retained: first, retention } = self;
        StateError::BeyondRetention { number, first, retention }
    }
}

/// Blocks on deep branches, with their numbers. Cheap to clone; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeepBlocks(Arc<Mutex<DeepBlockMap>>);

#[derive(Debug, Default)]
struct DeepBlockMap {
    blocks: HashMap<B256, (u64, DeepBranch)>,
    /// In the order of arrival.
    order: VecDeque<B256>,
}

impl DeepBlocks {
    pub(crate) fn insert(&self, hash: B256, number: u64, branch: DeepBranch) {
        let mut remembered = self.0.lock();
        if remembered.blocks.insert(hash, (number, branch)).is_none() {
            remembered.order.push_back(hash);
        }
        while remembered.order.len() > MAX_DEEP_BLOCKS {
            if let Some(oldest) = remembered.order.pop_front() {
                remembered.blocks.remove(&oldest);
            }
        }
    }

    pub(crate) fn get(&self, hash: &B256) -> Option<(u64, DeepBranch)> {
        self.0.lock().blocks.get(hash).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let branch = DeepBranch { fork: 1, first_retained: 5, retention: 3 };
        assert_eq!(DeepBranch::of(&branch.error()), Some(branch));
        let blocks = DeepBlocks::default();
        let hash = |n: usize| B256::left_padding_from(&n.to_be_bytes());
        for n in 0..=MAX_DEEP_BLOCKS {
            blocks.insert(hash(n), n as u64, branch);
            blocks.insert(hash(n), n as u64, branch);
        }
        assert_eq!(blocks.get(&hash(0)), None);
        assert_eq!(blocks.get(&hash(1)), Some((1, branch)));
        assert_eq!(blocks.0.lock().order.len(), MAX_DEEP_BLOCKS);
    }
}
