//! Past transactions replayed: their traces, every step of the EVM, and what they changed.

use crate::{
    RpcContext, RpcError, RpcResult,
    args::heavy,
    context::ResolveBlock,
    replay::{Clock, Replayed, Which, replay},
};
use alloy_eips::BlockId;
use alloy_primitives::{B256, map::HashSet};
use alloy_rpc_types_trace::parity::{TraceResults, TraceResultsWithTransactionHash, TraceType};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::View;
use retrie_execution::Simulation;
use revm::context::result::{HaltReason, ResultAndState};
use revm_inspectors::tracing::{TracingInspector, TracingInspectorConfig};

/// What a request wants to see.
pub(super) type TraceTypes = HashSet<TraceType>;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    heavy(module, "trace_replayTransaction", |rpc, view, args| {
        let (hash, types): (B256, TraceTypes) = (args.required()?, args.required()?);
        let not_found = || RpcError::Rejected("transaction not found".into());
        let found = view.transaction(&hash)?.ok_or_else(not_found)?;
        let block = view.block(&found.block.hash)?.ok_or_else(not_found)?;
        let which = Which::Only(found.index as usize);
        let replayed = replay_block(rpc, &view, &block, which, &types)?.pop();
        Ok(replayed.ok_or_else(not_found)?.full_trace)
    });
    heavy(module, "trace_replayBlockTransactions", |rpc, view, args| {
        let (id, types): (BlockId, TraceTypes) = (args.block()?, args.required()?);
        let Some(header) = view.find(id)? else { return Ok(None) };
        let Some(block) = view.block(&header.hash())? else { return Ok(None) };
        if block.number == 0 {
            return Ok(Some(Vec::new()));
        }
        replay_block(rpc, &view, &block, Which::All, &types).map(Some)
    });
}

fn replay_block(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
    which: Which,
    types: &TraceTypes,
) -> RpcResult<Vec<TraceResultsWithTransactionHash>> {
    let inspector = || Ok(self::inspector(types));
    let clock = Clock::new(rpc.limits.evm_timeout);
    replay(rpc, view, block, which, clock, inspector, |replayed| {
        let Replayed { index, inspector, outcome, simulation, .. } = replayed;
        let full_trace = results(inspector, outcome, types, simulation)?;
        let transaction_hash = *block.body().transactions[index].hash();
        Ok(TraceResultsWithTransactionHash { full_trace, transaction_hash })
    })
}

/// Sees what these types of traces need.
pub(super) fn inspector(types: &TraceTypes) -> TracingInspector {
    TracingInspector::new(TracingInspectorConfig::from_parity_config(types))
}

/// The traces of an execution whose changes are not yet part of the state.
pub(super) fn results(
    inspector: TracingInspector,
    outcome: &ResultAndState<HaltReason>,
    types: &TraceTypes,
    simulation: &Simulation<'_>,
) -> RpcResult<TraceResults> {
    inspector
        .into_parity_builder()
        .into_trace_results_with_state(outcome, types, simulation)
        .map_err(crate::words::TransactFailure::database)
}
