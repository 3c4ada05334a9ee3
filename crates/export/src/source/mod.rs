//! Where blocks come from, and what is known of each.

mod bundles;
mod chain;

pub use bundles::BundleSource;
pub use chain::ChainSource;

use crate::ExportError;
use alloy_eips::eip7840::BlobParams;
use alloy_primitives::{B256, Bytes, U256, map::HashMap};
use retrie_chainspec::{
    ChainSpec, EthereumHardforks,
    primitives::{Header, Receipt, RecoveredBlock},
};
use retrie_state::StateDelta;
use std::{ops::RangeInclusive, sync::Arc};

/// Numbers of blocks, rising.
#[derive(Clone, Debug)]
pub enum Blocks {
    /// All of a range.
    Range(RangeInclusive<u64>),
    /// These.
    Listed(Vec<u64>),
}

impl Blocks {
    /// Cuts them into chunks of `size`: a range at the multiples of `size`, a list into so many each.
    pub(crate) fn chunks(&self, size: u64) -> Box<dyn Iterator<Item = Vec<u64>> + '_> {
        let size = size.max(1);
        match self {
            Self::Range(range) => {
                let (first, last) = (*range.start(), *range.end());
                // Of an empty range none is left.
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

/// What is wanted of a block beside itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Its receipts.
    pub receipts: bool,
    /// What it changed.
    pub changes: bool,
}

/// What a block has done to the state.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Keys with their values before and after.
    pub delta: StateDelta,
    /// Codes that changed accounts had or have, by hash; none for the empty one.
    pub codes: HashMap<B256, Bytes>,
}

/// A block with all that is asked for of it.
#[derive(Clone, Debug)]
pub struct BlockData {
    /// The block.
    pub block: RecoveredBlock,
    /// Sum of the difficulties up to and with it, where it is known.
    pub total_difficulty: Option<U256>,
    /// Whether the block has its ommers here.
    pub ommers_known: bool,
    /// Its receipts; `None` unless asked for.
    pub receipts: Option<Vec<Receipt>>,
    /// State roots after each transaction, which receipts before Byzantium hold, where they are known.
    pub roots: Option<Vec<B256>>,
    /// What it changed; `None` unless asked for, or where ommers that it pays are not known.
    pub changes: Option<Changes>,
    pub(crate) chain_id: u64,
    pub(crate) has_status: bool,
    pub(crate) blob_params: Option<BlobParams>,
}

impl BlockData {
    /// A block by itself.
    ///
    /// # Errors
    /// If its number or time does not fit into the column.
    pub fn new(spec: &ChainSpec, block: RecoveredBlock) -> Result<Self, ExportError> {
        let Header { number, timestamp, .. } = *block.header();
        for (column, value) in [("block_number", number), ("timestamp", timestamp)] {
            if u32::try_from(value).is_err() {
                return Err(ExportError::TooLarge { number, column, value });
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

/// Where blocks come from.
pub trait BlockSource {
    /// The chain's rules.
    fn spec(&self) -> &Arc<ChainSpec>;

    /// Which blocks there are.
    fn blocks(&self) -> &Blocks;

    /// Hash of one of them.
    ///
    /// # Errors
    /// If it is not there, or reading fails.
    fn hash(&mut self, number: u64) -> Result<B256, ExportError>;

    /// One of them.
    ///
    /// # Errors
    /// If it is not there, or what is needed of it, or reading fails.
    fn read(&mut self, number: u64, needs: Needs) -> Result<BlockData, ExportError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(blocks: &Blocks, size: u64) -> Vec<(u64, u64)> {
        blocks.chunks(size).map(|chunk| (chunk[0], chunk[chunk.len() - 1])).collect()
    }

    #[test]
    fn chunks_of_a_range_end_at_multiples_and_miss_nothing() {
        assert_eq!(ends(&Blocks::Range(0..=2), 1000), [(0, 2)]);
        assert_eq!(ends(&Blocks::Range(0..=999), 1000), [(0, 999)]);
        assert_eq!(
            ends(&Blocks::Range(999..=2000), 1000),
            [(999, 999), (1000, 1999), (2000, 2000)]
        );
        assert_eq!(ends(&Blocks::Range(u64::MAX - 1..=u64::MAX), 1000), [(u64::MAX - 1, u64::MAX)]);
        #[allow(clippy::reversed_empty_ranges)]
        let empty = Blocks::Range(1..=0);
        assert_eq!(ends(&empty, 1000), []);
        for (from, to, size) in [(0, 50, 7), (13, 13, 1), (5, 100, 30)] {
            let all: Vec<_> = Blocks::Range(from..=to).chunks(size).flatten().collect();
            assert_eq!(all, (from..=to).collect::<Vec<_>>());
        }
    }

    #[test]
    fn chunks_of_a_list_have_so_many_blocks() {
        let blocks = Blocks::Listed(vec![3, 90, 91, 4000, 5000]);
        assert_eq!(ends(&blocks, 2), [(3, 90), (91, 4000), (5000, 5000)]);
        assert_eq!(ends(&Blocks::Listed(Vec::new()), 2), []);
    }
}
