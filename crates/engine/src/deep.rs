//! Branches that leave the chain further down than the state can be taken back.
//!
//! Their blocks cannot be executed here: the state that they stand on is gone. They are remembered, so that
//! a consensus client that makes one of them the head is told so (-38006), and not that this node is
//! about to have it.

use alloy_primitives::{B256, map::HashMap};
use parking_lot::Mutex;
use retrie_state::StateError;
use std::{collections::VecDeque, sync::Arc};

/// Most blocks that are remembered; the oldest go.
const REMEMBERED: usize = 1024;

/// Where a branch stands that cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepBranch {
    /// The highest block that it shares with the chain, as far as that is known.
    pub fork: u64,
    /// The lowest block that the state could be taken back to.
    pub first_retained: u64,
    /// The depth in blocks that the node was told to keep.
    pub retention: u64,
}

impl DeepBranch {
    /// The same, if the error is that of a state that is gone.
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

/// Blocks on such branches, with their numbers. Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeepBlocks(Arc<Mutex<DeepBlockMap>>);

#[derive(Debug, Default)]
struct DeepBlockMap {
    blocks: HashMap<B256, (u64, DeepBranch)>,
    /// In the order they came.
    order: VecDeque<B256>,
}

impl DeepBlocks {
    pub(crate) fn insert(&self, hash: B256, number: u64, branch: DeepBranch) {
        let mut remembered = self.0.lock();
        if remembered.blocks.insert(hash, (number, branch)).is_none() {
            remembered.order.push_back(hash);
        }
        while remembered.order.len() > REMEMBERED {
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
        for n in 0..=REMEMBERED {
            blocks.insert(hash(n), n as u64, branch);
            blocks.insert(hash(n), n as u64, branch);
        }
        assert_eq!(blocks.get(&hash(0)), None);
        assert_eq!(blocks.get(&hash(1)), Some((1, branch)));
        assert_eq!(blocks.0.lock().order.len(), REMEMBERED);
    }
}
