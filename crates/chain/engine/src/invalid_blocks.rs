//! Blocks that were found invalid. Their descendants are refused without verification.

use alloy_primitives::{B256, map::HashMap};
use alloy_rpc_types_engine::{PayloadStatus, PayloadStatusEnum};
use parking_lot::Mutex;
use retrie_chainspec::primitives::RecoveredBlock;
use std::{collections::VecDeque, sync::Arc};

/// Largest number of remembered blocks. A forgotten block is verified again.
const MAX_INVALID_BLOCKS: usize = 512;

/// Number of invalid blocks that are kept whole, for `debug_getBadBlocks`.
const MAX_BAD_BLOCKS: usize = 10;

/// The latest invalid blocks, whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct BadBlocks(Arc<Mutex<VecDeque<Arc<RecoveredBlock>>>>);

impl BadBlocks {
    pub(crate) fn keep(&self, block: Arc<RecoveredBlock>) {
        let mut kept = self.0.lock();
        kept.retain(|known| known.hash() != block.hash());
        kept.push_front(block);
        kept.truncate(MAX_BAD_BLOCKS);
    }

    /// The newest first.
    pub(crate) fn all(&self) -> Vec<Arc<RecoveredBlock>> {
        self.0.lock().iter().cloned().collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct InvalidBlockCache {
    blocks: HashMap<B256, CachedVerdict>,
    /// In the order of arrival.
    order: VecDeque<B256>,
}

#[derive(Clone, Debug)]
struct CachedVerdict {
    latest_valid: Option<B256>,
    reason: String,
}

impl InvalidBlockCache {
    pub(crate) fn insert(&mut self, hash: B256, latest_valid: Option<B256>, reason: String) {
        if self.blocks.insert(hash, CachedVerdict { latest_valid, reason }).is_none() {
            self.order.push_back(hash);
        }
        while self.order.len() > MAX_INVALID_BLOCKS {
            if let Some(oldest) = self.order.pop_front() {
                self.blocks.remove(&oldest);
            }
        }
    }

    /// The payload status of a rejected block; `None` for other blocks.
    pub(crate) fn status(&self, hash: &B256) -> Option<PayloadStatus> {
        let CachedVerdict { latest_valid, reason } = self.blocks.get(hash)?;
        let status = PayloadStatusEnum::Invalid { validation_error: reason.clone() };
        Some(PayloadStatus::new(status, *latest_valid))
    }

    /// Rejects `hash` if its parent is rejected, and returns the status then.
    pub(crate) fn reject_descendant(&mut self, hash: B256, parent: B256) -> Option<PayloadStatus> {
        let latest_valid = self.blocks.get(&parent)?.latest_valid;
        self.insert(hash, latest_valid, "links to previously rejected block".into());
        self.status(&hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> B256 {
        B256::from(alloy_primitives::U256::from(n))
    }

    #[test]
    fn descendants_name_the_last_valid_ancestor_and_the_oldest_are_forgotten() {
        let mut rejected = InvalidBlockCache::default();
        rejected.insert(hash(1), Some(hash(0)), "bad gas".into());
        assert_eq!(rejected.reject_descendant(hash(9), hash(8)), None);
        for n in 2..=MAX_INVALID_BLOCKS as u64 {
            let status = rejected.reject_descendant(hash(n), hash(n - 1)).unwrap();
            assert_eq!(status.latest_valid_hash, Some(hash(0)));
        }
        assert!(rejected.status(&hash(1)).is_some());
        rejected.insert(hash(10_000), None, String::new());
        assert_eq!(rejected.status(&hash(1)), None);
    }
}
