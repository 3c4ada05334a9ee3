//! Receipts.

use super::block::find;
use crate::{
    RpcContext, RpcError, RpcResult,
    args::register_read,
    convert::{self, RpcReceipt},
    replay::intermediate_roots,
};
use alloy_primitives::B256;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::LiveView;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_getTransactionReceipt", |rpc, view, args| {
        of_transaction(rpc, &view, &args.hash()?)
    });
    register_read(module, "eth_getBlockReceipts", |rpc, view, args| {
        let id = args.block()?;
        find(&view, id)?.map(|block| of_block(rpc, &view, &block)).transpose()
    });
}

/// The receipt of a canonical transaction.
pub(super) fn of_transaction(
    rpc: &RpcContext,
    view: &LiveView,
    hash: &B256,
) -> RpcResult<Option<RpcReceipt>> {
    let Some(found) = view.transaction(hash)? else { return Ok(None) };
    let Some(block) = view.block(&found.block.hash)? else { return Ok(None) };
    let mut receipts = of_block(rpc, view, &block)?;
    let index = found.index as usize;
    Ok((index < receipts.len()).then(|| receipts.swap_remove(index)))
}

fn of_block(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
) -> RpcResult<Vec<RpcReceipt>> {
    let hash = block.hash();
    let pruned = || RpcError::Rejected(format!("the receipts of block {hash} are not kept"));
    let receipts = view.receipts(&hash)?.ok_or_else(pruned)?;
    let roots = intermediate_roots(rpc, view, block)?;
    Ok(convert::receipts(rpc.live.spec(), block, &receipts, roots.as_deref()))
}
