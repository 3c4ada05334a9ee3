//! `eth_getBlockAccessList` (EIP-7928).

use super::block::find;
use crate::{RpcContext, args::register_heavy, replay::access_list};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use jsonrpsee::RpcModule;
use retrie_execution::BlockAccessList;
use serde::Serialize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "eth_getBlockAccessList", |rpc, view, args| {
        let Some(block) = find(&view, args.block()?)? else { return Ok(None) };
        Ok(access_list(rpc, &view, &block)?.map(shown))
    });
}

/// The accesses of one account. Index 0 is before the block's transactions, `i + 1` is transaction
/// `i`, and the transaction count plus one is after the transactions.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountAccess {
    address: Address,
    storage_changes: Vec<SlotChanges>,
    storage_reads: Vec<B256>,
    balance_changes: Vec<IndexedChange<U256>>,
    nonce_changes: Vec<IndexedChange<U64>>,
    code_changes: Vec<CodeChange>,
}

#[derive(Clone, Debug, Serialize)]
struct SlotChanges {
    key: B256,
    changes: Vec<IndexedChange<B256>>,
}

#[derive(Clone, Debug, Serialize)]
struct IndexedChange<T> {
    index: U64,
    value: T,
}

#[derive(Clone, Debug, Serialize)]
struct CodeChange {
    index: U64,
    code: Bytes,
}

fn shown(list: BlockAccessList) -> Vec<AccountAccess> {
    let index = |index: u64| U64::from(index);
    let accounts = list.into_iter().map(|account| AccountAccess {
        address: account.address,
        storage_changes: account
            .storage_changes
            .into_iter()
            .map(|slot| SlotChanges {
                key: slot.slot.into(),
                changes: slot
                    .changes
                    .into_iter()
                    .map(|change| IndexedChange {
                        index: index(change.block_access_index.get()),
                        value: change.new_value.into(),
                    })
                    .collect(),
            })
            .collect(),
        storage_reads: account.storage_reads.into_iter().map(Into::into).collect(),
        balance_changes: account
            .balance_changes
            .into_iter()
            .map(|change| IndexedChange {
                index: index(change.block_access_index.get()),
                value: change.post_balance,
            })
            .collect(),
        nonce_changes: account
            .nonce_changes
            .into_iter()
            .map(|change| IndexedChange {
                index: index(change.block_access_index.get()),
                value: U64::from(change.new_nonce),
            })
            .collect(),
        code_changes: account
            .code_changes
            .into_iter()
            .map(|change| CodeChange {
                index: index(change.block_access_index.get()),
                code: change.new_code,
            })
            .collect(),
    });
    accounts.collect()
}
