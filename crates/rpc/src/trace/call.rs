//! Traces of hypothetical calls.

use super::replay::{TraceTypes, inspector, results};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult, args::register_heavy, call::CallEnvironment,
    geth_errors::TransactFailure, replay::TraceBudget,
};
use alloy_consensus::transaction::SignerRecoverable;
use alloy_eips::eip2718::Decodable2718;
use alloy_evm::FromRecoveredTx;
use alloy_primitives::Bytes;
use alloy_rpc_types_eth::{BlockOverrides, TransactionRequest, state::StateOverride};
use alloy_rpc_types_trace::parity::TraceResults;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::Transaction;
use retrie_engine::LiveView;
use retrie_execution::{CallRules, EvmSimulation, prepare_call};
use revm::context::TxEnv;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "trace_call", |rpc, view, args| call(rpc, &view, args));
    register_heavy(module, "trace_callMany", |rpc, view, args| call_many(rpc, &view, args));
    register_heavy(module, "trace_rawTransaction", |rpc, view, args| {
        raw_transaction(rpc, &view, args)
    });
}

/// `trace_call(call, types, block, stateOverrides, blockOverrides)`.
fn call(rpc: &RpcContext, view: &LiveView, args: &mut MethodParams<'_>) -> RpcResult<TraceResults> {
    let request: TransactionRequest = args.object()?;
    let types: TraceTypes = args.required()?;
    let block = args.block_or_latest()?;
    let accounts: Option<StateOverride> = args.optional_object()?;
    let overrides: Option<BlockOverrides> = args.optional_object()?;

    let ground = CallEnvironment::after(rpc, view, block, overrides.as_ref())?;
    let mut simulation = ground.simulation(rpc, overrides.as_ref(), accounts)?;
    let mut recording = TraceBudget::new(rpc.limits.max_response_size);
    traced_request(rpc, &mut simulation, request, &types, &mut recording)
}

/// `trace_callMany([[call, types], ...], block)`: calls that see the changes of earlier calls.
fn call_many(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<Vec<TraceResults>> {
    let calls: Vec<(TransactionRequest, TraceTypes)> = args.required()?;
    let block = args.block_or_latest()?;
    let ground = CallEnvironment::after(rpc, view, block, None)?;
    let mut simulation = ground.simulation(rpc, None, None)?;
    let mut recording = TraceBudget::new(rpc.limits.max_response_size);
    let traced =
        |(request, types)| traced_request(rpc, &mut simulation, request, &types, &mut recording);
    calls.into_iter().map(traced).collect()
}

/// `trace_rawTransaction(bytes, types, block)`: a signed transaction, executed on top of the block.
fn raw_transaction(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<TraceResults> {
    let bytes: Bytes = args.required()?;
    let types: TraceTypes = args.required()?;
    let block = args.block_or_latest()?;
    let invalid =
        |reason: String| RpcError::InvalidParams(format!("invalid transaction: {reason}"));
    let transaction =
        Transaction::decode_2718_exact(&bytes).map_err(|error| invalid(error.to_string()))?;
    let sender = transaction.recover_signer().map_err(|error| invalid(error.to_string()))?;

    let ground = CallEnvironment::after(rpc, view, block, None)?;
    let mut simulation = ground.simulation(rpc, None, None)?;
    let tx = TxEnv::from_recovered_tx(&transaction, sender);
    let mut recording = TraceBudget::new(rpc.limits.max_response_size);
    traced(rpc, &mut simulation, tx, &types, &mut recording)
}

fn traced_request(
    rpc: &RpcContext,
    simulation: &mut EvmSimulation<'_>,
    request: TransactionRequest,
    types: &TraceTypes,
    recording: &mut TraceBudget,
) -> RpcResult<TraceResults> {
    let block_env = simulation.env().block_env.clone();
    let tx = prepare_call(simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    let answer = traced(rpc, simulation, tx, types, recording)?;
    simulation.env_mut().block_env = block_env;
    Ok(answer)
}

/// Traces an execution and commits its changes for later executions.
fn traced(
    rpc: &RpcContext,
    simulation: &mut EvmSimulation<'_>,
    tx: TxEnv,
    types: &TraceTypes,
    recording: &mut TraceBudget,
) -> RpcResult<TraceResults> {
    let mut inspector = inspector(types);
    let base_fee = simulation.env().block_env.basefee;
    let outcome = simulation.inspect(tx.clone(), &mut recording.watch(&mut inspector));
    recording.check()?;
    let outcome = outcome.map_err(|error| {
        TransactFailure::new(error, &tx, base_fee, rpc.limits.evm_timeout).in_call()
    })?;
    let answer = results(inspector, &outcome, types, simulation)?;
    simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    Ok(answer)
}
