//! Error texts of steps and frames, in geth's wording.

use super::gas_cost::is_defined;
use crate::geth_errors::{opcode_name, stack_text};
use alloy_primitives::{Address, U256};
use retrie_execution::InspectorContext;
use revm::{
    bytecode::opcode,
    context_interface::{Cfg, ContextTr},
    interpreter::{
        CallInputs, InstructionResult, Interpreter, InterpreterResult,
        interpreter_types::{Immediates, RuntimeFlag},
    },
    precompile::{PrecompileHalt, PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
};

/// The error of a creation that cannot pay for storing its code.
pub(super) const NO_GAS_FOR_CODE: &str = "contract creation code storage out of gas";

/// Whether revm's result means out of gas.
pub(super) const fn is_lack_of_gas(result: InstructionResult) -> bool {
    use InstructionResult::*;
    matches!(
        result,
        OutOfGas | MemoryOOG | MemoryLimitOOG | InvalidOperandOOG | ReentrancySentryOOG
    )
}

/// The error of a step that failed after its gas was taken.
pub(super) fn step_error(
    result: InstructionResult,
    op: u8,
    height: usize,
    interp: &Interpreter,
) -> String {
    use InstructionResult::*;
    match result {
        InvalidJump => "invalid jump destination".into(),
        OutOfOffset => "return data out of bounds".into(),
        CallNotAllowedInsideStatic | StateChangeDuringStaticCall => "write protection".into(),
        StackUnderflow | StackOverflow => match op {
            // Their immediate operand sets the number of items that they need.
            opcode::DUPN | opcode::SWAPN | opcode::EXCHANGE => {
                let needed = items_of_operand(op, operand(interp));
                format!("stack underflow ({height} <=> {needed})")
            }
            _ => stack_text(op, height),
        },
        InvalidImmediateEncoding => {
            format!("invalid opcode: {} (operand: {:#04x})", opcode_name(op), operand(interp))
        }
        _ if is_defined(op, interp.runtime_flag.spec_id()) => format!("{result:?}"),
        _ => format!("invalid opcode: {}", opcode_name(op)),
    }
}

/// The immediate operand of the opcode; zero beyond the end of the code.
fn operand(interp: &Interpreter) -> u8 {
    interp.bytecode.read_slice(1).first().copied().unwrap_or_default()
}

/// Number of stack items that the opcode needs (EIP-8024).
fn items_of_operand(op: u8, operand: u8) -> usize {
    let single = (usize::from(operand) + 145) % 256;
    match op {
        opcode::DUPN => single,
        opcode::SWAPN => single + 1,
        _ => {
            let (q, r) = (usize::from((operand ^ 143) / 16), usize::from((operand ^ 143) % 16));
            let (n, m) = if q < r { (q + 1, r + 1) } else { (r + 1, 29 - q) };
            n.max(m) + 1
        }
    }
}

/// The error of a call in which no step failed.
pub(super) fn call_error(
    context: &InspectorContext<'_>,
    inputs: &CallInputs,
    result: InstructionResult,
) -> Option<String> {
    use InstructionResult::*;
    Some(match result {
        result if result.is_ok() => return None,
        CallTooDeep => "max call depth exceeded".into(),
        OutOfFunds | OverflowPayment => "insufficient balance for transfer".into(),
        PrecompileError => precompile_error(context, inputs),
        PrecompileOOG => "out of gas".into(),
        result if is_lack_of_gas(result) => "out of gas".into(),
        other => format!("{other:?}"),
    })
}

/// The error of a creation in which no step failed.
pub(super) fn creation_error(
    context: &InspectorContext<'_>,
    result: &InterpreterResult,
    has_address: bool,
) -> Option<String> {
    use InstructionResult::*;
    Some(match result.result {
        // revm reports success if the creator's nonce is at its maximum.
        result if result.is_ok() && has_address => return None,
        result if result.is_ok() => "nonce uint64 overflow".into(),
        CallTooDeep => "max call depth exceeded".into(),
        OutOfFunds | OverflowPayment => "insufficient balance for transfer".into(),
        NonceOverflow => "nonce uint64 overflow".into(),
        CreateCollision => "contract address collision".into(),
        CreateContractStartingWithEF => "invalid code: must not begin with 0xef".into(),
        CreateContractSizeLimit => {
            let (size, limit) = (result.output.len(), context.cfg().max_code_size());
            // Before Amsterdam geth charges the gas for the code before it checks the size.
            let is_paid_first = !context.cfg().spec.is_enabled_in(SpecId::AMSTERDAM);
            let price = context.cfg().gas_params().code_deposit_cost(size);
            if is_paid_first && result.gas.remaining() < price {
                return Some(NO_GAS_FOR_CODE.into());
            }
            format!("max code size exceeded: code size {size} limit {limit}")
        }
        result if is_lack_of_gas(result) => NO_GAS_FOR_CODE.into(),
        other => format!("{other:?}"),
    })
}

/// The error of a precompile. The precompile is executed again, because revm keeps the reason only
/// for the outermost frame.
fn precompile_error(context: &InspectorContext<'_>, inputs: &CallInputs) -> String {
    let spec = PrecompileSpecId::from_spec_id(context.cfg().spec);
    let precompile = Precompiles::new(spec).get(&inputs.bytecode_address);
    let input = inputs.input.as_bytes(context);
    let outcome = precompile.map(|one| one.execute(&input, inputs.gas_limit, inputs.reservoir));
    let output = outcome.and_then(Result::ok);
    let reason = output.as_ref().and_then(|output| output.halt_reason());
    match reason {
        Some(reason) => {
            let words = precompile_halt_text(reason);
            // geth charges the gas before it checks the input length.
            let is_of_length = words == WRONG_LENGTH || words == WRONG_MODEXP;
            let gas = least_gas(&inputs.bytecode_address, &input);
            if is_of_length && gas > inputs.gas_limit { "out of gas".into() } else { words }
        }
        None => "precompile failed".into(),
    }
}

const WRONG_LENGTH: &str = "invalid input length";
const WRONG_MODEXP: &str = "one or more of base/exponent/modulus length exceeded 1024 bytes";

/// The least gas of a precompile for an input of invalid length: point evaluation (EIP-4844),
/// BLS12-381 (EIP-2537; the discount for several points is ignored), and MODEXP.
fn least_gas(address: &Address, input: &[u8]) -> u64 {
    match address.into_word().0[31] {
        0x05 => least_gas_of_modexp(input),
        0x0a => 50_000,
        0x0b => 375,
        0x0c if input.len() / 160 == 1 => 12_000,
        0x0d => 600,
        0x0e if input.len() / 288 == 1 => 22_500,
        0x0f => 37_700 + 32_600 * (input.len() as u64 / 384),
        0x10 => 5_500,
        0x11 => 23_800,
        _ => 0,
    }
}

/// The least gas of MODEXP for numbers of these lengths, one of which exceeds 1,024 bytes
/// (EIP-7883). Before Osaka any length is valid and the gas is a fraction of this.
fn least_gas_of_modexp(input: &[u8]) -> u64 {
    let length = |at: usize| {
        let mut word = [0; 32];
        let there = input.get(32 * at..).unwrap_or_default();
        let known = there.len().min(32);
        word[..known].copy_from_slice(&there[..known]);
        U256::from_be_bytes(word).saturating_to::<u64>()
    };
    let words = length(0).max(length(2)).div_ceil(8);
    let iterations = length(1).saturating_sub(32).saturating_mul(16).max(1);
    words.saturating_mul(words).saturating_mul(2).saturating_mul(iterations).max(500)
}

/// geth's text for the reason, if geth has the same reason.
fn precompile_halt_text(reason: &PrecompileHalt) -> String {
    use PrecompileHalt::*;
    let words = match reason {
        Blake2WrongLength
        | BlobInvalidInputLength
        | KzgInvalidInputLength
        | Bls12381ScalarInputLength
        | Bls12381G1AddInputLength
        | Bls12381G1MsmInputLength
        | Bls12381G2AddInputLength
        | Bls12381G2MsmInputLength
        | Bls12381PairingInputLength
        | Bls12381MapFpToG1InputLength
        | Bls12381MapFp2ToG2InputLength => WRONG_LENGTH,
        Blake2WrongFinalIndicatorFlag => "invalid final flag",
        ModexpEip7823LimitSize => WRONG_MODEXP,
        Bn254FieldPointNotAMember => "invalid fp.Element encoding",
        Bn254AffineGFailedToCreate => "point is not on curve",
        Bn254PairLength => "bad elliptic curve pairing size",
        BlobMismatchedVersion => "mismatched versioned hash",
        Bls12381FpPaddingInvalid => "invalid field element top bytes",
        Bls12381G1NotOnCurve | Bls12381G2NotOnCurve => "invalid point: not on curve",
        Bls12381G1NotInSubgroup => "g1 point is not on correct subgroup",
        Bls12381G2NotInSubgroup => "g2 point is not on correct subgroup",
        other => return other.to_string(),
    };
    words.into()
}
