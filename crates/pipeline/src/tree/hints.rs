//! The execution of a block without an access list, which tells on the way what its root will need, if
//! the backend makes more of that than was read.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | the caller | executes | | |
//! | `root-hint` | tells the states which keys were read: most of them are written, too, and what their root needs beside the values may be fetched until then; and what each transaction has written, of which parts of the root may be made | [`WAITING`] keys and transactions; more are not told | the block is executed |

use super::Tree;
use crate::StatesSession;
use alloy_primitives::{Address, B256};
use crossbeam_channel::{Receiver, Sender, bounded};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::{
    ExecutionError, ExecutionInput, ExecutionOutcome, execute_block, execute_block_with_observer,
};
use retrie_state::{StateDelta, StateError, StateKey, StateReader, Value};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Transactions from which on a thread pays.
const FEWEST: usize = 16;
/// Keys and transactions that may wait to be told.
const WAITING: usize = 4096;
/// Keys in a hint.
const HINTED: usize = 32;

/// What the execution tells.
enum Told {
    Read(StateKey),
    /// By a transaction, and by what came before it.
    Wrote(StateDelta),
}

impl Tree<'_> {
    /// Executes a block on the state of its parent, as `execute_block` does, and tells the states on the
    /// way what it reads and writes. Nothing waits for that.
    pub(super) fn execute_telling(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        session: &StatesSession<'_>,
        input: ExecutionInput<'_>,
    ) -> Result<ExecutionOutcome, ExecutionError> {
        let (reads, writes) = (session.heeds_reads(), session.heeds_writes());
        if block.transaction_count() < FEWEST || !(reads || writes) {
            return execute_block(spec, block, input);
        }
        let (tell, told) = bounded(WAITING);
        let is_executed = AtomicBool::new(false);
        thread::scope(|scope| {
            let hint = || pass_on(session, &told, &is_executed);
            let thread = thread::Builder::new().name("root-hint".into()).spawn_scoped(scope, hint);
            if thread.is_err() {
                return execute_block(spec, block, input);
            }
            let state = Telling { below: input.state, tell: reads.then(|| tell.clone()) };
            let input = ExecutionInput { state: &state, ..input };
            let outcome = if writes {
                let mut observer = |_, delta| {
                    // Nobody has to know.
                    let _ = tell.try_send(Told::Wrote(delta));
                    Ok(())
                };
                execute_block_with_observer(spec, block, input, &mut observer)
            } else {
                execute_block(spec, block, input)
            };
            is_executed.store(true, Relaxed);
            // The thread ends once nobody can tell it any more.
            drop((tell, state));
            outcome
        })
    }
}

/// Tells the states until the block is executed.
fn pass_on(session: &StatesSession<'_>, told: &Receiver<Told>, is_executed: &AtomicBool) {
    while let Ok(first) = told.recv() {
        let (mut read, mut wrote) = (Vec::new(), Vec::new());
        for one in std::iter::once(first).chain(told.try_iter().take(HINTED - 1)) {
            match one {
                Told::Read(key) => read.push(key),
                Told::Wrote(delta) => wrote.push(delta),
            }
        }
        if is_executed.load(Relaxed) {
            return;
        }
        if !read.is_empty() {
            session.hint_read(&read);
        }
        for delta in wrote {
            if is_executed.load(Relaxed) {
                return;
            }
            session.foretell(&delta);
        }
    }
}

/// A state that says which keys are read.
struct Telling<'a> {
    below: &'a dyn StateReader,
    tell: Option<Sender<Told>>,
}

impl StateReader for Telling<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        let value = self.below.get(key)?;
        if let Some(tell) = &self.tell {
            // Nobody has to know.
            let _ = tell.try_send(Told::Read(*key));
        }
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
