//! The namespace `sync`: a state in chunks, and what else a node that begins with it needs
//! (`docs/state-sync.md`). Whoever asks checks every byte of it.

use crate::{
    RpcContext, RpcError, RpcResult,
    args::{part_of_state, quick, read},
    context::ResolveBlock,
};
use alloy_primitives::{B256, Bytes, U64};
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{StateClient, View};
use retrie_state::ChunkId;
use serde::Serialize;

/// Most items of one request.
const MAX_ITEMS: usize = 1024;
/// Most headers of one request: BLOCKHASH knows so many, and the block that asks is none of them.
const MAX_HEADERS: u64 = 256;
/// How far below the head a root is looked for.
const MAX_DEPTH: u64 = 1024;

/// The answer of `sync_status`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// Name as in `--state-backend`.
    backend: &'static str,
    /// Whether it hands out states.
    chunks: bool,
    block: U64,
    block_hash: B256,
    /// Of the backend's own, after that block.
    root: Option<B256>,
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    quick(&mut module, "sync_status", |rpc, _| {
        let (view, backend) = (rpc.view()?, rpc.live.backend());
        let (block, block_hash) = (U64::from(view.head().number), view.head().hash());
        let root = view.state_root(&block_hash)?;
        let (name, chunks) = (backend.identity().name, backend.chunks().is_some());
        Ok(Status { backend: name, chunks, block, block_hash, root })
    });
    read(&mut module, "sync_findRoot", |_, view, args| find_root(&view, args.hash()?));
    read(&mut module, "sync_getHeaders", |_, view, args| {
        headers(&view, args.hash()?, args.required::<U64>()?.to())
    });
    read(&mut module, "sync_getCodes", |rpc, view, args| {
        let hashes: Vec<B256> = few(args.required()?)?;
        Ok(rpc.states.codes(&view, &hashes)?)
    });
    part_of_state(&mut module, "sync_getChunks", |rpc: &RpcContext, view, args| {
        let block = args.hash()?;
        let ids: Vec<Bytes> = few(args.required()?)?;
        let ids: Option<Vec<_>> = ids.into_iter().map(ChunkId::new).collect();
        let too_long = || {
            let message = format!("an id of a chunk has at most {} bytes", ChunkId::MAX_LEN);
            RpcError::InvalidParams(message)
        };
        let ids = ids.ok_or_else(too_long)?;
        Ok(rpc.states.chunks(&view, StateClient::Rpc, block, &ids)?)
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

/// The last canonical block whose state has this root, if it is not far below the head.
fn find_root(view: &View, root: B256) -> RpcResult<Option<B256>> {
    let head = view.head().number;
    for number in (head.saturating_sub(MAX_DEPTH)..=head).rev() {
        let Some(hash) = view.canonical_hash(number)? else { break };
        if view.state_root(&hash)? == Some(root) {
            return Ok(Some(hash));
        }
    }
    Ok(None)
}

/// A block's header and those of its ancestors, the oldest first.
fn headers(view: &View, block: B256, count: u64) -> RpcResult<Vec<Bytes>> {
    let mut header = view.resolve(block.into())?;
    let mut headers = Vec::new();
    for _ in 0..count.min(MAX_HEADERS) {
        headers.push(alloy_rlp::encode(header.header()).into());
        // A chain that began above genesis knows no more.
        let Some(parent) = view.header(&header.parent_hash)? else { break };
        header = parent;
    }
    headers.reverse();
    Ok(headers)
}
