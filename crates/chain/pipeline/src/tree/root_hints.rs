//! Execution of a block without a BAL. Meanwhile a thread tells the stores what the block reads and
//! writes, if a backend can use it to prepare the state root.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | the caller | executes | | |
//! | `root-hint` | tells the stores which keys were read: most of them are also written, so the stores can fetch the nodes that the root needs; and what each transaction wrote, so that they can compute parts of the root | [`HINT_QUEUE`] keys and transactions; more are dropped | the block is executed |

use super::BlockTree;
use crate::{SessionSet, store_set::RootTaskSet};
use alloy_primitives::{Address, B256};
use crossbeam_channel::{Receiver, Sender, bounded};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::{
    ExecutionError, ExecutionInput, ExecutionOutcome, execute_block, execute_block_with_observer,
};
use retrie_state::{StateDelta, StateError, StateKey, StateReader, StateValue};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Smallest number of transactions for which the thread is worth its start.
const MIN_TRANSACTIONS: usize = 16;
/// Hints that may wait in the channel.
const HINT_QUEUE: usize = 4096;
/// Hints that are taken from the channel at a time.
const HINTS_PER_CALL: usize = 32;

/// One hint of the execution.
enum RootHint {
    /// A key that was read.
    Read(StateKey),
    /// Changes of one transaction, and of the system calls before it.
    Wrote(StateDelta),
}

impl BlockTree<'_> {
    /// Executes a block on the state of its parent, as `execute_block` does, and sends hints of its
    /// reads and writes to the stores. The execution never waits for the stores.
    pub(super) fn execute_with_hints(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        session: &SessionSet<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<ExecutionOutcome, ExecutionError> {
        let tasks = session.root_tasks();
        if block.transaction_count() < MIN_TRANSACTIONS || tasks.is_empty() {
            return execute_block(spec, block, input);
        }
        let (sender, hints) = bounded(HINT_QUEUE);
        let is_executed = AtomicBool::new(false);
        thread::scope(|scope| {
            let forward = || forward_hints(&tasks, &hints, &is_executed);
            let thread =
                thread::Builder::new().name("root-hint".into()).spawn_scoped(scope, forward);
            if thread.is_err() {
                return execute_block(spec, block, input);
            }
            let state = HintingState { below: input.state, hints: sender.clone() };
            let input = ExecutionInput { state: &state, ..input };
            let outcome = if tasks.prepares_root() {
                let mut observer = |_, delta| {
                    // A full channel drops the hint.
                    let _ = sender.try_send(RootHint::Wrote(delta));
                    Ok(())
                };
                execute_block_with_observer(spec, block, input, &mut observer)
            } else {
                execute_block(spec, block, input)
            };
            is_executed.store(true, Relaxed);
            // The thread ends once all senders are gone.
            drop((sender, state));
            outcome
        })
    }
}

/// Passes hints to the stores until the block is executed.
fn forward_hints(tasks: &RootTaskSet<'_>, hints: &Receiver<RootHint>, is_executed: &AtomicBool) {
    while let Ok(first) = hints.recv() {
        let (mut read, mut wrote) = (Vec::new(), Vec::new());
        for one in std::iter::once(first).chain(hints.try_iter().take(HINTS_PER_CALL - 1)) {
            match one {
                RootHint::Read(key) => read.push(key),
                RootHint::Wrote(delta) => wrote.push(delta),
            }
        }
        if is_executed.load(Relaxed) {
            return;
        }
        if !read.is_empty() {
            tasks.prefetch(&read);
        }
        for delta in wrote {
            if is_executed.load(Relaxed) {
                return;
            }
            tasks.prepare_root(&delta);
        }
    }
}

/// A state that sends a hint for every key that is read.
struct HintingState<'a> {
    below: &'a dyn StateReader,
    hints: Sender<RootHint>,
}

impl StateReader for HintingState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let value = self.below.get(key)?;
        // A full channel drops the hint.
        let _ = self.hints.try_send(RootHint::Read(*key));
        Ok(value)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.below.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.below.some_slots(address, limit)
    }
}
