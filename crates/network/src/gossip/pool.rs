//! What gossip needs of the pool.

use crate::eth::PooledTransaction;
use alloy_primitives::B256;
use std::{fmt, future::Future, pin::Pin};

/// A transaction as it is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Its hash.
    pub hash: B256,
    /// Its EIP-2718 type.
    pub ty: u8,
    /// Length in bytes of its pooled form, with the sidecar, without the RLP string around it.
    pub size: u64,
}

/// What the pool says of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the pool.
    Taken,
    /// It was there before.
    Known,
    /// It is not wanted. Nobody is to blame.
    Refused {
        /// Whether it need not be fetched again.
        for_good: bool,
    },
    /// It cannot be taken before others of its sender are here. Nobody is to blame.
    TooEarly,
    /// It cannot be valid under any state.
    Invalid,
    /// Its blobs, commitments or proofs are not those that it names. Its hash does not tell: others may
    /// have the right ones.
    BadSidecar,
    /// Its proofs are of the form of another fork (EIP-7594). Its hash does not tell that either.
    SidecarForm,
}

/// Something about new transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// One that the next block can take, and which others may know of.
    One(Announced),
    /// There were more than could be read in time.
    Missed,
}

/// A future of [`FreshTransactions`]; `None` once the pool is gone.
pub type FreshFuture<'a> = Pin<Box<dyn Future<Output = Option<Fresh>> + Send + 'a>>;

/// New transactions of the pool.
pub trait FreshTransactions: fmt::Debug + Send {
    /// The next one. May be dropped before it is ready, and then nothing is lost.
    fn next(&mut self) -> FreshFuture<'_>;
}

/// The pool, as gossip reads and fills it.
pub trait TxPool: fmt::Debug + Send + Sync {
    /// Whether transactions of others can be judged: not while the chain is far behind.
    fn is_open(&self) -> bool {
        true
    }

    /// Bytes of the longest transaction of this EIP-2718 type that can be taken, in its pooled form;
    /// 0 if there is no such type. What is announced with more is not fetched.
    fn max_size(&self, ty: u8) -> u64;

    /// Whether it is in the pool.
    fn contains(&self, hash: &B256) -> bool;

    /// A transaction that others may have.
    fn pooled(&self, hash: &B256) -> Option<PooledTransaction>;

    /// Those that the next block can take and others may know of, the newest first, so many at most.
    fn newest(&self, most: usize) -> Vec<Announced>;

    /// New ones from now on.
    fn fresh(&self) -> Box<dyn FreshTransactions>;

    /// Judges a transaction of a peer. May take milliseconds.
    fn add(&self, transaction: PooledTransaction) -> Verdict;
}
