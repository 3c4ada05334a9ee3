//! The node's transaction pool, as gossip reads and fills it.

use alloy_consensus::TxType;
use alloy_primitives::B256;
use retrie_engine::{
    EngineHandle,
    pool::{
        PoolConflictError, PoolError, PoolTransaction, SenderError, SidecarError, TransactionError,
        TransactionOrigin, TransactionPool,
    },
};
use retrie_p2p::{
    eth::PooledTransaction,
    gossip::{FreshFuture, FreshTransactions, FreshUpdate, PoolVerdict, TxAnnouncement, TxPool},
};
use std::{
    cmp::Reverse,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::broadcast::{self, error::RecvError};

/// The pool, and the engine whose head it checks transactions against.
#[derive(Clone, Debug)]
pub(crate) struct NodePool {
    engine: EngineHandle,
    pool: TransactionPool,
}

impl NodePool {
    pub(crate) const fn new(engine: EngineHandle, pool: TransactionPool) -> Self {
        Self { engine, pool }
    }

    /// Most blobs in a transaction, by the rules of now, or of the next block if the chain is
    /// behind.
    fn max_blobs(&self) -> u64 {
        let live = self.engine.live();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = |timestamp| live.spec().blob_params_at_timestamp(timestamp);
        let params = [at(now), at(live.head().timestamp.saturating_add(1))];
        params.iter().flatten().map(|params| params.max_blobs_per_tx).max().unwrap_or(0)
    }
}

/// Bytes of the longest pooled transaction of type `ty`: at most `max_plain` bytes without its
/// sidecar, and at most `max_blobs` blobs.
fn max_pooled_bytes(ty: u8, max_plain: u64, max_blobs: u64) -> u64 {
    /// A blob (EIP-4844), its commitment and its 128 cell proofs (EIP-7594) in RLP.
    const PER_BLOB: u64 = (4 + 131_072) + 49 + 128 * 49;
    /// The lists around the fields, and lengths that other clients count a byte more or less.
    const MARGIN: u64 = 64;
    let plain = max_plain.saturating_add(MARGIN);
    match TxType::try_from(ty) {
        Ok(TxType::Eip4844) => plain.saturating_add(max_blobs.saturating_mul(PER_BLOB)),
        Ok(_) => plain,
        Err(_) => 0,
    }
}

/// Whether peers may learn of the transaction.
pub(super) fn may_be_announced(tx: &PoolTransaction) -> bool {
    tx.origin != TransactionOrigin::Private && !tx.is_unsigned
}

fn announced(tx: &PoolTransaction) -> TxAnnouncement {
    let ty = tx.transaction.tx_type() as u8;
    TxAnnouncement { hash: *tx.hash(), ty, size: tx.pooled_length() as u64 }
}

impl TxPool for NodePool {
    fn is_open(&self) -> bool {
        self.engine.syncing().is_none()
    }

    fn max_size(&self, ty: u8) -> u64 {
        let max_blobs = if ty == TxType::Eip4844 as u8 { self.max_blobs() } else { 0 };
        max_pooled_bytes(ty, self.pool.config().max_tx_input_bytes as u64, max_blobs)
    }

    fn contains(&self, hash: &B256) -> bool {
        self.pool.get(hash).is_some()
    }

    fn pooled(&self, hash: &B256) -> Option<PooledTransaction> {
        self.pool.get(hash).filter(|tx| may_be_announced(tx))?.to_pooled()
    }

    fn size_without_blobs(&self, hash: &B256) -> Option<u64> {
        Some(self.pool.get(hash)?.pooled_length_without_blobs()? as u64)
    }

    fn newest(&self, most: usize) -> Vec<TxAnnouncement> {
        let mut all = self.pool.executable();
        all.retain(|tx| may_be_announced(tx));
        all.sort_by_key(|tx| Reverse(tx.arrived));
        all.truncate(most);
        all.iter().map(|tx| announced(tx)).collect()
    }

    fn fresh(&self) -> Box<dyn FreshTransactions> {
        Box::new(PoolSubscription(self.pool.subscribe()))
    }

    fn add(&self, transaction: PooledTransaction) -> PoolVerdict {
        match self.pool.add(transaction, TransactionOrigin::External, self.engine.live()) {
            Ok(_) => PoolVerdict::Taken,
            Err(error) => verdict(&error),
        }
    }
}

#[derive(Debug)]
struct PoolSubscription(broadcast::Receiver<Arc<PoolTransaction>>);

impl FreshTransactions for PoolSubscription {
    fn next(&mut self) -> FreshFuture<'_> {
        Box::pin(async {
            loop {
                return Some(match self.0.recv().await {
                    Ok(tx) if may_be_announced(&tx) => FreshUpdate::One(announced(&tx)),
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => FreshUpdate::Missed,
                    Err(RecvError::Closed) => return None,
                });
            }
        })
    }
}

/// What a pool error says about the transaction, and about the peer that sent it.
fn verdict(error: &PoolError) -> PoolVerdict {
    match error {
        PoolError::AlreadyKnown => PoolVerdict::Known,
        PoolError::Transaction(error) => verdict_on_transaction(error),
        // Useless for the foreseeable future.
        PoolError::Sender(SenderError::NonceTooLow { .. })
        | PoolError::Conflict(PoolConflictError::ReplacementUnderpriced) => {
            PoolVerdict::Refused { for_good: true }
        }
        // Transactions of the same sender come first and may be on their way; or this node failed.
        PoolError::Conflict(
            PoolConflictError::NonceTooHigh { .. } | PoolConflictError::OutOfOrderDelegated,
        )
        | PoolError::State(_) => PoolVerdict::TooEarly,
        // Another state, or an emptier pool, may take it.
        PoolError::Sender(SenderError::NotEoa { .. } | SenderError::InsufficientFunds { .. })
        | PoolError::Conflict(
            PoolConflictError::InsufficientFundsForQueue { .. }
            | PoolConflictError::AccountLimitExceeded { .. }
            | PoolConflictError::PoolFull
            | PoolConflictError::AddressReserved
            | PoolConflictError::InFlightLimitReached
            | PoolConflictError::AuthorityReserved,
        ) => PoolVerdict::Refused { for_good: false },
    }
}

fn verdict_on_transaction(error: &TransactionError) -> PoolVerdict {
    match error {
        // Invalid under any state, and only its sender can have made it so.
        TransactionError::InvalidSignature
        | TransactionError::TipAboveFeeCap { .. }
        | TransactionError::NonceMax
        | TransactionError::EmptyAuthorizations
        | TransactionError::NoBlobs => PoolVerdict::Invalid,
        // Around Osaka honest peers send both forms; another peer may have the other one.
        TransactionError::Sidecar(SidecarError::Version { .. }) => PoolVerdict::SidecarForm,
        // The hash does not cover the sidecar: another peer may have the right one.
        TransactionError::Sidecar(
            SidecarError::Missing | SidecarError::BlobCount { .. } | SidecarError::Wrong(_),
        ) => PoolVerdict::BadSidecar,
        // Useless for the foreseeable future.
        TransactionError::ChainId { .. }
        | TransactionError::TypeNotActive { .. }
        | TransactionError::BlobsDisabled
        | TransactionError::Oversized { .. }
        | TransactionError::InitCodeSize { .. }
        | TransactionError::GasLimitTooHigh { .. }
        | TransactionError::IntrinsicGas { .. }
        | TransactionError::FloorDataGas { .. }
        | TransactionError::Underpriced { .. }
        | TransactionError::TipTooLow { .. }
        | TransactionError::BlobFeeTooLow { .. }
        | TransactionError::TooManyBlobs { .. } => PoolVerdict::Refused { for_good: true },
        // A larger block may take it; the fee cap holds for local transactions only.
        TransactionError::ExceedsBlockGasLimit | TransactionError::FeeCapExceeded { .. } => {
            PoolVerdict::Refused { for_good: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar};
    use alloy_eips::{
        eip2718::Encodable2718,
        eip4844::{Blob, Bytes48},
        eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
    };
    use alloy_primitives::{Bytes, Signature, U256};

    /// The rejection of one peer's sidecar was once taken for a rejection of the transaction, and
    /// the node asked no other peer for it.
    #[test]
    fn no_refusal_of_a_sidecar_is_one_of_the_transaction() {
        let verdicts = [
            SidecarError::Version { expected: 1, got: 0 },
            SidecarError::Missing,
            SidecarError::BlobCount { blobs: 1, hashes: 2 },
        ]
        .map(|error| verdict(&TransactionError::from(error).into()));
        let bad = PoolVerdict::BadSidecar;
        assert_eq!(verdicts, [PoolVerdict::SidecarForm, bad, bad]);
        let early = PoolConflictError::NonceTooHigh { got: 2, next: 1 };
        assert_eq!(verdict(&early.into()), PoolVerdict::TooEarly);
    }

    #[test]
    fn the_longest_blob_transaction_of_a_fork_is_asked_for_and_no_longer_one() {
        for blobs in [1, 6] {
            let sidecar = BlobTransactionSidecarEip7594 {
                blobs: vec![Blob::repeat_byte(0xff); blobs],
                commitments: vec![Bytes48::repeat_byte(0xff); blobs],
                cell_proofs: vec![Bytes48::repeat_byte(0xff); 128 * blobs],
            };
            let sidecar = BlobTransactionSidecarVariant::Eip7594(sidecar);
            let mut tx = TxEip4844 {
                blob_versioned_hashes: vec![B256::repeat_byte(0xff); blobs],
                ..TxEip4844::default()
            };
            let signature = Signature::new(U256::MAX, U256::MAX, true);
            let length =
                |tx: &TxEip4844| tx.clone().into_signed(signature).encode_2718_len() as u64;
            let plain = length(&tx);
            tx.input = Bytes::from(vec![0xff; (128 << 10) - plain as usize - 6]);
            let plain = length(&tx);
            assert!((128 << 10) - 8 < plain && plain <= 128 << 10, "{plain}");
            let pooled = TxEip4844WithSidecar { tx, sidecar }.into_signed(signature);
            let (size, most) =
                (pooled.encode_2718_len() as u64, max_pooled_bytes(3, 128 << 10, blobs as u64));
            assert!(size <= most && most < size + 200, "{size} {most}");
        }
        assert_eq!(max_pooled_bytes(9, 128 << 10, 6), 0, "there is no such type");
    }
}
