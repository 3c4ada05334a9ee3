//! Block and state overrides of a request.

use crate::{RpcError, RpcResult, geth_errors::TransactFailure};
use alloy_primitives::U256;
use alloy_rpc_types_eth::{
    BlockOverrides,
    state::{AccountOverride as RequestedOverride, StateOverride},
};
use retrie_chainspec::primitives::Header;
use retrie_execution::{AccountOverride, EvmSimulation};

/// Applies block overrides to the header that provides a call's environment.
/// [`apply_block_overrides`] applies the rest, which no header field holds.
pub(super) fn override_header(header: &mut Header, overrides: &BlockOverrides) -> RpcResult<()> {
    if let Some(number) = overrides.number {
        header.number = fits(number, "number")?;
    }
    if let Some(difficulty) = overrides.difficulty {
        header.difficulty = difficulty;
    }
    if let Some(time) = overrides.time {
        header.timestamp = time;
    }
    if let Some(gas_limit) = overrides.gas_limit {
        header.gas_limit = gas_limit;
    }
    if let Some(coinbase) = overrides.coinbase {
        header.beneficiary = coinbase;
    }
    if let Some(random) = overrides.random {
        header.mix_hash = random;
    }
    if let Some(base_fee) = overrides.base_fee {
        header.base_fee_per_gas = Some(fits(base_fee, "baseFeePerGas")?);
    }
    if let Some(beacon_root) = overrides.beacon_root {
        header.parent_beacon_block_root = Some(beacon_root);
    }
    Ok(())
}

fn fits<T>(value: U256, name: &str) -> RpcResult<T>
where
    U256: alloy_primitives::ruint::UintTryTo<T>,
{
    alloy_primitives::ruint::UintTryTo::uint_try_to(&value).map_err(|_| {
        RpcError::InvalidParams(format!("block override {name} is too large: {value}"))
    })
}

/// The header that provides a call's environment, with the request's overrides.
pub(crate) fn header_of_call(
    header: &Header,
    overrides: Option<&BlockOverrides>,
) -> RpcResult<Header> {
    let mut header = header.clone();
    if let Some(overrides) = overrides {
        override_header(&mut header, overrides)?;
    }
    Ok(header)
}

/// Applies the overrides that no header field holds: the blob base fee and block hashes.
pub(crate) fn apply_block_overrides(
    simulation: &mut EvmSimulation<'_>,
    overrides: &BlockOverrides,
) -> RpcResult<()> {
    if let Some(fee) = overrides.blob_base_fee
        && let Some(blob) = &mut simulation.env_mut().block_env.blob_excess_gas_and_price
    {
        blob.blob_gasprice = fits(fee, "blobBaseFee")?;
    }
    for (number, hash) in overrides.block_hash.iter().flatten() {
        simulation.set_block_hash(*number, *hash);
    }
    Ok(())
}

/// Applies state overrides. A precompile whose address is overridden is removed; the request may
/// move it to another address.
pub(crate) fn apply_state_overrides(
    simulation: &mut EvmSimulation<'_>,
    overrides: StateOverride,
) -> RpcResult<()> {
    let refused = |reason: String| Err(RpcError::Rejected(reason));
    let mut precompiles: Vec<_> = Vec::new();
    for (address, account) in &overrides {
        let is_precompile = simulation.is_precompile(address);
        if let Some(to) = account.move_precompile_to {
            if !is_precompile {
                return refused(format!("account {address} is not a precompile"));
            }
            if overrides.contains_key(&to) {
                return refused(format!("account {to} is already overridden"));
            }
        }
        if is_precompile {
            precompiles.push((*address, account.move_precompile_to));
        }
    }
    for (address, to) in precompiles {
        if let Some(to) = to {
            simulation.move_precompile(address, to);
        }
        simulation.remove_precompile(address);
    }
    for (address, account) in overrides {
        let RequestedOverride { balance, nonce, code, state, state_diff, .. } = account;
        if state.is_some() && state_diff.is_some() {
            return refused(format!("account {address} has both 'state' and 'stateDiff'"));
        }
        let clears_storage = state.is_some();
        let slots = state.or(state_diff).unwrap_or_default();
        let slots = slots.into_iter().map(|(slot, value)| (slot.into(), value.into())).collect();
        let changed = AccountOverride { balance, nonce, code, clears_storage, slots };
        simulation.override_account(address, changed).map_err(TransactFailure::database)?;
    }
    Ok(())
}
