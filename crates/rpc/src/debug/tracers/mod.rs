//! geth's tracers.
//!
//! ```text
//!  revm --Inspector--> EventInspector --TracerHooks--> struct logger, call tracers, prestate, ..
//!                       |  gas_cost: the cost of a step as geth computes it
//!                       '- one for all tracers of a mux
//! ```
//!
//! geth calls a tracer's step hook after adding up the gas and before executing the step, and its
//! frame hook for every call, even if the call fails before it starts. [`EventInspector`] produces
//! these events, with geth's numbers and error texts, from revm's inspector calls.

mod authorizations;
mod calls;
mod config;
mod erc7562;
mod events;
mod flat;
mod four_byte;
mod gas_cost;
mod preimages;
mod prestate;
mod state;
mod step_errors;
mod struct_logger;
mod tree;

pub(super) use config::TracerConfig;
pub(super) use events::EventInspector;

use crate::RpcResult;
use alloy_primitives::{Address, Bytes, Log, U256};
use retrie_execution::EvmSimulation;
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

/// A trace in JSON.
pub(super) type TraceJson = Box<RawValue>;

/// Which events and data a tracer needs.
#[derive(Clone, Copy, Debug, Default)]
struct TracerNeeds {
    /// Step events.
    steps: bool,
    /// The whole stack in steps, not only its top seven items.
    stack: bool,
    /// The memory before each step.
    memory: bool,
    /// The return data of the last call in each step.
    return_data: bool,
    /// Error texts of frames.
    failures: bool,
}

impl TracerNeeds {
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

/// A step, with the values before its execution.
struct OpcodeStep<'s> {
    pc: usize,
    op: u8,
    gas: u64,
    cost: u64,
    /// 1 for the outermost frame.
    depth: usize,
    /// The transaction's refund counter, including this step.
    refund: u64,
    /// Why the step was not executed.
    error: Option<&'s str>,
    /// The account whose storage the code uses.
    address: Address,
    /// The stack or its top items, the top last.
    stack: &'s [U256],
    memory: &'s [u8],
    /// Memory size in bytes before the step.
    memory_size: usize,
    return_data: &'s [u8],
    /// The interpreter after the step. If the step was executed, the memory contains all bytes that
    /// it read.
    after: &'s Interpreter,
}

impl OpcodeStep<'_> {
    /// The stack item with `below` items above it.
    fn item(&self, below: usize) -> Option<U256> {
        let at = self.stack.len().checked_sub(below + 1)?;
        self.stack.get(at).copied()
    }

    fn item_address(&self, below: usize) -> Option<Address> {
        self.item(below).map(|item| Address::from_word(item.into()))
    }

    /// A range of memory that the step reads, zero-padded. `None` if more than 1 MiB of it lies
    /// beyond the memory before the step: geth's tracers skip such ranges.
    fn memory_range(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        const MOST: usize = 1 << 20;
        // As geth, uses the lower 64 bits; a larger offset or size makes the step fail.
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

/// The start of a frame: a call, a creation, or a SELFDESTRUCT.
struct FrameStart {
    /// The opcode.
    kind: u8,
    from: Address,
    to: Address,
    input: Bytes,
    gas: u64,
    /// `None` for a STATICCALL.
    value: Option<U256>,
    /// 0 for the outermost frame.
    depth: usize,
}

/// The end of a frame.
struct FrameEnd {
    output: Bytes,
    gas_used: u64,
    /// The error text, if the frame failed.
    error: Option<String>,
    depth: usize,
}

/// The hooks of a tracer, as geth calls them.
trait TracerHooks: Send {
    fn needs(&self) -> TracerNeeds;

    /// The transaction starts, under the rules of this fork.
    fn on_start(&mut self, _: SpecId) {}

    fn on_step(&mut self, _: &OpcodeStep<'_>, _: &mut dyn CurrentState) {}

    fn on_enter(&mut self, _: &FrameStart) {}

    fn on_exit(&mut self, _: &FrameEnd) {}

    /// `index` is the number of logs before it in the transaction that are not reverted so far.
    fn on_log(&mut self, _log: &Log, _index: usize) {}

    /// Bytes recorded so far.
    fn recorded(&self) -> usize {
        0
    }

    /// The trace.
    ///
    /// # Errors
    /// If the state before the transaction cannot be read.
    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson>;
}

/// An executed transaction, whose changes are not committed yet.
pub(super) struct TransactionEnd<'e, 'a> {
    pub(super) context: Option<TransactionContext>,
    pub(super) tx: &'e TxEnv,
    pub(super) outcome: &'e ResultAndState<HaltReason>,
    /// The state before the transaction.
    pub(super) simulation: &'e EvmSimulation<'a>,
    /// Number of logs of the block before the transaction.
    pub(super) logs_before: usize,
}
