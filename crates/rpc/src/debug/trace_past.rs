//! Traces of past transactions.

use super::{
    tracer::{TransactionTrace, trace_block},
    tracers::TraceJson,
};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult, args::register_heavy, context::ResolveBlock,
    replay::ReplayScope,
};
use alloy_eips::BlockId;
use alloy_primitives::Bytes;
use alloy_rlp::Decodable;
use alloy_rpc_types_trace::{common::TraceResult, geth::GethDebugTracingOptions};
use jsonrpsee::RpcModule;
use reth_primitives_traits::Block as _;
use retrie_chainspec::primitives::{Block, RecoveredBlock};
use retrie_engine::LiveView;
use std::sync::Arc;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_traceTransaction", |rpc, view, args| {
        trace_transaction(rpc, &view, args)
    });
    register_heavy(module, "debug_traceBlockByNumber", |rpc, view, args| {
        let block = existing_block(&view, args.block_number()?.into())?;
        trace_all(rpc, &view, &block, args)
    });
    register_heavy(module, "debug_traceBlockByHash", |rpc, view, args| {
        let block = existing_block(&view, args.hash()?.into())?;
        trace_all(rpc, &view, &block, args)
    });
    register_heavy(module, "debug_traceBlock", |rpc, view, args| {
        let block = decode(args.required()?)?;
        trace_all(rpc, &view, &block, args)
    });
    register_heavy(module, "debug_traceBadBlock", |rpc, view, args| {
        let hash = args.hash()?;
        let bad = rpc.node.bad_blocks().into_iter().find(|block| block.hash() == hash);
        let unknown = || RpcError::Rejected(format!("bad block {hash} not found"));
        let block = bad.ok_or_else(unknown)?;
        trace_all(rpc, &view, &block, args)
    });
}

/// The block with its senders; an error if there is none.
pub(crate) fn existing_block(view: &LiveView, id: BlockId) -> RpcResult<Arc<RecoveredBlock>> {
    let header = view.resolve(id)?;
    view.block(&header.hash())?.ok_or_else(|| RpcError::Rejected("block not found".into()))
}

/// Decodes a block, which this node need not have; it must have the parent.
fn decode(bytes: Bytes) -> RpcResult<RecoveredBlock> {
    let invalid = |reason: String| RpcError::Rejected(format!("could not decode block: {reason}"));
    let mut rest = bytes.as_ref();
    let block = Block::decode(&mut rest).map_err(|error| invalid(error.to_string()))?;
    if !rest.is_empty() {
        return Err(invalid(format!("{} bytes follow it", rest.len())));
    }
    block.try_into_recovered().map_err(|error| invalid(error.to_string()))
}

fn trace_all(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
    args: &mut MethodParams<'_>,
) -> RpcResult<Vec<TransactionTrace>> {
    let options: GethDebugTracingOptions = args.optional_object()?.unwrap_or_default();
    trace_block(rpc, view, block, ReplayScope::All, options)
}

fn trace_transaction(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<TraceJson> {
    let hash = args.hash()?;
    let options: GethDebugTracingOptions = args.optional_object()?.unwrap_or_default();
    let not_found = || RpcError::Rejected("transaction not found".into());
    let found = view.transaction(&hash)?.ok_or_else(not_found)?;
    let block = view.block(&found.block.hash)?.ok_or_else(not_found)?;
    let which = ReplayScope::Only(found.index as usize);
    match trace_block(rpc, view, &block, which, options)?.pop() {
        Some(TraceResult::Success { result, .. }) => Ok(result),
        Some(TraceResult::Error { error, .. }) => Err(RpcError::Rejected(error)),
        None => Err(not_found()),
    }
}
