//! Sources of blocks, and the data of a block.

mod bundles;
mod chain;

pub use bundles::BundleSource;
pub use chain::ChainSource;

use crate::BlockSourceError;
use alloy_eips::eip7840::BlobParams;
use alloy_primitives::{B256, Bytes, U256, map::HashMap};
use retrie_chainspec::{
    ChainSpec, EthereumHardforks,
    primitives::{Header, Receipt, RecoveredBlock},
};
use retrie_state::StateDelta;
use std::{ops::RangeInclusive, sync::Arc};

/// Ascending block numbers.
#[derive(Clone, Debug)]
pub enum BlockNumbers {
    /// All numbers of a range.
    Range(RangeInclusive<u64>),
    /// Single numbers.
    Listed(Vec<u64>),
}

impl BlockNumbers {
    /// Cuts the numbers into chunks: a range at multiples of `size`, a list after every `size`
    /// numbers.
    pub(crate) fn chunks(&self, size: u64) -> Box<dyn Iterator<Item = Vec<u64>> + '_> {
        let size = size.max(1);
        match self {
            Self::Range(range) => {
                let (first, last) = (*range.start(), *range.end());
                // An empty range has no chunks.
                let chunks = (first / size..=last / size).filter(move |_| first <= last);
                Box::new(chunks.map(move |chunk| {
                    let (begin, end) = (chunk * size, (chunk * size).saturating_add(size - 1));
                    (begin.max(first)..=end.min(last)).collect()
                }))
            }
            Self::Listed(numbers) => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                Box::new(numbers.chunks(size).map(<[u64]>::to_vec))
            }
        }
    }
}

/// The parts that are needed beside the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockNeeds {
    /// Its receipts.
    pub receipts: bool,
    /// Its state changes.
    pub changes: bool,
}

/// The state changes of a block.
#[derive(Clone, Debug, Default)]
pub struct BlockChanges {
    /// Keys with their values before and after.
    pub delta: StateDelta,
    /// Codes that the changed accounts had before and have after the block, by hash, without the
    /// empty code.
    pub codes: HashMap<B256, Bytes>,
}

/// A block with the requested parts.
#[derive(Clone, Debug)]
pub struct BlockData {
    /// The block.
    pub block: RecoveredBlock,
    /// Total difficulty up to and including the block, if it is known.
    pub total_difficulty: Option<U256>,
    /// Whether the block's ommers are known.
    pub ommers_known: bool,
    /// Its receipts; `None` if they were not requested.
    pub receipts: Option<Vec<Receipt>>,
    /// State roots after each transaction, which receipts before Byzantium hold, if they are known.
    pub roots: Option<Vec<B256>>,
    /// Its state changes; `None` if they were not requested, or if ommers that it pays are not
    /// known.
    pub changes: Option<BlockChanges>,
    pub(crate) chain_id: u64,
    pub(crate) has_status: bool,
    pub(crate) blob_params: Option<BlobParams>,
}

impl BlockData {
    /// A block without the other parts.
    ///
    /// # Errors
    /// If its number or time does not fit into the column.
    pub fn new(spec: &ChainSpec, block: RecoveredBlock) -> Result<Self, BlockSourceError> {
        let Header { number, timestamp, .. } = *block.header();
        for (column, value) in [("block_number", number), ("timestamp", timestamp)] {
            if u32::try_from(value).is_err() {
                return Err(BlockSourceError::TooLarge { number, column, value });
            }
        }
        Ok(Self {
            total_difficulty: None,
            ommers_known: true,
            receipts: None,
            roots: None,
            changes: None,
            chain_id: spec.chain_id(),
            has_status: spec.is_byzantium_active_at_block(number),
            blob_params: spec.blob_params_at_timestamp(timestamp),
            block,
        })
    }

    pub(crate) fn header(&self) -> &Header {
        self.block.header()
    }
}

/// A source of blocks.
pub trait BlockSource {
    /// The chain's rules.
    fn spec(&self) -> &Arc<ChainSpec>;

    /// Numbers of its blocks.
    fn blocks(&self) -> &BlockNumbers;

    /// Hash of a block.
    ///
    /// # Errors
    /// If the block does not exist, or reading fails.
    fn hash(&mut self, number: u64) -> Result<B256, BlockSourceError>;

    /// A block with the parts in `needs`.
    ///
    /// # Errors
    /// If the block or a part does not exist, or reading fails.
    fn read(&mut self, number: u64, needs: BlockNeeds) -> Result<BlockData, BlockSourceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(blocks: &BlockNumbers, size: u64) -> Vec<(u64, u64)> {
        blocks.chunks(size).map(|chunk| (chunk[0], chunk[chunk.len() - 1])).collect()
    }

    #[test]
    fn chunks_of_a_range_end_at_multiples_and_miss_nothing() {
        assert_eq!(ends(&BlockNumbers::Range(0..=2), 1000), [(0, 2)]);
        assert_eq!(ends(&BlockNumbers::Range(0..=999), 1000), [(0, 999)]);
        assert_eq!(
            ends(&BlockNumbers::Range(999..=2000), 1000),
            [(999, 999), (1000, 1999), (2000, 2000)]
        );
        assert_eq!(
            ends(&BlockNumbers::Range(u64::MAX - 1..=u64::MAX), 1000),
            [(u64::MAX - 1, u64::MAX)]
        );
        #[allow(clippy::reversed_empty_ranges)]
        let empty = BlockNumbers::Range(1..=0);
        assert_eq!(ends(&empty, 1000), []);
        for (from, to, size) in [(0, 50, 7), (13, 13, 1), (5, 100, 30)] {
            let all: Vec<_> = BlockNumbers::Range(from..=to).chunks(size).flatten().collect();
            assert_eq!(all, (from..=to).collect::<Vec<_>>());
        }
    }

    #[test]
    fn chunks_of_a_list_have_so_many_blocks() {
        let blocks = BlockNumbers::Listed(vec![3, 90, 91, 4000, 5000]);
        assert_eq!(ends(&blocks, 2), [(3, 90), (91, 4000), (5000, 5000)]);
        assert_eq!(ends(&BlockNumbers::Listed(Vec::new()), 2), []);
    }
}
