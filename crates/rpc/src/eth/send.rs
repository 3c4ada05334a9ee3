//! Transactions that come in, and accounts that this node holds no keys of.

use super::receipt;
use crate::{
    RpcContext, RpcError, RpcResult,
    args::{Args, quick, read},
};
use alloy_consensus::Transaction as _;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_rpc_types_eth::TransactionRequest;
use jsonrpsee::RpcModule;
use retrie_engine::{
    View,
    pool::{Origin, PooledTransaction},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::broadcast::error::RecvError, time::Instant};

/// How long `eth_sendRawTransactionSync` waits if it is not told.
const DEFAULT_WAIT: Duration = Duration::from_secs(20);
/// How long it waits at most.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Code of a transaction that was accepted but not mined in time.
const NOT_MINED_IN_TIME: i32 = 4;
/// Wei of an ether.
const ETHER: u128 = 1_000_000_000_000_000_000;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    read(module, "eth_sendRawTransaction", |rpc, view, args| {
        let raw: Bytes = args.required()?;
        args.end()?;
        send(rpc, &view, &raw)
    });
    let registered = module.register_async_method(
        "eth_sendRawTransactionSync",
        |params, rpc: Arc<RpcContext>, _| async move {
            let mut args = Args::new(&params)?;
            let raw: Bytes = args.required()?;
            let wait: Option<U64> = args.optional()?;
            args.end()?;
            let wait = wait.map_or(DEFAULT_WAIT, |wait| Duration::from_millis(wait.to()));
            send_and_wait(&rpc, raw, wait.min(MAX_WAIT)).await
        },
    );
    registered.expect("a namespace names each of its methods once");
    quick(module, "eth_accounts", |_, _| Ok(Vec::<Address>::new()));
    quick(module, "eth_coinbase", |_, _| -> RpcResult<Address> {
        Err(RpcError::Rejected("etherbase must be explicitly specified".into()))
    });
    quick(module, "eth_sendTransaction", |_, args| {
        args.required::<TransactionRequest>()?;
        unknown_account::<B256>()
    });
    quick(module, "eth_signTransaction", |_, args| {
        args.required::<TransactionRequest>()?;
        unknown_account::<Bytes>()
    });
    quick(module, "eth_sign", |_, args| {
        let _: (Address, Bytes) = (args.required()?, args.required()?);
        unknown_account::<Bytes>()
    });
}

fn unknown_account<T>() -> RpcResult<T> {
    Err(RpcError::Rejected("unknown account: this node holds no keys".into()))
}

/// Adds a transaction in its EIP-2718 encoding, one with blobs in that of the network, to the pool.
fn send(rpc: &RpcContext, view: &View, raw: &[u8]) -> RpcResult<B256> {
    let pool = rpc.pool()?;
    if raw.is_empty() {
        return Err(RpcError::Rejected("transaction could not be decoded: it is empty".into()));
    }
    let transaction = PooledTransaction::decode_2718_exact(raw).map_err(|error| {
        RpcError::Rejected(format!("transaction could not be decoded: {error}"))
    })?;
    check_fee(&transaction, rpc.limits.tx_fee_cap)?;
    let state = view.state(&view.head().hash())?;
    let hash = pool.add(transaction, Origin::Local, &state)?;
    tracing::debug!(%hash, "transaction sent by a user");
    Ok(hash)
}

/// Protects users from fees that are slips.
fn check_fee(transaction: &PooledTransaction, cap: u128) -> RpcResult<()> {
    let fee = U256::from(transaction.max_fee_per_gas()) * U256::from(transaction.gas_limit());
    if cap == 0 || fee <= U256::from(cap) {
        return Ok(());
    }
    let ether = |wei: U256| f64::from(wei) / ETHER as f64;
    Err(RpcError::Rejected(format!(
        "tx fee ({:.2} ether) exceeds the configured cap ({:.2} ether)",
        ether(fee),
        ether(U256::from(cap))
    )))
}

async fn send_and_wait(
    rpc: &RpcContext,
    raw: Bytes,
    wait: Duration,
) -> RpcResult<super::convert::RpcReceipt> {
    let deadline = Instant::now() + wait;
    // From before it is sent, so that no block is missed.
    let mut changes = rpc.live.subscribe();
    let context = rpc.clone();
    let hash = rpc.read(move |view| send(&context, &view, &raw)).await?;
    loop {
        let is_mined = match tokio::time::timeout_at(deadline, changes.recv()).await {
            Ok(Ok(change)) => change.committed.iter().any(|block| {
                block.block.body().transactions.iter().any(|one| *one.tx_hash() == hash)
            }),
            Ok(Err(RecvError::Lagged(_))) => true,
            Ok(Err(RecvError::Closed)) | Err(_) => {
                let message = format!(
                    "The transaction was added to the transaction pool but wasn't processed within \
                     the designated timeout: {hash}"
                );
                return Err(RpcError::Coded { code: NOT_MINED_IN_TIME, message });
            }
        };
        if is_mined {
            let context = rpc.clone();
            let found =
                rpc.read(move |view| receipt::of_transaction(&context, &view, &hash)).await?;
            if let Some(receipt) = found {
                return Ok(receipt);
            }
        }
    }
}
