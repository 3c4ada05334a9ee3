//! geth's tracers.
//!
//! ```text
//!  revm --Inspector--> EventInspector --Hooks--> struct logger, call tracers, prestate, ERC-7562 ..
//!                       |  quote: what geth says that a step costs
//!                       '- one for all tracers of a mux
//! ```
//!
//! geth tells a tracer of a step once its gas was added up and before it is executed, and of a frame when it
//! is called, whether it comes to be or not. [`EventInspector`] makes these events, with geth's numbers and
//! words, of what revm tells an inspector; a tracer is what it makes of them.

mod authorizations;
mod calls;
mod config;
mod erc7562;
mod events;
mod flat;
mod four_byte;
mod preimages;
mod prestate;
mod quote;
mod state;
mod struct_logger;
mod tree;
mod words;

pub(super) use config::TracerConfig;
pub(super) use events::EventInspector;

use crate::RpcResult;
use alloy_primitives::{Address, Bytes, Log, U256};
use retrie_execution::Simulation;
use revm::{
    context::{
        TxEnv,
        result::{HaltReason, ResultAndState},
    },
    interpreter::Interpreter,
    primitives::hardfork::SpecId,
};
use revm_inspectors::tracing::TransactionContext;
use serde_json::value::RawValue;
use state::CurrentState;

/// A trace, as JSON.
pub(super) type Trace = Box<RawValue>;

/// What a tracer wants to be told.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// Steps.
    steps: bool,
    /// Of steps the whole stack, not its seven upper items alone.
    stack: bool,
    /// Of steps the memory before them.
    memory: bool,
    /// Of steps what the last call returned.
    return_data: bool,
    /// Why frames fail.
    failures: bool,
}

impl Needs {
    const fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps || other.steps,
            stack: self.stack || other.stack,
            memory: self.memory || other.memory,
            return_data: self.return_data || other.return_data,
            failures: self.failures || other.failures,
        }
    }
}

/// A step, as it was before it was executed.
struct Step<'s> {
    pc: usize,
    op: u8,
    gas: u64,
    cost: u64,
    /// 1 for the outermost frame.
    depth: usize,
    /// The refund counter of the transaction, what this step adds included.
    refund: u64,
    /// Why the step was not executed.
    error: Option<&'s str>,
    /// The account whose storage the code works on.
    address: Address,
    /// The stack, or its upper items, the top last.
    stack: &'s [U256],
    memory: &'s [u8],
    /// Bytes of memory before the step.
    memory_size: usize,
    return_data: &'s [u8],
    /// The interpreter after the step; of a step that was executed, its memory holds all that the step has
    /// read.
    after: &'s Interpreter,
}

impl Step<'_> {
    /// The item that had `below` others above it.
    fn item(&self, below: usize) -> Option<U256> {
        let at = self.stack.len().checked_sub(below + 1)?;
        self.stack.get(at).copied()
    }

    fn item_address(&self, below: usize) -> Option<Address> {
        self.item(below).map(|item| Address::from_word(item.into()))
    }

    /// A range of memory that the step reads, with zeros behind its end; `None` if more than a mebibyte of it
    /// was no memory before, as geth's tracers leave that out.
    fn memory_range(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        const MOST: usize = 1 << 20;
        // geth looks at the lower 64 bits, of steps that fail for the others.
        let at = |below: usize| usize::try_from(self.item(below)?.as_limbs()[0]).ok();
        let (offset, len) = (at(offset)?, at(len)?);
        let memory = self.after.memory.context_memory();
        if offset.checked_add(len)?.saturating_sub(self.memory_size) > MOST {
            return None;
        }
        let mut range = vec![0; len];
        if let Some(there) = memory.get(offset..) {
            let known = there.len().min(len);
            range[..known].copy_from_slice(&there[..known]);
        }
        Some(range)
    }
}

/// A frame that begins: a call, a creation, or the end of a contract.
struct Entry {
    /// The opcode.
    kind: u8,
    from: Address,
    to: Address,
    input: Bytes,
    gas: u64,
    /// None of a STATICCALL.
    value: Option<U256>,
    /// 0 for the outermost.
    depth: usize,
}

/// The end of a frame.
struct Exit {
    output: Bytes,
    gas_used: u64,
    /// Why it failed.
    error: Option<String>,
    depth: usize,
}

/// A tracer, as geth has it.
trait Hooks: Send {
    fn needs(&self) -> Needs;

    /// The transaction begins, by the rules of this fork.
    fn on_start(&mut self, _: SpecId) {}

    fn on_step(&mut self, _: &Step<'_>, _: &mut dyn CurrentState) {}

    fn on_enter(&mut self, _: &Entry) {}

    fn on_exit(&mut self, _: &Exit) {}

    /// `index` counts the logs of the transaction that are not reverted at this time.
    fn on_log(&mut self, _log: &Log, _index: usize) {}

    /// Bytes that it has recorded.
    fn recorded(&self) -> usize {
        0
    }

    /// The trace.
    ///
    /// # Errors
    /// If the state before the transaction cannot be read.
    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<Trace>;
}

/// A transaction that was executed; its changes are not yet part of the state.
pub(super) struct TransactionEnd<'e, 'a> {
    pub(super) context: Option<TransactionContext>,
    pub(super) tx: &'e TxEnv,
    pub(super) outcome: &'e ResultAndState<HaltReason>,
    /// The state before it.
    pub(super) simulation: &'e Simulation<'a>,
    /// Logs of its block before it.
    pub(super) logs_before: usize,
}
