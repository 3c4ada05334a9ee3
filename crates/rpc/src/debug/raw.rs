//! Chain data in its encoded form.

use super::trace_past::existing_block;
use crate::{
    RpcContext, RpcError, RpcResult,
    args::{register_heavy, register_quick},
    context::ResolveBlock,
    convert::{self, RpcBlock},
    replay::{access_list, execution_requests, intermediate_roots},
};
use alloy_consensus::{Eip658Value, Receipt as EnvelopeReceipt, ReceiptEnvelope, TxReceipt};
use alloy_eips::{BlockId, eip2718::Encodable2718};
use alloy_primitives::{B256, Bytes};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{Receipt, RecoveredBlock};
use retrie_engine::LiveView;
use serde::Serialize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_preimage", |_, view, args| {
        let preimage = view.preimage(&args.hash()?)?;
        let unknown = || RpcError::Rejected("unknown preimage".into());
        preimage.map(|preimage| Bytes::copy_from_slice(preimage.as_ref())).ok_or_else(unknown)
    });
    register_quick(module, "debug_getRawHeader", |rpc, args| {
        let header = rpc.view()?.resolve(args.block()?)?;
        Ok(Bytes::from(alloy_rlp::encode(header.header())))
    });
    register_heavy(module, "debug_getRawBlock", |_, view, args| {
        let block = existing_block(&view, args.block()?)?;
        Ok(Bytes::from(alloy_rlp::encode(block.sealed_block())))
    });
    register_heavy(module, "debug_getRawReceipts", |rpc, view, args| {
        raw_receipts(rpc, &view, args.block()?)
    });
    register_heavy(module, "debug_getRawTransaction", |rpc, view, args| {
        raw_transaction(rpc, &view, args.hash()?)
    });
    register_quick(module, "debug_getBadBlocks", |rpc, args| {
        // In geth this parameter names a file to write the blocks to.
        if args.optional::<String>()?.is_some() {
            let message = "invalid argument 0: this node writes no bad blocks to files".into();
            return Err(RpcError::InvalidParams(message));
        }
        Ok(rpc.node.bad_blocks().iter().map(|block| BadBlock::new(block)).collect::<Vec<_>>())
    });
    register_heavy(module, "debug_getRawBlockAccessList", |rpc, view, args| {
        raw_access_list(rpc, &view, args.block()?)
    });
    register_heavy(module, "debug_getRawExecutionRequests", |rpc, view, args| {
        let block = existing_block(&view, args.block()?)?;
        execution_requests(rpc, &view, &block)
    });
}

/// A block that the engine rejected.
#[derive(Clone, Debug, Serialize)]
struct BadBlock {
    block: RpcBlock,
    hash: B256,
    rlp: Bytes,
}

impl BadBlock {
    fn new(block: &RecoveredBlock) -> Self {
        let rlp = alloy_rlp::encode(block.sealed_block()).into();
        Self { block: convert::block(block, true), hash: block.hash(), rlp }
    }
}

/// The receipts of a block, each in EIP-2718 encoding, with its bloom.
pub(crate) fn raw_receipts(
    rpc: &RpcContext,
    view: &LiveView,
    id: BlockId,
) -> RpcResult<Vec<Bytes>> {
    let block = existing_block(view, id)?;
    let hash = block.hash();
    let receipts = view.receipts(&hash)?;
    let receipts = receipts.ok_or_else(|| RpcError::no_receipts(view, &hash))?;
    let roots = intermediate_roots(rpc, view, &block)?;
    let encoded = receipts.iter().enumerate().map(|(index, receipt)| {
        match roots.as_ref().and_then(|roots| roots.get(index)) {
            Some(root) => before_byzantium(receipt, *root),
            None => receipt.with_bloom_ref().encoded_2718(),
        }
    });
    Ok(encoded.map(Bytes::from).collect())
}

/// Encodes a receipt with the state root that it has in place of a status.
fn before_byzantium(receipt: &Receipt, root: B256) -> Vec<u8> {
    let with_root = EnvelopeReceipt {
        status: Eip658Value::PostState(root),
        cumulative_gas_used: receipt.cumulative_gas_used,
        logs: receipt.logs.clone(),
    };
    ReceiptEnvelope::Legacy(with_root.with_bloom()).encoded_2718()
}

/// A transaction of the chain or the pool; empty if there is none, as in geth.
fn raw_transaction(rpc: &RpcContext, view: &LiveView, hash: B256) -> RpcResult<Bytes> {
    if let Some(found) = view.transaction(&hash)? {
        return Ok(found.transaction.encoded_2718().into());
    }
    let waiting = rpc.pool.as_ref().and_then(|pool| pool.get(&hash));
    Ok(waiting.map_or_else(Bytes::new, |waiting| waiting.transaction.encoded_2718().into()))
}

fn raw_access_list(rpc: &RpcContext, view: &LiveView, id: BlockId) -> RpcResult<Bytes> {
    let block = existing_block(view, id)?;
    let none = || RpcError::Rejected(format!("block {} has no access list", block.number));
    let list = access_list(rpc, view, &block)?.ok_or_else(none)?;
    Ok(alloy_rlp::encode(&list).into())
}
