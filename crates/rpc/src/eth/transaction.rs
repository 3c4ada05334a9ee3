//! Mined and pooled transactions.

use super::block::{by_hash, by_number, find};
use crate::{
    MethodParams, RpcContext, RpcResult, address_index,
    args::register_read,
    convert::{self, RpcTransaction},
};
use alloy_eips::{BlockId, eip2718::Encodable2718};
use alloy_primitives::{Address, B256, Bytes, U64};
use jsonrpsee::RpcModule;
use retrie_engine::{LiveView, pool::PoolTransaction};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_getTransactionByHash", |rpc, view, args| {
        by_own_hash(rpc, &view, &args.hash()?)
    });
    register_read(module, "eth_getTransactionByBlockHashAndIndex", |_, view, args| {
        by_index(&view, by_hash(args)?, args)
    });
    register_read(module, "eth_getTransactionByBlockNumberAndIndex", |_, view, args| {
        by_index(&view, by_number(args)?, args)
    });
    register_read(module, "eth_getTransactionBySenderAndNonce", |rpc, view, args| {
        let (sender, nonce): (Address, U64) = (args.required()?, args.required()?);
        by_nonce(rpc, &view, &sender, nonce.to())
    });
    register_read(module, "eth_pendingTransactions", |rpc, _, _| own_pending(rpc));
    register_read(module, "eth_getRawTransactionByHash", |rpc, view, args| {
        raw(rpc, &view, &args.hash()?)
    });
    register_read(module, "eth_getRawTransactionByBlockHashAndIndex", |_, view, args| {
        raw_by_index(&view, by_hash(args)?, args)
    });
    register_read(module, "eth_getRawTransactionByBlockNumberAndIndex", |_, view, args| {
        raw_by_index(&view, by_number(args)?, args)
    });
}

fn by_own_hash(
    rpc: &RpcContext,
    view: &LiveView,
    hash: &B256,
) -> RpcResult<Option<RpcTransaction>> {
    if let Some(found) = view.transaction(hash)?
        && let Some(header) = view.header(&found.block.hash)?
    {
        let index = found.index as usize;
        let mined = convert::mined_transaction(found.transaction, found.sender, &header, index);
        return Ok(Some(mined));
    }
    let waiting = rpc.pool.as_ref().and_then(|pool| pool.get(hash));
    Ok(waiting.map(|waiting| convert::pool_transaction(&waiting)))
}

/// A mined transaction, or one of the pool.
fn by_nonce(
    rpc: &RpcContext,
    view: &LiveView,
    sender: &Address,
    nonce: u64,
) -> RpcResult<Option<RpcTransaction>> {
    if let Some(position) = address_index::transaction_of_nonce(view, sender, nonce)? {
        let block = find(view, position.block.into())?;
        return Ok(block.and_then(|block| convert::transaction(&block, position.index as usize)));
    }
    let Some(pool) = &rpc.pool else { return Ok(None) };
    let content = pool.content_from(sender);
    let waiting = content.pending.get(&nonce).or_else(|| content.queued.get(&nonce));
    Ok(waiting.map(|waiting| convert::pool_transaction(waiting)))
}

fn by_index(
    view: &LiveView,
    id: BlockId,
    args: &mut MethodParams<'_>,
) -> RpcResult<Option<RpcTransaction>> {
    let index: U64 = args.required()?;
    let block = find(view, id)?;
    Ok(block.and_then(|block| convert::transaction(&block, index.to())))
}

/// Executable pool transactions of accounts whose keys this node holds.
fn own_pending(rpc: &RpcContext) -> RpcResult<Vec<RpcTransaction>> {
    let pool = rpc.pool()?;
    let own = rpc.accounts.iter().flat_map(|account| pool.content_from(account).pending);
    Ok(own.map(|(_, waiting)| convert::pool_transaction(&waiting)).collect())
}

/// The EIP-2718 encoding; a pooled blob transaction includes its sidecar.
fn raw(rpc: &RpcContext, view: &LiveView, hash: &B256) -> RpcResult<Option<Bytes>> {
    if let Some(found) = view.transaction(hash)? {
        return Ok(Some(found.transaction.encoded_2718().into()));
    }
    let waiting = rpc.pool.as_ref().and_then(|pool| pool.get(hash));
    Ok(waiting.map(|waiting| raw_waiting(&waiting)))
}

fn raw_waiting(waiting: &PoolTransaction) -> Bytes {
    let pooled = waiting.to_pooled().map(|pooled| pooled.encoded_2718());
    pooled.unwrap_or_else(|| waiting.transaction.encoded_2718()).into()
}

fn raw_by_index(
    view: &LiveView,
    id: BlockId,
    args: &mut MethodParams<'_>,
) -> RpcResult<Option<Bytes>> {
    let index: U64 = args.required()?;
    let Some(block) = find(view, id)? else { return Ok(None) };
    let found = block.body().transactions.get(index.to::<usize>());
    Ok(found.map(|transaction| transaction.encoded_2718().into()))
}
