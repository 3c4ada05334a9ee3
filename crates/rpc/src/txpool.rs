//! The namespace `txpool`: content of the transaction pool.

use crate::{
    RpcContext,
    args::{register_quick, register_read},
    convert::pool_transaction,
};
use alloy_consensus::Transaction as _;
use alloy_primitives::Address;
use alloy_rpc_types_eth::Transaction;
use alloy_rpc_types_txpool::{
    TxpoolContent, TxpoolContentFrom, TxpoolInspect, TxpoolInspectSummary, TxpoolStatus,
};
use jsonrpsee::{Methods, RpcModule};
use retrie_chainspec::primitives::Transaction as ChainTransaction;
use retrie_engine::pool::{PoolTransaction, SenderContent, TransactionsByNonce};
use std::collections::BTreeMap;

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "txpool_status", |rpc, _| {
        let status = rpc.pool()?.status();
        Ok(TxpoolStatus { pending: status.pending as u64, queued: status.queued as u64 })
    });
    register_read(&mut module, "txpool_content", |rpc, _, _| {
        let content = rpc.pool()?.content();
        let all = |of: BTreeMap<Address, TransactionsByNonce>| by_sender(of, pool_transaction);
        Ok(TxpoolContent { pending: all(content.pending), queued: all(content.queued) })
    });
    register_quick(&mut module, "txpool_contentFrom", |rpc, args| {
        let SenderContent { pending, queued } = rpc.pool()?.content_from(&args.required()?);
        Ok(TxpoolContentFrom::<Transaction<ChainTransaction>> {
            pending: by_nonce(pending, pool_transaction),
            queued: by_nonce(queued, pool_transaction),
        })
    });
    register_read(&mut module, "txpool_inspect", |rpc, _, _| {
        let content = rpc.pool()?.content();
        let all = |of: BTreeMap<Address, TransactionsByNonce>| by_sender(of, summary);
        Ok(TxpoolInspect { pending: all(content.pending), queued: all(content.queued) })
    });
    module.into()
}

fn summary(waiting: &PoolTransaction) -> TxpoolInspectSummary {
    let transaction = waiting.transaction.inner();
    TxpoolInspectSummary {
        to: transaction.to(),
        value: transaction.value(),
        gas: transaction.gas_limit(),
        gas_price: transaction.max_fee_per_gas(),
    }
}

fn by_nonce<T>(
    of: TransactionsByNonce,
    show: impl Fn(&PoolTransaction) -> T,
) -> BTreeMap<String, T> {
    of.into_iter().map(|(nonce, one)| (nonce.to_string(), show(&one))).collect()
}

fn by_sender<T>(
    of: BTreeMap<Address, TransactionsByNonce>,
    show: impl Fn(&PoolTransaction) -> T + Copy,
) -> BTreeMap<Address, BTreeMap<String, T>> {
    of.into_iter().map(|(sender, one)| (sender, by_nonce(one, show))).collect()
}
