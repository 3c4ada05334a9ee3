//! `eth_createAccessList`: the accounts and slots that a call touches (EIP-2930).

use super::CallEnvironment;
use crate::{
    MethodParams, RpcContext, RpcResult,
    geth_errors::{TransactFailure, halt_text_with_step, revert_text},
};
use alloy_eips::eip2930::AccessListResult;
use alloy_primitives::U256;
use alloy_rpc_types_eth::{TransactionRequest, state::StateOverride};
use retrie_engine::LiveView;
use retrie_execution::{CallRules, prepare_call};
use revm::context::{TransactionType, TxEnv, result::ExecutionResult};
use revm_inspectors::access_list::AccessListInspector;

/// `eth_createAccessList(call, block, stateOverrides)`: the access list, and the gas that the call
/// uses with this list.
pub(super) fn create_access_list(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<AccessListResult> {
    let request: TransactionRequest = args.object()?;
    let block = args.block_or_latest()?;
    let accounts: Option<StateOverride> = args.optional_object()?;

    let ground = CallEnvironment::after(rpc, view, block, None)?;
    let mut simulation = ground.simulation(rpc, None, accounts)?;
    let base_fee = simulation.env().block_env.basefee;
    let mut tx = prepare_call(&mut simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    if tx.tx_type == TransactionType::Legacy as u8 {
        tx.tx_type = TransactionType::Eip2930.into();
    }
    // The list changes the gas costs and so may change the call's path: repeat until the list is
    // stable.
    loop {
        let mut inspector = AccessListInspector::new(tx.access_list.clone());
        let outcome = simulation.inspect(tx.clone(), &mut inspector).map_err(|error| {
            TransactFailure::new(error, &tx, base_fee, rpc.limits.evm_timeout).in_call()
        })?;
        let access_list = inspector.into_access_list();
        if access_list == tx.access_list {
            let error = match &outcome.result {
                ExecutionResult::Success { .. } => None,
                ExecutionResult::Revert { output, .. } => Some(revert_text(output)),
                ExecutionResult::Halt { reason, .. } => {
                    Some(halt_text_with_step(&mut simulation, &tx, reason))
                }
            };
            let gas_used = U256::from(outcome.result.tx_gas_used());
            return Ok(AccessListResult { access_list, gas_used, error });
        }
        tx = TxEnv { access_list, ..tx };
    }
}
