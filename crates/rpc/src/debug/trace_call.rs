//! Traces of calls that never happened.

use super::{
    replay::state_before,
    trace_past::existing,
    tracer::{Tracer, trace},
};
use crate::{
    Args, RpcContext, RpcResult,
    args::heavy,
    call::{
        CallRules, TransactFailure, apply_block_overrides, apply_state_overrides, header_of_call,
        prepare, simulation,
    },
    context::ResolveBlock,
};
use alloy_eips::BlockId;
use alloy_rpc_types_eth::{Bundle, StateContext, TransactionRequest};
use alloy_rpc_types_trace::geth::{GethDebugTracingCallOptions, GethTrace};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::{BlockState, View};
use retrie_execution::{Simulation, evm_env};
use std::{sync::Arc, time::Instant};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    heavy(module, "debug_traceCall", |rpc, view, args| trace_call(rpc, &view, args));
    heavy(module, "debug_traceCallMany", |rpc, view, args| trace_call_many(rpc, &view, args));
}

/// The state that calls are made on: after a block, or within it.
pub(super) struct Ground {
    state: BlockState,
    /// The block and how many of its transactions come before.
    within: Option<(Arc<RecoveredBlock>, usize)>,
    header: retrie_chainspec::primitives::SealedHeader,
}

impl Ground {
    /// After the first `index` transactions of the block; after the block if there are no more.
    pub(super) fn new(view: &View, id: BlockId, index: Option<usize>) -> RpcResult<Self> {
        let header = view.resolve(id)?;
        if let Some(index) = index {
            let block = existing(view, id)?;
            if index < block.body().transactions.len() && block.number > 0 {
                let state = view.state(&block.parent_hash)?;
                return Ok(Self { state, within: Some((block, index)), header });
            }
        }
        let state = view.state(&header.hash())?;
        Ok(Self { state, within: None, header })
    }
}

/// `debug_traceCall(call, block, options)`.
fn trace_call(rpc: &RpcContext, view: &View, args: &mut Args<'_>) -> RpcResult<GethTrace> {
    let request: TransactionRequest = args.required()?;
    let block: BlockId = args.optional()?.unwrap_or_default();
    let options: GethDebugTracingCallOptions = args.optional()?.unwrap_or_default();
    let tracer = Tracer::new(options.tracing_options)?;

    let ground = Ground::new(view, block, options.tx_index.map(|index| index as usize))?;
    let overrides = options.block_overrides.unwrap_or_default();
    let header = header_of_call(&ground.header, Some(&overrides))?;
    let spec = rpc.live.spec().for_header(&header);
    let mut simulation = match &ground.within {
        Some((block, index)) => {
            let mut simulation = state_before(rpc, &spec, block, *index, &ground.state)?;
            *simulation.env_mut() = evm_env(&spec, &header);
            simulation
        }
        None => simulation(rpc, &spec, &header, &ground.state)?,
    };
    apply_block_overrides(&mut simulation, &overrides)?;
    if let Some(accounts) = options.state_overrides {
        apply_state_overrides(&mut simulation, accounts)?;
    }
    traced(rpc, &mut simulation, request, &tracer)
}

/// `debug_traceCallMany(bundles, context, options)`: calls that see each other's changes.
fn trace_call_many(
    rpc: &RpcContext,
    view: &View,
    args: &mut Args<'_>,
) -> RpcResult<Vec<Vec<GethTrace>>> {
    let bundles: Vec<Bundle> = args.required()?;
    let context: StateContext = args.optional()?.unwrap_or_default();
    let options: GethDebugTracingCallOptions = args.optional()?.unwrap_or_default();
    let tracer = Tracer::new(options.tracing_options)?;

    let block = context.block_number.unwrap_or_default();
    let index = context.transaction_index.unwrap_or_default().index();
    let ground = Ground::new(view, block, index)?;
    let spec = rpc.live.spec().for_header(&ground.header);
    let mut simulation = match &ground.within {
        Some((block, index)) => state_before(rpc, &spec, block, *index, &ground.state)?,
        None => simulation(rpc, &spec, &ground.header, &ground.state)?,
    };
    if let Some(accounts) = options.state_overrides {
        apply_state_overrides(&mut simulation, accounts)?;
    }
    let mut answers = Vec::with_capacity(bundles.len());
    for bundle in bundles {
        let overrides = bundle.block_override.unwrap_or_default();
        let header = header_of_call(&ground.header, Some(&overrides))?;
        *simulation.env_mut() = evm_env(&spec, &header);
        apply_block_overrides(&mut simulation, &overrides)?;
        let mut traces = Vec::with_capacity(bundle.transactions.len());
        for request in bundle.transactions {
            traces.push(traced(rpc, &mut simulation, request, &tracer)?);
        }
        answers.push(traces);
    }
    Ok(answers)
}

/// Traces a call; what comes after it sees its changes.
fn traced(
    rpc: &RpcContext,
    simulation: &mut Simulation<'_>,
    request: TransactionRequest,
    tracer: &Tracer,
) -> RpcResult<GethTrace> {
    let block_env = simulation.env().block_env.clone();
    let tx = prepare(simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    simulation.set_deadline(Instant::now() + tracer.timeout);
    let mut inspector = tracer.inspector()?;
    let outcome = simulation.inspect(tx.clone(), &mut inspector).map_err(|error| {
        TransactFailure::new(error, &tx, block_env.basefee, tracer.timeout).in_trace()
    })?;
    let answer = trace(&mut inspector, None, &tx, &outcome, simulation)?;
    simulation.env_mut().block_env = block_env;
    simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    Ok(answer)
}
