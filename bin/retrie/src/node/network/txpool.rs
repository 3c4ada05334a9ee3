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

    /// Blobs of a transaction, at most: by the rules of now, or of the next block if the chain is behind.
    fn max_blobs(&self) -> u64 {
        let live = self.engine.live();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = |timestamp| live.spec().blob_params_at_timestamp(timestamp);
        let params = [at(now), at(live.head().timestamp.saturating_add(1))];
        params.iter().flatten().map(|params| params.max_blobs_per_tx).max().unwrap_or(0)
    }
}

/// Bytes of the longest transaction of a type, where one has so many bytes without its sidecar and so
/// many blobs at most.
fn max_pooled_bytes(ty: u8, max_plain: u64, max_blobs: u64) -> u64 {
    /// A blob (EIP-4844), its commitment and its 128 cell proofs (EIP-7594) in RLP.
    const PER_BLOB: u64 = (4 + 131_072) + 49 + 128 * 49;
    /// Lists around the fields, and a length of which other clients count a byte more or less.
    const MARGIN: u64 = 64;
    let plain = max_plain.saturating_add(MARGIN);
    match TxType::try_from(ty) {
        Ok(TxType::Eip4844) => plain.saturating_add(max_blobs.saturating_mul(PER_BLOB)),
        Ok(_) => plain,
        Err(_) => 0,
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
        let max_blobs = if ty == TxType::Eip4844 as u8 { self.max_blobs() } else { 0 };
        max_pooled_bytes(ty, self.pool.config().max_tx_input_bytes as u64, max_blobs)
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
        // Another state, or an emptier pool, may take it.
        PoolError::SenderNotEoa { .. }
        | PoolError::ExceedsBlockGasLimit
        | PoolError::FeeCapExceeded { .. }
        | PoolError::InsufficientFunds { .. }
        | PoolError::InsufficientFundsForQueue { .. }
        | PoolError::AccountLimitExceeded { .. }
        | PoolError::PoolFull
        | PoolError::AddressReserved
        | PoolError::InFlightLimitReached
        | PoolError::AuthorityReserved => Verdict::Refused { for_good: false },
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

    /// The refusal of one peer's sidecar was taken for one of the transaction, which was then asked of
    /// nobody else.
    #[test]
    fn no_refusal_of_a_sidecar_is_one_of_the_transaction() {
        let verdicts = [
            verdict(&PoolError::SidecarVersion { expected: 1, got: 0 }),
            verdict(&PoolError::MissingSidecar),
            verdict(&PoolError::BlobCount { blobs: 1, hashes: 2 }),
        ];
        let bad = Verdict::BadSidecar;
        assert_eq!(verdicts, [Verdict::SidecarForm, bad, bad]);
        assert_eq!(verdict(&PoolError::NonceTooHigh { got: 2, next: 1 }), Verdict::TooEarly);
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
