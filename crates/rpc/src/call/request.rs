//! Converts a request into the EVM's transaction environment.

use crate::{RpcError, RpcResult, geth_errors::TransactFailure};
use alloy_primitives::{TxKind, U256};
use alloy_rpc_types_eth::TransactionRequest;
use retrie_execution::EvmSimulation;
use revm::{
    context::{TransactionType, TxEnv, either::Either},
    primitives::hardfork::SpecId,
};

/// Which checks of a transaction are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallRules {
    /// A single call: no nonce check; if the call pays no fee, its block has no base fee.
    Call,
    /// A transaction of a simulated block that need not be valid: no nonce check, and no fees
    /// unless the request sets them.
    Lenient,
    /// A transaction of a simulated block that must be valid; only its sender may have code.
    Valid,
}

/// Sets the environment to the rules of calls and converts the request. `gas_cap` bounds the gas,
/// and is the gas limit if the request sets none; 0 means no bound.
pub(crate) fn prepare(
    simulation: &mut EvmSimulation<'_>,
    request: TransactionRequest,
    rules: CallRules,
    gas_cap: u64,
) -> RpcResult<TxEnv> {
    let names_blob_fee =
        request.max_fee_per_blob_gas.is_some() || request.blob_versioned_hashes.is_some();
    let tx = tx_env(simulation, request, rules, gas_cap)?;
    let env = simulation.env_mut();
    let cfg = &mut env.cfg_env;
    let pays = tx.gas_price > 0 || tx.gas_priority_fee.is_some_and(|tip| tip > 0);
    cfg.disable_eip3607 = true;
    cfg.disable_block_gas_limit = true;
    cfg.tx_gas_limit_cap = Some(u64::MAX);
    cfg.disable_nonce_check = rules != CallRules::Valid;
    cfg.disable_base_fee = rules != CallRules::Valid && !pays;
    if rules == CallRules::Call && !pays {
        env.block_env.basefee = 0;
    }
    // As with the base fee: a call with a blob fee of zero sees no blob base fee. A call that does
    // not mention blobs sees the block's.
    if rules == CallRules::Call
        && names_blob_fee
        && tx.max_fee_per_blob_gas == 0
        && let Some(blob) = &mut env.block_env.blob_excess_gas_and_price
    {
        blob.blob_gasprice = 0;
    }
    Ok(tx)
}

fn tx_env(
    simulation: &EvmSimulation<'_>,
    request: TransactionRequest,
    rules: CallRules,
    gas_cap: u64,
) -> RpcResult<TxEnv> {
    let cfg = &simulation.env().cfg_env;
    let (spec, own_chain) = (cfg.spec, cfg.chain_id);
    let has_dynamic_fees =
        request.max_fee_per_gas.is_some() || request.max_priority_fee_per_gas.is_some();
    if request.gas_price.is_some() && has_dynamic_fees {
        return Err(RpcError::Rejected(
            "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified".into(),
        ));
    }
    if let Some(have) = request.chain_id
        && have != own_chain
    {
        return Err(RpcError::Rejected(format!(
            "chainId does not match node's (have={have}, want={own_chain})"
        )));
    }
    let caller = request.from.unwrap_or_default();
    let kind = request.to.unwrap_or(TxKind::Create);
    let tx_type = transaction_type(spec, &request);
    if kind.is_create() {
        match tx_type {
            TransactionType::Eip4844 => {
                return Err(RpcError::Rejected("blob transaction of type create".into()));
            }
            TransactionType::Eip7702 => {
                return Err(RpcError::Rejected(format!(
                    "EIP-7702 transaction cannot be used to create contract (sender {caller})"
                )));
            }
            _ => {}
        }
    }
    let is_dynamic = !matches!(tx_type, TransactionType::Legacy | TransactionType::Eip2930);
    let (gas_price, tip) = match request.gas_price {
        Some(price) => (price, price),
        None => (
            request.max_fee_per_gas.unwrap_or_default(),
            request.max_priority_fee_per_gas.unwrap_or_default(),
        ),
    };
    let cap = if gas_cap == 0 { u64::MAX / 2 } else { gas_cap };
    // Calls skip the nonce check, but the EVM rejects the maximum nonce, which cannot be
    // incremented.
    let nonce = request.nonce.filter(|_| rules != CallRules::Call).unwrap_or_default();
    let authorizations = request.authorization_list.unwrap_or_default();
    Ok(TxEnv {
        tx_type: tx_type.into(),
        caller,
        gas_limit: request.gas.map_or(cap, |gas| gas.min(cap)),
        gas_price,
        kind,
        value: request.value.unwrap_or_default(),
        data: request.input.into_input().unwrap_or_default(),
        nonce,
        chain_id: Some(own_chain),
        access_list: request.access_list.unwrap_or_default(),
        gas_priority_fee: is_dynamic.then_some(tip),
        blob_hashes: request.blob_versioned_hashes.unwrap_or_default(),
        max_fee_per_blob_gas: request.max_fee_per_blob_gas.unwrap_or_default(),
        authorization_list: authorizations.into_iter().map(Either::Left).collect(),
    })
}

/// The lowest transaction type that has all fields of the request.
pub(super) fn transaction_type(spec: SpecId, request: &TransactionRequest) -> TransactionType {
    if request.authorization_list.is_some() {
        TransactionType::Eip7702
    } else if request.blob_versioned_hashes.is_some() {
        TransactionType::Eip4844
    } else if spec.is_enabled_in(SpecId::LONDON) && request.gas_price.is_none() {
        TransactionType::Eip1559
    } else if spec.is_enabled_in(SpecId::BERLIN) && request.access_list.is_some() {
        TransactionType::Eip2930
    } else {
        TransactionType::Legacy
    }
}

/// Whether a transaction sets a fee for its blobs, or has no blobs.
pub(super) const fn pays_blobs(tx: &TxEnv) -> bool {
    tx.blob_hashes.is_empty() || tx.max_fee_per_blob_gas > 0
}

/// The most gas that the sender can pay for after the value and the blob fee; `None`, i.e. no
/// bound, if the gas price is zero.
pub(super) fn allowance(simulation: &mut EvmSimulation<'_>, tx: &TxEnv) -> RpcResult<Option<u64>> {
    if tx.gas_price == 0 {
        return Ok(None);
    }
    let account = simulation.account(tx.caller).map_err(TransactFailure::database)?;
    let balance = account.unwrap_or_default().balance;
    let blob_gas = alloy_eips::eip4844::DATA_GAS_PER_BLOB * tx.blob_hashes.len() as u64;
    let blob_fee = U256::from(blob_gas).saturating_mul(U256::from(tx.max_fee_per_blob_gas));
    let insufficient = |what: &str| RpcError::Rejected(format!("insufficient funds for {what}"));
    let available = balance
        .checked_sub(tx.value)
        .filter(|rest| !rest.is_zero())
        .ok_or_else(|| insufficient("transfer"))?;
    let available = available
        .checked_sub(blob_fee)
        .filter(|rest| !rest.is_zero())
        .ok_or_else(|| insufficient("gas * price + value"))?;
    Ok(Some((available / U256::from(tx.gas_price)).saturating_to()))
}
