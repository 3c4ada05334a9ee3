//! [`StoredContext`]: what the execution of a stored block reads beside the state.

use alloy_primitives::{B256, Bytes};
use retrie_db::{ChainRead, DbError, ReadTxn};
use retrie_execution::{BlockHashes, CodeReader};
use retrie_log_tables::TableSpan;
use retrie_state::{StateError, StoreError};

/// Codes, and hashes of canonical ancestors, from the chain's tables.
#[derive(Debug)]
pub struct StoredContext<'a>(pub &'a ReadTxn);

impl CodeReader for StoredContext<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        ChainRead::code(self.0, hash).map_err(|error| {
            StoreError::new(format!("reading code {hash}"), DbError::from(error)).into()
        })
    }
}

impl BlockHashes for StoredContext<'_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.0.canonical_hash(number).map_err(|error| {
            let action = format!("looking for ancestor {number}");
            StoreError::new(action, DbError::from(error)).into()
        })
    }

    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        let table = self.0.make_index_table(span).map_err(|error| {
            let action = format!("indexing blocks {} to {}", span.first(), span.last());
            StoreError::new(action, DbError::from(error))
        })?;
        Ok(table.map(|table| table.root()))
    }
}
