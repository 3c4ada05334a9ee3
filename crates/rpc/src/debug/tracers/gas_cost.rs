//! The gas cost of a step as geth computes it, and whether the step is executed.
//!
//! revm charges gas in parts while it executes a step. So for a step that runs out of gas, revm
//! does not know the full cost. geth adds up the cost before the execution, and its tracers show
//! that sum with the reason why the step was not executed. This module computes the sum beside
//! revm, from the interpreter and the journal before the step: a constant part, and for some
//! opcodes a dynamic part that depends on stack, memory and state. The numbers come from revm's gas
//! table of the fork.

use super::state::CurrentState;
use crate::geth_errors::stack_text;
use alloy_primitives::{Address, U256};
use retrie_execution::InspectorContext;
use revm::{
    bytecode::opcode::{self, OpCode},
    context_interface::{Cfg, ContextTr, cfg::GasParams, context::SStoreResult},
    interpreter::{
        Interpreter,
        instructions::gas_table_spec,
        interpreter_types::{Jumps, RuntimeFlag},
    },
    primitives::hardfork::SpecId,
    state::TransactionId,
};

const OUT_OF_GAS: &str = "out of gas";
const OVERFLOW: &str = "gas uint64 overflow";
const WRITE_PROTECTION: &str = "write protection";
/// Largest memory size in bytes; a larger memory fails, as its cost would exceed 64 bits.
const MEMORY_LIMIT: u64 = 0x1f_ffff_ffe0;
/// An SSTORE needs more gas than this (EIP-2200).
const SSTORE_SENTRY: u64 = 2_300;
/// Gas of a log without topics and data, of the opcode EXP, of SELFDESTRUCT (EIP-150), and of a
/// second read of an account (EIP-8038).
const LOG_BASE: u64 = 375;
const EXP_BASE: u64 = 10;
const DESTRUCTION_BASE: u64 = 5_000;
const SECOND_READ: u64 = 100;

/// The cost of a step.
#[derive(Debug, Default)]
pub(super) struct StepCost {
    /// Gas, as far as it could be computed before an error.
    pub(super) cost: u64,
    /// Why the step is not executed.
    pub(super) error: Option<String>,
    /// Refund that the step adds before its gas is checked.
    pub(super) refund: i64,
}

/// The cost of the next step as geth computes it.
pub(super) fn step_cost(interp: &Interpreter, context: &mut InspectorContext<'_>) -> StepCost {
    let spec = interp.runtime_flag.spec_id();
    let op = interp.bytecode.opcode();
    if !is_defined(op, spec) {
        return StepCost::default();
    }
    let gas = interp.gas.remaining();
    let mut rates = StepPricing { interp, context, spec, refund: 0 };
    let constant = rates.constant(op);
    let refused = |cost, error: String, refund| StepCost { cost, error: Some(error), refund };
    let (least, most) = stack_bounds(op);
    if interp.stack.len() < least || interp.stack.len() > most {
        return refused(constant, stack_text(op, interp.stack.len()), 0);
    }
    let Some(left) = gas.checked_sub(constant) else {
        return refused(constant, OUT_OF_GAS.into(), 0);
    };
    let Some(memory) = rates.memory_size(op) else {
        return refused(constant, OVERFLOW.into(), 0);
    };
    match rates.dynamic(op, memory, left) {
        Err(reason) => refused(constant, format!("{OUT_OF_GAS}: {reason}"), rates.refund),
        Ok(dynamic) => {
            let cost = constant.saturating_add(dynamic);
            let error = (dynamic > left).then(|| OUT_OF_GAS.into());
            StepCost { cost, error, refund: rates.refund }
        }
    }
}

/// Whether the fork has this opcode.
pub(super) fn is_defined(op: u8, spec: SpecId) -> bool {
    use opcode::*;
    let since = match op {
        INVALID => return false,
        DELEGATECALL => SpecId::HOMESTEAD,
        REVERT | RETURNDATASIZE | RETURNDATACOPY | STATICCALL => SpecId::BYZANTIUM,
        SHL | SHR | SAR | EXTCODEHASH | CREATE2 => SpecId::PETERSBURG,
        CHAINID | SELFBALANCE => SpecId::ISTANBUL,
        BASEFEE => SpecId::LONDON,
        PUSH0 => SpecId::SHANGHAI,
        BLOBHASH | BLOBBASEFEE | TLOAD | TSTORE | MCOPY => SpecId::CANCUN,
        CLZ => SpecId::OSAKA,
        SLOTNUM | DUPN | SWAPN | EXCHANGE => SpecId::AMSTERDAM,
        _ => SpecId::FRONTIER,
    };
    OpCode::new(op).is_some() && spec.is_enabled_in(since)
}

/// The least and the greatest stack height with which the opcode can run.
fn stack_bounds(op: u8) -> (usize, usize) {
    match op {
        opcode::DUPN => return (1, 1023),
        opcode::SWAPN | opcode::EXCHANGE => return (2, 1024),
        _ => {}
    }
    let (inputs, outputs) = OpCode::new(op).map_or((0, 0), |op| op.input_output());
    let (inputs, outputs) = (usize::from(inputs), usize::from(outputs));
    (inputs, 1024 + inputs - outputs)
}

/// The inputs of the cost computation.
struct StepPricing<'p, 'a> {
    interp: &'p Interpreter,
    context: &'p mut InspectorContext<'a>,
    spec: SpecId,
    refund: i64,
}

type GasResult = Result<u64, String>;

impl StepPricing<'_, '_> {
    fn is(&self, since: SpecId) -> bool {
        self.spec.is_enabled_in(since)
    }

    fn params(&self) -> &GasParams {
        self.context.cfg().gas_params()
    }

    /// The stack item with `below` items above it.
    fn item(&self, below: usize) -> U256 {
        self.interp.stack.peek(below).unwrap_or_default()
    }

    fn address(&self, below: usize) -> Address {
        Address::from_word(self.item(below).into())
    }

    const fn own_address(&self) -> Address {
        self.interp.input.target_address
    }

    /// The constant gas of an opcode, which depends only on the fork.
    fn constant(&self, op: u8) -> u64 {
        match op {
            opcode::EXP | opcode::SSTORE | opcode::LOG0..=opcode::LOG4 => 0,
            opcode::SLOAD if self.is(SpecId::BERLIN) => 0,
            opcode::CREATE | opcode::CREATE2 => self.params().create_cost(),
            opcode::SELFDESTRUCT if !self.is(SpecId::BERLIN) => 0,
            opcode::EXTCODESIZE | opcode::EXTCODECOPY if self.is(SpecId::AMSTERDAM) => SECOND_READ,
            _ => gas_table_spec(self.spec)[usize::from(op)].into(),
        }
    }

    /// The memory size in bytes that the step needs; `None` if it exceeds 64 bits.
    fn memory_size(&self, op: u8) -> Option<u64> {
        use opcode::*;
        let range = |offset: usize, len: usize| end(self.item(offset), self.item(len));
        let fixed = |len: u64| end(self.item(0), U256::from(len));
        let bytes = match op {
            KECCAK256 | RETURN | REVERT | LOG0..=LOG4 => range(0, 1)?,
            CALLDATACOPY | CODECOPY | RETURNDATACOPY => range(0, 2)?,
            EXTCODECOPY => range(1, 3)?,
            MLOAD | MSTORE => fixed(32)?,
            MSTORE8 => fixed(1)?,
            MCOPY => end(self.item(0).max(self.item(1)), self.item(2))?,
            CREATE | CREATE2 => range(1, 2)?,
            CALL | CALLCODE => range(5, 6)?.max(range(3, 4)?),
            DELEGATECALL | STATICCALL => range(4, 5)?.max(range(2, 3)?),
            _ => 0,
        };
        bytes.div_ceil(32).checked_mul(32)
    }

    /// Gas for expanding the memory to this size.
    fn memory(&self, size: u64) -> GasResult {
        if size > MEMORY_LIMIT {
            return Err(OVERFLOW.into());
        }
        let cost = |bytes: u64| self.params().memory_cost(bytes.div_ceil(32) as usize);
        let now = self.interp.memory.len() as u64;
        Ok(if size > now { cost(size) - cost(now) } else { 0 })
    }

    /// The dynamic gas of an opcode. `left` gas remains after the constant part.
    fn dynamic(&mut self, op: u8, memory: u64, left: u64) -> GasResult {
        use opcode::*;
        let len = |below: usize| words(self.item(below));
        match op {
            MLOAD | MSTORE | MSTORE8 | RETURN | REVERT => self.memory(memory),
            KECCAK256 => Ok(self.memory(memory)?.saturating_add(len(1).saturating_mul(6))),
            CALLDATACOPY | CODECOPY | RETURNDATACOPY | MCOPY => {
                Ok(self.memory(memory)?.saturating_add(len(2).saturating_mul(3)))
            }
            EXTCODECOPY => {
                let copied = self.memory(memory)?.saturating_add(len(3).saturating_mul(3));
                let second = if self.is(SpecId::AMSTERDAM) { SECOND_READ } else { 0 };
                Ok(copied.saturating_add(self.cold_account(0)).saturating_add(second))
            }
            EXTCODESIZE if self.is(SpecId::AMSTERDAM) => Ok(self.cold_account(0) + SECOND_READ),
            BALANCE | EXTCODESIZE | EXTCODEHASH => Ok(self.cold_account(0)),
            LOG0..=LOG4 => {
                let data = self.item(1).saturating_to::<u64>();
                let log = LOG_BASE.saturating_add(self.params().log_cost(op - LOG0, data));
                Ok(self.memory(memory)?.saturating_add(log))
            }
            EXP => Ok(EXP_BASE + self.params().exp_cost(self.item(1))),
            CREATE | CREATE2 => self.creation(op, memory),
            SLOAD if self.is(SpecId::BERLIN) => Ok(match self.is_warm_slot(self.item(0)) {
                true => self.params().warm_storage_read_cost(),
                false => self.params().cold_storage_cost(),
            }),
            SSTORE => self.store(left),
            SELFDESTRUCT => self.destruction(left),
            CALL | CALLCODE | DELEGATECALL | STATICCALL => self.call(op, memory, left),
            _ => Ok(0),
        }
    }

    fn creation(&self, op: u8, memory: u64) -> GasResult {
        self.refuse_static()?;
        let memory = self.memory(memory)?;
        let size = self.item(2).saturating_to::<u64>();
        let mut per_word = 0;
        if self.is(SpecId::SHANGHAI) {
            let limit = self.context.cfg().max_initcode_size() as u64;
            if size > limit {
                return Err(format!("max initcode size exceeded: code size {size} limit {limit}"));
            }
            per_word += 2;
        }
        if op == opcode::CREATE2 {
            per_word += 6;
        }
        Ok(memory.saturating_add(size.div_ceil(32).saturating_mul(per_word)))
    }

    fn store(&mut self, left: u64) -> GasResult {
        self.refuse_static()?;
        let is_istanbul = self.is(SpecId::ISTANBUL);
        if is_istanbul && left <= SSTORE_SENTRY {
            return Err("not enough gas for reentrancy sentry".into());
        }
        let (address, slot) = (self.own_address(), self.item(0));
        let is_cold = self.is(SpecId::BERLIN) && !self.is_warm_slot(slot);
        let (original_value, present_value) = self.context.original_and_present(address, slot);
        let values = SStoreResult { original_value, present_value, new_value: self.item(1) };
        let params = self.params();
        let cost = params.sstore_static_gas().saturating_add(params.sstore_dynamic_gas(
            is_istanbul,
            &values,
            is_cold,
        ));
        self.refund = params.sstore_refund(is_istanbul, &values);
        Ok(cost)
    }

    fn destruction(&mut self, left: u64) -> GasResult {
        self.refuse_static()?;
        if !self.is(SpecId::TANGERINE) {
            return Ok(0);
        }
        let heir = self.address(0);
        let is_cold = self.is(SpecId::BERLIN) && !self.is_warm(heir);
        if is_cold && left < self.params().selfdestruct_cold_cost() {
            return Err(OUT_OF_GAS.into());
        }
        let own = self.own_address();
        let creates = if self.is(SpecId::SPURIOUS_DRAGON) {
            self.context.is_empty(heir) && !self.context.balance(own).is_zero()
        } else {
            !self.context.exists(heir)
        };
        let cost = self.params().selfdestruct_cost(creates, is_cold);
        let base = if self.is(SpecId::BERLIN) { 0 } else { DESTRUCTION_BASE };
        Ok(base.saturating_add(cost))
    }

    fn call(&mut self, op: u8, memory: u64, left: u64) -> GasResult {
        let has_value = matches!(op, opcode::CALL | opcode::CALLCODE);
        let has_value = has_value && !self.item(2).is_zero();
        if op == opcode::CALL && has_value {
            self.refuse_static()?;
        }
        let to = self.address(1);
        let cold = self.cold_account(1);
        let mut left = left.checked_sub(cold).ok_or(OUT_OF_GAS)?;
        let value = if has_value { self.params().transfer_value_cost() } else { 0 };
        let mut own = self.memory(memory)?.saturating_add(value);
        if op == opcode::CALL {
            if left < own {
                return Err(OUT_OF_GAS.into());
            }
            let is_spurious = self.is(SpecId::SPURIOUS_DRAGON);
            let creates = match is_spurious {
                true => has_value && self.context.is_empty(to),
                false => !self.context.exists(to),
            };
            if creates {
                let cost = self.params().new_account_cost(is_spurious, has_value);
                own = own.saturating_add(cost);
            }
        }
        let mut resolution = 0;
        if self.is(SpecId::PRAGUE) {
            left = left.checked_sub(own).ok_or(OUT_OF_GAS)?;
            if let Some(target) = self.context.delegation(to) {
                resolution = self.params().warm_storage_read_cost();
                if !self.is_warm(target) {
                    resolution += self.params().cold_account_additional_cost();
                }
                left = left.checked_sub(resolution).ok_or(OUT_OF_GAS)?;
            }
        }
        // Before Prague geth subtracts the call's own cost only here, where the subtraction may
        // wrap.
        let base = if self.is(SpecId::PRAGUE) { 0 } else { own };
        let child = self.child_gas(left.wrapping_sub(base))?;
        Ok(cold.saturating_add(own).saturating_add(resolution).saturating_add(child))
    }

    /// Gas for the callee, out of what is available (EIP-150).
    fn child_gas(&self, available: u64) -> GasResult {
        let asked = u64::try_from(self.item(0));
        if self.is(SpecId::TANGERINE) {
            let most = self.params().call_stipend_reduction(available);
            return Ok(asked.map_or(most, |asked| asked.min(most)));
        }
        asked.map_err(|_| OVERFLOW.into())
    }

    fn refuse_static(&self) -> Result<(), String> {
        if self.interp.runtime_flag.is_static() { Err(WRITE_PROTECTION.into()) } else { Ok(()) }
    }

    /// The surcharge for a cold account (EIP-2929), beyond the constant part.
    fn cold_account(&self, below: usize) -> u64 {
        if self.is(SpecId::BERLIN) && !self.is_warm(self.address(below)) {
            self.params().cold_account_additional_cost()
        } else {
            0
        }
    }

    fn transaction(&self) -> TransactionId {
        self.context.journaled_state.transaction_id
    }

    fn is_warm(&self, address: Address) -> bool {
        let journal = &self.context.journaled_state;
        let account = journal.state.get(&address);
        account.is_some_and(|account| !account.is_cold_transaction_id(self.transaction()))
            || journal.warm_addresses.is_warm(&address)
    }

    fn is_warm_slot(&self, slot: U256) -> bool {
        let journal = &self.context.journaled_state;
        let address = self.own_address();
        let account = journal.state.get(&address);
        let known = account.and_then(|account| account.storage.get(&slot));
        known.is_some_and(|slot| !slot.is_cold_transaction_id(self.transaction()))
            || journal.warm_addresses.is_storage_warm(&address, &slot)
    }
}

/// The end of a memory range; `None` if it exceeds 64 bits. An empty range needs no memory.
fn end(offset: U256, len: U256) -> Option<u64> {
    let len = u64::try_from(len).ok()?;
    if len == 0 {
        return Some(0);
    }
    u64::try_from(offset).ok()?.checked_add(len)
}

/// The number of 32-byte words for this many bytes.
fn words(bytes: U256) -> u64 {
    bytes.saturating_to::<u64>().div_ceil(32)
}
