//! Balance, nonce, code and storage of accounts.

use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::{register_at_block, register_read},
    context::ResolveBlock,
};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U64, U256};
use alloy_serde::JsonStorageKey;
use jsonrpsee::RpcModule;
use retrie_engine::{LiveView, PostState};
use retrie_state::{Account, StateReader};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;

/// Most slots of one request.
const MAX_SLOTS: usize = 1024;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_at_block(module, "eth_getBalance", 1, |_, view, args| {
        let (address, state) = address_and_state(&view, args)?;
        Ok(account(&state, &address)?.balance)
    });
    register_at_block(module, "eth_getTransactionCount", 1, |rpc, view, args| {
        let (address, block) = (args.required()?, args.block_or_latest()?);
        transaction_count(rpc, &view, &address, block).map(U64::from)
    });
    register_at_block(module, "eth_getCode", 1, |_, view, args| {
        let (address, state) = address_and_state(&view, args)?;
        code(&state, &account(&state, &address)?)
    });
    register_at_block(module, "eth_getStorageAt", 2, |_, view, args| {
        let (address, StorageKey(key)) = (args.required()?, args.required()?);
        let state = view.state_after(args.block_or_latest()?)?;
        Ok(B256::from(state.slot(&address, &key.as_b256())?))
    });
    register_read(module, "eth_getStorageValues", |_, view, args| {
        let wanted: BTreeMap<Address, Vec<StorageKey>> = args.required()?;
        let count: usize = wanted.values().map(Vec::len).sum();
        match count {
            0 => return Err(RpcError::InvalidParams("empty request".into())),
            1..=MAX_SLOTS => {}
            _ => {
                let message = format!("too many slots (max {MAX_SLOTS})");
                return Err(RpcError::Coded { code: RpcError::CLIENT_LIMIT, message });
            }
        }
        let state = view.state_after(args.block_or_latest()?)?;
        let values = |(address, keys): (Address, Vec<StorageKey>)| {
            let value = |key: &StorageKey| state.slot(&address, &key.0.as_b256()).map(B256::from);
            let values: Vec<B256> = keys.iter().map(value).collect::<Result<_, _>>()?;
            Ok((address, values))
        };
        wanted.into_iter().map(values).collect::<RpcResult<BTreeMap<_, _>>>()
    });
    register_at_block(module, "eth_getAccountInfo", 1, |_, view, args| {
        let (address, state) = address_and_state(&view, args)?;
        let account = account(&state, &address)?;
        let code = code(&state, &account)?;
        Ok(alloy_rpc_types_eth::AccountInfo {
            balance: account.balance,
            nonce: account.nonce,
            code,
        })
    });
}

fn address_and_state(
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<(Address, PostState)> {
    Ok((args.required()?, view.state_after(args.block_or_latest()?)?))
}

/// The account at `address`; an empty one if it does not exist.
pub(crate) fn account(state: &PostState, address: &Address) -> RpcResult<Account> {
    Ok(state.account(address)?.unwrap_or_default())
}

/// The code of an account.
pub(crate) fn code(state: &PostState, account: &Account) -> RpcResult<Bytes> {
    let hash = account.code_hash;
    if hash == KECCAK256_EMPTY {
        return Ok(Bytes::new());
    }
    let lost = || RpcError::Internal(format!("the code {hash} of an account is missing"));
    state.view().code(&hash)?.ok_or_else(lost)
}

/// The nonce of an account after a block; of the pending one with the pool's transactions.
pub(crate) fn transaction_count(
    rpc: &RpcContext,
    view: &LiveView,
    address: &Address,
    block: BlockId,
) -> RpcResult<u64> {
    if block == BlockId::Number(BlockNumberOrTag::Pending)
        && let Some(pool) = &rpc.pool
        && let Some(nonce) = pool.nonce(address)
    {
        return Ok(nonce);
    }
    Ok(account(&view.state_after(block)?, address)?.nonce)
}

/// A slot in a request: hexadecimal, at most 32 bytes, leading zeros allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StorageKey(pub(super) JsonStorageKey);

impl<'de> Deserialize<'de> for StorageKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(&text);
        if digits.len() > 64 {
            let message = format!("storage key too long (want at most 32 bytes): {text:?}");
            return Err(de::Error::custom(message));
        }
        if digits.is_empty() {
            return Ok(Self(JsonStorageKey::Number(U256::ZERO)));
        }
        let key = U256::from_str_radix(digits, 16)
            .map_err(|_| de::Error::custom(format!("unable to decode storage key: {text:?}")))?;
        // The response repeats the key in the request's form: in full, or as a quantity.
        let is_full = digits.len() == 64;
        Ok(Self(if is_full { B256::from(key).into() } else { JsonStorageKey::Number(key) }))
    }
}
