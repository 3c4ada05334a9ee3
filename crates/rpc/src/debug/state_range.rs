//! Storage ranges of a contract, and the accounts that blocks have changed.

use super::trace_past::existing_block;
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult, args::register_heavy, context::ResolveBlock,
    replay::state_before,
};
use alloy_eips::BlockId;
use alloy_primitives::{Address, B256, Bytes, U64, U256, keccak256};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_engine::{LiveView, PostState, StateNeed};
use retrie_execution::TouchedSlots;
use retrie_state::{
    AccountKey, BackendKey, KeyForm, StateError, StateKey, StateValue, decode_slot,
};
use retrie_state_store::StateId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Most slots of a contract in `debug_storageRangeAt`. Slots are not stored in the order of their
/// hashed keys, so each request reads all of them.
const MAX_SLOTS: usize = 1_000_000;
/// Most blocks of one request for modified accounts.
const MAX_BLOCKS: u64 = 1024;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_storageRangeAt", |rpc, view, args| {
        storage_range(rpc, &view, args)
    });
    register_heavy(module, "debug_getModifiedAccountsByNumber", |rpc, view, args| {
        let number = |number: U64| BlockId::number(number.to());
        let first = number(args.required()?);
        modified_accounts(rpc, &view, first, args.optional::<U64>()?.map(number))
    });
    register_heavy(module, "debug_getModifiedAccountsByHash", |rpc, view, args| {
        let first = args.hash()?.into();
        modified_accounts(rpc, &view, first, args.optional::<B256>()?.map(Into::into))
    });
}

/// The response of `debug_storageRangeAt`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StorageRange {
    /// Slots by the hash of their key.
    storage: BTreeMap<B256, StorageEntry>,
    /// Hash of the key at which the next page starts; `None` if this is the last page.
    next_key: Option<B256>,
}

#[derive(Clone, Debug, Serialize)]
struct StorageEntry {
    /// `None` if the state has only its hash, and the preimage is not known.
    key: Option<B256>,
    value: B256,
}

/// `debug_storageRangeAt(block, txIndex, contract, keyStart, maxResult)`: slots before the
/// transaction, in the order of their hashed keys, from `keyStart` on.
fn storage_range(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<StorageRange> {
    let (id, index): (_, U64) = (args.block()?, args.required()?);
    let (contract, start): (Address, Bytes) = (args.required()?, args.required()?);
    let count: U64 = args.required()?;
    if start.len() > B256::len_bytes() {
        let message = format!("keyStart has {} bytes, at most 32", start.len());
        return Err(RpcError::InvalidParams(message));
    }
    let block = existing_block(view, id)?;
    let (index, transactions) = (index.to::<usize>(), block.body().transactions.len());
    if block.number == 0 {
        return Err(RpcError::Rejected("no transaction in genesis".into()));
    }
    if index >= transactions.max(1) {
        return Err(RpcError::Rejected(format!(
            "transaction index {index} out of range for block {}, which has {transactions}",
            block.hash()
        )));
    }
    let state = view.state_before(&block)?;
    let spec = rpc.live.spec().for_header(block.header());
    let before = slots_before(view, &block, &state, &contract)?;
    let simulation = state_before(rpc, &spec, &block, index, &state)?;
    let TouchedSlots { are_all, slots } = simulation.touched_slots(&contract);
    let mut by_hash = if are_all { BTreeMap::new() } else { before };
    for (slot, value) in slots {
        by_hash.insert(keccak256(slot), (Some(slot), value));
    }
    by_hash.retain(|_, (_, value)| !value.is_zero());
    let mut rest = by_hash.range(B256::right_padding_from(&start)..);
    let mut storage = BTreeMap::new();
    for (hash, (slot, value)) in rest.by_ref().take(count.saturating_to()) {
        let key = match slot {
            Some(slot) => Some(*slot),
            None => view.preimage(hash)?.and_then(|preimage| preimage.slot()),
        };
        storage.insert(*hash, StorageEntry { key, value: (*value).into() });
    }
    Ok(StorageRange { storage, next_key: rest.next().map(|(hash, _)| *hash) })
}

/// Slots by their hashes: the slot, as far as the state has it, and its value.
type SlotsByHash = BTreeMap<B256, (Option<B256>, U256)>;

/// The slots of `contract` before `block`, whose execution begins with `state`.
fn slots_before(
    view: &LiveView,
    block: &RecoveredBlock,
    state: &PostState,
    contract: &Address,
) -> RpcResult<SlotsByHash> {
    // Without a dev chain's patch, which has plain keys.
    let below = view.state_at(&block.parent_hash, StateNeed::Values)?;
    let account = below.keys().account(contract);
    let listed = below.account_slots(&account, MAX_SLOTS + 1)?;
    if listed.len() > MAX_SLOTS {
        return Err(RpcError::Rejected(format!(
            "{contract} has more than {MAX_SLOTS} slots; read those that are known with \
             eth_getStorageValues"
        )));
    }
    let number = |slot: &B256, value: &StateValue| {
        let what = || format!("slot {slot} of {contract} is not canonical");
        decode_slot(value).ok_or_else(|| StateError::corrupt("state", what()))
    };
    let mut slots = SlotsByHash::new();
    let patch = state.patch().map(|patch| &patch.delta);
    if !patch.is_some_and(|delta| delta.is_wiped(contract)) {
        for (slot, value) in listed {
            let value = number(&slot, &value)?;
            match below.keys() {
                KeyForm::Plain => slots.insert(keccak256(slot), (Some(slot), value)),
                KeyForm::Hashed => slots.insert(slot, (None, value)),
            };
        }
    }
    for change in patch.iter().flat_map(|delta| delta.slots_of(contract)) {
        let StateKey::Slot(_, slot) = change.key else { continue };
        let next = change.next.as_ref().map(|value| number(&slot, value)).transpose()?;
        slots.insert(keccak256(slot), (Some(slot), next.unwrap_or_default()));
    }
    Ok(slots)
}

/// Accounts that differ between the states after `first` and after `last`, in the order of their
/// hashes. Without `last`: the accounts that block `first` changes.
fn modified_accounts(
    rpc: &RpcContext,
    view: &LiveView,
    first: BlockId,
    last: Option<BlockId>,
) -> RpcResult<Vec<Address>> {
    let known = |id: BlockId| {
        let missing = || RpcError::Rejected(format!("block {id} not found"));
        view.find(id)?.ok_or_else(missing)
    };
    let (first, last) = match (known(first)?, last) {
        (first, Some(last)) => (first, known(last)?),
        (block, None) if block.number == 0 => {
            return Err(RpcError::Rejected("genesis has no parent".into()));
        }
        (block, None) => (known(block.parent_hash.into())?, block),
    };
    if first.number >= last.number {
        return Err(RpcError::Rejected(format!(
            "start block height ({}) must be less than end block height ({})",
            first.number, last.number
        )));
    }
    if last.number - first.number > MAX_BLOCKS {
        return Err(RpcError::InvalidParams(format!(
            "{} blocks are too many, at most {MAX_BLOCKS}",
            last.number - first.number
        )));
    }
    let mut keys = BTreeSet::new();
    // A canonical block has its history under the head.
    let head = if view.is_canonical(&last.hash())? { view.head().hash() } else { last.hash() };
    for number in first.number + 1..=last.number {
        keys.extend(changed_keys(rpc, StateId::Block(head), number)?);
    }
    // States without dev-chain overrides, which belong to the next block.
    let state = |header: &SealedHeader| view.state_at(&header.hash(), StateNeed::Values);
    let (before, after) = (state(&first)?, state(&last)?);
    let mut modified = BTreeMap::new();
    for key in keys {
        let account = *key.account();
        let hash = match account.address() {
            Some(address) => keccak256(address),
            None => B256::from_slice(&account),
        };
        if !modified.contains_key(&hash) && before.get_key(&key)? != after.get_key(&key)? {
            modified.insert(hash, account);
        }
    }
    let address = |(hash, account): (B256, AccountKey)| {
        let unknown = || {
            RpcError::Rejected(format!(
                "no preimage found for hash {hash}: an account with this hash of its address has \
                 changed, but this node keeps states by hash, and does not know the address"
            ))
        };
        view.address_of(&account)?.ok_or_else(unknown)
    };
    modified.into_iter().map(address).collect()
}

/// The keys that block `number` changes, from flat history.
fn changed_keys(rpc: &RpcContext, at: StateId<'_>, number: u64) -> RpcResult<Vec<BackendKey>> {
    let store = rpc.live.chain().state();
    store.changed_keys(at, number).map_err(|error| match error {
        StateError::BeyondHistory { first, .. }
            if rpc.live.backend().extensions().history.is_some() =>
        {
            RpcError::Rejected(format!(
                "the keys that block {number} changed are not listed: backend {} has the states of \
                 all blocks, but lists of changed keys only from block {first} on, for blocks \
                 imported with --prune.state-history.distance",
                store.identity().name
            ))
        }
        error => error.into(),
    })
}
