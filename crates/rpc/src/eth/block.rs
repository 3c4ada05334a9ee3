//! Blocks and headers.

use super::pending;
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    admin::network,
    args::{register_at_block, register_quick, register_read},
    context::ResolveBlock,
    convert::{self, RpcBlock},
};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::U64;
use alloy_rpc_types_eth::{Header, SyncInfo, SyncStatus};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_engine::LiveView;
use retrie_telemetry::state_sync::StateSyncFigures;
use serde::Serialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::UNIX_EPOCH};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_quick(module, "eth_chainId", |rpc, _| Ok(U64::from(rpc.live.spec().chain_id())));
    register_quick(module, "eth_blockNumber", |rpc, _| Ok(U64::from(rpc.live.head().number)));
    register_quick(module, "eth_syncing", |rpc, _| Ok(syncing_and_wait(rpc)));
    register_quick(module, "eth_protocolVersion", |rpc, _| protocol_version(rpc).map(U64::from));

    register_read(module, "eth_getBlockByHash", |rpc, view, args| {
        block(rpc, &view, by_hash(args)?, args)
    });
    register_read(module, "eth_getBlockByNumber", |rpc, view, args| {
        block(rpc, &view, by_number(args)?, args)
    });
    register_at_block(module, "eth_getHeaderByHash", 0, |_, view, args| {
        header(&view, by_hash(args)?)
    });
    register_at_block(module, "eth_getHeaderByNumber", 0, |_, view, args| match by_number(args)? {
        // As in geth: a pending header has no hash, so the response is null.
        id if id.is_pending() => Ok(None),
        id => header(&view, id),
    });

    register_read(module, "eth_getBlockTransactionCountByHash", |rpc, view, args| {
        count(rpc, &view, by_hash(args)?, |block| block.body().transactions.len())
    });
    register_read(module, "eth_getBlockTransactionCountByNumber", |rpc, view, args| {
        count(rpc, &view, by_number(args)?, |block| block.body().transactions.len())
    });
    register_read(module, "eth_getUncleCountByBlockHash", |rpc, view, args| {
        count(rpc, &view, by_hash(args)?, |block| block.body().ommers.len())
    });
    register_read(module, "eth_getUncleCountByBlockNumber", |rpc, view, args| {
        count(rpc, &view, by_number(args)?, |block| block.body().ommers.len())
    });
    register_read(module, "eth_getUncleByBlockHashAndIndex", |_, view, args| {
        ommer(&view, by_hash(args)?, args)
    });
    register_read(module, "eth_getUncleByBlockNumberAndIndex", |_, view, args| {
        ommer(&view, by_number(args)?, args)
    });
}

/// The newest version of `eth` that the node speaks with its peers.
pub(crate) fn protocol_version(rpc: &RpcContext) -> RpcResult<u64> {
    Ok(network(rpc)?.protocol_version())
}

/// The sync status: `false`, or the node's progress.
pub(crate) fn syncing(rpc: &RpcContext) -> SyncStatus {
    match rpc.node.syncing() {
        None => SyncStatus::None,
        Some(progress) => SyncStatus::Info(Box::new(SyncInfo {
            starting_block: progress.starting.try_into().unwrap_or_default(),
            current_block: progress.current.try_into().unwrap_or_default(),
            highest_block: progress.highest.try_into().unwrap_or_default(),
            ..SyncInfo::default()
        })),
    }
}

/// As [`syncing`], with what the node waits for, since when (seconds since 1970), and the remedy.
fn syncing_and_wait(rpc: &RpcContext) -> Value {
    let mut answer = json!(syncing(rpc));
    if let Some(figures) = rpc.node.state_sync() {
        let mut fields =
            json!({ "startingBlock": "0x0", "currentBlock": "0x0", "highestBlock": "0x0" });
        if answer.is_object() {
            fields = answer;
        }
        fields["stateSync"] = state_sync(&figures);
        answer = fields;
    }
    if let (Some(fields), Some(wait)) = (answer.as_object_mut(), rpc.node.waiting()) {
        let since = wait.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        fields.insert("waitingFor".into(), json!(wait.reason));
        fields.insert("waitingSince".into(), json!(U64::from(since)));
        fields.insert("remedy".into(), json!(wait.remedy));
    }
    answer
}

/// How far the state sync is. Shares and times are estimates.
fn state_sync(figures: &StateSyncFigures) -> Value {
    let StateSyncFigures { phase, pivot, entries, codes, bytes, share, remaining } = *figures;
    json!({
        "phase": phase.name(),
        "pivotBlock": U64::from(pivot),
        "entries": U64::from(entries),
        "codes": U64::from(codes),
        "bytes": U64::from(bytes),
        "share": share,
        "secondsLeft": remaining.map(|left| left.as_secs()),
    })
}

/// A block parameter that must be a hash.
pub(super) fn by_hash(args: &mut MethodParams<'_>) -> RpcResult<BlockId> {
    Ok(BlockId::from(args.hash()?))
}

/// A block parameter that must be a number or a tag.
pub(super) fn by_number(args: &mut MethodParams<'_>) -> RpcResult<BlockId> {
    Ok(BlockId::Number(args.block_number()?))
}

/// The block; `None` if there is none.
pub(super) fn find(view: &LiveView, id: BlockId) -> RpcResult<Option<Arc<RecoveredBlock>>> {
    match find_header(view, id)? {
        Some(header) => Ok(view.block(&header.hash())?),
        None => Ok(None),
    }
}

/// The header of the block. A tag without a block is an error, as in geth.
pub(super) fn find_header(view: &LiveView, id: BlockId) -> RpcResult<Option<SealedHeader>> {
    let found = view.find(id)?;
    match id {
        BlockId::Number(BlockNumberOrTag::Safe) if found.is_none() => {
            Err(RpcError::NoSuchTag("safe"))
        }
        BlockId::Number(BlockNumberOrTag::Finalized) if found.is_none() => {
            Err(RpcError::NoSuchTag("finalized"))
        }
        _ => Ok(found),
    }
}

/// As [`find`]; on a dev chain `pending` is the next block, built now.
fn find_or_build(
    rpc: &RpcContext,
    view: &LiveView,
    id: BlockId,
) -> RpcResult<Option<Arc<RecoveredBlock>>> {
    match &rpc.dev {
        Some(dev) if id.is_pending() => Ok(Some(dev.chain.pending_block()?)),
        _ => find(view, id),
    }
}

/// A block in JSON-RPC form.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum ShownBlock {
    Whole(Box<RpcBlock>),
    /// The next block, as far as it is known.
    Pending(Value),
}

fn block(
    rpc: &RpcContext,
    view: &LiveView,
    id: BlockId,
    args: &mut MethodParams<'_>,
) -> RpcResult<Option<ShownBlock>> {
    let is_full = args.optional()?.unwrap_or(false);
    if rpc.dev.is_none() && id.is_pending() {
        return Ok(Some(ShownBlock::Pending(pending::block(view)?)));
    }
    let found = find_or_build(rpc, view, id)?;
    Ok(found.map(|block| ShownBlock::Whole(Box::new(convert::block(&block, is_full)))))
}

fn header(view: &LiveView, id: BlockId) -> RpcResult<Option<Header>> {
    Ok(find_header(view, id)?.map(|header| convert::header(&header, None)))
}

fn count(
    rpc: &RpcContext,
    view: &LiveView,
    id: BlockId,
    of: impl FnOnce(&RecoveredBlock) -> usize,
) -> RpcResult<Option<U64>> {
    if rpc.dev.is_none() && id.is_pending() {
        return Ok(Some(U64::ZERO));
    }
    Ok(find_or_build(rpc, view, id)?.map(|block| U64::from(of(&block))))
}

fn ommer(view: &LiveView, id: BlockId, args: &mut MethodParams<'_>) -> RpcResult<Option<RpcBlock>> {
    let index: U64 = args.required()?;
    let Some(block) = find(view, id)? else { return Ok(None) };
    let ommer = block.body().ommers.get(index.to::<usize>());
    Ok(ommer.map(|ommer| convert::ommer(&SealedHeader::seal_slow(ommer.clone()))))
}
