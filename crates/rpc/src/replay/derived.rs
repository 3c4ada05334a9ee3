//! Data of blocks that the database does not store: computed by executing the block again.

use super::StoredOutcome;
use crate::{RpcContext, RpcError, RpcResult, geth_errors::block_failure};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Decodable;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::LiveView;
use retrie_execution::{
    BlockAccessList, ExecutionOutcome, execute_block, execute_block_with_observer,
};
use retrie_state::StateError;
use retrie_state_store::{Proposal, StateId};
use std::sync::Arc;

/// The block access list (EIP-7928). If it is not kept, the block is executed again. `None` before
/// Amsterdam.
pub(crate) fn access_list(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
) -> RpcResult<Option<BlockAccessList>> {
    if block.header().block_access_list_hash.is_none() || block.number == 0 {
        return Ok(None);
    }
    if let Some(list) = view.access_list(&block.hash())? {
        let decode = BlockAccessList::decode(&mut &list[..]);
        let damage = |error| {
            StateError::corrupt("AccessLists", format!("that of block {}: {error}", block.number))
        };
        return Ok(Some(decode.map_err(damage)?));
    }
    let (outcome, stored) = execute_again(rpc, view, block)?;
    let named = block.header().block_access_list_hash.unwrap_or_default();
    let hash = outcome.access_list_hash().unwrap_or_default();
    stored.compare(|| "the hash of the access list is".into(), hash, named)?;
    Ok(outcome.access_list)
}

/// The requests to the consensus layer (EIP-7685) that the block makes when it is executed again: of
/// each type that has any, the type's byte and its data. `None` before Prague.
pub(crate) fn execution_requests(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
) -> RpcResult<Option<Vec<Bytes>>> {
    let Some(named) = block.header().requests_hash else { return Ok(None) };
    if block.number == 0 {
        return Ok(Some(Vec::new()));
    }
    let (outcome, stored) = execute_again(rpc, view, block)?;
    let hash = outcome.requests.requests_hash();
    stored.compare(|| "the hash of the requests is".into(), hash, named)?;
    let requests = outcome.requests.take().into_iter();
    Ok(Some(requests.filter(|request| request.len() > 1).collect()))
}

/// Executes a block on the state of its parent, and compares the outcome with the stored one.
fn execute_again<'a>(
    rpc: &RpcContext,
    view: &LiveView,
    block: &'a RecoveredBlock,
) -> RpcResult<(ExecutionOutcome, StoredOutcome<'a>)> {
    let state = view.state_before(block)?;
    let spec = rpc.live.spec().for_header(block.header());
    let outcome = execute_block(&spec, block, state.input()).map_err(block_failure)?;
    let stored = StoredOutcome::of(view, block)?;
    stored.check_block(&outcome)?;
    Ok((outcome, stored))
}

/// The state roots after each transaction, which receipts before Byzantium have in place of a
/// status. The block is executed again, with one dropped proposal per transaction. `None` from
/// Byzantium on, for backends with other roots than Ethereum's, and if the parent's state is gone.
pub(crate) fn intermediate_roots(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
) -> RpcResult<Option<Arc<[B256]>>> {
    let header = block.sealed_header();
    let spec = rpc.live.spec();
    let store = rpc.live.chain().state();
    let has_roots = store.backend().profile().ethereum_root;
    if spec.is_byzantium_active_at_block(header.number) || header.number == 0 || !has_roots {
        return Ok(None);
    }
    let kept = &rpc.eth.roots;
    if let Some(roots) = kept.get(&block.hash()) {
        return Ok(Some(roots));
    }
    let parent = header.parent_hash;
    if store.begin(StateId::Block(parent)).is_err() {
        return Ok(None);
    }
    let state = view.state_before(block)?;
    let patch = state.patch().map(|patch| patch.delta.clone());
    let mut last: Option<Proposal> = None;
    let mut roots = Vec::new();
    let spec = spec.for_header(header.header());
    let executed = execute_block_with_observer(&spec, block, state.input(), &mut |_, delta| {
        let at = last.as_ref().map_or(StateId::Block(parent), StateId::Proposal);
        let delta = match &patch {
            Some(patch) if last.is_none() => patch.then(&delta),
            _ => delta,
        };
        let proposal = store.begin(at)?.finish(&delta)?;
        roots.push(proposal.root());
        last = Some(proposal);
        Ok(())
    });
    let outcome = executed.map_err(|error| RpcError::Internal(error.to_string()))?;
    StoredOutcome::of(view, block)?.check_block(&outcome)?;
    let roots: Arc<[B256]> = roots.into();
    kept.insert(block.hash(), roots.clone());
    Ok(Some(roots))
}
