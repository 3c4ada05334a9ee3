//! Ends an execution that takes too long.
//!
//! Calls of strangers may loop until their gas is gone. The clock is looked at when a frame begins
//! and, every so often, at a JUMPDEST, which every loop passes; code between two of them is short.
//! Block execution has no deadline and pays nothing: it keeps its own JUMPDEST.

use crate::{block_state::ReadFailed, evm::BlockDatabase};
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

/// JUMPDESTs between two looks at the clock.
const EVERY: u32 = 4096;

/// When an execution has to end, and whether it did for that reason.
#[derive(Debug)]
pub(crate) struct Deadline {
    end: Instant,
    countdown: u32,
    passed: bool,
}

impl Deadline {
    /// An execution that has to end at `end`.
    pub(crate) const fn new(end: Instant) -> Self {
        Self { end, countdown: EVERY, passed: false }
    }

    /// Whether an execution was ended.
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
        self.countdown = EVERY;
        true
    }
}

/// Fails if the deadline of this state, if it has one, is over.
pub(crate) fn check<D: BlockDatabase>(
    context: &mut EthEvmContext<D>,
) -> Result<(), ContextError<ReadFailed>> {
    let is_over = context.journaled_state.database.deadline().is_some_and(Deadline::look);
    if is_over { Err(too_late()) } else { Ok(()) }
}

fn too_late() -> ContextError<ReadFailed> {
    ContextError::Custom("the deadline is over".into())
}

/// Makes JUMPDEST look at the clock.
pub(crate) fn watch<D: BlockDatabase>(
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
