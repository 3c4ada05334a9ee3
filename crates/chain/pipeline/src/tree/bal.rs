//! Execution of a block that came with its block access list (BAL, EIP-7928).
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | `list-read`, up to 4 | prefetches what the list names from the parent's state | gas limit / 2000 keys | all keys are read, or the block is executed |
//! | `list-hint` | tells the stores which keys the list writes, so that they fetch what the root needs before the delta comes | [`KEYS_PER_HINT`] keys at a time | all keys were passed on, or the block is executed |
//! | `execute`, if asked for | executes transactions in parallel ([`execute_block_in_parallel`]) | its own rules | the block is executed |
//! | the caller | everything else | | |
//!
//! The block waits for neither `list-read` nor `list-hint`. If one of these threads cannot start,
//! execution is only slower.

use super::BlockTree;
use crate::SessionSet;
use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::{
    BlockAccessList, ExecutionError, ExecutionInput, ExecutionOutcome, PrefetchedState,
    execute_block_in_parallel,
};
use retrie_state::StateKey;
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// One reader thread is started per this many keys.
const KEYS_PER_READER: usize = 64;
/// Largest number of reader threads. They wait for the disk, not for a core.
const MAX_READERS: usize = 4;
/// Keys in one hint.
const KEYS_PER_HINT: usize = 256;

impl BlockTree<'_> {
    /// Executes a block on the state of its parent, as `execute_block` does, with help from its
    /// BAL.
    pub(super) fn execute_with_list(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        list: &BlockAccessList,
        session: &SessionSet<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<ExecutionOutcome, ExecutionError> {
        let prefetched = PrefetchedState::new(input.state, list, block.gas_limit);
        let (tasks, is_executed) = (session.root_tasks(), AtomicBool::new(false));
        let hint = || {
            for keys in written(list).chunks(KEYS_PER_HINT) {
                if is_executed.load(Relaxed) {
                    return;
                }
                tasks.prefetch(keys);
            }
        };
        let outcome = thread::scope(|scope| {
            let _end = PrefetchStopGuard(&prefetched, &is_executed);
            let start = |name: &str| thread::Builder::new().name(name.into());
            for _ in 0..prefetched.len().div_ceil(KEYS_PER_READER).min(MAX_READERS) {
                let _ = start("list-read").spawn_scoped(scope, || prefetched.fetch());
            }
            let _ = start("list-hint").spawn_scoped(scope, hint);
            let input = ExecutionInput { state: &prefetched, ..input };
            // A single transaction gains nothing from other threads.
            let threads = if block.transaction_count() < 2 { 0 } else { self.execution_threads };
            execute_block_in_parallel(spec, block, input, list, threads)
        })?;
        self.metrics.transactions_ahead.inc_by(outcome.precomputed_transactions);
        Ok(outcome)
    }
}

/// Keys that the BAL writes.
fn written(list: &BlockAccessList) -> Vec<StateKey> {
    let mut keys = Vec::new();
    for account in list {
        let is_same = account.balance_changes.is_empty()
            && account.nonce_changes.is_empty()
            && account.code_changes.is_empty();
        if !is_same {
            keys.push(StateKey::Account(account.address));
        }
        let slot = |slot| StateKey::Slot(account.address, B256::from(slot));
        keys.extend(account.storage_changes.iter().map(|changes| slot(changes.slot)));
    }
    keys
}

/// Stops the helper threads when dropped.
struct PrefetchStopGuard<'a>(&'a PrefetchedState<'a>, &'a AtomicBool);

impl Drop for PrefetchStopGuard<'_> {
    fn drop(&mut self) {
        self.0.stop();
        self.1.store(true, Relaxed);
    }
}
