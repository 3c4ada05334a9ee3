//! The node's pool, as gossip reads and fills it.

use alloy_consensus::TxType;
use alloy_primitives::B256;
use retrie_engine::{
    EngineHandle,
    pool::{Origin, Pool, PoolError, PoolTransaction},
};
use retrie_network::{
    eth::PooledTransaction,
    gossip::{Announced, Fresh, FreshFuture, FreshTransactions, TxPool, Verdict},
};
use std::{
    cmp::Reverse,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::broadcast::{self, error::RecvError};

/// The pool, and the engine by whose heads it judges.
#[derive(Clone, Debug)]
pub(crate) struct NodePool {
    engine: EngineHandle,
    pool: Pool,
}

impl NodePool {
    pub(crate) const fn new(engine: EngineHandle, pool: Pool) -> Self {
        Self { engine, pool }
    }
}

/// Bytes of a blob (EIP-4844), its commitment and its 128 cell proofs (EIP-7594) in RLP.
const SIDECAR_BYTES_PER_BLOB: u64 = (4 + 131_072) + 49 + 128 * 49;

impl NodePool {
    /// Blobs of a transaction, at most: by the rules of now, or of the next block if the chain is behind.
    fn max_blobs(&self) -> u64 {
        let live = self.engine.live();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = |timestamp| live.spec().blob_params_at_timestamp(timestamp);
        let params = [at(now), at(live.head().timestamp.saturating_add(1))];
        params.iter().flatten().map(|params| params.max_blobs_per_tx).max().unwrap_or(0)
    }
}

/// Whether others may know of it.
pub(super) fn may_be_told(tx: &PoolTransaction) -> bool {
    tx.origin != Origin::Private && !tx.is_unsigned
}

fn announced(tx: &PoolTransaction) -> Announced {
    let ty = tx.transaction.tx_type() as u8;
    Announced { hash: *tx.hash(), ty, size: tx.pooled_length() as u64 }
}

impl TxPool for NodePool {
    fn is_open(&self) -> bool {
        self.engine.syncing().is_none()
    }

    fn max_size(&self, ty: u8) -> u64 {
        // Lists around the fields, and a length of which other clients count a byte more or less.
        const MARGIN: u64 = 64;
        let plain = self.pool.config().max_tx_input_bytes as u64 + MARGIN;
        match TxType::try_from(ty) {
            Ok(TxType::Eip4844) => plain + self.max_blobs() * SIDECAR_BYTES_PER_BLOB,
            Ok(_) => plain,
            Err(_) => 0,
        }
    }

    fn contains(&self, hash: &B256) -> bool {
        self.pool.get(hash).is_some()
    }

    fn pooled(&self, hash: &B256) -> Option<PooledTransaction> {
        self.pool.get(hash).filter(|tx| may_be_told(tx))?.to_pooled()
    }

    fn newest(&self, most: usize) -> Vec<Announced> {
        let mut all = self.pool.executable();
        all.retain(|tx| may_be_told(tx));
        all.sort_by_key(|tx| Reverse(tx.arrived));
        all.truncate(most);
        all.iter().map(|tx| announced(tx)).collect()
    }

    fn fresh(&self) -> Box<dyn FreshTransactions> {
        Box::new(Subscription(self.pool.subscribe()))
    }

    fn add(&self, transaction: PooledTransaction) -> Verdict {
        match self.pool.add(transaction, Origin::External, self.engine.live()) {
            Ok(_) => Verdict::Taken,
            Err(error) => verdict(&error),
        }
    }
}

#[derive(Debug)]
struct Subscription(broadcast::Receiver<Arc<PoolTransaction>>);

impl FreshTransactions for Subscription {
    fn next(&mut self) -> FreshFuture<'_> {
        Box::pin(async {
            loop {
                return Some(match self.0.recv().await {
                    Ok(tx) if may_be_told(&tx) => Fresh::One(announced(&tx)),
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => Fresh::Missed,
                    Err(RecvError::Closed) => return None,
                });
            }
        })
    }
}

/// What a refusal says of the transaction, and of whoever has sent it.
fn verdict(error: &PoolError) -> Verdict {
    match error {
        PoolError::AlreadyKnown => Verdict::Known,
        // Not under any state, and nobody can have made it so on the way but its sender.
        PoolError::InvalidSignature
        | PoolError::TipAboveFeeCap { .. }
        | PoolError::NonceMax
        | PoolError::EmptyAuthorizations
        | PoolError::NoBlobs => Verdict::Invalid,
        // The hash says nothing of the sidecar: others may have the right one.
        PoolError::MissingSidecar | PoolError::BlobCount { .. } | PoolError::Sidecar(_) => {
            Verdict::BadSidecar
        }
        // Around Osaka honest peers send both forms; others may have the other one.
        PoolError::SidecarVersion { .. } => Verdict::SidecarForm,
        // Others of the sender, which may be on their way, go before it; or the node itself has failed.
        PoolError::NonceTooHigh { .. } | PoolError::OutOfOrderDelegated | PoolError::State(_) => {
            Verdict::TooEarly
        }
        // Of no use for as long as anybody can tell.
        PoolError::ChainId { .. }
        | PoolError::TypeNotActive { .. }
        | PoolError::BlobsDisabled
        | PoolError::Oversized { .. }
        | PoolError::InitCodeSize { .. }
        | PoolError::GasLimitTooHigh { .. }
        | PoolError::IntrinsicGas { .. }
        | PoolError::FloorDataGas { .. }
        | PoolError::Underpriced { .. }
        | PoolError::TipTooLow { .. }
        | PoolError::BlobFeeTooLow { .. }
        | PoolError::NonceTooLow { .. }
        | PoolError::ReplacementUnderpriced
        | PoolError::TooManyBlobs { .. } => Verdict::Refused { for_good: true },
        _ => Verdict::Refused { for_good: false },
    }
}
