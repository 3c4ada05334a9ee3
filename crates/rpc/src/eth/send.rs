//! Receives signed transactions.

use super::receipt;
use crate::{
    DevNode, MethodParams, RpcContext, RpcError, RpcResult, args::register_async,
    convert::RpcReceipt,
};
use alloy_consensus::Transaction as _;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{B256, Bytes, U64, U256};
use jsonrpsee::RpcModule;
#[cfg(feature = "graphql")]
use retrie_engine::pool::TransactionError;
use retrie_engine::{
    SealingMode,
    pool::{PoolError, PooledTransaction, TransactionOrigin},
};
use retrie_pipeline::HeadChange;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::broadcast::{
        Receiver,
        error::{RecvError, TryRecvError},
    },
    time::Instant,
};

/// Default wait of `eth_sendRawTransactionSync`.
const DEFAULT_WAIT: Duration = Duration::from_secs(20);
/// Longest wait of `eth_sendRawTransactionSync`.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for an automining chain to seal a transaction.
const SEAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Wei of an ether.
const ETHER: u128 = 1_000_000_000_000_000_000;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    let raw = |args: &mut MethodParams<'_>| args.required::<Bytes>();
    register_async(module, "eth_sendRawTransaction", raw, |rpc, raw| async move {
        let watch = SealWatch::start(&rpc);
        let context = (*rpc).clone();
        let hash = rpc.run_read(move |_| send(&context, &raw)).await?;
        watch.until_sealed(&rpc, &hash).await;
        Ok(hash)
    });
    let raw_and_wait =
        |args: &mut MethodParams<'_>| Ok((args.required::<Bytes>()?, args.optional::<U64>()?));
    register_async(
        module,
        "eth_sendRawTransactionSync",
        raw_and_wait,
        |rpc, (raw, wait)| async move {
            let wait = wait.filter(|wait| !wait.is_zero());
            let wait = wait.map_or(DEFAULT_WAIT, |wait| Duration::from_millis(wait.to()));
            send_and_wait(&rpc, raw, wait.min(MAX_WAIT)).await
        },
    );
}

/// Watches the chain from before a transaction is sent until it is sealed.
pub(super) struct SealWatch(Option<Receiver<Arc<HeadChange>>>);

impl SealWatch {
    /// Starts watching, if this is an automining dev chain whose send methods wait for sealing.
    pub(super) fn start(rpc: &RpcContext) -> Self {
        let seals = |dev: &&Arc<DevNode>| {
            dev.waits_for_sealing && dev.chain.sealing() == SealingMode::Instant
        };
        Self(rpc.dev.as_ref().filter(seals).map(|_| rpc.live.subscribe()))
    }

    /// Waits until a block has the transaction, or until the next block will not have it. Returns
    /// whether a block has it.
    pub(super) async fn until_sealed(self, rpc: &RpcContext, hash: &B256) -> bool {
        let Some(mut changes) = self.0 else { return false };
        let deadline = Instant::now() + SEAL_TIMEOUT;
        loop {
            let is_waiting = rpc.pool().is_ok_and(|pool| pool.is_pending(hash));
            let change = if is_waiting {
                match tokio::time::timeout_at(deadline, changes.recv()).await {
                    Ok(change) => change.map_err(|error| matches!(error, RecvError::Closed)),
                    Err(_) => return false,
                }
            } else {
                // The transaction has left the pool, so the change that contains it is already in
                // the channel.
                changes.try_recv().map_err(|error| !matches!(error, TryRecvError::Lagged(_)))
            };
            match change {
                Ok(change) if has(&change, hash) => return true,
                Ok(_) | Err(false) => {}
                Err(true) => return false,
            }
        }
    }
}

fn has(change: &HeadChange, hash: &B256) -> bool {
    let mut committed = change.committed.iter();
    committed.any(|block| block.block.body().transactions.iter().any(|one| one.tx_hash() == hash))
}

/// Adds an encoded transaction to the pool: EIP-2718, for blobs in the network form with sidecar.
fn send(rpc: &RpcContext, raw: &[u8]) -> RpcResult<B256> {
    rpc.pool()?;
    Ok(add(rpc, decode(raw)?)??)
}

fn decode(raw: &[u8]) -> RpcResult<PooledTransaction> {
    if raw.is_empty() {
        return Err(RpcError::Rejected("transaction could not be decoded: it is empty".into()));
    }
    PooledTransaction::decode_2718_exact(raw)
        .map_err(|error| RpcError::Rejected(format!("transaction could not be decoded: {error}")))
}

fn add(rpc: &RpcContext, transaction: PooledTransaction) -> RpcResult<Result<B256, PoolError>> {
    check_fee(&transaction, rpc.limits.tx_fee_cap)?;
    let added = rpc.pool()?.add(transaction, TransactionOrigin::Local, &rpc.live);
    if let Ok(hash) = &added {
        tracing::debug!(%hash, "transaction sent by a user");
    }
    Ok(added)
}

/// As `eth_sendRawTransaction`, but bytes that are no signed transaction are a wrong parameter. The
/// calling thread may block.
#[cfg(feature = "graphql")]
pub(crate) async fn send_signed(rpc: &RpcContext, raw: &[u8]) -> RpcResult<B256> {
    let wrong = |reason: String| RpcError::InvalidParams(reason);
    let watch = SealWatch::start(rpc);
    rpc.pool()?;
    let transaction = decode(raw).map_err(|error| wrong(error.to_string()))?;
    let hash = match add(rpc, transaction)? {
        Err(error @ PoolError::Transaction(TransactionError::InvalidSignature)) => {
            return Err(wrong(error.to_string()));
        }
        added => added?,
    };
    watch.until_sealed(rpc, &hash).await;
    Ok(hash)
}

/// Rejects transactions whose fee exceeds the cap.
pub(super) fn check_fee(transaction: &PooledTransaction, cap: u128) -> RpcResult<()> {
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

async fn send_and_wait(rpc: &RpcContext, raw: Bytes, wait: Duration) -> RpcResult<RpcReceipt> {
    let deadline = Instant::now() + wait;
    // Subscribes before sending, so that no block is missed.
    let mut changes = rpc.live.subscribe();
    let context = rpc.clone();
    let hash = rpc.run_read(move |_| send(&context, &raw)).await?;
    loop {
        let is_mined = match tokio::time::timeout_at(deadline, changes.recv()).await {
            Ok(Ok(change)) => has(&change, &hash),
            Ok(Err(RecvError::Lagged(_))) => true,
            Ok(Err(RecvError::Closed)) | Err(_) => {
                return Err(RpcError::NotMinedInTime { hash, waited: wait });
            }
        };
        if is_mined {
            let context = rpc.clone();
            let found =
                rpc.run_read(move |view| receipt::of_transaction(&context, &view, &hash)).await?;
            if let Some(receipt) = found {
                return Ok(receipt);
            }
        }
    }
}
