//! `trace_filter`: traces of a range of blocks, by sender and receiver.

use super::past::of_block;
use crate::{
    RpcContext, RpcError, RpcResult,
    args::{BlockNumberParam, register_heavy},
    context::ResolveBlock,
    replay::ExecutionClock,
};
use alloy_eips::BlockNumberOrTag;
use alloy_primitives::{Address, U64};
use alloy_rpc_types_trace::{
    filter::{TraceFilter, TraceFilterMode},
    parity::LocalizedTransactionTrace,
};
use jsonrpsee::RpcModule;
use retrie_engine::LiveView;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// Least bytes of a trace in a response.
const LEAST_BYTES: usize = 300;

/// The filter. Numbers may be JSON numbers, or strings in hexadecimal or decimal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FilterRequest {
    /// First block, by number or tag; genesis by default.
    #[serde(default, deserialize_with = "bound")]
    from_block: Option<BlockNumberOrTag>,
    /// Last block; the head by default.
    #[serde(default, deserialize_with = "bound")]
    to_block: Option<BlockNumberOrTag>,
    from_address: Option<Vec<Address>>,
    to_address: Option<Vec<Address>>,
    /// Whether both sender and receiver must match, or one of them.
    mode: Option<TraceFilterMode>,
    /// Number of matching traces to skip.
    after: Option<U64>,
    /// Most traces in the response.
    count: Option<U64>,
}

/// Deserializes an optional block number or tag.
fn bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BlockNumberOrTag>, D::Error> {
    let is_decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    Ok(match Option::<Value>::deserialize(deserializer)? {
        None | Some(Value::Null) => None,
        Some(value) if value.is_number() || value.as_str().is_some_and(is_decimal) => {
            let number: U64 = serde_json::from_value(value).map_err(D::Error::custom)?;
            Some(BlockNumberOrTag::Number(number.to()))
        }
        Some(value) => {
            let BlockNumberParam(block) =
                serde_json::from_value(value).map_err(D::Error::custom)?;
            Some(block)
        }
    })
}

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "trace_filter", |rpc, view, args| filter(rpc, &view, args.required()?));
}

fn filter(
    rpc: &RpcContext,
    view: &LiveView,
    request: FilterRequest,
) -> RpcResult<Vec<LocalizedTransactionTrace>> {
    let head = view.head().number;
    let number = |block: BlockNumberOrTag| match block {
        BlockNumberOrTag::Number(number) => Ok(number),
        tag => Ok::<_, RpcError>(view.resolve(tag.into())?.number),
    };
    let first = request.from_block.map_or(Ok(0), number)?;
    let last = request.to_block.map_or(Ok(head), number)?;
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
    let filter = TraceFilter {
        from_address: request.from_address.unwrap_or_default(),
        to_address: request.to_address.unwrap_or_default(),
        mode: request.mode.unwrap_or_default(),
        ..TraceFilter::default()
    };
    let matcher = filter.matcher();
    let skipped: usize = request.after.unwrap_or_default().saturating_to();
    let count: usize = request.count.map_or(usize::MAX, |count| count.saturating_to());
    let enough = skipped.saturating_add(count);
    let clock = ExecutionClock::new(rpc.limits.evm_timeout);
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
