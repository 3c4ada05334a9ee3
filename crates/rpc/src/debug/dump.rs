//! `debug_accountRange` and `debug_dumpBlock`: accounts in the order of their hashed addresses.
//!
//! Only hashed keys are stored in that order. With plain keys each request reads all accounts once,
//! in the backend's order, and keeps those with the smallest hashes. It needs little memory; a
//! deadline bounds its time.
//!
//! Where the state has only the hash of an address, and the preimage is not known, the account has
//! geth's name `pre(HASH)` and no `address`. Slots of which only hashes are known are in
//! `storageByHash`; geth leaves them out.

use crate::{
    MethodParams, RpcContext, RpcError, RpcResult, args::register_heavy, context::ResolveBlock,
    replay::ExecutionClock,
};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, hex, keccak256};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::SealedHeader;
use retrie_engine::LiveView;
use retrie_state::{Account, AccountKey, BackendKey, KeyForm, StateError, StateValue, decode_slot};
use retrie_state_store::StateProvider;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BinaryHeap},
    time::{Duration, Instant},
};

/// Most accounts in one response, as in geth.
const MAX_ACCOUNTS: usize = 256;
/// State entries per read.
const PAGE: usize = 1 << 14;
/// Approximate size of one slot in a response, in bytes.
const SLOT_BYTES: usize = 140;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_accountRange", |rpc, view, args| account_range(rpc, &view, args));
    register_heavy(module, "debug_dumpBlock", |rpc, view, args| {
        let block: BlockNumberOrTag = args.required()?;
        dump(rpc, &view, block.into(), &DumpConfig::default())
    });
}

/// Accounts of a state in geth's form (`state.Dump`).
#[derive(Clone, Debug, Serialize)]
struct AccountDump {
    /// Root of this state, without `0x`.
    root: String,
    accounts: BTreeMap<String, DumpedAccount>,
    /// Hash of the address at which the next page starts; `None` if this is the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<B256>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DumpedAccount {
    /// Decimal.
    balance: String,
    nonce: u64,
    /// Storage root, for backends with one trie per account.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<B256>,
    code_hash: B256,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Bytes>,
    /// Values in hexadecimal without `0x` and without leading zeros.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    storage: BTreeMap<B256, String>,
    /// The same for slots of which only the hashes are known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    storage_by_hash: BTreeMap<B256, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Address>,
    /// Hash of the address.
    key: B256,
}

/// Which accounts a dump contains, and which parts of them.
struct DumpConfig {
    /// The smallest hash of the dump.
    start: B256,
    count: usize,
    skips_code: bool,
    skips_storage: bool,
    /// Whether accounts whose address is not known are left out.
    skips_unknown: bool,
}

impl Default for DumpConfig {
    fn default() -> Self {
        Self {
            start: B256::ZERO,
            count: MAX_ACCOUNTS,
            skips_code: false,
            skips_storage: false,
            skips_unknown: false,
        }
    }
}

/// A number of accounts, as `-1`, `16` or `"0x10"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum AccountCount {
    Number(i64),
    Hex(alloy_primitives::U64),
}

impl AccountCount {
    /// As in geth, zero and negative numbers mean the maximum.
    fn get(&self) -> usize {
        let count = match self {
            Self::Number(number) => usize::try_from(*number).unwrap_or_default(),
            Self::Hex(number) => number.saturating_to(),
        };
        if count == 0 { MAX_ACCOUNTS } else { count.min(MAX_ACCOUNTS) }
    }
}

/// `debug_accountRange(block, start, maxResults, nocode, nostorage, incompletes)`. An account is
/// incomplete if its address is not known.
fn account_range(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<AccountDump> {
    let (id, start): (BlockId, Bytes) = (args.required()?, args.required()?);
    let count = args.required::<AccountCount>()?.get();
    let (skips_code, skips_storage) = (args.required()?, args.required()?);
    let incompletes: bool = args.required()?;
    if start.len() > B256::len_bytes() {
        let message = format!("start has {} bytes, at most 32", start.len());
        return Err(RpcError::InvalidParams(message));
    }
    let start = B256::left_padding_from(&start);
    let skips_unknown = !incompletes;
    dump(rpc, view, id, &DumpConfig { start, count, skips_code, skips_storage, skips_unknown })
}

fn dump(
    rpc: &RpcContext,
    view: &LiveView,
    id: BlockId,
    wanted: &DumpConfig,
) -> RpcResult<AccountDump> {
    let header = view.find(id)?.ok_or_else(|| {
        RpcError::Rejected(match id {
            BlockId::Number(BlockNumberOrTag::Number(number)) => {
                format!("block #{number} not found")
            }
            BlockId::Number(tag) => format!("{tag} block not found"),
            BlockId::Hash(hash) => format!("block {} not found", hash.block_hash),
        })
    })?;
    let (state, root) = view.listed_state(&header.hash())?;
    let deadline = ExecutionClock::new(Duration::MAX).deadline();
    let mut found = match state.keys() {
        KeyForm::Plain => least(&state, &header, wanted, deadline)?,
        KeyForm::Hashed => next_by_hash(view, &state, &header, wanted, deadline)?,
    };
    let next = (found.len() > wanted.count).then(|| found.remove(wanted.count).hash);
    let mut room = rpc.limits.max_response_size;
    let mut accounts = BTreeMap::new();
    for found in found {
        let name = match found.address {
            Some(address) => address.to_checksum(None),
            None => format!("pre({})", found.hash),
        };
        let shown = AccountDumper { view, state: &state, wanted, room: &mut room };
        accounts.insert(name, shown.account(&found)?);
    }
    Ok(AccountDump { root: hex::encode(root), accounts, next })
}

/// An account of a dump. The order is that of the hashes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FoundAccount {
    /// Hash of the address.
    hash: B256,
    key: AccountKey,
    address: Option<Address>,
    value: StateValue,
}

/// One account more than `wanted`, with the smallest hashes from the start on, in order, of a state
/// with plain keys.
fn least(
    state: &StateProvider,
    header: &SealedHeader,
    wanted: &DumpConfig,
    deadline: Instant,
) -> RpcResult<Vec<FoundAccount>> {
    let count = wanted.count + 1;
    let mut kept = BinaryHeap::with_capacity(count + 1);
    let mut from = Some(Address::ZERO);
    while let Some(first) = from {
        check_deadline(header, deadline)?;
        let page = state.entries(Some(&BackendKey::Account(first.into())), PAGE)?;
        from = match page.last() {
            Some((BackendKey::Account(last), _)) if page.len() == PAGE => {
                last.address().as_ref().and_then(after)
            }
            _ => None,
        };
        for (key, value) in page {
            // Slots follow after the accounts.
            let BackendKey::Account(key) = key else { break };
            let Some(address) = key.address() else { break };
            let hash = keccak256(address);
            let is_less = kept.len() < count
                || kept.peek().is_some_and(|most: &FoundAccount| hash < most.hash);
            if hash >= wanted.start && is_less {
                kept.push(FoundAccount { hash, key, address: Some(address), value });
                if kept.len() > count {
                    kept.pop();
                }
            }
        }
    }
    Ok(kept.into_sorted_vec())
}

/// The same of a state with hashed keys, which are in this order.
fn next_by_hash(
    view: &LiveView,
    state: &StateProvider,
    header: &SealedHeader,
    wanted: &DumpConfig,
    deadline: Instant,
) -> RpcResult<Vec<FoundAccount>> {
    let mut found = Vec::new();
    let mut from = Some(wanted.start);
    while let Some(first) = from {
        check_deadline(header, deadline)?;
        let limit = wanted.count + 1;
        let page = state.entries(Some(&BackendKey::Account(AccountKey::hashed(first))), limit)?;
        from = match page.last() {
            Some((BackendKey::Account(last), _)) if page.len() == limit => {
                let next = U256::from_be_slice(last).checked_add(U256::ONE);
                next.map(B256::from)
            }
            _ => None,
        };
        for (key, value) in page {
            let BackendKey::Account(key) = key else { break };
            let address = view.address_of(&key)?;
            if address.is_none() && wanted.skips_unknown {
                continue;
            }
            found.push(FoundAccount { hash: B256::from_slice(&key), key, address, value });
            if found.len() > wanted.count {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

fn check_deadline(header: &SealedHeader, deadline: Instant) -> RpcResult<()> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(RpcError::Rejected(format!(
        "the state of block {} has more accounts than can be sorted by their hashes in one request; \
         retrie dump-state writes all of them",
        header.number
    )))
}

/// The next address; `None` after the last one.
fn after(address: &Address) -> Option<Address> {
    let word = U256::from_be_bytes(address.into_word().0) + U256::ONE;
    let bytes = word.to_be_bytes::<32>();
    (bytes[..12] == [0; 12]).then(|| Address::from_slice(&bytes[12..]))
}

/// Converts one account to its dumped form.
struct AccountDumper<'a> {
    view: &'a LiveView,
    state: &'a StateProvider,
    wanted: &'a DumpConfig,
    /// Bytes left in the response.
    room: &'a mut usize,
}

impl AccountDumper<'_> {
    fn account(self, found: &FoundAccount) -> RpcResult<DumpedAccount> {
        let Self { view, state, wanted, room } = self;
        let FoundAccount { hash, key, address, value } = found;
        let damaged = |what: String| {
            RpcError::from(StateError::corrupt("state", format!("{what} is not canonical")))
        };
        let account = Account::decode(value).ok_or_else(|| damaged(format!("account {key}")))?;
        let root = match view.live().backend().extensions().account_proofs.is_some() {
            true => Some(state.storage_root(key)?),
            false => None,
        };
        let mut code = None;
        if !wanted.skips_code && account.code_hash != KECCAK256_EMPTY {
            let lost = || {
                RpcError::Internal(format!("the code {} of {key} is missing", account.code_hash))
            };
            let found = view.code(&account.code_hash)?.ok_or_else(lost)?;
            *room = room.saturating_sub(2 * found.len());
            code = Some(found);
        }
        let (mut storage, mut storage_by_hash) = (BTreeMap::new(), BTreeMap::new());
        if !wanted.skips_storage {
            let most = *room / SLOT_BYTES;
            let slots = state.account_slots(key, most + 1)?;
            if slots.len() > most {
                return Err(RpcError::Rejected(format!(
                    "with the storage of {key} the answer is larger than \
                     --rpc.max-response-size; ask for fewer accounts, or without storage"
                )));
            }
            *room -= slots.len() * SLOT_BYTES;
            for (slot, value) in slots {
                let value = decode_slot(&value);
                let value = value.ok_or_else(|| damaged(format!("slot {slot} of {key}")))?;
                let value = hex::encode(value.to_be_bytes_trimmed_vec());
                match key.is_hashed() {
                    false => storage.insert(slot, value),
                    true => match view.preimage(&slot)?.and_then(|preimage| preimage.slot()) {
                        Some(slot) => storage.insert(slot, value),
                        None => storage_by_hash.insert(slot, value),
                    },
                };
            }
        }
        Ok(DumpedAccount {
            balance: account.balance.to_string(),
            nonce: account.nonce,
            root,
            code_hash: account.code_hash,
            code,
            storage,
            storage_by_hash,
            address: *address,
            key: *hash,
        })
    }
}
