//! Error texts of halted executions. geth's texts include the failing step.

use super::halt_text;
use retrie_execution::EvmSimulation;
use revm::{
    bytecode::opcode::OpCode,
    context::{TxEnv, result::HaltReason},
    inspector::Inspector,
    interpreter::{Interpreter, interpreter_types::Jumps},
};
use std::borrow::Cow;

/// Most stack items.
const STACK_LIMIT: usize = 1024;

/// The error text of a halted execution of `tx`. If the text includes the failing step, `tx` is
/// executed again to find it; so the state must be the one before `tx`.
pub(crate) fn halt_text_with_step(
    simulation: &mut EvmSimulation<'_>,
    tx: &TxEnv,
    reason: &HaltReason,
) -> String {
    let mut last = LastStep::default();
    let words: fn(u8, usize) -> String = match reason {
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => {
            |opcode, _| format!("invalid opcode: {}", opcode_name(opcode))
        }
        HaltReason::StackUnderflow | HaltReason::StackOverflow => stack_text,
        reason => return halt_text(reason),
    };
    match simulation.inspect(tx.clone(), &mut last) {
        Ok(_) => words(last.opcode, last.stack),
        Err(_) => halt_text(reason),
    }
}

/// geth's name for an opcode, including those of EOF, which no fork has.
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

/// The error text of a stack underflow or overflow with `len` items before the opcode. It does not
/// rely on revm's reason, because revm reports an overflow when DUP does not find its item.
pub(crate) fn stack_text(opcode: u8, len: usize) -> String {
    let io = |known: OpCode| (known.inputs().into(), known.outputs().into());
    let (inputs, outputs): (usize, usize) = OpCode::new(opcode).map_or((0, 0), io);
    if len < inputs {
        return format!("stack underflow ({len} <=> {inputs})");
    }
    format!("stack limit reached {len} ({})", STACK_LIMIT + inputs - outputs)
}

/// Remembers the last step, i.e. the step at which the outermost frame halted.
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
