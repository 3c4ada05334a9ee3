//! The execution of a block without an access list, whose reads tell what its root will need, if the
//! backend fetches more for that than was read.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | the caller | executes | | |
//! | `read-hint` | tells the states which keys were read: most of them are written, too, and what their root needs beside the values may be fetched until then | [`WAITING`] keys; more are not told | the block is executed |

use super::Tree;
use crate::StatesSession;
use alloy_primitives::{Address, B256};
use crossbeam_channel::{Receiver, Sender, bounded};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::{ExecutionError, ExecutionInput, ExecutionOutcome, execute_block};
use retrie_state::{StateError, StateKey, StateReader, Value};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Transactions from which on a thread pays.
const FEWEST: usize = 16;
/// Keys that may wait to be told.
const WAITING: usize = 4096;
/// Keys in a hint.
const HINTED: usize = 32;

impl Tree<'_> {
    /// Executes a block on the state of its parent, as `execute_block` does, and tells the states on the
    /// way what it reads. Nothing waits for that.
    pub(super) fn execute_telling(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        session: &StatesSession<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<ExecutionOutcome, ExecutionError> {
        if block.transaction_count() < FEWEST || !session.heeds_reads() {
            return execute_block(spec, block, input);
        }
        let (read, told) = bounded(WAITING);
        let is_executed = AtomicBool::new(false);
        thread::scope(|scope| {
            let hint = || tell(session, &told, &is_executed);
            let thread = thread::Builder::new().name("read-hint".into()).spawn_scoped(scope, hint);
            if thread.is_err() {
                return execute_block(spec, block, input);
            }
            let state = Telling { below: input.state, read };
            let outcome = execute_block(spec, block, ExecutionInput { state: &state, ..input });
            is_executed.store(true, Relaxed);
            outcome
        })
    }
}

/// Hints at keys until the block is executed.
fn tell(session: &StatesSession<'_>, told: &Receiver<StateKey>, is_executed: &AtomicBool) {
    while let Ok(first) = told.recv() {
        if is_executed.load(Relaxed) {
            return;
        }
        let more = told.try_iter().take(HINTED - 1);
        session.hint_read(&std::iter::once(first).chain(more).collect::<Vec<_>>());
    }
}

/// A state that says which keys are read.
struct Telling<'a> {
    below: &'a dyn StateReader,
    read: Sender<StateKey>,
}

impl StateReader for Telling<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        let value = self.below.get(key)?;
        // Nobody has to know.
        let _ = self.read.try_send(*key);
        Ok(value)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        self.below.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        self.below.some_slots(address, limit)
    }
}
