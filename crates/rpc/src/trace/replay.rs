//! Replays past transactions: call traces, EVM steps, and state changes.

use crate::{
    RpcContext, RpcError, RpcResult,
    args::register_heavy,
    context::ResolveBlock,
    replay::{ExecutionClock, ReplayScope, ReplayedTransaction, replay},
};
use alloy_eips::BlockId;
use alloy_primitives::{B256, map::HashSet};
use alloy_rpc_types_trace::parity::{TraceResults, TraceResultsWithTransactionHash, TraceType};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::LiveView;
use retrie_execution::EvmSimulation;
use revm::context::result::{HaltReason, ResultAndState};
use revm_inspectors::tracing::{TracingInspector, TracingInspectorConfig};

/// The trace types of a request.
pub(super) type TraceTypes = HashSet<TraceType>;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "trace_replayTransaction", |rpc, view, args| {
        let (hash, types): (B256, TraceTypes) = (args.required()?, args.required()?);
        let not_found = || RpcError::Rejected("transaction not found".into());
        let found = view.transaction(&hash)?.ok_or_else(not_found)?;
        let block = view.block(&found.block.hash)?.ok_or_else(not_found)?;
        let which = ReplayScope::Only(found.index as usize);
        let replayed = replay_block(rpc, &view, &block, which, &types)?.pop();
        Ok(replayed.ok_or_else(not_found)?.full_trace)
    });
    register_heavy(module, "trace_replayBlockTransactions", |rpc, view, args| {
        let (id, types): (BlockId, TraceTypes) = (args.block()?, args.required()?);
        let Some(header) = view.find(id)? else { return Ok(None) };
        let Some(block) = view.block(&header.hash())? else { return Ok(None) };
        if block.number == 0 {
            return Ok(Some(Vec::new()));
        }
        replay_block(rpc, &view, &block, ReplayScope::All, &types).map(Some)
    });
}

fn replay_block(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
    which: ReplayScope,
    types: &TraceTypes,
) -> RpcResult<Vec<TraceResultsWithTransactionHash>> {
    let inspector = || Ok(self::inspector(types));
    let clock = ExecutionClock::new(rpc.limits.evm_timeout);
    replay(rpc, view, block, which, clock, inspector, |replayed| {
        let ReplayedTransaction { index, inspector, outcome, simulation, .. } = replayed;
        let full_trace = results(inspector, outcome, types, simulation)?;
        let transaction_hash = *block.body().transactions[index].hash();
        Ok(TraceResultsWithTransactionHash { full_trace, transaction_hash })
    })
}

/// An inspector for these trace types.
pub(super) fn inspector(types: &TraceTypes) -> TracingInspector {
    TracingInspector::new(TracingInspectorConfig::from_parity_config(types))
}

/// The traces of an execution, whose changes are not committed yet.
pub(super) fn results(
    inspector: TracingInspector,
    outcome: &ResultAndState<HaltReason>,
    types: &TraceTypes,
    simulation: &EvmSimulation<'_>,
) -> RpcResult<TraceResults> {
    inspector
        .into_parity_builder()
        .into_trace_results_with_state(outcome, types, simulation)
        .map_err(crate::geth_errors::TransactFailure::database)
}
