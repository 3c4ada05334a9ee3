//! The namespace `sync`: serves state chunks, headers and codes to nodes that run state sync
//! (`docs/state-sync.md`). The client verifies every byte.

use crate::{
    RpcContext, RpcError, RpcResult,
    args::{register_quick, register_read, register_state_chunks},
    context::ResolveBlock,
};
use alloy_primitives::{B256, Bytes, U64};
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{LiveView, StateClient};
use retrie_state::ChunkId;
use serde::Serialize;

/// Most items of one request.
const MAX_ITEMS: usize = 1024;
/// Most headers of one request: BLOCKHASH reaches 256 ancestors.
const MAX_HEADERS: u64 = 256;
/// How far below the head a root is searched.
const MAX_DEPTH: u64 = 1024;

/// The response of `sync_status`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StateSyncStatus {
    /// Name of the backend, as in `--state-backend`.
    backend: &'static str,
    /// Whether the node serves state chunks.
    chunks: bool,
    block: U64,
    block_hash: B256,
    /// The backend's own root after that block.
    root: Option<B256>,
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "sync_status", |rpc, _| {
        let (view, backend) = (rpc.view()?, rpc.live.backend());
        let (block, block_hash) = (U64::from(view.head().number), view.head().hash());
        let root = view.state_root(&block_hash)?;
        let (name, chunks) = (backend.identity().name, backend.extensions().chunks.is_some());
        Ok(StateSyncStatus { backend: name, chunks, block, block_hash, root })
    });
    register_read(&mut module, "sync_findRoot", |_, view, args| find_root(&view, args.hash()?));
    register_read(&mut module, "sync_getHeaders", |_, view, args| {
        headers(&view, args.hash()?, args.required::<U64>()?.to())
    });
    register_read(&mut module, "sync_getCodes", |rpc, view, args| {
        let hashes: Vec<B256> = few(args.required()?)?;
        Ok(rpc.state_server.codes(&view, &hashes)?)
    });
    register_state_chunks(&mut module, "sync_getChunks", |rpc: &RpcContext, view, args| {
        let block = args.hash()?;
        let ids: Vec<Bytes> = few(args.required()?)?;
        let ids: Option<Vec<_>> = ids.into_iter().map(ChunkId::new).collect();
        let too_long = || {
            let message = format!("an id of a chunk has at most {} bytes", ChunkId::MAX_LEN);
            RpcError::InvalidParams(message)
        };
        let ids = ids.ok_or_else(too_long)?;
        Ok(rpc.state_server.chunks(&view, StateClient::Rpc, block, &ids)?)
    });
    module.into()
}

fn few<T>(items: Vec<T>) -> RpcResult<Vec<T>> {
    if items.len() > MAX_ITEMS {
        let message = format!("too many items: {} (max {MAX_ITEMS})", items.len());
        return Err(RpcError::InvalidParams(message));
    }
    Ok(items)
}

/// The last canonical block with this state root; `None` if it is too far below the head.
fn find_root(view: &LiveView, root: B256) -> RpcResult<Option<B256>> {
    let head = view.head().number;
    for number in (head.saturating_sub(MAX_DEPTH)..=head).rev() {
        let Some(hash) = view.canonical_hash(number)? else { break };
        if view.state_root(&hash)? == Some(root) {
            return Ok(Some(hash));
        }
    }
    Ok(None)
}

/// The headers of a block and of its ancestors, the oldest first.
fn headers(view: &LiveView, block: B256, count: u64) -> RpcResult<Vec<Bytes>> {
    let mut header = view.resolve(block.into())?;
    let mut headers = Vec::new();
    for _ in 0..count.min(MAX_HEADERS) {
        headers.push(alloy_rlp::encode(header.header()).into());
        // A chain that starts above genesis has no older headers.
        let Some(parent) = view.header(&header.parent_hash)? else { break };
        header = parent;
    }
    headers.reverse();
    Ok(headers)
}
