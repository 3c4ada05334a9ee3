//! The transaction pool as gossip uses it.

use crate::eth::PooledTransaction;
use alloy_primitives::B256;
use std::{fmt, future::Future, pin::Pin};

/// An announced transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxAnnouncement {
    /// Its hash.
    pub hash: B256,
    /// Its EIP-2718 type.
    pub ty: u8,
    /// Length in bytes in its pooled form, with the sidecar, without the RLP string around it.
    pub size: u64,
}

/// The pool's verdict on a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolVerdict {
    /// It is accepted.
    Taken,
    /// It was in the pool before.
    Known,
    /// It is refused, without a fault of the peer.
    Refused {
        /// Whether fetching it again would be useless.
        for_good: bool,
    },
    /// It needs earlier transactions of its sender first. This is no fault of the peer.
    TooEarly,
    /// It is invalid under any state.
    Invalid,
    /// Its blobs, commitments or proofs do not match its versioned hashes. The transaction hash
    /// does not cover them: other peers may have the correct ones.
    BadSidecar,
    /// Its proofs have the form of another fork (EIP-7594). The transaction hash does not cover
    /// that either.
    SidecarForm,
}

/// An update about new transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreshUpdate {
    /// A transaction that the next block can include and that may be sent to peers.
    One(TxAnnouncement),
    /// The reader was too slow: some transactions were missed.
    Missed,
}

/// A future of [`FreshTransactions`]; `None` once the pool is gone.
pub type FreshFuture<'a> = Pin<Box<dyn Future<Output = Option<FreshUpdate>> + Send + 'a>>;

/// The stream of new transactions of the pool.
pub trait FreshTransactions: fmt::Debug + Send {
    /// The next update. Cancel safe: dropping the future loses nothing.
    fn next(&mut self) -> FreshFuture<'_>;
}

/// The pool, as gossip reads and fills it.
pub trait TxPool: fmt::Debug + Send + Sync {
    /// Whether the pool can judge transactions of peers. False while the chain is far behind.
    fn is_open(&self) -> bool {
        true
    }

    /// Maximum bytes of a transaction of this EIP-2718 type, in its pooled form; 0 if the type is
    /// not accepted. Announcements with a greater size are not fetched.
    fn max_size(&self, ty: u8) -> u64;

    /// Whether the transaction is in the pool.
    fn contains(&self, hash: &B256) -> bool;

    /// A transaction of the pool that may be sent to peers.
    fn pooled(&self, hash: &B256) -> Option<PooledTransaction>;

    /// Length in bytes of a transaction of the pool as eth/72 sends it: pooled, without its blobs.
    /// `None` unless it is a blob transaction with cell proofs; the default has none.
    fn size_without_blobs(&self, _hash: &B256) -> Option<u64> {
        None
    }

    /// Transactions that the next block can include and that may be sent to peers: the newest
    /// first, at most `most`.
    fn newest(&self, most: usize) -> Vec<TxAnnouncement>;

    /// New transactions from now on.
    fn fresh(&self) -> Box<dyn FreshTransactions>;

    /// Judges a transaction of a peer. It may take milliseconds.
    fn add(&self, transaction: PooledTransaction) -> PoolVerdict;
}
