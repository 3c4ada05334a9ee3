//! `eth_createAccessList`: what a call touches (EIP-2930).

use super::{CallRules, Ground, prepare};
use crate::{
    Args, RpcContext, RpcResult,
    words::{TransactFailure, revert_words, words_of_halt},
};
use alloy_eips::eip2930::AccessListResult;
use alloy_primitives::U256;
use alloy_rpc_types_eth::{TransactionRequest, state::StateOverride};
use retrie_engine::View;
use revm::context::{TransactionType, TxEnv, result::ExecutionResult};
use revm_inspectors::access_list::AccessListInspector;

/// `eth_createAccessList(call, block, stateOverrides)`: the list, and the gas that the call uses
/// with it.
pub(super) fn create_access_list(
    rpc: &RpcContext,
    view: &View,
    args: &mut Args<'_>,
) -> RpcResult<AccessListResult> {
    let request: TransactionRequest = args.object()?;
    let block = args.block_or_latest()?;
    let accounts: Option<StateOverride> = args.optional_object()?;

    let ground = Ground::after(rpc, view, block, None)?;
    let mut simulation = ground.simulation(rpc, None, accounts)?;
    let base_fee = simulation.env().block_env.basefee;
    let mut tx = prepare(&mut simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    if tx.tx_type == TransactionType::Legacy as u8 {
        tx.tx_type = TransactionType::Eip2930.into();
    }
    // A list changes what the gas is, and so perhaps where the call goes.
    loop {
        let mut inspector = AccessListInspector::new(tx.access_list.clone());
        let outcome = simulation.inspect(tx.clone(), &mut inspector).map_err(|error| {
            TransactFailure::new(error, &tx, base_fee, rpc.limits.evm_timeout).in_call()
        })?;
        let access_list = inspector.into_access_list();
        if access_list == tx.access_list {
            let error = match &outcome.result {
                ExecutionResult::Success { .. } => None,
                ExecutionResult::Revert { output, .. } => Some(revert_words(output)),
                ExecutionResult::Halt { reason, .. } => {
                    Some(words_of_halt(&mut simulation, &tx, reason))
                }
            };
            let gas_used = U256::from(outcome.result.tx_gas_used());
            return Ok(AccessListResult { access_list, gas_used, error });
        }
        tx = TxEnv { access_list, ..tx };
    }
}
