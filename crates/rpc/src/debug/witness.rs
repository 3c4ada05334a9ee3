//! `debug_executionWitness`: all data for executing a block and computing its state root without a
//! state.

use super::trace_past::existing_block;
use crate::{
    RpcContext, RpcError, RpcResult, args::register_heavy, geth_errors::block_failure,
    header_root::refuse_binary_root, replay::StoredOutcome,
};
use alloy_eips::BlockId;
use alloy_primitives::{Address, B256, Bytes};
use alloy_rpc_types_debug::ExecutionWitness;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_engine::LiveView;
use retrie_execution::{AccessRecorder, RecordedAccesses, execute_block};
use retrie_state::{StateDelta, StateKey};
use retrie_state_store::StateProvider;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_executionWitness", |rpc, view, args| {
        let block = existing_block(&view, args.block_number()?.into())?;
        witness(rpc, &view, &block)
    });
    register_heavy(module, "debug_executionWitnessByBlockHash", |rpc, view, args| {
        let block = existing_block(&view, BlockId::from(args.hash()?))?;
        witness(rpc, &view, &block)
    });
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
    let (state, proven) = view.provable_before(block)?;
    let spec = rpc.live.spec().for_header(block.header());
    let recorder = AccessRecorder::of_input(state.input());
    let outcome = execute_block(&spec, block, recorder.input()).map_err(block_failure)?;
    StoredOutcome::of(view, block)?.check_block(&outcome)?;
    let accesses = recorder.into_accesses();
    let parent = state.header();
    let oldest = accesses.hashes.keys().next().copied().unwrap_or(parent.number);
    Ok(ExecutionWitness {
        state: nodes(&proven, &accesses, &outcome.delta)?,
        codes: accesses.codes.values().cloned().collect(),
        keys: preimages(&accesses),
        headers: headers(view, parent, oldest)?,
    })
}

/// The trie nodes on the paths of all read or changed keys, and the siblings that removals need.
fn nodes(
    parent: &StateProvider,
    accesses: &RecordedAccesses,
    delta: &StateDelta,
) -> RpcResult<Vec<Bytes>> {
    let mut keys: BTreeMap<Address, BTreeSet<B256>> = BTreeMap::new();
    let changed = delta.changes().iter().map(|change| &change.key);
    for key in accesses.values.keys().chain(changed) {
        let slots = keys.entry(*key.address()).or_default();
        if let StateKey::Slot(_, slot) = key {
            slots.insert(*slot);
        }
    }
    let mut nodes = BTreeSet::new();
    // A block that touches nothing still needs the root node, to prove its state root.
    nodes.extend(parent.account_nodes(&Address::ZERO, &[])?.account.into_iter().next());
    for (address, slots) in keys {
        let slots: Vec<B256> = slots.into_iter().collect();
        let found = parent.account_nodes(&address, &slots)?;
        nodes.extend(found.account);
        nodes.extend(found.storage.into_iter().flatten());
    }
    let removed = delta.changes().iter().filter(|change| change.next.is_none());
    let removed: Vec<StateKey> = removed.map(|change| change.key).collect();
    nodes.extend(parent.merge_nodes(&removed)?);
    Ok(nodes.into_iter().collect())
}

/// The preimages of the hashed keys: addresses and slots.
fn preimages(accesses: &RecordedAccesses) -> Vec<Bytes> {
    let bytes = |key: &StateKey| match key {
        StateKey::Account(address) => Bytes::copy_from_slice(address.as_slice()),
        StateKey::Slot(_, slot) => Bytes::copy_from_slice(slot.as_slice()),
    };
    let unique: BTreeSet<Bytes> = accesses.values.keys().map(bytes).collect();
    unique.into_iter().collect()
}

/// The headers from the oldest ancestor that BLOCKHASH reads to the parent.
pub(crate) fn headers(
    view: &LiveView,
    parent: &SealedHeader,
    oldest: u64,
) -> RpcResult<Vec<Bytes>> {
    let mut headers = vec![Bytes::from(alloy_rlp::encode(parent.header()))];
    let mut at = parent.clone();
    while at.number > oldest {
        let missing = || RpcError::Rejected(format!("header {} is not kept", at.number - 1));
        at = view.header(&at.parent_hash)?.ok_or_else(missing)?;
        headers.push(alloy_rlp::encode(at.header()).into());
    }
    headers.reverse();
    Ok(headers)
}
