//! [`LiveTable`]: an index table as a view of the chain has it.

use alloy_primitives::B256;
use retrie_db::StoredTable;
use retrie_log_tables::{IndexEntry, IndexTable, TableReader};
use retrie_pipeline::PipelineError;
use std::ops::Range;

/// An index table (EIP-8304) of canonical blocks.
#[derive(Debug)]
pub enum LiveTable<'a> {
    /// It is stored.
    Stored(StoredTable<'a>),
    /// It was made from receipts.
    Made(IndexTable),
}

impl TableReader for LiveTable<'_> {
    type Error = PipelineError;

    fn count(&self) -> u64 {
        match self {
            Self::Stored(table) => table.count(),
            Self::Made(table) => table.count(),
        }
    }

    fn lower_bound(&self, bytes: &[u8]) -> Result<u64, PipelineError> {
        match self {
            Self::Stored(table) => Ok(table.lower_bound(bytes)?),
            Self::Made(table) => {
                let Ok(index) = table.lower_bound(bytes);
                Ok(index)
            }
        }
    }

    fn entries(&self, range: Range<u64>) -> Result<Vec<IndexEntry>, PipelineError> {
        match self {
            Self::Stored(table) => Ok(table.entries(range)?),
            Self::Made(table) => {
                let Ok(entries) = table.entries(range);
                Ok(entries)
            }
        }
    }

    fn node(&self, height: u32, index: u64) -> Result<B256, PipelineError> {
        match self {
            Self::Stored(table) => Ok(table.node(height, index)?),
            Self::Made(table) => {
                let Ok(node) = table.node(height, index);
                Ok(node)
            }
        }
    }
}
