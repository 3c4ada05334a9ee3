//! A cache of blocks and their receipts.

use crate::{RpcError, RpcResult};
use alloy_consensus::InMemorySize;
use alloy_primitives::B256;
use quick_cache::{Weighter, sync::Cache};
use retrie_engine::LiveView;
use retrie_pipeline::BlockWithReceipts;
use std::fmt;

/// Bytes of blocks and receipts that are cached.
const MAX_BYTES: u64 = 64 << 20;
/// Number of blocks for which the cache reserves its index.
const EXPECTED_BLOCKS: usize = 256;

/// The blocks that requests for receipts read last. One such request needs one receipt, and the
/// next ones often need others of the same block.
pub(crate) struct BlockCache(Cache<B256, BlockWithReceipts, BlockWeighter>);

impl BlockCache {
    /// A known block with its receipts; `None` also if these are not stored.
    pub(crate) fn get(&self, view: &LiveView, hash: &B256) -> RpcResult<Option<BlockWithReceipts>> {
        if let Some(block) = self.0.get(hash) {
            return Ok(Some(block));
        }
        let block = view.block_with_receipts(hash)?;
        if let Some(block) = &block {
            self.0.insert(*hash, block.clone());
        }
        Ok(block)
    }

    /// As [`get`](Self::get); `None` only if the block is not stored.
    ///
    /// # Errors
    /// If its receipts, or its body, are not kept.
    pub(crate) fn get_with_receipts(
        &self,
        view: &LiveView,
        hash: &B256,
    ) -> RpcResult<Option<BlockWithReceipts>> {
        let block = self.get(view, hash)?;
        if block.is_none() && view.block(hash)?.is_some() {
            return Err(RpcError::no_receipts(view, hash));
        }
        Ok(block)
    }
}

impl Default for BlockCache {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED_BLOCKS, MAX_BYTES, BlockWeighter))
    }
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("blocks", &self.0.len()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct BlockWeighter;

impl Weighter<B256, BlockWithReceipts> for BlockWeighter {
    fn weight(&self, _: &B256, block: &BlockWithReceipts) -> u64 {
        let receipts: usize = block.receipts.iter().map(InMemorySize::size).sum();
        (block.block.size() + receipts) as u64
    }
}
