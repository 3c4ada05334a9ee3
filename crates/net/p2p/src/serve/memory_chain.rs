//! A chain in memory, for tests and examples.

use super::{ChainError, ChainReader, ChainView};
use crate::eth::{BlockRange, BlockReceipt, PooledTransaction};
use alloy_primitives::{B256, Bytes, map::HashMap};
use retrie_chainspec::primitives::{Block, BlockBody, Header};

/// Blocks in memory, by number and by hash.
#[derive(Debug, Default)]
pub struct MemoryChain {
    canonical: Vec<B256>,
    blocks: HashMap<B256, Block>,
}

impl MemoryChain {
    /// Makes a chain from blocks in ascending order, genesis first.
    pub fn new(blocks: impl IntoIterator<Item = Block>) -> Self {
        let mut all = Self::default();
        for block in blocks {
            let hash = block.header.hash_slow();
            all.canonical.push(hash);
            all.blocks.insert(hash, block);
        }
        all
    }
}

impl ChainReader for MemoryChain {
    fn view(&self) -> Result<Box<dyn ChainView + '_>, ChainError> {
        Ok(Box::new(self))
    }

    fn pooled(&self, _: &B256) -> Option<PooledTransaction> {
        None
    }
}

impl ChainView for &MemoryChain {
    fn range(&self) -> Result<BlockRange, ChainError> {
        let latest = self.canonical.len().saturating_sub(1) as u64;
        let latest_hash = self.canonical.last().copied().unwrap_or_default();
        Ok(BlockRange { earliest: 0, latest, latest_hash })
    }

    fn canonical_hash(&self, number: u64) -> Result<Option<B256>, ChainError> {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        Ok(self.canonical.get(number).copied())
    }

    fn header(&self, hash: &B256) -> Result<Option<Header>, ChainError> {
        Ok(self.blocks.get(hash).map(|block| block.header.clone()))
    }

    fn body(&self, hash: &B256) -> Result<Option<BlockBody>, ChainError> {
        Ok(self.blocks.get(hash).map(|block| block.body.clone()))
    }

    fn receipts(&self, _: &B256) -> Result<Option<Vec<BlockReceipt>>, ChainError> {
        Ok(None)
    }

    fn access_list(&self, _: &B256) -> Result<Option<Bytes>, ChainError> {
        Ok(None)
    }
}
