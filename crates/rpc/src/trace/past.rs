//! Traces of past blocks and transactions.

use super::rewards::rewards;
use crate::{
    RpcContext, RpcResult,
    args::register_heavy,
    context::ResolveBlock,
    replay::{ExecutionClock, ReplayScope, ReplayedTransaction, replay},
};
use alloy_consensus::transaction::TransactionInfo;
use alloy_primitives::{B256, U64};
use alloy_rpc_types_trace::parity::LocalizedTransactionTrace;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::LiveView;
use revm_inspectors::tracing::{TracingInspector, TracingInspectorConfig};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "trace_block", |rpc, view, args| {
        let Some(header) = view.find(args.block()?)? else { return Ok(None) };
        let Some(block) = view.block(&header.hash())? else { return Ok(None) };
        of_block(rpc, &view, &block, ExecutionClock::new(rpc.limits.evm_timeout)).map(Some)
    });
    register_heavy(module, "trace_transaction", |rpc, view, args| {
        of_transaction(rpc, &view, args.required()?)
    });
    register_heavy(module, "trace_get", |rpc, view, args| {
        let (hash, indices): (B256, Vec<U64>) = (args.required()?, args.required()?);
        // The index of a trace in its transaction. A longer path names no trace.
        let [index] = indices[..] else { return Ok(None) };
        let traces = of_transaction(rpc, &view, hash)?;
        Ok(traces.and_then(|traces| traces.into_iter().nth(index.saturating_to())))
    });
}

/// Traces of all transactions of a block in order, then its rewards.
pub(super) fn of_block(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
    clock: ExecutionClock,
) -> RpcResult<Vec<LocalizedTransactionTrace>> {
    if block.number == 0 {
        return Ok(Vec::new());
    }
    let traces = traces(rpc, view, block, ReplayScope::All, clock)?;
    let rewards = rewards(&rpc.live.spec().for_header(block.header()), block);
    Ok(traces.into_iter().flatten().chain(rewards).collect())
}

fn of_transaction(
    rpc: &RpcContext,
    view: &LiveView,
    hash: B256,
) -> RpcResult<Option<Vec<LocalizedTransactionTrace>>> {
    let Some(found) = view.transaction(&hash)? else { return Ok(None) };
    let Some(block) = view.block(&found.block.hash)? else { return Ok(None) };
    let (which, clock) =
        (ReplayScope::Only(found.index as usize), ExecutionClock::new(rpc.limits.evm_timeout));
    Ok(traces(rpc, view, &block, which, clock)?.pop())
}

fn traces(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
    which: ReplayScope,
    clock: ExecutionClock,
) -> RpcResult<Vec<Vec<LocalizedTransactionTrace>>> {
    let config = TracingInspectorConfig::default_parity();
    let inspector = || Ok(TracingInspector::new(config));
    replay(rpc, view, block, which, clock, inspector, |replayed| {
        let ReplayedTransaction { index, inspector, .. } = replayed;
        let info = TransactionInfo {
            hash: Some(*block.body().transactions[index].hash()),
            index: Some(index as u64),
            block_hash: Some(block.hash()),
            block_number: Some(block.number),
            base_fee: block.base_fee_per_gas,
            block_timestamp: Some(block.timestamp),
        };
        Ok(inspector.into_parity_builder().into_localized_transaction_traces(info))
    })
}
