//! Constantinople without Petersburg: net gas metering of EIP-1283.
//!
//! Mainnet activated both at once; test networks and suites have blocks in between. revm has no
//! rule set for such blocks, so they run with Petersburg's rules and another SSTORE. EIP-1283 is
//! EIP-2200 with a cheaper SLOAD and without the stipend check; revm's cost functions implement
//! EIP-2200.

use alloy_evm::{Database, eth::EthEvmContext};
use revm::{
    bytecode::opcode::SSTORE,
    context::CfgEnv,
    context_interface::cfg::{Cfg, GasId},
    handler::instructions::EthInstructions,
    interpreter::{
        Host, Instruction, InstructionContext, InstructionExecResult, InstructionResult,
        instructions::host::sstore_with_gas_accounting, interpreter::EthInterpreter,
    },
};

/// Cost of a no-op or of a slot that is already changed; equals the cost of SLOAD from EIP-150 on.
const NET_SLOAD: u64 = 200;
/// Cost of setting an unchanged slot from zero.
const NET_INIT: u64 = 20_000;
/// Cost of changing any other unchanged slot.
const NET_CLEAN: u64 = 5_000;
/// Refund for clearing.
const NET_CLEAR_REFUND: u64 = 15_000;

/// Sets the gas costs of EIP-1283.
pub(crate) fn set_costs(cfg: &mut CfgEnv) {
    let mut costs = cfg.gas_params().clone();
    costs.override_gas([
        (GasId::sstore_static(), NET_SLOAD),
        (GasId::sstore_set_without_load_cost(), NET_INIT - NET_SLOAD),
        (GasId::sstore_reset_without_cold_load_cost(), NET_CLEAN - NET_SLOAD),
        (GasId::sstore_set_refund(), NET_INIT - NET_SLOAD),
        (GasId::sstore_reset_refund(), NET_CLEAN - NET_SLOAD),
        (GasId::sstore_clearing_slot_refund(), NET_CLEAR_REFUND),
    ]);
    cfg.set_gas_params(costs);
}

/// Replaces SSTORE by one with the costs of EIP-1283.
pub(crate) fn meter_net<DB: Database>(
    instructions: &mut EthInstructions<EthInterpreter, EthEvmContext<DB>>,
) {
    instructions.insert_instruction(SSTORE, Instruction::new(sstore), 0);
}

fn sstore<DB: Database>(
    context: InstructionContext<'_, EthEvmContext<DB>, EthInterpreter>,
) -> InstructionExecResult {
    sstore_with_gas_accounting(context, |context, _, store| {
        let costs = context.host.gas_params();
        let cost = costs.sstore_dynamic_gas(true, &store.data, false);
        let refund = costs.sstore_refund(true, &store.data);
        if !context.interpreter.gas.record_regular_cost(cost) {
            return Err(InstructionResult::OutOfGas);
        }
        context.interpreter.gas.record_refund(refund);
        Ok(())
    })
}
