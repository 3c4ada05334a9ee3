//! What a call can pay for.

use crate::{RpcError, RpcResult, geth_errors::TransactFailure};
use alloy_primitives::U256;
use retrie_execution::EvmSimulation;
use revm::context::TxEnv;

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
