//! `debug_subscribe("traceChain", start, end, options)`: traces of the blocks after `start` up to
//! `end`, a notification each.
//!
//! One block is traced at a time, with a heavy permit, and the next one only once the client has
//! taken the trace. The subscription ends after the last block, with an error at a block that
//! cannot be traced, or when the client goes. A client that does not read for a while is gone.

use super::{
    trace_past::existing_block,
    tracer::{TracerFactory, TransactionTrace, trace_block},
};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult, eth_state::QuotaPermit, replay::ReplayScope,
    subscription::send,
};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{B256, U64};
use alloy_rpc_types_trace::geth::GethDebugTracingOptions;
use jsonrpsee::{PendingSubscriptionSink, RpcModule, core::SubscriptionError, types::Params};
use retrie_engine::LiveView;
use serde::Serialize;
use std::ops::RangeInclusive;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    let registered = module.register_subscription(
        "debug_subscribe",
        "debug_subscription",
        "debug_unsubscribe",
        |params, pending, rpc, _| async move { serve(&rpc, params, pending).await },
    );
    registered.expect("a namespace names each of its methods once");
}

/// What a client asks for.
#[derive(Debug)]
struct ChainTraceRequest {
    start: BlockNumberOrTag,
    end: BlockNumberOrTag,
    options: GethDebugTracingOptions,
}

/// The traces of one block.
#[derive(Serialize)]
struct BlockTraces {
    block: U64,
    hash: B256,
    traces: Vec<TransactionTrace>,
}

impl ChainTraceRequest {
    fn new(params: &Params<'_>) -> RpcResult<Self> {
        let mut args = MethodParams::new(params)?;
        let kind: String = args.required()?;
        if kind != "traceChain" {
            let message = format!("no {kind:?} subscription in debug namespace");
            return Err(RpcError::Coded { code: RpcError::METHOD_NOT_FOUND, message });
        }
        let (start, end) = (args.block_number()?, args.block_number()?);
        let options = args.optional_object()?.unwrap_or_default();
        args.end().map(|()| Self { start, end, options })
    }

    /// The numbers of the blocks whose traces are sent.
    fn blocks(&self, view: &LiveView) -> RpcResult<RangeInclusive<u64>> {
        let number =
            |tag: BlockNumberOrTag| Ok::<_, RpcError>(existing_block(view, tag.into())?.number);
        let (start, end) = (number(self.start)?, number(self.end)?);
        if start >= end {
            return Err(RpcError::Rejected(format!(
                "end block (#{end}) needs to come after start block (#{start})"
            )));
        }
        Ok(start + 1..=end)
    }

    /// Takes a place, and finds the blocks.
    async fn admit(&self, rpc: &RpcContext) -> RpcResult<(QuotaPermit, RangeInclusive<u64>)> {
        TracerFactory::new(self.options.clone(), rpc.limits.evm_timeout)?;
        let place = rpc.eth.chain_traces.admit(None)?;
        let request = Self { options: GethDebugTracingOptions::default(), ..*self };
        let blocks = rpc.run_read(move |view| request.blocks(&view)).await?;
        Ok((place, blocks))
    }

    /// The traces of a canonical block.
    async fn trace(&self, rpc: &RpcContext, number: u64) -> RpcResult<BlockTraces> {
        let (context, options) = (rpc.clone(), self.options.clone());
        let trace = move |view: LiveView| {
            let block = existing_block(&view, BlockId::number(number))?;
            let traces = trace_block(&context, &view, &block, ReplayScope::All, options.clone())?;
            Ok(BlockTraces { block: U64::from(number), hash: block.hash(), traces })
        };
        rpc.run_heavy(trace).await
    }
}

async fn serve(
    rpc: &RpcContext,
    params: Params<'static>,
    pending: PendingSubscriptionSink,
) -> Result<(), SubscriptionError> {
    let admitted = match ChainTraceRequest::new(&params) {
        Ok(request) => request.admit(rpc).await.map(|admitted| (request, admitted)),
        Err(error) => Err(error),
    };
    // The place is free again when the subscription ends.
    let (request, (_place, blocks)) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => {
            pending.reject(error).await;
            return Ok(());
        }
    };
    let sink = pending.accept().await?;
    let last = *blocks.end();
    for number in blocks {
        let traced = tokio::select! {
            () = sink.closed() => return Ok(()),
            traced = request.trace(rpc, number) => traced,
        };
        let traces = traced.map_err(|error| format!("block {number}: {error}"))?;
        // As in geth: blocks without transactions are left out, except the last one.
        if !traces.traces.is_empty() || number == last {
            send(&sink, &traces).await?;
        }
    }
    Ok(())
}
