//! The transactions of simulated blocks, which have no signatures.

use crate::{RpcError, RpcResult, convert::RpcBlock};
use alloy_consensus::{
    SignableTransaction, Signed, Transaction as _, TxEip1559, TxEip4844, TxEip7702, TxLegacy,
    proofs::ordered_trie_root_with_encoder,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Signature, TxKind, U256, keccak256};
use alloy_rlp::Encodable;
use alloy_rpc_types_eth::{BlockTransactions, simulate::SimulatedBlock};
use retrie_chainspec::primitives::Transaction;
use revm::context::{TransactionType, TxEnv, either::Either};
use serde_json::{Value, json};

/// The executed transaction as a transaction of this type, with a signature of zeros.
pub(super) fn unsigned_transaction(tx: TxEnv, tx_type: TransactionType) -> Transaction {
    let TxEnv { nonce, gas_limit, value, data: input, access_list, .. } = tx;
    let chain_id = tx.chain_id.unwrap_or_default();
    let to = tx.kind.to().copied().unwrap_or_default();
    let (max_fee_per_gas, max_priority_fee_per_gas) =
        (tx.gas_price, tx.gas_priority_fee.unwrap_or_default());
    let signature = Signature::new(U256::ZERO, U256::ZERO, false);
    let to_kind: TxKind = tx.kind;
    match tx_type {
        TransactionType::Eip1559 => TxEip1559 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: to_kind,
            value,
            access_list,
            input,
        }
        .into_signed(signature)
        .into(),
        TransactionType::Eip4844 => TxEip4844 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to,
            value,
            access_list,
            blob_versioned_hashes: tx.blob_hashes,
            max_fee_per_blob_gas: tx.max_fee_per_blob_gas,
            input,
        }
        .into_signed(signature)
        .into(),
        TransactionType::Eip7702 => TxEip7702 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to,
            value,
            access_list,
            authorization_list: tx
                .authorization_list
                .into_iter()
                .filter_map(Either::left)
                .collect(),
            input,
        }
        .into_signed(signature)
        .into(),
        _ => {
            let gas_price = max_fee_per_gas;
            let chain_id = None;
            let tx = TxLegacy { chain_id, nonce, gas_price, gas_limit, to: to_kind, value, input };
            let hash = keccak256(encoded_legacy(&tx));
            Signed::new_unchecked(tx, signature, hash).into()
        }
    }
}

/// The encoding of an unsigned legacy transaction. As in geth its `v` is 0; a real signature has at
/// least 27.
fn encoded_legacy(tx: &TxLegacy) -> Vec<u8> {
    let TxLegacy { nonce, gas_price, gas_limit, to, value, input, .. } = tx;
    let zero = 0u8;
    let fields: [&dyn Encodable; 9] =
        [nonce, gas_price, gas_limit, to, value, input, &zero, &zero, &zero];
    let mut encoded = Vec::new();
    alloy_rlp::encode_list::<_, dyn Encodable>(&fields, &mut encoded);
    encoded
}

/// The transactions root of a header over unsigned transactions.
pub(super) fn transactions_root(transactions: &[Transaction]) -> B256 {
    ordered_trie_root_with_encoder(transactions, |tx: &Transaction, out| match tx.as_legacy() {
        Some(legacy) => alloy_rlp::BufMut::put_slice(out, &encoded_legacy(legacy.tx())),
        None => tx.encode_2718(out),
    })
}

/// A block as JSON. A legacy transaction shows the `v` that its hash covers, and no effective gas
/// price exceeds the transaction's maximum, even if the base fee does.
pub(super) fn block_json(mut block: SimulatedBlock<RpcBlock>) -> RpcResult<Value> {
    if let BlockTransactions::Full(transactions) = &mut block.inner.transactions {
        for transaction in transactions {
            let most = transaction.inner.max_fee_per_gas();
            transaction.effective_gas_price =
                transaction.effective_gas_price.map(|price| price.min(most));
        }
    }
    let mut shown =
        serde_json::to_value(&block).map_err(|error| RpcError::Internal(error.to_string()))?;
    let transactions = shown.get_mut("transactions").and_then(Value::as_array_mut);
    for transaction in transactions.into_iter().flatten() {
        if transaction.get("type") == Some(&json!("0x0")) {
            transaction["v"] = json!("0x0");
        }
    }
    Ok(shown)
}
