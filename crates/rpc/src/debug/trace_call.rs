//! Traces of hypothetical calls.

use super::{
    trace_past::existing_block,
    tracer::TracerFactory,
    tracers::{TraceJson, TransactionEnd},
};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::register_heavy,
    call::{CallEnvironment, call_bundles},
    geth_errors::TransactFailure,
    replay::TraceBudget,
};
use alloy_rpc_types_eth::{Bundle, StateContext, TransactionRequest};
use alloy_rpc_types_trace::geth::GethDebugTracingCallOptions;
use jsonrpsee::RpcModule;
use retrie_engine::LiveView;
use retrie_execution::{CallRules, EvmSimulation, prepare_call};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_traceCall", |rpc, view, args| trace_call(rpc, &view, args));
    register_heavy(module, "debug_traceCallMany", |rpc, view, args| {
        trace_call_many(rpc, &view, args)
    });
}

/// `debug_traceCall(call, block, options)`.
fn trace_call(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<TraceJson> {
    let request: TransactionRequest = args.object()?;
    let block = args.block_or_latest()?;
    let options: GethDebugTracingCallOptions = args.optional_object()?.unwrap_or_default();
    let tracer = TracerFactory::new(options.tracing_options, rpc.limits.evm_timeout)?;

    let overrides = options.block_overrides.as_ref();
    let index = options.tx_index.map(|index| index as usize);
    if let Some(index) = index.filter(|index| *index > 0) {
        let block = existing_block(view, block)?;
        if index >= block.body().transactions.len() {
            let message =
                format!("transaction index {index} out of range for block {}", block.hash());
            return Err(RpcError::Rejected(message));
        }
    }
    let ground = CallEnvironment::within(rpc, view, block, index, overrides)?;
    let mut simulation = ground.simulation(rpc, overrides, options.state_overrides)?;
    let mut recording = TraceBudget::new(rpc.limits.max_response_size);
    traced(rpc, &mut simulation, request, &tracer, &mut recording)
}

/// `debug_traceCallMany(bundles, context, options)`: calls that see the changes of earlier calls.
fn trace_call_many(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<Vec<Vec<TraceJson>>> {
    let bundles: Vec<Bundle> = args.required()?;
    let context: StateContext = args.optional_object()?.unwrap_or_default();
    let options: GethDebugTracingCallOptions = args.optional_object()?.unwrap_or_default();
    let tracer = TracerFactory::new(options.tracing_options, rpc.limits.evm_timeout)?;
    let accounts = options.state_overrides;
    let mut recording = TraceBudget::new(rpc.limits.max_response_size);
    call_bundles(rpc, view, (bundles, context), accounts, |simulation, request| {
        traced(rpc, simulation, request, &tracer, &mut recording)
    })
}

/// Traces a call and commits its changes for later calls.
fn traced(
    rpc: &RpcContext,
    simulation: &mut EvmSimulation<'_>,
    request: TransactionRequest,
    tracer: &TracerFactory,
    recording: &mut TraceBudget,
) -> RpcResult<TraceJson> {
    let block_env = simulation.env().block_env.clone();
    let tx = prepare_call(simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    simulation.set_deadline(tracer.clock.deadline());
    let mut inspector = tracer.inspector()?;
    let outcome = simulation.inspect(tx.clone(), &mut recording.watch(&mut inspector));
    recording.check()?;
    let outcome = outcome.map_err(|error| {
        TransactFailure::new(error, &tx, block_env.basefee, tracer.clock.each()).in_trace()
    })?;
    let (tx, context, logs_before) = (&tx, None, 0);
    let end = TransactionEnd { context, tx, outcome: &outcome, simulation, logs_before };
    let answer = inspector.trace(&end)?;
    simulation.env_mut().block_env = block_env;
    simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    Ok(answer)
}
