//! Calls: a request becomes a transaction of the EVM, and the environment that of calls.

use crate::EvmSimulation;
use alloy_primitives::{Address, TxKind};
use alloy_rpc_types_eth::TransactionRequest;
use revm::{
    context::{TransactionType, TxEnv, either::Either},
    primitives::hardfork::SpecId,
};

/// Why a request is no call. The texts are geth's, because tools match on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallRequestError {
    /// The request names fees of two kinds.
    #[error("both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified")]
    TwoFees,
    /// The request is for another chain.
    #[error("chainId does not match node's (have={have}, want={want})")]
    OtherChain {
        /// The request's chain id.
        have: u64,
        /// The chain id of the environment.
        want: u64,
    },
    /// A transaction with blobs that creates a contract (EIP-4844 forbids it).
    #[error("blob transaction of type create")]
    BlobCreation,
    /// A transaction with delegations that creates a contract (EIP-7702 forbids it).
    #[error("EIP-7702 transaction cannot be used to create contract (sender {sender})")]
    SetCodeCreation {
        /// The sender.
        sender: Address,
    },
}

/// Which checks of a transaction are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRules {
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
pub fn prepare_call(
    simulation: &mut EvmSimulation<'_>,
    request: TransactionRequest,
    rules: CallRules,
    gas_cap: u64,
) -> Result<TxEnv, CallRequestError> {
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
) -> Result<TxEnv, CallRequestError> {
    let cfg = &simulation.env().cfg_env;
    let (spec, own_chain) = (cfg.spec, cfg.chain_id);
    let has_dynamic_fees =
        request.max_fee_per_gas.is_some() || request.max_priority_fee_per_gas.is_some();
    if request.gas_price.is_some() && has_dynamic_fees {
        return Err(CallRequestError::TwoFees);
    }
    if let Some(have) = request.chain_id
        && have != own_chain
    {
        return Err(CallRequestError::OtherChain { have, want: own_chain });
    }
    let caller = request.from.unwrap_or_default();
    let kind = request.to.unwrap_or(TxKind::Create);
    let tx_type = lowest_transaction_type(spec, &request);
    if kind.is_create() {
        match tx_type {
            TransactionType::Eip4844 => {
                return Err(CallRequestError::BlobCreation);
            }
            TransactionType::Eip7702 => {
                return Err(CallRequestError::SetCodeCreation { sender: caller });
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
pub fn lowest_transaction_type(spec: SpecId, request: &TransactionRequest) -> TransactionType {
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
