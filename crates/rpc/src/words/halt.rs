//! The step at which an execution halts, which geth names.

use super::halt_words;
use retrie_execution::Simulation;
use revm::{
    bytecode::opcode::OpCode,
    context::{TxEnv, result::HaltReason},
    inspector::Inspector,
    interpreter::{Interpreter, interpreter_types::Jumps},
};

/// Items that a stack holds.
const STACK_LIMIT: usize = 1024;

/// How the execution of `tx` halted. Where the words name the step, it is executed again to find
/// that, so the state must be the one that it halted on.
pub(crate) fn words_of_halt(
    simulation: &mut Simulation<'_>,
    tx: &TxEnv,
    reason: &HaltReason,
) -> String {
    let mut last = LastStep::default();
    let words: fn(u8, usize) -> String = match reason {
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => |opcode, _| {
            let name = OpCode::new(opcode).map(OpCode::as_str);
            let name = name.map_or_else(|| format!("opcode {opcode:#x} not defined"), Into::into);
            format!("invalid opcode: {name}")
        },
        HaltReason::StackUnderflow | HaltReason::StackOverflow => stack_words,
        reason => return halt_words(reason),
    };
    match simulation.inspect(tx.clone(), &mut last) {
        Ok(_) => words(last.opcode, last.stack),
        Err(_) => halt_words(reason),
    }
}

/// That a stack of `len` items is too low or too high for an opcode. Which of both follows from these:
/// revm calls it an overflow when DUP does not find its item.
pub(crate) fn stack_words(opcode: u8, len: usize) -> String {
    let io = |known: OpCode| (known.inputs().into(), known.outputs().into());
    let (inputs, outputs): (usize, usize) = OpCode::new(opcode).map_or((0, 0), io);
    if len < inputs {
        return format!("stack underflow ({len} <=> {inputs})");
    }
    format!("stack limit reached {len} ({})", STACK_LIMIT + inputs - outputs)
}

/// Remembers the last step: of an execution that halts, the one at which its outermost frame did.
#[derive(Default)]
struct LastStep {
    opcode: u8,
    stack: usize,
}

impl<C> Inspector<C> for LastStep {
    fn step(&mut self, interpreter: &mut Interpreter, _: &mut C) {
        self.opcode = interpreter.bytecode.opcode();
        self.stack = interpreter.stack.len();
    }
}
