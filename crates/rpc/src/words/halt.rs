//! The step at which an execution halts, which geth names.

use super::halt_words;
use retrie_execution::Simulation;
use revm::{
    bytecode::opcode::OpCode,
    context::{TxEnv, result::HaltReason},
    inspector::Inspector,
    interpreter::{Interpreter, interpreter_types::Jumps},
};
use std::borrow::Cow;

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
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => {
            |opcode, _| format!("invalid opcode: {}", opcode_name(opcode))
        }
        HaltReason::StackUnderflow | HaltReason::StackOverflow => stack_words,
        reason => return halt_words(reason),
    };
    match simulation.inspect(tx.clone(), &mut last) {
        Ok(_) => words(last.opcode, last.stack),
        Err(_) => halt_words(reason),
    }
}

/// geth's name for an opcode. It has names for those of EOF too, which no fork has.
pub(crate) fn opcode_name(opcode: u8) -> Cow<'static, str> {
    let name = match opcode {
        0xd0 => "DATALOAD",
        0xd1 => "DATALOADN",
        0xd2 => "DATASIZE",
        0xd3 => "DATACOPY",
        0xe0 => "RJUMP",
        0xe1 => "RJUMPI",
        0xe2 => "RJUMPV",
        0xe3 => "CALLF",
        0xe4 => "RETF",
        0xe5 => "JUMPF",
        0xec => "EOFCREATE",
        0xee => "RETURNCONTRACT",
        0xf7 => "RETURNDATALOAD",
        0xf8 => "EXTCALL",
        0xf9 => "EXTDELEGATECALL",
        0xfb => "EXTSTATICCALL",
        _ => match OpCode::new(opcode) {
            Some(opcode) => opcode.as_str(),
            None => return format!("opcode {opcode:#x} not defined").into(),
        },
    };
    name.into()
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
