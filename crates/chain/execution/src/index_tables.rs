//! Index tables (EIP-8304): after its transactions a block stores the roots of the tables that are
//! due in the index contract.

use crate::{
    BlockHashes, DatabaseError, ExecutionError,
    executor::{BlockExecution, database_error, map_execution_error},
};
use alloy_eips::eip4788::SYSTEM_ADDRESS;
use alloy_evm::{
    Evm,
    block::{BlockExecutionError, BlockExecutor},
};
use alloy_primitives::{B256, Log};
use retrie_chainspec::{ChainSpec, primitives::Header};
use retrie_log_tables::{INDEX_CONTRACT, TableBuilder, TableSpan, set_input};
use revm::DatabaseCommit;

/// Stores the roots that are due in the block of `header`, whose transactions have these hashes and
/// are all executed. The table of the block itself follows from its receipts, those of several blocks
/// from its ancestors alone.
pub(crate) fn store_roots(
    spec: &ChainSpec,
    header: &Header,
    hashes: impl Iterator<Item = B256>,
    tables: &dyn BlockHashes,
    executor: &mut BlockExecution<'_, '_, '_>,
) -> Result<(), ExecutionError> {
    let number = header.number;
    let Some(active_from) = spec.index_tables_block().filter(|block| number >= *block) else {
        return Ok(());
    };
    let failed = |error| database_error(number, None, error);
    if !executor.evm_mut().db_mut().has_code(INDEX_CONTRACT).map_err(failed)? {
        return Ok(());
    }
    let mut own = TableBuilder::default();
    let logs: Vec<&[Log]> = executor.receipts.iter().map(|receipt| &receipt.logs[..]).collect();
    own.add_block(number, &header.parent_hash, hashes.zip(logs));
    let own = own.finish().root();
    for span in TableSpan::due_at(number, active_from) {
        let root = match span.size() {
            1 => own,
            _ => {
                let root = tables.table_root(span).map_err(|error| failed(error.into()))?;
                root.ok_or_else(|| failed(DatabaseError::MissingTable(span)))?
            }
        };
        store(number, span, root, executor)?;
    }
    Ok(())
}

/// Calls the index contract as the system does.
fn store(
    number: u64,
    span: TableSpan,
    root: B256,
    executor: &mut BlockExecution<'_, '_, '_>,
) -> Result<(), ExecutionError> {
    let evm = executor.evm_mut();
    let outcome = evm.transact_system_call(SYSTEM_ADDRESS, INDEX_CONTRACT, set_input(span, root));
    let outcome = outcome.map_err(BlockExecutionError::msg);
    let outcome = map_execution_error(number, None, evm.db_mut(), outcome)?;
    if !outcome.result.is_success() {
        let reason = format!("the call of the index contract {INDEX_CONTRACT} fails (EIP-8304)");
        return Err(ExecutionError::InvalidBlock { number, reason });
    }
    evm.db_mut().commit(outcome.state);
    map_execution_error(number, None, evm.db_mut(), Ok(()))
}
