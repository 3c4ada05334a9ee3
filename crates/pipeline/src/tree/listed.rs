//! The execution of a block that came with its access list (EIP-7928).
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | `list-read`, some | what the list names, read from the parent's state before it is asked for | gas limit / 2000 keys | all is read, or the block is executed |
//! | `list-hint` | tells the states of the keys that the list says are written, so that what their roots need is there when the delta comes | [`HINTED`] keys at a time | all is told, or the block is executed |
//! | `execute`, where it was asked for | transactions in parallel ([`execute_block_in_parallel`]) | its own rules | the block is executed |
//! | the caller | everything else | | |
//!
//! Nothing waits for the first two: execution begins at once, and a thread that cannot be started is
//! missed by nobody.

use super::Tree;
use crate::StatesSession;
use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::{
    BlockAccessList, ExecutionError, ExecutionInput, ExecutionOutcome, WarmState,
    execute_block_in_parallel,
};
use retrie_state::StateKey;
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Keys below which another thread that reads does not pay.
const KEYS_A_READER: usize = 64;
/// Threads that read, at most: reads wait for the disk, not for a core.
const READERS: usize = 4;
/// Keys in a hint.
const HINTED: usize = 256;

impl Tree<'_> {
    /// Executes a block on the state of its parent, as `execute_block` does, with help from its list.
    pub(super) fn execute_listed(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        list: &BlockAccessList,
        session: &StatesSession<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<ExecutionOutcome, ExecutionError> {
        let warm = WarmState::new(input.state, list, block.gas_limit);
        let is_executed = AtomicBool::new(false);
        let hint = || {
            for keys in written(list).chunks(HINTED) {
                if is_executed.load(Relaxed) {
                    return;
                }
                session.hint(keys);
            }
        };
        let outcome = thread::scope(|scope| {
            let _end = End(&warm, &is_executed);
            let start = |name: &str| thread::Builder::new().name(name.into());
            for _ in 0..warm.len().div_ceil(KEYS_A_READER).min(READERS) {
                let _ = start("list-read").spawn_scoped(scope, || warm.fetch());
            }
            let _ = start("list-hint").spawn_scoped(scope, hint);
            let input = ExecutionInput { state: &warm, ..input };
            // One by itself is done as soon here.
            let threads = if block.transaction_count() < 2 { 0 } else { self.execution_threads };
            execute_block_in_parallel(spec, block, input, list, threads)
        })?;
        self.metrics.transactions_ahead.inc_by(outcome.ahead);
        Ok(outcome)
    }
}

/// Keys that a list says are written.
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

/// Lets the threads that help end when dropped.
struct End<'a>(&'a WarmState<'a>, &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.stop();
        self.1.store(true, Relaxed);
    }
}
