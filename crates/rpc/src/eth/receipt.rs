//! Receipts.

use super::block::find_header;
use crate::{
    RpcContext, RpcResult,
    args::register_read,
    convert::{self, RpcReceipt},
    replay::intermediate_roots,
};
use alloy_primitives::B256;
use jsonrpsee::RpcModule;
use retrie_engine::LiveView;
use retrie_pipeline::BlockWithReceipts;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_getTransactionReceipt", |rpc, view, args| {
        of_transaction(rpc, &view, &args.hash()?)
    });
    register_read(module, "eth_getBlockReceipts", |rpc, view, args| {
        let id = args.block()?;
        match find_header(&view, id)? {
            Some(header) => of_block(rpc, &view, &header.hash()),
            None => Ok(None),
        }
    });
}

/// The receipt of a canonical transaction.
pub(super) fn of_transaction(
    rpc: &RpcContext,
    view: &LiveView,
    hash: &B256,
) -> RpcResult<Option<RpcReceipt>> {
    let Some(found) = view.transaction(hash)? else { return Ok(None) };
    let found_in = rpc.eth.blocks.get_with_receipts(view, &found.block.hash)?;
    let Some(block) = found_in else { return Ok(None) };
    let BlockWithReceipts { block, receipts } = block;
    let roots = intermediate_roots(rpc, view, &block)?;
    let (spec, index) = (rpc.live.spec(), found.index as usize);
    Ok(convert::receipt(spec, &block, &receipts, index, roots.as_deref()))
}

/// The receipts of a known block; `None` if the block is not stored.
pub(crate) fn of_block(
    rpc: &RpcContext,
    view: &LiveView,
    hash: &B256,
) -> RpcResult<Option<Vec<RpcReceipt>>> {
    let found = rpc.eth.blocks.get_with_receipts(view, hash)?;
    let Some(block) = found else { return Ok(None) };
    let BlockWithReceipts { block, receipts } = block;
    let roots = intermediate_roots(rpc, view, &block)?;
    Ok(Some(convert::receipts(rpc.live.spec(), &block, &receipts, roots.as_deref())))
}
