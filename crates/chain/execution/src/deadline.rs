//! Ends an execution that takes too long.
//!
//! An RPC call may loop until its gas is used up. The EVM checks the clock when a frame begins and
//! at one JUMPDEST in [`CHECK_INTERVAL`]; every loop passes a JUMPDEST, and code between two of
//! them is short. Block execution has no deadline and no extra cost: it keeps the original
//! JUMPDEST.

use crate::{block_state::ReadFailure, evm::BlockDatabase};
use alloy_evm::eth::EthEvmContext;
use revm::{
    bytecode::opcode::JUMPDEST,
    context_interface::context::ContextError,
    handler::instructions::EthInstructions,
    interpreter::{
        Instruction, InstructionContext, InstructionExecResult, InstructionResult,
        interpreter::EthInterpreter,
    },
};
use std::time::Instant;

/// Number of JUMPDESTs between two checks of the clock.
const CHECK_INTERVAL: u32 = 4096;

/// The time at which an execution must end, and whether it was ended for that reason.
#[derive(Debug)]
pub(crate) struct ExecutionDeadline {
    end: Instant,
    countdown: u32,
    passed: bool,
}

impl ExecutionDeadline {
    /// A deadline at `end`.
    pub(crate) const fn new(end: Instant) -> Self {
        Self { end, countdown: CHECK_INTERVAL, passed: false }
    }

    /// Whether an execution was ended by this deadline.
    pub(crate) const fn has_passed(&self) -> bool {
        self.passed
    }

    fn look(&mut self) -> bool {
        self.passed |= Instant::now() >= self.end;
        self.passed
    }

    const fn is_time_to_look(&mut self) -> bool {
        self.countdown -= 1;
        if self.countdown > 0 {
            return false;
        }
        self.countdown = CHECK_INTERVAL;
        true
    }
}

/// Fails if the state has a deadline and it has passed.
pub(crate) fn check<D: BlockDatabase>(
    context: &mut EthEvmContext<D>,
) -> Result<(), ContextError<ReadFailure>> {
    let is_over = context.journaled_state.database.deadline().is_some_and(ExecutionDeadline::look);
    if is_over { Err(too_late()) } else { Ok(()) }
}

fn too_late() -> ContextError<ReadFailure> {
    ContextError::Custom("the deadline has passed".into())
}

/// Replaces JUMPDEST by one that checks the clock.
pub(crate) fn install_clock_check<D: BlockDatabase>(
    instructions: &mut EthInstructions<EthInterpreter, EthEvmContext<D>>,
) {
    instructions.insert_instruction(JUMPDEST, Instruction::new(jumpdest), 1);
}

fn jumpdest<D: BlockDatabase>(
    context: InstructionContext<'_, EthEvmContext<D>, EthInterpreter>,
) -> InstructionExecResult {
    if let Some(deadline) = context.host.journaled_state.database.deadline()
        && deadline.is_time_to_look()
        && deadline.look()
    {
        context.host.error = Err(too_late());
        return Err(InstructionResult::FatalExternalError);
    }
    Ok(())
}
