//! Transactions found by what they did.

use crate::{
    RpcContext, RpcResult, address_index,
    args::{register_heavy, register_read},
};
use alloy_primitives::{Address, B256, U64};
use jsonrpsee::RpcModule;
use serde::Serialize;

/// Who created a contract, and in which transaction.
#[derive(Clone, Debug, Serialize)]
struct ContractCreator {
    hash: B256,
    creator: Address,
}

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "ots_getTransactionBySenderAndNonce", |_, view, args| {
        let (sender, nonce): (Address, U64) = (args.required()?, args.required()?);
        match address_index::transaction_of_nonce(&view, &sender, nonce.to())? {
            Some(position) => address_index::transaction_hash(&view, position),
            None => Ok(None),
        }
    });
    register_heavy(module, "ots_getContractCreator", |_, view, args| {
        let contract: Address = args.required()?;
        let creation = address_index::creation_of(&view, &contract)?;
        let Some(creation) = creation else { return RpcResult::Ok(None) };
        let hash = address_index::transaction_hash(&view, creation.transaction)?;
        Ok(hash.map(|hash| ContractCreator { hash, creator: creation.creator }))
    });
}
