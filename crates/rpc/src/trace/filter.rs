//! `trace_filter`: traces of a range of blocks, by sender and receiver.

use super::past::of_block;
use crate::{RpcContext, RpcError, RpcResult, args::heavy, replay::Clock};
use alloy_rpc_types_trace::{filter::TraceFilter, parity::LocalizedTransactionTrace};
use jsonrpsee::RpcModule;
use retrie_engine::View;

/// A trace has at least so many bytes in an answer.
const LEAST_BYTES: usize = 300;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    heavy(module, "trace_filter", |rpc, view, args| filter(rpc, &view, &args.required()?));
}

fn filter(
    rpc: &RpcContext,
    view: &View,
    filter: &TraceFilter,
) -> RpcResult<Vec<LocalizedTransactionTrace>> {
    let head = view.head().number;
    let (first, last) = (filter.from_block.unwrap_or(0), filter.to_block.unwrap_or(head));
    if first > last {
        return Err(RpcError::InvalidParams(format!(
            "invalid parameters: fromBlock {first} is greater than toBlock {last}"
        )));
    }
    if last > head {
        return Err(RpcError::InvalidParams(format!(
            "toBlock {last} is beyond the head, block {head}"
        )));
    }
    let most = rpc.limits.max_trace_filter_blocks;
    if most > 0 && last - first >= most {
        return Err(RpcError::InvalidParams(format!(
            "block range too large: {} blocks, at most {most} (--rpc.max-trace-filter-blocks)",
            last - first + 1
        )));
    }
    let matcher = filter.matcher();
    let skipped = usize::try_from(filter.after.unwrap_or(0)).unwrap_or(usize::MAX);
    let count = filter.count.map_or(usize::MAX, |count| count.try_into().unwrap_or(usize::MAX));
    let enough = skipped.saturating_add(count);
    let clock = Clock::new(rpc.limits.evm_timeout);
    let mut found = Vec::new();
    for number in first..=last {
        if found.len() >= enough {
            break;
        }
        let missing = || RpcError::Rejected(format!("block {number} is not kept"));
        let hash = view.canonical_hash(number)?.ok_or_else(missing)?;
        let block = view.block(&hash)?.ok_or_else(missing)?;
        let traces = of_block(rpc, view, &block, clock)?;
        found.extend(traces.into_iter().filter(|trace| matcher.matches(&trace.trace)));
        let least = found.len().min(enough).saturating_sub(skipped).saturating_mul(LEAST_BYTES);
        if least > rpc.limits.max_response_size {
            return Err(RpcError::InvalidParams(format!(
                "the traces of blocks {first} to {number} alone do not fit into an answer; ask for \
                 fewer blocks, or give a count"
            )));
        }
    }
    Ok(found.into_iter().skip(skipped).take(count).collect())
}
