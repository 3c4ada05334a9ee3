//! `state_getLogs`: what `eth_getLogs` answers, and what shows that no log is missing.
//!
//! Of every block its header. Where the bloom of the header matches, also all receipts: whether one of
//! them has a log that matches is in its leaf of the receipts trie and nowhere above, so every leaf is
//! needed, and all leaves give the root without any path. [`log_tables`] has the other form.

use super::{
    log_filter::LogFilter,
    log_tables::{self, LogsForm},
    logs::{self, FoundLogs},
};
use crate::{
    RpcContext, RpcError, RpcResult,
    args::register_heavy,
    replay::{ExecutionClock, intermediate_roots},
};
use alloy_consensus::Eip658Value;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, Log};
use alloy_rlp::RlpEncodable;
use alloy_rpc_types_eth::{Filter, FilterBlockOption};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{Receipt, SealedHeader};
use retrie_engine::LiveView;
use retrie_light_client::{HeaderWithReceipts, LogTablesResponse, LogsResponse};
use serde::Serialize;
use std::{
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "state_getLogs", |rpc, view, args| {
        let LogFilter(filter) = args.required()?;
        let form = args.optional()?.unwrap_or_default();
        let at = args.block_or_latest()?;
        Ok(match form {
            LogsForm::Headers => LogsAnswer::Headers(search(rpc, &view, &filter)?),
            LogsForm::Tables => {
                LogsAnswer::Tables(log_tables::search(rpc, &view, &filter, at)?.into())
            }
        })
    });
}

/// An answer in the form that was asked for.
#[derive(Clone, Serialize)]
#[serde(untagged)]
enum LogsAnswer {
    Headers(LogsResponse),
    Tables(Box<LogTablesResponse>),
}

/// The matching logs, and every block of the range.
fn search(rpc: &RpcContext, view: &LiveView, filter: &Filter) -> RpcResult<LogsResponse> {
    logs::check(filter)?;
    let mut found = FoundLogs::new(rpc);
    let headers: Box<dyn Iterator<Item = RpcResult<SealedHeader>> + '_> = match filter.block_option
    {
        FilterBlockOption::AtBlockHash(hash) => {
            Box::new(iter::once(logs::named_block(view, &hash)))
        }
        FilterBlockOption::Range { from_block, to_block } => {
            let range = logs::range(view, from_block, to_block)?;
            found.check_range(&range)?;
            Box::new(
                range.map(|number| view.header_by_number(number)?.ok_or(RpcError::HeaderNotFound)),
            )
        }
    };
    let deadline = ExecutionClock::new(Duration::MAX).deadline();
    let most = rpc.limits.max_response_size;
    let mut room = most;
    let mut blocks = Vec::new();
    for header in headers {
        let header = header?;
        if Instant::now() >= deadline {
            return Err(too_large("takes too long"));
        }
        // A zero bloom, which matches a filter without conditions, is that of no log.
        let receipts = match header.logs_bloom.is_zero() {
            true => None,
            false => found.search_block(view, filter, &header)?,
        };
        let receipts =
            receipts.map(|receipts| encode(rpc, view, &header, &receipts)).transpose()?;
        let header = Bytes::from(alloy_rlp::encode(header.header()));
        // In hexadecimal.
        let size = 2 * (header.len() + receipts.as_ref().map_or(0, |receipts| receipts.len()));
        room = match room.checked_sub(size) {
            Some(room) => room,
            None if blocks.is_empty() => 0,
            None => return Err(too_large(&format!("exceeds max response size {most}"))),
        };
        blocks.push(HeaderWithReceipts { header, receipts });
    }
    Ok(LogsResponse { version: LogsResponse::VERSION, logs: found.logs, blocks })
}

fn too_large(why: &str) -> RpcError {
    RpcError::InvalidParams(format!("query {why}, retry with fewer blocks"))
}

/// A receipt as EIP-7642 has it.
#[derive(RlpEncodable)]
struct BloomlessReceipt<'a> {
    tx_type: u8,
    status: Eip658Value,
    cumulative_gas_used: u64,
    logs: &'a Vec<Log>,
}

/// RLP of the receipts of a block, without their blooms.
fn encode(
    rpc: &RpcContext,
    view: &LiveView,
    header: &SealedHeader,
    receipts: &[Receipt],
) -> RpcResult<Bytes> {
    let roots = state_roots(rpc, view, header)?;
    let encoded = receipts.iter().enumerate().map(|(index, receipt)| {
        let root = roots.as_ref().and_then(|roots| roots.get(index));
        BloomlessReceipt {
            tx_type: receipt.tx_type as u8,
            status: match root {
                Some(root) => Eip658Value::PostState(*root),
                None => Eip658Value::Eip658(receipt.success),
            },
            cumulative_gas_used: receipt.cumulative_gas_used,
            logs: &receipt.logs,
        }
    });
    Ok(alloy_rlp::encode(encoded.collect::<Vec<_>>()).into())
}

/// The state roots that receipts before Byzantium have in place of a status; `None` from then on.
fn state_roots(
    rpc: &RpcContext,
    view: &LiveView,
    header: &SealedHeader,
) -> RpcResult<Option<Arc<[B256]>>> {
    if rpc.live.spec().is_byzantium_active_at_block(header.number) {
        return Ok(None);
    }
    let unknown = || {
        RpcError::Rejected(format!(
            "the receipts of block {} have state roots, as all before Byzantium: this node cannot \
             compute them, for it has no Ethereum trie or no state of the parent",
            header.number
        ))
    };
    let block = view.block(&header.hash())?.ok_or_else(unknown)?;
    intermediate_roots(rpc, view, &block)?.map(Some).ok_or_else(unknown)
}
