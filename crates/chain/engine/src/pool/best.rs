//! [`BestTransactions`]: the order in which a block takes transactions.

use crate::pool::PoolTransaction;
use alloy_primitives::{Address, map::HashMap};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    sync::Arc,
    vec,
};

/// A transaction with its rank: by tip, then by arrival.
#[derive(Debug)]
pub(super) struct RankedTransaction {
    /// Tip for the proposer per gas, in wei.
    pub(super) tip: u128,
    /// Arrival number.
    pub(super) id: u64,
    pub(super) tx: Arc<PoolTransaction>,
}

impl RankedTransaction {
    const fn key(&self) -> (u128, Reverse<u64>) {
        (self.tip, Reverse(self.id))
    }
}

impl PartialEq for RankedTransaction {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for RankedTransaction {}

impl PartialOrd for RankedTransaction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RankedTransaction {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// A snapshot of the executable transactions, best first: by tip per gas, then by arrival; those of
/// one sender in the order of their nonces.
#[derive(Debug, Default)]
pub struct BestTransactions {
    /// The next transaction of each sender.
    heads: BinaryHeap<RankedTransaction>,
    /// The transactions after it. A skipped sender has no entry.
    rest: HashMap<Address, vec::IntoIter<RankedTransaction>>,
    skips_blobs: bool,
}

impl BestTransactions {
    /// Adds the executable transactions of one sender, in the order of their nonces.
    pub(super) fn push(&mut self, sender: Address, chain: Vec<RankedTransaction>) {
        let mut rest = chain.into_iter();
        if let Some(head) = rest.next() {
            self.heads.push(head);
            self.rest.insert(sender, rest);
        }
    }

    /// Skips the remaining transactions of a sender whose last transaction could not be included.
    pub fn mark_invalid(&mut self, sender: Address) {
        self.rest.remove(&sender);
    }

    /// Skips all further blob transactions and the senders' later nonces, for a block without room
    /// for blobs.
    pub const fn skip_blobs(&mut self) {
        self.skips_blobs = true;
    }
}

impl Iterator for BestTransactions {
    type Item = Arc<PoolTransaction>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tx = self.heads.pop()?.tx;
            let sender = tx.sender();
            let Some(rest) = self.rest.get_mut(&sender) else { continue };
            if self.skips_blobs && tx.is_blob() {
                self.rest.remove(&sender);
                continue;
            }
            self.heads.extend(rest.next());
            return Some(tx);
        }
    }
}
