//! Subscriptions over WebSocket and IPC.

use super::{block::syncing, log_filter::LogFilter, logs};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    convert::{self, RpcReceipt},
    eth_state::QuotaPermit,
    subscription::{next, send},
};
use alloy_primitives::{B256, map::HashSet};
use alloy_rpc_types_eth::{
    Filter, SyncStatus,
    pubsub::{PubSubSyncStatus, SyncStatusMetadata},
};
use jsonrpsee::{
    PendingSubscriptionSink, RpcModule, SubscriptionSink, core::SubscriptionError, types::Params,
};
use retrie_engine::pool::PoolTransaction;
use retrie_pipeline::{BlockWithReceipts, HeadChange};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use tokio::sync::broadcast::Receiver;

/// How often the sync status is checked for subscribers.
const SYNCING_INTERVAL: Duration = Duration::from_secs(1);

/// Most transactions in one `transactionReceipts` subscription.
const MAX_HASHES: usize = 200;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    let registered = module.register_subscription(
        "eth_subscribe",
        "eth_subscription",
        "eth_unsubscribe",
        |params, pending, rpc, _| async move { serve(&rpc, params, pending).await },
    );
    registered.expect("a namespace names each of its methods once");
}

/// The subject of a subscription.
enum SubscriptionTopic {
    NewHeads(Receiver<Arc<HeadChange>>),
    Logs(Receiver<Arc<HeadChange>>, Box<Filter>),
    Transactions {
        incoming: Receiver<Arc<PoolTransaction>>,
        is_full: bool,
    },
    /// Receipts of these transactions; of all transactions if the set is empty.
    Receipts(Receiver<Arc<HeadChange>>, HashSet<B256>),
    Syncing,
}

/// The option of a `transactionReceipts` subscription.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptsOptions {
    transaction_hashes: Option<Vec<B256>>,
}

impl SubscriptionTopic {
    fn new(rpc: &RpcContext, params: &Params<'_>) -> RpcResult<Self> {
        let mut args = MethodParams::new(params)?;
        let kind: String = args.required()?;
        let topic = match kind.as_str() {
            "newHeads" => Self::NewHeads(rpc.live.subscribe()),
            "logs" => {
                let LogFilter(filter) = args.optional()?.unwrap_or_default();
                logs::check_future(&filter)?;
                Self::Logs(rpc.live.subscribe(), filter.into())
            }
            "newPendingTransactions" => {
                let is_full = args.optional()?.unwrap_or(false);
                Self::Transactions { incoming: rpc.pool()?.subscribe(), is_full }
            }
            "transactionReceipts" => {
                let wanted: ReceiptsOptions = args.optional()?.unwrap_or_default();
                let hashes = wanted.transaction_hashes.unwrap_or_default();
                if hashes.len() > MAX_HASHES {
                    return Err(RpcError::Rejected(
                        "exceed max number of transaction hashes allowed per transactionReceipts \
                         subscription"
                            .into(),
                    ));
                }
                Self::Receipts(rpc.live.subscribe(), hashes.into_iter().collect())
            }
            "syncing" => Self::Syncing,
            _ => {
                let message = format!("no {kind:?} subscription in eth namespace");
                return Err(RpcError::Coded { code: RpcError::METHOD_NOT_FOUND, message });
            }
        };
        args.end().map(|()| topic)
    }

    /// Takes a place for one more subscription.
    fn admit(&self, rpc: &RpcContext) -> RpcResult<QuotaPermit> {
        let all = &rpc.eth.subscriptions;
        match self {
            Self::Logs(_, filter) => all.admit(Some(filter)),
            // A hash set is about half empty.
            Self::Receipts(_, hashes) => all.admit_bytes(2 * B256::len_bytes() * hashes.len()),
            Self::NewHeads(_) | Self::Transactions { .. } | Self::Syncing => all.admit(None),
        }
    }
}

async fn serve(
    rpc: &RpcContext,
    params: Params<'static>,
    pending: PendingSubscriptionSink,
) -> Result<(), SubscriptionError> {
    let admitted =
        SubscriptionTopic::new(rpc, &params).and_then(|topic| Ok((topic.admit(rpc)?, topic)));
    // The permit is returned when the subscription ends.
    let (_place, topic) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => {
            pending.reject(error).await;
            return Ok(());
        }
    };
    let sink = pending.accept().await?;
    match topic {
        SubscriptionTopic::NewHeads(mut changes) => {
            while let Some(change) = next(&sink, &mut changes).await? {
                if change.committed.is_empty() {
                    // The head moved back.
                    send(&sink, &convert::header(&change.head, None)).await?;
                }
                for block in &change.committed {
                    send(&sink, &convert::header(block.block.sealed_header(), None)).await?;
                }
            }
        }
        SubscriptionTopic::Logs(mut changes, filter) => {
            while let Some(change) = next(&sink, &mut changes).await? {
                for log in logs_of(&change, &filter) {
                    send(&sink, &log).await?;
                }
            }
        }
        SubscriptionTopic::Transactions { mut incoming, is_full } => {
            while let Some(transaction) = next(&sink, &mut incoming).await? {
                if is_full {
                    send(&sink, &convert::pool_transaction(&transaction)).await?;
                } else {
                    send(&sink, transaction.hash()).await?;
                }
            }
        }
        SubscriptionTopic::Receipts(mut changes, hashes) => {
            while let Some(change) = next(&sink, &mut changes).await? {
                for block in &change.committed {
                    let receipts = receipts_of(rpc, block, &hashes);
                    if !receipts.is_empty() {
                        send(&sink, &receipts).await?;
                    }
                }
            }
        }
        SubscriptionTopic::Syncing => tell_syncing(rpc, &sink).await?,
    }
    Ok(())
}

/// Matching logs of reverted blocks, the latest first, then of new blocks.
fn logs_of(change: &HeadChange, filter: &Filter) -> Vec<alloy_rpc_types_eth::Log> {
    let mut found = Vec::new();
    for block in &change.reverted {
        found.extend(logs::matching(block, filter, true));
    }
    found.reverse();
    for block in &change.committed {
        found.extend(logs::matching(block, filter, false));
    }
    found
}

/// The receipts of these transactions in a block; of all if `hashes` is empty.
fn receipts_of(
    rpc: &RpcContext,
    block: &BlockWithReceipts,
    hashes: &HashSet<B256>,
) -> Vec<RpcReceipt> {
    let is_wanted = |hash: &B256| hashes.is_empty() || hashes.contains(hash);
    let transactions = &block.block.body().transactions;
    if !transactions.iter().any(|transaction| is_wanted(transaction.tx_hash())) {
        return Vec::new();
    }
    let mut receipts = convert::receipts(rpc.live.spec(), &block.block, &block.receipts, None);
    receipts.retain(|receipt| is_wanted(&receipt.transaction_hash));
    receipts
}

/// Sends the sync status when it changes.
async fn tell_syncing(rpc: &RpcContext, sink: &SubscriptionSink) -> Result<(), SubscriptionError> {
    let mut last = None;
    let mut ticks = tokio::time::interval(SYNCING_INTERVAL);
    loop {
        tokio::select! {
            () = sink.closed() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let status = match syncing(rpc) {
            SyncStatus::None => PubSubSyncStatus::Simple(false),
            SyncStatus::Info(info) => PubSubSyncStatus::Detailed(SyncStatusMetadata {
                syncing: true,
                starting_block: info.starting_block.saturating_to(),
                current_block: info.current_block.saturating_to(),
                highest_block: Some(info.highest_block.saturating_to()),
            }),
        };
        if last != Some(status) {
            send(sink, &status).await?;
            last = Some(status);
        }
    }
}
