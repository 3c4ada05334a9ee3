//! Receipts.

use super::{
    block::find,
    convert::{self, RpcReceipt},
};
use crate::{RpcContext, RpcError, RpcResult, args::read};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::B256;
use jsonrpsee::RpcModule;
use quick_cache::sync::Cache;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::View;
use retrie_execution::execute_block_with_observer;
use retrie_state::{At, Proposal};
use std::{fmt, sync::Arc};

/// Blocks before Byzantium whose intermediate roots are kept.
const BLOCKS_KEPT: usize = 256;

/// State roots after each transaction, of blocks before Byzantium, by block hash.
pub(super) struct IntermediateRoots(Cache<B256, Arc<[B256]>>);

impl Default for IntermediateRoots {
    fn default() -> Self {
        Self(Cache::new(BLOCKS_KEPT))
    }
}

impl fmt::Debug for IntermediateRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntermediateRoots").field("blocks", &self.0.len()).finish()
    }
}

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    read(module, "eth_getTransactionReceipt", |rpc, view, args| {
        of_transaction(rpc, &view, &args.hash()?)
    });
    read(module, "eth_getBlockReceipts", |rpc, view, args| {
        let id = args.block()?;
        find(&view, id)?.map(|block| of_block(rpc, &view, &block)).transpose()
    });
}

/// The receipt of a canonical transaction.
pub(super) fn of_transaction(
    rpc: &RpcContext,
    view: &View,
    hash: &B256,
) -> RpcResult<Option<RpcReceipt>> {
    let Some(found) = view.transaction(hash)? else { return Ok(None) };
    let Some(block) = view.block(&found.block.hash)? else { return Ok(None) };
    let mut receipts = of_block(rpc, view, &block)?;
    let index = found.index as usize;
    Ok((index < receipts.len()).then(|| receipts.swap_remove(index)))
}

fn of_block(rpc: &RpcContext, view: &View, block: &RecoveredBlock) -> RpcResult<Vec<RpcReceipt>> {
    let hash = block.hash();
    let pruned = || RpcError::Rejected(format!("the receipts of block {hash} are not kept"));
    let receipts = view.receipts(&hash)?.ok_or_else(pruned)?;
    let roots = intermediate_roots(rpc, view, block)?;
    Ok(convert::receipts(rpc.live.spec(), block, &receipts, roots.as_deref()))
}

/// The state roots after each transaction, which receipts before Byzantium hold in place of a
/// status. They are stored nowhere: the block is executed again, with one throw-away proposal per
/// transaction. `None` from Byzantium on, where the backend has other roots than Ethereum's, and
/// where the state below the block is no longer kept.
pub(crate) fn intermediate_roots(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
) -> RpcResult<Option<Arc<[B256]>>> {
    let header = block.sealed_header();
    let spec = rpc.live.spec();
    let store = rpc.live.chain().state();
    let has_roots = store.backend().capabilities().ethereum_root;
    if spec.is_byzantium_active_at_block(header.number) || header.number == 0 || !has_roots {
        return Ok(None);
    }
    let kept = &rpc.shared.roots.0;
    if let Some(roots) = kept.get(&block.hash()) {
        return Ok(Some(roots));
    }
    let parent = header.parent_hash;
    if store.begin(At::Block(parent)).is_err() {
        return Ok(None);
    }
    let state = view.state(&parent)?;
    let mut last: Option<Proposal> = None;
    let mut roots = Vec::new();
    let spec = spec.for_header(header.header());
    let executed = execute_block_with_observer(&spec, block, state.input(), &mut |_, delta| {
        let at = last.as_ref().map_or(At::Block(parent), At::Proposal);
        let proposal = store.begin(at)?.finish(&delta)?;
        roots.push(proposal.root());
        last = Some(proposal);
        Ok(())
    });
    executed.map_err(|error| RpcError::Internal(error.to_string()))?;
    let roots: Arc<[B256]> = roots.into();
    kept.insert(block.hash(), roots.clone());
    Ok(Some(roots))
}
