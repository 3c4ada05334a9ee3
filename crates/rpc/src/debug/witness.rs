//! `debug_executionWitness`: all data for executing a block and computing its state root without a
//! state.

use super::trace_past::existing_block;
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult, args::register_heavy,
    header_root::refuse_binary_root, replay::StoredOutcome,
};
use alloy_eips::BlockId;
use alloy_primitives::Bytes;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_engine::LiveView;
use retrie_sources::witness::ExecutionWitness;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_executionWitness", |rpc, view, args| {
        let block = args.block()?;
        check_mode(args)?;
        if block == BlockId::pending() {
            let message = "the pending block is not executed, so it has no witness".into();
            return Err(RpcError::Rejected(message));
        }
        let block = existing_block(&view, block)?;
        witness(rpc, &view, &block)
    });
    // As reth has it; the specification has the method above alone.
    register_heavy(module, "debug_executionWitnessByBlockHash", |rpc, view, args| {
        let hash = args.hash()?;
        check_mode(args)?;
        let block = existing_block(&view, hash.into())?;
        witness(rpc, &view, &block)
    });
}

/// Reads reth's optional parameter `mode`. All witnesses here are canonical.
fn check_mode(args: &mut MethodParams<'_>) -> RpcResult<()> {
    match args.optional::<String>()? {
        Some(mode) if mode != "canonical" => {
            let message = format!("invalid argument 1: witnesses are canonical, not {mode:?}");
            Err(RpcError::InvalidParams(message))
        }
        _ => Ok(()),
    }
}

fn witness(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
) -> RpcResult<ExecutionWitness> {
    refuse_binary_root(view, block.sealed_header(), "witnesses")?;
    let backend = rpc.live.backend();
    if backend.extensions().account_proofs.is_none() {
        return Err(RpcError::Rejected(format!(
            "backend {} has no witnesses of Ethereum's trie",
            backend.identity().name
        )));
    }
    if block.number == 0 {
        return Err(RpcError::Rejected("genesis has no witness".into()));
    }
    let executed = view.record_execution(block)?;
    StoredOutcome::of(view, block)?.check_block(&executed.outcome)?;
    Ok(executed.witness(view)?)
}

/// RLP of the headers from block `oldest` to its descendant `last`.
pub(crate) fn headers(view: &LiveView, last: &SealedHeader, oldest: u64) -> RpcResult<Vec<Bytes>> {
    Ok(view.ancestor_headers(last, oldest)?)
}
