//! `eth_getProof`: proofs of accounts and slots (EIP-1186).

use super::account::StorageKey;
use crate::{
    RpcContext, RpcError, RpcResult, args::register_read, context::ResolveBlock,
    header_root::refuse_binary_root,
};
use alloy_primitives::{Address, B256};
use alloy_rpc_types_eth::{EIP1186AccountProofResponse, EIP1186StorageProof};
use jsonrpsee::RpcModule;
use retrie_engine::LiveView;
use retrie_state::StateReader;

/// Most slots of one request, as in geth.
const MAX_SLOTS: usize = 1024;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_getProof", |rpc, view, args| {
        let (address, keys) = (args.required()?, args.required::<Vec<StorageKey>>()?);
        let id = args.block_or_latest()?;
        if keys.len() > MAX_SLOTS {
            let message = format!("too many keys: {} (max {MAX_SLOTS})", keys.len());
            return Err(RpcError::InvalidParams(message));
        }
        let _permit = rpc.eth.proofs.acquire(rpc.limits.proof_permits)?;
        let block = view.resolve(id)?;
        refuse_binary_root(&view, &block, "proofs in the form of EIP-1186")?;
        prove(&view, address, &keys, block.hash())
    });
}

fn prove(
    view: &LiveView,
    address: Address,
    keys: &[StorageKey],
    block: B256,
) -> RpcResult<EIP1186AccountProofResponse> {
    let backend = view.live().backend();
    if backend.extensions().account_proofs.is_none() {
        return Err(RpcError::Rejected(format!(
            "backend {} has no proofs in the form of EIP-1186; ask state_getProof for its own",
            backend.identity().name
        )));
    }
    let slots: Vec<B256> = keys.iter().map(|StorageKey(key)| key.as_b256()).collect();
    // The values come from the same state as the proof: the state of the root.
    let state = view.provable_state(&block, &address)?;
    let nodes = state.account_nodes(&address, &slots)?;
    let account = state.account(&address)?.unwrap_or_default();
    let proven = keys.iter().zip(&slots).zip(nodes.storage);
    let slot = |((StorageKey(key), slot), proof): ((&StorageKey, &B256), _)| {
        Ok(EIP1186StorageProof { key: *key, value: state.slot(&address, slot)?, proof })
    };
    Ok(EIP1186AccountProofResponse {
        address,
        balance: account.balance,
        code_hash: account.code_hash,
        nonce: account.nonce,
        storage_hash: nodes.storage_root,
        account_proof: nodes.account,
        storage_proof: proven.map(slot).collect::<RpcResult<_>>()?,
    })
}
