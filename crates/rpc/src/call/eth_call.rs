//! `eth_call`, and many of them one after the other.

use super::{
    CallRules, TransactFailure, apply_block_overrides, apply_state_overrides,
    overrides::header_of_call, prepare, simulation, words,
};
use crate::{
    Args, RpcContext, RpcError, RpcResult, context::ResolveBlock, debug::replay::state_before,
};
use alloy_eips::BlockId;
use alloy_primitives::Bytes;
use alloy_rpc_types_eth::{
    BlockOverrides, Bundle, EthCallResponse, StateContext, TransactionRequest, state::StateOverride,
};
use retrie_engine::View;
use retrie_execution::{Simulation, evm_env};
use revm::context::result::{ExecutionResult, HaltReason};

/// `eth_call(call, block, stateOverrides, blockOverrides)`: what the call returns.
pub(super) fn call(rpc: &RpcContext, view: &View, args: &mut Args<'_>) -> RpcResult<Bytes> {
    let request: TransactionRequest = args.required()?;
    let block: BlockId = args.optional()?.unwrap_or_default();
    let accounts: Option<StateOverride> = args.optional()?;
    let overrides: Option<BlockOverrides> = args.optional()?;

    let state = view.state_at(block)?;
    let header = header_of_call(state.header(), overrides.as_ref())?;
    let spec = rpc.live.spec().for_header(&header);
    let mut simulation = simulation(rpc, &spec, &header, &state)?;
    if let Some(overrides) = &overrides {
        apply_block_overrides(&mut simulation, overrides)?;
    }
    if let Some(accounts) = accounts {
        apply_state_overrides(&mut simulation, accounts)?;
    }
    words::output(transact(rpc, &mut simulation, request, false)?)
}

/// Executes a call; with `commits`, what comes after it sees its changes.
fn transact(
    rpc: &RpcContext,
    simulation: &mut Simulation<'_>,
    request: TransactionRequest,
    commits: bool,
) -> RpcResult<ExecutionResult<HaltReason>> {
    let block_env = simulation.env().block_env.clone();
    let tx = prepare(simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    let (base_fee, time) = (block_env.basefee, rpc.limits.evm_timeout);
    let outcome = simulation.transact(tx.clone());
    // What follows has its own fees, whatever became of this one.
    simulation.env_mut().block_env = block_env;
    let outcome =
        outcome.map_err(|error| TransactFailure::new(error, &tx, base_fee, time).in_call())?;
    if commits {
        simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    }
    Ok(outcome.result)
}

/// `eth_callMany(bundles, context, stateOverrides)`: calls that see each other's changes, on the
/// state within or after a block.
pub(super) fn call_many(
    rpc: &RpcContext,
    view: &View,
    args: &mut Args<'_>,
) -> RpcResult<Vec<Vec<EthCallResponse>>> {
    let bundles: Vec<Bundle> = args.required()?;
    let context: StateContext = args.optional()?.unwrap_or_default();
    let accounts: Option<StateOverride> = args.optional()?;
    if bundles.iter().all(|bundle| bundle.transactions.is_empty()) {
        return Err(RpcError::InvalidParams("there are no calls to execute".into()));
    }

    let block = context.block_number.unwrap_or_default();
    let header = view.resolve(block)?;
    let index = context.transaction_index.unwrap_or_default().index();
    let block = match index {
        Some(_) => view.block(&header.hash())?,
        None => None,
    };
    let within = block.as_deref().zip(index);
    let within = within.filter(|(block, index)| *index < block.body().transactions.len());
    let state = match &within {
        Some((block, _)) => view.state(&block.parent_hash)?,
        None => view.state(&header.hash())?,
    };
    let spec = rpc.live.spec().for_header(&header);
    let mut simulation = match within {
        Some((block, index)) => state_before(rpc, &spec, block, index, &state)?,
        None => simulation(rpc, &spec, &header, &state)?,
    };
    if let Some(accounts) = accounts {
        apply_state_overrides(&mut simulation, accounts)?;
    }

    let mut answers = Vec::with_capacity(bundles.len());
    for bundle in bundles {
        let overrides = bundle.block_override.unwrap_or_default();
        let header = header_of_call(&header, Some(&overrides))?;
        *simulation.env_mut() = evm_env(&spec, &header);
        apply_block_overrides(&mut simulation, &overrides)?;
        let mut outputs = Vec::with_capacity(bundle.transactions.len());
        for request in bundle.transactions {
            let output = transact(rpc, &mut simulation, request, true).and_then(words::output);
            outputs.push(match output {
                Ok(value) => EthCallResponse { value: Some(value), error: None },
                Err(error) => EthCallResponse { value: None, error: Some(error.to_string()) },
            });
        }
        answers.push(outputs);
    }
    Ok(answers)
}
